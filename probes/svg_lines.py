"""Line plots as inline SVG: how a fit went. Colours and type are those of `svg.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

from coldframe.probes.svg import axis_text, canvas, text

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 560.0, 240.0, 60.0, 16.0, 200.0
_STEPS = 4


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve.

    Attributes:
        name: shown when pointed at.
        points: (x, y), finite, in order of x.
        chosen: drawn strongly, above the others.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Curves that share their axes.

    Attributes:
        title: above it.
        x_name: under the horizontal axis.
        lines: at least one of them with a point.
    """

    title: str
    x_name: str
    lines: tuple[Line, ...]


def line_plot(plot: Plot) -> str:
    """The curves; both axes span what there is, and their ticks say it."""
    xs = [x for line in plot.lines for x, _ in line.points]
    ys = [y for line in plot.lines for _, y in line.points]
    x_span, y_span = _span(xs), _span(ys)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_span[0]) / (x_span[1] - x_span[0])
        up = (y - y_span[0]) / (y_span[1] - y_span[0])
        return _LEFT + across * (_WIDTH - _LEFT - 30), _BOTTOM - up * (_BOTTOM - _TOP)

    parts = []
    for step in range(_STEPS + 1):
        value = y_span[0] + (y_span[1] - y_span[0]) * step / _STEPS
        _, y = place(x_span[0], value)
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(axis_text(_LEFT - 10, y + 4, "end", f"{value:.3g}"))
    for end in dict.fromkeys((min(xs), max(xs))):
        parts.append(axis_text(place(end, y_span[0])[0], _BOTTOM + 20, "middle", f"{end:.3g}"))
    parts.append(axis_text(_WIDTH - 20, _BOTTOM + 38, "end", plot.x_name))
    for line in sorted(plot.lines, key=lambda line: line.chosen):
        parts.append(_drawn(line, [place(x, y) for x, y in line.points]))
    return f"<h3>{text(plot.title)}</h3>" + canvas(_WIDTH, _HEIGHT + 6, parts, plot.title)


def _drawn(line: Line, places: Sequence[tuple[float, float]]) -> str:
    kind = "curve" if line.chosen else "curve other"
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    ends = "".join(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places[-1:] if line.chosen)
    return f'<g><title>{text(line.name)}</title><polyline class="{kind}" points="{path}"/>{ends}</g>'


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
