"""One model from several parts of the data: certified, and the same wherever the parts are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamtron
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, FileDamaged, SettingsError
from streamtron.core.events import Event, ReadingDone, RoundDone, StageDone
from streamtron.core.executor import LocalParts, Parts, Scans
from streamtron.data.writers.corpus import generate
from streamtron.runs import fit, parts
from streamtron.runs.certify import certify
from streamtron.runs.forget import forget
from streamtron.runs.outcome import Outcome
from streamtron.runs.update import update
from streamtron.solver.duals import SavedCounts
from streamtron.solver.part import Part
from tests.helpers.optimum import holds_optimum

ALL, WORKING_SET, BLOCKS = 10**9, 1_200_000, 300_000
"""Active sets that hold all rows of the corpus, those that matter, and some of these."""

regimes = pytest.mark.parametrize("active_set", [ALL, WORKING_SET, BLOCKS])


def trained(
    corpus: list[Path],
    model: Path | None = None,
    *,
    threads: int = 2,
    listen: Callable[[Event], None] = lambda _: None,
    open_parts: parts.OpenParts | None = None,
    resume: bool = False,
    overwrite: bool = False,
    **names: Any,
) -> Outcome:
    return fit.run(
        corpus, Settings.from_dict({"C": 2.0, "tol": 1e-3, "parts": 5} | names), model=model,
        machine=Machine(threads=threads), listen=listen, open_parts=open_parts, resume=resume,
        overwrite=overwrite,
    )  # fmt: skip


@regimes
def test_the_bounds_hold_the_optimum_whatever_fits_in_memory_and_the_witness_proves_them(
    corpus: list[Path], active_set: int, tmp_path: Path
) -> None:
    held: list[int] = []

    def listen(event: Event) -> None:
        if isinstance(event, ReadingDone):
            held.append(event.active_rows)

    found = trained(corpus, tmp_path / "m", active_set=active_set, listen=listen)
    assert (found.report["readings"] == 2.0) == (active_set == ALL)
    assert 0 < held[-1] <= 3000
    assert (held[-1] < 3000) == (active_set < ALL)
    assert found.stop_reason == "certified"
    assert found.report["certificate"]["relative_duality_gap"] <= 1e-3
    assert holds_optimum(found.report, corpus)
    assert found.report["parts"] == 5
    assert found.report["rounds"] == sum(s["rounds"] for s in found.report["steps"].values())
    proof = certify(found.model, corpus, witness=tmp_path / "m.run" / "witness").certificate
    assert proof.upper_bound == pytest.approx(found.report["certificate"]["upper_bound"], rel=1e-13)


def test_rounds_tell_how_the_gap_closes_which_a_scan_then_proves_and_the_stage_ends(
    corpus: list[Path],
) -> None:
    events: list[Event] = []
    trained(corpus, active_set=ALL, listen=events.append)
    rounds = [event for event in events if isinstance(event, RoundDone)]
    [scan] = [event for event in rounds if event.step == "scan"]
    first, *_, last = (event for event in rounds if event.gap_estimate is not None)
    [proven] = [event.certificate for event in events if getattr(event, "certificate", None)]
    assert 1.0 >= first.gap_estimate > 0.01 > 1e-3 > last.gap_estimate == scan.gap_estimate
    assert last.gap_estimate == pytest.approx(proven.relative_duality_gap, rel=0.5)
    [ended] = [event for event in events if isinstance(event, StageDone)]
    assert (ended.stage, ended.stop_reason) == ("ascent", "the certificate meets the tolerance")


class Forgetful(LocalParts):
    """Parts of which some die in a round, as they do with a worker: their state is gone, and they
    are opened again by their plans."""

    def __init__(self, plans: Sequence[parts.PartPlan], scans: Scans, at: int) -> None:
        self.made = [parts.open_part(plan, scans) for plan in plans]
        super().__init__(self.made)
        self.scans, self.plans, self.at = scans, plans, at

    def _map(self, step: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        self.at -= 1
        if self.at == 0:
            for number in (1, 3):
                self.made[number].close()
                self.made[number] = parts.open_part(self.plans[number], self.scans)
                for again, own in self.log.steps:
                    again(self.made[number], *own)
            self._parts = list[Part](self.made)
        return super()._map(step, arguments)


@contextmanager
def forgetful(plans: Sequence[parts.PartPlan], scans: Scans, at: int) -> Iterator[Parts]:
    opened = Forgetful(plans, scans, at)
    yield opened
    for one in opened.made:
        one.close()


class Stopped(Exception):
    """As the death of the client would."""


Training = Callable[..., Outcome]
"""``trained`` of a model at a path, with these names beside."""


def no_bit_changes(
    train: Training, place: Path, rounds: Callable[[int], set[int]], last: Sequence[int] = ()
) -> Outcome:
    """Other threads, parts lost in some of the rounds, and a client that died after the ``last``
    readings change no bit of a fit."""
    alone = train(place / "alone", threads=2)
    wanted = (place / "alone").read_bytes()
    train(place / "threads", threads=3)
    assert (place / "threads").read_bytes() == wanted
    for at in sorted(rounds(alone.report["rounds"])):
        found = train(place / "lost", open_parts=partial(forgetful, at=at), overwrite=True)
        assert (place / "lost").read_bytes() == wanted, at
        assert found.report["rounds"] == alone.report["rounds"], at
    for reading in last:

        def stop(event: Event, last: int = reading) -> None:
            if isinstance(event, ReadingDone) and event.reading == last:
                raise Stopped

        with pytest.raises(Stopped):
            train(place / f"{reading}", listen=stop)
        train(place / f"{reading}", resume=True)
        assert (place / f"{reading}").read_bytes() == wanted, reading
    return alone


@pytest.mark.parametrize(("active_set", "last"), [(ALL, [1]), (WORKING_SET, [1, 2]), (BLOCKS, [2])])
def test_threads_lost_parts_and_deaths_of_the_client_change_no_bit(
    corpus: list[Path], active_set: int, last: list[int], tmp_path: Path
) -> None:
    def rounds(number: int) -> set[int]:
        ends = {4, number - 2} if active_set != BLOCKS else {number - 2}
        return {number // 2, *ends} | ({1} if active_set == ALL else set())

    tol = 0.01 if active_set == BLOCKS else 1e-4
    few = {"active_set": active_set, "tol": tol, "max_epochs": 3}
    no_bit_changes(partial(trained, corpus, **few), tmp_path, rounds, last)


def test_the_witness_proves_the_model_in_one_reading_and_the_report_counts_steps(
    corpus: list[Path], tmp_path: Path
) -> None:
    model, report = tmp_path / "m", tmp_path / "r"
    fit.run(corpus, Settings(parts=2), model=model, report=report, machine=Machine())
    found = json.loads(report.read_text())
    assert {"start", "look", "line", "scan"} <= found["steps"].keys()
    assert (found["bytes_sent"], found["workers"]) == (0, {})
    assert sum(step["seconds"] for step in found["steps"].values()) <= found["seconds"]
    proof = certify(model, corpus, witness=tmp_path / "m.run" / "witness")
    assert proof.readings == 1.0
    ours, theirs = found["certificate"], proof.certificate
    assert theirs.upper_bound == pytest.approx(ours["upper_bound"], rel=1e-13)
    assert theirs.relative_duality_gap <= Settings().tol


def test_each_new_shard_is_one_more_part_and_the_run_of_the_last_shard_has_none(
    corpus: list[Path], tmp_path: Path
) -> None:
    wider = tmp_path / "wider.svm"  # a shard with columns that the run never met
    wider.write_text("".join(f"{2 * (row % 2) - 1} {row + 1}:0.1 999:0.5\n" for row in range(300)))
    trained(corpus[:6], tmp_path / "m", parts=3)
    for threads in (1, 2):
        shutil.copytree(tmp_path / "m.run", tmp_path / f"{threads}.run")
        shutil.copy(tmp_path / "m", tmp_path / f"{threads}")
        machine = Machine(threads=threads)
        found = update(tmp_path / f"{threads}", [*corpus[6:9], wider], machine=machine)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert [found.report[name] for name in ("rows", "columns", "parts")] == [3000, 999, 7]
    assert holds_optimum(found.report, [*corpus[:9], wider])
    last = forget(tmp_path / "2", [*corpus[1:9], wider])
    assert (last.report["rows"], "parts" in last.report["settings"]) == (300, False)
    assert holds_optimum(last.report, corpus[:1])
    assert not (tmp_path / "2.run" / "parts").exists()


def test_the_run_of_one_part_goes_on_in_several(corpus: list[Path], tmp_path: Path) -> None:
    trained(corpus[:9], tmp_path / "m", parts=None)
    with_parts = partial(parts.open_here, threads=2)
    found = update(tmp_path / "m", corpus[9], open_parts=with_parts)
    assert found.report["parts"] == 10
    assert holds_optimum(found.report, corpus)
    assert found.report["readings"] <= 3.0
    again = update(tmp_path / "m", corpus[9])
    assert again.report["already_in_run"] == [corpus[9].name]
    more = trained(corpus, tmp_path / "m", parts=10, tol=1e-6, resume=True)  # its parts were saved
    assert more.report["certificate"]["relative_duality_gap"] <= 1e-6


def test_a_label_that_is_new_ends_an_update_in_parts(corpus: list[Path], tmp_path: Path) -> None:
    trained(corpus, tmp_path / "m", tol=0.1)
    before = (tmp_path / "m").read_bytes()
    (tmp_path / "third.svm").write_text("7 1:1\n")
    with pytest.raises(DataError, match=r"third\.svm.*7"):
        update(tmp_path / "m", tmp_path / "third.svm")
    assert (tmp_path / "m").read_bytes() == before


def test_the_counts_of_all_parts_are_never_together_in_memory(
    corpus: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(corpus, tmp_path / "m")

    def all_together(_: Any) -> Any:
        raise AssertionError("all counts are read")

    monkeypatch.setattr(SavedCounts, "_pages", property(all_together))
    monkeypatch.setattr(SavedCounts, "gaps", all_together)
    trained(corpus, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()
    written = [tmp_path / f"{name}.run" / "witness" for name in ("m", "again")]
    assert written[0].read_bytes() == written[1].read_bytes()
    assert update(tmp_path / "m", corpus).report["rows"] == 3000
    forget(tmp_path / "again", corpus[0])


def test_one_part_is_the_model_without_parts(corpus: list[Path], tmp_path: Path) -> None:
    models = [trained(corpus, tmp_path / f"{parts}", parts=parts) for parts in (None, 1)]
    assert (tmp_path / "1").read_bytes() == (tmp_path / "None").read_bytes()
    assert "parts" not in models[0].model.settings
    assert streamtron.fit(corpus, parts=2).settings["parts"] == 2


def test_parts_may_hold_one_label_each_and_rows_of_no_weight(tmp_path: Path) -> None:
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


def test_parts_refuse_what_they_cannot_train(corpus: list[Path]) -> None:
    with pytest.raises(SettingsError, match="parts is 11, and there are 10 shards"):
        trained(corpus, parts=11)
    for name, value in {
        "delta": 0.0, "faithful": True, "stage": "1", "order": "sequential",
    }.items():  # fmt: skip
        given = {"C": None} if name == "delta" else {}
        with pytest.raises(SettingsError, match="5 parts"):
            trained(corpus, **{name: value, **given})


def test_parts_refuse_what_a_reading_of_all_shards_would(
    corpus: list[Path], tmp_path: Path
) -> None:
    texts = {"a": "1 1:1\n-1 1:2\n", "b": "1 1:1\n", "c": "2 1:1\n-1 1:3\n", "d": "1 1:1\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.svm").write_text(text)

    def named(names: str) -> list[Path]:
        return [tmp_path / f"{name}.svm" for name in names]

    assert trained(named("abc"), parts=3).model.classes == (-1.0, 1.0, 2.0)
    with pytest.raises(DataError, match="1 labels"):
        trained(named("b") * 1 + named("d"), parts=2)
    with pytest.raises(DataError, match=r"the same bytes as b\.svm"):
        trained(named("abd"), parts=3)


def test_a_bad_shard_is_named_while_another_part_is_being_read(tmp_path: Path) -> None:
    (tmp_path / "0.svm").write_text("1 1:x\n")
    (tmp_path / "1.svm").write_text("".join(f"{k % 2} {k % 70 + 1}:2\n" for k in range(60_000)))
    with pytest.raises(DataError, match=r"0\.svm, line 1: value x in column 1"):
        trained([tmp_path / "0.svm", tmp_path / "1.svm"], parts=2)


def test_a_damaged_state_of_a_part_is_a_sentence(corpus: list[Path], tmp_path: Path) -> None:
    trained(corpus, tmp_path / "m", tol=0.1)
    [last, *_] = sorted((tmp_path / "m.run" / "parts").glob("part-0002.scan-*"), reverse=True)
    last.write_bytes(last.read_bytes()[:-1] + b"x")
    with pytest.raises(FileDamaged, match=r"part-0002\.scan"):
        trained(corpus, tmp_path / "m", tol=1e-6, resume=True)


def test_products_of_earlier_steps_save_rounds_on_wide_rows(tmp_path: Path) -> None:
    generate(str(tmp_path / "wide"), rows=1600, columns=6000, seed=1, shards=8)
    found = trained([tmp_path / "wide"], C=4.0, parts=8)
    assert found.stop_reason == "certified"
    assert found.report["rounds"] <= 40  # without those products 54


def sorted_by_label(shards: Sequence[Path], directory: Path) -> list[Path]:
    """The rows of shards in as many shards, those of one label first."""
    directory.mkdir()
    lines = sorted(
        (line for path in shards for line in path.read_text().splitlines(keepends=True)),
        key=lambda line: line.split()[0],
    )
    for path, own in zip(shards, np.array_split(np.array(lines), len(shards)), strict=True):
        (directory / path.name).write_text("".join(own))
    return sorted(directory.iterdir())


@pytest.mark.parametrize("C", [0.5, 50.0])
def test_few_columns_take_few_rounds_whether_or_not_parts_are_alike(
    tmp_path: Path, C: float
) -> None:
    generate(str(tmp_path / "d"), rows=4000, columns=30, seed=1, shards=8, kind="dense")
    shards = sorted((tmp_path / "d").iterdir())
    alike = trained(shards, C=C, parts=8)
    unlike_shards = sorted_by_label(shards, tmp_path / "sorted")
    unlike = trained(unlike_shards, C=C, parts=8)
    assert alike.stop_reason == unlike.stop_reason == "certified"
    assert alike.report["rounds"] <= 10
    assert unlike.report["rounds"] <= 12
    assert holds_optimum(unlike.report, unlike_shards)


# --- a tenth of rows of few columns in memory: the others are one quadratic of all ----------------

FEW = {"active_set": 4000 * (8 * 30 + 24) // 10, "C": 5.0}


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Rows of few columns in six shards, of which five are fitted."""
    place = tmp_path_factory.mktemp("dense")
    generate(str(place), rows=4000, columns=30, seed=3, kind="dense", shards=6)
    return sorted(place.glob("*.svm"))


@pytest.mark.parametrize("C", [0.5, 50.0])
def test_a_tenth_of_the_rows_in_parts_takes_hardly_more_readings_than_in_one_process(
    dense: list[Path], C: float
) -> None:
    found, alone = (trained(dense[:5], **FEW | {"C": C, "parts": parts}) for parts in (5, 1))
    assert found.stop_reason == "certified"
    assert holds_optimum(found.report, dense[:5])
    assert found.report["readings"] <= 1.5 * alone.report["readings"]
    assert found.report["rounds"] <= 30


def test_where_columns_are_few_nothing_changes_a_bit_and_the_witness_proves_the_run_that_grows(
    dense: list[Path], tmp_path: Path
) -> None:
    few = partial(trained, dense[:5], tol=1e-6, **FEW)
    found = no_bit_changes(few, tmp_path, lambda n: {2, 3, n // 2, n - 2, n - 1}, [1])
    proof = certify(tmp_path / "alone")
    assert proof.readings == 1.0
    claimed = found.report["certificate"]["upper_bound"]
    assert proof.certificate.upper_bound == pytest.approx(claimed, rel=1e-13)
    grown = update(tmp_path / "alone", dense[5], tol=1e-6)
    assert (grown.report["parts"], grown.stop_reason) == (6, "certified")
    assert holds_optimum(grown.report, dense)
    assert grown.report["rounds"] <= 2 * found.report["rounds"]


def test_rows_of_other_columns_are_added_to_parts_of_few_columns(
    dense: list[Path], tmp_path: Path
) -> None:
    trained(dense[:5], tmp_path / "run", **FEW | {"C": 0.5, "tol": 0.03})
    wide = tmp_path / "wide.svm"
    wide.write_text(dense[5].read_text().replace(" 30:", " 100:"))
    grown = update(tmp_path / "run", wide, tol=0.03)
    assert grown.stop_reason == "certified"
    assert holds_optimum(grown.report, [*dense[:5], wide])


def test_where_columns_are_few_each_class_has_the_weights_of_its_own_fit(
    dense: list[Path], tmp_path: Path
) -> None:
    for name in ("all", "0", "1", "2"):
        (tmp_path / name).mkdir()
        for shard in dense[:5]:
            rows = [line.split(" ", 1)[1] for line in shard.read_text().splitlines()]
            classes = [(3 * ("1:-" in row) + row.count("-")) % 3 for row in rows]
            labels = [k if name == "all" else 1 if k == int(name) else -1 for k in classes]
            lines = [f"{label} {row}\n" for label, row in zip(labels, rows, strict=True)]
            (tmp_path / name / shard.name).write_text("".join(lines))
    found = trained([tmp_path / "all"], multiclass=True, **FEW)
    assert found.stop_reason == "certified"
    for number, label in enumerate(found.model.classes):
        alone = trained([tmp_path / f"{label:g}"], **FEW)
        assert (found.model.weights[number] == alone.model.weights).all(), label


def test_a_resumed_run_keeps_its_classes_though_another_label_comes_first_now(
    tmp_path: Path,
) -> None:
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
