"""No more threads than cores, but where a decoder would cost the encoder more than it takes."""

import pytest

from coldframe.serve.cores import CoreShare, share_cores


@pytest.mark.parametrize("cores", [4, 7, 8, 64])
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("decoders", [None, 1, 3])
def test_workers_with_four_cores_do_not_run_more_threads_than_cores(
    cores: int, workers: int, decoders: int | None
) -> None:
    share = share_cores(workers=workers, on_gpu=False, decoders=decoders, cores=cores)
    assert share.threads >= 1
    assert share.decoders == (decoders or 1)
    if cores // workers >= 4:
        assert workers * (share.threads + share.decoders) <= cores


def test_small_shares_keep_their_encoder_whole() -> None:
    assert share_cores(workers=1, on_gpu=False, cores=2) == CoreShare(threads=2, decoders=1)
    assert share_cores(workers=2, on_gpu=False, cores=2) == CoreShare(threads=1, decoders=1)
    assert share_cores(workers=4, on_gpu=False, cores=2) == CoreShare(threads=1, decoders=1)


def test_encoder_on_a_gpu_leaves_the_cores_to_decoding() -> None:
    assert share_cores(workers=1, on_gpu=True, cores=16) == CoreShare(threads=1, decoders=15)
    assert share_cores(workers=4, on_gpu=True, cores=16) == CoreShare(threads=1, decoders=3)


@pytest.mark.parametrize("cores", [1, 5])
def test_cores_are_those_of_the_affinity_mask(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(7, 7 + cores)))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert share_cores(workers=1, on_gpu=False) == share_cores(workers=1, on_gpu=False, cores=cores)
    assert share_cores(workers=1, on_gpu=True) == share_cores(workers=1, on_gpu=True, cores=cores)
