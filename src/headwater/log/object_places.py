"""Where the objects of a log lie: a directory, or a bucket of anything that speaks S3 with conditional puts.

Owns put-if-absent, and what an error means for whether an object was stored. Never retries and never compares: a lost
answer is Unsure, and who asked finds out. The client's own retry would turn a stored object whose answer was lost into
"it exists", so it is off.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store as Client

from headwater.log.medium import MediumError, Unavailable, Unsure
from headwater.ports import SystemRng

REQUEST_MS_MAX = 10_000
CONNECT_MS_MAX = 3_000
_THREADS = 8
_DRAFTS = ".drafts"
_LIST_PAGE_COUNT = 1_000
_STATUS = re.compile(r"status code: (\d{3})")
_PASSING_STATUSES = {408, 409, 429}
"""Refusals of this moment, which may hide a request that took effect."""
_T = TypeVar("_T")


class ObjectPlace(Protocol):
    """Objects by key (`a/b/c`), each created once and whole. Shared by the logs of all groups of a process."""

    async def create(self, key: str, data: bytes) -> bool:
        """True: stored by this call, durably. False: an object is there, perhaps this very one, durably.
        Raises Unavailable or Unsure."""
        ...

    async def get(self, key: str) -> bytes | None:
        """The whole object; None when there is none. Raises Unavailable."""
        ...

    async def keys(self, folder: str, after: str = "") -> list[str]:
        """Every key below the folder that sorts after `after`, sorted. Shows what was created before the call.
        Raises Unavailable."""
        ...

    async def folders(self, folder: str) -> list[str]:
        """The names of the folders directly in the folder, sorted. Raises Unavailable."""
        ...

    async def delete(self, keys: list[str]) -> None:
        """After it the objects are gone, whether they were there or not. Raises Unavailable."""
        ...


class DirectoryPlace:
    """Objects as files below a directory that all members share. An object is written under another name, synced,
    linked to its own name (which fails when the name is taken), and the directory is synced."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._broken = ""
        self._token = SystemRng().token
        self._threads = ThreadPoolExecutor(_THREADS, "log-objects")

    async def create(self, key: str, data: bytes) -> bool:
        # By chance: members on other machines put their drafts there too.
        return await self._run(partial(self._create, key, data, self._token(16).hex()))

    def _create(self, key: str, data: bytes, name: str) -> bool:
        if self._broken:
            raise Unsure(self._broken)
        path = self._root / key
        draft = self._root / _DRAFTS / name
        try:
            _make_folder(path.parent)
            _make_folder(draft.parent)
            with open(draft, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise Unavailable(f"cannot write {draft}: {error.strerror}") from error
        try:
            os.link(draft, path)
            created = True
        except FileExistsError:
            created = False
        except OSError as error:
            raise Unsure(f"cannot create {path}: {error.strerror}") from error
        finally:
            draft.unlink(missing_ok=True)
        try:
            _sync_folder(path.parent)
        except OSError as error:
            # A second sync may succeed although the first one lost something: nothing is promised here any more.
            self._broken = f"cannot sync {path.parent}: {error.strerror}"
            raise Unsure(self._broken) from error
        return created

    async def get(self, key: str) -> bytes | None:
        return await self._run(partial(self._get, key))

    def _get(self, key: str) -> bytes | None:
        try:
            return (self._root / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Unavailable(f"cannot read {self._root / key}: {error.strerror}") from error

    async def keys(self, folder: str, after: str = "") -> list[str]:
        return await self._run(partial(self._keys, folder, after))

    def _keys(self, folder: str, after: str) -> list[str]:
        found: list[str] = []
        try:
            for where, _, names in os.walk(self._root / folder):
                within = Path(where).relative_to(self._root).as_posix()
                found += [key for name in names if (key := f"{within}/{name}") > after]
        except OSError as error:
            raise Unavailable(f"cannot list {self._root / folder}: {error.strerror}") from error
        return sorted(found)

    async def folders(self, folder: str) -> list[str]:
        return await self._run(partial(self._folders, folder))

    def _folders(self, folder: str) -> list[str]:
        try:
            # A folder without a file is a creation that was cut off, not an object.
            return sorted(
                path.name for path in (self._root / folder).iterdir() if path.is_dir() and any(path.iterdir())
            )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise Unavailable(f"cannot list {self._root / folder}: {error.strerror}") from error

    async def delete(self, keys: list[str]) -> None:
        await self._run(partial(self._delete, keys))

    def _delete(self, keys: list[str]) -> None:
        for key in keys:
            try:
                (self._root / key).unlink(missing_ok=True)
            except OSError as error:
                raise Unavailable(f"cannot delete {self._root / key}: {error.strerror}") from error

    async def _run(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


class S3Place:
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
    ) -> None:
        given = {
            "endpoint": endpoint,
            "region": region,
            "access_key_id": access_key_id,
            "secret_access_key": secret_access_key,
            "session_token": session_token,
        }
        config: Any = {name: value for name, value in given.items() if value is not None}
        # One object is deleted at a time: the bulk call is the one that many S3 look-alikes do not have.
        config |= {"conditional_put": "etag", "disable_bulk_delete": True}
        options: Any = {
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
            "timeout": timedelta(milliseconds=request_ms_max),
            "connect_timeout": timedelta(milliseconds=CONNECT_MS_MAX),
        }
        retry: Any = {"max_retries": 0, "retry_timeout": timedelta(milliseconds=request_ms_max)}
        self._where = f"s3://{bucket}" + (f" at {endpoint}" if endpoint else "")
        self._client = Client(
            bucket, prefix=prefix.strip("/") or None, config=config, client_options=options, retry_config=retry
        )

    async def create(self, key: str, data: bytes) -> bool:
        try:
            await obstore.put_async(self._client, key, data, mode="create", use_multipart=False)
            return True
        except (AlreadyExistsError, PreconditionError):
            return False
        except (BaseError, OSError) as error:
            status = _status(error)
            refused = status is not None and 400 <= status < 500 and status not in _PASSING_STATUSES
            raise self._failure(Unavailable if refused else Unsure, error, f"cannot store {key}") from error

    async def get(self, key: str) -> bytes | None:
        try:
            answer = await obstore.get_async(self._client, key)
            return bytes(memoryview(await answer.bytes_async()))
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._failure(Unavailable, error, f"cannot read {key}") from error
            return None
        except (BaseError, OSError) as error:
            raise self._failure(Unavailable, error, f"cannot read {key}") from error

    async def keys(self, folder: str, after: str = "") -> list[str]:
        found: list[str] = []
        try:
            async for page in obstore.list(self._client, folder, offset=after or None, chunk_size=_LIST_PAGE_COUNT):
                # The offset is a hint to some servers.
                found += [entry["path"] for entry in page if entry["path"] > after]
        except (BaseError, OSError) as error:
            raise self._failure(Unavailable, error, f"cannot list {folder}") from error
        return sorted(found)

    async def folders(self, folder: str) -> list[str]:
        try:
            found = await obstore.list_with_delimiter_async(self._client, folder)
        except (BaseError, OSError) as error:
            raise self._failure(Unavailable, error, f"cannot list {folder}") from error
        return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"])

    async def delete(self, keys: list[str]) -> None:
        try:
            await asyncio.gather(*(obstore.delete_async(self._client, key) for key in keys))
        except FileNotFoundError:
            pass
        except (BaseError, OSError) as error:
            raise self._failure(Unavailable, error, "cannot delete") from error

    def _failure(self, kind: type[MediumError], error: Exception, what: str) -> MediumError:
        # The client adds its internals after an empty line, and an XML body after the first.
        return kind(f"{what} in {self._where}: {str(error).partition(chr(10))[0]}")


async def probe(place: ObjectPlace, token: str) -> None:
    """Checks at start-up that the place creates an object once, shows it at once, and deletes it.

    `token` makes the object this caller's own. Raises Unavailable or Unsure, or MediumError with what to change."""
    folder = f"_probe/{token}"
    key = f"{folder}/object"
    await place.create(key, b"first")
    try:
        if await place.create(key, b"second") or await place.get(key) != b"first":
            raise MediumError(
                "the place of the log overwrote an object although it was asked not to (If-None-Match): two owners "
                "could acknowledge different records. Use a store that honours conditional puts"
            )
        if await place.keys(folder) != [key] or await place.folders("_probe") == []:
            raise MediumError(
                "the place of the log does not list an object that was just created: it cannot hold a log"
            )
    finally:
        await place.delete([key])


def _status(error: Exception) -> int | None:
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def _make_folder(path: Path) -> None:
    """Makes the folder and syncs the names of every folder that it had to make."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
