"""Compare `convert --text` with scikit-learn's HashingVectorizer in all processors.

    python benchmarks/text.py [--files N] [--repeats N]

Documents are pieces of the standard library's source as JSON lines. Both read them, in turns;
convert also writes its rows as Parquet. The peak of memory is that of this process, which only
converts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sysconfig
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import streamtron

PIECE = 1500
"""Characters of a document."""


def write_documents(directory: Path, files: int) -> int:
    """Write files of the same documents; return how many rows they have."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in sources] * 4
    pieces = [text[at : at + PIECE] for text in texts for at in range(0, len(text), PIECE)]
    lines = [json.dumps({"text": piece, "y": k % 2}) + "\n" for k, piece in enumerate(pieces)]
    directory.mkdir()
    for number in range(files):
        (directory / f"{number:03}.jsonl").write_text("".join(lines), encoding="utf-8")
    return files * len(lines)


def vectorize(path: Path) -> int:
    """Make rows of a file's documents by scikit-learn; return their nonzeros."""
    from sklearn.feature_extraction.text import HashingVectorizer

    with path.open(encoding="utf-8") as file:
        return int(HashingVectorizer().transform(json.loads(line)["text"] for line in file).nnz)


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    processors = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as place, ProcessPoolExecutor(processors) as pool:
        documents = Path(place, "documents")
        rows = write_documents(documents, given.files)
        paths = sorted(documents.iterdir())
        convert = partial(
            streamtron.convert,
            documents,
            Path(place, "rows"),
            text="text,hash_bits=20",
            label="y",
            overwrite=True,
        )
        both = [
            (seconds(convert), seconds(lambda: list(pool.map(vectorize, paths))))
            for _ in range(given.repeats + 1)
        ][1:]  # the first one compiles, and loads what is needed
        size = sum(path.stat().st_size for path in paths) / 1e6
    ours, theirs = (median(times) for times in zip(*both, strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{rows:,} documents, {size:.0f} MB, {processors} processors")
    print(f"convert            {ours:8.2f} s   peak {peak:.0f} MiB")
    print(f"HashingVectorizer  {theirs:8.2f} s   {theirs / ours:.1f} times as long")


if __name__ == "__main__":
    main()
