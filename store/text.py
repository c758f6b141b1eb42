"""Paths as text, and back without loss; numbers of bytes for people."""

import os
import re

_ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|(\\))")


def path_to_text(path: str | os.PathLike[str]) -> str:
    r"""UTF-8 text for any file name: bytes that are not UTF-8 become `\xHH`, a backslash becomes `\\`."""
    raw = os.fsencode(path).replace(b"\\", b"\\\\")
    return raw.decode("utf-8", "backslashreplace")


def text_to_path(text: str) -> str:
    """The file name that `path_to_text` was given."""
    raw = _ESCAPE.sub(lambda m: b"\\" if m[2] else bytes([int(m[1], 16)]), text.encode("utf-8"))
    return os.fsdecode(raw)


def size_to_text(count: float) -> str:
    """Bytes in decimal units, such as `6.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
