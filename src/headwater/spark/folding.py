"""What a stream's records come to: its last value per key, a document that patches made, all of them, or a function's.

Owns the ways to fold. Pure: bytes in, bytes out. Never knows where records come from, and never keeps one stream's
state for the next.

A folder takes the body of the snapshot before (None: there is none) and then the records after it, in order, in pieces.
Folding in two steps gives the same bytes as folding in one.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

JSON = "application/json"
MODES = ("last", "merge", "concat", "function")


class BadFold(Exception):
    """The fold cannot be what it is asked to be; the message says why."""


class FoldFailed(Exception):
    """This stream cannot be folded; others can."""


class Record(NamedTuple):
    """What a function is given of each record."""

    seq: int
    offset: int
    ts_ms: int
    tag: str | None
    payload: bytes


class Folded(NamedTuple):
    body: bytes
    content_type: str
    ignored_count: int = 0
    """Records that have no part in the result: they carry no key."""


Function = Callable[[bytes | None, Sequence[Record]], Any]
"""(the snapshot before, the records after it) -> the new body, or None when nothing is to be published."""


class Folder(Protocol):
    """Raises FoldFailed for records that it cannot take."""

    def feed(self, records: Sequence[bytes]) -> None: ...

    def finish(self) -> Folded: ...


class Fold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to fold. Pickles: it travels to the executors."""

    mode: str = "last"
    key: tuple[str, ...] = ()
    """JSON pointers; together they are the key."""
    deleted: tuple[str, str] | None = None
    """A pointer and the text there that takes a key away."""
    function: str | None = None
    """`module:function`."""

    @classmethod
    def of(
        cls,
        mode: str,
        key: Sequence[str] = (),
        deleted: str | None = None,
        function: str | None = None,
    ) -> Fold:
        """Raises BadFold."""
        if mode not in MODES:
            raise BadFold(f"there is no mode {mode!r}: use one of {', '.join(MODES)}")
        if (mode == "last") != bool(key):
            raise BadFold("the mode last, and no other, takes a key: a JSON pointer such as /id")
        if deleted is not None and mode != "last":
            raise BadFold("only keys can be deleted: use the mode last")
        if (mode == "function") != (function is not None):
            raise BadFold("the mode function, and no other, takes a function, written as module:function")
        for text in key:
            pointer(text)
        gone = None
        if deleted is not None:
            at, mark, value = deleted.partition("=")
            if not mark:
                raise BadFold(f"deleted is written as /pointer=value, not {deleted!r}")
            pointer(at)
            gone = (at, value)
        return cls(mode, tuple(key), gone, function)

    @property
    def json_only(self) -> bool:
        return self.mode in ("last", "merge")

    def folder(self, previous: bytes | None, content_type: str) -> Folder:
        """Raises FoldFailed when the snapshot before is of another making."""
        if self.mode == "last":
            return _Last(self, previous)
        if self.mode == "merge":
            return _Merge(previous)
        return _Concat(previous, content_type)


# ---- keys ------------------------------------------------------------------------------------------------------------


def pointer(text: str) -> tuple[str, ...]:
    """The parts of a JSON pointer (RFC 6901). Raises BadFold."""
    if not text.startswith("/"):
        raise BadFold(f"{text!r} is no JSON pointer: it begins with a slash, such as /id or /headers/key")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/"))


def found_at(document: Any, parts: Sequence[str]) -> Any:
    """What the pointer leads to; UNSET when it leads nowhere."""
    for part in parts:
        if isinstance(document, dict):
            document = document.get(part, msgspec.UNSET)
        elif isinstance(document, list) and part.isascii() and part.isdigit() and int(part) < len(document):
            document = document[int(part)]
        else:
            return msgspec.UNSET
    return document


def _reader(pointers: Sequence[tuple[str, ...]]) -> Callable[[bytes], list[Any]]:
    """A function from a record to what is at the pointers. Raises msgspec.MsgspecError for what is no JSON object.

    Only what is asked for becomes Python objects: decoding an event of 120 bytes whole takes twice as long.
    """
    if any(part.isdigit() for parts in pointers for part in parts):
        decode_all = msgspec.json.Decoder(dict).decode
        return lambda record: [found_at(decode_all(record), parts) for parts in pointers]
    tree: dict[str, Any] = {}
    for parts in pointers:
        node = tree
        for part in parts[:-1]:
            node = node.setdefault(part, {})
            if node is None:
                raise BadFold("one pointer leads into another")
        if node.get(parts[-1], msgspec.UNSET) not in (None, msgspec.UNSET):
            raise BadFold("one pointer leads into another")
        node[parts[-1]] = None
    names: dict[tuple[str, ...], str] = {}
    kind = _shape(tree, (), names)
    paths = [[names[parts[: depth + 1]] for depth in range(len(parts))] for parts in pointers]
    decode = msgspec.json.Decoder(kind).decode
    if all(len(path) == 1 for path in paths):
        flat = [path[0] for path in paths]
        return lambda record: [getattr(found, name) for found in (decode(record),) for name in flat]

    def read(record: bytes) -> list[Any]:
        found = decode(record)
        values = []
        for path in paths:
            at = found
            for name in path:
                at = getattr(at, name, msgspec.UNSET)
            values.append(at)
        return values

    return read


def _shape(tree: dict[str, Any], above: tuple[str, ...], names: dict[tuple[str, ...], str]) -> Any:
    """A struct that holds what the tree names and skips everything else."""
    fields: list[Any] = []
    renamed: dict[str, str] = {}
    for number, (part, below) in enumerate(tree.items()):
        name = f"f{number}"
        names[(*above, part)] = name
        renamed[name] = part
        # A union with Any is Any; a branch that is no object must not spoil the record, so it is read as it comes.
        kind = Any if below is None else _shape(below, (*above, part), names) | str | int | float | bool | list | None
        fields.append((name, kind, msgspec.UNSET))
    return msgspec.defstruct("Keys", fields, rename=renamed)


# ---- the ways --------------------------------------------------------------------------------------------------------


class _Last:
    """An array of the newest record of each key, oldest first: replaying it gives what replaying everything gave."""

    def __init__(self, fold: Fold, previous: bytes | None) -> None:
        pointers = [pointer(text) for text in fold.key]
        if fold.deleted is not None:
            pointers.append(pointer(fold.deleted[0]))
        self._read = _readers(tuple(pointers))
        self._key_count = len(fold.key)
        self._gone = None if fold.deleted is None else fold.deleted[1]
        self._state: dict[Any, bytes] = {}
        self._ignored_count = 0
        if previous is not None:
            self.feed([bytes(record) for record in _array(previous)])

    def feed(self, records: Sequence[bytes]) -> None:
        read, count, gone, state = self._read, self._key_count, self._gone, self._state
        for record in records:
            try:
                values = read(record)
            except msgspec.MsgspecError:
                self._ignored_count += 1
                continue
            # A string stands for itself; whatever else may be a key is told apart by how JSON writes it.
            key = values[0] if count == 1 else tuple(values[:count])
            if type(key) is not str:
                parts = [_plain(value) for value in values[:count]]
                if None in parts:
                    self._ignored_count += 1
                    continue
                key = tuple(parts)
            state.pop(key, None)
            if gone is None or values[count] != gone:
                state[key] = record

    def finish(self) -> Folded:
        return Folded(b"[" + b",".join(self._state.values()) + b"]", JSON, self._ignored_count)


def _plain(value: Any) -> str | bytes | None:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value) if isinstance(value, int | float) else None


_KNOWN_READERS: dict[tuple[tuple[str, ...], ...], Callable[[bytes], list[Any]]] = {}
"""A struct takes a millisecond to make, and a task folds thousands of streams with the same one."""


def _readers(pointers: tuple[tuple[str, ...], ...]) -> Callable[[bytes], list[Any]]:
    if pointers not in _KNOWN_READERS:
        _KNOWN_READERS[pointers] = _reader(pointers)
    return _KNOWN_READERS[pointers]


class _Merge:
    """One document: each record is a JSON merge patch (RFC 7396) upon the ones before."""

    def __init__(self, previous: bytes | None) -> None:
        self._state: Any = {} if previous is None else _decoded(previous, "the snapshot before")

    def feed(self, records: Sequence[bytes]) -> None:
        for record in records:
            self._state = merged(self._state, _decoded(record, "a record"))

    def finish(self) -> Folded:
        return Folded(msgspec.json.encode(self._state), JSON)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396. The target may be changed, and is no more to be used."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            target[name] = merged(target.get(name), value)
        else:
            target[name] = value
    return target


class _Concat:
    """All records one after the other; an array of them on a JSON stream. Of the stream's own content type."""

    def __init__(self, previous: bytes | None, content_type: str) -> None:
        self._content_type = content_type
        self._json = media_type(content_type) == JSON
        self._parts: list[bytes] = []
        if previous is not None:
            self._parts += [bytes(record) for record in _array(previous)] if self._json else [previous]

    def feed(self, records: Sequence[bytes]) -> None:
        self._parts += records

    def finish(self) -> Folded:
        body = b"[" + b",".join(self._parts) + b"]" if self._json else b"".join(self._parts)
        return Folded(body, self._content_type)


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _decoded(text: bytes, what: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FoldFailed(f"{what} cannot be read as JSON ({error})") from error


def _array(body: bytes) -> list[msgspec.Raw]:
    try:
        return msgspec.json.decode(body, type=list[msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise FoldFailed(f"the snapshot before is no JSON array, so another kind of fold made it ({error})") from error


# ---- functions of users ----------------------------------------------------------------------------------------------


def load_function(text: str, beside: str | None = None) -> Function:
    """The function `module:function`, found as Python finds modules, or in a directory: the working one by default.

    Raises BadFold.
    """
    module_name, mark, name = text.partition(":")
    if not (module_name and mark and name):
        raise BadFold(f"a function is written as module:function, not {text!r}")
    here = os.getcwd() if beside is None else beside
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises when it is loaded
        raise BadFold(f"the module {module_name} cannot be loaded: {error!r}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise BadFold(f"the module {module_name} has no function {name}")
    return found


def applied(function: Function, previous: bytes | None, records: Sequence[Record]) -> Folded | None:
    """What a user's function makes of a stream. Raises FoldFailed with what went wrong in it."""
    try:
        found = function(previous, records)
    except Exception as error:
        raise FoldFailed(f"the function raised {error!r}") from error
    if found is None:
        return None
    if isinstance(found, bytes):
        return Folded(found, "application/octet-stream")
    if isinstance(found, str):
        return Folded(found.encode(), "text/plain; charset=utf-8")
    if isinstance(found, dict | list):
        try:
            return Folded(msgspec.json.encode(found), JSON)
        except (TypeError, ValueError) as error:
            raise FoldFailed(f"what the function returned is not JSON: {error}") from error
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], bytes) and isinstance(found[1], str):
        return Folded(found[0], found[1])
    raise FoldFailed(
        f"the function returned {type(found).__name__}: return bytes, a str, a dict or list, (bytes, type), or None"
    )
