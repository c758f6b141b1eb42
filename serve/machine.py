"""Machine: what this computer offers to an extraction. Nothing heavier than PyAV is imported to find out."""

import ctypes
import os
import platform
import re
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from coldframe.errors import MissingDependency
from coldframe.serve.container import decoder_version

_PACKAGES = (
    "coldframe", "av", "numpy", "onnxruntime", "onnxruntime-gpu", "openvino", "torch", "tensorrt", "tensorrt-rtx",
    "zarr", "zarrs", "faiss-cpu", "nvidia-dali-cuda120", "nvidia-dali-cuda130",
)  # fmt: skip
_GPU_FILES = Path("/proc/driver/nvidia/gpus")
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_WRITE_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was found.

    Attributes:
        system, python, processor: names and versions.
        cores: processor cores that this process may use.
        packages: versions of Coldframe, and of what it can use and is installed.
        missing: the others, by the same names. Of those with several builds (such as DALI), one is enough.
        decoder: PyAV's version and that of FFmpeg's libavcodec in it; None without PyAV.
        gpus: models of NVIDIA GPUs that the driver lists.
        driver: version of NVIDIA's kernel module; None without one.
        nvdec: NVIDIA's decoding library can be loaded.
        folder: where disk space and rate were measured.
        free_bytes: disk space left there.
        write_bytes_per_second: of 64 MB, flushed to the disk; None if nothing can be written.
    """

    system: str
    python: str
    processor: str
    cores: int
    packages: dict[str, str]
    missing: list[str]
    decoder: str | None
    gpus: list[str]
    driver: str | None
    nvdec: bool
    folder: str
    free_bytes: int
    write_bytes_per_second: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def look_at_machine(folder: str) -> Machine:
    """Describe this machine; `folder` is where a store would be written."""
    packages = _versions()
    return Machine(
        system=platform.platform(),
        python=platform.python_version(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        packages=packages,
        missing=[name for name in _PACKAGES if name not in packages],
        decoder=_decoder(),
        gpus=_gpus(),
        driver=_driver(),
        nvdec=_loads("libnvcuvid.so.1"),
        folder=folder,
        free_bytes=shutil.disk_usage(folder).free,
        write_bytes_per_second=_write_rate(folder),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.machine()


def _gpus() -> list[str]:
    found = []
    for file in sorted(_GPU_FILES.glob("*/information")):
        match = re.search(r"^Model:\s*(.+)$", file.read_text(), re.MULTILINE)
        found.append(match[1] if match else file.parent.name)
    return found


def _driver() -> str | None:
    try:
        text = _DRIVER_FILE.read_text()
    except OSError:
        return None
    match = re.search(r"\b\d+\.\d+(\.\d+)*\b", text)
    return match[0] if match else None


def _decoder() -> str | None:
    try:
        return decoder_version()
    except MissingDependency:
        return None


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _write_rate(folder: str) -> float | None:
    block = os.urandom(2**20)  # disks and file systems may compress zeros
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            started = time.perf_counter()
            for _ in range(_WRITE_BYTES // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            return _WRITE_BYTES / (time.perf_counter() - started)
    except OSError:
        return None
