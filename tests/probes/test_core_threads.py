"""Work is done once each, by threads that compute alone, and changes nothing for anybody else."""

import threading
from collections.abc import Iterator

import pytest
import torch

from coldframe.probes.core_threads import spread, workers

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def two_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2])
def test_every_piece_of_work_is_done_once(threads: int) -> None:
    done: list[tuple[int, int]] = []
    spread(lambda thread, number: done.append((thread, number)), 50, threads)
    assert sorted(number for _, number in done) == list(range(50))
    assert {thread for thread, _ in done} <= set(range(threads))


def test_both_threads_work_at_once_and_with_one_core_each() -> None:
    together, cores = threading.Barrier(2), []

    def work(_thread: int, _number: int) -> None:
        together.wait(timeout=10)
        cores.append(torch.get_num_threads())

    spread(work, 2, 2)
    assert cores == [1, 1]
    assert torch.get_num_threads() == 2
    fresh: list[int] = []
    thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert fresh == [2]


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_ends_it(threads: int) -> None:
    def work(_thread: int, number: int) -> None:
        if number == 3:
            raise ValueError("number 3")

    with pytest.raises(ValueError, match="number 3"):
        spread(work, 5, threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_autograd_records_nothing_of_it(threads: int) -> None:
    leaf, made = torch.ones(3, requires_grad=True), [torch.zeros(0)] * 4

    def work(_thread: int, number: int) -> None:
        made[number] = leaf * number

    spread(work, 4, threads)
    assert not any(one.requires_grad for one in made)
    assert (leaf * 2).requires_grad


def test_small_work_and_work_of_a_gpu_stay_in_one_thread() -> None:
    assert workers(CPU, 8, 100) == 1
    assert workers(CPU, 8, 1 << 24) == 2
    assert workers(CPU, 1, 1 << 24) == 1
    assert workers(torch.device("cuda"), 8, 1 << 24) == 1
