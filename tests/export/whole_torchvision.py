"""timm and transformers import torchvision where it is there, and one built for another torch cannot be imported.

No test calls its operators. Where they cannot be loaded, two names are declared, so that the Python part imports.
"""

from importlib import import_module
from typing import Any

import torch


def mend() -> Any:
    """Make `import torchvision` work in this process; the declarations last as long as what is returned."""
    try:
        import_module("torchvision")
    except RuntimeError:
        declared: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import_module("torchvision")
        return declared
    except ImportError:  # not installed, which transformers can do without
        pass
    return None


MENDED = mend()
