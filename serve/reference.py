"""The PyTorch reference of a bundle: what every other runtime is measured against."""

from typing import TYPE_CHECKING

from coldframe.errors import BundleError
from coldframe.export.bundle_files import Bundle

if TYPE_CHECKING:
    from coldframe.export.encoder import Encoder
    from coldframe.export.torch_runtime import TorchRuntime


def reference_model(bundle: Bundle) -> "Encoder":
    """The encoder of `bundle` in PyTorch, its weights checked tensor by tensor.

    Raises:
        BundleError: they are not those of which the bundle speaks.
    """
    from coldframe.export.checkpoint import weights_sha256
    from coldframe.export.families import load_encoder

    model = load_encoder(bundle.path)
    found = weights_sha256(model)
    if found != bundle.weights_sha256:
        raise BundleError(
            f"{bundle.path} holds weights of digest {found}, not {bundle.weights_sha256}. Export it again."
        )
    return model


def open_reference(bundle: Bundle, threads: int | None = None) -> "TorchRuntime":
    """The reference in float32 on the CPU, with `threads` threads a call; None for one a usable core."""
    from coldframe.export.torch_runtime import TorchRuntime

    return TorchRuntime(reference_model(bundle), geometry=bundle.geometry, threads=threads)
