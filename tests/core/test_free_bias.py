"""What a scan proves of the optimum where the bias is not penalised: Σ α_k l_k = 0 there."""

import numpy as np
import pytest

from streamtron import Settings
from streamtron.core.losses import HINGE
from streamtron.core.rows import Facts
from streamtron.solver.learner import Learner, augment
from streamtron.solver.scan import Frozen
from streamtron.solver.targets import Targets
from tests.helpers.sources import csr


def test_weights_with_a_small_objective_far_from_those_of_the_dual_point_prove_no_more():
    """P of these weights alone, and how unbalanced the dual point is, would."""
    rows, alphas = csr([[(0, 1.0)], [(0, 10.0)]]), np.float32([0.04, 0.0396])
    targets = Targets(np.arange(2), np.int8([1, -1]), np.full(2, 0.04), np.array([1.0, 100.0]))
    frozen = Frozen(np.array([-0.1]), 0.0, HINGE, 4.0)
    frozen.scan(rows, targets, alphas, 4.0)
    balanced = float(2 * alphas[1]) - 0.5 * float(9.0 * alphas[1]) ** 2
    assert 0.9 * balanced < frozen.certificate().dual <= balanced


@pytest.mark.parametrize("rho", [1.0, 4096.0])
def test_the_feature_of_the_bias_does_not_matter_to_what_is_proven(rho):
    """Of a dual point that is off by a part of 10⁻⁶."""
    rows, alphas = csr([[(0, 1.0)], [(0, -1.0)]]), np.float32([0.25, 0.25 * (1.0 - 1e-6)])
    targets = Targets(np.arange(2), np.int8([1, -1]), np.full(2, 0.5), np.ones(2))
    frozen = Frozen(np.array([0.5]), 0.0, HINGE, rho)
    frozen.scan(rows, targets, alphas, rho)
    assert frozen.certificate().dual == pytest.approx(0.375, rel=1e-5)


def test_another_feature_changes_neither_the_best_weights_nor_the_dual_variables():
    at = 4096.0
    learner = Learner(Settings(C=1.0, intercept="free"), 2, Facts(2, 2.0, 1.0, 1.0, 1.0, ()))
    running, best = learner.running, learner.best
    running.settle(np.ones(2), 3.0 * at, 5.0)  # Σ α_k l_k = 3
    best.bias, best.candidate = 0.5 / at, np.array([1.0, 2.0, 0.25 / at])
    augment(learner, 4.0)
    assert (running.bias, 4.0 * best.bias, 4.0 * best.candidate[-1]) == (12.0, 0.5, 0.25)
