"""Revision: which commit of a model repository a folder was downloaded from, where the folder says so."""

import re
from pathlib import Path

from coldframe.export.bundle_files import BUNDLE_FILE, open_bundle

_COMMIT = re.compile(r"[0-9a-f]{40}")


def read_revision(source: Path) -> str:
    """Commit of a Hugging Face download, or empty where nothing tells it.

    Read from the path of a cache (`snapshots/<commit>`), or from the notes that a download to a folder leaves
    (`.cache/huggingface/download/*.metadata`, whose first line is the commit). Notes that disagree tell nothing. A
    bundle passes on what it knows.
    """
    if (source / BUNDLE_FILE).is_file():
        return open_bundle(source).revision
    for folder in (source.resolve(), *source.resolve().parents):
        if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name):
            return folder.name
    notes = (source / ".cache" / "huggingface" / "download").glob("*.metadata")
    commits = {note.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip() for note in notes}
    (commit,) = commits if len(commits) == 1 else ("",)
    return commit if _COMMIT.fullmatch(commit) else ""
