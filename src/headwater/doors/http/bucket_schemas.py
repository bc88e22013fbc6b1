"""The JSON schema of a bucket over HTTP.

Owns the shape of the answers and the version in `ETag` and `If-Match`. Never says what a schema may be: the model does.

    /__headwater/buckets/{bucket}/schema    GET, PUT, DELETE what the bucket says its JSON records look like
"""

from __future__ import annotations

from typing import Any

import msgspec

from headwater.doors.http.exchange import Exchange
from headwater.engine.bucket_schemas import BucketSchemas
from headwater.engine.schema_records import BucketSchema
from headwater.errors import BadHeader, MethodNotAllowed
from headwater.model import moments
from headwater.security.policy import Concern, Rule
from headwater.security.principals import Action

RULE = Rule(Concern.BUCKET, {"GET": Action.READ, "HEAD": Action.READ, "PUT": Action.MANAGE, "DELETE": Action.MANAGE})


class SchemaCalls:
    def __init__(self, schemas: BucketSchemas) -> None:
        self._schemas = schemas

    def handle(self, exchange: Exchange, bucket: str) -> None:
        method = exchange.request.method
        if method in (b"GET", b"HEAD"):
            exchange.run(self._show(exchange, bucket))
        elif method == b"PUT":
            exchange.run(self._put(exchange, bucket))
        elif method == b"DELETE":
            exchange.run(self._take_away(exchange, bucket))
        else:
            raise MethodNotAllowed(RULE.allowed)

    async def _show(self, exchange: Exchange, bucket: str) -> None:
        self._reply(exchange, bucket, await self._schemas.get(bucket))

    async def _put(self, exchange: Exchange, bucket: str) -> None:
        document = exchange.request.body
        made = await self._schemas.put(bucket, bytes(document), _if_match(exchange))
        self._reply(exchange, bucket, made)

    async def _take_away(self, exchange: Exchange, bucket: str) -> None:
        await self._schemas.take_away(bucket, _if_match(exchange))
        exchange.empty(204, [])

    def _reply(self, exchange: Exchange, bucket: str, schema: BucketSchema) -> None:
        facts: dict[str, Any] = {
            "bucket_id": bucket,
            "version": schema.version,
            "updated_at": moments.show(schema.at_ms),
            "schema": msgspec.Raw(schema.document),
        }
        headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store"), ("ETag", schema.etag)]
        responder, keep_alive, body = exchange.responder, exchange.request.keep_alive, msgspec.json.encode(facts)
        if exchange.request.method == b"HEAD":
            exchange.reply(responder.head(200, headers, len(body), keep_alive))
        else:
            exchange.reply(responder.full(200, headers, body, keep_alive))


def _if_match(exchange: Exchange) -> str | None:
    """Raises BadHeader."""
    raw = exchange.request.headers.get(b"if-match")
    if raw is None:
        return None
    text = raw.decode("latin-1").strip()
    if text != "*" and not (text.startswith('"') and text.endswith('"') and text[1:-1].isdigit()):
        raise BadHeader("If-Match", 'expected the version in quotes, such as "3", or *')
    return text
