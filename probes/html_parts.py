"""Parts that pages are made of: sections, tables, lists of facts."""

from collections.abc import Mapping, Sequence
from typing import Any

from coldframe.probes.sealed import TestReads
from coldframe.probes.svg import text

PROSE = "what, and why"  # heading of a column that is prose


def heading(title: str, said: Sequence[str], tiles: Sequence[tuple[str, str, str]]) -> str:
    """The head of a page; a tile is a value, its name and a note."""
    boxes = "".join(
        f'<div class="tile"><b>{text(value)}</b><span>{text(name)}</span><small>{text(note)}</small></div>'
        for value, name, note in tiles
    )
    return (
        f"<header><h1>{text(title)}</h1><p>{' &middot; '.join(map(text, said))}</p></header>"
        f'<div class="tiles">{boxes}</div>'
    )


def reads_tile(reads: TestReads | None) -> tuple[str, str, str]:
    """How often the test part was read."""
    if reads is None:
        return "-", "readings of test", "not counted: no split file"
    return str(reads.count), "readings of test", "with this split"


def warnings_list(found: Sequence[str]) -> str:
    """What to know before quoting; empty if there is nothing."""
    items = "".join(f"<li>{text(sentence)}</li>" for sentence in found)
    return f'<section class="warnings"><h2>Before quoting</h2><ul>{items}</ul></section>' if found else ""


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
