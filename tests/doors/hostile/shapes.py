"""What the hostile tests share: the streams they aim at, sending raw bytes, and the one shape of an error.
It owns no test; what a given input must be answered stands beside that input."""

from __future__ import annotations

from tests.support.http import Connection, Response
from tests.support.node import Node

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
PATH = "/v1/stream/bad/text"
JSON_PATH = "/v1/stream/bad/json"

# The only server errors a client may cause: a method nobody knows, and a version nobody speaks.
SERVER_ERRORS_ALLOWED = {501, 505}


def send(connection: Connection, data: bytes) -> None:
    """Send as much as the server takes: it may have answered and closed before the end, and the answer counts."""
    try:
        connection.send(data)
    except ConnectionError:
        pass


def raw(node: Node, data: bytes, method: str = "GET") -> Response:
    with node.connect() as connection:
        send(connection, data)
        return connection.read_response(method)


def assert_well_shaped(answer: Response, has_body: bool = True) -> None:
    """No server error; and if it is a client's error, JSON of the one shape that says something."""
    assert answer.status < 500 or answer.status in SERVER_ERRORS_ALLOWED, answer
    if answer.status >= 400 and has_body:
        assert (answer.header("content-type") or "").startswith("application/json"), answer
        error = answer.json()["error"]
        assert isinstance(error["code"], str) and error["code"], answer
        assert isinstance(error["message"], str) and error["message"], answer
        assert answer.header("x-content-type-options") == "nosniff", answer


def assert_alive(node: Node) -> None:
    """The next client is served, and no request so far ended in a trace instead of an answer."""
    assert node.request("GET", "/healthz").status == 200, node.output()
    errors = node.stderr()
    assert "Traceback" not in errors and "request failed" not in errors, node.output()
