"""Rows whose classes are balanced by given weights are learned to the same bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight

import streamtron
from streamtron.runs import witness

SHARDS, ROWS, COLUMNS = 6, 60, 40


class Rows(NamedTuple):
    """Rows and their labels."""

    X: NDArray[np.float64]
    labels: NDArray[np.int64]


@pytest.fixture(scope="module", params=[2, 5], ids=["two classes", "five classes"])
def drawn(request: pytest.FixtureRequest) -> Rows:
    """Rows of classes of which each is rarer than the one before."""
    rng, n = np.random.default_rng(request.param), SHARDS * ROWS
    X = np.round(rng.normal(size=(n, COLUMNS)), 2).astype(np.float32)
    X[rng.random(X.shape) < 0.8] = 0.0
    X[: n // 2, COLUMNS - 5 :] = 0.0  # columns of later rows alone
    scores = X @ rng.normal(size=(COLUMNS, request.param)) + rng.normal(size=(n, request.param))
    scores -= np.arange(request.param)
    return Rows(X.astype(np.float64), scores.argmax(axis=1))


class Place:
    """The rows in shards, and the settings that they are fitted with."""

    def __init__(self, directory: Path, drawn: Rows, **settings: Any) -> None:
        directory.mkdir()
        self.directory, self.drawn, self.settings = directory, drawn, settings
        self.shards = [directory / f"{k}.svm" for k in range(SHARDS)]
        self.write()

    def write(self, weights: Mapping[str, float] | None = None) -> None:
        """As text; with ``weights`` each label has that of its class behind it."""
        names = [
            str(label) if weights is None else f"{label}:{weights[str(label)]!r}"
            for label in self.drawn.labels
        ]
        lines = [
            " ".join([name, *(f"{k}:{row[k]:g}" for k in np.flatnonzero(row))])
            for name, row in zip(names, self.drawn.X, strict=True)
        ]
        for shard, some in zip(self.shards, np.array_split(np.array(lines), SHARDS), strict=True):
            shard.write_text("\n".join(some) + "\n")

    def balanced(self) -> dict[str, float]:
        """n / (classes · n_label) of every label."""
        labels = np.unique(self.drawn.labels)
        weights = compute_class_weight("balanced", classes=labels, y=self.drawn.labels)
        return dict(zip(map(str, labels), weights.tolist(), strict=True))

    def learned(self) -> tuple[object, ...]:
        """The bits of a fit that is certified."""
        model, settings = self.directory / "m", streamtron.Settings.from_dict(self.settings)
        outcome = streamtron.run(self.shards, settings, model=model)
        assert outcome.stop_reason == "certified"
        named = [(shard.name, shard.fingerprint) for shard in outcome.manifest.shards]
        counts = witness.load(f"{model}.run/witness").ordered_as(named).counts
        return (
            outcome.model.classes, outcome.model.weights.tobytes(),
            np.asarray(outcome.model.bias).tobytes(),
            [part.dense(len(self.drawn.labels)).tobytes() for part in counts],
            [one["certificate"] for one in outcome.report.get("learners", [outcome.report])],
        )  # fmt: skip


def by_class(place: Place) -> None:
    """Every class with the weight that balances it."""
    place.settings["class_weight"] = place.balanced()


def by_row(place: Place) -> None:
    """Every row of two classes with that weight behind its label."""
    place.write(place.balanced())
    place.settings |= {"class_weight": None, "weights_in_label": True}


@pytest.mark.parametrize("active_set", [10**9, 3_000], ids=["rows held", "few rows held"])
@pytest.mark.parametrize("prepare", [by_class, by_row], ids=lambda way: way.__name__)
def test_weights_that_balance_classes_are_learned_to_the_same_bits_however_they_are_given(
    prepare: Callable[[Place], None], active_set: int, drawn: Rows, tmp_path: Path
) -> None:
    many = len(np.unique(drawn.labels)) > 2
    if many and prepare is by_row:
        pytest.skip("the weight of a class is not that of the rest of another one")
    same = {
        "C": 2.0, "active_set": active_set, "class_weight": "balanced", "multiclass": many,
        "index_base": 0,
    }  # fmt: skip
    plain, prepared = (Place(tmp_path / name, drawn, **same) for name in ("plain", "prepared"))
    prepare(prepared)
    assert plain.learned() == prepared.learned()
