"""Small random sets, and chunks of rows in memory, from blocks as small as wished."""

import io
import itertools
import lzma
from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from streamtron.core.config import Settings
from streamtron.core.events import Listener, ignore
from streamtron.core.rows import BLOCK_ROWS, Block, Chunk, Label, Rows, freeze, make_rows
from streamtron.core.threads import open_threads
from streamtron.data import MemorySource
from streamtron.solver.learner import Learner
from streamtron.solver.row_store import NONZERO_BYTES, ROW_BYTES
from streamtron.solver.train import OnePart, Resources
from streamtron.solver.train import train as train_on
from tests.helpers.oracle import Row


def csr(rows: Sequence[Row]) -> Rows:
    """Rows of (column, value) pairs as the arrays that kernels take."""
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    pairs = [pair for row in rows for pair in row]
    columns = np.array([column for column, _ in pairs], dtype=np.uint32)
    return make_rows(indptr, columns, np.array([value for _, value in pairs], dtype=np.float32))


class RowsInMemory(MemorySource):
    """A ``MemorySource`` whose labels come in order of appearance, as they do from shards.

    Parameters
    ----------
    X : anything that becomes a CSR matrix.
    y : a label for each row; with ``multilabel`` a list of them.
    """

    def __init__(
        self,
        X: Any,
        y: Sequence[Label] | Sequence[Collection[Label]],
        weights: Sequence[float] | None = None,
        *,
        multilabel: bool = False,
    ) -> None:
        sets: list[list[Any]] = [list(row) if multilabel else [row] for row in y]
        labels = list(dict.fromkeys(itertools.chain(*sets)))
        self.sets = [[labels.index(label) for label in row] for row in sets] if multilabel else None
        first = np.array([labels.index(row[0]) if row else -1 for row in sets])
        of_rows = None if weights is None else np.array(weights, np.float64)
        super().__init__(sparse.csr_array(X), first, labels, of_rows)
        self.codes, self.weights = first, of_rows

    def chunks(self, order: Iterable[Sequence[int]] | None = None) -> Generator[Chunk, None, None]:
        for chunk in super().chunks(order):
            yield chunk if self.sets is None else self._with_sets(chunk)

    def _with_sets(self, chunk: Chunk) -> Chunk:
        assert self.sets is not None
        sets = [codes for a, b in chunk.ranges for codes in self.sets[a:b]]
        codes = np.array(list(itertools.chain(*sets)), np.int32)
        offsets = np.cumsum([0, *map(len, sets)])
        freeze(codes, offsets)
        return replace(chunk, codes=codes, code_offsets=offsets)


class ListSource(RowsInMemory):
    """The same over rows as kernels take them, cut into blocks of ``block_rows``."""

    def __init__(
        self,
        rows: Rows,
        labels: Sequence[Label],
        weights: Sequence[float] | None = None,
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        matrix = sparse.csr_array((rows.values, rows.indices, rows.indptr))
        super().__init__(matrix, labels, weights)
        indptr, n = rows.indptr, len(labels)
        borders = itertools.pairwise([*range(0, n, block_rows), n])
        self.blocks = tuple(Block(a, z - a, int(indptr[z] - indptr[a])) for a, z in borders)
        self.rows = rows

    @property
    def nbytes(self) -> int:
        """What all rows would take in an active set."""
        return NONZERO_BYTES * self.nonzeros + ROW_BYTES * len(self.codes)


def train(
    source: Any,
    learners: Sequence[Learner],
    settings: Settings,
    listen: Listener = ignore,
    *,
    threads: int = 1,
    has_room: Any = lambda *_: True,
    **options: Any,
) -> None:
    """Train learners on a source; see ``Resources``, and for ``options`` ``OnePart``."""
    with open_threads(threads) as opened:
        resources = Resources(opened, has_room)
        train_on(OnePart(source, learners, settings, listen, resources, **options))


def trained(
    source: ListSource, settings: Settings, *, listen: Any = None, **learner: Any
) -> Learner:
    """One learner, trained on the source until it is finished."""
    pupil = Learner(settings, source.labels, **learner)
    train(source, [pupil], settings, listen or (lambda event: None))
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
