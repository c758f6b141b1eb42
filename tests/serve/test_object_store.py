"""`coldframe extract --store s3://...`: killed, resumed, verified, probed; equal to the local store."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coldframe.cli import main
from coldframe.export import Bundle
from coldframe.probes.loader import TokenLoader
from coldframe.probes.token_view import TokenView
from coldframe.store import lease, open_store
from coldframe.store.object_path import ObjectPath
from tests.serve.test_extract import contents, corpus
from tests.store.s3 import BUCKET, s3_server

URL = f"s3://{BUCKET}/videos.zarr"


def command(name: str, *arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main([name, *arguments])
    return int(left.value.code or 0)


def test_a_killed_extraction_into_an_object_store_ends_as_the_local_one(
    tmp_path: Path, bundle: Bundle, barcodes: Callable[[int, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = corpus(tmp_path / "videos", barcodes, videos=8)
    options = [str(videos), "--encoder", str(bundle.path), "--tokens", "full", "--dtype", "float32", "--store"]
    assert command("extract", *options, str(tmp_path / "s.zarr")) == 3
    with s3_server(monkeypatch):
        place = ObjectPath(BUCKET, "videos.zarr")
        with subprocess.Popen([sys.executable, "-m", "coldframe.cli", "extract", *options, URL]) as process:
            while process.poll() is None and "units/0.json" not in place.sizes():
                time.sleep(0.05)
            os.kill(process.pid, signal.SIGKILL)
        assert "units/summary.json" not in place.sizes()
        monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)
        assert command("extract", *options, URL) == 3
        keys = [key for key in place.sizes() if not key.startswith("units/")]
        assert {key: (place / key).read_bytes() for key in keys} == contents(tmp_path / "s.zarr")
        assert command("verify", URL, "--encoder", str(bundle.path), "--canaries", "2") == 0
        store, local = open_store(URL), open_store(tmp_path / "s.zarr")
        loader = TokenLoader(store=store, rows=store.ok_rows(), view=TokenView(cls=True), batch_rows=7)
        expected = TokenLoader(store=local, rows=local.ok_rows(), view=TokenView(cls=True), batch_rows=7)
        for far, near in zip(loader.epoch(), expected.epoch(), strict=True):
            np.testing.assert_array_equal(far.maps[0], near.maps[0])
