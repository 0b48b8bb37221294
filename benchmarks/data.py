"""Files and generated corpora for the benchmarks."""

from __future__ import annotations

import argparse
import lzma
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TextIO

import criteo
import measure
import numpy as np
from problem import Data
from scipy import sparse
from shapes import SHAPES, shaped, wide_rows

from streamtron.data import ReaderConfig, ShardRows, find_shards, resolve_reading
from streamtron.data.labels import LabelTable
from streamtron.data.writers.corpus import KINDS, corpus_rows, generate


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name what is measured: files, a generated corpus, or both."""
    parser.add_argument("data", nargs="*", help="files or directories: libsvm text (.xz too)")
    parser.add_argument("--generate", type=int, metavar="ROWS", help="a generated corpus as well")
    parser.add_argument(
        "--kind", choices=KINDS, nargs="+", default=["text"], help="of the generated corpora"
    )
    parser.add_argument("--columns", type=int, help="of the generated corpora: 30000, dense 50")
    parser.add_argument(
        "--shapes", choices=SHAPES, nargs="+", default=[], help="shapes.py's as well"
    )
    parser.add_argument(
        "--topic",
        nargs=2,
        metavar=("FILE", "NAME"),
        default=None,
        help="the rows of the last file once more, +1 where the line of FILE names this topic",
    )


def need_data(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse to measure nothing."""
    if not options.data and not options.generate and not options.shapes:
        parser.error("name a file, or give --generate ROWS or --shapes")
    if options.topic is not None and not options.data:
        parser.error("--topic wants a file of rows")


def data_sets(options: argparse.Namespace, stack: ExitStack) -> list[str]:
    """The paths to measure; a generated corpus lives as long as ``stack``."""
    paths = list(options.data)
    if options.topic is not None:
        paths.append(stack.enter_context(of_topic(paths[-1], *options.topic)))
    for kind in options.kind if options.generate else ():
        corpus = generated(options.generate, options.columns, seed=0, kind=kind)
        paths.append(stack.enter_context(corpus))
    paths.extend(stack.enter_context(of_shape(name)) for name in options.shapes)
    return paths


def load(paths: list[str]) -> Data:
    """Read shards as streamtron reads them: the same rounding, the same columns."""
    pieces, signs, files, table = [], [], find_shards(paths), LabelTable(2)
    reading = resolve_reading(files[0], ReaderConfig())
    for file in files:
        with ShardRows(file, reading, table) as shard:
            for chunk in shard.chunks():
                rows = chunk.rows
                indptr = rows.indptr - rows.indptr[0]
                columns = rows.indices.astype(np.int32)
                pieces.append((rows.spread().copy(), columns, np.diff(indptr)))
                signs.append(chunk.codes.copy())
    values, indices, lengths = (np.concatenate(part) for part in zip(*pieces, strict=True))
    width, labels = int(indices.max()) + 1, table.labels
    base = int(files[0].format == "libsvm" and indices.min() > 0)
    indptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))).astype(np.int32)
    matrix = sparse.csr_matrix(
        (values.astype(np.float64), indices - base, indptr),
        shape=(len(lengths), width - base),
    )
    larger = labels.index(max(labels))
    return Data(matrix, np.where(np.concatenate(signs) == larger, 1.0, -1.0))


@contextmanager
def generated(rows: int, columns: int | None, seed: int, kind: str = "text") -> Iterator[str]:
    """A generated corpus as text shards, in a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as directory:
        name = "generated" if kind == "text" else kind
        target = str(Path(directory) / f"{name}-{rows}")
        generate(target, rows=rows, columns=columns, seed=seed, kind=kind)
        yield target


@contextmanager
def of_shape(name: str) -> Iterator[str]:
    """The rows of a shape as text, in a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as directory:
        target = Path(directory) / f"{name}.svm"
        write_libsvm(shaped(name), target)
        yield str(target)


@contextmanager
def of_topic(path: str, topics: str, name: str) -> Iterator[str]:
    """The rows of a libsvm file, +1 where the same line of ``topics`` (anything, a tab, names) has
    this name, else -1; in a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as directory:
        target = Path(directory) / f"{name}.svm"
        with opened(path) as rows, opened(topics) as lines, open(target, "w") as file:
            for row, line in zip(rows, lines, strict=True):
                sign = "+1" if name in line.split("\t")[1].split() else "-1"
                file.write(f"{sign} {row.split(' ', 1)[1]}")
        yield str(target)


def opened(path: str) -> TextIO:
    """A text file, unpacked if it is .xz."""
    return lzma.open(path, "rt") if path.endswith(".xz") else open(path)


@contextmanager
def plain_text(path: str) -> Iterator[str]:
    """One plain text file of the same bytes: unpacked from .xz, or a directory's shards joined."""
    source = Path(path)
    parts = sorted(part for part in source.iterdir()) if source.is_dir() else [source]
    if len(parts) == 1 and source.suffix != ".xz":
        yield str(parts[0])
        return
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as directory:
        target = Path(directory) / source.name.removesuffix(".xz")
        with open(target, "wb") as joined:
            for part in parts:
                with lzma.open(part) if part.suffix == ".xz" else open(part, "rb") as file:
                    shutil.copyfileobj(file, joined)
        yield str(target)


def write_libsvm(data: Data, path: Path) -> None:
    """The rows as text, 1-based; nine digits hold a float32."""
    rows = data.rows
    with open(path, "w") as file:
        for k, label in enumerate(data.labels):
            span = slice(rows.indptr[k], rows.indptr[k + 1])
            pairs = zip(rows.indices[span].tolist(), rows.data[span].tolist(), strict=True)
            file.write(f"{label:+.0f} " + " ".join(f"{j + 1}:{x:.9g}" for j, x in pairs) + "\n")


def write_corpus(kind: str, directory: str, rows: int) -> None:
    """The rows that ``streamtron generate`` writes, as Parquet."""
    criteo.write(directory, corpus_rows(rows, KINDS[kind][2], 0, kind=kind), -(-rows // 8))


def held_out(directory: str, rows: int) -> None:
    """A tenth as many click logs as there are ``rows``, none of which is among those."""
    behind = -(-rows // criteo.GROUP_ROWS)
    criteo.write(directory, criteo.click_logs(max(rows // 10, 1), behind))


def write_clicks(drift: str, directory: str, rows: int) -> None:
    """Click logs of 30 days."""
    criteo.write(directory, criteo.click_logs(rows, drift=drift))


SETS: dict[str, tuple[int, Callable[[str, int], None]]] = {
    "clicks": (2_000_000, lambda to, rows: criteo.write(to, criteo.click_logs(rows))),
    "clicks-one": (2_000_000, lambda to, rows: criteo.write(to, criteo.click_logs(rows), rows)),
    "clicks-by-label": (2_000_000, lambda to, rows: criteo.write(to, criteo.by_label(rows))),
    "clicks-by-day": (2_000_000, partial(write_clicks, "sorted")),
    "clicks-any-day": (2_000_000, partial(write_clicks, "shuffled")),
    "clicks-held-out": (2_000_000, held_out),
    "text": (40_000, partial(write_corpus, "text")),
    "dense": (40_000, partial(write_corpus, "dense")),
    "wide": (100_000, lambda to, rows: criteo.write(to, wide_rows(rows))),
}
"""Rows unless told otherwise, and how they are written. ``clicks-one`` is one file,
``clicks-any-day`` has the odds of ``clicks-by-day`` in any order."""


def make(name: str, rows: int, directory: str) -> None:
    """Write a set, all of it or nothing; in a process of its own, for its memory is not ours."""
    unfinished = f"{directory}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    SETS[name][1](unfinished, rows)
    Path(unfinished).rename(directory)


def count(path: str) -> tuple[int, int]:
    """Rows and nonzeros."""
    files, rows, nonzeros = find_shards([path]), 0, 0
    reading = resolve_reading(files[0], ReaderConfig())
    for file in files:
        with ShardRows(file, reading) as shard:
            for chunk in shard.chunks():
                rows, nonzeros = rows + len(chunk), nonzeros + chunk.nonzeros
    return rows, nonzeros


def made(name: str, rows: int, home: Path) -> str:
    """The path of a set, which is made once."""
    path = home / f"{name}-{rows}"
    if not path.exists():
        home.mkdir(parents=True, exist_ok=True)
        measure.note(f"{path} is made")
        measure.in_fresh_process(make, name, rows, str(path))
    return str(path)
