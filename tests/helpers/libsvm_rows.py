"""Rows of libsvm text: as the reader delivers them, and as plain Python reads them."""

import io
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_svmlight_file

from streamtron.core.rows import Label
from streamtron.data.formats.libsvm import LibsvmReader
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import RowBatch
from tests.helpers import shard_rows

PLAIN = ReaderConfig()


class Row(NamedTuple):
    """One row, whatever batches it came in; values as float32 bits, so that -0 is not 0."""

    label: Label | list[Label] | None
    columns: list[int]
    bits: list[int]
    weight: float = 1.0


def bits_of(token: str | bytes | float) -> int:
    """The float32 of a token as its 32 bits."""
    return int(np.float32(float(token)).view(np.uint32))


def rows_of(batch: RowBatch) -> list[Row]:
    """A batch as plain rows."""
    return [
        Row(label, columns, np.array(values, np.float32).view(np.uint32).tolist(), weight)
        for label, columns, values, weight in shard_rows.rows_of([batch])
    ]


def batches(
    data: str | bytes,
    reading: ReaderConfig = PLAIN,
    batch_bytes: int = 1 << 20,
    name: str = "x.svm",
) -> list[RowBatch]:
    """What the reader makes of a file with these contents."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, name)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        reader = LibsvmReader(str(path), name, reading)
        reader.BATCH_BYTES = batch_bytes
        return list(reader.batches())


def read(data: str | bytes, *given: Any, **more: Any) -> list[Row]:
    """The rows of a file with these contents."""
    return [row for batch in batches(data, *given, **more) for row in rows_of(batch)]


def oracle(data: bytes) -> list[Row]:
    """Well-formed libsvm text read with str.split and float, sorted columns and all."""
    rows = []
    for line in data.removeprefix(b"\xef\xbb\xbf").decode().split("\n"):
        tokens = line.split("#")[0].split()
        if not tokens:
            continue
        pairs = [token.split(":") for token in tokens[1:] if not token.startswith("qid:")]
        pairs.sort(key=lambda pair: int(pair[0]))
        columns, values = [int(column) for column, _ in pairs], [bits_of(x) for _, x in pairs]
        rows.append(Row(float(tokens[0]), columns, values))
    return rows


def sklearn_rows(data: bytes) -> list[Row]:
    """A file of rows of several labels through scikit-learn's reader; ValueError if it refuses."""
    matrix, labels = load_svmlight_file(
        io.BytesIO(data), zero_based=True, dtype=np.float32, n_features=2**32, multilabel=True
    )
    bits = matrix.data.view(np.uint32).tolist()
    spans = pairwise(matrix.indptr.tolist())
    return [
        Row(list(label), matrix.indices[i:j].tolist(), bits[i:j])
        for label, (i, j) in zip(labels, spans, strict=True)
    ]
