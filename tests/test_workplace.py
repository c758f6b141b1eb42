"""Work folders of dead builders are removed by the next one; those of living builders are left alone."""

from pathlib import Path

from coldframe.export import export_bundle
from coldframe.workplace import workplace


def test_living_builders_keep_their_folder(tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    with workplace(place, prefix=".bundle.partial-") as first, workplace(place, prefix=".bundle.partial-") as second:
        assert first != second
        assert first.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_next_export_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    for name in (".bundle.partial-0123abcd", ".bundle2.partial-0123abcd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    export_bundle("levjepa-nano", tmp_path / "bundle", random_init=0, frames=1, image_size=(32, 32))
    assert {entry.name for entry in tmp_path.iterdir()} == {"bundle", ".bundle2.partial-0123abcd"}
