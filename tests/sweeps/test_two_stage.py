"""The two-stage procedure: how far it takes which candidates, and that bounds decide it."""

import math
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import streamtron
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import SettingsError
from streamtron.data.writers.corpus import generate
from streamtron.model.certainty import AccuracyBounds
from streamtron.runs.fit import run as fit_alone
from streamtron.sweeps.grid import candidates_of
from streamtron.sweeps.sweep import Sweep
from streamtron.sweeps.trial import Trial
from streamtron.sweeps.two_stage import PRUNED_BY_BOUND, bracketed_b
from tests.helpers.processes import here, succeeded
from tests.helpers.sweep_rows import as_if, lasting, run_files, table

GRID: dict[str, Any] = {"C": (1e-6, 1e-5, 1.0), "rho": (0.0, 10.0)}
CANDIDATES = candidates_of(Settings(stage="1,0.1", tol=1e-4), GRID)
"""Where C is tiny and ρ = 10, the bias calls every row negative, and surely so."""

OUTCOMES = [(0, None), (0, PRUNED_BY_BOUND), (1, None), (0, PRUNED_BY_BOUND), (1, None), (1, None)]
"""(last iteration, why dropped) of each of them."""


def write_rows(path: Path, count: int, seed: int) -> None:
    """Rows that one column decides, three of ten positive, beside a column of noise."""
    chance = random.Random(seed)
    with path.open("w") as file:
        for _ in range(count):
            label = 1 if chance.random() < 0.3 else -1
            sure = f"{1 if label > 0 else 2}:{2 + chance.random():.3f}"
            file.write(f"{label} {sure} {3 + chance.randrange(5)}:{chance.random():.3f}\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with shards to fit (train, two of them) and to measure on (held-out)."""
    directory = tmp_path_factory.mktemp("two-stage")
    for name, count in (("train", 300), ("held-out", 200)):
        (directory / name).mkdir()
        for part in range(2):
            write_rows(directory / name / f"{part}.svm", count, seed=part + count)
    return directory


def swept(place: Path, **how: Any) -> Sweep:
    """A sweep over the candidates, unless there are others."""
    how = {"valid": place / "held-out", "two_stage": True, "stage": "1,0.1", "tol": 1e-4} | how
    return streamtron.sweep(place / "train", **{**GRID, **how})


@pytest.fixture(scope="module")
def found(place):
    """A sweep in which candidates end in every way."""
    return swept(place)


def test_a_candidate_is_dropped_just_where_its_best_accuracy_is_below_anothers_worst(place, found):
    """One that is met is not, and stops at the first stage too; the others go on."""
    assert [(trial.iteration, trial.dropped) for trial in found.trials] == OUTCOMES
    first = swept(place, stage="1", two_stage=False)
    bar = max(trial.at_optimum[0] or 0.0 for trial in first.trials)
    for trial, after in zip(first.trials, found.trials, strict=True):
        assert trial.at_optimum[1] is not None
        may_go_on = trial.gap > 1e-4
        assert after.settings.stage == ("1", "0.1")[after.iteration]
        assert (after.dropped is not None) == (may_go_on and trial.at_optimum[1] < bar)
        assert after.iteration == (may_go_on and trial.at_optimum[1] >= bar)
        if after.iteration == 0:
            assert after.at_optimum == trial.at_optimum
            assert after.certificate == trial.certificate


def test_equal_bounds_drop_no_candidate(place):
    found = swept(place, executor=as_if(lambda trial: {"at_optimum": (0.5, 0.5)}))
    assert [trial.dropped for trial in found.trials] == [None] * len(CANDIDATES)


def test_a_candidate_that_is_met_can_drop_others_and_be_the_best_and_is_never_dropped(place, found):
    def hopeless_if_met(trial: Trial) -> dict[str, Any]:
        return {"at_optimum": (0.0, 0.1) if trial.stop_reason == "certified" else (0.5, 1.0)}

    met = found.trials[0]
    assert (met.iteration, met.at_optimum, met.metrics["accuracy"]) == (0, (1.0, 1.0), 1.0)
    assert found.best.candidate == 0  # of equals the one with the smaller C
    assert found.best.settings == CANDIDATES[0].but(stage="1")
    hopeless = swept(place, executor=as_if(hopeless_if_met)).trials
    assert hopeless[0].stop_reason == "certified"
    assert [(t.dropped, t.iteration) for t in hopeless] == [(None, 0)] + [(None, 1)] * 5


def test_a_dropped_candidate_is_not_the_best_whatever_was_measured(place):
    def flattered(trial: Trial) -> dict[str, Any]:
        return {"metrics": {**trial.metrics, "accuracy": trial.settings.rho}}

    found = swept(place, executor=as_if(flattered))
    assert [(trial.iteration, trial.dropped) for trial in found.trials] == OUTCOMES
    assert found.best.settings.rho == 10
    assert found.best.dropped is None


def test_each_rung_is_the_fit_of_its_stage_alone_and_b_comes_from_the_bracket(place, found):
    last = found.trials[4]
    first = fit_alone(place / "train", CANDIDATES[4].but(stage="1"), machine=Machine())
    upper = first.report["certificate"]["upper_bound"]
    b = bracketed_b(0.1, CANDIDATES[4], first.report["radius"], upper)
    assert last.settings == CANDIDATES[4].but(stage="0.1", b=(b,))
    second = fit_alone(place / "train", last.settings, machine=Machine())
    assert dict(last.certificate) == second.report["certificate"]
    assert last.costs.readings == first.report["readings"] + second.report["readings"]
    assert last.costs.full_epochs == first.report["full_epochs"] + second.report["full_epochs"]


def test_b_is_what_a_fit_of_both_stages_chooses_between_them(place):
    for C, rho, variant in ((1e-5, 0.0, "length"), (1.0, 10.0, "length"), (1e-5, 0.0, "steps")):
        one: Any = {"C": C, "rho": rho, "variant": variant}
        whole = fit_alone(place / "train", CANDIDATES[0].but(**one), machine=Machine())
        [trial] = swept(place, **one).trials
        [b] = trial.settings.b
        assert b == pytest.approx(whole.report["stages"][1]["b_relative"], rel=1e-5)


def test_b_given_by_hand_is_taken_stage_by_stage(place):
    by_hand = {"C": 1.0, "rho": 0.0, "b": (3.0, 0.25), "tol": 1e-9}
    assert [trial.settings.b for trial in swept(place, **by_hand).trials] == [(0.25,)]
    [first] = swept(place, **by_hand, max_epochs=1, two_stage=False).trials
    assert first.settings.b == (3.0, 0.25)
    assert (first.iteration, first.dropped, first.settings.stage) == (0, None, "1,0.1")


def test_auto_leaves_the_first_stage_early_and_ends_with_ascent_as_fit_does(place, tmp_path):
    _, dropped, last, _ = swept(place, C=(1e-6, 1.0), stage="auto", tol=1e-6).trials
    assert (dropped.dropped, dropped.settings.stage, dropped.settings.max_epochs) == (
        PRUNED_BY_BOUND,
        "1",
        2,
    )
    assert last.settings == Settings(C=1.0, rho=0.0, tol=1e-6, stage="ascent")
    assert last.stop_reason == "certified"
    best = swept(place, C=1.0, model=tmp_path / "best").best
    assert best.iteration == 1
    fit_alone(place / "train", best.settings, model=tmp_path / "alone", machine=Machine())
    assert run_files(tmp_path / "best") == run_files(tmp_path / "alone")


@pytest.mark.parametrize("folds", [None, 2])
def test_candidates_tried_one_by_one_and_backwards_give_the_table_of_one_scan(place, folds):
    def backwards(function: Any, items: Sequence[Any], *shared: Any) -> Iterator[Any]:
        trials = [list(function(item, *shared)) for item in items[::-1]]
        return (trial for own in trials[::-1] for trial in own)

    backwards.tasks = len(CANDIDATES) * (folds or 1)
    how = {"valid": None if folds else place / "held-out", "folds": folds}
    apart = swept(place, executor=backwards, **how)
    together = swept(place, **how)
    assert lasting(apart) == lasting(together)
    assert {(trial.iteration, trial.dropped) for trial in together.trials} == set(OUTCOMES)


def test_with_folds_the_bounds_are_means_over_them(place):
    shards = sorted((place / "train").iterdir())
    one: Any = {"C": 1e-6, "rho": 10.0, "stage": "1", "two_stage": False, "tol": 1e-4}
    parts = [
        streamtron.sweep(shards[1 - fold], valid=shards[fold], **one).best for fold in range(2)
    ]
    bounds = streamtron.sweep(shards, folds=2, **one).best.at_optimum
    for end, outwards in enumerate((-math.inf, math.inf)):
        mean = sum(Fraction(part.at_optimum[end] or 0.0) for part in parts) / 2
        assert bounds[end] in (float(mean), math.nextafter(float(mean), outwards))
        assert Fraction(bounds[end] or 0.0) * outwards >= mean * outwards
        assert 0 < mean < 1


def test_a_row_is_sure_only_if_its_decision_exceeds_what_the_optimum_may_differ_by():
    # a decision of 0 is a negative one
    for sign, decision, wanted in (
        (1, 1.0, (0, 1)),
        (1, 1.01, (1, 1)),
        (1, -0.99, (0, 1)),
        (1, -1.0, (0, 0)),
        (-1, -1.0, (1, 1)),
        (-1, 1.0, (0, 1)),
        (-1, 1.01, (0, 0)),
        (-1, -0.99, (0, 1)),
    ):
        reach = AccuracyBounds()
        reach.add([sign], [decision - 1.0], [decision + 1.0], [2.0])
        assert reach.accuracy == wanted


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["right", "wrong", "unknown"]),
            st.one_of(
                st.integers(0, 9).map(float),
                st.integers(2**52, 2**60).map(float),
                st.floats(0.0, 1e30),
            ),
        ),
        min_size=1,
        max_size=50,
    )
)
@example([("right", 1.0), ("wrong", 4.0)])  # 1/5 is rounded up
def test_the_bounds_of_the_accuracy_hold_in_exact_arithmetic_for_any_weights(rows):
    reach, decisions = AccuracyBounds(), {"right": 1.0, "wrong": -1.0, "unknown": 0.1}
    for start in range(0, len(rows), 7):
        kinds, weights = zip(*rows[start : start + 7], strict=True)
        middle = np.array([decisions[kind] for kind in kinds])
        reach.add(np.ones(len(kinds)), middle - 0.5, middle + 0.5, np.array(weights))
    weight = {name: sum(Fraction(w) for kind, w in rows if kind == name) for name in decisions}
    total = sum(weight.values())
    if reach.accuracy is None:
        assert total == 0
        return
    least, most = reach.accuracy
    assert Fraction(least) <= weight["right"] / total <= Fraction(least) + Fraction(1, 10**13)
    assert Fraction(most) - Fraction(1, 10**13) <= 1 - weight["wrong"] / total <= Fraction(most)


@pytest.mark.parametrize(("C", "rho"), [(1e-4, 1.0), (0.01, 0.0), (1.0, 1.0)])
def test_the_optimum_is_as_accurate_as_any_looser_certificate_allows(tmp_path, monkeypatch, C, rho):
    monkeypatch.setattr("streamtron.sweeps.sweep.TOLERANCE", 1.0)
    for name, rows, first in (("train", 600, 0), ("held-out", 300, 600)):
        generate(str(tmp_path / name), rows=rows, columns=300, seed=2, shards=2, first_row=first)
    how: Any = {"C": C, "rho": rho, "stage": "auto", "two_stage": False}
    trials = [swept(tmp_path, tol=tol, **how).best for tol in (0.3, 1e-3, 1e-5, 1e-7)]
    optimum = trials[-1].metrics["accuracy"]
    widths = []
    for trial in trials:
        least, most = trial.at_optimum
        assert least <= optimum <= most
        widths.append(most - least)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.1  # bounds that allow everything would prove nothing


@pytest.mark.parametrize(
    ("how", "part"),
    [
        ({"metric": "f1"}, "metric is f1"),
        ({"stage": "ascent"}, "there is one, ascent"),
        ({"faithful": True}, "faithful"),
        ({"stage": "auto", "penalty": "elasticnet", "l1_ratio": [0.0, 0.5]}, "it is elasticnet"),
        ({"multiclass": True, "metric": "accuracy"}, "multiclass"),
    ],
)
def test_what_has_no_two_stages_is_refused_before_anything_is_read(tmp_path, how, part):
    with pytest.raises(SettingsError, match=part):
        swept(tmp_path / "nonesuch", **how)


def test_the_command_says_who_was_dropped_and_its_table_is_that_of_python(place, found):
    words = ["train", "--valid", "held-out", "--C", "1e-6,1e-5,1", "--rho", "0,10", "--two-stage"]
    more = ["--stage", "1,0.1", "--tol", "1e-4", "--table", "t.csv"]
    done = succeeded(here(place, "sweep", *words, *more))
    assert done.stdout.count("pruned by bound after stage 1\n") == 2
    assert lasting(table(place / "t.csv")) == lasting(found)
