"""Passes over rows in memory: short kernel calls, the same bits; and threads that share them."""

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.core.rows import Rows, make_rows
from streamtron.core.threads import open_threads
from streamtron.solver import ascent, few_columns, passes
from tests.helpers.learners import data_of
from tests.helpers.processes import until
from tests.helpers.sources import csr, random_rows, trained

NAMES = ("margins", "combine", "gram_product", "gram_diagonal", "gram_block", "visit")
CUT = 90


def some_rows() -> tuple[Rows, np.ndarray[Any, np.dtype[np.int8]]]:
    rows, labels = random_rows(0, 200, 30)
    rows[3] = rows[50] = rows[51] = rows[199] = []
    return csr(rows), np.array(labels, dtype=np.int8)


def all_passes() -> list[bytes]:
    """What every pass finds."""
    rows, signs = some_rows()
    v = np.random.default_rng(0).normal(size=31)
    factors = np.random.default_rng(1).normal(size=len(signs))
    sums, diagonal, product, blocks = np.zeros((4, 31))
    passes.add(kernels.combine, rows, factors, 0.7, sums)
    passes.add(kernels.gram_diagonal, rows, factors, 0.7, diagonal)
    passes.add(kernels.gram_product, rows, factors, 0.7, v, product)
    gram = np.zeros((4, 4))
    places = np.full(31, -1)
    places[[2, 5, 9, 30]] = range(4)
    passes.add_gram(rows, factors, 0.7, places, gram)
    passes.BlockSums(rows, factors, 30).add(kernels.gram_product, 0.7, v, blocks)
    found = passes.margins(rows, signs, 0.7, v), sums, diagonal, product, gram, blocks
    return [array.tobytes() for array in found]


def test_threads_change_no_bit(monkeypatch):
    monkeypatch.setattr(passes, "SHARED", 50)
    monkeypatch.setattr(passes, "SUMMED", 1)
    alone = all_passes()
    for threads in (2, 3):
        with open_threads(threads):
            assert all_passes() == alone


def test_a_sum_over_rows_adds_up_sums_over_blocks_of_as_many_nonzeros():
    rows = 6 * passes.SHARED // 20  # of which half are left out: enough for 2 blocks, not 4
    values = np.random.default_rng(0).normal(size=(rows, 20)).astype(np.float32)
    factors = np.arange(rows) % 2.0
    total, parts = np.ones(21), [np.ones(21), np.zeros(21)]
    dense = make_rows(np.arange(0, 20 * rows + 1, 20), np.tile(np.arange(20), rows), values.ravel())
    assert passes.occurring(dense) == 20
    passes.BlockSums(dense, factors, 20).add(kernels.combine, 0.5, total)
    half = int(np.searchsorted(np.cumsum(20 * factors), 10 * factors.sum()))
    for part, some in zip(parts, (slice(half), slice(half, rows)), strict=True):
        cut = dense._replace(indptr=dense.indptr[some.start or 0 : some.stop + 1])
        kernels.combine(cut, factors[some], 0.5, part)
    assert total.tolist() == (parts[0] + parts[1]).tolist()


def test_cuts_change_no_bit(monkeypatch):
    whole, (rows, signs) = all_passes(), some_rows()
    for cut in (1, 7, CUT, 10**4):
        monkeypatch.setattr(passes, "NONZEROS_A_CALL", cut)
        assert all_passes() == whole
        spans = passes.spans(rows)
        assert [n for span in spans for n in range(span.start, span.stop)] == [*range(len(signs))]
        assert len(spans) > len(rows.indices) // (cut + 30)


def test_sums_over_a_few_rows_copied_side_by_side_are_those_over_all_to_the_bit(monkeypatch):
    rows, _ = some_rows()
    v = np.random.default_rng(0).normal(size=31)
    factors = np.random.default_rng(1).normal(size=200)
    factors[np.arange(200) % 6 > 0] = 0.0
    monkeypatch.setattr(passes, "SHORT", 0)
    for cut in (7, CUT, 10**4):
        monkeypatch.setattr(passes, "NONZEROS_A_CALL", cut)
        few, own = passes.gathered(rows, factors)
        assert len(few.values) <= passes.GATHERED * len(rows.values)
        here, there = np.zeros(31), np.zeros(31)
        passes.add(kernels.gram_product, rows, factors, 0.7, v, here)
        passes.add(kernels.gram_product, few, own, 0.7, v, there)
        assert here.tobytes() == there.tobytes()
    assert passes.gathered(rows, np.ones(200))[0] is rows, "many rows are not copied"


@pytest.mark.parametrize(
    ("settings", "few", "names"),
    [
        (Settings(C=50.0, tol=1e-4), True, NAMES),
        (Settings(C=50, active_set=6000), False, NAMES),
        (Settings(C=0.5, active_set=6000), True, NAMES[:-1]),
    ],
    ids=["all rows", "blocks", "few columns"],
)
def test_no_kernel_call_on_rows_in_memory_visits_too_much(settings, few, names, monkeypatch):
    longest, met = 30, set()
    monkeypatch.setattr(ascent, "solved_directly", lambda *_: False)
    if not few:
        monkeypatch.setattr(few_columns, "worthwhile", lambda *_: False)

    def watched(name: str, kernel: kernels.Kernel, rows: Rows, *others: Any) -> Any:
        order = others[0] if name == "visit" else np.arange(len(rows.indptr) - 1)
        if rows.indptr[-1] > CUT_HELD or rows.indptr[0] > 0:
            met.add(name)
            assert np.diff(rows.indptr)[order].sum() <= 2 * CUT_HELD + longest, name
        return kernel(rows, *others)

    for name in NAMES:
        monkeypatch.setattr(kernels, name, partial(watched, name, getattr(kernels, name)))
    monkeypatch.setattr(passes, "NONZEROS_A_CALL", CUT_HELD)
    trained(data_of(), settings)
    assert met == set(names)


CUT_HELD = 400
"""Above what a chunk has (16 rows of 30 columns at most), below what is held."""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_after_an_error_or_a_signal_nothing_is_begun(error, threads):
    begun = []

    def task(item: int) -> None:
        begun.append(item)
        raise error

    with open_threads(threads) as opened, pytest.raises(error):
        opened.work(task, range(9))
    assert 1 <= len(begun) <= threads


@pytest.mark.parametrize("failing", [[0], [1], [0, 1]], ids=str)
def test_the_error_of_the_first_item_comes_out_whichever_failed_first(failing):
    begun, last_failed = threading.Barrier(2), threading.Event()

    def task(item: int) -> None:
        begun.wait(60.0)
        if item == 0 and failing == [0, 1]:
            assert last_failed.wait(60.0)
        try:
            if item in failing:
                raise RuntimeError(f"of item {item}")
        finally:
            if item == 1:
                last_failed.set()

    with open_threads(2) as opened, pytest.raises(RuntimeError, match=f"of item {failing[0]}"):
        opened.work(task, [0, 1])
    until(lambda: not any("learner" in t.name for t in threading.enumerate()))


def test_a_signal_in_the_calling_thread_waits_for_no_task_of_another():
    caller = threading.current_thread()
    begun, ended, returned = (threading.Event() for _ in range(3))

    def task(item: int) -> None:
        if threading.current_thread() is caller:
            assert begun.wait(60.0)
            raise KeyboardInterrupt
        begun.set()
        ended.wait(20.0)
        returned.set()

    try:
        with pytest.raises(KeyboardInterrupt), open_threads(2) as opened:
            opened.work(task, [1, 2])
        assert not returned.is_set()
    finally:
        ended.set()
