"""One model from several parts of the data: certified, and the same wherever the parts are."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import streamtron
from streamtron import Machine, Settings, certify, forget, generate, update
from streamtron.core.errors import DataError, FileDamaged, MachineError, SettingsError
from streamtron.core.events import Event, ReadingDone
from streamtron.core.executor import LocalParts, Parts, PartsLost, Scans
from streamtron.runs import fit, parts
from streamtron.runs.report import Outcome
from streamtron.solver.alphas import SavedAlphas
from tests.helpers.optimum import holds_optimum
from tests.helpers.runs import kept, report_of, stopping, witness_of
from tests.helpers.svm_text import svm_lines, write_shards

ALL, WORKING_SET, BLOCKS = 10**9, 1_200_000, 300_000
"""Active sets that hold all rows of the corpus, those that matter, and some of these."""


def trained(
    corpus: list[Path], model: Path | None = None, *, threads: int = 2, **names: Any
) -> Outcome:
    """``names`` : settings, and what else a run is told."""
    of_run = names.keys() & {"listen", "open_parts", "resume", "overwrite"}
    how = {name: names.pop(name) for name in of_run}
    settings = Settings.from_dict({"C": 2.0, "tol": 1e-3, "parts": 5} | names)
    return fit.run(corpus, settings, model=model, machine=Machine(threads=threads), **how)


@pytest.mark.parametrize("active_set", [ALL, WORKING_SET, BLOCKS])
def test_the_bounds_hold_the_optimum_whatever_fits_as_a_witness_proves(
    corpus, active_set, tmp_path
):
    events: list[Event] = []
    found = trained(corpus, tmp_path / "m", active_set=active_set, listen=events.append)
    held = [event.active_rows for event in events if isinstance(event, ReadingDone)]
    report, steps = found.report, found.report["steps"]
    assert (report["readings"] == 1.0) == (active_set == ALL)
    assert 0 < held[-1] <= 3000
    assert (held[-1] < 3000) == (active_set < ALL)
    assert found.stop_reason == "certified"
    assert report["certificate"]["relative_duality_gap"] <= 1e-3
    assert holds_optimum(report, corpus)
    assert (report["parts"], report["bytes_sent"], report["workers"]) == (5, 0, {})
    assert {"describe", "look", "scan", "settle"} <= steps.keys()
    assert report["rounds"] == sum(step["rounds"] for step in steps.values())
    assert sum(step["seconds"] for step in steps.values()) <= report["seconds"]
    proof = certify(found.model, corpus, witness=witness_of(tmp_path / "m.run"))
    assert proof.readings == (1.0 if active_set == ALL else 2.0)  # preparing is one of them
    bound = report["certificate"]["upper_bound"]
    assert proof.certificate.upper_bound == pytest.approx(bound, rel=1e-13)


def test_rounds_tell_how_the_gap_closes_which_a_scan_then_proves_and_the_stage_ends(corpus):
    events: list[Event] = []
    trained(corpus, active_set=ALL, listen=events.append)
    rounds = [event for event in events if str(event).startswith("round ")]
    [scan] = [event.estimated_gap for event in rounds if event.step.endswith(": scan")]
    first, *_, last = filter(None, (event.estimated_gap for event in rounds))
    [proven] = [event.certificate for event in events if getattr(event, "certificate", None)]
    assert 1.0 >= first > 0.01 > 1e-3 > last == scan
    assert last == pytest.approx(proven.relative_duality_gap, rel=0.5)
    ended = [event for event in events if isinstance(event, ReadingDone)][-1]
    assert (ended.stage, ended.stop_reason) == ("ascent", "certified")


class Lossy(LocalParts):
    """Parts that are lost in a round, as with a worker that dies."""

    left, may_be_lost = 0, True

    def _map(self, step: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        Lossy.left -= 1
        if Lossy.left == 0:
            raise PartsLost
        return super()._map(step, arguments)


@contextmanager
def lossy(plans: Sequence[parts.PartPlan], scans: Scans) -> Iterator[Parts]:
    opened = [parts.open_part(plan, scans) for plan in plans]
    try:
        yield Lossy(opened)
    finally:
        for one in opened:
            one.close()


def no_bit_changes(
    train: Callable[..., Outcome],
    place: Path,
    last: Sequence[int] = (),
    lost: Sequence[float] = (0.5,),
) -> Outcome:
    """Other threads, parts lost at some of the rounds (shares of all), and a client that died after
    the ``last`` readings change no bit of a fit."""
    alone = train(place / "alone", threads=2)
    wanted = (place / "alone").read_bytes()
    train(place / "threads", threads=3)
    assert (place / "threads").read_bytes() == wanted
    for share in lost:
        Lossy.left = at = max(1, int(share * alone.report["rounds"]))
        found = train(place / "lost", open_parts=lossy, overwrite=True)
        assert (place / "lost").read_bytes() == wanted, at
        assert found.report["rounds"] > alone.report["rounds"], at
    for reading in last:
        with pytest.raises(InterruptedError):
            train(place / f"{reading}", listen=stopping(ReadingDone, reading + 1))
        train(place / f"{reading}", resume=True)
        assert (place / f"{reading}").read_bytes() == wanted, reading
    return alone


@pytest.mark.parametrize(
    ("loss", "active_set", "last"),
    [
        ("squared_hinge", ALL, [1]),
        ("squared_hinge", WORKING_SET, [1, 2]),
        ("squared_hinge", BLOCKS, [2]),
        ("log_loss", BLOCKS, []),
        ("hinge", ALL, []),
    ],
)
def test_threads_lost_parts_and_a_dead_client_change_no_bit(
    corpus, loss, active_set, last, tmp_path
):
    tol = 0.01 if active_set == BLOCKS else 1e-4
    few = {"loss": loss, "active_set": active_set, "tol": tol, "max_epochs": 3}
    lost = (0.0, 0.95) if active_set == ALL else (0.7,)
    no_bit_changes(partial(trained, corpus, **few), tmp_path, last, lost)


def test_parts_that_are_lost_five_times_in_a_row_end_a_run(corpus, monkeypatch):
    def lost(*_: Any) -> Any:
        raise PartsLost

    monkeypatch.setattr(Lossy, "_map", lost)
    with pytest.raises(MachineError, match="lost 5 times in a row, likely by their memory"):
        trained(corpus, open_parts=lossy)


def test_each_new_shard_is_one_more_part_and_the_run_of_the_last_shard_has_none(corpus, tmp_path):
    wider = tmp_path / "wider.svm"  # a shard with columns that the run never met
    wider.write_text("".join(f"{2 * (row % 2) - 1} {row + 1}:0.1 999:0.5\n" for row in range(300)))
    for threads in (1, 2):
        trained(corpus[:6], tmp_path / f"{threads}", parts=3)
        machine = Machine(threads=threads)
        found = update(tmp_path / f"{threads}", [*corpus[6:9], wider], machine=machine)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert [found.report[name] for name in ("rows", "columns", "parts")] == [3000, 999, 7]
    assert holds_optimum(found.report, [*corpus[:9], wider])
    last = forget(tmp_path / "2", [*corpus[1:9], wider])
    assert (last.report["rows"], "parts" in last.report["settings"]) == (300, False)
    assert holds_optimum(last.report, corpus[:1])
    assert not (tmp_path / "2.run" / "parts").exists()


def test_the_run_of_one_part_goes_on_in_several(corpus, tmp_path):
    trained(corpus[:9], tmp_path / "m", parts=None)
    found = update(tmp_path / "m", corpus[9], open_parts=partial(parts.open_here, threads=2))
    assert found.report["parts"] == 10
    assert holds_optimum(found.report, corpus)
    assert found.report["readings"] <= 3.0
    assert update(tmp_path / "m", corpus[9]).report["already_in_run"] == [corpus[9].name]
    more = trained(corpus, tmp_path / "m", parts=10, tol=1e-6, resume=True)  # its parts were saved
    assert more.report["certificate"]["relative_duality_gap"] <= 1e-6


def test_the_dual_variables_of_all_parts_are_never_together_in_memory(
    corpus, tmp_path, monkeypatch
):
    trained(corpus, tmp_path / "m")

    def all_together(_: Any) -> Any:
        raise AssertionError("all are read")

    monkeypatch.setattr(SavedAlphas, "_values", property(all_together))
    trained(corpus, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()
    assert kept(tmp_path, "m") == kept(tmp_path, "again")
    assert update(tmp_path / "m", corpus).report["rows"] == 3000
    forget(tmp_path / "again", corpus[0])


@pytest.mark.parametrize("parts", [None, 2])
def test_weights_that_forgotten_rows_have_made_are_not_certified_again(parts, tmp_path):
    X = np.random.default_rng(0).normal(size=(300, 6))
    paths = write_shards(tmp_path, svm_lines(X, np.sign(X[:, 0] + 0.5 * X[:, 1])), [3, 150])
    before = trained(paths, tmp_path / "m", parts=parts, tol=0.5).model.weights
    after = forget(tmp_path / "m", paths[0]).model.weights
    assert abs(after @ before) < (1.0 - 1e-9) * np.linalg.norm(after) * np.linalg.norm(before)


def test_one_part_is_the_model_without_parts(corpus, tmp_path):
    models = [trained(corpus, tmp_path / f"{parts}", parts=parts) for parts in (None, 1)]
    assert (tmp_path / "1").read_bytes() == (tmp_path / "None").read_bytes()
    assert "parts" not in models[0].model.settings
    assert streamtron.fit(corpus, parts=2).settings["parts"] == 2


def test_parts_may_hold_one_label_each_and_rows_of_no_weight(tmp_path):
    rows = {
        "a": "-1:1 2:1\n" * 5 + "-1:1 1:2\n" * 3,
        "b": "1:1 1:1\n" * 4,
        "c": "1:0 1:1\n",
        "d": "\n",
        "e": "1:2 1:3 9:1\n" + "-1:1 1:1\n" * 2,
    }
    for name, text in rows.items():
        (tmp_path / f"{name}.svm").write_text(text)
    found = trained([tmp_path], parts=5, weights_in_label=True, tol=1e-6)
    alone = trained([tmp_path], parts=None, weights_in_label=True, tol=1e-6)
    assert found.model.classes == alone.model.classes == (-1.0, 1.0)
    assert found.report["columns"] == alone.report["columns"]
    ours, theirs = (each.report["certificate"]["primal_objective"] for each in (found, alone))
    assert ours == pytest.approx(theirs, rel=3e-6)
    assert found.model.weights == pytest.approx(alone.model.weights, abs=5e-3)


@pytest.mark.parametrize("settings", [{"faithful": True}, {"stage": "1"}, {"parts": 11}], ids=str)
def test_parts_refuse_what_they_cannot_train(settings, corpus):
    refused = "parts is 11, and there are 10 shards" if "parts" in settings else "5 parts"
    with pytest.raises(SettingsError, match=refused):
        trained(corpus, **settings)


def test_a_label_that_is_new_and_a_damaged_state_of_a_part_are_refused(corpus, tmp_path):
    trained(corpus, tmp_path / "m", tol=0.1)
    before = (tmp_path / "m").read_bytes()
    (tmp_path / "third.svm").write_text("7 1:1\n")
    with pytest.raises(DataError, match=r"third\.svm.*7"):
        update(tmp_path / "m", tmp_path / "third.svm")
    assert (tmp_path / "m").read_bytes() == before
    [last, *_] = sorted((tmp_path / "m.run").glob("parts-*/part-0002.scan-*"), reverse=True)
    last.write_bytes(last.read_bytes()[:-1] + b"x")
    with pytest.raises(FileDamaged, match=r"part-0002\.scan"):
        trained(corpus, tmp_path / "m", tol=1e-6, resume=True)


FEW = {"active_set": 4000 * (8 * 30 + 24) // 10, "C": 5.0}
"""Memory for a tenth of the rows of few columns: the others are one quadratic of all."""


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Rows of few columns in six shards, of which five are fitted."""
    place = tmp_path_factory.mktemp("dense")
    generate(str(place), rows=4000, columns=30, seed=3, kind="dense", shards=6)
    return sorted(place.glob("*.svm"))


def test_blocks_of_the_hinge_in_parts_converge_as_in_one_process_and_lose_no_bit(tmp_path):
    """D of a block never falls."""
    generate(str(tmp_path / "wide"), rows=200, columns=1000, seed=1, shards=4)
    how: Any = {"loss": "hinge", "C": 5.0, "tol": 0.01, "active_set": 14_742, "threads": 1}
    few = partial(trained, [tmp_path / "wide"], **how)
    found, alone = (few(parts=parts).report for parts in (4, 1))
    assert found["certificate"]["relative_duality_gap"] <= 0.01
    assert found["readings"] <= 1.5 * alone["readings"]
    no_bit_changes(partial(few, parts=4, max_epochs=2), tmp_path, lost=(0.9,))


def test_a_run_that_ends_amid_visits_keeps_the_dual_variables_that_were_certified(corpus, tmp_path):
    how = {"loss": "hinge", "parts": 2, "active_set": 20_000, "tol": 0.2}
    found = trained(corpus[:4], tmp_path / "m", **how)
    proof, claimed = certify(tmp_path / "m").certificate, found.report["certificate"]
    assert found.report["steps"].keys() >= {"read", "begin_block"}
    assert proof.dual == pytest.approx(claimed["dual_objective"], rel=1e-9)


def test_a_free_bias_moves_in_the_blocks_of_parts_and_of_those_that_come_later(tmp_path):
    generate(str(tmp_path / "wide"), rows=600, columns=2000, seed=1, shards=5)
    *shards, last = sorted((tmp_path / "wide").glob("*.svm"))
    how: Any = {"loss": "squared_error", "C": 5.0, "tol": 0.02, "active_set": 100_000, "parts": 4}
    found = no_bit_changes(partial(trained, shards, **how), tmp_path, [1])
    proven, told = certify(tmp_path / "alone").certificate, found.report["certificate"]
    assert proven.dual == pytest.approx(told["dual_objective"], rel=1e-8)
    generate(str(tmp_path / "text"), rows=600, columns=2000, seed=1, shards=4)
    how |= {"loss": "squared_hinge", "C": 0.5, "intercept": "free", "active_set": 40_000}
    text, alone = (trained([tmp_path / "text"], **how | {"parts": k}).report for k in (4, 1))
    assert sum(reading["newton_steps"] for reading in alone["history"]) <= 1000  # rows are visited
    for report in found.report, update(tmp_path / "alone", last).report, text, alone:
        assert report["certificate"]["relative_duality_gap"] <= 0.02
        assert report["readings"] <= 6.0  # preparing is one of them
    how |= {"loss": "hinge", "C": 20.0, "tol": 0.1, "active_set": 110_000}  # blocks begin later
    assert trained([tmp_path / "text"], **how | {"parts": 2}).report["readings"] <= 10.0


def test_where_columns_are_few_nothing_changes_a_bit_and_runs_grow_and_are_proven(dense, tmp_path):
    few = partial(trained, dense[:5], tol=1e-6, **FEW)
    found = no_bit_changes(few, tmp_path, [1], (0.2, 0.9))
    proof = certify(tmp_path / "alone")
    assert proof.readings == 2.0  # preparing is one of them
    claimed = found.report["certificate"]["upper_bound"]
    assert proof.certificate.upper_bound == pytest.approx(claimed, rel=1e-13)
    grown = update(tmp_path / "alone", dense[5], tol=1e-6)
    assert (grown.report["parts"], grown.stop_reason) == (6, "certified")
    assert holds_optimum(grown.report, dense)
    assert grown.report["rounds"] <= 2 * found.report["rounds"]


def test_rows_of_other_columns_are_added_to_parts_of_few_columns(dense, tmp_path):
    trained(dense[:5], tmp_path / "run", **FEW | {"C": 0.5, "tol": 0.03})
    wide = tmp_path / "wide.svm"
    wide.write_text(dense[5].read_text().replace(" 30:", " 100:"))
    grown = update(tmp_path / "run", wide, tol=0.03)
    assert grown.stop_reason == "certified"
    assert holds_optimum(grown.report, [*dense[:5], wide])


def test_a_resumed_run_keeps_its_classes_though_another_label_comes_first_now(tmp_path):
    """The shard whose label came first is forgotten, and the cache lost."""
    rng, paths = np.random.default_rng(0), [tmp_path / f"{name}.svm" for name in "abc"]
    for path, labels in zip(paths, ("1 -1", "-1 1", "-1 1"), strict=True):
        rows = (f"{y} 1:{rng.normal(float(y)):g} 2:{rng.normal():g}" for y in 20 * labels.split())
        path.write_text("\n".join(rows) + "\n")
    how: Any = {"model": tmp_path / "m", "machine": Machine()}
    streamtron.run(paths, Settings(parts=2, index_base=1), **how)
    wanted = forget(tmp_path / "m", paths[0]).model.weights
    shutil.rmtree(tmp_path / "m.run" / "cache")
    resumed = streamtron.run(paths[1:], Settings(index_base=1), **how, resume=True)
    assert np.array_equal(resumed.model.weights, wanted)


FOUR = np.array([[0.1, -0.1], [-0.5, 0.4], [0.6, 0.1], [1.3, 0.9]]), np.array([1, -1, 1, 1])


def shards_of(place: Path, rows: tuple[Any, Any], ends: Sequence[int]) -> list[Path]:
    """The rows in shards that end before these."""
    return write_shards(place / "s", svm_lines(*rows), ends)


def report(shards: list[Path], parts: int | None, **names: Any) -> dict[str, Any]:
    few = {"C": 1.0, "max_epochs": 20, "parts": parts}
    return trained(shards, threads=1, **few | names).report


def agree(found: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the bounds of two certificates may hold the same best margin."""
    least = max(found["primal_margin"], other["primal_margin"])
    return bool(least <= min(found["upper_bound"], other["upper_bound"]) * (1 + 1e-12))


def proven_as_by_one_part(shards: list[Path], **names: Any) -> None:
    found, alone = report(shards, len(shards), **names), report(shards, None, **names)
    assert found["stop_reason"] == alone["stop_reason"] == "certified"
    assert found["readings"] <= 4, "two are usual where memory holds all rows"
    learners = (each.get("learners", [each]) for each in (found, alone))
    for together, by_itself in zip(*learners, strict=True):
        assert together["certificate"]["relative_duality_gap"] <= 1e-3
        assert agree(together["certificate"], by_itself["certificate"])


def separable(seed: int) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """20 to 1,000 rows, 2 to 50 columns, two classes that some margin parts."""
    rng = np.random.default_rng(seed)
    rows = int(np.exp(rng.uniform(np.log(20), np.log(1000))))
    X = rng.standard_normal((rows, int(np.exp(rng.uniform(np.log(2), np.log(50))))))
    w = rng.standard_normal(X.shape[1])
    w /= np.linalg.norm(w)
    labels = np.where(X @ w > 0.0, 1, -1)
    return X + np.outer(10.0 ** rng.uniform(-3.0, 0.0) * labels, w), labels


def drawn_parts(seed: int) -> tuple[tuple[Any, Any], Sequence[int], dict[str, Any]]:
    (X, labels), parts = separable(seed), 2 + seed % 3
    if seed % 2:  # a part may have one label only
        order = np.argsort(labels, kind="stable")
        X, labels = X[order], labels[order]
    ends = [len(labels) * k // parts for k in range(1, parts)]
    return (X, labels), ends, {"C": 10.0 ** (2 + seed // 3 % 5)}


def class_a_part() -> tuple[Any, Any]:
    X, labels = np.random.default_rng(0).standard_normal((90, 4)), np.repeat(["a", "b", "c"], 30)
    X[np.arange(90), np.arange(90) // 30] += 8.0
    return X, labels


def heavy_rows() -> tuple[Any, Any]:
    """Every third row is a million times as heavy as the others."""
    X, signs = separable(5)
    return X, np.array([f"{sign}:{10 ** (6 * (k % 3 == 0))}" for k, sign in enumerate(signs)])


def six_rows() -> tuple[Any, Any]:
    X, labels = separable(7)
    labels[:2] = 1, -1
    return X[:6], labels[:6]


SEPARABLE = {
    **{f"seed {seed}": drawn_parts(seed) for seed in range(15)},
    "four rows": (FOUR, [2], {"C": 1e4}),
    "a class a part": (class_a_part(), [30, 60], {"C": 1e5, "multiclass": True}),
    "heavy rows": (heavy_rows(), [155, 233], {"weights_in_label": True}),
    **{f"a row a part, C = {C}": (six_rows(), range(1, 6), {"C": C}) for C in (1e-3, 1.0, 1e4)},
}


@pytest.mark.parametrize("case", SEPARABLE)
def test_separable_rows_are_proven_in_any_parts_at_any_C(case, tmp_path):
    rows, ends, names = SEPARABLE[case]
    proven_as_by_one_part(shards_of(tmp_path, rows, ends), **names)


@pytest.mark.parametrize(
    ("loss", "at_0", "size", "active_set"),
    [
        ("squared_hinge", 1.0, 1e8, 100),
        ("log_loss", np.log(2.0), 1e8, 200),
        ("hinge", 1.0, 1e12, 200),
    ],
)
def test_equal_rows_of_both_labels_have_bounds_that_hold_0(loss, at_0, size, active_set, tmp_path):
    rows = np.full((6, 3), size) * [1.0, 2.0, 3.0], np.array([1, 1, -1, -1, 1, -1])
    shards = shards_of(tmp_path, rows, [3])
    names = {"loss": loss, "active_set": active_set, "rho": 0.0, "max_epochs": 3}
    proven = report(shards, 2, **names)["certificate"]
    assert (proven["dual_objective"] or 0.0) <= 6.0 * at_0 * (1 + 1e-15)
    assert 6.0 * at_0 * (1 - 1e-15) <= proven["primal_objective"]


@pytest.mark.parametrize("active_set", [0, 50, 1000])
def test_memory_for_less_than_a_row_a_part_ends_a_run_with_true_bounds(active_set, tmp_path):
    shards = shards_of(tmp_path, FOUR, [2])
    found = report(shards, 2, active_set=active_set)
    assert found["stop_reason"] in ("certified", "epoch limit")
    assert agree(found["certificate"], report(shards, None)["certificate"])


ROWS, SHARDS, COLUMNS = 1500, 6, 240
CLASSES = (1.0, 3.0, 4.0, 7.0)

SOME, FEWER = 200_000, 60_000
"""Active sets that hold the rows that matter to each class, and some of these."""

some_memories = pytest.mark.parametrize(
    "active_set", [ALL, SOME, pytest.param(FEWER, marks=pytest.mark.slow)]
)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of four classes (one), and of each class against the rest: of noisy rows; the last
    class occurs in the last shard alone, the first one not in it."""
    directory, rng = tmp_path_factory.mktemp("many"), np.random.default_rng(5)
    X = rng.normal(size=(ROWS, COLUMNS)) * (rng.random((ROWS, COLUMNS)) < 18 / COLUMNS)
    X[:, 0] += 0.1
    scores = X @ rng.normal(size=(COLUMNS, len(CLASSES))) + 2.0 * rng.normal(size=(ROWS, 1))
    last = np.arange(ROWS) >= ROWS - ROWS // SHARDS
    scores[~last, -1] = scores[last, 0] = -np.inf
    best = np.array(CLASSES)[scores.argmax(axis=1)]
    labels = {"one": [f"{label:g}" for label in best]}
    for label in CLASSES:
        labels[f"{label:g}"] = [str(1 if one == label else -1) for one in best]
    for name, own in labels.items():
        write_shards(directory / name, svm_lines(np.round(X, 2).astype(np.float32), own), SHARDS)
    return directory


def trained_many(place: Path, name: str = "one", model: Path | None = None, **how: Any) -> Outcome:
    """``trained`` of the shards in a folder, on four parts."""
    many = {"multiclass": True} if name == "one" else {}
    return trained([place / name], model, **{"parts": 4} | many | how)


@some_memories
def test_each_class_has_the_weights_of_its_own_fit(four, active_set):
    few = {"active_set": active_set, "tol": 0.02 if active_set == FEWER else 1e-3}
    found = trained_many(four, **few)
    assert found.stop_reason == "certified"
    assert found.model.classes == CLASSES
    rounds = 0
    for number, label in enumerate(CLASSES):
        alone = trained_many(four, f"{label:g}", **few)
        assert (found.model.weights[number] == alone.model.weights).all(), label
        assert found.report["learners"][number]["certificate"] == alone.report["certificate"]
        rounds += alone.report["rounds"]
    assert found.report["rounds"] < 0.6 * rounds


@some_memories
def test_threads_lost_parts_and_a_client_that_died_change_no_class(four, active_set, tmp_path):
    few = {"active_set": active_set, "tol": 0.04, "max_epochs": 4, "class_weight": "balanced"}
    alone = no_bit_changes(
        partial(trained_many, four, "one", **few),
        tmp_path,
        [1] if active_set == ALL else [2],
    )
    ends = {len(learner["history"]) for learner in alone.report["learners"]}
    assert active_set != SOME or len(ends) > 1


def test_weights_of_rows_count_in_balanced_weights(tmp_path):
    shards = {"a": "1:2 1:1\n-1:1 1:-1\n", "b": "-1:3 1:-2 2:1\n-1:0 1:1\n1:1 2:2\n"}
    for name, text in shards.items():
        (tmp_path / f"{name}.svm").write_text(text)
    parts = {"parts": 2, "weights_in_label": True}
    found = trained_many(tmp_path, "", class_weight="balanced", **parts)
    named = trained_many(tmp_path, "", class_weight={"1": 7 / 6, "-1": 7 / 8}, **parts)
    assert (found.model.weights == named.model.weights).all()
    assert found.report["readings"] == named.report["readings"]


def test_a_reading_is_told_with_what_an_estimate_of_the_end_needs(four):
    events: list[Event] = []
    trained_many(four, listen=events.append)
    told = [event for event in events if isinstance(event, ReadingDone)]
    labels = [event.problem.label for event in told]
    assert sorted(labels[:4], key=str) == [*CLASSES]
    assert labels[:4] == labels[4:]
    assert {(event.rows, event.active_rows, event.tol) for event in told} == {(ROWS, ROWS, 1e-3)}
    ends = [(event.reading, event.stop_reason) for event in told]
    assert ends == [(0, None)] * 4 + [(1, "certified")] * 4


CLASSES_OF_SHARDS = {
    "names": {"a.csv": "label,f0,f1\na,1,2\nb,2,1\na,3,4\n", "b.csv": "label,f0,f1\nc,1,5\n"},
    "numbers": {"a.svm": "1 1:1\n2 2:1\n1 1:3 2:4\n", "b.svm": "7 1:1 2:5\n"},
}
"""Shards of which the second has the third class."""


@pytest.mark.parametrize("kind", CLASSES_OF_SHARDS)
@pytest.mark.parametrize("parts", [None, 2])
def test_a_third_class_starts_one_against_the_rest_without_being_asked(kind, parts, tmp_path):
    for name, text in CLASSES_OF_SHARDS[kind].items():
        (tmp_path / name).write_text(text)
    shards, readings = [tmp_path / name for name in CLASSES_OF_SHARDS[kind]], []
    how: Any = {"parts": parts, "machine": Machine()}
    for path, names in ("without", {}), ("with", {"multiclass": True}):
        streamtron.fit(shards, model=tmp_path / path, **how, **names)
        report = report_of(tmp_path / f"{path}.run")
        readings.append(report["readings"])
        assert [*map(type, report["learners"])] == [dict] * 3
    assert (tmp_path / "without").read_bytes() == (tmp_path / "with").read_bytes()
    assert readings[0] == readings[1]
    assert len([*(tmp_path / "without.run" / "cache").glob("*.cache")]) == len(shards)
    more = streamtron.fit(shards, model=tmp_path / "without", resume=True, tol=1e-9)
    assert len(more.classes) == 3
