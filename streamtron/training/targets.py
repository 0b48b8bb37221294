"""A chunk's rows as one learner sees them: its two classes and its prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamtron.chunk import Chunk, Label

NOT_MET = -2
"""No row's code: −1 is that of a row without a label."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Of every row of a chunk: its number in the whole data (int64), l_k (int8; 0 = left out,
    weight 0) and Δ_k² (float64)."""

    numbers: NDArray[np.int64]
    signs: NDArray[np.int8]
    delta2: NDArray[np.float64]


class TargetRule:
    """What makes targets of chunks: Δ_k² = Δ² / (row weight · class weight).

    Parameters
    ----------
    delta2 : Δ² of a row of weight 1.
    labels : the source's labels by code, growing while the first reading runs.
    class_weights : weight of a label, 1 where it is not named; None = all 1.
    positive : the label that is +1; None = the first one met. Turning all signs turns w exactly,
        so the data need not be read before it is known which label is the larger.
    """

    def __init__(
        self,
        delta2: float,
        labels: Sequence[Label],
        class_weights: Mapping[Label, float] | None,
        positive: Label | None,
    ) -> None:
        self.delta2, self.labels = delta2, labels
        self.class_weights, self.positive = class_weights, positive

    def __call__(self, chunk: Chunk) -> Targets:
        """The chunk's targets."""
        numbers = np.concatenate([np.arange(a, z, dtype=np.int64) for a, z in chunk.ranges])
        plus = 0 if self.positive is None else _code(self.labels, self.positive)
        signs = np.where(chunk.codes == plus, np.int8(1), np.int8(-1))
        delta2 = np.full(len(chunk), self.delta2)
        weights = chunk.weights
        if self.class_weights is not None:
            by_code = [self.class_weights.get(label, 1.0) for label in self.labels]
            of_class = np.array(by_code)[chunk.codes]
            weights = of_class if weights is None else weights * of_class
        if weights is not None:
            signs[weights == 0.0] = 0
            delta2 = delta2 / np.where(weights == 0.0, 1.0, weights)
        return Targets(numbers, signs, delta2)


def _code(labels: Sequence[Label], label: Label) -> int:
    """The label's code; one that no row has if it was not met yet."""
    return labels.index(label) if label in labels else NOT_MET
