"""Transport stream: the packets of an MPEG-TS file, as far as they tell that others are missing (ISO/IEC 13818-1)."""

import os
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from coldframe.serve.damage import Damage
from coldframe.serve.heartbeat import beat

_BYTES = 188
_SYNC = 0x47
_PACKETS_A_READ = 1 << 14


def layout(file: BinaryIO) -> tuple[int, int]:
    """Bytes from one packet to the next, and offset of the first one's sync byte; (0, 0) if there is no packet.

    Packets have 188 bytes, in M2TS 4 more in front, with error correction 16 more behind.
    """
    file.seek(0)
    head = file.read(2 * 204 + 1)
    for step, first in ((_BYTES, 0), (192, 4), (204, 0)):
        if len(head) > first + step and head[first] == _SYNC and head[first + step] == _SYNC:
            return step, first
    return 0, 0


def packet_loss(file: BinaryIO, pid: int) -> Iterator[Damage]:
    """Places where packets of `pid` are missing, by their continuity counter, or marked as wrong, or out of step.

    The frame that was being sent before a loss is damaged with it. A loss of exactly 16 packets, or a multiple, shows
    in no counter.
    """
    step, at = layout(file)
    size = os.fstat(file.fileno()).st_size
    rows, places = np.empty((0, _BYTES), np.uint8), np.empty(0, np.int64)
    while step and at < size:
        beat()
        file.seek(at)
        data = np.frombuffer(file.read(step * _PACKETS_A_READ), np.uint8)
        packets = data[: len(data) - len(data) % step].reshape(-1, step)[:, :_BYTES]
        in_step = int(np.argmin(np.append(packets[:, 0] == _SYNC, False)))
        mine = np.flatnonzero(_pid(packets[:in_step]) == pid)
        rows = np.concatenate([rows, packets[mine]])
        # FFmpeg's positions count what stands before a packet or behind the one before as its beginning.
        places = np.concatenate([places, at + step * mine - (step - _BYTES)])
        for before, here in _losses(rows):
            is_start = bool(rows[here, 1] & 0x40)
            yield Damage(start=int(places[before]) + 1, end=int(places[here]) + (not is_start), reaches_back=True)
        carried = _last_with_payload(rows)
        rows, places = rows[carried:], places[carried:]
        at += step * in_step
        if in_step < len(packets):
            at = _next_in_step(file, at + 1, step, size)
            yield Damage(start=int(places[0]) + 1 if len(places) else 0, end=at, reaches_back=True)
        elif len(packets) < _PACKETS_A_READ:
            return


def _pid(packets: NDArray[np.uint8]) -> NDArray[np.int64]:
    return (packets[:, 1] & 0x1F).astype(np.int64) << 8 | packets[:, 2]


def _has_payload(rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.asarray(rows[:, 3] & 0x10 > 0)


def _last_with_payload(rows: NDArray[np.uint8]) -> int:
    found = np.flatnonzero(_has_payload(rows))
    return int(found[-1]) if len(found) else 0


def _losses(rows: NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Numbers of the packet before, and of the packet behind a loss, among (n, 188) packets of one PID.

    Counters rise by one with each payload. The same packet may be sent twice, and after a packet with the
    discontinuity indicator the counter may be any (2.4.3.3 to 2.4.3.5).
    """
    counted = np.flatnonzero(_has_payload(rows))
    counter, is_wrong = (rows[counted, 3] & 0xF).astype(np.int64), rows[counted, 1] & 0x80 > 0
    jumps = np.cumsum((rows[:, 3] & 0x20 > 0) & (rows[:, 4] > 0) & (rows[:, 5] & 0x80 > 0))[counted]
    step = np.diff(counter) % 16
    for at in np.flatnonzero(((step != 1) & (np.diff(jumps) == 0)) | is_wrong[1:]).tolist():
        before, here = int(counted[at]), int(counted[at + 1])
        if is_wrong[at + 1] or step[at] != 0 or not np.array_equal(rows[before], rows[here]):
            yield before, here


def _next_in_step(file: BinaryIO, at: int, step: int, size: int) -> int:
    """Where three packets in a row begin at or behind `at`; the file's end if nowhere."""
    while at < size:
        beat()
        file.seek(at)
        data = np.frombuffer(file.read(step * _PACKETS_A_READ), np.uint8)
        if len(data) <= 2 * step:
            return size
        is_sync = data == _SYNC
        found = np.flatnonzero(is_sync[: -2 * step] & is_sync[step:-step] & is_sync[2 * step :])
        if len(found):
            return at + int(found[0])
        at += len(data) - 2 * step
    return size
