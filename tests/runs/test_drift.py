"""Drift: the weights that a run carries are those that its counts make, or it says so."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import streamtron
from streamtron import Machine, Settings, StreamtronRegressor, certify
from streamtron.core import kernels
from streamtron.core.errors import DataError
from streamtron.core.events import ChunkDone, Event
from streamtron.core.files import locked
from streamtron.data import open_shards
from streamtron.runs import witness as witness_file
from streamtron.runs.certify import running_weights
from streamtron.runs.directory import CHECKPOINT, Run
from streamtron.runs.finished_run import FinishedRun, locate
from streamtron.runs.report import Outcome
from streamtron.solver.checkpoint import State
from streamtron.solver.learner import Learner
from streamtron.solver.stopping import LARGE_DRIFT
from streamtron.solver.vectors import dense
from tests.helpers.learners import learners_of_run, restored_whole
from tests.helpers.optimum import holds_optimum
from tests.helpers.processes import here, succeeded
from tests.helpers.runs import content, fit, write_corpus
from tests.helpers.svm_text import svm_lines, write_shards

PLANTED = 0.01
ROUNDING = 1e-12


def plant(run: Path, drift: float = PLANTED, numbers: tuple[int, ...] = (0,)) -> None:
    """Move running weights of learners by so large a part of their length, as a flipped bit in
    memory would have, in the last checkpoint of a run that has ended."""

    def move(array: NDArray[np.float64]) -> None:
        array[np.abs(array).argmax()] += drift * np.linalg.norm(array)

    for number in numbers:
        change_last(run, "running.w", move, number)


def change_last(
    run: Path, name: str, change: Callable[[NDArray[np.float64]], None], number: int = 0
) -> None:
    """Change an array of a learner (or of its a) in the last checkpoint of a run, sealed again."""
    with locked(run):
        checkpoint = Run(run).load()
        state = checkpoint.state
        found = state.fields(number)[name]
        array = state.arrays[found["array"]].copy()
        change(array)
        found["array"] = f"moved {name} {number}"  # the array may be another's as well
        state.arrays[found["array"]] = array
        Run(run).save(checkpoint)


def put(value: float) -> Callable[[NDArray[np.float64]], None]:
    """Puts a value in the place of the largest number of an array."""

    def change(array: NDArray[np.float64]) -> None:
        array[np.abs(array).argmax()] = value

    return change


def changed(run: Path, change: Callable[[Learner], object], **fields: Any) -> None:
    """Change the learner of a run of two classes in its last checkpoint, or fields of that."""
    with FinishedRun.to_change(locate(run)) as ended:
        before = ended.checkpoint
        [learner] = restored_whole(before.state, ended.settings, before.labels)
        change(learner)
        Run(run).save(before._replace(state=State.of(9, -1, [learner]), **fields))


def rebuilt(learner: Learner, shards: list[Path]) -> NDArray[np.float64]:
    """Σ c_k l_k x_k from the rows, summed by another kernel, in another order of sums."""
    total = np.zeros(len(learner.running.w) + 1)
    with open_shards(list(map(str, shards)), cache_dir=None, most_labels=None) as source:
        for chunk in source.chunks():
            targets = learner.targets(chunk)
            factors = learner.counts.take(targets.numbers) * targets.signs.astype(float)
            kernels.combine(chunk.rows, factors, learner.settings.rho, total)
    return total[:-1]


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


@pytest.mark.parametrize("first", ["-1", "1"])
def test_certify_reports_a_planted_drift_and_the_same_certificate(first, lines, tmp_path, caplog):
    ordered = sorted(lines, key=lambda line: line.split()[0] != first)
    model, run = run_in(tmp_path, [ordered[0], *lines], C=2.0)
    before = certify(model)
    assert not caplog.text
    plant(run)
    after = certify(model)
    [learner] = learners_of_run(run)
    w = rebuilt(learner, [tmp_path / "rows.svm"])
    by_hand = np.linalg.norm(learner.running.w - w) / np.linalg.norm(w)
    assert after.certificate.drift == pytest.approx(by_hand, rel=1e-12)
    assert after.certificate.drift == pytest.approx(PLANTED, rel=1e-9)
    assert after.certificate.upper_bound == before.certificate.upper_bound
    assert after.certificate.primal_margin == before.certificate.primal_margin
    assert "have drifted by 0.01 of their length" in caplog.text


def test_a_drift_in_columns_that_no_row_has_is_found(lines, tmp_path):
    def widen(learner: Learner) -> None:
        w = learner.running.w
        learner.running.w, learner.frozen = np.append(w, [0.5 * np.linalg.norm(w)]), None

    model, run = run_in(tmp_path, lines, C=2.0)
    changed(run, widen)
    assert certify(model).certificate.drift == pytest.approx(0.5, rel=1e-9)


def test_the_command_says_of_what_weights_it_tells_distance_and_drift(lines, tmp_path):
    run_in(tmp_path, lines, C=2.0)

    def told(*words: str) -> str:
        return succeeded(here(tmp_path, "certify", "m", *words)).stdout

    assert not re.search("distance|drift|scale|radius", told())
    for weights in ("model's", "running"):
        assert f"of the {weights} weights from those that the counts give" in told("-v")
    of_model = told("rows.svm", "-v", "--witness", "m.run/witness")
    assert ("distance" in of_model, "drift" in of_model) == (True, False)
    assert "distance" not in told("rows.svm", "-v")


def test_the_distance_is_of_the_weights_from_the_counts_at_their_own_best_scale(lines, tmp_path):
    model, run = run_in(tmp_path, lines, C=2.0)
    loaded = streamtron.load(model)
    proof = certify(loaded, tmp_path / "rows.svm", witness=run / "witness")
    [learner] = learners_of_run(run)
    dual = learner.running
    [w] = running_weights(run, loaded, witness_file.load(run / "witness")) or []
    best = dual.steps / dual.sq_norm * dense(w)[loaded.reading["index_base"] :][: loaded.columns]
    by_hand = np.linalg.norm(loaded.weights - best) / np.linalg.norm(best)
    assert proof.distance == pytest.approx(by_hand, rel=1e-4)
    # both are within √(2 (P − D)) of the optimum, in a space of which the weights are a part
    assert proof.distance <= 2.0 * proof.decision_radius / np.linalg.norm(best)
    exact = streamtron.run(
        tmp_path / "rows.svm", Settings(C=2.0, tol=1e-8), witness=tmp_path / "w", machine=Machine()
    )
    near = certify(exact.model, tmp_path / "rows.svm", witness=tmp_path / "w")
    assert near.distance < 0.1 * proof.distance


def spoil(run: Path, how: str) -> None:
    def count_more(learner: Learner) -> None:
        numbers, counts = learner.counts.entries()
        learner.counts.put(numbers[:1], counts[:1] + np.int32(1))

    if how == "other counts":
        changed(run, count_more)
    elif how == "taken up again":
        changed(run, lambda learner: learner.progress.finish(None))
    elif how == "other labels":
        changed(run, lambda _: None, labels=[1.0, 2.0])
    else:
        flip_amid(run / CHECKPOINT) if how == "a flipped bit" else (run / CHECKPOINT).unlink()
        (run / "checkpoint.before").unlink(missing_ok=True)


def flip_amid(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "how", ["no checkpoint", "a flipped bit", "other counts", "taken up again", "other labels"]
)
def test_without_a_last_checkpoint_a_run_is_certified_and_no_drift_told(
    how, lines, tmp_path, caplog
):
    model, run = run_in(tmp_path, lines, C=2.0)
    whole = certify(model)
    spoil(run, how)
    proof = certify(model)
    assert proof.certificate.drift is None
    assert proof.certificate.upper_bound == whole.certificate.upper_bound
    said = "has other counts than" if how.startswith("other") else "has not ended"
    assert said in caplog.text
    assert "The drift of the running weights is not told." in caplog.text


def resumed(model: Path, corpus: list[Path], **settings: Any) -> Outcome:
    wanted = Settings.from_dict({"C": 5.0, "index_base": 0, **settings})
    return streamtron.run(corpus, wanted, model=model, machine=Machine(), resume=True)


REPAIRS: dict[str, tuple[slice, dict[str, Any], Callable[..., Outcome], slice]] = {
    # shards at first, settings, the change, shards in the end
    "update by few rows": (
        slice(9), {}, lambda m, corpus: streamtron.update(m, corpus[9]), slice(10)
    ),
    "update by many rows": (
        slice(5), {}, lambda m, corpus: streamtron.update(m, corpus[5:]), slice(10)
    ),
    "update, few rows held": (
        slice(9), {"active_set": 60_000}, lambda m, corpus: streamtron.update(m, corpus[9]),
        slice(10),
    ),
    "forget": (slice(10), {}, lambda m, corpus: streamtron.forget(m, corpus[9]), slice(9)),
    "resume": (slice(10), {}, lambda m, corpus: resumed(m, corpus, tol=1e-3), slice(10)),
}  # fmt: skip

SPOILT: dict[str, Callable[[Path], None]] = {
    "a drift": plant,
    "no number": lambda run: change_last(run, "running.w", put(np.nan)),
    "a best one that is no number": lambda run: change_last(run, "best.w", put(np.nan)),
    "a bias that is no number": lambda run: change_last(run, "running.scalars", put(np.nan)),
}


@pytest.mark.parametrize(
    ("spoilt", "repair"),
    [*((spoilt, "update by few rows") for spoilt in SPOILT),
     *(("no number", repair) for repair in [*REPAIRS][1:]), ("a drift", "forget")],
)  # fmt: skip
def test_what_goes_on_with_spoilt_weights_makes_them_afresh(
    spoilt, repair, corpus, tmp_path, caplog
):
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
    assert proof.certificate.drift <= ROUNDING
    assert proof.certificate.relative_duality_gap <= tol
    assert holds_optimum(outcome.report, shards)
    assert holds_optimum({**outcome.report, **proof.to_dict()}, shards)
    repaired, words = outcome.report["drift_repaired"], "They are made afresh from the counts."
    if spoilt != "a drift":
        assert repaired == 1.0
        assert caplog.text.count("memory or disk has changed them. " + words) == 1
    elif repair == "forget":  # which makes them afresh in any case
        assert (repaired, caplog.text) == (0.0, "")


@pytest.mark.parametrize("value", [np.nan, 1e200])
def test_certify_proves_of_spoilt_weights_what_it_proved_before(value, lines, tmp_path, caplog):
    model, run = run_in(tmp_path, lines, C=2.0)
    before = certify(model)
    change_last(run, "running.w", put(value))
    after = certify(model)
    assert after.certificate.upper_bound == before.certificate.upper_bound
    assert after.certificate.primal_margin == before.certificate.primal_margin
    assert "streamtron update sums the weights afresh" in caplog.text
    succeeded(here(tmp_path, "certify", "m"))
    told = succeeded(here(tmp_path, "certify", "m", "--json")).stdout
    assert json.loads(told)["certificate"]["drift"] is None


def test_a_checkpoint_amid_a_run_with_spoilt_weights_is_refused_in_a_sentence(corpus, tmp_path):
    def stop(event: Event) -> None:
        if isinstance(event, ChunkDone) and event.reading == 1:
            raise InterruptedError

    settings = Settings(C=5.0, index_base=0, active_set=60_000, tol=1e-6)
    often, model = Machine(checkpoint_every=0.0), tmp_path / "m"
    with pytest.raises(InterruptedError):
        streamtron.run(corpus, settings, model=model, machine=often, listen=stop)
    change_last(tmp_path / "m.run", "running.w", put(np.nan))
    with pytest.raises(DataError, match=r"weights that are no numbers.*--overwrite"):
        streamtron.run(corpus, settings, model=model, machine=often, resume=True)


def test_a_run_whose_last_checkpoint_is_damaged_is_ended_before_it_is_changed(corpus, tmp_path):
    model, run = tmp_path / "m", tmp_path / "m.run"
    settings, often = Settings(C=5.0, index_base=0), Machine(checkpoint_every=0.0)
    streamtron.run(corpus[:9], settings, model=model, machine=often)
    before = content(run, model)
    flip_amid(run / CHECKPOINT)
    for change in (streamtron.update, streamtron.forget):
        with pytest.raises(DataError, match=r"is damaged. End it with streamtron fit --resume"):
            change(model, corpus[8:])
    streamtron.run(corpus[:9], settings, model=model, machine=often, resume=True)
    assert content(run, model)["witness"] == before["witness"]
    assert streamtron.update(model, corpus[9]).stop_reason == "certified"


def test_a_drift_that_rounding_can_make_is_no_repair_and_not_told(corpus, tmp_path, caplog):
    def updated(shard: Path, drift: float) -> tuple[float, str]:
        plant(tmp_path / "m.run", drift)
        told = succeeded(here(tmp_path, "update", "m", shard, "--report", "r.json")).stdout
        return json.loads((tmp_path / "r.json").read_text())["drift_repaired"], told

    fit(corpus[:7], tmp_path / "m")
    repaired, told = updated(corpus[7], 0.5 * LARGE_DRIFT)
    assert repaired == 0.0
    assert "drifted" not in told + caplog.text
    repaired, told = updated(corpus[8], 20.0 * LARGE_DRIFT)
    assert LARGE_DRIFT < repaired < 100.0 * LARGE_DRIFT
    assert f"weights had drifted by {repaired:.1g} of their length" in told
    assert f"had drifted by {repaired:.1g} of their length" in caplog.text
    following = streamtron.update(tmp_path / "m", corpus[9]).report
    assert following["drift_repaired"] == 0.0, "a repair is of the change that made it"


def test_a_drift_that_rounding_explains_is_repaired_without_a_warning(tmp_path, caplog):
    """Of an ordinary table, its columns as they are: ages, incomes, shares, flags."""
    caplog.set_level(logging.INFO)
    rng, rows, model = np.random.default_rng(0), 12_000, tmp_path / "m"
    age, income = rng.integers(18, 90, rows), rng.lognormal(10, 1, rows)
    columns = [age, income.round(2), rng.random(rows).round(3), rng.integers(0, 2, rows)]
    columns.append(rng.normal(0, 1e4, rows).round(1))
    score = (age - 50) / 20 + np.log(income) / 2 - 5 + rng.normal(size=rows)
    lines = svm_lines(np.column_stack(columns), np.sign(score))
    first, second = write_shards(tmp_path, lines, [11_500])
    outcome = streamtron.run(first, Settings(tol=0.03, max_epochs=9), model=model)
    assert outcome.report["drift_repaired"] > LARGE_DRIFT
    told = [record for record in caplog.records if "had drifted" in record.message]
    assert told
    assert {record.levelno for record in told} == {logging.INFO}
    assert "by rounding" in told[0].message
    caplog.clear()
    plant(tmp_path / "m.run", 1.0)
    streamtron.update(model, second)
    warned = next(record for record in caplog.records if "had drifted" in record.message)
    assert warned.levelno == logging.WARNING
    assert "more than rounding explains" in warned.message


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_values_that_are_10_to_the_40_times_others_raise_no_alarm_of_hardware(tmp_path, caplog):
    path = tmp_path / "spread.svm"
    path.write_text("1 1:5.5e-18 3:-3.4e-15\n-1 1:3.6e22 2:-2.2e-2\n-1 1:2e3 3:-2.1e21\n")
    outcome = streamtron.run(path, Settings(C=4.4, rho=1.07, max_epochs=20), machine=Machine())
    assert outcome.report["drift_repaired"] > LARGE_DRIFT
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_weights_that_newton_s_method_alone_has_made_raise_no_alarm_of_hardware(caplog):
    caplog.set_level(logging.INFO)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(9000, 3)).astype(np.float32) * np.float32([1.0, 1e3, 1e3]) + np.float32(
        1e3
    )
    t = X.astype(np.float64) @ [1.0, 1.0, -1.0] + rng.normal(size=9000)
    model = StreamtronRegressor(C=100, tol=1e-6, loss="huber", epsilon=1e9, max_iter=3)
    model.fit(X, t)
    told = [record for record in caplog.records if "had drifted" in record.message]
    assert {record.levelno for record in told} == {logging.INFO}


@pytest.mark.parametrize("way", ["multiclass", "multilabel"])
def test_of_many_classes_each_has_its_drift_and_the_summary_names_the_largest(way, tmp_path):
    write_corpus(tmp_path / "many", rows=3000, columns=60, classes=3)
    shards = sorted((tmp_path / "many").iterdir())
    model, run = tmp_path / "m", tmp_path / "m.run"
    settings = Settings.from_dict({way: True, "tol": 0.1})
    # the classes come late: the last shard alone has all of them
    streamtron.run(shards[1:], settings, model=model, machine=Machine())
    with FinishedRun.to_change(locate(run)) as ended:
        met = ended.checkpoint.labels
    plant(run, 0.02, (0,))
    plant(run, 0.3, (2,))
    drifts = {label: each.certificate.drift for label, each in certify(model).classes}
    assert drifts == pytest.approx({met[0]: 0.02, met[1]: 0.0, met[2]: 0.3}, rel=1e-9, abs=ROUNDING)
    told = succeeded(here(tmp_path, "update", "m", shards[0], "--report", "r.json")).stdout
    report = json.loads((tmp_path / "r.json").read_text())
    found = [each["drift_repaired"] for each in report["learners"]]
    assert sorted(drift > LARGE_DRIFT for drift in found) == [False, True, True]
    assert f"had drifted by {max(found):.1g} of their length" in told
