"""Memory is watched while a block runs, in this process and in its children."""

import mmap
import subprocess
import sys
import time

from coldframe.bench.memory import peak_bytes


def test_short_peak_is_seen_and_later_ones_are_not() -> None:
    with peak_bytes() as before:
        pass
    with peak_bytes() as peak:
        held = mmap.mmap(-1, 200 << 20)  # unlike a freed object's, its memory goes back at once
        for _ in range(200):
            held.write(b"x" * (1 << 20))
        time.sleep(0.1)
        held.close()
    assert peak.bytes - before.bytes > 190 << 20
    with peak_bytes() as after:
        pass
    assert after.bytes < peak.bytes - (150 << 20)


def test_children_count() -> None:
    code = "held = bytearray(b'x') * (200 << 20); print('ready', flush=True); input()"
    with peak_bytes() as before:
        pass
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with peak_bytes() as peak:
            pass
        child.communicate("\n")
    assert peak.bytes - before.bytes > 190 << 20
