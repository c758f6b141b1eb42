"""Export and memory: how long a large encoder takes to become a bundle, and what encoding with it needs at most.

The time is that of the whole command, parity with PyTorch in every runtime installed included. Each peak is the largest
resident size of a process of its own, which opens the bundle and encodes two batches; a graph's weights that are mapped
from their file count, as they do for whoever runs out of memory.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from coldframe.bench.report import Result, Target
from coldframe.export.bundle import export_bundle

EXPORT_LIMIT_S = 60.0
PEAK_LIMIT_GB = 6.0
# what each peak is of; the batch is what extraction takes by default
VARIANTS = (("onnxruntime", "fp32"), ("openvino", "fp32"), ("openvino", "bf16"), ("torch", "bf16"))
BATCH = 4

# Runs in a process of its own: a peak never falls again. `load_variant` does not ask for parity in bf16.
_ENCODE = """
import re, sys
from pathlib import Path
import numpy as np
from coldframe.export.bundle import open_bundle
from coldframe.export.variants import load_variant
bundle = open_bundle(sys.argv[1])
runtime = load_variant(bundle.path, bundle.geometry, sys.argv[2], sys.argv[3])
shape = bundle.geometry
clips = np.zeros((int(sys.argv[4]), shape.frames, shape.height, shape.width, 3), np.uint8)
for _ in range(2):
    runtime(clips)
# not getrusage, whose maximum a child inherits from its parent, which has just exported a large encoder
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]))
"""


def measure_export(name: str) -> tuple[list[Result], list[Target]]:
    """Seconds of an export of `name` with random weights, and gigabytes at the peak of encoding in each runtime.

    Both are limits, so the targets are the limit over what was measured: at least 1 is wanted.
    """
    with tempfile.TemporaryDirectory(prefix="coldframe-bench-") as folder:
        bundle = Path(folder, "bundle")
        started = time.perf_counter()
        export_bundle(name, bundle, random_init=0)
        seconds = time.perf_counter() - started
        peaks = {f"{backend} {precision}": peak_gb(bundle, backend, precision) for backend, precision in VARIANTS}
    results = [Result(name=f"export of {name}", value=seconds, unit="s", spread=0.0)]
    results += [
        Result(name=f"peak of {what}, {name}, batch {BATCH}", value=peak, unit="GB", spread=0.0)
        for what, peak in peaks.items()
    ]
    return results, [
        Target(name=f"{EXPORT_LIMIT_S:.0f} s / export of {name}", value=EXPORT_LIMIT_S / seconds, wants=1.0),
        Target(name=f"{PEAK_LIMIT_GB:.0f} GB / highest peak", value=PEAK_LIMIT_GB / max(peaks.values()), wants=1.0),
    ]


def peak_gb(bundle: Path, backend: str, precision: str) -> float:
    """Largest resident size, in 1e9 bytes, of a process that encodes two batches."""
    command = [sys.executable, "-c", _ENCODE, str(bundle), backend, precision, str(BATCH)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(run.stdout) / 1e9
