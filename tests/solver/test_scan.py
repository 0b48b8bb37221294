"""What rows say of weights at rest, on any number of threads."""

import numpy as np
import pytest

from streamtron.core import kernels, losses
from streamtron.core.losses import SQUARED_ERROR, SQUARED_HINGE
from streamtron.core.threads import open_threads
from streamtron.solver import passes
from streamtron.solver import scan as scan_module
from streamtron.solver.progress import BestWeights
from streamtron.solver.scan import Frozen
from streamtron.solver.targets import Targets
from tests.helpers.sources import csr, random_rows

COLUMNS = 6
RHO = 0.5


@pytest.mark.parametrize("loss", [SQUARED_HINGE, SQUARED_ERROR], ids=lambda loss: loss.name)
def test_a_scan_sums_the_rows_that_count_to_the_same_bits_on_any_threads(loss, monkeypatch):
    monkeypatch.setattr(passes, "SHARED", 1)
    monkeypatch.setattr(scan_module, "SHARED", 1)
    monkeypatch.setattr(passes, "SAMPLED", 3)
    rows, _ = random_rows(4, 300, COLUMNS)
    rows[0] = rows[7] = []
    rows[1::2] = [row[::-1] for row in rows[1::2]]  # columns of a row may fall
    draw = np.random.default_rng(4).integers
    signs, alphas = draw(-1, 2, 300).astype(np.int8), draw(0, 2**24, 300).astype(np.float32)
    alphas = alphas - np.float32(2**23) if loss.numbers else alphas
    t = np.zeros(300 if loss.numbers else 0)
    targets = Targets(np.arange(300), signs, np.full(300, 0.5), np.ones(300), t)
    counting = np.where(signs != 0, alphas, np.float32(0.0))
    told, added = [], set()
    for threads, given in (1, counting), *((number, alphas) for number in (1, 2, 3, 4, 6)):
        scan = Frozen(np.linspace(-1, 1, COLUMNS), 0.1, loss)
        with open_threads(threads):
            marks = scan.scan(csr(rows), targets, given, RHO)
        sums = scan.scan_sums
        told.append([array.tobytes() for array in (marks, sums.sums, sums.totals)])
        added.add((sums.fresh.tobytes(), sums.low.tobytes()))
    assert told[1:] == [told[1]] * 5
    assert len(added) == 1


def test_rows_are_scanned_on_to_the_same_precision_where_a_sum_was_taken():
    rows, one = csr([[(0, 1.0)], [(0, 2.0**-60)], [(0, -1.0)]]), np.ones(3)
    targets, scan = Targets(np.arange(3), one.astype(np.int8), one, one), Frozen(np.zeros(1), 0.0)
    for times in (1, 2):
        scan.scan(rows, targets, one.astype(np.float32), 0.0)
        scan.scan_sums.fold()
        assert scan.scan_sums.fresh.tolist() == [times * 2.0**-60]


def test_the_loss_is_bounded_with_the_bias_as_it_is_once_the_center_of_the_labels_is_put_back():
    center, bias, zero = 1e8, 0.300000008, np.zeros(1)
    off = (bias + center) - center
    targets = Targets(np.arange(1), np.ones(1, np.int8), np.ones(1), zero, zero, center)
    scan = Frozen(zero, bias, SQUARED_ERROR, 1.0)
    scan.scan(csr([[]]), targets, np.zeros(1, np.float32), 1.0)
    [lost] = losses.values(SQUARED_ERROR, np.array([off]), zero)
    assert off > bias
    assert lost <= scan.scan_sums.sum_at(kernels.LOSSES) <= lost * (1.0 + 1e-6)


def test_columns_once_proven_to_weigh_0_are_so_where_the_last_scan_proves_nothing():
    cost, signs, best = np.full(2, 0.1), np.ones(2, np.int8), BestWeights(np.zeros(2))
    for w, alpha in ((0.0, 0.2), (0.1, 0.0)):  # the optimum, and a step from it
        scan = Frozen(np.full(2, w), 0.0, SQUARED_HINGE, ratio=1.0)
        targets = Targets(np.arange(2), signs, cost, np.ones(2))
        scan.scan(csr([[(0, 1.0)], [(1, 1.0)]]), targets, np.full(2, alpha, np.float32), 0.0)
        best.take(scan)
        assert best.zeros.tolist() == [0, 1]
        assert best.certificate is not None
        assert best.certificate.zero_columns == 2
