"""The matrix of access as a check of one node: every sample, with every kind of credential.

Owns what each is to be answered. Never starts a node: those who have one call it."""

from __future__ import annotations

import json

from headwater.security.policy import Concern, Rule
from tests.doors.http.access.samples import KEY, LISTINGS, OWN_CODES, Sample, samples
from tests.support.guarded import Guarded, code
from tests.support.http import ConnectionEnded, Response, encode_request

WITHIN_S = 30.0


def asked(node: Guarded, sample: Sample, token: str | None, scheme: str = "Bearer") -> Response:
    """The answer to a sample; of one that goes on for long the head alone."""
    headers = {"Content-Type": "application/json", **sample.headers}
    if token is not None:
        headers["Authorization"] = f"{scheme} {token}"
    with node.node.connect(WITHIN_S) as connection:
        connection.send(encode_request(sample.method, sample.path, headers, sample.body, connection.authority))
        head = connection.read_head()
        body = b""
        if head.status >= 300 or head.header("content-length") is not None:
            try:
                body = b"".join(connection.body_pieces(head, sample.method))
            except ConnectionEnded:
                pass
        return Response(head.status, head.reason, head.headers, head.informational, body)


def refused(sample: Sample, answer: Response) -> str:
    """The code by which access was refused; empty when it was not."""
    if sample.method == "HEAD":
        return {401: "401", 403: "forbidden"}.get(answer.status, "")
    if sample.route in ("/__headwater/append", "/__headwater/snapshots") and answer.status == 200:
        codes = {entry.get("error", {}).get("code", "") for entry in json.loads(answer.body)}
        return next(iter(codes & OWN_CODES), "")
    found = code(answer)
    return found if found in OWN_CODES else ""


def check_matrix(node: Guarded, rows: list[tuple[str, Rule]]) -> None:
    """Asks a node every sample with every kind of credential."""
    spare = node.made("read:nothing")
    expired = node.made("admin", expires_in_s=1)["token"]
    gone = node.made("admin")
    node.call("DELETE", f"/__headwater/tokens/{gone['id']}")
    narrow = node.key("read,append,create,manage:elsewhere")
    while node.ask(expired, "GET", f"/v1/stream/{KEY}").status != 401:
        pass
    wrong = {
        "unknown": "hw_" + "a" * 16 + "_" + "A" * 43,
        "truncated": node.admin[:-1],
        "another secret": node.admin[:-2] + ("AA" if node.admin[-2:] != "AA" else "BB"),
        "expired": expired,
        "revoked": gone["token"],
        "no token": "eyJhbGciOiJub25lIn0.e30.",
    }
    failed: list[str] = []

    def expect(sample: Sample, kind: str, answer: Response, codes: set[str]) -> None:
        found = refused(sample, answer)
        if sample.method == "HEAD" and codes - {""}:
            codes = {"401" if "forbidden" not in codes else "forbidden"}
        if found not in codes:
            failed.append(
                f"{sample.method} {sample.route} with {kind}: {answer.status} {found!r} {answer.body[:200]!r}"
            )

    for sample in samples(rows, spare["id"]):
        concern = sample.rule.concern
        nobody = "not_authenticated"
        if concern is Concern.MEMBERS:
            for token in (None, node.admin):
                if asked(node, sample, token).status != 404:
                    failed.append(f"{sample.route} is there for clients")
            continue
        is_open = concern in (Concern.OPEN, Concern.TOKEN)
        expect(sample, "nothing", asked(node, sample, None), {""} if is_open else {nobody})
        for kind, token in wrong.items():
            expect(sample, kind, asked(node, sample, token), {""} if is_open else {"credential_refused"})
        expect(
            sample, "another scheme", asked(node, sample, "YTpi", "Basic"), {""} if is_open else {"credential_refused"}
        )
        if is_open:
            continue
        judged_later = sample.route in ("/v0/routers", "/v0/ws")
        if concern is Concern.KNOWN and (sample.method, sample.body is None) not in (("PUT", False), ("POST", False)):
            # What it may not know of is not there.
            if asked(node, sample, narrow).status != 404:
                failed.append(f"{sample.method} {sample.route} is told of")
        else:
            expect(sample, "a narrow key", asked(node, sample, narrow), {""} if judged_later else {"forbidden"})
        if concern not in (Concern.KNOWN, Concern.PARTS):
            expect(sample, "too few actions", asked(node, sample, node.key(*sample.lacking())), {"forbidden"})
        if concern is not Concern.KNOWN and sample.method != "DELETE" and not sample.route.endswith("/public"):
            expect(sample, "just enough", asked(node, sample, node.key(*sample.scopes())), {""})
            expect(sample, "an admin", asked(node, sample, node.admin), {""})
    assert not failed, "\n".join(failed)
    # Last what takes things away, or lets everybody see them.
    for sample in samples(rows, spare["id"]):
        takes = sample.method == "DELETE" or sample.route.endswith("/public")
        if takes and sample.rule.concern not in (Concern.MEMBERS, Concern.KNOWN):
            expect(sample, "just enough", asked(node, sample, node.key(*sample.scopes())), {""})
    assert not failed, "\n".join(failed)
    assert set(LISTINGS) <= {route for route, _ in rows}
