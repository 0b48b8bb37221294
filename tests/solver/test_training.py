"""Training: the paper's procedure to the bit, certified answers, and what must not matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Event, ReadingDone
from streamtron.core.rows import BLOCK_ROWS, Chunk, Label
from streamtron.solver import learner as state
from streamtron.solver import order
from streamtron.solver import train as training
from streamtron.solver.learner import Learner
from streamtron.solver.one_part import train_here as train
from streamtron.solver.reading import Solve, finish_reading
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
    trained,
)

COLUMNS = 6


def bits(learner: Learner, rows: int) -> tuple[bytes, ...]:
    """Everything that a run leaves, to the bit."""
    dual = learner.running
    state = (dual.w, dual.scalars, dual.tallies, learner.weights, learner.counts.dense(rows))
    return tuple(array.tobytes() for array in state)


def source_of(seed: int, n: int = 300, block_rows: int = 32) -> ListSource:
    rows, labels = random_rows(seed, n, COLUMNS)
    return ListSource(csr(rows), labels, block_rows=block_rows)


# --- the paper's procedure ---


def faithful_equals_oracle(
    rows: Sequence[Row], labels: Sequence[int], chosen: Settings, block_rows: int
) -> None:
    """Both stages, held against the plain procedure with the b that the learner chose."""
    source = ListSource(csr(rows), labels, block_rows=block_rows)
    learner, at_ends = Learner(chosen, source.labels, positive=1), []
    end_stage = state.end_stage

    def noted(learner: Learner, *reasons: str) -> None:
        counts = learner.counts.dense(learner.extent.rows).tolist()
        at_ends.append((counts, learner.running.steps))
        end_stage(learner, *reasons)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "end_stage", noted)
        train(source, [learner], chosen)
    assert learner.finished == "converged"
    assert len(learner.progress.reports) == 2
    for report, kept in zip(learner.progress.reports, at_ends, strict=True):
        oracle = Oracle(
            rows, labels, [chosen.delta2] * len(rows), chosen.rho,
            b=report.b, epsilon=float(report.epsilon), variant=chosen.variant,
        )  # fmt: skip
        run = oracle.run(n_ep=chosen.mini_epochs)
        counts, steps = kept
        assert counts[: len(rows)] == oracle.counts
        assert steps == report.updates == oracle.t == run.updates
        assert (report.full_epochs, report.mini_epochs) == (run.full_epochs, run.mini_epochs)
        length = math.sqrt(
            math.fsum([*(x * x for x in oracle.w), oracle.bias**2, extension(oracle)])
        )
        least = min(oracle.extended_margin(k) for k in range(len(rows)))
        assert report.directional_margin == pytest.approx(least / length, rel=1e-12)


def extension(oracle: Oracle) -> float:
    return math.fsum(d2 * c * c for d2, c in zip(oracle.delta2, oracle.counts, strict=True))


@pytest.mark.parametrize("variant", ["length", "steps"])
@pytest.mark.parametrize("seed", range(4))
def test_the_faithful_procedure_is_the_papers_count_for_count(seed: int, variant: str) -> None:
    rows, labels = random_rows(seed, 40, COLUMNS)
    chosen = Settings(delta=1, rho=0.5, faithful=True, variant=variant, mini_epochs=7)
    if variant == "steps":
        chosen = chosen.but(stage="1,0.5", b=(5.0, 0.05))
    faithful_equals_oracle(rows, labels, chosen, block_rows=16)


def test_the_faithful_procedure_is_the_papers_on_heart_scale(shared_data: Path) -> None:
    rows, labels = read_libsvm(shared_data / "heart_scale")
    plain = [
        [(int(rows.indices[j]), float(rows.values[j])) for j in range(*rows.indptr[k : k + 2])]
        for k in range(len(labels))
    ]
    chosen = Settings(delta=2, rho=1, faithful=True)
    faithful_equals_oracle(plain, [int(label) for label in labels], chosen, block_rows=BLOCK_ROWS)


@pytest.mark.parametrize(("epsilon", "b"), [(0.1, 0.02), (0.5, 0.1), (1.0, 0.8), (1.5, 0.8)])
@pytest.mark.parametrize("seed", range(3))
def test_the_running_weights_of_a_faithful_stage_equal_the_oracles_bit_for_bit(
    seed: int, epsilon: float, b: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are before a certificate replaces them by the sum from the counts."""
    last = b""

    def noted(learner: Learner) -> Solve:
        nonlocal last
        last = learner.running.w.tobytes()
        return finish_reading(learner)

    monkeypatch.setattr(training, "finish_reading", noted)
    rows, labels = random_rows(seed, 40, COLUMNS)
    chosen = Settings(C=2, rho=1, faithful=True, stage=str(epsilon), b=(b,))
    source = ListSource(csr(rows), labels, block_rows=8)
    learner = Learner(chosen, source.labels, positive=1)
    train(source, [learner], chosen)
    b = learner.progress.reports[0].b
    oracle = Oracle(rows, labels, [chosen.delta2] * 40, 1.0, b=b, epsilon=epsilon)
    oracle.run()
    assert np.frombuffer(last)[: len(oracle.w)].tolist() == oracle.w
    rebuilt, _ = oracle.rebuilt()
    assert learner.running.w[: len(oracle.w)] == pytest.approx(rebuilt, rel=1e-12, abs=1e-12)


def test_faithful_b_is_relative_to_the_radius_of_all_rows_wherever_the_longest_is() -> None:
    rows, labels = random_rows(0, 40, COLUMNS)
    rows[35] = [(0, 50.0)]
    chosen = Settings(delta=1, rho=0, faithful=True, stage="1")
    source = ListSource(csr(rows), labels, block_rows=8)
    learner = trained(source, chosen)
    assert learner.progress.reports[0].b == pytest.approx(5 * (50.0**2 + 1))


def test_a_faithful_run_refuses_an_active_set_over_its_budget() -> None:
    with pytest.raises(SettingsError, match="active set is over its budget"):
        trained(source_of(0), Settings(faithful=True, active_set=300))


# --- certified answers ---


def primal_of(rows: Sequence[Row], signs: Sequence[int], d2: Sequence[float], rho: float,
              w: Sequence[float], bias: float) -> float:  # fmt: skip
    """P of weights as they are, correctly rounded."""
    margins = Oracle(rows, signs, d2, rho, width=len(w)).margins(w, bias)
    return primal_value(1.0, math.fsum([*(x * x for x in w), bias * bias]), margins, d2)


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
    found, d2 = learner.certificate, [1 / (2 * C)] * 120
    assert learner.finished == "certified"
    assert found is not None
    assert found.upper_bound is not None
    assert found.relative_duality_gap <= 1e-3
    primal = primal_of(rows, labels, d2, rho, learner.weights.tolist(), learner.best.bias)
    assert 1 / math.sqrt(2 * primal) >= found.primal_margin * (1 - 1e-9)
    upper = exact_upper_bound(rows, labels, d2, rho, learner.counts.dense(120))
    assert upper <= found.upper_bound <= upper * (1 + 1e-9)
    low, high = gamma_d(rows, labels, d2, rho)
    assert found.primal_margin <= high * (1 + 1e-9)
    assert found.upper_bound >= low * (1 - 1e-9)


@pytest.mark.parametrize("rho", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_bounds_bracket_liblinears_optimum(seed: int, rho: float) -> None:
    from liblinear.liblinearutil import parameter, problem
    from liblinear.liblinearutil import train as liblinear_train

    rows, labels = random_rows(seed, 300, COLUMNS)
    X = dense(rows, COLUMNS)
    options = f"-s 2 -c 0.5 -e 1e-10 -q -B {rho if rho else -1}"
    rival = liblinear_train(problem(labels, X), parameter(options))
    sign = 1 if rival.get_labels()[0] == 1 else -1
    flat = [sign * rival.w[j] for j in range(COLUMNS + (rho > 0))]
    w, bias = flat[:COLUMNS], flat[COLUMNS] if rho else 0.0
    theirs = 1 / math.sqrt(2 * primal_of(rows, labels, [1.0] * 300, rho, w, bias))
    source = ListSource(csr(rows), labels)
    found = trained(source, Settings(C=0.5, rho=rho, tol=1e-4)).certificate
    assert found is not None
    assert found.upper_bound is not None
    assert found.primal_margin <= theirs * (1 + 1e-9) <= found.upper_bound * (1 + 2e-9)


@pytest.mark.parametrize(("active_set", "epochs"), [(0, 100), (200, 40), (1_000, 15), (5_000, 5)])
@pytest.mark.parametrize("seed", range(3))
def test_however_small_the_active_set_the_bounds_close_around_the_optimum(
    seed: int, active_set: int, epochs: int
) -> None:
    rows, labels = random_rows(seed, 300, COLUMNS)
    learner = trained(source_of(seed), Settings(active_set=active_set, max_epochs=epochs))
    found = learner.certificate
    assert learner.finished == "certified"
    assert found is not None
    assert found.relative_duality_gap <= 0.01
    primal = least_primal(dense(rows, COLUMNS), np.array(labels))
    assert holds({"certificate": found.to_dict()}, primal)


@pytest.mark.parametrize("active_set", [0, 200])
@pytest.mark.parametrize("seed", range(3))
def test_an_active_set_too_small_for_so_few_epochs_says_that_it_stopped_and_how_near_it_is(
    seed: int, active_set: int
) -> None:
    rows, labels = random_rows(seed, 300, COLUMNS)
    learner = trained(source_of(seed), Settings(active_set=active_set, max_epochs=1))
    found = learner.certificate
    assert found is not None
    assert (learner.finished, learner.progress.full_epochs) == ("epoch limit", 1)
    assert 0.01 < found.relative_duality_gap < 1.0
    primal = least_primal(dense(rows, COLUMNS), np.array(labels))
    assert holds({"certificate": found.to_dict()}, primal)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_gap_that_closes_slowly_is_not_taken_for_one_that_rounding_leaves(seed: int) -> None:
    learner = trained(source_of(seed), Settings(active_set=0, max_epochs=120, tol=1e-3))
    assert learner.certificate is not None
    assert learner.certificate.relative_duality_gap < 5e-3
    assert learner.finished in ("certified", "epoch limit")
    assert learner.progress.full_epochs == 120 or learner.finished == "certified"


def test_an_epoch_limit_is_kept_and_the_run_still_ends_with_a_certificate() -> None:
    learner = trained(source_of(0), Settings(tol=1e-12, max_epochs=2, stage="1,0.1"))
    assert learner.finished == "epoch limit"
    assert learner.progress.full_epochs == 2
    assert learner.certificate is not None
    assert learner.certificate.rows_scanned == 300


def test_wherever_the_epoch_limit_ends_a_run_its_counts_make_its_upper_bound() -> None:
    """Also where a stage has just ended: the counts of the next one would be none."""
    stages = set()
    for limit in range(1, 6):
        settings = Settings(C=0.1, stage="1,0.1", b=(0.2, 0.2), tol=0.0, max_epochs=limit)
        learner = trained(source_of(0), settings)
        assert learner.certificate is not None
        assert learner.finished == "epoch limit"
        assert learner.counts.total() == learner.running.steps > 0
        assert learner.running.upper_bound == pytest.approx(
            learner.certificate.upper_bound, rel=1e-9
        )
        stages.add(learner.progress.stage_number)
    assert stages == {0, 1}


def test_a_hard_margin_run_on_separable_rows_brackets_the_best_margin() -> None:
    rows, labels = random_rows(3, 60, COLUMNS)
    rows = [[*row, (COLUMNS, 2.0 * l)] for row, l in zip(rows, labels, strict=True)]
    learner = trained(ListSource(csr(rows), labels), Settings(delta=0, rho=0, tol=0.02))
    low, high = gamma_d(rows, labels, [0.0] * 60)
    found = learner.certificate
    assert found is not None
    assert found.upper_bound is not None
    assert 0 < found.primal_margin <= high * (1 + 1e-9)
    assert found.upper_bound >= low * (1 - 1e-9)
    assert learner.finished == "certified"


def test_an_empty_row_without_extension_or_augmentation_is_refused_by_its_number() -> None:
    source = ListSource(csr([[(0, 1.0)], [], [(0, -1.0)]]), [1, -1, -1])
    with pytest.raises(DataError, match="row 2 has no features"):
        trained(source, Settings(delta=0, rho=0))


# --- real data ---


def bracket(path: Path, rho: float, tol: float) -> tuple[Learner, ListSource]:
    rows, labels = read_libsvm(path)
    source = ListSource(rows, labels)
    return trained(source, Settings(delta=1, rho=rho, tol=tol)), source


def test_adults_best_margin_is_bracketed_within_a_gap_of_one_percent(shared_data: Path) -> None:
    learner, source = bracket(shared_data / "a9a.xz", 0.0, 0.01)
    found = learner.certificate
    assert found is not None
    assert found.upper_bound is not None
    assert found.relative_duality_gap <= 0.01
    assert found.primal_margin <= ADULT_MARGIN * (1 + 1e-7) <= found.upper_bound * (1 + 2e-7)
    assert found.rows_scanned == 32_561
    nonzeros = sum(block.nonzeros for block in source.blocks)
    assert source.nonzeros_read <= 12 * nonzeros


@pytest.mark.slow
def test_rcv1s_best_margin_is_bracketed_within_a_gap_of_three_percent(shared_data: Path) -> None:
    learner, _ = bracket(shared_data / "rcv1_27613.ccat.xz", 1.0, 0.03)
    found = learner.certificate
    assert found is not None
    assert found.upper_bound is not None
    assert found.relative_duality_gap <= 0.03
    assert found.primal_margin <= RCV1_MARGIN * (1 + 1e-7) <= found.upper_bound * (1 + 2e-7)


# --- what must not matter, and what must ---

plans = pytest.mark.parametrize(
    "chosen",
    [
        Settings(tol=1e-4),
        Settings(stage="1,0.1", tol=0.05),
        Settings(active_set=1_500, tol=1e-4, max_epochs=10),
        Settings(order="sequential", tol=1e-4),
    ],
    ids=["default", "margitron", "small active set", "sequential"],
)


@plans
def test_the_same_seed_gives_the_same_bits(chosen: Settings) -> None:
    first, second = (bits(trained(source_of(1), chosen), 300) for _ in range(2))
    assert first == second


def test_another_seed_gives_another_order_and_another_witness() -> None:
    runs = [trained(source_of(1), Settings(seed=seed, stage="1")) for seed in range(2)]
    assert runs[0].counts.dense(300).tolist() != runs[1].counts.dense(300).tolist()


def test_an_order_of_rows_is_drawn_for_the_readings_that_train_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn, ended = set(), dict[int, str]()
    visiting_order = order.visiting_order

    def noted(settings: Settings, reading: int, chunk: Chunk) -> NDArray[np.int64]:
        drawn.add(reading)
        return visiting_order(settings, reading, chunk)

    def listen(event: Event) -> None:
        if isinstance(event, ReadingDone):
            ended[event.reading] = event.mode

    monkeypatch.setattr(order, "visiting_order", noted)
    rows, labels = random_rows(3, 60, COLUMNS)
    trained(ListSource(csr(rows), labels, block_rows=8), Settings(), listen=listen)
    assert set(ended.values()) == {"train", "scan"}
    assert drawn == {reading for reading, mode in ended.items() if mode == "train"}


def test_in_file_order_the_seed_does_not_matter() -> None:
    chosen = Settings(order="sequential")
    runs = [bits(trained(source_of(1), chosen.but(seed=seed)), 300) for seed in range(2)]
    assert runs[0] == runs[1]


@plans
def test_two_learners_trained_together_get_the_bits_of_each_alone(chosen: Settings) -> None:
    settings = [chosen, chosen.but(C=30.0)]
    alone = [bits(trained(source_of(2), each), 300) for each in settings]
    source = source_of(2)
    together = [Learner(each, source.labels) for each in settings]
    train(source, together, chosen)
    assert [bits(learner, 300) for learner in together] == alone
    assert alone[0] != alone[1]


@plans
def test_empty_columns_between_the_others_change_nothing(chosen: Settings) -> None:
    rows, labels = random_rows(4, 200, COLUMNS)
    executor: list[Row] = [[(7 * column + 3, value) for column, value in row] for row in rows]
    plain = trained(ListSource(csr(rows), labels, block_rows=32), chosen)
    wide = trained(ListSource(csr(executor), labels, block_rows=32), chosen)
    assert wide.counts.dense(200).tolist() == plain.counts.dense(200).tolist()
    columns = [7 * column + 3 for column in range(COLUMNS)]
    assert wide.weights[columns].tolist() == plain.weights[:COLUMNS].tolist()
    assert np.delete(wide.weights, columns).tolist() == [0.0] * (len(wide.weights) - COLUMNS)
    assert wide.best.bias == plain.best.bias


@plans
def test_swapping_the_labels_gives_exactly_the_opposite_weights(chosen: Settings) -> None:
    plus = trained(source_of(5), chosen, positive=1)
    minus = trained(source_of(5), chosen, positive=-1)
    assert (-minus.weights).tolist() == plus.weights.tolist()
    assert -minus.best.bias == plus.best.bias
    assert minus.counts.dense(300).tolist() == plus.counts.dense(300).tolist()


def test_the_labels_names_do_not_matter() -> None:
    rows, labels = random_rows(5, 200, COLUMNS)
    words: list[Label] = ["spam" if label == 1 else "ham" for label in labels]
    named = trained(ListSource(csr(rows), words), Settings(), positive="spam")
    plain = trained(ListSource(csr(rows), labels), Settings(), positive=1)
    assert bits(named, 200) == bits(plain, 200)


# --- weights ---


def overlap(one: Learner, other: Learner) -> bool:
    """Whether two certificates can speak of one γ_d."""
    a, b = one.certificate, other.certificate
    assert a is not None
    assert b is not None
    assert a.upper_bound is not None
    assert b.upper_bound is not None
    return max(a.primal_margin, b.primal_margin) <= min(a.upper_bound, b.upper_bound)


def test_a_row_of_weight_3_is_three_rows() -> None:
    rows, labels = random_rows(6, 100, COLUMNS)
    weights = [3.0 if k % 4 == 0 else 1.0 for k in range(100)]
    repeated = [k for k in range(100) for _ in range(int(weights[k]))]
    exact = Settings(tol=1e-6)
    weighted = trained(ListSource(csr(rows), labels, weights), exact, positive=1)
    copied = trained(
        ListSource(csr([rows[k] for k in repeated]), [labels[k] for k in repeated]),
        exact, positive=1,
    )  # fmt: skip
    plain = trained(ListSource(csr(rows), labels), exact, positive=1)
    assert overlap(weighted, copied)
    assert not overlap(weighted, plain)
    assert weighted.weights == pytest.approx(copied.weights, rel=0.02, abs=2e-3)


@plans
def test_rows_of_weight_0_leave_no_trace_in_bounds_radius_or_counts(chosen: Settings) -> None:
    rows, labels = random_rows(7, 120, COLUMNS)
    wild: list[Row] = [[(0, 1e6)] for _ in range(40)]
    weights = [1.0] * 120 + [0.0] * 40
    with_them = trained(ListSource(csr([*rows, *wild]), [*labels, *[-1] * 40], weights), chosen)
    assert with_them.counts.dense(160)[120:].tolist() == [0] * 40
    assert with_them.certificate is not None
    assert with_them.certificate.rows_scanned == 120
    assert with_them.extent.sq_radius < 1e6
    assert overlap(with_them, trained(ListSource(csr(rows), labels), chosen))


def test_a_first_block_of_rows_of_weight_0_is_no_obstacle() -> None:
    rows, labels = random_rows(8, 96, COLUMNS)
    weights = [0.0] * 32 + [1.0] * 64
    learner = trained(ListSource(csr(rows), labels, weights, block_rows=32), Settings())
    assert learner.finished == "certified"
    assert learner.counts.dense(32).tolist() == [0] * 32


@pytest.mark.parametrize("heavy", [0, 299])
def test_b_is_chosen_for_the_heaviest_row_wherever_it_is(heavy: int) -> None:
    rows, labels = random_rows(8, 300, COLUMNS)
    weights = [1.0] * 300
    weights[heavy] = 1e7
    learner = trained(ListSource(csr(rows), labels, weights, block_rows=300), Settings())
    assert learner.extent.least_delta2 == 0.5 / 1e7
    assert learner.finished == "certified"
    assert learner.running.tallies[kernels.CLIPPED] == 0


def test_class_weights_multiply_C_like_row_weights() -> None:
    rows, labels = random_rows(9, 100, COLUMNS)
    by_class = trained(
        ListSource(csr(rows), labels), Settings(tol=1e-4), class_weights={1: 5.0}, positive=1
    )
    weights = [5.0 if label == 1 else 1.0 for label in labels]
    by_row = trained(ListSource(csr(rows), labels, weights), Settings(tol=1e-4), positive=1)
    assert bits(by_class, 100) == bits(by_row, 100)
    assert not overlap(by_class, trained(ListSource(csr(rows), labels), Settings(tol=1e-4)))


def test_C_and_delta_are_two_names_of_one_thing() -> None:
    by_C = trained(source_of(0), Settings(C=2.0))
    by_delta = trained(source_of(0), Settings(delta=0.5))
    assert bits(by_C, 300) == bits(by_delta, 300)


# --- what is told ---


@plans
def test_every_reading_and_its_certificate_are_told(chosen: Settings) -> None:
    told: list[Event] = []
    source = source_of(1)
    learner = trained(source, chosen, listen=told.append)
    readings = [event for event in told if isinstance(event, ReadingDone)]
    nonzeros = sum(block.nonzeros for block in source.blocks)
    assert source.nonzeros_read == len(readings) * nonzeros
    assert sum(event.mini_epochs for event in readings) == learner.progress.mini_epochs
    assert readings[-1].certificate == learner.certificate


def test_counts_sum_to_t_and_the_running_weights_follow_from_them() -> None:
    rows, labels = random_rows(1, 300, COLUMNS)
    learner = trained(source_of(1), Settings(tol=1e-6), positive=1)
    assert learner.counts.dense(300).sum(dtype=np.int64) == learner.running.steps
    oracle = Oracle(rows, labels, [0.5] * 300, 1.0, width=len(learner.running.w))
    oracle.counts = learner.counts.dense(300).tolist()
    w, bias = oracle.rebuilt()
    assert learner.running.w == pytest.approx(w, rel=1e-12)
    assert learner.running.bias == pytest.approx(bias, rel=1e-12)


def test_a_learner_is_sound_only_while_its_counts_sum_to_t() -> None:
    learner = trained(source_of(1), Settings())
    assert learner.valid
    numbers, counts = learner.counts.entries()
    learner.counts.put(numbers[:1], counts[:1] + np.int32(1))
    assert not learner.valid


@pytest.mark.parametrize("stage", ["auto", "ascent"])
@pytest.mark.parametrize("held", [0.0, 0.1, 0.3, 0.6, 0.8, 0.95, 1.0])
def test_after_every_reading_the_running_weights_are_those_that_the_counts_make(
    held: float, stage: str
) -> None:
    """Whatever part of the rows has room in memory: a certificate would tell of later repairs."""
    rows, labels = random_rows(3, 300, COLUMNS)
    X = dense(rows, COLUMNS) * np.array(labels)[:, None]
    bytes_of_all = 8 * int(np.count_nonzero(X)) + 24 * len(X)
    settings = Settings(
        C=20.0, tol=1e-5, stage=stage, max_epochs=8, active_set=int(held * bytes_of_all)
    )
    source = ListSource(csr(rows), labels, block_rows=32)
    learner = Learner(settings, source.labels, positive=1)
    off = []

    def listen(event: Event) -> None:
        if isinstance(event, ReadingDone):
            counts = learner.counts.dense(len(X)).astype(np.float64)
            w = learner.running.w[:COLUMNS] - counts @ X
            off.append(np.abs(w).max() / (counts @ np.abs(X)).max())
            assert learner.running.steps == counts.sum()

    train(source, [learner], settings, listen)
    assert len(off) == learner.progress.readings > 1
    assert max(off) < 1e-12


def test_two_opposite_rows_are_solved_in_one_column() -> None:
    """min ½ w² + 2 max(0, 1 − w)²: w = 4/5."""
    learner = trained(
        ListSource(csr([[(0, 1.0)], [(0, -1.0)]]), [1, -1]), Settings(rho=0, tol=1e-6)
    )
    assert learner.weights.tolist() == pytest.approx([0.8], rel=1e-3)


@pytest.mark.parametrize(
    "plan",
    [{}, {"active_set": 2000, "max_epochs": 6}, {"faithful": True}, {"stage": "1,0.1,ascent"}],
    ids=["all rows", "blocks", "faithful", "stages"],
)
def test_a_learner_beside_another_finds_the_bits_of_one_by_itself(plan: dict[str, object]) -> None:
    settings = Settings.from_dict({"C": 0.5, "tol": 1e-3, "mini_epochs": 9, **plan})
    if "faithful" in plan:
        rows, labels = random_rows(1, 40, COLUMNS)
        settings = Settings(delta=1, faithful=True, mini_epochs=7)
        sources = [ListSource(csr(rows), labels, block_rows=16) for _ in range(2)]
    else:
        sources = [source_of(1) for _ in range(2)]
    learner = Learner(settings, sources[0].labels)
    other = Learner(settings, sources[0].labels, class_weights={sources[0].labels[0]: 2.0})
    train(sources[0], [learner, other], settings)
    assert bits(learner, 300) == bits(trained(sources[1], settings), 300)
    assert learner.finished


def test_rows_in_memory_train_to_the_bits_of_any_other_source() -> None:
    X = dense(random_rows(2, 5_000, COLUMNS)[0], COLUMNS)
    rows, labels = random_rows(2, 5_000, COLUMNS)
    plain = trained(ListSource(csr(rows), labels), Settings())
    memory = RowsInMemory(X, labels)
    learner = Learner(Settings(), memory.labels)
    train(memory, [learner], Settings())
    assert bits(learner, 5_000) == bits(plain, 5_000)
