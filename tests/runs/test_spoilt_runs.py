"""Spoilt weights of a run are made afresh from its dual variables."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import streamtron
from streamtron import Machine, Settings, certify
from streamtron.core import kernels
from streamtron.core.errors import DataError
from streamtron.core.events import Event, WorkDone
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.runs import store
from streamtron.runs.report import Outcome
from streamtron.runs.store import put_together
from streamtron.solver.checkpoint import State
from streamtron.solver.learner import Learner
from streamtron.solver.vectors import dense
from tests.helpers.learners import learners_of_run
from tests.helpers.optimum import holds_optimum
from tests.helpers.runs import fit, state_file, witness_of, write_corpus
from tests.helpers.shard_rows import chunks_in

ROUNDING = 1e-12


def change_last(
    run: Path, name: str, change: Callable[[NDArray[np.float64]], None], number: int = 0
) -> None:
    """Change an array of a learner (or of its a) in the last state of a run, sealed again."""
    path = state_file(run)
    content, parts = read_sealed(path, "state of a run")
    arrays = {name: dense(array) for name, array in put_together(parts, content["sparse"]).items()}
    found = State(0, content["state"], {}).fields(number)[name]
    array = arrays[found["array"]].copy()
    change(array)
    found["array"] = f"moved {name} {number}"  # the array may be another's as well
    arrays[found["array"]] = array
    write_sealed(path, {**content, "sparse": {}}, arrays)


def put(value: float) -> Callable[[NDArray[np.float64]], None]:
    """Puts a value in the place of the largest number of an array."""

    def change(array: NDArray[np.float64]) -> None:
        array[np.abs(array).argmax()] = value

    return change


def spoil_bias(scalars: NDArray[np.float64]) -> None:
    scalars[kernels.BIAS] = np.nan


def rebuilt(learner: Learner, shards: list[Path]) -> NDArray[np.float64]:
    """Σ α_k l_k x_k from the rows, summed by another kernel, in another order of sums; of the
    columns that occur, which are few and keep their order."""
    total, occurs = np.zeros(4098), np.zeros(4097, bool)
    first = 0
    for chunk in chunks_in(*shards):
        ranges = ((first, first := first + len(chunk)),)
        targets = learner.targets(replace(chunk, ranges=ranges))
        factors = learner.alphas.take(targets.numbers) * targets.signs.astype(float)
        kernels.combine(chunk.rows, factors, learner.settings.rho, total)
        occurs[chunk.rows.indices] = True
    return total[:-1][occurs]


def run_in(directory: Path, lines: list[str], **settings: Any) -> tuple[Path, Path]:
    """A run of rows, and its directory."""
    (directory / "rows.svm").write_text("".join(lines))
    model = directory / "m"
    streamtron.run(directory / "rows.svm", Settings(**settings), model=model, machine=Machine())
    return model, directory / "m.run"


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("lines") / "two"
    write_corpus(directory, rows=6000, columns=60, noise=0.1)
    return "".join(path.read_text() for path in sorted(directory.iterdir())).splitlines(True)


def test_the_distance_is_of_the_weights_from_those_that_the_dual_variables_make(lines, tmp_path):
    model, run = run_in(tmp_path, lines, C=2.0)
    loaded = streamtron.load(model)
    proof = certify(loaded, tmp_path / "rows.svm", witness=witness_of(run))
    [learner] = learners_of_run(run)
    dual = learner.running
    with store.reading(run) as opened:
        saved = opened.state()
    w = np.zeros(loaded.columns)
    w[saved.numbers - loaded.reading["index_base"]] = -dense(dual.w)  # the first row is −1
    by_hand = np.linalg.norm(loaded.weights - w) / np.linalg.norm(w)
    assert proof.distance == pytest.approx(by_hand, rel=1e-4)
    # both are within √(2 (P − D)) of the optimum, in a space of which the weights are a part
    assert proof.distance <= 2.0 * proof.decision_radius / np.linalg.norm(w)
    exact = streamtron.run(
        tmp_path / "rows.svm", Settings(C=2.0, tol=1e-11), witness=tmp_path / "w", machine=Machine()
    )
    near = certify(exact.model, tmp_path / "rows.svm", witness=tmp_path / "w")
    assert near.distance < 0.1 * proof.distance


def resumed(model: Path, corpus: list[Path], **settings: Any) -> Outcome:
    wanted = Settings.from_dict({"C": 5.0, "index_base": 0, **settings})
    return streamtron.run(corpus, wanted, model=model, machine=Machine(), resume=True)


def updated(model: Path, corpus: list[Path], first: int = 9) -> Outcome:
    return streamtron.update(model, corpus[first:])


REPAIRS: dict[str, tuple[slice, dict[str, Any], Callable[..., Outcome], slice]] = {
    # shards at first, settings, the change, shards in the end
    "update by few rows": (slice(9), {}, updated, slice(10)),
    "update by many rows": (slice(5), {}, lambda m, corpus: updated(m, corpus, 5), slice(10)),
    "update, few rows held": (slice(9), {"active_set": 60_000}, updated, slice(10)),
    "forget": (slice(10), {}, lambda m, corpus: streamtron.forget(m, corpus[9]), slice(9)),
    "resume": (slice(10), {}, lambda m, corpus: resumed(m, corpus, tol=1e-4), slice(10)),
}

SPOILT: dict[str, Callable[[Path], None]] = {
    "no number": lambda run: change_last(run, "running.w", put(np.nan)),
    "a best one that is no number": lambda run: change_last(run, "best.w", put(np.nan)),
    "a bias that is no number": lambda run: change_last(run, "running.scalars", spoil_bias),
}


@pytest.mark.parametrize(
    ("spoilt", "repair"),
    [
        *((spoilt, "update by few rows") for spoilt in SPOILT),
        *(("no number", repair) for repair in [*REPAIRS][1:]),
    ],
)
def test_what_goes_on_with_spoilt_weights_makes_new_ones(spoilt, repair, corpus, tmp_path, caplog):
    first, settings, change, last = REPAIRS[repair]
    model, run = tmp_path / "m", tmp_path / "m.run"
    fit(corpus[first], model, **settings)
    SPOILT[spoilt](run)
    outcome = change(model, corpus)
    shards, tol = corpus[last], outcome.report["settings"]["tol"]
    assert outcome.stop_reason == "certified"
    assert np.isfinite(outcome.model.weights).all()
    [learner] = learners_of_run(run)
    w = rebuilt(learner, shards)
    assert np.linalg.norm(learner.running.w - w) <= ROUNDING * np.linalg.norm(w)
    proof = certify(model)
    assert proof.certificate.relative_duality_gap <= tol
    assert holds_optimum(outcome.report, shards)
    assert holds_optimum({**outcome.report, **proof.to_dict()}, shards)
    words = "memory or disk has changed them. They are made afresh from these."
    assert caplog.text.count(words) == 1


def test_a_state_amid_a_run_with_spoilt_weights_is_refused_in_a_sentence(corpus, tmp_path):
    def stop(event: Event) -> None:
        if isinstance(event, WorkDone) and event.rows and event.reading == 1:
            raise InterruptedError

    settings = Settings(C=5.0, index_base=0, active_set=60_000, tol=1e-6)
    model = tmp_path / "m"
    with pytest.raises(InterruptedError):
        streamtron.run(corpus, settings, model=model, listen=stop)
    change_last(tmp_path / "m.run", "running.w", put(np.nan))
    with pytest.raises(DataError, match=r"weights that are no numbers.*--overwrite"):
        streamtron.run(corpus, settings, model=model, resume=True)
