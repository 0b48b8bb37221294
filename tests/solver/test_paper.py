"""The paper's procedure: its updates to the bit, its stages, their b, and the hard margin."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import streamtron
from streamtron.core.config import Settings, mini_epoch_limit
from streamtron.core.errors import SettingsError
from streamtron.core.events import Event, WorkDone
from streamtron.core.rows import Facts
from streamtron.solver.learner import Learner
from streamtron.solver.paper import alphas_of, choose_b, scale_of, steps_of
from streamtron.solver.targets import TargetRule
from tests.helpers.examples import slow_but
from tests.helpers.learners import drawn_data, plain_rows
from tests.helpers.oracle import Oracle, Row, gamma_d
from tests.helpers.sources import ListData, csr, dense, learner_of, random_rows, train, trained
from tests.helpers.svm_text import svm_lines

COLUMNS = 6


def data_of(seed: int, n: int = 300, **options: Any) -> ListData:
    return drawn_data(seed, n, COLUMNS, **{"block_rows": 32, **options})


@pytest.mark.parametrize(
    ("settings", "stages"),
    [
        ({}, ()),
        ({"stage": "ascent"}, ()),
        ({"loss": "log_loss"}, ()),
        ({"faithful": True}, (1.0, 0.1)),
        ({"b": (5.0, 0.1)}, (1.0, 0.1)),
        ({"stage": "1.5,1"}, (1.5, 1.0)),
    ],
    ids=str,
)
def test_the_papers_stages_are_made_only_where_they_are_asked_for(settings, stages):
    assert Settings(**settings).paper == stages


def test_a_stage_has_converged_only_where_no_chunk_has_a_row_to_add():
    rows, labels = random_rows(0, 300, COLUMNS)
    data = ListData(csr(rows), labels, block_rows=32)
    learner = trained(data, Settings(stage="1", C=0.1, tol=0.0, active_set=2_000, max_epochs=1000))
    running, signs = learner.running, np.where(np.array(labels) == labels[0], 1, -1)
    extended = 5.0 * np.rint(learner.alphas.dense(300) / scale_of(running))  # Δ² c_k
    margins = signs * (dense(rows, COLUMNS) @ running.w + running.bias) + extended
    assert learner.finished == "converged"
    assert margins.min() > learner.progress.reports[0].paper["b"]


PAPER = {"delta": 2, "rho": 0.5, "mini_epochs": 7}

STAGES: list[dict[str, object]] = [
    {"stage": "1", **PAPER},
    {"stage": "1,0.1", **PAPER},
    {"stage": "1", "variant": "steps", "b": (5.0,), **PAPER},
    {"stage": "1,0.5", "variant": "steps", "b": (5.0, 0.05), **PAPER},
    *(
        {"stage": str(epsilon), "b": (b,), "C": 2, "rho": 1}
        for epsilon, b in ((0.1, 0.02), (0.5, 0.1), (1.0, 0.8), (1.5, 0.8))
    ),
]


@pytest.mark.parametrize("plan", STAGES, ids=lambda plan: f"{plan['stage']}, {plan.get('b')}")
@pytest.mark.parametrize("seed", slow_but(range(3), 0))
def test_every_stage_of_the_faithful_procedure_is_the_papers_bit_for_bit(seed, plan):
    """With the b that the learner chose: the last stage's counts, steps, epochs and margin, and the
    running weights before a certificate sums them afresh."""
    settings = Settings.from_dict({"faithful": True, **plan})
    source = data_of(seed, 40, block_rows=16)
    rows, labels = plain_rows(source.rows), [source.labels[code] for code in source.codes]
    learner, last = learner_of(source, settings, positive=1), b""

    def listen(event: Event) -> None:
        nonlocal last
        if isinstance(event, WorkDone) and event.rows:
            last = learner.running.w.tobytes()

    train(source, [learner], settings, listen)
    assert learner.finished == "converged"
    report = learner.progress.reports[-1]
    delta2 = settings.delta**2 if settings.delta else 0.5 / settings.C
    oracle = Oracle(
        rows,
        labels,
        [delta2] * len(rows),
        settings.rho,
        b=report.paper["b"],
        epsilon=report.paper["epsilon"],
        variant=settings.variant,
    )
    run = oracle.run(n_ep=mini_epoch_limit(settings))
    alphas = alphas_of(learner.running, np.array(oracle.counts, np.float32))
    assert learner.alphas.dense(len(rows)).tolist() == alphas.tolist()
    assert steps_of(learner.running) == report.updates == oracle.t == run.updates
    assert (report.full_epochs, report.mini_epochs) == (run.full_epochs, run.mini_epochs)
    assert np.frombuffer(last)[: len(oracle.w)].tolist() == oracle.w
    rebuilt, _ = oracle.rebuilt()
    assert learner.running.w[: len(rebuilt)] == pytest.approx(rebuilt, rel=1e-12, abs=1e-12)
    directional = oracle.certificate().directional_margin
    assert report.paper["directional_margin"] == pytest.approx(directional, rel=1e-12)


def test_faithful_b_is_relative_to_the_radius_of_all_rows_wherever_the_longest_is():
    rows, labels = random_rows(0, 40, COLUMNS)
    rows[35] = [(0, 50.0)]
    settings = Settings(delta=1, rho=0, faithful=True, stage="1")
    learner = trained(ListData(csr(rows), labels, block_rows=8), settings)
    assert learner.progress.reports[0].paper["b"] == pytest.approx(5 * (50.0**2 + 1))


def test_the_radius_is_that_of_the_row_of_least_weight_its_class_counted():
    facts = Facts(9, 9.0, 0.5, 1.0, 4.0, (4.0, 5.0))
    for weights, extended in ((None, 1.0), ({"a": 0.25, "b": 7.0}, 4.0), ({"a": 0.0}, 1.0)):
        assert TargetRule(1.0, "ab", weights, None).sq_radius(facts) == 4.0 + 1.0 + extended


def test_a_faithful_run_refuses_an_active_set_over_its_budget():
    with pytest.raises(SettingsError, match="active set is over its budget"):
        trained(data_of(0), Settings(faithful=True, active_set=300))


@pytest.mark.parametrize("variant", ["length", "steps"])
def test_on_integer_rows_b_of_the_first_stage_is_5_times_R_squared_to_the_bit(variant):
    settings = Settings(variant=variant, faithful=True)
    wrong = [square for square in range(1, 2001) if 5.0 * math.sqrt(square) ** 2 < 5 * square]
    assert len(wrong) > 500  # what the square of R would have done
    for square in wrong:
        assert choose_b(1.0, settings, float(square), None) == 5 * square


ADULT, UP = 15.0, 0.0113517
"""R² of Adult, and the upper bound of its first stage."""

BL = 1.1 ** (3 * 0.1 - 1) * 0.2**-0.1 * (UP / math.sqrt(ADULT)) ** 0.9
"""The b of the paper's second stage, relative to R^1.1: 0.005771."""

BOUNDLESS = 1.1 ** (3 * 0.1 - 1) * 0.2**-0.1 * 0.05**-0.1


@pytest.mark.parametrize(
    ("epsilon", "settings", "square", "upper", "b"),
    [
        (1.0, {}, 4.0, 0.5, 5 * 4),
        (0.1, {"faithful": True}, ADULT, UP, BL * ADULT**0.55),
        (0.1, {}, ADULT, UP, 0.05**-0.1 * BL * ADULT**0.55),  # on a tighter bound
        (0.1, {"variant": "steps"}, 9.0, 0.3, 9 * (0.95 * 0.01) ** 0.9 * 0.05**-0.1),
        (0.1, {}, 4.0, None, BOUNDLESS * 2**1.1),
        (0.1, {}, 4.0, 50.0, BOUNDLESS * 2**1.1),  # above R it is none
        (0.1, {"variant": "steps"}, 4.0, 50.0, 4 * 0.95**0.9 * 0.05**-0.1),
        (1.5, {}, 9.0, None, 5 * 3**2.5),
        (1.5, {"variant": "steps"}, 9.0, None, 5 * 9),
    ],
    ids=str,
)
def test_b_is_the_papers_or_what_is_known_to_be_better(epsilon, settings, square, upper, b):
    assert choose_b(epsilon, Settings(**settings), square, upper) == pytest.approx(b)
    assert abs(1e5 * BL - 577.1) < 0.05


ROWS = 120


def separable(seed: int, room: float, n: int = ROWS) -> tuple[list[Row], list[int]]:
    """Random rows with one more column, ±room by label, so that γ_d ≥ room."""
    rows, labels = random_rows(seed, n, COLUMNS)
    return [[*row, (COLUMNS, room * l)] for row, l in zip(rows, labels, strict=True)], labels


def fitted(rows: Sequence[Row], labels: Sequence[int], **chosen: Any) -> Learner:
    source = ListData(csr(rows), labels, block_rows=32)
    return trained(source, Settings(delta=0, **chosen), positive=1)


@pytest.mark.parametrize("rho", [0.0, 1.0])
@pytest.mark.parametrize("room", [0.25, 2.0])
@pytest.mark.parametrize(
    ("chosen", "ending"),
    [
        ({"stage": "1,0.1", "tol": 0.3}, "certified"),
        ({"stage": "1,0.1", "tol": 0.3, "active_set": 2_000}, "certified"),
        ({"faithful": True}, "converged"),
    ],
    ids=["stages", "stages, few rows held", "faithful"],
)
def test_the_best_margin_of_separable_rows_is_bracketed(chosen, ending, room, rho):
    """The lower bound is γ'_d of the weights as they are, recomputed in plain lists."""
    rows, labels = separable(0, room)
    learner = fitted(rows, labels, rho=rho, **chosen)
    found = learner.certificate
    assert learner.finished == ending
    assert found.relative_duality_gap <= 0.3
    low, high = gamma_d(rows, labels, [0.0] * len(rows), rho)
    assert found.primal_margin <= high * (1 + 1e-9)
    assert found.upper_bound >= low * (1 - 1e-9)
    w, bias = learner.best.w.tolist(), learner.best.bias
    oracle = Oracle(rows, labels, [0.0] * len(rows), rho, width=len(w))
    norm = math.sqrt(math.fsum([*(x * x for x in w), bias * bias]))
    least = min(oracle.margins(w, bias))
    assert least / norm == pytest.approx(found.primal_margin, rel=1e-9)
    assert least == pytest.approx(1.0, rel=1e-9)


def test_of_inseparable_rows_no_margin_is_proven():
    rows, labels = random_rows(0, ROWS, COLUMNS)
    learner = fitted([row or [(0, 1.0)] for row in rows], labels, stage="1", max_epochs=5)
    assert learner.finished == "epoch limit"
    assert learner.certificate.relative_duality_gap == 1.0
    assert learner.certificate.to_dict()["primal_margin"] is None
    assert learner.certificate.upper_bound >= 0.0


@pytest.mark.parametrize("stage", ["auto", "ascent"])
def test_a_hard_margin_is_refused_outside_the_procedure_of_the_paper(stage):
    with pytest.raises(SettingsError, match="delta 0, the hard margin, is for the paper's"):
        Settings(delta=0, stage=stage)


def test_a_hard_margin_is_proven_again_by_its_dual_variables_alone(tmp_path):
    rows, labels = separable(0, 2.0)
    shard, model = tmp_path / "rows.svm", tmp_path / "m"
    shard.write_text("".join(svm_lines(dense(rows, COLUMNS + 1), labels)))
    fitted = streamtron.fit(shard, delta=0, stage="1,0.1", tol=0.3, model=model)
    proof = streamtron.certify(model).certificate
    assert proof.relative_duality_gap == fitted.certificate["relative_duality_gap"] <= 0.3
    with pytest.raises(SettingsError, match="is proven by its dual variables"):
        streamtron.certify(model, shard)
