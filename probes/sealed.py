"""Sealed test part: every reading of it is written down beside the split before it happens.

The ledger is a JSON-lines file, `<split>.reads.jsonl`. A second reading needs a reason, because a test set that is
looked at twice is a validation set. Nothing prevents a person from deleting the file; the report shows its count.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import coldframe
from coldframe.errors import StoreError, UsageError
from coldframe.probes.split_manifest import SplitManifest
from coldframe.store.files import disk_errors
from coldframe.store.recipe import canonical_json
from coldframe.store.text import path_to_text


@dataclass(frozen=True, kw_only=True)
class TestReads:
    """How often the test part of a split has been read.

    Attributes:
        count: readings so far, this one included.
        reasons: why each reading after the first was made.
        ledger: path of the ledger as text.
    """

    __test__ = False  # not a test, whatever pytest makes of the name

    count: int
    reasons: tuple[str, ...]
    ledger: str


def ledger_of(manifest: SplitManifest) -> Path:
    """The ledger beside the file of `manifest`."""
    assert manifest.path is not None, "only a split on disk can be sealed"
    return manifest.path.with_name(manifest.path.name + ".reads.jsonl")


def require_readable(manifest: SplitManifest | None, again: str | None) -> None:
    """Refuse early what `record_read` would refuse after hours of training; nothing is written down.

    Args:
        manifest: of the file that was named; None if none was.
        again: reason for a reading after the first.

    Raises:
        UsageError: the part was read before and there is no reason, the reason is blank, or it is a reason for nothing.
        StoreError: the ledger is damaged or belongs to another split.
    """
    if manifest is None or manifest.path is None:
        if again is not None:
            raise UsageError("--again is a reason for reading the test part of --split once more; name a --split.")
        return
    ledger = ledger_of(manifest)
    with disk_errors("read", ledger):
        text = ledger.read_text(encoding="utf-8") if ledger.exists() else ""
    _require_reason(_entries(text, manifest, ledger), manifest, again)


def count_read(manifest: SplitManifest | None, what: Mapping[str, Any], again: str | None) -> TestReads | None:
    """`record_read`, or None without a split in a file: then nobody counts."""
    return None if manifest is None or manifest.path is None else record_read(manifest, what, again)


def record_read(manifest: SplitManifest, what: Mapping[str, Any], again: str | None) -> TestReads:
    """Write down that the test part is about to be read.

    Args:
        manifest: a split that lies on disk.
        what: who reads it and how: plain data.
        again: reason for a reading after the first.

    Raises:
        UsageError: the part was read before and there is no reason, or the reason is blank.
        StoreError: the ledger is damaged or belongs to another split.
        ColdframeError: it cannot be written; then the test part is not read either.
    """
    import fcntl  # absent on Windows, where stores can still be read

    ledger = ledger_of(manifest)
    with disk_errors("write", ledger), ledger.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        before = _entries(file.read(), manifest, ledger)
        _require_reason(before, manifest, again)
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "split": manifest.digest,
            "what": dict(what),
            "again": again if before else None,
            "coldframe": coldframe.__version__,
        }
        file.write(canonical_json(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())
    reasons = [entry["again"] for entry in [*before, entry][1:]]
    return TestReads(count=len(before) + 1, reasons=tuple(reasons), ledger=path_to_text(ledger))


def _require_reason(before: list[dict[str, Any]], manifest: SplitManifest, again: str | None) -> None:
    if again is not None and not again.strip():
        raise UsageError("the reason for reading the test part again is blank; say why in a few words.")
    if before and again is None:
        raise UsageError(
            f"the test part of {path_to_text(manifest.path or '')} was read before ({len(before)} times, first "
            f"{before[0]['time']}). Choose on validation; to read it again, give --again REASON, which the report "
            "will show."
        )


def _entries(text: str, manifest: SplitManifest, ledger: Path) -> list[dict[str, Any]]:
    name = path_to_text(ledger)
    try:
        entries = [json.loads(line) for line in text.splitlines()]
        splits = {entry["split"] for entry in entries}
        complete = all({"time", "again"} <= entry.keys() for entry in entries)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"the ledger {name} is damaged, so it is unknown how often test was read. Restore it."
        ) from error
    if not complete or splits - {manifest.digest}:
        raise StoreError(f"the ledger {name} belongs to another split. Move it away, or use the split that it counts.")
    return entries
