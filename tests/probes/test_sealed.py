import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coldframe.errors import StoreError, UsageError
from coldframe.probe_cli import main
from coldframe.probes.make_split import make_split
from coldframe.probes.sealed import ledger_of, record_read
from coldframe.probes.split_manifest import SplitManifest, read_manifest
from tests.probes.memory import separable_store


@pytest.fixture
def manifest(tmp_path: Path) -> SplitManifest:
    make_split(separable_store(), label="label").write(tmp_path / "split.json")
    return read_manifest(tmp_path / "split.json")


def run(manifest: SplitManifest, monkeypatch: pytest.MonkeyPatch, *args: str) -> Result:
    monkeypatch.setattr("coldframe.probes.cli.open_store", lambda path: separable_store())
    return CliRunner().invoke(main, ["linear", "S", "--label", "label", "--split", str(manifest.path), *args])


def test_second_reading_needs_a_reason_and_is_counted(manifest: SplitManifest, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(manifest, monkeypatch)
    assert first.exit_code == 0, first.output
    assert "part read once" in first.stdout
    second = run(manifest, monkeypatch)
    assert second.exit_code == 2
    assert "was read before (1 times" in second.stderr
    assert "give --again REASON" in second.stderr
    assert len(ledger_of(manifest).read_text().splitlines()) == 1  # a refusal is no reading
    third = run(manifest, monkeypatch, "--again", "the label of video 3 was wrong", "--json")
    data = json.loads(third.stdout)
    assert data["split"]["test_reads"]["count"] == 2
    assert data["split"]["test_reads"]["reasons"] == ["the label of video 3 was wrong"]
    assert any("read 2 times (the label of video 3 was wrong)" in text for text in data["warnings"])


def test_the_ledger_says_who_read(manifest: SplitManifest, monkeypatch: pytest.MonkeyPatch) -> None:
    run(manifest, monkeypatch)
    (entry,) = map(json.loads, ledger_of(manifest).read_text().splitlines())
    assert entry["split"] == manifest.digest
    assert entry["what"] == {
        "probe": "linear", "features": "cls", "label": "label", "recipe_id": separable_store().recipe_id,
    }  # fmt: skip
    assert entry["again"] is None


def test_a_failed_check_before_the_reading_is_not_counted(
    manifest: SplitManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(manifest, monkeypatch, "--features", "mean").exit_code == 2
    assert not ledger_of(manifest).exists()


@pytest.mark.parametrize("text", ["half a li", '{"split": 3}\n', "[1]\n"])
def test_a_damaged_ledger_stops_everything(manifest: SplitManifest, text: str) -> None:
    ledger_of(manifest).write_text(text)
    with pytest.raises(StoreError, match=r"is damaged|belongs to another split"):
        record_read(manifest, {}, "why not")


def test_a_ledger_of_another_split_is_not_continued(manifest: SplitManifest, tmp_path: Path) -> None:
    record_read(manifest, {}, None)
    make_split(separable_store(), label="label", seed=5).write(tmp_path / "other.json")
    other = read_manifest(tmp_path / "other.json")
    ledger_of(manifest).rename(ledger_of(other))
    with pytest.raises(StoreError, match="belongs to another split"):
        record_read(other, {}, None)


def test_a_blank_reason_is_none(manifest: SplitManifest) -> None:
    with pytest.raises(UsageError, match="reason for reading the test part again is blank"):
        record_read(manifest, {}, "  ")
