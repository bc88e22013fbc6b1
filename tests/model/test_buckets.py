"""Buckets: made by name or by the first stream in them, deleted only when they are empty."""

from __future__ import annotations

import pytest

from headwater.errors import BucketExists, BucketNotEmpty, BucketNotFound
from headwater.model.buckets import Bucket, count, decide, evolve
from headwater.model.commands import CreateBucket, DeleteBucket
from headwater.model.events import BucketCreated, BucketDeleted
from headwater.model.row import BucketRow


def bucket(*, explicit: bool = False, streams: int = 0) -> Bucket:
    return Bucket(BucketRow("b", 1, explicit, 5, streams))


@pytest.mark.parametrize("known", [None, bucket(), bucket(streams=2)], ids=["new", "remembered", "implicit"])
def test_a_bucket_that_nobody_made_by_name_can_be_made(known: Bucket | None) -> None:
    assert decide(known, CreateBucket("b"), 9) == BucketCreated("b", 9)


def test_a_bucket_is_made_by_name_once() -> None:
    with pytest.raises(BucketExists):
        decide(bucket(explicit=True), CreateBucket("b"), 9)


@pytest.mark.parametrize("known", [None, bucket()], ids=["unknown", "remembered"])
def test_a_bucket_that_does_not_exist_cannot_be_deleted(known: Bucket | None) -> None:
    with pytest.raises(BucketNotFound):
        decide(known, DeleteBucket("b"), 9)


@pytest.mark.parametrize(("here", "elsewhere"), [(1, 0), (0, 2), (3, 4)])
def test_a_bucket_with_streams_in_any_group_is_not_deleted(here: int, elsewhere: int) -> None:
    with pytest.raises(BucketNotEmpty) as refused:
        decide(bucket(explicit=True, streams=here), DeleteBucket("b", elsewhere), 9)
    assert refused.value.count == here + elsewhere


def test_an_empty_bucket_is_deleted() -> None:
    assert decide(bucket(explicit=True), DeleteBucket("b"), 9) == BucketDeleted("b", 9)


def test_a_bucket_exists_by_its_name_or_by_its_streams() -> None:
    one = bucket()
    assert not one.exists
    evolve(one, BucketCreated("b", 9), 20)
    assert one.exists and (one.created_ms, one.position) == (9, 20)
    evolve(one, BucketDeleted("b", 10), 30)
    assert not one.exists and one.position == 30
    count(one, 1, 11, 40)
    assert one.exists and (one.count, one.created_ms, one.position) == (1, 11, 40)
    count(one, 1, 12, 50)
    assert (one.count, one.created_ms, one.position) == (2, 11, 50)
    count(one, -2, 13, 60)
    assert not one.exists


def test_the_first_stream_of_a_bucket_that_was_made_by_name_does_not_make_it_younger() -> None:
    one = bucket(explicit=True)
    count(one, 1, 99, 40)
    assert one.created_ms == 5
