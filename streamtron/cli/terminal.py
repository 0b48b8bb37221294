"""What commands print: sentences, facts, tables and JSON, no wider than the terminal."""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

import click

from streamtron.core.text import Lines, label_text


def is_verbose() -> bool:
    """Return whether the command was given ``-v``."""
    return bool(click.get_current_context().meta.get("verbose"))


def columns_of(stream: TextIO | None = None) -> int | None:
    """Return the columns of the terminal that a stream is, by default stdout; None if it is none.

    They are told from the stream itself: stdout may be a pipe where stderr is a terminal."""
    stream = stream or sys.stdout
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def fitted(line: str, width: int | None) -> str:
    """Break a line that is wider than the terminal between words; the rest is indented."""
    if width is None or len(line) <= width:
        return line
    return textwrap.fill(
        line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def say(lines: Iterable[str]) -> None:
    """Print lines to stdout; on a terminal no line is wider than it."""
    width = columns_of()
    click.echo("\n".join(fitted(line, width) for line in lines))


def complain(sentence: str) -> None:
    """Print a sentence to stderr; on a terminal in place of a ^C that it shows."""
    width = columns_of(sys.stderr)
    click.echo(f"{'' if width is None else CLEAR}{fitted(sentence, width)}", err=True)


CLEAR = "\r\x1b[K"
"""Moves to the start of a line and erases it."""


def print_values(
    values: dict[str, Any], lines: Callable[[dict[str, Any]], Iterable[str]], as_json: bool
) -> None:
    """Print values as JSON, or the lines that a function makes of them."""
    if as_json:
        click.echo(json.dumps(_finite(values), indent=2, allow_nan=False))
    else:
        say(lines(values))


def _finite(value: Any) -> Any:
    """Replace infinities, which JSON does not have, by None."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(columns: Mapping[str, Sequence[str]], widths: Sequence[int]) -> Lines:
    """Yield the lines of a table; on a terminal that is too narrow, each row as lines of heading
    and value.

    Parameters
    ----------
    columns : heading → cells. A heading that is wider than its column is left out.
    widths : of all columns but the last, which is as wide as its cells; negative = left-aligned.
    """
    room = zip(columns, map(abs, (*widths, 99)), strict=True)
    heads = [head if len(head) <= width else "" for head, width in room]
    rows = list(zip(*columns.values(), strict=True))
    lines = [_row(cells, widths) for cells in (heads, *rows)]
    width = columns_of()
    if width is None or max(map(len, lines)) <= width:
        yield from lines
        return
    for number, row in enumerate(rows):
        if number:
            yield ""
        for head, cell in zip(columns, row, strict=True):
            if cell.strip():
                yield f"{head:<18} {cell:>13}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    *aligned, last = cells
    padded = (
        f"{cell:{'<' if width < 0 else '>'}{abs(width)}}"
        for cell, width in zip(aligned, widths, strict=True)
    )
    return f"{' '.join(padded)}  {last}".rstrip()


def class_table(
    labels: Sequence[object], columns: Mapping[str, Sequence[str]],
    last: tuple[str, Sequence[str]] = ("", ()),
) -> Lines:  # fmt: skip
    """Yield a table with one row a class; ``last`` is a left-aligned column.

    >>> print(*class_table(["ant", 2.0], {"gap": ["0.1", "0.25"]}), sep="\\n")
    class            gap
    ant              0.1
    2               0.25
    """
    names = [label_text(label) for label in labels]
    texts = last[1] or [""] * len(names)
    widths = (-max(8, *map(len, names)), *(11 for _ in columns))
    yield from table({"class": names, **columns, last[0]: texts}, widths)
