"""Training: the paper's procedure to the bit, certified answers, and what must not matter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.config import Settings, mini_epoch_limit
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import ChunkDone, Event, ReadingDone
from streamtron.core.rows import BLOCK_ROWS
from streamtron.solver.learner import Learner
from tests.helpers.examples import slow_but
from tests.helpers.learners import bits
from tests.helpers.optimum import holds, least_primal
from tests.helpers.oracle import Oracle, Row, gamma_d, primal_value
from tests.helpers.sources import (
    ADULT_MARGIN,
    RCV1_MARGIN,
    ListSource,
    RowsInMemory,
    csr,
    dense,
    random_rows,
    read_libsvm,
    train,
    trained,
)

COLUMNS = 6


def source_of(seed: int, n: int = 300, **options: Any) -> ListSource:
    rows, labels = random_rows(seed, n, COLUMNS)
    return ListSource(csr(rows), labels, **{"block_rows": 32, **options})


# --- the paper's procedure ---


def faithful_equals_oracle(
    rows: Sequence[Row], labels: Sequence[int], settings: Settings, block_rows: int
) -> None:
    """Hold the last stage against the plain procedure with the b that the learner chose: counts,
    steps, epochs, margin, and the running weights before a certificate sums them afresh."""
    source = ListSource(csr(rows), labels, block_rows=block_rows)
    learner, last = Learner(settings, source.labels, positive=1), b""

    def listen(event: Event) -> None:
        nonlocal last
        if isinstance(event, ChunkDone):
            last = learner.running.w.tobytes()

    train(source, [learner], settings, listen)
    assert learner.finished == "converged"
    report = learner.progress.reports[-1]
    oracle = Oracle(
        rows, labels, [settings.delta2] * len(rows), settings.rho,
        b=report.b, epsilon=float(report.epsilon), variant=settings.variant,
    )  # fmt: skip
    run = oracle.run(n_ep=mini_epoch_limit(settings))
    assert learner.counts.dense(len(rows)).tolist() == oracle.counts
    assert learner.running.steps == report.updates == oracle.t == run.updates
    assert (report.full_epochs, report.mini_epochs) == (run.full_epochs, run.mini_epochs)
    assert np.frombuffer(last)[: len(oracle.w)].tolist() == oracle.w
    rebuilt, _ = oracle.rebuilt()
    assert learner.running.w[: len(rebuilt)] == pytest.approx(rebuilt, rel=1e-12, abs=1e-12)
    extension = math.fsum(d2 * c * c for d2, c in zip(oracle.delta2, oracle.counts, strict=True))
    length = math.sqrt(math.fsum([*(x * x for x in oracle.w), oracle.bias**2, extension]))
    least = min(oracle.extended_margin(k) for k in range(len(rows)))
    assert report.directional_margin == pytest.approx(least / length, rel=1e-12)


STAGES: list[dict[str, object]] = [
    *({"stage": stage, "delta": 1, "rho": 0.5, "mini_epochs": 7} for stage in ("1", "1,0.1")),
    *(
        {"stage": stage, "variant": "steps", "b": b, "delta": 1, "rho": 0.5, "mini_epochs": 7}
        for stage, b in (("1", (5.0,)), ("1,0.5", (5.0, 0.05)))
    ),
    *(
        {"stage": str(epsilon), "b": (b,), "C": 2, "rho": 1}
        for epsilon, b in ((0.1, 0.02), (0.5, 0.1), (1.0, 0.8), (1.5, 0.8))
    ),
]


@pytest.mark.parametrize("plan", STAGES, ids=lambda plan: f"{plan['stage']}, {plan.get('b')}")
@pytest.mark.parametrize("seed", slow_but(range(3), 0))
def test_every_stage_of_the_faithful_procedure_is_the_papers_count_for_count_and_bit_for_bit(
    seed: int, plan: dict[str, object]
) -> None:
    rows, labels = random_rows(seed, 40, COLUMNS)
    settings = Settings.from_dict({"faithful": True, **plan})
    faithful_equals_oracle(rows, labels, settings, block_rows=16)


def test_the_faithful_procedure_is_the_papers_on_heart_scale(shared_data: Path) -> None:
    rows, labels = read_libsvm(shared_data / "heart_scale")
    plain = [
        [(int(rows.indices[j]), float(rows.values[j])) for j in range(*rows.indptr[k : k + 2])]
        for k in range(len(labels))
    ]
    settings = Settings(delta=2, rho=1, faithful=True)
    faithful_equals_oracle(plain, [int(label) for label in labels], settings, BLOCK_ROWS)


def test_faithful_b_is_relative_to_the_radius_of_all_rows_wherever_the_longest_is() -> None:
    rows, labels = random_rows(0, 40, COLUMNS)
    rows[35] = [(0, 50.0)]
    settings = Settings(delta=1, rho=0, faithful=True, stage="1")
    learner = trained(ListSource(csr(rows), labels, block_rows=8), settings)
    assert learner.progress.reports[0].b == pytest.approx(5 * (50.0**2 + 1))


def test_a_faithful_run_refuses_an_active_set_over_its_budget() -> None:
    with pytest.raises(SettingsError, match="active set is over its budget"):
        trained(source_of(0), Settings(faithful=True, active_set=300))


# --- certified answers ---


def exact_upper_bound(
    rows: Sequence[Row], signs: Sequence[int], d2: Sequence[float], rho: float,
    counts: NDArray[np.int32],
) -> float:  # fmt: skip
    """‖a‖ / t from the counts alone."""
    sums: dict[int, Fraction] = {}
    square = bias = Fraction(0)
    for row, sign, delta2, c in zip(rows, signs, d2, map(int, counts), strict=True):
        for column, value in row:
            sums[column] = sums.get(column, Fraction(0)) + c * sign * Fraction(value)
        bias += c * sign * Fraction(rho)
        square += Fraction(delta2) * c * c
    square += sum((x * x for x in sums.values()), Fraction(0)) + bias * bias
    return math.sqrt(square / int(counts.sum(dtype=np.int64)) ** 2)


@pytest.mark.parametrize("rho", [0.0, 1.0])
@pytest.mark.parametrize("C", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_default_plan_certifies_its_tolerance_and_weights_and_counts_prove_it_anew(
    seed: int, C: float, rho: float
) -> None:
    rows, labels = random_rows(seed, 120, COLUMNS)
    source = ListSource(csr(rows), labels, block_rows=32)
    learner = trained(source, Settings(C=C, rho=rho, tol=1e-3), positive=1)
    certificate, d2 = learner.certificate, [1 / (2 * C)] * 120
    assert learner.finished == "certified"
    assert certificate is not None
    assert certificate.upper_bound is not None
    assert certificate.relative_duality_gap <= 1e-3
    w, bias = learner.best.weights.tolist(), learner.best.bias
    margins = Oracle(rows, labels, d2, rho, width=len(w)).margins(w, bias)
    primal = primal_value(1.0, math.fsum([*(x * x for x in w), bias * bias]), margins, d2)
    assert 1 / math.sqrt(2 * primal) >= certificate.primal_margin * (1 - 1e-9)
    upper = exact_upper_bound(rows, labels, d2, rho, learner.counts.dense(120))
    assert upper <= certificate.upper_bound <= upper * (1 + 1e-9)
    low, high = gamma_d(rows, labels, d2, rho)
    assert certificate.primal_margin <= high * (1 + 1e-9)
    assert certificate.upper_bound >= low * (1 - 1e-9)


@pytest.mark.parametrize(
    ("plan", "finished"),
    [
        ({"C": 0.5, "rho": 0, "tol": 1e-4}, "certified"),
        ({"active_set": 0, "max_epochs": 100}, "certified"),
        ({"active_set": 200, "max_epochs": 40}, "certified"),
        ({"active_set": 1_000, "max_epochs": 15}, "certified"),
        ({"active_set": 5_000, "max_epochs": 5}, "certified"),
        ({"active_set": 0, "max_epochs": 1}, "epoch limit"),
        ({"active_set": 200, "max_epochs": 1}, "epoch limit"),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", slow_but(range(3), 0))
def test_however_small_the_active_set_the_bounds_hold_liblinears_optimum_and_say_how_near_it_is(
    seed: int, plan: dict[str, object], finished: str
) -> None:
    rows, labels = random_rows(seed, 300, COLUMNS)
    settings = Settings.from_dict(plan)
    learner = trained(source_of(seed), settings)
    certificate = learner.certificate
    assert certificate is not None
    assert learner.finished == finished
    gap = certificate.relative_duality_gap
    assert gap <= settings.tol if finished == "certified" else settings.tol < gap < 1.0
    price = 0.5 / settings.delta2
    primal = least_primal(dense(rows, COLUMNS), np.array(labels), price, settings.rho)
    assert holds({"certificate": certificate.to_dict()}, primal)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_gap_that_closes_slowly_is_not_taken_for_one_that_rounding_leaves(seed: int) -> None:
    learner = trained(source_of(seed), Settings(active_set=0, max_epochs=120, tol=1e-3))
    assert learner.certificate is not None
    assert learner.certificate.relative_duality_gap < 5e-3
    assert learner.finished in ("certified", "epoch limit")
    assert learner.progress.full_epochs == 120 or learner.finished == "certified"


def test_a_gap_that_still_falls_does_not_end_a_run_however_small_it_is() -> None:
    rows, labels = random_rows(1, 600, 2000, density=0.004)
    source = ListSource(csr(rows), labels, block_rows=32)
    learner = trained(source, Settings(C=1.0, active_set=20_000, tol=1e-10, max_epochs=60))
    *_, before, last = [reading.gap for reading in learner.progress.history]
    assert learner.finished == "converged"
    assert before is not None
    assert last is not None
    assert 0.9 * before < last < 1e-6


def test_what_is_proven_of_the_best_weights_is_never_worse_after_another_reading() -> None:
    rows, labels = random_rows(0, 600, 2000, density=0.004)
    source, primals = ListSource(csr(rows), labels, block_rows=32), []

    def listen(event: Event) -> None:
        if isinstance(event, ReadingDone) and event.certificate is not None:
            primals.append(event.certificate.primal)

    settings = Settings(C=50.0, active_set=6_000, tol=1e-9, max_epochs=12)
    trained(source, settings, listen=listen)
    assert primals == sorted(primals, reverse=True)
    assert len(primals) > 5


def test_wherever_the_epoch_limit_ends_a_run_its_counts_make_its_upper_bound() -> None:
    """Also where a stage has just ended: the counts of the next one would be none."""
    stages = set()
    for limit in range(1, 6):
        settings = Settings(C=0.1, stage="1,0.1", b=(0.2, 0.2), tol=0.0, max_epochs=limit)
        learner = trained(source_of(0), settings)
        assert (learner.finished, learner.progress.full_epochs) == ("epoch limit", limit)
        assert learner.certificate is not None
        assert learner.certificate.rows_scanned == 300
        assert learner.counts.total() == learner.running.steps > 0
        assert learner.running.upper_bound == pytest.approx(
            learner.certificate.upper_bound, rel=1e-9
        )
        stages.add(learner.progress.stage_number)
    assert stages == {0, 1}


def test_an_empty_row_without_extension_or_augmentation_is_refused_by_its_number() -> None:
    source = ListSource(csr([[(0, 1.0)], [], [(0, -1.0)]]), [1, -1, -1])
    with pytest.raises(DataError, match="row 2 has no features"):
        trained(source, Settings(delta=0, rho=0))


@pytest.mark.parametrize(
    ("name", "rho", "tol", "margin", "readings"),
    [
        ("a9a.xz", 0.0, 0.01, ADULT_MARGIN, 12),
        pytest.param("rcv1_27613.ccat.xz", 1.0, 0.03, RCV1_MARGIN, 12, marks=pytest.mark.slow),
    ],
)
def test_the_best_margin_of_real_rows_is_bracketed_within_the_tolerance(
    shared_data: Path, name: str, rho: float, tol: float, margin: float, readings: int
) -> None:
    source = ListSource(*read_libsvm(shared_data / name))
    certificate = trained(source, Settings(delta=1, rho=rho, tol=tol)).certificate
    assert certificate is not None
    assert certificate.upper_bound is not None
    assert certificate.relative_duality_gap <= tol
    assert certificate.primal_margin <= margin * (1 + 1e-7)
    assert margin * (1 + 1e-7) <= certificate.upper_bound * (1 + 2e-7)
    assert certificate.rows_scanned == len(source.codes)
    assert source.nonzeros_read <= readings * sum(block.nonzeros for block in source.blocks)


# --- what must not matter, and what must ---

plans = pytest.mark.parametrize(
    "settings",
    [
        Settings(tol=1e-4),
        Settings(stage="1,0.1", tol=0.05),
        Settings(active_set=1_500, tol=1e-4, max_epochs=10),
        Settings(order="sequential", tol=1e-4),
    ],
    ids=["default", "margitron", "small active set", "sequential"],
)


@pytest.mark.parametrize("order", ["random", "sequential"])
def test_the_seed_decides_the_witness_unless_rows_are_visited_in_the_order_of_the_file(
    order: str,
) -> None:
    settings = Settings(order=order, stage="1")
    first, second = (bits(trained(source_of(1), settings.but(seed=seed)), 300) for seed in (0, 1))
    assert (first == second) == (order == "sequential")


@plans
def test_empty_columns_between_the_others_change_nothing(settings: Settings) -> None:
    rows, labels = random_rows(4, 200, COLUMNS)
    spread: list[Row] = [[(7 * column + 3, value) for column, value in row] for row in rows]
    plain = trained(ListSource(csr(rows), labels, block_rows=32), settings)
    wide = trained(ListSource(csr(spread), labels, block_rows=32), settings)
    assert wide.counts.dense(200).tolist() == plain.counts.dense(200).tolist()
    columns = [7 * column + 3 for column in range(COLUMNS)]
    assert wide.best.weights[columns].tolist() == plain.best.weights[:COLUMNS].tolist()
    assert np.delete(wide.best.weights, columns).tolist() == [0.0] * (
        len(wide.best.weights) - COLUMNS
    )
    assert wide.best.bias == plain.best.bias


@plans
def test_swapping_the_labels_gives_exactly_the_opposite_weights(settings: Settings) -> None:
    plus = trained(source_of(5), settings, positive=1)
    minus = trained(source_of(5), settings, positive=-1)
    assert (-minus.best.weights).tolist() == plus.best.weights.tolist()
    assert -minus.best.bias == plus.best.bias
    assert minus.counts.dense(300).tolist() == plus.counts.dense(300).tolist()


PRICED = Settings(C=2.0)


def with_named_labels() -> Learner:
    rows, labels = random_rows(1, 300, COLUMNS)
    names = ["spam" if label == 1 else "ham" for label in labels]
    return trained(ListSource(csr(rows), names, block_rows=32), PRICED, positive="spam")


def by_delta() -> Learner:
    return trained(source_of(1), Settings(delta=0.5), positive=1)


def from_arrays() -> Learner:
    rows, labels = random_rows(1, 300, COLUMNS)
    source = RowsInMemory(dense(rows, COLUMNS), labels)
    learner = Learner(PRICED, source.labels, positive=1)
    train(source, [learner], PRICED)
    return learner


def by_row_weights() -> Learner:
    return trained(source_of(1, weights=[1.0] * 300), PRICED, positive=1)


@pytest.mark.parametrize("how", [with_named_labels, by_delta, from_arrays, by_row_weights])
def test_the_same_problem_put_in_another_way_gives_the_same_bits(
    how: Callable[[], Learner],
) -> None:
    block_rows = BLOCK_ROWS if how is from_arrays else 32
    plain = trained(source_of(1, block_rows=block_rows), PRICED, positive=1)
    assert bits(how(), 300) == bits(plain, 300)


# --- weights ---


def overlap(first: Learner, second: Learner) -> bool:
    """Whether two certificates can speak of one γ_d."""
    bounds = [learner.certificate.to_dict() for learner in (first, second) if learner.certificate]
    lower, upper = (max(b["primal_margin"] for b in bounds), min(b["upper_bound"] for b in bounds))
    return len(bounds) == 2 and lower <= upper


def test_a_row_of_weight_3_is_three_rows() -> None:
    rows, labels = random_rows(6, 100, COLUMNS)
    weights = [3.0 if k % 4 == 0 else 1.0 for k in range(100)]
    repeated = [k for k in range(100) for _ in range(int(weights[k]))]
    copies = ListSource(csr([rows[k] for k in repeated]), [labels[k] for k in repeated])
    weighted, copied, plain = (
        trained(source, Settings(tol=1e-6), positive=1)
        for source in (
            ListSource(csr(rows), labels, weights), copies, ListSource(csr(rows), labels)
        )
    )  # fmt: skip
    assert overlap(weighted, copied)
    assert not overlap(weighted, plain)
    assert weighted.best.weights == pytest.approx(copied.best.weights, rel=0.02, abs=2e-3)


@plans
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_rows_of_weight_0_leave_no_trace_in_bounds_radius_or_counts(
    settings: Settings, first: bool
) -> None:
    """Also where they fill the first blocks, from which b is fixed."""
    rows, labels = random_rows(7, 128, COLUMNS)
    wild: list[Row] = [[(0, 1e6)] for _ in range(32)]
    parts = [(rows, labels, [1.0] * 128), (wild, [labels[0]] * 32, [0.0] * 32)]
    joined = [[*a, *b] for a, b in zip(*(parts[::-1] if first else parts), strict=True)]
    weighted = trained(ListSource(csr(joined[0]), joined[1], joined[2], block_rows=32), settings)
    counts = weighted.counts.dense(160)
    assert not counts[:32].any() if first else not counts[128:].any()
    assert weighted.certificate is not None
    assert weighted.certificate.rows_scanned == 128
    assert weighted.extent.sq_radius < 1e6
    assert overlap(weighted, trained(ListSource(csr(rows), labels), settings))


@pytest.mark.parametrize("heavy", [0, 299])
def test_b_is_chosen_for_the_heaviest_row_wherever_it_is(heavy: int) -> None:
    weights = [1.0] * 300
    weights[heavy] = 1e7
    learner = trained(source_of(8, weights=weights, block_rows=300), Settings())
    assert learner.extent.least_delta2 == 0.5 / 1e7
    assert learner.finished == "certified"
    assert learner.running.tallies[kernels.CLIPPED] == 0


# --- what is told, and the state that is left ---


@plans
def test_every_reading_and_its_certificate_are_told(settings: Settings) -> None:
    events: list[Event] = []
    source = source_of(1)
    learner = trained(source, settings, listen=events.append)
    readings = [event for event in events if isinstance(event, ReadingDone)]
    nonzeros = sum(block.nonzeros for block in source.blocks)
    assert source.nonzeros_read == len(readings) * nonzeros
    assert sum(event.mini_epochs for event in readings) == learner.progress.mini_epochs
    assert readings[-1].certificate == learner.certificate


def test_a_learner_is_sound_only_while_its_counts_sum_to_t() -> None:
    learner = trained(source_of(1), Settings())
    assert learner.valid
    numbers, counts = learner.counts.entries()
    learner.counts.put(numbers[:1], counts[:1] + np.int32(1))
    assert not learner.valid


@pytest.mark.parametrize("stage", ["auto", "ascent"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6, 0.8, 0.95, 1.0])
def test_after_every_reading_the_running_weights_are_those_that_the_counts_make(
    share: float, stage: str
) -> None:
    """Whatever part of the rows has room in memory: a certificate would tell of later repairs."""
    rows, labels = random_rows(3, 300, COLUMNS)
    X = dense(rows, COLUMNS) * np.array(labels)[:, None]
    bytes_of_all = 8 * int(np.count_nonzero(X)) + 24 * len(X)
    settings = Settings(
        C=20.0, tol=1e-5, stage=stage, max_epochs=8, active_set=int(share * bytes_of_all)
    )
    source = source_of(3)
    learner = Learner(settings, source.labels, positive=1)
    errors = []

    def listen(event: Event) -> None:
        if isinstance(event, ReadingDone):
            counts = learner.counts.dense(len(X)).astype(np.float64)
            w = learner.running.w[:COLUMNS] - counts @ X
            errors.append(np.abs(w).max() / (counts @ np.abs(X)).max())
            assert learner.running.steps == counts.sum()

    train(source, [learner], settings, listen)
    assert len(errors) == learner.progress.readings > 1
    assert max(errors) < 1e-12


def test_weights_that_drift_between_readings_that_visit_blocks_are_repaired() -> None:
    rows, labels = random_rows(1, 600, 2000, density=0.004)
    source = ListSource(csr(rows), labels, block_rows=32)
    learner = Learner(Settings(active_set=20_000, tol=1e-5, max_epochs=20), source.labels)

    def spoil(event: Event) -> None:
        if isinstance(event, ReadingDone) and event.reading == 2:
            learner.running.w[0] += 1e-3 * float(np.linalg.norm(learner.running.w))

    train(source, [learner], learner.settings, spoil)
    assert learner.progress.readings > 4
    assert learner.best.drift_repaired > 1e-4
    assert learner.certificate is not None
    assert learner.certificate.drift is not None
    assert learner.certificate.drift < 1e-9
