"""Whatever is done with rows, it is done with every loss: the bounds hold the optimum of the rows
that are there, which another solver finds from the rows alone."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import streamtron
from streamtron import Machine, Settings
from streamtron.runs.report import Outcome
from tests.helpers.optimum import holds, least_primal
from tests.helpers.runs import kept
from tests.helpers.svm_text import svm_lines, write_shards

SHARDS, ROWS = 5, 72

LOSSES = ("log_loss", "hinge")

CASES: dict[str, dict[str, Any]] = {
    "all rows in memory": {"C": 5.0},
    "to rounding": {"tol": 1e-8},
    "blocks": {"columns": 60, "active_set": 4_000},
    "few columns": {"active_set": 4_000},
    "parts": {"parts": 4},
    "parts of blocks": {"parts": 4, "columns": 60, "active_set": 4_000},
    "several labels, parts": {"parts": 4, "multilabel": True},
    "balanced classes, parts": {"parts": 4, "multiclass": True, "class_weight": "balanced"},
    "many classes": {"multiclass": True},
    "many classes, blocks": {"multiclass": True, "columns": 60, "active_set": 12_000},
    "several labels": {"multilabel": True},
    "class weights": {"class_weight": {"1": 30.0, "0": 0.2}},
    "balanced": {"class_weight": "balanced", "columns": 60, "active_set": 4_000},
    "row weights": {"weights_in_label": True},
    "row weights, parts": {"weights_in_label": True, "parts": 4},
    "no bias, blocks": {"rho": 0.0, "columns": 60, "active_set": 4_000},
    "a large bias": {"rho": 10.0},
}

SLOW = [(case, "hinge") for case in CASES if "active_set" in CASES[case] and case != "blocks"]
"""Take far more rounds than the other losses."""
SLOW += itertools.product(("several labels, parts", "balanced classes, parts"), LOSSES)


class Corpus:
    """Noisy rows of three classes in shards of text, with weights; every ninth row is empty."""

    def __init__(self, place: Path, case: str, loss: str) -> None:
        names = {"tol": 1e-3, "rho": 1.0, "loss": loss, "index_base": 0, **CASES[case]}
        columns, rng = names.pop("columns", 6), np.random.default_rng(3)
        self.settings = Settings.from_dict(names)
        self.X = np.round(rng.normal(size=(SHARDS * ROWS, columns)), 3).astype(np.float32)
        self.X[rng.random(self.X.shape) > 6 / columns] = 0.0
        if not self.settings.multilabel:  # a row of no label needs a column
            self.X[::9] = 0.0
        scores = self.X @ rng.normal(size=(columns, 3)) + rng.normal(size=(len(self.X), 3))
        self.labels = scores.argmax(axis=1)
        if not self.settings.one_vs_rest:
            self.labels = np.minimum(self.labels, 1)
        self.weights = rng.choice([0.0, 0.01, 1.0, 7.0, 300.0], len(self.X))
        if not self.settings.weights_in_label:
            self.weights[:] = 1.0
        labels = [self.label(k) for k in range(len(self.X))]
        self.shards = write_shards(place, svm_lines(self.X, labels, 0), SHARDS)

    def label(self, k: int) -> str:
        """Of a row as text; with several labels class 0 has none and class 2 has two."""
        if self.settings.multilabel:
            return ["", "1", "1,2"][self.labels[k]]
        weight = f":{self.weights[k]:g}" if self.settings.weights_in_label else ""
        return f"{self.labels[k]}{weight}"

    def fitted(self, model: Path, shards: slice = slice(None), **how: Any) -> Outcome:
        machine = how.pop("machine", Machine(threads=2))
        return streamtron.run(
            self.shards[shards], self.settings, model=model, machine=machine, **how
        )

    def check(self, report: Any, rows: NDArray[np.int64]) -> None:
        """The bounds of all learners hold the optimum of these rows, to the gap asked for."""
        X, s = self.X[rows].astype(np.float64), self.settings
        for learner in report.get("learners", [report]):
            label = int(learner.get("label", 1))
            own = self.labels[rows] == label
            if s.multilabel and label == 1:
                own = self.labels[rows] >= 1
            weight = s.class_weight
            if isinstance(weight, dict):
                weight = {True: weight["1"], False: weight["0"]}
            elif weight and s.multiclass:  # the rest weighs 1
                weight = {True: len(own) / (3 * own.sum()), False: 1.0}
            primal = least_primal(
                X, own, s.C or 1.0, s.rho, weight, loss=s.loss, weights=self.weights[rows]
            )
            assert holds(learner, primal)
            assert learner["certificate"]["relative_duality_gap"] <= s.tol
            assert learner["certificate"]["rows_scanned"] == np.count_nonzero(self.weights[rows])


@pytest.mark.parametrize(
    ("case", "loss"),
    [
        pytest.param(*pair, marks=[pytest.mark.slow] if pair in SLOW else [])
        for pair in itertools.product(CASES, LOSSES)
    ],
)
def test_bounds_hold_the_optimum_and_threads_change_no_bit(case, loss, tmp_path):
    corpus = Corpus(tmp_path, case, loss)
    found = corpus.fitted(tmp_path / "m")
    assert found.stop_reason == "certified"
    corpus.check(found.report, np.arange(SHARDS * ROWS))
    if "active_set" not in CASES[case]:
        assert found.report["readings"] == 1.0
    if case == "to rounding":
        assert found.report["newton_steps"] <= 70
    corpus.fitted(tmp_path / "one", machine=Machine(threads=1))
    assert kept(tmp_path, "one") == kept(tmp_path, "m")


def test_a_run_keeps_the_dual_variables_that_certified_it_where_all_are_far_below_c(tmp_path):
    """Separable rows at a large C: every dual variable is far below C."""
    X = np.random.default_rng(0).normal(size=(300, 6)).round(3)
    margins = X @ np.array([1.0, -2.0, 0.5, 1.5, -1.0, 2.0])
    far = np.abs(margins) > 0.5
    [shard] = write_shards(tmp_path, svm_lines(X[far], np.sign(margins[far])), 1)
    settings = Settings(loss="log_loss", C=1e9, tol=1e-3)
    assert streamtron.run(shard, settings, model=tmp_path / "m").stop_reason == "certified"
    assert streamtron.certify(tmp_path / "m").certificate.relative_duality_gap <= 1e-3
