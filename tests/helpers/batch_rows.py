"""Batches of rows as plain tuples."""

from __future__ import annotations

from typing import Any

from streamtron.data.row_batch import RowBatch


def rows_of(batches: list[RowBatch]) -> list[tuple[Any, list[int], list[float], float]]:
    """Plain (label, columns, values, weight) of every row."""
    rows = []
    for batch in batches:
        for i, code in enumerate(batch.codes):
            span = slice(batch.indptr[i], batch.indptr[i + 1])
            columns = batch.indices[span].tolist()
            values = [1.0] * len(columns) if batch.values is None else batch.values[span].tolist()
            label = None if code < 0 else batch.classes[code]
            weight = 1.0 if batch.weights is None else float(batch.weights[i])
            rows.append((label, columns, values, weight))
    return rows
