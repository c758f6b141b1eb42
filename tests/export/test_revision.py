"""The commit of a download, from where it lies or from the notes beside it."""

from pathlib import Path

from coldframe.export.bundle import export_bundle
from coldframe.export.checkpoint import save_reference
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.revision import read_revision

COMMIT = "e831a0347737fcaa660b39c57d41c109de399845"


def test_commit_is_read_from_the_cache_path(tmp_path: Path) -> None:
    folder = tmp_path / "models--a--b" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    assert read_revision(folder) == read_revision(tmp_path / "link") == COMMIT


def test_commit_is_read_from_the_notes_of_a_download(tmp_path: Path) -> None:
    notes = tmp_path / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (notes / f"{name}.metadata").write_text(f"{COMMIT}\netag\n1.5\n")
    assert read_revision(tmp_path) == COMMIT
    (notes / "config.json.metadata").write_text(f"{COMMIT[::-1]}\netag\n1.5\n")
    assert read_revision(tmp_path) == ""  # files of two commits


def test_nothing_is_made_up(tmp_path: Path) -> None:
    (tmp_path / "snapshots" / "main").mkdir(parents=True)
    assert read_revision(tmp_path / "snapshots" / "main") == ""


def test_revision_goes_into_the_bundle(tiny_model: LeVJEPA, tmp_path: Path) -> None:
    folder = tmp_path / "snapshots" / COMMIT
    save_reference(tiny_model, folder)
    assert export_bundle(folder, tmp_path / "bundle", frames=1).revision == COMMIT
    assert export_bundle(tmp_path / "bundle", tmp_path / "again", frames=1).revision == COMMIT
