"""Text that fits the terminal: widths, sentences, tables."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

import click

from streamtron.core.text import Lines, class_table, label_text


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


def wrapped(sentence: str) -> str:
    """Break a sentence into lines of the terminal's width."""
    return textwrap.fill(sentence, shutil.get_terminal_size().columns)


def fitted(line: str, width: int | None) -> str:
    """Break a line that is wider than the terminal between words; the rest is indented."""
    if width is None or len(line) <= width:
        return line
    return textwrap.fill(
        line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def complain(sentence: str) -> None:
    """Print a sentence to stderr; on a terminal in place of a ^C that it shows."""
    width = columns_of(sys.stderr)
    click.echo(f"{'' if width is None else _CLEAR}{fitted(sentence, width)}", err=True)


_CLEAR = "\r\x1b[K"
"""Moves to the start of a line and erases it."""


def fitting(table: Iterable[str], columns: Mapping[str, Sequence[str]]) -> Lines:
    """Yield the lines of a table; on a terminal that is too narrow, each row as lines of heading
    and value. ``columns`` : heading → cells."""
    lines, width = list(table), columns_of()
    if width is None or max(map(len, lines)) <= width:
        yield from lines
        return
    for number, row in enumerate(zip(*columns.values(), strict=True)):
        if number:
            yield ""
        for head, cell in zip(columns, row, strict=True):
            if cell.strip():
                yield f"{head:<18} {cell:>13}"


def class_lines(
    labels: Sequence[object],
    columns: Mapping[str, Sequence[str]],
    last: tuple[str, Sequence[str]] = ("", ()),
) -> Lines:
    """Yield a ``class_table`` that fits the terminal."""
    named = {"class": [label_text(label) for label in labels], **columns}
    if last[0]:
        named[last[0]] = last[1]
    yield from fitting(class_table(labels, columns, last), named)
