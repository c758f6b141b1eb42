"""H.264 of uncompressed pictures, coded as frames or as fields: what no encoder at hand writes (ITU-T H.264, 7.3).

Every macroblock is I_PCM, so a picture is what was put in, and pictures may be coded in any order: B-frames without
prediction. A field carries the number of its frame like a frame does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import av
import numpy as np
from numpy.typing import NDArray

from tests.barcode import HEIGHT, WIDTH, draw, read_number

_MACROBLOCKS = (HEIGHT // 16, WIDTH // 16)
_START = b"\0\0\0\1"
_FRAME_NUM_BITS, _POC_BITS = 4, 8
_I_SLICES, _I_PCM, _MAIN_PROFILE, _LEVEL_3 = 7, 25, 77, 30

LOWER = 1000  # more in the number of the lower field

Field = Literal["top", "bottom", "frame"]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One coded picture. `number` is what it shows, and its place; it is the `coded`-th frame of its group."""

    number: int
    coded: int
    field: Field
    key: bool
    reference: bool
    shown: int


class _Bits:
    def __init__(self) -> None:
        self._text: list[str] = []

    def put(self, value: int, width: int) -> "_Bits":
        self._text.append(f"{value:0{width}b}")
        return self

    def ue(self, *values: int) -> "_Bits":
        """Exp-Golomb codes (9.1)."""
        for value in values:
            code = f"{value + 1:b}"
            self._text.append("0" * (len(code) - 1) + code)
        return self

    def padded(self, fill: str = "0") -> bytes:
        text = "".join(self._text)
        text += fill * (-len(text) % 8) if fill == "0" else "1" + "0" * (-(len(text) + 1) % 8)
        return int(text, 2).to_bytes(len(text) // 8, "big")


def headers() -> bytes:
    """Sequence and picture parameter sets of 4:2:0 pictures of the barcode's size, field coding allowed."""
    rows, columns = _MACROBLOCKS
    sps = _Bits().put(_MAIN_PROFILE, 8).put(0, 8).put(_LEVEL_3, 8).ue(0, _FRAME_NUM_BITS - 4, 0, _POC_BITS - 4)
    sps.ue(2).put(0, 1).ue(columns - 1, rows // 2 - 1).put(0, 1).put(
        0, 1
    )  # frames or fields, no macroblock-adaptive ones
    sps.put(1, 1).put(0, 1).put(0, 1)  # direct_8x8_inference, no cropping, no VUI
    pps = _Bits().ue(0, 0).put(0, 1).put(0, 1).ue(0, 0, 0).put(0, 3).ue(0, 0, 0).put(0b100, 3)
    return _nal(0x67, sps.padded("1")) + _nal(0x68, pps.padded("1"))


def _nal(head: int, payload: bytes) -> bytes:
    """A NAL unit with emulation prevention (7.4.1.1)."""
    out, zeros = bytearray(), 0
    for value in payload:
        if zeros >= 2 and value <= 3:
            out.append(3)
            zeros = 0
        out.append(value)
        zeros = zeros + 1 if value == 0 else 0
    return _START + bytes([head]) + bytes(out)


def coded_picture(picture: Picture) -> bytes:
    """The NAL unit of one picture, which is one slice."""
    is_idr = picture.key and picture.field != "bottom"
    head = _Bits().ue(0, _I_SLICES, 0).put(picture.coded % 2**_FRAME_NUM_BITS, _FRAME_NUM_BITS)
    head.put(picture.field != "frame", 1)
    if picture.field != "frame":
        head.put(picture.field == "bottom", 1)
    if is_idr:
        head.ue(picture.number // 4 % 2)
    head.put((2 * picture.shown + (picture.field == "bottom")) % 2**_POC_BITS, _POC_BITS)
    if picture.reference:
        head.put(0, 2 if is_idr else 1)
    head.ue(0, 1)  # slice_qp_delta, deblocking off
    planes = _planes(picture.number)
    if picture.field != "frame":
        planes = [plane[picture.field == "bottom" :: 2] for plane in planes]
    body = bytearray()
    first = True
    for luma, blue, red in _macroblocks(planes):
        bits = head if first else _Bits()
        body += bits.ue(_I_PCM).padded() + luma + blue + red
        first = False
    return _nal((0x60 if picture.reference else 0) | (5 if is_idr else 1), bytes(body) + b"\x80")


def _planes(number: int) -> list[NDArray[np.uint8]]:
    """Luma and grey chroma; the lower field shows another number."""
    luma = draw(number)[..., 0]
    luma[1::2] = draw(number + LOWER)[1::2, :, 0]
    grey = np.full((HEIGHT // 2, WIDTH // 2), 128, np.uint8)
    return [luma // 2 + 60, grey, grey]


def read_fields(picture: NDArray[np.uint8]) -> tuple[int, int]:
    """The numbers that both fields of a picture show, of whole ones (n, n)."""
    return read_number(picture[::2]), read_number(picture[1::2]) - LOWER


def _macroblocks(planes: Sequence[NDArray[np.uint8]]) -> Iterator[tuple[bytes, bytes, bytes]]:
    for row in range(len(planes[0]) // 16):
        for column in range(_MACROBLOCKS[1]):
            yield tuple(  # type: ignore[misc]
                plane[row * size : (row + 1) * size, column * size : (column + 1) * size].tobytes()
                for plane, size in zip(planes, (16, 8, 8), strict=True)
            )


def coded_frames(
    count: int, *, b_frames: bool = True, coding: Literal["frame", "field", "both"] = "field", first_frame: int = 0
) -> list[list[Picture]]:
    """The pictures of each frame in coding order, groups of 12 frames; "both" takes turns.

    Frames before `first_frame` are coded as frames.
    """
    found = []
    with_b = [0, *(place for last in (3, 6, 9) for place in (last, last - 2, last - 1)), 10, 11]
    for begin in range(0, count, 12):
        coded = 0
        for place in with_b if b_frames else range(12):
            number, is_reference = begin + place, not b_frames or place % 3 == 0
            if number >= count:
                continue
            as_frame = coding == "frame" or (coding == "both" and place % 2 == 0) or number < first_frame
            fields: tuple[Field, ...] = ("frame",) if as_frame else ("top", "bottom")
            found.append(
                [
                    Picture(
                        number=number, coded=coded, field=field, key=place == 0, reference=is_reference, shown=place
                    )
                    for field in fields
                ]
            )
            coded += is_reference
    return found


def mux(
    path: Path,
    frames: Sequence[Sequence[Picture]],
    *,
    packet_a_field: bool = False,
    lost: Sequence[tuple[int, Field]] = (),
) -> Path:
    """Write coded frames at 25 a second with the times of their fields, some of which may be left out."""
    raw, tick = path.with_suffix(".raw"), Fraction(1, 90_000)
    raw.write_bytes(headers() + b"".join(coded_picture(picture) for frame in frames[:12] for picture in frame))
    with av.open(str(raw)) as template, av.open(str(path), "w") as output:
        stream = output.add_stream_from_template(template.streams.video[0])
        stream.time_base = tick
        for place, frame in enumerate(frames):
            left = [picture for picture in frame if (picture.number, picture.field) not in lost]
            for pictures in [[picture] for picture in left] if packet_a_field else [left]:
                if not pictures:
                    continue
                later = 1800 * (pictures[0].field == "bottom")
                is_key = pictures[0].key and pictures[0].field != "bottom"
                data = b"".join(coded_picture(picture) for picture in pictures)
                packet = av.Packet(headers() + data if is_key else data)
                packet.pts, packet.dts = 3600 * frame[0].number + 7200 + later, 3600 * place + later
                packet.time_base, packet.duration = tick, 1800 if packet_a_field else 3600
                packet.is_keyframe, packet.stream = is_key, stream
                output.mux(packet)
    return path
