"""The command ``predict``."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_files, executor_of
from streamtron.cli.terminal import complain, standard_output
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.files import scratch_directory
from streamtron.core.text import unknown_text, with_types

if TYPE_CHECKING:
    from streamtron.model.linear_model import LinearModel

FORMATS = ("libsvm", "vw", "csv", "tsv", "jsonl", "lines")
"""What standard input may be."""


@options.command()
@click.argument("model", type=options.Read())
@click.argument("shards", nargs=-1, required=True, type=options.Read(allow_dash=True))
@options.written(
    "-o",
    "--output",
    help="File for one line a row, label and decisions separated by tabs; Parquet if it ends with "
    ".parquet, with a line of names if with .tsv or .csv; - is stdout.",
    required=True,
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    help="What standard input is [libsvm, or jsonl where the model is of tables or text]; lines "
    "are documents.",
)
@options.flag(
    "--proba",
    help="Add probabilities: of two classes that of the larger one, else of each class. For a "
    "model of --loss log_loss or softmax, or one that calibrate has given them.",
)
@options.flag(
    "--certain",
    help="Add 1 where the best possible model of the same rows and settings is proven to label "
    "the row so, else 0. For a model with a certificate.",
)
@options.number("--top", help="Of many classes write the N highest, and their decisions.")
@options.distributed_options
def predict(
    model: str, shards: tuple[str, ...], output: str, format_: str | None, **given: Any
) -> None:
    """Write the label and decision of every row of SHARDS, in their order; - is standard input,
    which is read to its end first.

    Labels in SHARDS are optional and ignored. MODEL is a streamtron or LIBLINEAR model.

    Of many classes: the label (with --multilabel all labels, separated by commas), then one
    decision a class in the order of the classes, called "decision NAME" in .csv, .tsv and .parquet.
    """
    from streamtron.model.import_model import load_any
    from streamtron.runs.evaluate import columns_not_used
    from streamtron.runs.predict import write_predictions

    if output != "-":
        check_files({"output": output}, [*shards, given["scheduler"]], runs=[model])
    loaded = load_any(model)
    how: Any = {name: given[name] for name in ("proba", "certain", "top")}
    with _files(loaded, shards, format_) as paths, executor_of(**given) as executor:
        unused = columns_not_used(loaded, paths).get("columns_not_used", {})
        to = standard_output() if output == "-" else output
        written = write_predictions(loaded, paths, to, executor=executor, **how)
    if output == "-":
        sys.stdout.buffer.flush()  # raises, where the text stream would not
    beyond = ""
    if written.out_of_range:
        beyond = f"; {unknown_text(written.out_of_range)}"
    sure = "" if written.certain is None else f", {written.certain:,} certain"
    aside = f"; not used: {with_types(unused)}" if unused else ""
    complain(f"{written.rows:,} rows{sure}{beyond}{aside}")


@contextmanager
def _files(model: LinearModel, shards: Sequence[str], format_: str | None) -> Iterator[list[str]]:
    """Give the paths of shards, where ``-`` is a copy of standard input."""
    if "-" not in shards:
        if format_ is not None:
            raise SettingsError("--format is of standard input; files tell it by their names.")
        yield [*shards]
        return
    if len(shards) > 1:
        raise SettingsError("- is standard input, and there are shards beside it. Give one.")
    inputs = () if model.transformer is None else model.transformer.inputs
    if format_ == "lines" and [kind for _, kind in inputs] not in (["text"], ["documents"]):
        raise SettingsError("--format lines is for documents, and the model is not of text alone.")
    format_ = format_ or ("jsonl" if model.reading.get("layout") else "libsvm")
    with scratch_directory("streamtron-") as directory:
        path = Path(directory, f"stdin.{'jsonl' if format_ == 'lines' else format_}")
        with path.open("wb") as copy:
            if format_ == "lines":
                copy.writelines(_documents(inputs[0][0]))
            else:
                shutil.copyfileobj(sys.stdin.buffer, copy)
        if not path.stat().st_size:
            raise DataError("standard input: no rows. Write some to it, or name shards.")
        yield [str(path)]


def _documents(column: str) -> Iterator[bytes]:
    """Yield the lines of standard input as JSON lines."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            document = line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataError(f"standard input, line {number}: not UTF-8.") from None
        yield f"{json.dumps({column: document})}\n".encode()
