"""Doctor finds decoders that are wrong in the ways decoders have been wrong, and no fault in one that is right."""

import json
from collections.abc import Callable, Generator, Sequence
from fractions import Fraction
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from coldframe.cli import main
from coldframe.errors import ColdframeError, VideoError
from coldframe.export import Bundle
from coldframe.serve import doctor_cli, kinds, machine
from coldframe.serve.clips import Answer, ClipReader, PyAVReader, VideoClips
from coldframe.serve.decode_process import DecodeProcess
from coldframe.serve.doctor import Diagnosis, diagnose
from tests import barcode
from tests.serve import stubs
from tests.serve.test_dali_files import vp9

SIZE = 64


class Broken(PyAVReader):
    """PyAV's reader with a fault put in."""

    def __init__(self, fault: str) -> None:
        super().__init__(image_size=SIZE)
        self.fault = fault
        self.first = ""
        self.videos: list[VideoClips] = []

    def begin(self, videos: Sequence[VideoClips]) -> None:
        self.videos, self.first = list(videos), ""

    def provenance(self) -> dict[str, Any]:
        return {"decoder": "broken"}

    def read(self, video: VideoClips) -> Generator[Answer]:
        asked = video
        if self.fault == "off by one":
            asked = VideoClips(
                path=video.path, sha256=video.sha256, rows=video.rows, frame_index=np.maximum(video.frame_index - 1, 0)
            )
        if self.fault == "another video":
            other = next(found for found in self.videos if found.path != video.path)
            asked = VideoClips(path=other.path, sha256=other.sha256, rows=video.rows, frame_index=video.frame_index)
        for place, (row, clip) in enumerate(super().read(asked)):
            yield row, self._spoil(clip, place, video)

    def _spoil(self, clip: NDArray[np.uint8] | VideoError, place: int, video: VideoClips) -> Any:
        assert isinstance(clip, np.ndarray)
        if self.fault == "other colours":
            return (clip.astype(np.float32) * 219 / 255 + 16).astype(np.uint8)  # full range read as limited
        if self.fault == "drops frames":
            return VideoError("decode_error", "dropped") if place == 2 else clip
        if self.fault == "leaks":
            self.first = self.first or video.path
            return clip if self.first == video.path or place else clip ^ 1
        return clip


def corpus(folder: Path) -> list[str]:
    return [str(barcode.write_video(folder / f"{number}.mp4", 30, first=200 * number)) for number in range(3)]


def check(files: list[str], fault: str, **options: Any) -> Diagnosis:
    makers: dict[str, Callable[[], ClipReader]] = {
        "broken": lambda: Broken(fault),
        "pyav": lambda: PyAVReader(image_size=SIZE),
    }
    return diagnose(files, makers, size=SIZE, frames=8, samples=3, **options)


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ("off by one", "other frames"),
        ("another video", "other pictures"),
        ("other colours", "other colours"),
        ("drops frames", "missing frames"),
        ("leaks", "leaks"),
    ],
)
def test_a_broken_decoder_is_quarantined(tmp_path: Path, fault: str, verdict: str) -> None:
    found = check(corpus(tmp_path), fault)
    (group,) = found.groups
    assert group.backends["broken"].verdict == verdict
    assert group.quarantined == ["broken"]
    assert group.recommended == "pyav"
    assert found.exit_code == 3


def test_a_decoder_that_is_right_is_recommended(tmp_path: Path) -> None:
    found = check(corpus(tmp_path), "none")
    (group,) = found.groups
    assert group.backends["broken"].verdict == group.backends["pyav"].verdict == "agree"
    assert (group.recommended, group.quarantined, found.exit_code) == ("broken", [], 0)


def test_features_count_where_pixels_pass(tmp_path: Path) -> None:
    def encode(clips: NDArray[np.uint8]) -> NDArray[np.float32]:
        angle = float(clips.sum())  # an encoder that any difference throws off
        return np.array([[np.cos(angle), np.sin(angle)]], np.float32)

    class OneLevel(PyAVReader):
        def read(self, video: VideoClips) -> Generator[Answer]:
            for row, clip in super().read(video):
                assert isinstance(clip, np.ndarray)
                changed = clip.copy()
                changed[0, 0, 0, 0] += 1
                yield row, changed

    found = diagnose(
        corpus(tmp_path),
        {"one level": lambda: OneLevel(image_size=SIZE)},
        size=SIZE,
        frames=8,
        samples=1,
        encode=encode,
    )
    assert found.groups[0].backends["one level"].verdict == "other features"
    assert found.groups[0].recommended is None


def test_the_worst_cosine_counts_and_none_that_is_not_finite(tmp_path: Path) -> None:
    calls: list[int] = []

    def encode(clips: NDArray[np.uint8]) -> NDArray[np.float32]:
        calls.append(len(calls))  # first file: (1, 0) and (0, 1), whose cosine is 0; the others: equal
        return np.array([[1, 0] if calls[-1] != 1 else [0, 1]], np.float32)

    makers: dict[str, Callable[[], ClipReader]] = {"pyav": lambda: PyAVReader(image_size=SIZE)}
    files = corpus(tmp_path)
    found = diagnose(files, makers, size=SIZE, frames=8, samples=3, encode=encode)
    assert (found.groups[0].backends["pyav"].cosine, found.groups[0].backends["pyav"].verdict) == (
        0.0,
        "other features",
    )

    def broken(clips: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.array([[np.nan, 1]], np.float32)

    with pytest.raises(ColdframeError, match=r"not finite for frames of .*0\.mp4"):
        diagnose(files, makers, size=SIZE, frames=8, samples=1, encode=broken)


def test_one_decoder_is_advised_for_all_files(tmp_path: Path) -> None:
    files = [*corpus(tmp_path), str(barcode.write_video(tmp_path / "other.mp4", 30, size=(240, 120)))]

    class SpoilsLarge(Broken):
        def _spoil(self, clip: NDArray[np.uint8] | VideoError, place: int, video: VideoClips) -> Any:
            assert isinstance(clip, np.ndarray)
            return 255 - clip if video.path.endswith("other.mp4") else clip

    makers: dict[str, Callable[[], ClipReader]] = {
        "fast": lambda: SpoilsLarge("none"),
        "pyav": lambda: PyAVReader(image_size=SIZE),
    }
    found = diagnose(files, makers, size=SIZE, frames=8, samples=1)
    assert [group.recommended for group in found.groups] == ["fast", "pyav"]
    assert found.recommended == "pyav"
    assert diagnose(files[:3], makers, size=SIZE, frames=8, samples=1).recommended == "fast"
    assert Diagnosis(groups=[], unusable={}).recommended is None


def test_groups_are_what_makes_decoders_differ(tmp_path: Path) -> None:
    files = [
        barcode.write_video(tmp_path / "a.mp4", 20),
        barcode.write_video(tmp_path / "b.mp4", 20, first=300),
        barcode.write_video(tmp_path / "c.mp4", 20, fps=25),
        barcode.set_matrix(barcode.write_video(tmp_path / "d.mp4", 20), tmp_path / "e.mp4", 90),
        barcode.write_video(tmp_path / "f.mp4", 20, size=(240, 120)),
        vp9(tmp_path / "g.webm"),
        vp9(tmp_path / "h.webm", pts=[i * i for i in range(4, 24)], time_base=Fraction(1, 1000)),
        barcode.write_video(tmp_path / "i.mp4", 20, fps=1000),
        barcode.set_matrix(tmp_path / "d.mp4", tmp_path / "j.mp4", "mirrored"),
    ]
    found = check([str(file) for file in files], "none")
    found_kinds = [(group.kind.codec, group.kind.size, group.kind.rate, group.kind.rotation) for group in found.groups]
    assert [group.samples for group in found.groups if group.kind.flags == "mirrored"] == [[str(files[-1])]]
    assert found_kinds[0] == ("h264", "192x96", "30", 0)
    assert found.groups[0].files == 2
    assert set(found_kinds[1:]) == {
        ("h264", "192x96", "25", 0),
        ("h264", "192x96", "1000", 0),
        ("h264", "192x96", "30", 0),  # mirrored
        ("h264", "192x96", "30", 90),
        ("h264", "240x120", "30", 0),
        ("vp9", "192x96", "30", 0),
        ("vp9", "192x96", "variable", 0),
    }


def test_unusable_and_damaged_files_are_listed(tmp_path: Path) -> None:
    good = corpus(tmp_path)
    (tmp_path / "empty.mp4").write_bytes(b"")
    whole = barcode.write_video(tmp_path / "w.mp4", 120, options={**barcode.X264, "g": "60"}, size=(240, 120))
    damaged = barcode.flip_bits(whole, tmp_path / "damaged.mp4", seed=0)
    found = check([*good, str(tmp_path / "empty.mp4"), str(damaged)], "none")
    assert found.unusable[str(tmp_path / "empty.mp4")].startswith("empty_file: ")
    assert found.groups[1].unusable[str(damaged)].startswith("decode_error: ")
    assert found.groups[1].recommended is None
    assert found.exit_code == 3


def test_a_file_that_hangs_or_crashes_the_demuxer_is_one_unusable_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = corpus(tmp_path)
    monkeypatch.setattr(kinds, "look", stubs.look_badly)
    monkeypatch.setattr(kinds, "DecodeProcess", partial(DecodeProcess, stall_seconds=2.0))
    found = check(files, "none")
    assert found.unusable[files[0]].startswith("timeout: ")
    assert found.unusable[files[1]].startswith("decode_error: The decoder crashed")
    assert [group.samples for group in found.groups] == [[files[2]]]


def test_work_is_bounded_by_samples(tmp_path: Path) -> None:
    seen: list[str] = []

    class Counting(PyAVReader):
        def read(self, video: VideoClips) -> Generator[Answer]:
            seen.append(video.path)
            return super().read(video)

    files = [str(barcode.write_video(tmp_path / f"{number}.mp4", 4, first=number)) for number in range(9)]
    found = diagnose(files, {"pyav": lambda: Counting(image_size=SIZE)}, size=SIZE, frames=4, samples=2)
    assert found.groups[0].files == 9
    assert set(seen) == {files[0], files[8]}


def doctor(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["doctor", *arguments])


def test_command_tells_the_machine_alone() -> None:
    text = doctor()
    assert text.exit_code == 0
    assert "NVDEC" in text.stdout
    found = json.loads(doctor("--json").stdout)
    assert found["groups"] == []
    assert found["machine"]["cores"] >= 1
    packages, missing = found["machine"]["packages"], found["machine"]["missing"]
    assert packages["av"] == av.__version__
    assert packages["coldframe"] == metadata.version("coldframe")
    assert not set(packages) & set(missing)
    assert all(find_spec(name.replace("-", "_")) is None for name in missing if name.startswith(("openvino", "torch")))
    assert f"libavcodec {'.'.join(map(str, av.library_versions['libavcodec']))}" in found["machine"]["decoder"]
    assert found["machine"]["decoder"] in text.stdout
    assert found["machine"]["free_bytes"] > 0
    assert found["machine"]["write_bytes_per_second"] > 0


def test_gpus_and_their_driver_are_read_from_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0/information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t 68\n")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan  1 2025\n")
    monkeypatch.setattr(machine, "_GPU_FILES", tmp_path)
    monkeypatch.setattr(machine, "_DRIVER_FILE", tmp_path / "version")
    found = machine.look_at_machine(str(tmp_path))
    assert (found.gpus, found.driver) == (["NVIDIA H200"], "570.86.15")
    assert "gpu       NVIDIA H200; driver 570.86.15; NVDEC" in doctor().stdout


def test_command_recommends_dali_where_it_agrees(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_cli, "gpu_count", lambda: 0)
    vp9(tmp_path / "a.webm", 40)
    vp9(tmp_path / "b.webm", 40, first=300)
    run = doctor(str(tmp_path), "--encoder", str(bundle.path), "--json")
    assert run.exit_code == 0, run.stdout
    (group,) = json.loads(run.stdout)["groups"]
    result = group["backends"]["dali-cpu"]
    assert result["verdict"] == "agree"
    assert result["cosine"] >= 0.999
    assert [agreement["misplaced"] for agreement in result["agreements"]] == [0, 0]
    text = doctor(str(tmp_path), "--encoder", str(bundle.path)).stdout
    assert "vp9 192x96" in text
    assert "use pyav" in text


def test_command_exits_3_for_unusable_files(tmp_path: Path) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    (tmp_path / "notes.txt").write_text("a note")
    run = doctor(str(tmp_path))
    assert run.exit_code == 3
    assert "1 files: 0 groups, 1 files unusable" in run.stdout
    assert "bad.mp4: unreadable: " in run.stdout
    assert "passed over by their endings: 1 .txt" in run.stdout
    assert "no decoder can be recommended" in run.stdout
    found = json.loads(doctor(str(tmp_path), "--json").stdout)
    assert (found["passed_over"], found["recommended"]) == ({".txt": 1}, None)


def test_an_encoder_without_videos_is_refused() -> None:
    run = doctor("--encoder", "nowhere")
    assert run.exit_code == 2
    assert "no PATH is given" in run.stderr


def test_text_says_in_what_a_decoder_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    makers: dict[str, Callable[[], ClipReader]] = {
        "broken": lambda: Broken("drops frames"),
        "pyav": lambda: PyAVReader(image_size=224),
    }
    monkeypatch.setattr(doctor_cli, "available_backends", lambda size, threads: makers)
    good = barcode.write_video(tmp_path / "a.mp4", 30)
    whole = barcode.write_video(tmp_path / "w.mp4", 120, options={**barcode.X264, "g": "60"}, size=(240, 120))
    damaged = barcode.flip_bits(whole, tmp_path / "damaged.mp4", seed=0)
    run = doctor(str(good), str(damaged))
    assert run.exit_code == 3
    assert f"1 files, 1 tried, such as {good}" in run.stdout
    assert "use pyav; QUARANTINED: broken (missing frames)" in run.stdout
    assert f"damaged   {damaged}: decode_error: " in run.stdout
    assert "no decoder was tried: each of the files tried has damage" in run.stdout
    (broken,) = (line for line in run.stdout.splitlines() if line.startswith("  broken"))
    assert broken.split()[1:] == ["missing", "frames", "-", "-", "-", "-", "-", "-", "-"]
    assert run.stdout.splitlines()[-1] == "for all of them: --decoder pyav"


def test_without_dali_pyav_is_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from coldframe.errors import MissingDependency

    def missing() -> int:
        raise MissingDependency("NVIDIA DALI", "dali")

    monkeypatch.setattr(doctor_cli, "gpu_count", missing)
    assert list(doctor_cli.available_backends(32, 1)) == ["pyav"]
    monkeypatch.setattr(doctor_cli, "gpu_count", lambda: 1)
    assert list(doctor_cli.available_backends(32, 1)) == ["dali", "pyav"]
