"""Search for a large dual objective of problems whose weights are given.

Any α prove one. The first are made of the slopes of the loss at the weights, in the reading that
scans these: of a smooth loss they prove optimal weights, of the hinge little. To train from there
raises the dual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamtron.core.certificate import Certificate
from streamtron.core.config import Settings
from streamtron.core.events import WorkDone
from streamtron.core.threads import opened_threads
from streamtron.runs.scan import Scans
from streamtron.solver.learner import Learner
from streamtron.solver.reading import begin_reading, finish_reading, start_from_slacks
from streamtron.solver.train import OnePart
from streamtron.solver.working_set import hold_all

SEARCH_TOLERANCE = 1e-4
"""Gap at which the search ends early."""


def find_upper_bounds(
    scans: Scans,
    learners: Sequence[Learner],
    settings: Settings,
    readings: int,
) -> list[Certificate]:
    """Certify the learners' weights by a first reading, and where that leaves a gap train from
    there, with the order and the seed of ``settings``, in at most ``readings`` more."""
    certificates = scans.certify(learners, from_slacks=True)
    gaps = [proof.relative_duality_gap for proof in certificates]
    searching = [k for k, gap in enumerate(gaps) if gap > SEARCH_TOLERANCE]
    if not searching or scans.reading > readings:
        return certificates
    scans.listen(WorkDone("solving", scans.reading - 1))
    hold_all([learners[k] for k in searching], scans.data)
    for k in searching:
        start_from_slacks(learners[k])
    trained = [learners[k] for k in searching]
    trainer = OnePart(scans.data, trained, settings, scans.listen, opened_threads())
    while trainer.unfinished and scans.reading <= readings:
        training, number = trainer.unfinished, scans.reading
        trainer.tell_begin(number, training)
        for learner in training:
            begin_reading(learner, number)
        trainer.read(number, training)
        trainer.tell(number, "solving")
        trainer.solve(training, finish_reading)
        for k in searching:
            learner = learners[k]
            if learner not in training:
                continue
            if (bound := learner.certificate) is not None and bound.dual:
                certificates[k] = _with_bound(certificates[k], bound)
            _, _, mini_epochs = learner.progress.done_since(learner.running.updates)
            scans.tell(learner, certificates[k], mini_epochs)
        scans.reading += 1
    return certificates


def _with_bound(proof: Certificate, bound: Certificate) -> Certificate:
    """Return a certificate with the larger D of the two and its rounding, and with as many columns
    as either has proven to weigh 0."""
    proof = replace(proof, zero_columns=max(proof.zero_columns, bound.zero_columns))
    if bound.dual <= proof.dual:
        return proof
    return replace(proof, dual=bound.dual, rounding_bound=bound.rounding_bound)
