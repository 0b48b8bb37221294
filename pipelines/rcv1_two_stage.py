"""RCV1-v2, topic by topic: ε = 1 for every Δ, then ε = 0.1 for those still worth it, on a cluster.

    python pipelines/rcv1_two_stage.py DIRECTORY [--topics C11,CCAT | all] [--workers N]
    python pipelines/rcv1_two_stage.py DIRECTORY --tiny | --generated

DIRECTORY holds the LYRL2004 files, or they are fetched into it: the vectors of test part 0, on
which the models are trained as in the Margitron paper, those of the training part, on which the Δ
of each topic is chosen, and the topics of every document. Rows become Parquet with a column of
labels a topic, so all topics share one copy; a batch of one sweep a topic is written beside it and
run. What is known of the files is checked; what they were is recorded, and a later change refused.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import streamtron

SITE = "http://www.jmlr.org/papers/volume5/lewis04a"
TRAIN = "lyrl2004_vectors_test_pt0.dat"
HELD_OUT = "lyrl2004_vectors_train.dat"
TOPICS = "rcv1-v2.topics.qrels"
FOLDERS = {TRAIN: "a13-vector-files", HELD_OUT: "a13-vector-files", TOPICS: "a08-topic-qrels"}
SHARD_ROWS = 1 << 15


@dataclass(frozen=True)
class Known:
    """What is known of a set of files: rows to train on, columns, counted from 1."""

    rows: int
    columns: int


LYRL2004 = Known(199_328, 47_236)
HELD_OUT_ROWS = 23_149
TINY = Known(600, 60)


class Refused(Exception):
    """The files are not what they should be; the sentence says what to do."""


# --- the files -----------------------------------------------------------------------------------


def found(directory: Path, name: str) -> Path:
    """A file, gzipped or not; fetched if it is not there.

    Raises
    ------
    Refused : it is not there, and there is no network.
    """
    for path in (directory / name, directory / f"{name}.gz"):
        if path.exists():
            return path
    url = f"{SITE}/{FOLDERS[name]}/{name}.gz"
    path, partial = directory / f"{name}.gz", directory / f".{name}.gz.partial"
    try:
        print(f"fetching {url}")
        urllib.request.urlretrieve(url, partial)
    except OSError as error:
        raise Refused(
            f"{directory}: there is neither {name} nor {name}.gz, and {url} cannot be fetched "
            f"({error}). Put the file there."
        ) from error
    return partial.rename(path)


def check_hashes(files: Sequence[Path], record: Path) -> None:
    """Refuse files that changed since they were first seen; record those that are new.

    Raises
    ------
    Refused : a file has other bytes than the record says.
    """
    seen: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    for path in files:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if seen.setdefault(path.name, digest) != digest:
            raise Refused(
                f"{path}: its SHA-256 is {digest}, and was {seen[path.name]} when it was first "
                f"seen. Put the old file back, or remove {record} and what was made of it."
            )
    record.write_text(json.dumps(seen, indent=1, sort_keys=True) + "\n")


def opened(path: Path) -> IO[str]:
    """The text of a file, gzipped or not."""
    return gzip.open(path, "rt") if path.suffix == ".gz" else open(path)


def topics_of(path: Path) -> dict[int, list[str]]:
    """The topics of every document, from lines ``C11 2286 1``."""
    topics: dict[int, list[str]] = defaultdict(list)
    with opened(path) as lines:
        for line in lines:
            topic, document, _ = line.split()
            topics[int(document)].append(topic)
    return topics


# --- rows ----------------------------------------------------------------------------------------


def tables(path: Path, topics: Mapping[int, list[str]], names: Sequence[str]) -> Iterator[pa.Table]:
    """The vectors ``2286  864:0.0497 1523:0.0443 …`` as tables, columns counted from 0."""
    with opened(path) as lines:
        held: list[str] = []
        for line in lines:
            held.append(line)
            if len(held) == SHARD_ROWS:
                yield table(held, topics, names)
                held = []
        if held:
            yield table(held, topics, names)


def table(lines: Sequence[str], topics: Mapping[int, list[str]], names: Sequence[str]) -> pa.Table:
    """Some rows: lists of columns and values, and whether each of the topics is theirs."""
    documents, rows = zip(*(line.split(maxsplit=1) for line in lines), strict=True)
    words = [row.split() for row in rows]
    pairs = np.array([word.split(":") for row in words for word in row])
    offsets = pa.array(np.cumsum([0, *map(len, words)]), pa.int32())
    columns = pairs[:, 0].astype(np.int64) - 1
    mine = [set(topics[int(document)]) for document in documents]
    return pa.table(
        {
            "indices": pa.ListArray.from_arrays(offsets, columns.astype(np.uint32)),
            "values": pa.ListArray.from_arrays(offsets, pairs[:, 1].astype(np.float32)),
            **{name: [name in some for some in mine] for name in names},
        }
    )


def write_rows(
    source: Path, directory: Path, topics: Mapping[int, list[str]], names: Sequence[str]
) -> Known:
    """Parquet shards of a vector file; how many rows and columns it has."""
    directory.mkdir()
    rows = columns = 0
    for number, part in enumerate(tables(source, topics, names)):
        path = directory / f"part-{number:05d}.parquet"
        pq.write_table(part, path, compression="zstd", write_page_checksum=True)
        rows += len(part)
        columns = max(columns, 1 + max(part["indices"].combine_chunks().values.to_numpy()))
    return Known(rows, int(columns))


def prepare(files: Mapping[str, Path], work: Path, known: Known) -> list[str]:
    """Make the shards, if an earlier run has not; the topics there are.

    Raises
    ------
    Refused : the rows are not those that are known.
    """
    finished = work / "topics.json"
    if finished.exists():
        names: list[str] = json.loads(finished.read_text())
        return names
    topics = topics_of(files[TOPICS])
    names = sorted({name for some in topics.values() for name in some})
    for target, source in (("train", files[TRAIN]), ("held-out", files[HELD_OUT])):
        for left in (work / target).glob("*") if (work / target).exists() else ():
            left.unlink()
        if (work / target).exists():
            (work / target).rmdir()
        counted = write_rows(source, work / target, topics, names)
        print(f"{source.name}: {counted.rows:,} rows, {counted.columns:,} columns")
        if target == "train" and counted != known:
            raise Refused(
                f"{source}: {counted.rows:,} rows and {counted.columns:,} columns, where "
                f"{known.rows:,} and {known.columns:,} are known. Fetch it again."
            )
    finished.write_text(json.dumps(names) + "\n")
    return names


# --- the batch -----------------------------------------------------------------------------------


def jobs(names: Sequence[str], settings: Mapping[str, Any]) -> str:
    """The batch: for every topic a sweep over Δ in two stages."""
    shared = " ".join(f"--{key} {shlex.quote(str(value))}" for key, value in settings.items())
    lines = []
    for name in names:
        files = f"--table {name}.csv --model {name}.model --report {name}.json"
        command = f"sweep train --valid held-out --two-stage --label {name} {files} {shared}"
        lines += [
            "[[job]]",
            f'name = "{name}"',
            f"command = {json.dumps(command)}",
            "after = []",
            "accept_uncertified = true",
        ]
    return "\n".join(lines)


def show(work: Path, names: Sequence[str]) -> None:
    """Every candidate of the topics that have been fitted, with its certificate and end."""
    print(
        f"\n  {'topic':8} {'delta':>6} {'10³ γ ≥':>9} {'10³ γ ≤':>9} {'gap':>8} {'epochs':>7} "
        f"{'accuracy':>9} {'F1':>7}  stage"
    )
    for name in names:
        if not (work / f"{name}.csv").exists():
            print(f"  {name:8} not fitted, see {work / 'topics.logs'}")
            continue
        with open(work / f"{name}.csv", newline="") as table:
            for row in csv.DictReader(table):
                print(line(name, row))


def line(name: str, row: Mapping[str, str]) -> str:
    """A candidate in a line, with a star if it is the topic's best."""
    star, f1 = "*" if row["best"] == "True" else " ", row["f1"]
    return (
        f"{star} {name:8} {float(row['delta']):6g} {1e3 * float(row['primal_margin']):9.5f} "
        f"{1e3 * float(row['upper_bound']):9.5f} {float(row['relative_duality_gap']):8.2%} "
        f"{row['full_epochs']:>7} {float(row['accuracy']):9.4f} "
        f"{format(float(f1), '7.4f') if f1 else '-':>7}  {row['stage']}: "
        f"{row['dropped'] or row['stop_reason']}"
    )


# --- files of the same form -----------------------------------------------------------------------


def write_generated(directory: Path) -> None:
    """Files of the same size, from a generated corpus: CCAT is its label, GCAT the other one, C11
    are the rows of CCAT in which every fifth column weighs much."""
    document, lines = 2286, []
    first = 0
    for name, rows in ((TRAIN, LYRL2004.rows), (HELD_OUT, HELD_OUT_ROWS)):
        with tempfile.TemporaryDirectory(dir=directory) as corpus:
            streamtron.generate(
                corpus, rows=rows, columns=LYRL2004.columns, seed=1, shards=1, first_row=first
            )
            [shard] = Path(corpus).iterdir()
            with open(shard) as source, open(directory / name, "w") as file:
                for row in source:
                    label, vector = row.rstrip("\n").split(" ", 1)
                    file.write(f"{document}  {vector}\n")
                    pairs = (word.split(":") for word in vector.split())
                    weight = sum(float(value) for column, value in pairs if int(column) % 5 == 0)
                    if float(label) > 0:
                        lines += [f"CCAT {document} 1\n", f"C11 {document} 1\n"][: 1 + (weight > 2)]
                    else:
                        lines.append(f"GCAT {document} 1\n")
                    document += 1
        first += rows
    (directory / TOPICS).write_text("".join(lines))


def write_tiny(directory: Path) -> None:
    """Files of the same form: 600 and 200 random rows of 60 columns, three topics."""
    random = np.random.default_rng(0)
    truth = random.normal(size=(3, TINY.columns))
    document, lines = 2286, []
    for name, rows in ((TRAIN, TINY.rows), (HELD_OUT, 200)):
        with open(directory / name, "w") as file:
            for _ in range(rows):
                columns = np.sort(random.choice(TINY.columns, 12, replace=False))
                values = random.random(12)
                values /= np.linalg.norm(values)
                pairs = zip(columns + 1, values, strict=True)
                file.write(f"{document}  {' '.join(f'{j}:{value:.6f}' for j, value in pairs)}\n")
                scores = truth[:, columns] @ values
                some = [n for n in range(3) if scores[n] > 0] or [int(scores.argmax())]
                lines += [f"{('C11', 'CCAT', 'GCAT')[n]} {document} 1\n" for n in some]
                document += 1
    (directory / TOPICS).write_text("".join(lines))


# --- the command ---------------------------------------------------------------------------------


def run(chosen: argparse.Namespace) -> int:
    """Everything; the batch's exit code."""
    directory = Path(chosen.directory)
    directory.mkdir(parents=True, exist_ok=True)
    if (chosen.tiny or chosen.generated) and not (directory / TOPICS).exists():
        (write_tiny if chosen.tiny else write_generated)(directory)
    files = {name: found(directory, name) for name in FOLDERS}
    check_hashes(list(files.values()), directory / "hashes.json")
    work = directory / "work"
    work.mkdir(exist_ok=True)
    there = prepare(files, work, TINY if chosen.tiny else LYRL2004)
    names = there if chosen.topics == "all" else chosen.topics.split(",")
    if unknown := sorted(set(names) - set(there)):
        raise Refused(f"no topic {', '.join(unknown)}; there are {', '.join(there)}.")
    settings = {
        "stage": chosen.stage,
        "delta": chosen.delta,
        "rho": "0.1",
        "tol": chosen.tol,
        "max-epochs": chosen.max_epochs,
    }
    where = {"workers": chosen.workers, "scheduler": chosen.scheduler}
    settings |= {name: value for name, value in where.items() if value is not None}
    (work / "topics.toml").write_text(jobs(names, settings))
    command = [
        sys.executable,
        "-P",
        "-m",
        "streamtron",
        "batch",
        str(work / "topics.toml"),
    ]
    code = subprocess.run(command, check=False).returncode
    show(work, names)
    return code


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the topics asked for, and say what was proven."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", help="where the files are, and what is made of them goes")
    parser.add_argument("--topics", default="C11,CCAT", help="between commas, or all")
    parser.add_argument("--delta", default="0.1,0.3,1", help="candidates, between commas")
    parser.add_argument("--stage", default="1,0.1", help="as fit's --stage")
    parser.add_argument(
        "--tol", type=float, default=1e-4, help="relative duality gap, 1e-4 at most"
    )
    parser.add_argument("--max-epochs", type=int, default=100, help="full epochs a stage, at most")
    parser.add_argument("--workers", type=int, help="candidates side by side, in so many processes")
    parser.add_argument("--scheduler", help="or on the workers of this Dask scheduler")
    small = parser.add_mutually_exclusive_group()
    small.add_argument("--tiny", action="store_true", help="on small generated files")
    small.add_argument("--generated", action="store_true", help="on generated ones of full size")
    try:
        raise SystemExit(run(parser.parse_args(arguments)))
    except (Refused, streamtron.errors.StreamtronError) as error:
        raise SystemExit(f"rcv1_two_stage: {error}") from None


if __name__ == "__main__":
    main()
