"""Memory is used again, and never while somebody still holds what lies in it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from coldframe.probes.kept_memory import KeptMemory

HOLDERS: dict[str, Callable[[Any], object]] = {
    "the array": lambda array: array,
    "a view of a view": lambda array: array[1:][:, ::2],
    "another dtype's view": lambda array: array.view(np.uint16),
    "a tensor": torch.from_numpy,
    "a part of a tensor": lambda array: torch.from_numpy(array)[0].view(-1),
    "an autograd graph": lambda array: torch.from_numpy(array).requires_grad_().exp().sum().grad_fn,
}


def address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr())


def test_what_nobody_holds_is_used_again() -> None:
    memory = KeptMemory()
    places = [address(memory.array((40, 30), np.float32)) for _ in range(3)]
    places.append(address(memory.tensor((30, 40), torch.zeros(1))))
    assert len(set(places)) == 1


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_what_somebody_holds_is_left_alone(hold: Callable[[Any], object]) -> None:
    memory = KeptMemory()
    array = memory.array((40, 30), np.float32)
    array[:] = 1
    place, held = address(array), hold(array)
    del array
    other = memory.array((40, 30), np.float32)
    assert address(other) != place
    other[:] = 2
    del other, held
    assert place in {address(one) for one in [memory.array((40, 30), np.float32) for _ in range(2)]}


def test_arrays_have_the_shape_and_dtype_asked_for_and_do_not_overlap() -> None:
    memory = KeptMemory()
    arrays = [memory.array((7, size), dtype) for size in (1, 5, 1000) for dtype in (np.float16, np.int8, np.float64)]
    for number, array in enumerate(arrays):
        array[...] = number
        assert address(array) % 64 == 0
    assert all((array == number).all() for number, array in enumerate(arrays))
    tensor = memory.tensor((2, 0, 3), torch.zeros(1, dtype=torch.float64))
    assert (tensor.shape, tensor.dtype) == ((2, 0, 3), torch.float64)


def test_a_large_block_is_not_taken_for_something_small() -> None:
    memory = KeptMemory()
    place = address(memory.array((1000,), np.float32))
    small = memory.array((100,), np.float32)
    assert not place <= address(small) < place + 4000
    assert place <= address(memory.array((900,), np.float32)) < place + 4000
