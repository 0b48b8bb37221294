"""Elements of a page: paragraphs, tables, tiles. Whatever is text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from streamtron.core.text import number, up

_NUMBER = '<td class="n"'


class Cell(str):
    """A cell of a table, as HTML; any other text in a table is escaped."""


def shown(value: float | None) -> str:
    """Format a number in three digits, a whole one in all; what is not 1 does not read as 1."""
    if not isinstance(value, int | float | None):
        raise TypeError(f"{value!r} is not a number")
    if not isinstance(value, float) or (value.is_integer() and abs(value) < 1e15):
        return number(value if value is None else int(value))
    texts = (f"{value:.{digits}g}" for digits in range(3, 18))
    return next(text for text in texts if float(text) != 1.0 or value == 1.0)


def numeric(value: float | None, text: str | None = None) -> Cell:
    """Return a cell that holds a number, and sorts by it; ``text`` : how it is shown."""
    key = "" if value is None else f' data-key="{value!r}"'
    content = shown(value)  # refuses what is no number
    return Cell(f"{_NUMBER}{key}>{escape(content if text is None else text)}</td>")


def gap_cell(value: float) -> Cell:
    """Return a cell that holds a gap, rounded up."""
    return numeric(value, up(value, 3))


def wide(text: str) -> Cell:
    """Return a cell that may hold much text."""
    return Cell(f'<td class="wide">{escape(text)}</td>')


def bar(share: float) -> Cell:
    """Return a cell with a bar, ``share`` from −1 to 1 of its width."""
    side = ' class="minus"' if share < 0 else ""
    drawn = f'<rect{side} width="{100 * abs(share):.1f}%" height="12" rx="2"/>'
    return Cell(f'<td class="bar"><svg aria-hidden="true">{drawn}</svg></td>')


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph; ``kind`` : its class in the style sheet."""
    opening = f'<p class="{kind}">' if kind else "<p>"
    return f"{opening}{escape(text)}</p>"


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]], *, sorts: bool = False) -> str:
    """Return a table in a card. Nothing without rows."""
    if not rows:
        return ""
    cells = [[c if isinstance(c, Cell) else f"<td>{escape(str(c))}</td>" for c in r] for r in rows]
    kinds = [' class="n"' if cell.startswith(_NUMBER) else "" for cell in cells[0]]
    titles = (f"<th{k}>{escape(name)}</th>" for k, name in zip(kinds, heads, strict=True))
    head = f"<thead><tr>{''.join(titles)}</tr></thead>"
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    card, kind = " narrow" if len(heads) == 2 else "", ' class="sorts"' if sorts else ""
    return f'<div class="card{card}"><table{kind}>{head}<tbody>{body}</tbody></table></div>'


def tiles(values: Mapping[str, str]) -> str:
    """Return values in large print above their names."""
    content = (f"<div><b>{escape(v)}</b><span>{escape(k)}</span></div>" for k, v in values.items())
    return f'<div class="tiles">{"".join(content)}</div>'


def grid(charts: Iterable[str]) -> str:
    """Return charts side by side. Nothing without one."""
    drawings = "".join(charts)
    return f'<div class="grid">{drawings}</div>' if drawings else ""
