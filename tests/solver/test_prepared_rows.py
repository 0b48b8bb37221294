"""Rows whose classes are balanced by given weights are learned to the same bits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight

import streamtron
from tests.helpers.svm_text import svm_lines, write_shards

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


def balanced(labels: NDArray[np.int64]) -> dict[str, float]:
    """n / (classes · n_label) of every label."""
    classes = np.unique(labels)
    weights = compute_class_weight("balanced", classes=classes, y=labels)
    return dict(zip(map(str, classes), weights.tolist(), strict=True))


def learned(
    directory: Path, drawn: Rows, weights: Mapping[str, float] | None = None, **settings: Any
) -> tuple[object, ...]:
    """The bits of a fit of shards that is certified; with ``weights`` each label has that of its
    class behind it."""
    behind = {name: f":{weight!r}" for name, weight in (weights or {}).items()}
    labels = [f"{k}{behind.get(str(k), '')}" for k in drawn.labels]
    write_shards(directory, svm_lines(drawn.X, labels, 0), SHARDS)
    chosen = streamtron.Settings.from_dict({"C": 2.0, "index_base": 0, **settings})
    outcome = streamtron.run(directory, chosen, model=directory.with_suffix(".model"))
    assert outcome.stop_reason == "certified"
    model, learners = outcome.model, outcome.report.get("learners", [outcome.report])
    numbers = model.weights.tobytes(), np.asarray(model.bias).tobytes()
    return model.classes, *numbers, [learner["certificate"] for learner in learners]


@pytest.mark.parametrize("active_set", [10**9, 3_000], ids=["rows held", "few rows held"])
def test_balanced_weights_are_learned_alike_however_they_are_given(active_set, drawn, tmp_path):
    weights = balanced(drawn.labels)
    how = {"active_set": active_set, "multiclass": len(weights) > 2}
    plain = learned(tmp_path / "plain", drawn, class_weight="balanced", **how)
    assert learned(tmp_path / "by class", drawn, class_weight=weights, **how) == plain
    if len(weights) == 2:  # of more the weight of a class is not that of the rest of another one
        assert learned(tmp_path / "by row", drawn, weights, weights_in_label=True, **how) == plain
