"""`coldframe repair` extracts exactly what is missing or damaged, and leaves every other byte alone."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coldframe.cli import main
from coldframe.export import Bundle
from coldframe.store import open_store, verify_store
from tests.serve import inline
from tests.serve.test_extract import Barcodes, corpus, run

Damage = Callable[[Path], None]


def coldframe(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def _decode_here(monkeypatch: pytest.MonkeyPatch) -> None:
    inline.use(monkeypatch)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, bundle: Bundle, barcodes: Barcodes) -> Path:
    """46 rows in 3 units of 16, and the videos that they come from in `c`."""
    folder = tmp_path_factory.mktemp("repair")
    with pytest.MonkeyPatch.context() as patched:
        inline.use(patched)
        run(corpus(folder / "c", barcodes, videos=24), bundle, folder / "s.zarr")
    return folder


def contents(store: Path) -> dict[str, bytes]:
    return {str(file.relative_to(store)): file.read_bytes() for file in sorted(store.rglob("*")) if file.is_file()}


def change(name: str, new: Callable[[bytes], bytes]) -> Damage:
    def damage(store: Path) -> None:
        file = store / name
        file.write_bytes(new(file.read_bytes()))

    return damage


def lose_the_data(store: Path) -> None:
    for array in ("cls", "patch", "status", "reason"):
        place = store / array / "c" / "1"
        shutil.rmtree(place) if place.is_dir() else place.unlink()


DAMAGES: dict[str, Damage] = {
    "deleted": lambda store: (store / "patch/c/1/0/0/0/0").unlink(),
    "zero length": change("patch/c/1/0/0/0/0", lambda body: b""),
    "half": change("cls/c/1/0", lambda body: body[: len(body) // 2]),
    "flipped bit": change("cls/c/1/0", lambda body: body[:9] + bytes([body[9] ^ 1]) + body[10:]),
    "flipped status": change("status/c/1", lambda body: bytes([body[0] ^ 2]) + body[1:]),
    "marker without data": lose_the_data,
    "data without marker": lambda store: (store / "units/1.json").unlink(),
    "marker cut short": change("units/1.json", lambda body: body[:100]),
    "marker of another plan": change("units/1.json", lambda body: body.replace(b'"unit":1', b'"unit":2')),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_every_kind_of_damage_is_repaired_and_nothing_else_changes(
    tmp_path: Path, template: Path, bundle: Bundle, kind: str
) -> None:
    store = shutil.copytree(template / "s.zarr", tmp_path / "s.zarr")
    before, rows = contents(store), open_store(store).cls()
    DAMAGES[kind](store)
    assert not verify_store(store).passed
    looked = contents(store)
    dry = coldframe("repair", store, "--dry-run", "--json")
    assert (dry.exit_code, json.loads(dry.stdout)["rows"]) == (1, 16), dry.output
    assert sorted(json.loads(dry.stdout)["damaged"] + json.loads(dry.stdout)["absent"]) == [1]
    assert contents(store) == looked
    result = coldframe("repair", store, "--encoder", bundle.path)
    assert result.exit_code == 3, result.output  # two videos cannot be used
    assert "units 1; repaired: 44 rows ok, 2 failed" in result.stdout
    assert verify_store(store).passed
    after = contents(store)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed == {"units/1.json"}  # which holds timings
    assert (open_store(store).cls() == rows).all()
    assert coldframe("repair", store, "--dry-run").exit_code == 0


def test_an_interrupted_run_is_finished_from_the_store_alone(tmp_path: Path, template: Path, bundle: Bundle) -> None:
    store = shutil.copytree(template / "s.zarr", tmp_path / "s.zarr")
    for unit in (0, 2):
        (store / f"units/{unit}.json").unlink()
        shutil.rmtree(store / f"cls/c/{unit}")
    (store / "units/summary.json").unlink()
    assert coldframe("repair", store, "--encoder", bundle.path).exit_code == 3
    assert json.loads(coldframe("info", store, "--json").stdout)["complete"]
    assert verify_store(store).passed


def test_good_rows_are_not_given_up_while_a_video_is_gone(tmp_path: Path, template: Path, bundle: Bundle) -> None:
    store = shutil.copytree(template / "s.zarr", tmp_path / "s.zarr")
    DAMAGES["flipped bit"](store)
    before, gone = contents(store), template / "c/12.mp4"
    gone.rename(template / "c/away")
    try:
        result = coldframe("repair", store, "--encoder", bundle.path)
    finally:
        (template / "c/away").rename(gone)
    assert result.exit_code == 1
    assert f"{gone} cannot be found" in result.stderr
    assert contents(store) == before


def test_what_cannot_be_repaired_is_said(tmp_path: Path, template: Path, bundle: Bundle) -> None:
    store = shutil.copytree(template / "s.zarr", tmp_path / "s.zarr")
    assert "--encoder DIR" in coldframe("repair", store).stderr
    assert coldframe("repair", store).exit_code == 2
    stray = store / "cls/c/77/0"
    stray.parent.mkdir()
    stray.write_bytes(b"x")
    result = coldframe("repair", store, "--encoder", bundle.path)
    assert (result.exit_code, "cls/c/77" in result.stderr) == (1, True)
    assert stray.exists()
    shutil.rmtree(stray.parent)
    plan = store / "frame_pts_s/c/0/0"
    body = plan.read_bytes()
    plan.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    result = coldframe("repair", store, "--encoder", bundle.path)
    assert result.exit_code == 1
    assert "The plan of" in result.stderr
    assert "frame_pts_s/c/0/0" in result.stderr


def test_another_encoder_or_a_running_extraction_is_refused(tmp_path: Path, template: Path, bundle: Bundle) -> None:
    store = shutil.copytree(template / "s.zarr", tmp_path / "s.zarr")
    with open_store(store, writable=True).lock():
        result = coldframe("repair", store, "--encoder", bundle.path)
    assert (result.exit_code, "Another extraction is running" in result.stderr) == (2, True)
    root = store / "zarr.json"
    assert coldframe("repair", store / "cls", "--encoder", bundle.path).exit_code == 2
    assert root.exists()


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("repair", ("--decoder", "dali-cpu", "--decoders", "2"), "decoders is 2, but dali-cpu reads many"),
        ("retry-failed", ("--decoder", "dali-cpu", "--decoders", "2"), "decoders is 2, but dali-cpu reads many"),
        ("repair", ("--backend", "torch", "--device", "cuda"), "there is no usable GPU here"),
        ("repair", ("--decoder", "dali"), "GPU"),
    ],
)
def test_what_cannot_run_here_gives_nothing_up(
    tmp_path: Path, template: Path, bundle: Bundle, command: str, options: tuple[str, ...], message: str
) -> None:
    store = shutil.copytree(template / "s.zarr", tmp_path / "s.zarr")
    DAMAGES["flipped bit"](store)
    before = contents(store)
    result = coldframe(command, store, "--encoder", bundle.path, *options)
    assert (result.exit_code, message in result.stderr) == (2, True), result.output
    assert contents(store) == before


def test_decode_processes_change_no_row_of_a_repair(tmp_path: Path, template: Path, bundle: Bundle) -> None:
    store = shutil.copytree(template / "s.zarr", tmp_path / "s.zarr")
    rows = open_store(store).patch()
    DAMAGES["deleted"](store)
    assert coldframe("repair", store, "--encoder", bundle.path, "--decoders", "3", "--workers", "1").exit_code == 3
    assert (open_store(store).patch() == rows).all()
    assert verify_store(store).passed
