"""What commands print: sentences, facts, tables and JSON, no wider than the terminal."""

from __future__ import annotations

import io
import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TextIO

import click

from streamtron.core.text import Lines, aligned, format_size, label_text, visible


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
    click.echo("\n".join(fitted(visible(line), width) for line in lines))


def complain(sentence: str) -> None:
    """Print a sentence to stderr; on a terminal in place of a ^C that it shows."""
    width = columns_of(sys.stderr)
    if width is not None:
        SafeStream(2, sys.stderr, controls=True).write(CLEAR)
    click.echo(fitted(visible(sentence), width), err=True)


class SafeStream(io.TextIOWrapper):
    """Stdout or stderr as text, in which the control characters of a stranger's table are visible,
    unless the text ``controls`` the terminal. Errors do not end the command: the first is kept in
    ``error``, and later text is discarded. Bytes written to ``buffer`` are not changed, and raise
    errors as usual."""

    def __init__(self, number: int, before: Any, *, controls: bool = False) -> None:
        super().__init__(
            open(number, "wb", closefd=False),  # noqa: SIM115, as open as the process
            encoding=getattr(before, "encoding", None) or "utf-8",
            errors="replace",  # a terminal without ρ shows ?
            line_buffering=number == 2 or os.isatty(number),
        )
        self._controls = controls
        self.error: OSError | None = None
        self._name = {1: "stdout", 2: "stderr"}[number]

    def write(self, text: str) -> int:
        """Write text; an error is kept."""
        try:
            super().write(text if self._controls else visible(text))
        except OSError as error:
            self._discard_from_now(error)
        return len(text)

    def flush(self) -> None:
        """Write the buffer; an error is kept."""
        try:
            super().flush()
        except OSError as error:
            self._discard_from_now(error)

    def _discard_from_now(self, error: OSError) -> None:
        self.error = self.error or OSError(error.errno, error.strerror, self._name)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())  # for what is buffered, which Python writes when it ends
        os.close(null)


def standard_output() -> Any:
    """Return a stream that takes bytes: those of a pipe or a file as they are; on a terminal they
    are shown as text is."""
    return _Shown() if sys.stdout.isatty() else sys.stdout.buffer


class _Shown:
    def writelines(self, lines: Iterable[bytes]) -> None:
        sys.stdout.writelines(line.decode() for line in lines)


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


def fact_lines(facts: Mapping[str, Any], *names: str) -> Lines:
    """Yield those of the facts that are known, a line each; bytes with their unit."""
    known = {name: facts[name] for name in names if facts.get(name) is not None}
    shown = {n: format_size(value) if n.endswith("bytes") else value for n, value in known.items()}
    yield from aligned([(n.replace("_", " "), value) for n, value in shown.items()])


def table(columns: Mapping[str, Sequence[str]], left: Collection[str] = ()) -> Lines:
    """Yield the lines of a table: aligned text; on a terminal that is too narrow for it, each row
    as lines of heading and value.

    Parameters
    ----------
    columns : heading → cells.
    left : headings of columns that are aligned left, and may be wrapped on a terminal.

    Examples
    --------
    >>> print(*table({"gap": ["0.1", "0.25"], "class": ["ant", "bee"]}, ["class"]), sep="\\n")
     gap  class
     0.1  ant
    0.25  bee
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawing = Table(box=None, pad_edge=False, padding=(0, 1))
    for head in columns:
        is_left = head in left
        justify: Literal["left", "right"] = "left" if is_left else "right"
        drawing.add_column(Text(head), justify=justify, no_wrap=not is_left)
    rows = [[visible(cell) for cell in row] for row in zip(*columns.values(), strict=True)]
    for row in rows:
        drawing.add_row(*map(Text, row))
    console = Console(width=1 << 20, file=io.StringIO(), color_system=None, _environ={})
    width = columns_of() or console.width
    if console.measure(drawing).minimum <= width:
        console.width = width
        with console.capture() as captured:
            console.print(drawing)
        yield from (line.rstrip() for line in captured.get().splitlines())
        return
    for number, row in enumerate(rows):
        yield from [""] * (number > 0)
        yield from (f"{h:<18} {c:>13}" for h, c in zip(columns, row, strict=True) if c.strip())


def class_table(
    labels: Sequence[object], columns: Mapping[str, Sequence[str]], left: Collection[str] = ()
) -> Lines:
    """Yield a table with one row a class."""
    names = [label_text(label) for label in labels]
    yield from table({"class": names, **columns}, ("class", *left))
