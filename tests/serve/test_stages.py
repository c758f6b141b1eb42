"""Which stage bounds a run follows from the share of its time, not from seconds alone."""

import pytest

from coldframe.serve.stages import StageSeconds


def spent(decode: float, encode: float, write: float, decoders: int = 1) -> StageSeconds:
    return StageSeconds(
        decode=decode,
        encode=encode,
        write=write,
        decode_available=10.0 * decoders,
        encode_available=10.0,
        write_available=10.0,
    )


def test_bound_is_the_stage_that_idles_least() -> None:
    assert spent(9, 4, 1).bound == "decode"
    assert spent(9, 4, 1, decoders=3).bound == "encode"  # each of three decoders is at work for 3 of 10 seconds
    assert spent(1, 1, 2).bound == "write"
    assert StageSeconds().bound is None
    assert StageSeconds().busy("encode") == 0


def test_workers_add_up() -> None:
    both = StageSeconds.total([spent(9, 4, 1), spent(1, 8, 1)])
    assert (both.decode, both.encode, both.write) == (10, 12, 2)
    assert both.busy("encode") == pytest.approx(0.6)
    assert both.to_dict() == {
        "seconds": {"decode": 10, "encode": 12, "write": 2},
        "busy": {"decode": 0.5, "encode": 0.6, "write": 0.1},
        "bound": "encode",
    }
