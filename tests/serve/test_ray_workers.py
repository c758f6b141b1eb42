"""Ray: a cluster whose node is killed in mid-run gives the store of a single process. The cluster lives in a program
of its own, so that its threads and warnings stay out of the other tests."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from coldframe.cli import main
from coldframe.errors import ColdframeError, UsageError
from coldframe.export import Bundle
from coldframe.serve import ray_workers
from coldframe.serve.stages import StageSeconds
from coldframe.serve.unit import RunnerSettings
from coldframe.store import create_store, open_store, verify_store
from coldframe.store.replace import take_back_commit
from tests.serve import inline
from tests.serve.test_extract import contents, corpus, run
from tests.store.plans import ENCODER, small_geometry, small_plan

Barcodes = Callable[[int, int], Path]

LOSE_A_NODE = """
import json, os, sys, threading, time
from pathlib import Path

os.environ |= {{"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}}
from ray.cluster_utils import Cluster
from coldframe.export import open_bundle
from coldframe.serve import ray_workers
from tests.serve.test_extract import run

node = {{"num_cpus": 1, "object_store_memory": 80 << 20}}
cluster = Cluster(initialize_head=True, head_node_args={{**node, "include_dashboard": False}})
doomed = cluster.add_node(**node)
os.environ["RAY_ADDRESS"] = cluster.address
ray_workers.MOST_UNITS = 2
store = Path({store!r})
seen = {{}}

def lose():
    while len(list((store / "units").glob("[0-9]*.json"))) < 2:
        time.sleep(0.005)
    cluster.remove_node(doomed, allow_graceful=False)
    seen["units"] = len(list((store / "units").glob("[0-9]*.json")))

killer = threading.Thread(target=lose)
killer.start()
done = run(Path({folder!r}), open_bundle({bundle!r}), store, workers=2, engine="ray")
killer.join()
cluster.shutdown()
print("ANSWER", json.dumps({{"rows": done.rows, "when": seen["units"], "encode": done.stages.encode}}))
"""


def test_node_that_is_lost_costs_nothing_but_time(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    folder = corpus(tmp_path / "c", barcodes, videos=90)
    whole = run(folder, bundle, tmp_path / "whole")
    code = LOSE_A_NODE.format(store=str(tmp_path / "ray"), folder=str(folder), bundle=str(bundle.path))
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert child.returncode == 0, child.stdout + child.stderr
    answer = json.loads(child.stdout.split("ANSWER", 1)[1].splitlines()[0])
    assert answer["rows"] == whole.rows
    assert answer["encode"] > 0
    assert answer["when"] < open_store(tmp_path / "ray").unit_count  # or it was lost too late to show anything
    assert contents(tmp_path / "ray") == contents(tmp_path / "whole")
    assert not verify_store(tmp_path / "ray").problems


def test_missing_ray_is_one_line_with_the_extra(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    arguments = ["extract", barcodes(70, 0), "--encoder", bundle.path, "--store", tmp_path / "s", "--engine", "ray"]
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 2
    assert result.stderr.strip().splitlines()[-1].endswith("pip install 'coldframe[ray]'")
    assert not (tmp_path / "s").exists()


class Once:
    """The second call is `call`: a unit's writer first looks for a replacement to finish, then finishes its own."""

    def __init__(self, call: Callable[[Path, int], None]) -> None:
        self.call, self.calls = call, 0

    def __call__(self, root: Path, unit: int) -> None:
        self.calls += 1
        if self.calls == 2:
            self.call(root, unit)


class ActorGone(Exception):
    pass


class TaskFailed(Exception):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class FakeRay:
    """Ray's side of the driver, in one process and without waiting: `run(actor, units)` answers or raises."""

    def __init__(self, run: Callable[[int, list[int]], None]) -> None:
        self._run = run
        self.results: dict[int, Exception | None] = {}
        self.exceptions = type("exceptions", (), {"RayActorError": ActorGone, "RayTaskError": TaskFailed})

    def actor(self, number: int) -> Any:
        def remote(units: list[int]) -> int:
            reference = len(self.results)
            try:
                self._run(number, units)
                self.results[reference] = None
            except Exception as error:
                self.results[reference] = error
            return reference

        return type("actor", (), {"run": type("method", (), {"remote": staticmethod(remote)})})

    def wait(self, references: list[int], **limits: float) -> tuple[list[int], list[int]]:
        return references, []

    def get(self, reference: int) -> StageSeconds:
        if (error := self.results[reference]) is not None:
            raise error
        return StageSeconds(encode=1.0)


def hand_out(
    tmp_path: Path, units: int, run: Callable[[int, list[int]], None], actors: int = 2
) -> tuple[StageSeconds, list[int]]:
    store = create_store(
        tmp_path / "s", small_plan([16 * units], tokens="cls"), geometry=small_geometry("cls"), encoder=ENCODER
    )
    ray, rows = FakeRay(run), list[int]()
    ledger = ray_workers._Ledger(range(units), store, actors)
    return ray_workers._hand_out(ray, ledger, [ray.actor(n) for n in range(actors)], rows.append), rows


def test_units_of_a_dead_actor_go_to_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers, "_AWAY_SECONDS", -1.0)  # every death counts as one at work
    done: list[int] = []

    def run(actor: int, units: list[int]) -> None:
        if actor == 0 and len(units) > 1:
            raise ActorGone
        done.extend(units)

    spent, rows = hand_out(tmp_path, 40, run)
    assert sorted(done) == list(range(40))
    assert sum(rows) == 40 * 16
    assert spent.encode == len(rows)


def test_actor_that_is_away_is_asked_again_and_blames_no_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers, "_AWAY_SECONDS", 0.05)
    calls: list[int] = []

    def run(actor: int, units: list[int]) -> None:
        calls.append(actor)
        if len(calls) <= 6:
            raise ActorGone

    _, rows = hand_out(tmp_path, 3, run, actors=1)
    assert len(calls) == 6 + 3
    assert sum(rows) == 48


def test_unit_that_ends_actor_after_actor_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers, "_AWAY_SECONDS", -1.0)

    def run(actor: int, units: list[int]) -> None:
        if 7 in units:
            raise ActorGone

    with pytest.raises(ColdframeError, match="3 Ray actors died with unit 7, "):
        hand_out(tmp_path, 64, run)


def test_error_of_a_task_is_raised_as_it_was(tmp_path: Path) -> None:
    def run(actor: int, units: list[int]) -> None:
        raise TaskFailed(UsageError("no such encoder"))

    with pytest.raises(UsageError, match="no such encoder"):
        hand_out(tmp_path, 3, run)


def test_silence_of_all_actors_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers, "_AWAY_SECONDS", 0.05)
    monkeypatch.setattr(ray_workers, "PATIENCE_SECONDS", 0.3)

    def run(actor: int, units: list[int]) -> None:
        raise ActorGone

    with pytest.raises(ColdframeError, match="No Ray actor answered for 0 s"):
        hand_out(tmp_path, 3, run)


def test_actor_that_died_while_it_replaced_a_unit_loses_no_old_row(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old rows' video is gone, so they are nowhere but in what the dead actor had staged."""
    inline.use(monkeypatch)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    shutil.copy(barcodes(70, 0), tmp_path / "a/old.mp4")
    shutil.copy(barcodes(70, 70), tmp_path / "b/new.mp4")
    store = tmp_path / "s"
    run(tmp_path / "a", bundle, store)
    old = open_store(store).patch()

    class Killed(BaseException):
        pass

    def die(root: Path, unit: int) -> None:
        take_back_commit(root, unit)  # the first thing that happens once it is decided
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("coldframe.store.units.finish_replacement", die_once := Once(die))
        with pytest.raises(Killed):
            run(tmp_path / "b", bundle, store, append=True)
    assert die_once.calls == 2
    (tmp_path / "a/old.mp4").unlink()
    assert open_store(store).trusted_marker(0) is None
    settings = RunnerSettings(
        store=str(store), bundle=str(bundle.path), backend="onnxruntime", threads=1, batch_clips=4
    )
    ray_workers.UnitActor(settings).run([0])
    assert (open_store(store).patch([0, 1]) == old).all()
    assert len(open_store(store).ok_rows()) == 4
    assert verify_store(store).passed
