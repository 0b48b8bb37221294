"""Rows of a matrix as libsvm text, and shards of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def svm_lines(X: Any, labels: Any, base: int = 1) -> list[str]:
    """A line for every row, its zeros left out."""
    return [
        " ".join([f"{label}", *(f"{j + base}:{row[j]}" for j in np.flatnonzero(row))]) + "\n"
        for label, row in zip(labels, X, strict=True)
    ]


def write_shards(directory: Path, lines: Sequence[str], pieces: int | Sequence[int]) -> list[Path]:
    """Write the lines to so many files, or to files that end before these lines."""
    directory.mkdir(exist_ok=True)
    paths = []
    for number, part in enumerate(np.array_split(np.array(lines), pieces)):
        paths.append(directory / f"{number}.svm")
        paths[-1].write_text("".join(part))
    return paths
