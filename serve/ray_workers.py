"""Ray workers: the same unit runner in actors anywhere in a cluster. Units of an actor that dies go to the others.

Ray starts, places and restarts the actors; which units are still to be done is known here. So a task is never retried
by Ray itself (`max_task_retries=0`): a retry would wait for the dead actor to come back, which never happens if its
node was the only one with room, while the others could have done its units. A unit that was committed before its
actor died is not done again.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from coldframe.errors import ColdframeError, MissingDependency
from coldframe.serve.cores import share_cores
from coldframe.serve.gpu_runtime import is_gpu_request
from coldframe.serve.stages import StageSeconds
from coldframe.serve.unit import RunnerSettings, UnitRunner
from coldframe.store import Store, open_store, rows_to_extract
from coldframe.store.replace import finish_replacement

MOST_UNITS = 8  # handed out together: decoding runs on from one to the next, and so many are lost with an actor
MOST_DEATHS = 3  # of actors that held one unit, before it is blamed
PATIENCE_SECONDS = 600.0  # without any actor that answers
_AWAY_SECONDS = 2.0  # between two attempts at an actor that Ray restarts; one that is away says so at once


class UnitActor:
    """What runs in a Ray worker process. Store, bundle and videos must be readable there under the same paths."""

    def __init__(self, settings: RunnerSettings) -> None:
        self._settings = settings
        self._runner: UnitRunner | None = None  # opened by `run`, whose errors come back as they are

    def run(self, units: Sequence[int]) -> StageSeconds:
        """Run those of `units` that still lack rows."""
        if self._runner is None:
            self._runner = UnitRunner(self._settings)
        store, retry = self._runner.store, self._settings.retry
        for unit in units:  # an actor that died may have decided to replace it, and its old rows are nowhere else
            finish_replacement(store.place, unit)
        return self._runner.run([unit for unit in units if len(rows_to_extract(store, unit, retry))])


def run_on_ray(
    units: Sequence[int], settings: RunnerSettings, *, workers: int, on_clips: Callable[[int], object]
) -> StageSeconds:
    """`run_units` with actors of a Ray cluster: the one that `RAY_ADDRESS` names, or else one on this machine.

    Args:
        units: unit numbers still to be done.
        settings: how each worker runs; `threads` follows from the cores of the cluster.
        workers: actors. Each takes a GPU if the encoder runs on one, else a share of the cluster's cores. Actors for
            which there is no room wait until there is.
        on_clips: called with the number of rows just finished.

    Raises:
        MissingDependency: Ray is not installed.
        ColdframeError: no actor answers, or a unit ended several of them. Committed units are safe.
    """
    if not units:
        return StageSeconds()
    ray = require_ray()
    with _connected(ray):
        actors = _start_actors(ray, settings, min(workers, len(units)))
        try:
            return _hand_out(ray, _Ledger(units, open_store(settings.store), len(actors)), actors, on_clips)
        finally:
            for actor in actors:
                ray.kill(actor)


def require_ray() -> Any:
    """The module, set up.

    Raises:
        MissingDependency: Ray is not installed.
    """
    # Both are read at import. Without the first, Ray hides all GPUs from actors that ask for none, and warns that it
    # will not do so any more; the second keeps it from reporting to its vendor.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingDependency("ray (for --engine ray)", "ray") from error
    return ray


@contextmanager
def _connected(ray: Any) -> Iterator[None]:
    if ray.is_initialized():  # the caller's own connection
        yield
        return
    try:
        ray.init(log_to_driver=False, configure_logging=False, include_dashboard=False)
    except ConnectionError as error:
        address = os.environ.get("RAY_ADDRESS", "on this machine")
        raise ColdframeError(f"There is no Ray cluster {address}: {error} Correct RAY_ADDRESS, or unset it.") from error
    try:
        yield
    finally:
        ray.shutdown()


def _start_actors(ray: Any, settings: RunnerSettings, workers: int) -> list[Any]:
    on_gpu = is_gpu_request(settings.backend, settings.device)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    largest = max(int(node.get("CPU", 0)) for node in nodes)
    cpus = max(1, min(largest, sum(int(node.get("CPU", 0)) for node in nodes) // workers))
    cores = share_cores(workers=1, cores=cpus, on_gpu=on_gpu, decoders=settings.decoders)
    remote = ray.remote(
        num_cpus=cpus, num_gpus=1 if on_gpu else 0, max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD"
    )(UnitActor)
    return [remote.remote(replace(settings, threads=cores.threads)) for _ in range(workers)]


class _Ledger:
    """Units that nobody has, in chunks, and how often an actor died with each unit."""

    def __init__(self, units: Sequence[int], store: Store, workers: int) -> None:
        size = max(1, min(MOST_UNITS, len(units) // (4 * workers)))
        self.chunks = deque(list(units[start : start + size]) for start in range(0, len(units), size))
        self._store = store
        self._deaths: Counter[int] = Counter()

    def rows(self, chunk: Sequence[int]) -> int:
        return sum(len(self._store.unit_range(unit)) for unit in chunk)

    def give_back(self, chunk: list[int]) -> None:
        """Let others have `chunk`, which its actor never began."""
        self.chunks.appendleft(chunk)

    def mourn(self, chunk: list[int]) -> None:
        """Let others have `chunk`, whose actor died: unit by unit, so that one that ends actors then does so alone."""
        self.chunks.extendleft([unit] for unit in reversed(chunk))
        self._deaths.update(chunk)
        unit, deaths = self._deaths.most_common(1)[0]
        if deaths >= MOST_DEATHS:
            raise ColdframeError(
                f"{deaths} Ray actors died with unit {unit}, most often for want of memory. Finished units are safe: "
                "run the same command again, with a smaller --batch-clips or more memory a node."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Task:
    actor: Any
    chunk: list[int]
    since: float


def _hand_out(ray: Any, ledger: _Ledger, actors: Sequence[Any], on_clips: Callable[[int], object]) -> StageSeconds:
    """Keep every actor that answers busy until no chunk is left."""
    spent: list[StageSeconds] = []
    running: dict[Any, _Task] = {}
    idle = [(0.0, actor) for actor in actors]  # not before this time, this actor
    answered = time.monotonic()
    while ledger.chunks or running:
        now = time.monotonic()
        ready = [entry for entry in idle if entry[0] <= now][: len(ledger.chunks)]
        for entry in ready:
            idle.remove(entry)
            chunk = ledger.chunks.popleft()
            running[entry[1].run.remote(chunk)] = _Task(actor=entry[1], chunk=chunk, since=now)
        for reference in _finished(ray, list(running)):
            task = running.pop(reference)
            try:
                spent.append(ray.get(reference))
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, ColdframeError) else error) from error
            except ray.exceptions.RayActorError:
                was_at_work = time.monotonic() - task.since > _AWAY_SECONDS
                (ledger.mourn if was_at_work else ledger.give_back)(task.chunk)
                idle.append((time.monotonic() + _AWAY_SECONDS, task.actor))
            else:
                on_clips(ledger.rows(task.chunk))
                idle.append((0.0, task.actor))
                answered = time.monotonic()
        if not running and time.monotonic() - answered > PATIENCE_SECONDS:
            raise ColdframeError(
                f"No Ray actor answered for {PATIENCE_SECONDS:.0f} s. Finished units are safe; see `ray status`."
            )
    return StageSeconds.total(spent)


def _finished(ray: Any, references: list[Any]) -> list[Any]:
    """Those of `references` that have a result or an error, after a short wait for the first."""
    if not references:
        time.sleep(0.2)
        return []
    done: list[Any] = ray.wait(references, num_returns=len(references), timeout=0.2)[0]
    return done
