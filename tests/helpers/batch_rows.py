"""Batches of rows as plain tuples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from streamtron.core.rows import Label
from streamtron.data.row_batch import RowBatch


def labels_of(codes: Any, offsets: Any, classes: Sequence[Label]) -> list[Any]:
    """The label of every row, None without one; where rows may have several, a list of them."""
    labels = [None if code < 0 else classes[code] for code in codes]
    if offsets is None:
        return labels
    assert offsets[-1] == len(labels)
    assert None not in labels
    return [labels[start:stop] for start, stop in pairwise(offsets)]


def rows_of(batches: Iterable[RowBatch]) -> list[tuple[Any, list[int], list[float], float]]:
    """Plain (label or labels, columns, values, weight) of every row."""
    rows = []
    for batch in batches:
        labels = labels_of(batch.codes, batch.code_offsets, batch.classes)
        for i, label in enumerate(labels):
            span = slice(batch.indptr[i], batch.indptr[i + 1])
            columns = batch.indices[span].tolist()
            values = [1.0] * len(columns) if batch.values is None else batch.values[span].tolist()
            weight = 1.0 if batch.weights is None else float(batch.weights[i])
            rows.append((label, columns, values, weight))
    return rows
