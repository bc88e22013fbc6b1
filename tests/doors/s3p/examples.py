"""Owns the examples of the S3P v0.2.0 text, byte for byte, with the section each stands in.
Nothing here runs: both halves of the spec's tests read it, one for the wire, one against a server."""

from typing import NamedTuple


def wire(text: str) -> bytes:
    """As the spec prints it: one line of the wire per line, CRLF understood."""
    return "".join(line.strip() + "\r\n" for line in text.strip().split("\n")).encode("ascii")


class Example(NamedTuple):
    sent: bytes
    reply: bytes


CREATE_8_1_1 = Example(
    wire("""
        *3
        $6
        CREATE
        $6
        orders
        *0
    """),
    wire("+OK"),
)

CREATE_UNKNOWN_OPTION_8_1_2 = Example(
    wire("""
        *3
        $6
        CREATE
        $6
        orders
        *2
        $8
        MAX_SIZE
        $4
        1000
    """),
    wire("-ERR_BAD_FORMAT unknown option MAX_SIZE"),
)

CREATE_EXISTING_8_1_3 = Example(
    wire("""
        *3
        $6
        CREATE
        $6
        orders
        *0
    """),
    wire("-ERR_STREAM_EXISTS stream orders already exists"),
)

APPEND_8_2_1 = Example(
    wire("""
        *4
        $6
        APPEND
        $6
        orders
        *0
        *2
        $5
        hello
        $5
        world
    """),
    wire("""
        $15
        1700000001234-1
    """),
)

APPEND_EMPTY_RECORD_8_2_2 = Example(
    wire("""
        *4
        $6
        APPEND
        $6
        orders
        *0
        *2
        $5
        hello
        $0
    """)
    + b"\r\n",  # the empty record and the CRLF after it
    wire("-ERR_BAD_FORMAT invalid record bulk string (length < 1)"),
)

APPEND_NON_MONOTONIC_8_2_3 = Example(
    wire("""
        *4
        $6
        APPEND
        $6
        orders
        *2
        $2
        ID
        $13
        1700000001000
        *1
        $7
        payload
    """),
    wire(
        "-ERR_NON_MONOTONIC_ID provided timestamp ID 1700000001000 is not greater than last appended ID 1700000001234"
    ),
)

READ_8_3 = Example(
    wire("""
        *3
        $4
        READ
        $6
        orders
        *4
        $5
        COUNT
        $2
        10
        $6
        MIN_ID
        $3
        0-0
    """),
    wire("""
        *4
        $15
        1700000001234-0
        $5
        hello
        $15
        1700000001235-0
        $5
        world
    """),
)

TRIM_8_4 = Example(
    wire("""
        *3
        $4
        TRIM
        $6
        orders
        *2
        $6
        MIN_ID
        $15
        1700000001235-0
    """),
    wire("+OK"),
)

DELETE_8_5 = Example(
    wire("""
        *3
        $6
        DELETE
        $6
        orders
        *0
    """),
    wire("+OK"),
)
