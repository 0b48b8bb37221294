"""Where conditions cross that are tested one by one elsewhere: a run is left with the state that
its rows and counts make, for a certificate alone says nothing of what readings have healed."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight

import streamtron
from streamtron.runs import witness
from streamtron.runs.outcome import Outcome
from streamtron.solver.learner import Learner
from tests.helpers.examples import slow_but
from tests.helpers.learners import learners_of_run
from tests.helpers.optimum import holds, least_primal

SHARDS, ROWS, COLUMNS = 6, 60, 40
C, RHO = 2.0, 1.0
MOST_READINGS = {10**9: 4.0, 3_000: 45.0}
"""By what may be held, somewhat more than any change needs: a state that is wrong can be healed by
readings."""

ROUNDING = 1e-10
"""Of what is summed in another order, relative to the sum of the absolute values."""


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


def write(path: Path, rows: Rows, weights: Mapping[int, float] | None = None) -> None:
    """As text; with ``weights`` each label has that of its class behind it."""
    lines = []
    for row, label in zip(rows.X, rows.labels, strict=True):
        first = str(label) if weights is None else f"{label}:{weights[label]!r}"
        lines.append(" ".join([first, *(f"{k}:{row[k]:g}" for k in np.flatnonzero(row))]))
    path.write_text("\n".join(lines) + "\n")


def some(rows: Rows, chosen: Sequence[int] | NDArray[np.int64]) -> Rows:
    return Rows(rows.X[chosen], rows.labels[chosen])


def of_shards(numbers: Sequence[int]) -> NDArray[np.int64]:
    """The numbers of the rows that shards had when they were written."""
    return np.concatenate([np.arange(ROWS * k, ROWS * (k + 1)) for k in numbers])


class Place:
    """Shards, and a run on some of them."""

    def __init__(self, directory: Path, drawn: Rows, settings: streamtron.Settings) -> None:
        self.directory, self.drawn, self.settings = directory, drawn, settings
        self.shards = [directory / f"{k}.svm" for k in range(SHARDS)]
        for k, shard in enumerate(self.shards):
            write(shard, some(drawn, of_shards([k])))
        self.model = directory / "m"
        self.threads = 1

    def fit(self, shards: Sequence[Path]) -> Outcome:
        machine = streamtron.Machine(threads=self.threads)
        return streamtron.run(shards, self.settings, model=self.model, machine=machine)


# --- changes of runs -----------------------------------------------------------------------------

Change = Callable[[Place], tuple[Outcome, NDArray[np.int64]]]
"""What is done: its outcome, and the numbers of the rows that the run then has, in its order."""


def updated(place: Place, known: int) -> tuple[Outcome, NDArray[np.int64]]:
    """Update a run of so many shards with the others."""
    place.fit(place.shards[:known])
    return streamtron.update(place.model, place.shards[known:]), of_shards(range(SHARDS))


def shard_less(place: Place, *, removed: bool) -> tuple[Outcome, NDArray[np.int64]]:
    """Forget a shard, whose file is there or not."""
    place.fit(place.shards)
    if removed:
        shutil.rmtree(f"{place.model}.run/cache")
        place.shards[1].unlink()
    return streamtron.forget(place.model, place.shards[1]), of_shards([0, 2, 3, 4, 5])


def rows_less(place: Place, rows: range) -> tuple[Outcome, NDArray[np.int64]]:
    """Forget a list of rows."""
    place.fit(place.shards)
    lines = [f"{place.shards[row // ROWS]},{row % ROWS}" for row in rows]
    (place.directory / "list").write_text("\n".join(["shard,row", *lines]) + "\n")
    outcome = streamtron.forget(place.model, rows=place.directory / "list")
    return outcome, np.delete(of_shards(range(SHARDS)), rows)


def shard_less_and_updated(place: Place) -> tuple[Outcome, NDArray[np.int64]]:
    """Forget a shard, and update with another."""
    place.fit(place.shards[:-1])
    streamtron.forget(place.model, place.shards[0])
    return streamtron.update(place.model, place.shards[-1]), of_shards([1, 2, 3, 4, 5])


CHANGES: dict[str, Change] = {
    "few rows more": partial(updated, known=SHARDS - 1),
    "many rows more": partial(updated, known=2),
    "a shard less": partial(shard_less, removed=False),
    "a shard less that is gone": partial(shard_less, removed=True),
    "rows of a shard less": partial(rows_less, rows=range(2 * ROWS, 2 * ROWS + 9)),
    "rows of all shards less": partial(rows_less, rows=range(0, SHARDS * ROWS, 11)),
    "a shard less and one more": shard_less_and_updated,
}


@pytest.mark.parametrize("active_set", MOST_READINGS, ids=["rows held", "few rows held"])
@pytest.mark.parametrize("class_weight", slow_but([None, "balanced"], "balanced"))
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_run_carries_what_its_counts_make_and_bounds_the_optimum_of_its_rows(
    change: str, class_weight: str | None, active_set: int, drawn: Rows, tmp_path: Path
) -> None:
    many = len(np.unique(drawn.labels)) > 2
    settings = streamtron.Settings(
        C=C, rho=RHO, active_set=active_set, class_weight=class_weight, multiclass=many,
        index_base=0,
    )  # fmt: skip
    outcome, numbers = CHANGES[change](Place(tmp_path, drawn, settings))
    rows = some(drawn, numbers)
    assert outcome.report["rows"] == len(numbers)
    assert outcome.stop_reason == "certified"
    assert outcome.report["readings"] < MOST_READINGS[active_set]
    learners = learners_of_run(tmp_path / "m.run")
    reports = outcome.report["learners"] if many else [outcome.report]
    assert len(learners) == len(reports) == (5 if many else 1)
    for learner in learners:
        as_its_counts_make_it(learner, rows, *signs_and_weights(learner, rows, class_weight))
        if active_set > 10**6:  # else the counts have moved on since they were certified
            upper = math.sqrt(learner.running.sq_norm) / learner.running.steps
            assert learner.certificate is not None
            assert learner.certificate.upper_bound == pytest.approx(upper, rel=1e-8)
    for report in reports:
        assert report["drift_repaired"] == 0.0
        plus = report["label"] if many else rows.labels[0]
        weight = balanced(rows)[int(plus)] if class_weight and many else class_weight
        weights_of = {True: weight} if class_weight and many else class_weight
        assert holds(report, least_primal(rows.X, rows.labels == int(plus), C, RHO, weights_of))
    written = witness.load(tmp_path / "m.run" / "witness").ordered_as(fingerprints(outcome)).counts
    expected = {learner.counts.dense(len(numbers)).tobytes() for learner in learners}
    assert {counts.dense(len(numbers)).tobytes() for counts in written} == expected


def balanced(rows: Rows) -> dict[int, float]:
    """n / (classes · n_label) of every label."""
    labels = np.unique(rows.labels)
    weights = compute_class_weight("balanced", classes=labels, y=rows.labels)
    return dict(zip(labels.tolist(), weights.tolist(), strict=True))


def signs_and_weights(
    learner: Learner, rows: Rows, class_weight: str | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The rows' signs to a learner, and their weights."""
    positive = learner.targets.positive
    plus = learner.targets.labels[0] if positive is None else positive
    inside = rows.labels == int(plus)
    weights = np.ones(len(inside))
    if class_weight is not None:
        of_class = balanced(rows)
        weights = np.array([of_class[int(label)] for label in rows.labels])
        if positive is not None:  # the rest of many classes is not weighted
            weights[~inside] = 1.0
    return np.where(inside, 1.0, -1.0), weights


def as_its_counts_make_it(
    learner: Learner, rows: Rows, signs: NDArray[np.float64], weights: NDArray[np.float64]
) -> None:
    """a = Σ c_k y_k, ‖a‖², t, no count of a row that is not there; R, and how many rows there
    are."""
    n = len(signs)
    counts = learner.counts.dense(n).astype(np.float64)
    assert learner.counts.total() == counts.sum() == learner.running.steps > 0
    a, size = (counts * signs) @ rows.X, counts @ np.abs(rows.X)
    w = np.zeros(len(a))
    w[: len(learner.running.w)] = learner.running.w[: len(a)]
    assert not learner.running.w[len(a) :].any()
    assert np.abs(w - a).max() <= ROUNDING * size.max()
    bias = RHO * (counts @ signs)
    assert abs(learner.running.bias - bias) <= ROUNDING * counts.sum()
    extension = float((counts**2 / (2.0 * C * weights)).sum())
    assert learner.running.sq_norm == pytest.approx(a @ a + bias * bias + extension, rel=1e-8)
    lengths = (rows.X**2).sum(axis=1) + RHO**2 + 1.0 / (2.0 * C * weights)
    assert learner.extent.sq_radius == pytest.approx(lengths.max(), rel=1e-12)
    assert learner.extent.rows == n


def fingerprints(outcome: Outcome) -> list[tuple[str, str]]:
    return [(shard.name, shard.fingerprint) for shard in outcome.manifest.shards]


# --- the same rows, prepared in another way ------------------------------------------------------


def by_class(place: Place) -> None:
    """Every class with the weight that balances it."""
    weights = {str(label): weight for label, weight in balanced(place.drawn).items()}
    place.settings = place.settings.but(class_weight=weights)


def by_row(place: Place) -> None:
    """Every row of two classes with that weight behind its label."""
    for k, shard in enumerate(place.shards):
        write(shard, some(place.drawn, of_shards([k])), balanced(place.drawn))
    place.settings = place.settings.but(class_weight=None, weights_in_label=True)


def in_tables(place: Place) -> None:
    """The rows in tables."""
    for shard in place.shards:
        settings = streamtron.Settings(index_base=0)
        streamtron.convert(shard, shard.with_suffix(""), to="parquet", settings=settings)
    place.shards = sorted(place.directory.glob("*/*.parquet"))


def by_two_threads(place: Place) -> None:
    """What looks at rows together does so by halves."""
    place.threads = 2


@pytest.mark.parametrize("active_set", MOST_READINGS, ids=["rows held", "few rows held"])
@pytest.mark.parametrize(
    "prepare", [by_class, by_row, in_tables, by_two_threads], ids=lambda way: way.__name__
)
def test_rows_that_are_prepared_in_another_way_are_learned_to_the_same_bits(
    prepare: Callable[[Place], None], active_set: int, drawn: Rows, tmp_path: Path
) -> None:
    many = len(np.unique(drawn.labels)) > 2
    if many and prepare is by_row:
        pytest.skip("the weight of a class is not that of the rest of another one")
    settings = streamtron.Settings(
        C=C, rho=RHO, active_set=active_set, class_weight="balanced", multiclass=many, index_base=0
    )
    results = []
    for name in ("plain", "prepared"):
        (tmp_path / name).mkdir()
        place = Place(tmp_path / name, drawn, settings)
        if name == "prepared":
            prepare(place)
        outcome = place.fit(place.shards)
        assert outcome.stop_reason == "certified"
        written = witness.load(f"{place.model}.run/witness")
        counts = written.ordered_as(fingerprints(outcome)).counts
        model, proofs = outcome.model, outcome.report.get("learners", [outcome.report])
        results.append((
            model.classes, model.weights.tobytes(), np.asarray(model.bias).tobytes(),
            [part.dense(len(drawn.labels)).tobytes() for part in counts],
            [proof["certificate"] for proof in proofs],
        ))  # fmt: skip
    assert results[0] == results[1]
