"""Licence of weights, as far as the folder they come in says it."""

import re
from dataclasses import dataclass
from pathlib import Path

from coldframe.export.bundle_files import BUNDLE_FILE, open_bundle

UNKNOWN = "unknown"
RANDOM_WEIGHTS = "none needed (random weights)"

_LICENCE_FILES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE")
_NON_COMMERCIAL = re.compile(r"non-?\s?commercial|\bby-nc\b|\bnc\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Licence:
    """What the source says about the use of its weights.

    Attributes:
        name: short name, such as `cc-by-nc-4.0`; `unknown` where nothing was found.
        text: whole licence text where the source carries one, else empty.
    """

    name: str
    text: str = ""

    @property
    def non_commercial(self) -> bool:
        """True where name or text speak of non-commercial use. False says only that neither does."""
        return bool(_NON_COMMERCIAL.search(self.name) or _NON_COMMERCIAL.search(self.text))


def read_licence(folder: Path) -> Licence:
    """Read the licence of a bundle, else from the front matter of README.md and a LICENSE file."""
    if (folder / BUNDLE_FILE).is_file():
        bundle = open_bundle(folder)
        return Licence(name=bundle.licence, text=bundle.licence_text)
    text = ""
    for name in _LICENCE_FILES:
        if (folder / name).is_file():
            text = (folder / name).read_text(encoding="utf-8", errors="replace")
            break
    first_line = next((line.strip() for line in text.splitlines() if line.strip()), UNKNOWN)
    return Licence(name=_front_matter(folder / "README.md") or first_line[:120], text=text)


def _front_matter(readme: Path) -> str:
    """The `license:` of a model card, or empty."""
    if not readme.is_file():
        return ""
    lines = readme.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or lines[0].strip() != "---":
        return ""
    for line in lines[1:]:
        if line.strip() == "---":
            break
        key, _, value = line.partition(":")
        if key.strip() == "license":
            return value.strip().strip("'\"")
    return ""
