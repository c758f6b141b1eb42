"""Plots as inline SVG, drawn with the page's own colours so that they read in light and in dark.

Colours are CSS variables (`--ink`, `--faint`, `--line`, `--accent`, `--good`, `--bad`), text is the page's font, and
every mark has a `<title>` that browsers show and screen readers read.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coldframe.cli_errors import one_line

_WIDTH = 720
_LABELS = 190  # pixels for names on the left
_ROW = 30
_MOST_NAMES = 40  # classes of a confusion matrix with names on its axes
_LEAST_WIDTH = 420  # of a confusion matrix, for the sentence above it
_MOST_COUNTS = 16  # classes of a confusion matrix with numbers in its cells


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One line of an interval plot.

    Attributes:
        name: what it is.
        value: the dot.
        interval: ends of the whisker; None for no whisker.
        reference: where nothing would be (chance, zero); None for no tick.
        note: shown at the right.
    """

    name: str
    value: float
    interval: tuple[float, float] | None
    reference: float | None
    note: str = ""


def text(value: str) -> str:
    """`value` as HTML text on one line."""
    return html.escape(one_line(value))


def intervals(bars: Sequence[Bar], *, low: float, high: float, title: str) -> str:
    """Dots with whiskers on one axis from `low` to `high`."""
    height = _ROW * len(bars) + 34
    right = _WIDTH - 150

    def x(value: float) -> float:
        return _LABELS + (min(max(value, low), high) - low) / (high - low) * (right - _LABELS)

    parts = [_grid(x, low, high, _ROW * len(bars))]
    for place, bar in enumerate(bars):
        y = _ROW * place + _ROW / 2
        spoken = bar.note if bar.interval is None else f"{bar.interval[0]:.3f} to {bar.interval[1]:.3f}"
        parts.append(f"<g><title>{text(bar.name)}: {bar.value:.3f} ({text(spoken)})</title>")
        parts.append(f'<text x="{_LABELS - 12}" y="{y + 4}" text-anchor="end">{text(_short(bar.name, 24))}</text>')
        if bar.reference is not None:
            at = x(bar.reference)
            parts.append(f'<line class="reference" x1="{at:.1f}" x2="{at:.1f}" y1="{y - 10}" y2="{y + 10}"/>')
        if bar.interval is not None:
            ends = [x(end) for end in bar.interval]
            parts.append(f'<line class="whisker" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="dot" cx="{x(bar.value):.1f}" cy="{y}" r="5"/>')
        parts.append(f'<text class="note" x="{right + 14}" y="{y + 4}">{text(bar.note)}</text></g>')
    return canvas(_WIDTH, height, parts, title)


def confusion(counts: NDArray[np.int64], names: Sequence[str]) -> str:
    """Heat map; a cell is as dark as the share of its true class, and holds the count where there is room."""
    classes = len(names)
    cell = min(44.0, 560 / classes)
    labelled = classes <= _MOST_NAMES
    left, top = (150.0, 96.0) if labelled else (40.0, 40.0)
    support = np.maximum(counts.sum(axis=1), 1)
    parts = []
    for row in range(classes):
        for column in range(classes):
            share = counts[row, column] / support[row]
            x, y = left + column * cell, top + row * cell
            kind = "hit" if row == column else "miss"
            parts.append(
                f"<g><title>{text(names[row])} answered as {text(names[column])}: {counts[row, column]} rows, "
                f'{share:.1%}</title><rect class="cell {kind}" x="{x:.1f}" y="{y:.1f}" width="{cell - 1:.1f}" '
                f'height="{cell - 1:.1f}" style="--share:{share:.3f}"/>'
            )
            if classes <= _MOST_COUNTS:
                strong = ' class="strong"' if share > 0.55 else ""
                parts.append(
                    f'<text{strong} x="{x + cell / 2:.1f}" y="{y + cell / 2 + 4:.1f}" text-anchor="middle">'
                    f"{counts[row, column]}</text>"
                )
            parts.append("</g>")
    if labelled:
        parts += _names(names, left, top, cell)
    parts.append(f'<text class="note" x="{left}" y="14">answered class by column, true class by row</text>')
    return canvas(max(left + classes * cell + 60, _LEAST_WIDTH), top + classes * cell + 8, parts, "Confusion matrix")


def curve(points: Sequence[tuple[float, float, float | None]], *, chance: float, title: str) -> str:
    """Mean and spread over a logarithmic axis of shares; points are (share, mean, sd)."""
    width, height, left, bottom = 560.0, 240.0, 60.0, 200.0
    smallest = min(min(share for share, _, _ in points), 0.5)

    def x(share: float) -> float:
        return left + (1 - math.log(share) / math.log(smallest)) * (width - left - 30)

    def y(value: float) -> float:
        return bottom - min(max(value, 0.0), 1.0) * (bottom - 16)

    parts = [
        f'<line class="axis" x1="{left}" x2="{width - 20}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
        f'<text class="note" x="{left - 10}" y="{y(v) + 4:.1f}" text-anchor="end">{v:g}</text>'
        for v in (0, 0.25, 0.5, 0.75, 1)
    ]
    at = y(chance)
    parts.append(f'<line class="reference" x1="{left}" x2="{width - 20}" y1="{at:.1f}" y2="{at:.1f}"/>')
    path = " ".join(f"{x(share):.1f},{y(mean):.1f}" for share, mean, _ in points)
    parts.append(f'<polyline class="curve" points="{path}"/>')
    for share, mean, sd in points:
        spread = "" if sd is None else f" +- {sd:.3f}"
        parts.append(f"<g><title>{share:.0%} of train: {mean:.3f}{spread}</title>")
        if sd is not None:
            parts.append(
                f'<line class="whisker" x1="{x(share):.1f}" x2="{x(share):.1f}" y1="{y(mean - sd):.1f}" '
                f'y2="{y(mean + sd):.1f}"/>'
            )
        parts.append(f'<circle class="dot" cx="{x(share):.1f}" cy="{y(mean):.1f}" r="5"/></g>')
        parts.append(f'<text class="note" x="{x(share):.1f}" y="{bottom + 20}" text-anchor="middle">{share:.3g}</text>')
    parts.append(
        f'<text class="note" x="{width - 20}" y="{bottom + 38}" text-anchor="end">share of train sources</text>'
    )
    return canvas(width, height + 6, parts, title)


def _grid(x: object, low: float, high: float, bottom: float) -> str:
    parts = []
    for step in range(6):
        value = low + (high - low) * step / 5
        at = x(value)  # type: ignore[operator]
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{bottom}"/>')
        parts.append(f'<text class="note" x="{at:.1f}" y="{bottom + 20}" text-anchor="middle">{value:.3g}</text>')
    return "".join(parts)


def _names(names: Sequence[str], left: float, top: float, cell: float) -> list[str]:
    parts = []
    size = min(12.0, cell * 0.9)
    for place, name in enumerate(names):
        middle = place * cell + cell / 2
        short = text(_short(name, 20))
        parts.append(
            f'<text style="font-size:{size:.1f}px" x="{left - 8}" y="{top + middle + 4:.1f}" text-anchor="end">{short}'
            f'</text><text style="font-size:{size:.1f}px" transform="translate({left + middle + 4:.1f} {top - 8}) '
            f'rotate(-45)">{short}</text>'
        )
    return parts


def _short(name: str, most: int) -> str:
    line = one_line(name)
    return line if len(line) <= most else line[: most - 1] + "…"


def canvas(width: float, height: float, parts: Sequence[str], title: str) -> str:
    """An SVG element of `parts`, which `title` names to those who do not see it."""
    return (
        f'<svg role="img" aria-label="{text(title)}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="max-width:{width:.0f}px">{"".join(parts)}</svg>'
    )


def axis_text(x: float, y: float, anchor: str, said: str) -> str:
    """A faint word or number beside an axis; `anchor` is start, middle or end."""
    return f'<text class="note" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text(said)}</text>'
