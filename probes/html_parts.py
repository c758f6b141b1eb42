"""Parts that pages are made of: sections, tables, lists of facts."""

from collections.abc import Mapping, Sequence
from typing import Any

from coldframe.probes.svg import text

PROSE = "what, and why"  # heading of a column that is prose


def section(title: str, body: str) -> str:
    """A card with a heading; `body` is HTML already."""
    return f"<section><h2>{text(title)}</h2>{body}</section>"


def facts_list(facts: Mapping[str, str]) -> str:
    """Names and values, all of them text."""
    rows = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in facts.items())
    return f"<dl>{rows}</dl>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], raw: set[int] | None = None) -> str:
    """A table; cells of the columns `raw` are HTML already, all others are text."""
    raw = raw or set()
    top = "".join(f"<th>{text(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell if i in raw else text(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    kind = ' class="wide"' if head[-1] == PROSE else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def number(value: Any) -> str:
    """Three decimals, or a dash for None."""
    return "-" if value is None else f"{value:.3f}"
