"""Small random sets, and chunks of rows in memory, from blocks as small as wished."""

import io
import itertools
import lzma
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from streamtron.core.config import Settings
from streamtron.core.events import Listener, ignore
from streamtron.core.rows import (
    BLOCK_ROWS,
    Block,
    Chunk,
    Held,
    Label,
    Rows,
    make_rows,
    ranges_of,
    row_bytes,
)
from streamtron.core.threads import open_threads
from streamtron.data.blocks import chunk_of, squares_of
from streamtron.data.prepare import facts_of
from streamtron.data.row_batch import RowBatch
from streamtron.solver.checkpoint import Resumed
from streamtron.solver.learner import Learner
from streamtron.solver.paper import Margitron
from streamtron.solver.train import OnePart
from streamtron.solver.train import train as train_on
from tests.helpers.oracle import Row


def csr(rows: Sequence[Row]) -> Rows:
    """Rows of (column, value) pairs as the arrays that kernels take."""
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    pairs = [pair for row in rows for pair in row]
    columns = np.array([column for column, _ in pairs], dtype=np.uint32)
    return make_rows(indptr, columns, np.array([value for _, value in pairs], dtype=np.float32))


class ListData:
    """Rows as kernels take them, in their own columns, cut into blocks and chunks of
    ``block_rows``; labels come in order of appearance. See ``core.rows.Data``.

    Parameters
    ----------
    labels : of each row its label; with ``multilabel`` a list of labels; or a target, if
        ``numbers``.
    hold : whether the rows count as held in memory; else they are delivered as from a disk.
    """

    def __init__(
        self,
        rows: Rows,
        labels: Sequence[Any],
        weights: Sequence[float] | None = None,
        block_rows: int = BLOCK_ROWS,
        *,
        hold: bool = False,
        multilabel: bool = False,
        numbers: bool = False,
    ) -> None:
        sets = [list(row) if multilabel else [row] for row in labels]
        own, n = [*itertools.chain(*sets)], len(labels)
        self.labels = [] if numbers else list(dict.fromkeys(own))
        codes = own if numbers else [self.labels.index(label) for label in own]
        self.codes = np.array(codes, np.float64 if numbers else np.int32)
        self._batch = RowBatch(
            rows.indptr,
            rows.indices,
            rows.values,
            self.codes,
            self.labels,
            None if weights is None else np.array(weights, np.float64),
            str,
            np.cumsum([0, *map(len, sets)]) if multilabel else None,
            squares_of(*rows),
            rows.by_row,
        )
        self.facts = facts_of(self._batch)._replace(by_row=rows.by_row)
        borders = itertools.pairwise([*range(0, n, block_rows), n])
        self.blocks = tuple(
            Block(a, z - a, int(rows.indptr[z] - rows.indptr[a])) for a, z in borders
        )
        self.columns = 1 + int(rows.indices.max(initial=0)) if len(rows.indices) else 0
        self.rows, self.nonzeros, self.nonzeros_read, self.hold = rows, len(rows.indices), 0, hold

    @property
    def nbytes(self) -> int:
        """What all rows would take in an active set."""
        return row_bytes(self.nonzeros, self._batch.rows, by_row=self.rows.by_row)

    @property
    def held(self) -> Held | None:
        return Held(self.rows, self._batch.squares) if self.hold else None

    def chunks(self, order: Iterable[Sequence[int]] | None = None) -> Generator[Chunk, None, None]:
        for group in order if order is not None else ((k,) for k in range(len(self.blocks))):
            chunk = chunk_of(self._batch, ranges_of(self.blocks[k] for k in group))
            self.nonzeros_read += 0 if self.hold else chunk.nonzeros
            yield chunk


def rows_in_memory(
    X: Any, y: Sequence[Any], weights: Sequence[float] | None = None, **options: Any
) -> ListData:
    """The same of anything that becomes a CSR matrix."""
    X = sparse.csr_array(X)
    return ListData(make_rows(X.indptr, X.indices, X.data), y, weights, **options)


def learner_of(data: Any, settings: Settings, **options: Any) -> Learner:
    """A new learner of the data; ``class_weights`` and ``positive`` as of ``Learner``."""
    return Learner(settings, data.columns, data.facts, data.labels, **options)


def train(
    data: Any,
    learners: Sequence[Learner],
    settings: Settings,
    listen: Listener = ignore,
    *,
    threads: int = 1,
    resumed: Resumed | None = None,
    **options: Any,
) -> None:
    """Train learners on the data; see for ``options`` ``OnePart``. Of a ``ListData`` memory holds
    all rows if they fit in the active set."""
    if isinstance(data, ListData):
        data.hold = data.nbytes <= settings.active_set_bytes
    with open_threads(threads) as opened:
        trainer = Margitron if settings.paper else OnePart
        train_on(trainer(data, learners, settings, listen, opened, **options), resumed)


def trained(data: ListData, settings: Settings, *, listen: Any = ignore, **learner: Any) -> Learner:
    """One learner, trained on the data until it is finished."""
    pupil = learner_of(data, settings, **learner)
    train(data, [pupil], settings, listen)
    return pupil


def random_rows(
    seed: int, n: int, columns: int, density: float = 0.4
) -> tuple[list[Row], list[int]]:
    """Gaussian sparse rows, a third of each kind of column scale, and noisy linear labels."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, columns)) * rng.choice([0.3, 1.0, 3.0], size=columns)
    values = np.where(rng.random((n, columns)) < density, values, 0.0).astype(np.float32)
    labels = np.where(values @ rng.normal(size=columns) + rng.normal(size=n) > 0, 1, -1)
    labels[:2] = (1, -1)
    rows: list[Row] = [[(int(j), float(row[j])) for j in np.flatnonzero(row)] for row in values]
    return rows, [int(label) for label in labels]


def read_libsvm(path: Path) -> tuple[Rows, list[Label]]:
    """A libsvm text file, xz or plain, read by scikit-learn; columns as the file numbers them."""
    from sklearn.datasets import load_svmlight_file

    content = path.read_bytes()
    if path.suffix == ".xz":
        content = lzma.decompress(content)
    X, y = load_svmlight_file(io.BytesIO(content), zero_based=True, dtype=np.float32)
    return make_rows(X.indptr, X.indices, X.data), [float(label) for label in y]


def dense(rows: Sequence[Row], columns: int) -> NDArray[np.float64]:
    """The rows as a matrix."""
    X = np.zeros((len(rows), columns))
    for k, row in enumerate(rows):
        for column, value in row:
            X[k, column] = np.float32(value)
    return X
