"""Shards that are added to a run whose own are gone: what is proven is of the new rows, and the run
goes on as ever when the old ones are back, or forgotten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize, minimize_scalar

import streamtron
from streamtron import once
from streamtron.errors import DataError, SettingsError
from streamtron.proof import Proof
from streamtron.shards import Manifest, open_shards
from streamtron.shards.corpus import generate
from streamtron.training.addition import add_alone
from streamtron.training.learner import Learner
from streamtron.training.loop import train
from tests.optimum import holds_optimum
from tests.runs import content
from tests.sources import ListSource
from tests.test_company import source_of
from tests.test_updating import code, fit, gap


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten shards of 300 rows."""
    directory = tmp_path_factory.mktemp("only-new") / "corpus"
    generate(str(directory), rows=3000, columns=400, seed=3, shards=10)
    return directory


@pytest.fixture
def corpus(generated: Path, tmp_path: Path) -> list[Path]:
    """The same, which a test may move."""
    return sorted(shutil.copytree(generated, tmp_path / "corpus").glob("*.svm"))


class Away:
    """Shards that are gone, and can come back."""

    def __init__(self, shards: list[Path], place: Path) -> None:
        self.shards, self.place = shards, place
        place.mkdir()
        for shard in shards:
            shutil.move(shard, place / shard.name)

    def back(self) -> None:
        """They are back as they were."""
        for shard in self.shards:
            shutil.move(self.place / shard.name, shard)


def added(corpus: list[Path], tmp_path: Path, number: int = 3, **settings: Any) -> Any:
    """A run on the first shards, which then are gone, and the last ``number`` added; the gone."""
    fit(corpus[:-number], tmp_path / "m", **settings)
    away = Away(corpus[:-number], tmp_path / "away")
    return streamtron.update(tmp_path / "m", corpus[-number:], only_new=True), away


def rows_of(shards: list[Path]) -> tuple[Any, Any]:
    """All rows with a constant 1, and their labels."""
    parts, labels = [], []
    with open_shards([str(shard) for shard in shards], cache_dir=None) as source:
        for chunk in source.chunks():
            rows = chunk.rows
            parts.append(
                sparse.csr_matrix(
                    (rows.values.astype(float), rows.indices.astype(int), rows.indptr),
                    shape=(len(chunk), 401),
                )
            )
            labels += [source.labels[each] for each in chunk.codes]
    whole = sparse.vstack(parts)
    return sparse.csr_matrix(sparse.hstack((whole, np.ones((len(labels), 1))))), np.array(labels)


def primal(rows: Any, labels: Any, v: Any, C: float) -> float:
    slacks = np.maximum(0.0, 1.0 - labels * (rows @ v))
    return float(0.5 * v @ v + C * slacks @ slacks)


def test_the_lower_bound_is_that_of_the_new_rows_and_there_is_no_upper_one(
    corpus: list[Path], tmp_path: Path
) -> None:
    outcome, _ = added(corpus, tmp_path)
    certificate, model = outcome.report["certificate"], outcome.model
    rows, labels = rows_of(corpus[-3:])
    v = np.append(model.weights, model.bias)
    best = minimize_scalar(lambda s: primal(rows, labels, s * v, 5.0), bounds=(0, 3))
    proven = 0.5 / certificate["primal_margin"] ** 2
    assert best.fun * (1 - 1e-9) <= proven <= best.fun * 1.001
    assert certificate["upper_bound"] is None
    assert certificate["relative_duality_gap"] == 1.0
    assert certificate["rows_scanned"] == 900
    assert certificate["unread"] == {"shards": 7, "rows": 2100}
    assert model.certificate == certificate
    assert (outcome.ending, outcome.exit_code) == ("added", 0)


def test_two_readings_of_the_new_rows_are_enough_where_they_fit(
    corpus: list[Path], tmp_path: Path
) -> None:
    outcome, _ = added(corpus, tmp_path)
    assert outcome.report["readings"] == 2.0
    assert outcome.report["rows"] == 900
    [new] = Manifest.load(str(tmp_path / "m.run" / "manifest.json")).shards[7:8]
    assert (new.path, new.first_row) == (str(corpus[7]), 2100)


def test_what_was_learned_of_the_old_rows_is_not_lost(corpus: list[Path], tmp_path: Path) -> None:
    fit(corpus[:7], tmp_path / "old", C=0.05)
    fit(corpus[-3:], tmp_path / "new", C=0.05)
    rows, labels = rows_of(corpus)
    outcome, _ = added(corpus, tmp_path, C=0.05)
    values = {
        name: primal(rows, labels, np.append(model.weights, model.bias), 0.05)
        for name, model in (
            ("both", outcome.model),
            ("old", streamtron.load(tmp_path / "old")),
            ("new", streamtron.load(tmp_path / "new")),
        )
    }
    assert values["both"] < values["old"] < values["new"]


def trained_and_added(**settings: Any) -> tuple[Learner, Learner, ListSource, int]:
    """A learner before and after rows were added alone; the rows, and how many were before."""
    chosen, new = streamtron.Settings(C=5.0, **settings), source_of()
    rows = len(new.codes)
    labels = [new.labels[each] for each in new.codes]
    old = source_of([-one if number % 7 == 3 else one for number, one in enumerate(labels)])
    learners = []
    for _ in range(2):
        learner = Learner(chosen, old.labels)
        train(old, [learner], chosen)
        learners.append(learner)
    before, after = learners
    after.begin_change()
    add_alone(new, [after], chosen, rows)
    return before, after, new, rows


@pytest.mark.parametrize(("active_set", "gap_left"), [(10**9, 0.01), (12_000, 0.05)])
def test_new_rows_are_solved_beside_the_weights_as_they_were(
    active_set: int, gap_left: float
) -> None:
    """Parts that hold a third of the rows need not come quite as near."""
    before, after, new, rows = trained_and_added(active_set=active_set)
    counts = after.counts.dense(2 * rows)
    assert counts[:rows].tolist() == before.counts.dense(rows).tolist()
    assert counts[rows:].any()
    assert before.targets.labels == new.labels
    signs = np.where(new.codes == 0, 1.0, -1.0)
    width = len(after.dual.w)
    dense = np.ones((rows, width + 1))
    values, columns, starts = new.rows.values, new.rows.indices, new.rows.indptr
    sparse_rows = sparse.csr_matrix((values, columns.astype(int), starts), shape=(rows, width))
    dense[:, :-1] = sparse_rows.toarray()
    center = np.zeros(width + 1)
    center[: len(before.dual.w)] = before.dual.w / after.b
    center[-1] = before.dual.bias / after.b

    def objective(v: Any) -> tuple[float, Any]:
        slacks = np.maximum(0.0, 1.0 - signs * (dense @ v))
        off = v - center
        value = 0.5 * off @ off + 5.0 * slacks @ slacks
        return float(value), off - 10.0 * dense.T @ (signs * slacks)

    found = np.append(after.dual.w, after.dual.bias) / after.b
    made = center + dense.T @ (signs * counts[rows:]) / after.b
    assert found == pytest.approx(made, abs=1e-9)
    least = minimize(objective, found, jac=True, method="L-BFGS-B", options={"gtol": 1e-9}).fun
    off = objective(found)[0] - least
    frozen = after.at_rest()
    for chunk in new.chunks():
        targets = after.targets(chunk)
        [(start, stop)] = chunk.ranges
        frozen.scan(chunk.rows, targets, counts[rows + start : rows + stop], 1.0)
    proven = frozen.evidence.gap_of_part(frozen.w, frozen.bias)
    assert -1e-9 <= off <= proven + 1e-9
    assert proven <= gap_left * (after.dual.objective + proven)


def test_rows_that_do_not_fit_are_read_again_until_they_are_solved_together(
    corpus: list[Path], tmp_path: Path
) -> None:
    fit(corpus[:7], tmp_path / "m")
    shutil.copytree(tmp_path / "m.run", tmp_path / "f.run")
    record = json.loads((tmp_path / "f.run" / "run.json").read_text())
    record["settings"]["active_set"] = 100_000
    (tmp_path / "f.run" / "run.json").write_text(json.dumps(record))
    few = streamtron.update(tmp_path / "f.run", corpus[-3:], only_new=True)
    all_ = streamtron.update(tmp_path / "m", corpus[-3:], only_new=True)
    assert few.report["readings"] == 2 * few.report["full_epochs"] > 2
    off = few.model.weights - all_.model.weights
    assert off @ off < 0.01 * (all_.model.weights @ all_.model.weights)


def test_when_the_old_shards_are_back_an_update_certifies_all_rows(
    corpus: list[Path], tmp_path: Path
) -> None:
    _, away = added(corpus[:-1], tmp_path)
    with pytest.raises(DataError, match=r"part-00000.svm: gone from .* Put it back .* --only-new"):
        streamtron.update(tmp_path / "m", corpus[-1])
    away.back()
    updated = streamtron.update(tmp_path / "m", corpus[-1])
    assert updated.report["rows"] == 3000
    assert updated.ending == "certified"
    assert "unread" not in updated.report["certificate"]
    assert holds_optimum(updated.report, corpus)


def test_when_the_old_shards_are_back_a_resumed_fit_certifies_all_rows(
    corpus: list[Path], tmp_path: Path
) -> None:
    _, away = added(corpus, tmp_path)
    settings, machine = streamtron.Settings(C=5.0, index_base=0), streamtron.Machine()
    with pytest.raises(DataError, match=r"part-00000.svm is missing"):
        streamtron.run(corpus[-3:], settings, model=tmp_path / "m", machine=machine, resume=True)
    away.back()
    again = streamtron.run(corpus, settings, model=tmp_path / "m", machine=machine, resume=True)
    assert again.ending == "certified"
    assert again.report["rows"] == 3000
    assert holds_optimum(again.report, corpus)


def test_the_witness_of_all_rows_proves_an_upper_bound_when_the_old_shards_are_back(
    corpus: list[Path], tmp_path: Path
) -> None:
    updated, away = added(corpus, tmp_path)
    away.back()
    proof = streamtron.certify(
        streamtron.load(tmp_path / "m"), corpus, witness=tmp_path / "m.run" / "witness"
    )
    assert isinstance(proof, Proof)
    assert proof.certificate.rows_scanned == 3000
    assert holds_optimum({**updated.report, "certificate": proof.certificate.to_dict()}, corpus)


def test_old_shards_that_are_gone_can_be_forgotten_and_new_ones_only_when_they_are_back(
    corpus: list[Path], tmp_path: Path
) -> None:
    added(corpus, tmp_path)
    with pytest.raises(DataError, match=r"part-00000.svm: gone from"):
        streamtron.forget(tmp_path / "m", [str(corpus[8])])
    left = streamtron.forget(tmp_path / "m", [shard.name for shard in corpus[:7]])
    assert left.report["rows"] == 900
    assert left.ending == "certified"
    assert holds_optimum(left.report, corpus[-3:])


def test_shards_are_added_alone_more_than_once(corpus: list[Path], tmp_path: Path) -> None:
    _, away = added(corpus[:-1], tmp_path, number=2)
    again = streamtron.update(tmp_path / "m", corpus[-1], only_new=True)
    assert again.report["certificate"]["unread"] == {"shards": 9, "rows": 2700}
    away.back()
    settings, machine = streamtron.Settings(C=5.0, index_base=0), streamtron.Machine()
    whole = streamtron.run(corpus, settings, model=tmp_path / "m", machine=machine, resume=True)
    assert whole.ending == "certified"
    assert whole.report["rows"] == 3000


def test_a_run_of_many_classes_has_rows_added_alone(tmp_path: Path) -> None:
    for name, rows in (("a", 60), ("b", 20)):
        lines = [f"{'xyz'[k % 3]} {k % 3}:1 {3 + k * k % 7}:0.5\n" for k in range(rows)]
        (tmp_path / f"{name}.svm").write_text("".join(lines))
    fit([tmp_path / "a.svm"], tmp_path / "m", multiclass=True)
    away = Away([tmp_path / "a.svm"], tmp_path / "away")
    outcome = streamtron.update(tmp_path / "m", tmp_path / "b.svm", only_new=True)
    assert [each["certificate"]["upper_bound"] for each in outcome.report["learners"]] == [None] * 3
    for told in (outcome.report["certificate"], *outcome.model.certificate["learners"]):
        assert told["unread"] == {"shards": 1, "rows": 60}
    away.back()
    (tmp_path / "c.svm").write_text("x 0:1\ny 1:1\nz 2:1\n")
    updated = streamtron.update(tmp_path / "m", tmp_path / "c.svm")
    assert updated.report["rows"] == 83
    assert gap(updated.report) <= 0.01


def test_columns_and_index_base_are_those_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 0:1 7:1\n-1 2:1 7:-1\n" * 20)
    (tmp_path / "b.svm").write_text("1 1:1\n-1 2:1\n" * 5)
    fit([tmp_path / "a.svm"], tmp_path / "m", index_base="auto")
    before = streamtron.load(tmp_path / "m")
    Away([tmp_path / "a.svm"], tmp_path / "away")
    model = streamtron.update(tmp_path / "m", tmp_path / "b.svm", only_new=True).model
    assert (model.index_base, model.columns) == (0, 8)
    # no new row has these two columns, so that they are as the counts left them
    assert model.weights[[0, 7]] == pytest.approx(before.weights[[0, 7]], rel=0.05)
    (tmp_path / "c.svm").write_text("1 12:1\n-1 2:1\n" * 5)
    wider = streamtron.update(tmp_path / "m", tmp_path / "c.svm", only_new=True).model
    assert (wider.index_base, wider.columns) == (0, 13)
    assert wider.weights[12] > 0.0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"class_weight": "balanced"}, "balanced class weights, which are those of all rows"),
        ({"faithful": True, "stage": "1", "rho": 0.0, "max_epochs": 3}, "a faithful run"),
    ],
)
def test_what_needs_all_rows_is_refused_and_nothing_is_changed(
    settings: dict[str, Any], sentence: str, corpus: list[Path], tmp_path: Path
) -> None:
    fit(corpus[:1], tmp_path / "m", **settings)
    before = content(tmp_path / "m.run", tmp_path / "m")
    with pytest.raises(SettingsError, match=sentence):
        streamtron.update(tmp_path / "m", corpus[1], only_new=True)
    assert content(tmp_path / "m.run", tmp_path / "m") == before


def test_rows_of_the_paper_s_stages_and_of_the_hard_margin_are_added_alone(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n" * 20)
    (tmp_path / "b.svm").write_text("1 1:2 3:1\n-1 2:1 3:-1\n" * 5)
    for name, settings in (("1", {"stage": "1"}), ("hard", {"C": None, "delta": 0.0})):
        fit([tmp_path / "a.svm"], tmp_path / name, index_base=1, **settings)
        outcome = streamtron.update(tmp_path / name, tmp_path / "b.svm", only_new=True)
        certificate = outcome.report["certificate"]
        assert certificate["upper_bound"] is None
        assert 0.0 < certificate["directional_margin"] <= certificate["primal_margin"] * (1 + 1e-12)


def test_the_command_says_of_which_rows_it_proves_what_and_no_gap(
    corpus: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(corpus[:7], tmp_path / "m")
    away = Away(corpus[:7], tmp_path / "away")
    call = ["update", str(tmp_path / "m"), *map(str, corpus[7:]), "--only-new", "--once", "monday"]
    assert code(*call, "--report", str(tmp_path / "r.json")) == 0
    printed = capsys.readouterr().out
    assert "Proven over the 900 rows that were added." in printed
    assert "Nothing is proven of the 2,100 rows of 7 shard(s) before them" in printed
    assert "\ngap" not in printed
    assert json.loads((tmp_path / "r.json").read_text())["ending"] == "added"
    assert once.made(tmp_path / "m.run", "monday") == 0
    assert code("inspect", str(tmp_path / "m")) == 0
    assert "\ngap" not in capsys.readouterr().out
    assert code("certify", str(tmp_path / "m")) == 3
    assert "part-00000.svm: gone from" in capsys.readouterr().err
    away.back()
    assert code("certify", str(tmp_path / "m")) == 0
    assert "3,000" in capsys.readouterr().out
