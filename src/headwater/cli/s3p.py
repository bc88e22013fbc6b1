"""`headwater s3p`: a shell that speaks S3P to a running server, line by line or with -c.
Owns how commands are typed and replies are shown; never parses for the server, which has its own way to refuse.
Exit codes: 0 done, 1 the server or the connection refused, 2 the command was wrong, 130 interrupted."""

from __future__ import annotations

import contextlib
import difflib
import select
import shlex
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from headwater import config
from headwater.cli.client import BadUsage, ClientError, ConnectionLost, NotUnderstood, Unreachable, printable
from headwater.client.tls_files import CA_VARIABLE, TlsFiles, explained, from_environment
from headwater.setting_values import parse_listen

ADDRESS_DEFAULT = str(config.BY_NAME["s3p"].default)
REPLY_TIMEOUT_S = 30.0
HISTORY_LINES_MAX = 1_000
PROMPT = "s3p> "

USAGE = {
    "CREATE": "CREATE STREAM",
    "APPEND": "APPEND STREAM [ID=MS] [--] RECORD ...",
    "READ": "READ STREAM [COUNT=N] [BLOCK=MS] [MIN_ID=MS-N]",
    "TRIM": "TRIM STREAM MIN_ID=MS-N",
    "DELETE": "DELETE STREAM",
}
OPTIONS = {
    "CREATE": (),
    "APPEND": ("ID",),
    "READ": ("COUNT", "BLOCK", "MIN_ID"),
    "TRIM": ("MIN_ID",),
    "DELETE": (),
}
WORDS = ("help", "quit")
HELP = """\
  CREATE orders                              make a stream
  APPEND orders hello world                  append two records
  APPEND orders ID=1700000000000 -- "rec 1"  with a timestamp of your own; -- ends the options
  READ orders COUNT=10                       the first ten records
  READ orders BLOCK=5000 MIN_ID=17-3         from an id on, waiting up to 5 s for one to come
  TRIM orders MIN_ID=17-3                    let go of everything before an id
  DELETE orders                              the stream and all its records
  help, quit
Words are split as in a shell: quote what holds spaces."""
ADVICE = {
    "ERR_UNKNOWN_STREAM": "make it with: CREATE {stream}",
    "ERR_STREAM_EXISTS": "read it with: READ {stream}",
    "ERR_NON_MONOTONIC_ID": "use a later ID, or leave it out",
    "ERR_UNAVAILABLE": "try again later",
    "ERR_LIMITS": "the server's settings say how much it takes: headwater config docs",
}


@dataclass(frozen=True, slots=True)
class Typed:
    """A command as it was typed. Names and records are bytes; option values too."""

    verb: str
    stream: bytes
    options: list[tuple[str, bytes]] = field(default_factory=list)
    records: list[bytes] | None = None

    @property
    def wire(self) -> bytes:
        pairs = [part for key, value in self.options for part in (key.encode(), value)]
        elements = [_bulk(self.verb.encode()), _bulk(self.stream), _array([_bulk(part) for part in pairs])]
        if self.records is not None:
            elements.append(_array([_bulk(record) for record in self.records]))
        return _array(elements)

    @property
    def block_s(self) -> float:
        """How long the server was asked to wait, as far as that is a number."""
        waits = [value for key, value in self.options if key == "BLOCK" and value.isdigit()]
        return int(waits[-1]) / 1000 if waits else 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    code: str
    message: str


Reply = str | bytes | Refusal | list[bytes]


def parse(line: str) -> Typed | None:
    """The command of a line; None when the line is empty. Raises BadUsage that shows how it is typed."""
    try:
        words = shlex.split(line)
    except ValueError:
        raise BadUsage("a quote is not closed", 'quote a record on both sides: "like this"') from None
    if not words:
        return None
    verb = words[0].upper()
    if verb not in USAGE:
        near = difflib.get_close_matches(verb, [*USAGE, *map(str.upper, WORDS)], n=1)
        advice = f"did you mean {near[0]}?" if near else "type help for all of them"
        raise BadUsage(f"no such command: {words[0]}", advice)
    if len(words) < 2 or not words[1]:
        raise BadUsage(f"{verb} needs the name of a stream", f"usage: {USAGE[verb]}")
    options: list[tuple[str, bytes]] = []
    rest = words[2:]
    while rest and rest[0] != "--":
        key, equals, value = rest[0].partition("=")
        if not equals or key.upper() not in OPTIONS[verb]:
            break
        if not value:
            raise BadUsage(f"{key.upper()} has no value", f"usage: {USAGE[verb]}")
        options.append((key.upper(), _encoded(value)))
        rest.pop(0)
    if rest and rest[0] == "--":
        rest.pop(0)
    if verb == "APPEND":
        if not all(rest) or not rest:
            wrong = "a record cannot be empty" if rest else "APPEND needs a record"
            raise BadUsage(wrong, f"usage: {USAGE[verb]}")
        return Typed(verb, _encoded(words[1]), options, [_encoded(record) for record in rest])
    if rest:
        raise BadUsage(f"{verb} does not understand {rest[0]!r}", f"usage: {USAGE[verb]}")
    if verb == "TRIM" and not options:
        raise BadUsage("TRIM needs MIN_ID", f"usage: {USAGE[verb]}")
    return Typed(verb, _encoded(words[1]), options)


class Session:
    """One server; its connection is made when needed and again after it was lost."""

    def __init__(self, address: str, tls: TlsFiles | None = None) -> None:
        """`tls`: None speaks without it."""
        self._tls = tls
        try:
            self._host, self._port = parse_listen(address)
        except ValueError as why:
            raise BadUsage(str(why), f"write the server's address as HOST:PORT, such as {ADDRESS_DEFAULT}") from None
        self.address = address
        self._socket: socket.socket | None = None
        self._replies: BinaryIO | None = None

    def call(self, command: Typed) -> Reply:
        """The reply. Raises ClientError; afterwards the next call connects anew."""
        if self._socket is not None and select.select([self._socket], [], [], 0)[0]:
            self.close()  # Between two commands nothing may arrive: a readable socket is one that the server closed.
        replies = self._connected()
        try:
            if self._socket is not None:
                self._socket.settimeout(REPLY_TIMEOUT_S + command.block_s)
                self._socket.sendall(command.wire)
            reply = _reply(replies)
        except (OSError, EOFError) as why:
            self.close()
            reason = "no reply in time" if isinstance(why, TimeoutError) else "it was closed"
            advice = "what became of the command is not known; READ the stream to see"
            raise ConnectionLost(f"lost the connection to {self.address}: {reason}", advice) from None
        except BaseException:
            self.close()  # The reply to a command that was given up would be taken for the next one's.
            raise
        if isinstance(reply, Refusal) and reply.code in ("ERR_BAD_FORMAT", "ERR_LIMITS"):
            self.close()
        return reply

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = self._replies = None

    def _connected(self) -> BinaryIO:
        if self._replies is None:
            try:
                self._socket = socket.create_connection((self._host, self._port), timeout=REPLY_TIMEOUT_S)
                if self._tls is not None:
                    self._socket = self._tls.context().wrap_socket(self._socket, server_hostname=self._host)
            except ssl.SSLError as why:
                self.close()
                raise Unreachable(f"no TLS with {self.address}: {explained(why, self._host)}") from None
            except ConnectionRefusedError:
                advice = "is the server running, and its s3p setting not off? start it with: headwater serve"
                raise Unreachable(f"nothing answers at {self.address}", advice) from None
            except (OSError, UnicodeError) as why:
                self.close()
                reason = getattr(why, "strerror", None) or str(why) or "timed out"
                raise Unreachable(f"cannot reach {self.address}: {reason}", "check HOST:PORT") from None
            self._replies = self._socket.makefile("rb")
            self._authenticate(self._socket, self._replies)
        return self._replies

    def _authenticate(self, connected: socket.socket, replies: BinaryIO) -> None:
        """Says who the client is, where it was given a key. Raises ClientError."""
        token = config.client_token(config.process_environment())
        if token is None:
            return
        try:
            connected.sendall(b"*2\r\n%b%b" % (_encoded("AUTH"), _encoded(token)))
            reply = _reply(replies)
        except (OSError, EOFError):
            self.close()
            raise ConnectionLost(f"lost the connection to {self.address}: it was closed") from None
        if isinstance(reply, Refusal):
            self.close()
            raise ClientError(f"{reply.code} {reply.message}", f"see {config.TOKEN_VARIABLE}, or leave it out")


def shell(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Where the server listens for S3P.")
    ] = ADDRESS_DEFAULT,
    command: Annotated[
        list[str] | None,
        typer.Option("-c", "--command", metavar="COMMAND", help="Run a command and leave; may be given again."),
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help=f"Speak TLS; {CA_VARIABLE} names whom to trust instead of the system's.")
    ] = False,
) -> None:
    """Type S3P commands at a running server: CREATE, APPEND, READ, TRIM, DELETE."""
    try:
        session = Session(address, from_environment(config.process_environment()) if tls else None)
    except BadUsage as why:
        _tell(why)
        raise typer.Exit(why.exit_code) from None
    interactive = command is None and sys.stdin.isatty()
    lines = _typed(session.address) if interactive else iter(command or sys.stdin)
    worst = 0
    with contextlib.closing(session):
        while True:
            try:
                line = next(lines, None)
                if line is None or line.strip().lower() in ("quit", "exit"):
                    break
                worst = max(worst, run(session, line))
            except KeyboardInterrupt:
                typer.echo("", err=True)
                if not interactive:
                    raise typer.Exit(130) from None
                lines = _typed("")
    raise typer.Exit(0 if interactive else worst)


def run(session: Session, line: str) -> int:
    """One line, its reply printed; returns the exit code it would have alone."""
    if line.strip().lower() == "help":
        typer.echo(HELP)
        return 0
    try:
        command = parse(line)
        if command is None:
            return 0
        reply = session.call(command)
    except ClientError as why:
        _tell(why)
        return why.exit_code
    if isinstance(reply, Refusal):
        stream = shlex.quote(_shown(command.stream))
        _tell(ClientError(reply.message or reply.code, ADVICE.get(reply.code, "").format(stream=stream)))
        return 1
    for text in shown(reply):
        typer.echo(text)
    return 0


def shown(reply: str | bytes | list[bytes]) -> Iterator[str]:
    """The reply as lines for a person: a record each for READ, its id in front."""
    if isinstance(reply, str):
        yield printable(reply)
    elif isinstance(reply, bytes):
        yield _shown(reply)
    elif not reply:
        yield "(no records)"
    else:
        ids = [_shown(record_id) for record_id in reply[::2]]
        width = max(map(len, ids))
        for record_id, record in zip(ids, reply[1::2], strict=False):
            yield f"{record_id:<{width}}  {_shown(record)}"


def _typed(address: str) -> Iterator[str]:
    """Lines from a person, with history and completion where readline is there."""
    if address:
        typer.echo(f"S3P at {address}. Type help for examples, quit to leave.")
    save = _history()
    try:
        while True:
            try:
                yield input(PROMPT)
            except EOFError:
                typer.echo("")
                return
    finally:
        save()


def _history() -> Callable[[], None]:
    try:
        import readline
    except ImportError:
        return lambda: None
    path = Path.home() / ".headwater_s3p_history"
    if not readline.get_current_history_length():
        with contextlib.suppress(OSError):
            readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES_MAX)
    readline.set_completer_delims(" ")
    readline.set_completer(lambda text, index: [*completions(readline.get_line_buffer(), text), None][index])
    readline.parse_and_bind("tab: complete")

    def save() -> None:
        with contextlib.suppress(OSError):
            readline.write_history_file(path)

    return save


def completions(line: str, word: str) -> list[str]:
    """What the word under the cursor may become: a command, or an option of the command before it."""
    before = line.split()
    if len(before) <= 1 and not line.endswith(" "):
        return [f"{one} " for one in (*USAGE, *WORDS) if one.startswith(word) or one.lower().startswith(word)]
    options = OPTIONS.get(before[0].upper(), ())
    return [f"{key}=" for key in options if key.startswith(word.upper()) and (word or len(before) > 1)]


def _tell(why: ClientError) -> None:
    typer.echo(f"error: {printable(why.message)}", err=True)
    if why.advice:
        typer.echo(f"  {printable(why.advice)}", err=True)


def _reply(replies: BinaryIO) -> Reply:
    line = _line(replies)
    kind, rest = line[:1], line[1:].decode("ascii", "replace")
    if kind == b"+":
        return rest
    if kind == b"-":
        code, _, message = rest.partition(" ")
        return Refusal(code, message)
    if kind == b"$":
        return _value(replies, rest)
    if kind == b"*" and rest.isdigit():
        return [_value(replies, _line(replies)[1:].decode("ascii", "replace")) for _ in range(int(rest))]
    raise NotUnderstood("the server does not answer in S3P", "is HOST:PORT its S3P address, not the HTTP one?")


def _line(replies: BinaryIO) -> bytes:
    line = replies.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError
    return line[:-2]


def _value(replies: BinaryIO, digits: str) -> bytes:
    if not digits.isdigit():
        raise NotUnderstood("the server does not answer in S3P", "is HOST:PORT its S3P address, not the HTTP one?")
    value = replies.read(int(digits) + 2)
    if len(value) < int(digits) + 2:
        raise EOFError
    return value[:-2]


def _bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def _array(elements: list[bytes]) -> bytes:
    return b"*%d\r\n%b" % (len(elements), b"".join(elements))


def _encoded(word: str) -> bytes:
    return word.encode("utf-8", "surrogateescape")


def _shown(value: bytes) -> str:
    """Text as it is, and bytes that are none, or that a terminal would obey, as escapes."""
    text = value.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
