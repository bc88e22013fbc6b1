"""The lake in an S3 bucket, or in anything that speaks S3 with conditional puts.

Owns what is retried, for how long, and what S3's answers mean for the operator. Never takes a lost answer for a no:
what became of a conditional put is found out by reading the object back.

The client's own retry turns a stored put whose answer was lost into "already exists", so conditional puts go through a
second client that never retries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store as Client

from headwater.lake.store import (
    Data,
    LakeDamaged,
    ObjectMissing,
    Parts,
    Stored,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    check_key,
    joined,
    parts_of,
)
from headwater.ports import pause

REQUEST_MS_MAX = 15_000
CONNECT_MS_MAX = 3_000
RETRIES_MAX = 3
RETRYING_MS_MAX = 30_000
CONDITIONAL_ATTEMPTS_MAX = 4
BACKOFF_MS_MIN, BACKOFF_MS_MAX = 100, 2_000
MULTIPART_BYTES_MIN = 16 << 20
"""Larger objects go up in parts, so that the time-out of a request stays a matter of one part."""
PART_BYTES = 8 << 20
_LIST_PAGE_COUNT = 1_000

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_CREDENTIAL_HOSTS = ("169.254.169.254", "169.254.170.", "AssumeRoleWithWebIdentity")

_ADVICE = {
    "NoSuchBucket": "the bucket does not exist; create it or name another one",
    "InvalidBucketName": "that is not a name for a bucket",
    "InvalidAccessKeyId": "the access key id is not known there; check it",
    "SignatureDoesNotMatch": "the secret access key does not belong to the access key id; check both",
    "InvalidToken": "the session token is not valid; renew it",
    "ExpiredToken": "the session token has expired; renew it",
    "RequestTimeTooSkewed": "this machine's clock is off; set it",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set the lake's region",
    "PermanentRedirect": "the bucket is in another region; set the lake's region",
    "AccessDenied": "the credentials lack a permission; allow s3:GetObject, s3:PutObject, s3:DeleteObject and "
    "s3:ListBucket on the bucket",
}
_PASSING_STATUSES = {408, 409, 429}
"""Refusals of this moment: too slow, in conflict with a concurrent request, too many."""


class S3Store:
    """Objects below a prefix of a bucket. What is not given comes from the environment or the machine's role."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        request_ms_max: int = REQUEST_MS_MAX,
        sleep: Callable[[float], None] = pause,
    ) -> None:
        if not bucket:
            raise StoreRefused("an S3 lake names a bucket: s3://bucket/prefix")
        if (access_key_id is None) != (secret_access_key is None):
            raise StoreRefused("an access key id and its secret are given together or not at all")
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise StoreRefused(f"the S3 endpoint {endpoint!r} is not an address; write http://… or https://…")
        self._bucket = bucket
        self._prefix = prefix.strip("/")
        self._where = f"s3://{bucket}" + (f" at {endpoint}" if endpoint else "")
        self._sleep = sleep
        insecure = endpoint is not None and endpoint.startswith("http://")
        given = {
            "endpoint": endpoint,
            "region": region,
            "access_key_id": access_key_id,
            "secret_access_key": secret_access_key,
            "session_token": session_token,
        }
        self._given = {name: value for name, value in given.items() if value is not None}
        self._storage_options = self._options_for_delta(insecure, request_ms_max)
        client_options = {
            "allow_http": insecure,
            "timeout": timedelta(milliseconds=request_ms_max),
            "connect_timeout": timedelta(milliseconds=CONNECT_MS_MAX),
        }
        self._client = self._open(client_options, RETRIES_MAX)
        self._once = self._open(client_options, 0)

    def _open(self, client_options: dict[str, Any], retries_max: int) -> Client:
        # One object is deleted at a time: the bulk call is the one that many S3 look-alikes do not have.
        config: Any = {**self._given, "conditional_put": "etag", "disable_bulk_delete": True}
        retry: Any = {
            "max_retries": retries_max,
            "retry_timeout": timedelta(milliseconds=RETRYING_MS_MAX),
            "backoff": {
                "init_backoff": timedelta(milliseconds=BACKOFF_MS_MIN),
                "max_backoff": timedelta(milliseconds=BACKOFF_MS_MAX),
                "base": 2,
            },
        }
        options: Any = client_options
        try:
            return Client(
                self._bucket, prefix=self._prefix or None, config=config, client_options=options, retry_config=retry
            )
        except (BaseError, ValueError) as error:
            raise StoreRefused(f"{self._where}: {_first_line(error)}") from error

    def _options_for_delta(self, insecure: bool, request_ms_max: int) -> dict[str, str]:
        names = {
            "endpoint": "aws_endpoint",
            "region": "aws_region",
            "access_key_id": "aws_access_key_id",
            "secret_access_key": "aws_secret_access_key",
            "session_token": "aws_session_token",
        }
        return {
            **{names[name]: value for name, value in self._given.items()},
            "aws_allow_http": "true" if insecure else "false",
            "aws_conditional_put": "etag",
            "timeout": f"{request_ms_max}ms",
            "connect_timeout": f"{CONNECT_MS_MAX}ms",
            # No retries below a commit: the table repeats it as a whole, after it looked at what became of it.
            "max_retries": "0",
        }

    @property
    def uri(self) -> str:
        return f"s3://{self._bucket}" + (f"/{self._prefix}" if self._prefix else "")

    @property
    def storage_options(self) -> dict[str, str]:
        return dict(self._storage_options)

    def put(self, key: str, data: Parts) -> None:
        parts = parts_of(data)
        size = sum(map(len, parts))
        try:
            obstore.put(
                self._client,
                check_key(key),
                parts[0] if len(parts) == 1 else parts,
                use_multipart=size >= MULTIPART_BYTES_MIN,
                chunk_size=PART_BYTES,
                max_concurrency=2,
            )
        except (BaseError, OSError) as error:
            raise self._failure(error, f"cannot store {key}") from error

    def put_if_absent(self, key: str, data: Parts) -> bool:
        content = joined(data)
        failure: StoreError | None = None
        for attempt in range(CONDITIONAL_ATTEMPTS_MAX):
            if attempt:
                self._sleep(min(BACKOFF_MS_MIN << attempt, BACKOFF_MS_MAX) / 1000)
            try:
                obstore.put(self._once, check_key(key), content, mode="create", use_multipart=False)
                return True
            except (AlreadyExistsError, PreconditionError):
                taken = True
            except (BaseError, OSError) as error:
                failure = self._failure(error, f"cannot store {key}")
                if isinstance(failure, StoreRefused):
                    raise failure from error
                taken = False
            # An earlier attempt, ours or a proxy's, may have stored it before this one was refused: the content tells.
            try:
                return self.get(key) == content
            except ObjectMissing:
                if taken:
                    failure = StoreUnavailable(f"cannot store {key} in {self._where}: it exists, yet cannot be read")
            except StoreUnavailable as error:
                failure = error
        raise failure or StoreUnavailable(f"cannot store {key} in {self._where}")

    def get(self, key: str) -> bytes:
        try:
            return bytes(memoryview(obstore.get(self._client, check_key(key)).bytes()))
        except FileNotFoundError as error:
            raise self._missing_or_no_bucket(error, key) from error
        except (BaseError, OSError) as error:
            raise self._failure(error, f"cannot read {key}") from error

    def get_range(self, key: str, start: int, length: int) -> Data:
        try:
            data = memoryview(obstore.get_range(self._client, check_key(key), start=start, length=length))
        except FileNotFoundError as error:
            raise self._missing_or_no_bucket(error, key) from error
        except (BaseError, OSError) as error:
            if _status(error) == 416:
                raise LakeDamaged(key, f"it ends before byte {start}") from error
            raise self._failure(error, f"cannot read {key}") from error
        if len(data) != length:
            raise LakeDamaged(key, f"it ends at byte {start + len(data)}, before {start + length}")
        return data

    def get_tail(self, key: str, length: int) -> tuple[Data, int]:
        try:
            answer = obstore.get(self._client, check_key(key), options={"range": {"suffix": length}})
            return memoryview(answer.bytes()), answer.meta["size"]
        except FileNotFoundError as error:
            raise self._missing_or_no_bucket(error, key) from error
        except (BaseError, OSError) as error:
            if _status(error) == 416:
                return b"", 0
            raise self._failure(error, f"cannot read {key}") from error

    def local_path(self, key: str) -> None:
        return None

    def head(self, key: str) -> int | None:
        try:
            return obstore.head(self._client, check_key(key))["size"]
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise self._failure(error, f"cannot look at {key}") from error

    def delete(self, key: str) -> None:
        try:
            obstore.delete(self._client, check_key(key))
        except FileNotFoundError:
            pass
        except (BaseError, OSError) as error:
            raise self._failure(error, f"cannot delete {key}") from error

    def list(self, prefix: str = "") -> Iterator[Stored]:
        try:
            for page in obstore.list(self._client, prefix.rstrip("/") or None, chunk_size=_LIST_PAGE_COUNT):
                for found in page:
                    yield Stored(found["path"], found["size"], int(found["last_modified"].timestamp() * 1000))
        except (BaseError, OSError) as error:
            raise self._failure(error, f"cannot list {prefix or self.uri}") from error

    def leftovers(self) -> Iterator[Stored]:
        """None: parts of an upload that was cut off are invisible here and are a lifecycle rule's to remove."""
        return iter(())

    def sync(self, keys: Iterable[str]) -> None:
        """Nothing to do: what S3 acknowledged is durable."""

    def explain(self, error: Exception) -> StoreError | None:
        if isinstance(error, StoreError):
            return error
        if _status(error) == 412:
            return None  # another writer was quicker, which is not the store's fault
        if not isinstance(error, OSError | BaseError) and _status(error) is None and "S3 error" not in str(error):
            return None
        return self._failure(error, "cannot work")

    def _missing_or_no_bucket(self, error: Exception, key: str) -> StoreError:
        if "NoSuchBucket" in str(error):
            return self._failure(error, f"cannot read {key}")
        return ObjectMissing(key)

    def _failure(self, error: Exception, what: str) -> StoreError:
        text = str(error)
        code = _CODE.search(text)
        name = code[1] if code else ""
        if name in _ADVICE:
            return StoreRefused(f"{what} in {self._where}: {_ADVICE[name]}")
        if any(host in text for host in _CREDENTIAL_HOSTS):
            return StoreRefused(
                f"{what} in {self._where}: no credentials were found; set an access key id and its secret, "
                "or give this machine a role"
            )
        status = _status(error)
        if status in (401, 403) or "lacked the necessary privileges" in text:
            return StoreRefused(f"{what} in {self._where}: {_ADVICE['AccessDenied']}")
        if status in (301, 302, 307, 308) or "incorrectly configured region" in text:
            return StoreRefused(f"{what} in {self._where}: {_ADVICE['PermanentRedirect']}")
        if status is not None and 400 <= status < 500 and status not in _PASSING_STATUSES:
            message = _MESSAGE.search(text)
            return StoreRefused(f"{what} in {self._where}: {status} {name} {message[1] if message else ''}".rstrip())
        return StoreUnavailable(f"{what} in {self._where}: {_first_line(error)}")


def _status(error: Exception) -> int | None:
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def _first_line(error: Exception) -> str:
    """The client adds its internals after an empty line, and an XML body after the first."""
    return str(error).partition("\n")[0]
