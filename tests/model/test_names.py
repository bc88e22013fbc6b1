"""Names: every accepted path becomes one key that splits back without doubt; the rest is refused as BadName."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadName
from headwater.model.names import (
    BUCKETED_BYTES_MAX,
    DEFAULT_BUCKET,
    bucket_of,
    bucketed_key,
    check_bucket,
    flat_key,
    stream_of,
)

characters = st.characters(codec="utf-8")
paths = st.text(characters, max_size=12) | st.text("ab/.\0%", max_size=8)


@given(paths)
def test_a_path_is_refused_or_becomes_a_key_that_splits_at_its_first_slash(path: str) -> None:
    parts = path.split("/")
    half = (len(parts) == 2 and "" in parts) or (len(parts) > 2 and not parts[0])
    if not path or "\0" in path or ".." in parts or half:
        with pytest.raises(BadName):
            flat_key(path, 100)
        return
    key = flat_key(path, 100)
    bucket, stream = bucket_of(key), stream_of(key)
    assert f"{bucket}/{stream}" == key
    assert (bucket, stream) == ((parts[0], "/".join(parts[1:])) if len(parts) > 1 else (DEFAULT_BUCKET, path))


@given(paths, paths)
def test_two_paths_share_a_key_only_when_one_spells_out_the_default_bucket(a: str, b: str) -> None:
    try:
        same = flat_key(a, 100) == flat_key(b, 100)
    except BadName:
        return
    assert same == (a.removeprefix(f"{DEFAULT_BUCKET}/") == b.removeprefix(f"{DEFAULT_BUCKET}/"))


def test_the_limit_of_a_path_counts_bytes_not_characters() -> None:
    assert flat_key("é" * 5, 10) == f"{DEFAULT_BUCKET}/ééééé"
    for path in ("é" * 6, "a" * 11, "b/" + "a" * 9):
        with pytest.raises(BadName, match="at most 10 bytes"):
            flat_key(path, 10)


@pytest.mark.parametrize("path", ["..", "a/..", "../a", "a/../b", "/a", "a/", "/", ""])
def test_paths_that_climb_or_have_no_first_or_last_part_are_refused(path: str) -> None:
    with pytest.raises(BadName):
        flat_key(path, 100)


@pytest.mark.parametrize("path", ["...", "a..b", "a/b/c", "a//b", ".", "ünïcode", "a b"])
def test_unusual_paths_are_names_too(path: str) -> None:
    assert flat_key(path, 100) in (path, f"{DEFAULT_BUCKET}/{path}")


@pytest.mark.parametrize("bucket", ["abcd", "a_b-1", "_default", "x" * 64])
def test_a_bucket_of_four_to_sixty_four_plain_characters_is_taken(bucket: str) -> None:
    assert check_bucket(bucket) == bucket


@pytest.mark.parametrize("bucket", ["", "abc", "x" * 65, "Abcd", "ab cd", "ab.d", "abcd\n", "é" * 4, "__ds_", "____"])
def test_other_buckets_are_refused(bucket: str) -> None:
    with pytest.raises(BadName):
        check_bucket(bucket)


def test_a_bucketed_key_has_its_own_limits() -> None:
    assert bucketed_key("docs", "a") == "docs/a"
    assert bucketed_key("docs", "x" * (BUCKETED_BYTES_MAX - 5)) == "docs/" + "x" * (BUCKETED_BYTES_MAX - 5)
    for stream in ("", "streams", "a/b", "a\0", "a..b", "x" * (BUCKETED_BYTES_MAX - 4), "é" * 59):
        with pytest.raises(BadName):
            bucketed_key("docs", stream)
    with pytest.raises(BadName):
        bucketed_key("abc", "a")
