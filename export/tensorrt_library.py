"""TensorRT's two libraries, imported here and nowhere else. They mirror one another, so one code path serves both.

`tensorrt` is the datacenter one: it builds and tunes on the GPU that will run the plan. `tensorrt_rtx` builds
ahead of time for a compute capability, on a machine without a GPU too, and finishes on the target.
"""

from typing import Any

from coldframe.errors import MissingDependency
from coldframe.export.engine import Flavour

# a compute capability as the library spells it, `SM89`; NONE and CURRENT are no targets
_TARGET_PREFIX = "SM"


def load_library(flavour: Flavour) -> Any:
    """The library's module.

    Raises:
        MissingDependency: it is not installed; names the extra.
    """
    try:
        if flavour == "tensorrt":
            import tensorrt

            return tensorrt
        import tensorrt_rtx
    except ImportError as error:
        raise MissingDependency(flavour, "gpu" if flavour == "tensorrt" else "rtx") from error
    return tensorrt_rtx


def targets(library: Any) -> dict[str, Any]:
    """Compute capabilities that the library builds for ahead of time, such as `8.9`, and its name for each."""
    names = getattr(library, "ComputeCapability", None)
    members = {} if names is None else dict(names.__members__)
    return {f"{name[2:-1]}.{name[-1]}": member for name, member in members.items() if name.startswith(_TARGET_PREFIX)}


def make_log(library: Any) -> Any:
    """A logger that keeps errors in `messages` for ours, and prints nothing."""

    class Log(library.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            library.ILogger.__init__(self)
            self.messages: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (library.ILogger.Severity.ERROR, library.ILogger.Severity.INTERNAL_ERROR):
                self.messages.append(message)

    return Log()
