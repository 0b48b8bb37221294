"""Rows in memory with labels of any kind, one a row or several, as the package's own source."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from streamtron.core.rows import Chunk, Label, freeze
from streamtron.data import MemorySource


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
        sets: list[list[Any]] = [list(own) if multilabel else [own] for own in y]  # type: ignore[arg-type]
        labels = list(dict.fromkeys(label for own in sets for label in own))
        self.sets = [[labels.index(label) for label in own] for own in sets] if multilabel else None
        first = np.array([labels.index(own[0]) if own else -1 for own in sets])
        own = None if weights is None else np.array(weights, np.float64)
        super().__init__(sparse.csr_array(X), first, labels, own)

    def chunks(self, order: Iterable[Sequence[int]] | None = None) -> Generator[Chunk, None, None]:
        for chunk in super().chunks(order):
            yield chunk if self.sets is None else self._with_sets(chunk)

    def _with_sets(self, chunk: Chunk) -> Chunk:
        assert self.sets is not None
        sets = [own for a, b in chunk.ranges for own in self.sets[a:b]]
        codes = np.array([code for own in sets for code in own], np.int32)
        offsets = np.cumsum([0, *map(len, sets)])
        freeze(codes, offsets)
        return replace(chunk, codes=codes, code_offsets=offsets)
