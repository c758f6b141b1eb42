"""First frames: what only decoding tells about a video, and whether its packets tell the truth."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coldframe.errors import VideoError
from coldframe.serve.container import open_container, require_pixels
from coldframe.serve.decoder import Decoder, refers_to_others, tells_kind
from coldframe.serve.orientation import orientation
from coldframe.serve.packets import Packets, StreamFacts
from coldframe.store.schema import Flag

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

# Decoders that drop the first key frame's leading pictures unless they can be decoded.
_JUDGES_LEADING = ("hevc", "mpeg1video", "mpeg2video")
_COLOUR_UNSPECIFIED = 2  # AVCOL_SPC_UNSPECIFIED


@dataclass(frozen=True, kw_only=True)
class FirstFrames:
    """The first frames that came out of the decoder.

    Attributes:
        names: pts, or packet numbers, in output order. By number, packets given up keep their place.
        good: how many of `names` there are up to the last frame that did come out.
        lost: names of packets that were given up after the first frame.
        has_sure_keys: the container calls no frame a key frame that refers to others, and the decoder would tell.
        complete: the stream ended before as many frames as asked for were out.
        width, height: of the first frame in pixels, before rotation.
        rotation: of the first frame in degrees clockwise.
        mirrored: the first frame is mirrored left to right before it is turned.
        flags: `Flag` bits that are seen in pictures.
    """

    names: list[int]
    good: int
    lost: frozenset[int]
    has_sure_keys: bool
    complete: bool
    width: int
    height: int
    rotation: int
    mirrored: bool
    flags: Flag

    def agrees_with(self, expected: "np.typing.NDArray[np.int64]") -> bool:
        """True if the frames came out in the order and with the pts of `expected`, which is sorted."""
        if self.lost:  # damage: fewer frames, but still in order
            return bool(np.isin(self.names, expected).all() and (np.diff(self.names) > 0).all())
        if self.complete and len(self.names) < len(expected):
            return False
        return bool(np.array_equal(expected[: len(self.names)], self.names))


def decode_first(path: str, stream: StreamFacts, packets: Packets, *, at_most: int, by_number: bool) -> FirstFrames:
    """Decode from the file's start until `at_most` frames are out.

    Raises:
        VideoError: `no_frames` if nothing comes out of the whole stream, `limit` if pictures are too large.
    """
    names: list[int] = []
    lost: set[int] = set()
    count, good, has_sure_keys = 0, 0, True
    keys = packets.key_names(by_number=by_number)
    first: VideoFrame | None = None
    flags = Flag(0)
    with open_container(path) as container:
        video: VideoStream = container.streams[stream.index]  # type: ignore[assignment]
        damaged = packets.damaged_names(by_number=by_number)
        decoder = Decoder(container, video, by_number=by_number, damaged=damaged)
        run = decoder.frames(wait_for_key=packets.has_keys, leading=stream.codec in _JUDGES_LEADING)
        for name, frame in run:
            if frame is None and first is not None:
                lost.add(name)
            if frame is None and (first is None or not by_number):
                continue
            names.append(name)
            if frame is None:
                continue
            if first is None:
                require_pixels(frame.width, frame.height)
                first = frame
            flags |= Flag.INTERLACED if frame.interlaced_frame else Flag(0)
            has_sure_keys &= tells_kind(frame) and not (name in keys and refers_to_others(frame))
            count, good = count + 1, len(names)
            if count == at_most:
                break
        if first is None:
            damage = f"; the container shows {len(damaged)} of them to be damaged" if damaged else ""
            raise VideoError("no_frames", f"None of {len(packets)} packets of video gives a frame{damage}.")
        quarter_turns, mirrored = orientation(first)
        return FirstFrames(
            names=names,
            good=good,
            lost=frozenset(lost),
            has_sure_keys=has_sure_keys or video.codec_context.codec.intra_only,
            complete=count < at_most,
            width=first.width,
            height=first.height,
            rotation=90 * quarter_turns,
            mirrored=mirrored,
            flags=flags | _untagged(first) | (Flag.ROTATED if quarter_turns or mirrored else Flag(0)),
        )


def _untagged(frame: "VideoFrame") -> Flag:
    is_yuv = not frame.format.is_rgb and not frame.format.has_palette and len(frame.format.components) >= 3
    return Flag.COLOUR_UNTAGGED if is_yuv and frame.colorspace == _COLOUR_UNSPECIFIED else Flag(0)
