"""Places in an object store: what their names mean, that puts are read back, and what is said when nothing answers."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from coldframe.errors import ColdframeError, MissingDependency, StoreError, UsageError
from coldframe.store import object_path as module
from coldframe.store.files import place_of, sha256_file, write_bytes, write_pieces
from coldframe.store.object_path import ObjectPath, ObjectReader
from tests.store.s3 import BUCKET, FrontDoor, s3_server


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[FrontDoor]:
    with s3_server(monkeypatch) as server:
        yield server


@pytest.mark.parametrize(
    ("text", "bucket", "key"),
    [
        ("s3://b/a", "b", "a"),
        ("s3://b//a/c.zarr/", "b", "a/c.zarr"),
        (Path("s3://b/a/c"), "b", "a/c"),  # pathlib folds the slashes
        ("s3://b/spät und früh", "b", "spät und früh"),
    ],
)
def test_urls_name_a_bucket_and_a_key(text: str | Path, bucket: str, key: str) -> None:
    assert place_of(text) == ObjectPath(bucket, key)


@pytest.mark.parametrize("text", ["s3://", "s3:/", "s3://b", "s3://b/", "s3:///a", "s3://b/../c", "s3://b/a/./c"])
def test_urls_that_name_no_place_for_a_store_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"names no place for a store. Write s3://bucket/prefix"):
        place_of(text)


def test_other_names_are_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of("s3.zarr") == tmp_path / "s3.zarr"


def test_an_object_is_written_read_listed_and_removed(door: FrontDoor) -> None:
    place = ObjectPath(BUCKET, "deep/store")
    assert not place.exists()
    write_bytes(place / "a", b"12345")
    body = np.random.default_rng(0).integers(0, 256, 40_000_000, dtype=np.uint8)  # several parts
    written = write_pieces(
        place / "c" / "0", (body[start : start + 9_000_000] for start in range(0, len(body), 9_000_000))
    )
    assert (written.bytes, written.sha256) == (len(body), hashlib.sha256(body.tobytes()).hexdigest())
    assert sha256_file(place / "c" / "0") == written
    assert place.sizes() == {"a": 5, "c/0": len(body)}
    assert {entry.name for entry in place.iterdir()} == {"a", "c"}
    assert [(entry.exists(), entry.is_dir(), entry.size()) for entry in (place / "a", place / "c")] == [
        (True, False, 5),
        (True, True, None),
    ]
    (place / "a").unlink()
    (place / "a").unlink()  # an object store cannot tell
    with pytest.raises(FileNotFoundError, match=r"s3://features/deep/store/a"):
        (place / "a").read_bytes()


def test_spans_and_tails_are_those_of_the_bytes(door: FrontDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READ_BYTES", 250)
    body = bytes(range(256)) * 4
    path = ObjectPath(BUCKET, "a/o")
    write_bytes(path, body)
    write_bytes(ObjectPath(BUCKET, "a/empty"), b"")
    reader = ObjectReader(path)
    spans = [(700, 100), (0, 100), (100, 100), (1000, 24), (5, 300)]
    assert [span.tobytes() for span in reader.spans(spans)] == [body[start : start + count] for start, count in spans]
    assert reader.tail(10).tobytes() == body[-10:]
    assert reader.tail(5000).tobytes() == reader.whole().tobytes() == body
    assert len(ObjectReader(ObjectPath(BUCKET, "a/empty")).tail(10)) == 0
    with pytest.raises(FileNotFoundError):
        ObjectReader(ObjectPath(BUCKET, "a/none")).tail(1)


def test_conditional_puts_hold(door: FrontDoor) -> None:
    path = ObjectPath(BUCKET, "a/lease")
    tag = path.create(b"1")
    assert tag is not None
    assert path.create(b"2") is None
    assert path.replace(b"3", '"another"') is None
    newer = path.replace(b"3", tag)
    assert newer is not None
    assert path.replace(b"4", tag) is None
    assert path.tagged() == (b"3", newer)


def test_a_store_that_keeps_nothing_is_given_up_on(door: FrontDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    path = ObjectPath(BUCKET, "a/o")
    path.put(b"old")
    door.lie = 1.0
    with pytest.raises(
        StoreError, match="s3://features/a/o does not hold what was just written to it, after 4 attempts"
    ):
        path.put(b"new")
    assert door.lied == 4
    assert path.read_bytes() == b"old"


def test_no_bucket_is_said_with_the_address(door: FrontDoor) -> None:
    place = ObjectPath("elsewhere", "a")
    for call in (place.exists, place.read_bytes, lambda: place.put(b"1"), place.sizes):
        with pytest.raises(UsageError, match=f"There is no bucket 'elsewhere' at {door.url}. Create it"):
            call()


def test_no_server_is_said_at_once(door: FrontDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(
        UsageError, match=r"Nothing answers at http://127.0.0.1:9 \(AWS_ENDPOINT_URL\): Connection refused"
    ):
        ObjectPath(BUCKET, "a").exists()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
    with pytest.raises(UsageError, match="allowed is a URL such as http"):
        ObjectPath(BUCKET, "a").exists()


def test_no_credentials_are_said_at_once(door: FrontDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(
        UsageError, match=r"no credentials for s3://features. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    ):
        ObjectPath(BUCKET, "a").exists()
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert not ObjectPath(BUCKET, "a").exists()


def test_refused_credentials_are_not_a_missing_store(door: FrontDoor) -> None:
    door.forbid = True
    with pytest.raises(ColdframeError, match="the object store refuses these credentials"):
        ObjectPath(BUCKET, "a").exists()


def test_a_missing_library_names_the_extra(door: FrontDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingDependency, match=r"pip install 'coldframe\[s3\]'"):
        ObjectPath(BUCKET, "a").exists()
