"""SVG files: the plots of a page one by one, for papers and slides, in the light palette.

A page's plots take their colours from the page by CSS variables, which programs other than browsers do not read. Here
they are written out.
"""

import re

from coldframe.probes.page_style import STYLE

_SVG = re.compile(r'<svg role="img" aria-label="([^"]*)" viewBox="0 0 (\d+) (\d+)"[^>]*>(.*?)</svg>', re.DOTALL)
_CELL = re.compile(r'class="cell (hit|miss)"([^>]*) style="--share:([\d.]+)"')
_LIGHT = dict(re.findall(r"--([a-z]+):([^;]+);", STYLE.partition("@media")[0]))
_FAINTEST = {"hit": 0.05, "miss": 0.04}  # opacity of an empty cell, as in `page_style`


def svg_files(html: str) -> dict[str, str]:
    """Every plot of a page as the text of a file of its own, by a name made of its title: `confusion-matrix`."""
    files: dict[str, str] = {}
    for title, width, height, drawing in _SVG.findall(html):
        name = stem = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "plot"
        count = 1
        while name in files:
            count += 1
            name = f"{stem}-{count}"
        files[name] = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
            f"<title>{title}</title><style>{_style()}</style>"
            f'<rect width="{width}" height="{height}" fill="{_LIGHT["card"]}"/>{_CELL.sub(_filled, drawing)}</svg>\n'
        )
    return files


def _style() -> str:
    rules = re.findall(r"svg ([^{}]+\{[^}]*\})", STYLE)
    return " ".join(
        re.sub(r"var\(--([a-z]+)\)", lambda found: _LIGHT[found[1]], one) for one in rules if "cell" not in one
    )


def _filled(cell: re.Match[str]) -> str:
    kind, place, share = cell[1], cell[2], float(cell[3])
    colour = _LIGHT["cell" if kind == "hit" else "miss"]
    opacity = _FAINTEST[kind] + (1 - _FAINTEST[kind]) * share
    return f'{place} fill="rgb({colour})" fill-opacity="{opacity:.3f}"'
