"""Compare `convert --text` with scikit-learn's HashingVectorizer in all processors.

    python benchmarks/text.py [--files N] [--repeats N]

Documents are pieces of the standard library's source as JSON lines. Both read them; convert also
writes its rows as Parquet. The peak of memory is that of this process, which only converts.
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


def seconds(function: Callable[[int], object], repeats: int) -> float:
    """Return the median of the times of calls; the first one compiles and is not counted."""
    times = []
    for number in range(repeats + 1):
        start = time.perf_counter()
        function(number)
        times.append(time.perf_counter() - start)
    return median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        documents = Path(place, "documents")
        rows = write_documents(documents, given.files)
        recipe, settings = streamtron.TextRecipe("text"), streamtron.Settings(label="y")
        ours = seconds(
            lambda n: streamtron.convert(
                documents, Path(place, f"rows-{n}"), text=recipe, settings=settings
            ),
            given.repeats,
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        paths = sorted(documents.iterdir())
        processors = len(os.sched_getaffinity(0))
        with ProcessPoolExecutor(processors) as pool:
            theirs = seconds(lambda _: list(pool.map(vectorize, paths)), given.repeats)
        size = sum(path.stat().st_size for path in paths) / 1e6
    print(f"{rows:,} documents, {size:.0f} MB, {processors} processors")
    print(f"convert            {ours:8.2f} s   peak {peak:.0f} MiB")
    print(f"HashingVectorizer  {theirs:8.2f} s")


if __name__ == "__main__":
    main()
