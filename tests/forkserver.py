"""One fork server for all tests of a process, with everything imported that any of their children needs.

Python has a single fork server a process, and the last list of modules that is set before it starts is the one it
imports. Each module that set a list of its own would make the children of the others slow.
"""

import multiprocessing

from coldframe.serve.decode_process import PRELOAD

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *PRELOAD,
        "coldframe.serve.extract",
        "coldframe.export.onnx_runtime",
        "tests.serve.stubs",
        "tests.store.plans",
        "torch",
        "zarr",
    ]
)
