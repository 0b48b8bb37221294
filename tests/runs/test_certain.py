"""Labels that no further training can change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import make_classification

import streamtron
from streamtron import LinearModel
from streamtron.core.errors import SettingsError
from streamtron.core.theory import decision_radius
from streamtron.model.certainty import OptimumBounds, ball_of, certain, middle
from streamtron.model.display import joint_certificate
from tests.helpers.models import make_model
from tests.helpers.processes import one_sentence, succeeded
from tests.helpers.sources import csr
from tests.helpers.svm_text import svm_lines

LOOSE = {
    ("two", "squared_hinge"): 1e-3, ("multiclass", "squared_hinge"): 1e-5,
    ("multilabel", "squared_hinge"): 1e-5, ("two", "log_loss"): 1e-3,
    ("multiclass", "log_loss"): 1e-5, ("two", "hinge"): 1e-3,
}  # fmt: skip
"""Kind and loss → a tolerance at which some labels are certain and others are not."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with rows of every kind of classes."""
    directory = tmp_path_factory.mktemp("place")
    how: Any = {"n_informative": 5, "n_redundant": 0, "class_sep": 0.5, "random_state": 2}
    for name, classes in (("two", 2), ("multiclass", 4), ("multilabel", 4)):
        X, labels = make_classification(700, 10, n_classes=classes, **how)
        if name == "multilabel":
            labels = np.array(["0", "1", "0,1", ""])[labels]
        (directory / f"{name}.svm").write_text("".join(svm_lines(X, labels)))
    return directory


def _fit(place: Path, kind: str, tol: float, **more: Any) -> LinearModel:
    named = {} if kind == "two" else {kind: True}
    return streamtron.fit(place / f"{kind}.svm", tol=tol, C=0.1, max_epochs=500, **named, **more)


@pytest.mark.parametrize(("kind", "loss"), LOOSE)
def test_the_optimum_gives_certain_rows_their_label_and_all_values_within_bounds(place, kind, loss):
    shard, proba = place / f"{kind}.svm", loss == "log_loss"
    best_gap = 1e-11 if loss == "squared_hinge" else 1e-9
    loose, optimum = (_fit(place, kind, tol, loss=loss) for tol in (LOOSE[kind, loss], best_gap))
    [found] = streamtron.predict(loose, shard, certain=True, proba=proba)
    [best] = streamtron.predict(optimum, shard, proba=proba)
    same = np.array([a == b for a, b in zip(found.labels, best.labels, strict=True)])
    assert same[found.certain].all()
    assert 0.05 < found.certain.mean() < 1.0
    wanted = best.probabilities if proba else best.decisions
    least, most = found.bounds
    slack = 1e-4 * (most - least)  # what the other fit is off by, too
    assert (least - slack <= wanted).all()
    assert (wanted <= most + slack).all()
    assert not ((least + 0.4 * (most - least) <= wanted) & (wanted <= most)).all()  # tight
    if kind == "two":  # the ball around the optimum is half as large as that around the weights
        proven, central = loose.certificate, middle(loose)
        larger = decision_radius(proven["primal_objective"], proven["dual_objective"])
        off = np.append(central.weights - optimum.weights, central.bias - optimum.bias)
        radius = proven["ball"]["radius"]
        assert np.linalg.norm(off) <= radius <= (0.6 if loss != "hinge" else 0.708) * larger


def test_the_radius_holds_what_rounding_the_offsets_loses():
    w, v = np.array([1.0, 1.0, 1.0]), np.array([1.0 + 1e-3, 1.0 + 1e-3 / 3, 1.0 + 1e-12 / 3])
    P = 1.0 + np.linalg.norm(w - v) ** 2 / 2
    proven = {"primal_objective": P, "dual_objective": 1.0}
    offsets, ball = ball_of((w, 0.0), (v, 0.0), 0.0, 0.0, proven)
    off = np.linalg.norm(w + ball["unit"] * offsets.astype(float) - (w + v) / 2)
    half = np.linalg.norm(w - v) / 2
    assert half + off <= ball["radius"] <= half + 1.01 * off + 1e-9
    assert off > 0.0
    proven["primal_objective"] += 0.005
    _, beyond = ball_of((w, 0.0), (v, 0.0), 0.1, 0.01, proven)
    assert beyond["radius"] >= half + 0.05 + 0.01


def test_offsets_that_do_not_belong_to_a_model_are_refused(place):
    model = _fit(place, "two", 1e-3)
    for offsets, certificate, part in (
        (model.offsets[1:], model.certificate, "another number"),
        (np.full_like(model.offsets, np.inf), model.certificate, "must be finite"),
        (model.offsets, {**model.certificate, "ball": None}, "no ball"),
    ):
        with pytest.raises(SettingsError, match=part):
            model.but(offsets=offsets, certificate=certificate)


def _proven(weights: Any, bias: Any, classes: Any, radius: float, **reading: Any) -> LinearModel:
    """A model whose optimum lies within ``radius`` of its weights, but for rounding."""
    one = {"primal_objective": 0.5, "dual_objective": 0.5 - radius**2 / 2.0}
    one |= {"relative_duality_gap": 0.1, "rows_scanned": 1}
    two = np.ndim(weights) == 1
    proven = one if two else joint_certificate([one] * len(classes))
    return make_model(weights, bias, classes, settings={"rho": 1.0}, certificate=proven, **reading)


def test_a_decision_is_certain_from_the_radius_times_the_length_of_the_row_on():
    model = _proven((1.0, 0.0), 0.0, (-1.0, 1.0), radius=0.5)
    lengths = np.array([3.0, 3.0, 3.0, 0.0]) ** 0.5  # with ρ = 1: 2, 2, 2, 1
    rows = csr([((1, 1.001),), ((1, 0.999),), ((1, -1.001),), ()])  # counted from 1
    least, most = OptimumBounds(model).decisions(rows, lengths**2)
    assert most - least == pytest.approx([2.0, 2.0, 2.0, 1.0], rel=1e-12)
    assert certain(model, least, most).tolist() == [True, False, True, False]


def test_of_many_classes_the_highest_stays_above_all_and_of_several_none_may_change():
    model = _proven(np.eye(3), np.zeros(3), (1.0, 2.0, 3.0), radius=0.5)
    decisions = np.array([[0.0, 1.0 + 1e-9, -9.0], [0.0, 1.0 - 1e-9, -9.0], [-5.0, -9.0, -9.0]])
    assert certain(model, decisions - 0.5, decisions + 0.5).tolist() == [True, False, True]
    ties = np.array([[1.0, 1.0, -9.0]])
    assert not certain(model, ties, ties).any()
    model = _proven(np.eye(2), np.zeros(2), ("a", "b"), radius=0.5, multilabel=True)
    decisions = np.array([[0.6, -0.6], [0.6, -0.4]])
    assert certain(model, decisions - 0.5, decisions + 0.5).tolist() == [True, False]


def test_nothing_is_certain_where_nothing_is_proven():
    unproven = {"primal_objective": 1.0, "dual_objective": None, "relative_duality_gap": 1.0}
    model = make_model((1.0,), 0.0, settings={"rho": 0.0}, certificate=unproven)
    bounds = OptimumBounds(model).decisions(csr([((1, 1e9),), ()]), np.array([1e18, 0.0]))
    assert not certain(model, *bounds).any()


def test_predict_writes_what_is_certain_and_counts_it(run, place):
    _fit(place, "two", 1e-5, model=place / "model")
    for output in ("out.txt", "out.parquet"):
        done = succeeded(run("predict", "model", "two.svm", "--certain", "-o", output))
    lines = [line.split("\t") for line in (place / "out.txt").read_text().splitlines()]
    table = pq.read_table(place / "out.parquet")
    assert table.column_names == ["label", "decision", "certain", "at_least", "at_most"]
    assert [line[2] == "1" for line in lines] == table["certain"].to_pylist()
    assert [float(line[1]) for line in lines] == table["decision"].to_pylist()
    assert {line[2] for line in lines} == {"0", "1"}
    count = sum(line[2] == "1" for line in lines)
    assert done.stderr == f"700 rows, {count} certain\n"


def test_certain_labels_and_probabilities_that_a_model_does_not_have_are_refused(run, place):
    make_model(certificate=None).save(place / "plain")
    _fit(place, "two", 1e-3, model=place / "raw")
    for model, words, part in (("plain", [], "no certificate"), ("raw", ["--proba"], "calibrated")):
        done = run("predict", model, "two.svm", "--certain", *words, "-o", "none.tsv")
        one_sentence(done, 2, part)
        assert not (place / "none.tsv").exists()


@pytest.mark.parametrize(
    ("rows", "tol", "share"), [("two", 0.3, 0.9), ("two", 1e-8, 0.5), ("zero", 0.01, 1)]
)
def test_a_fit_goes_on_until_enough_labels_are_certain_or_says_so(run, place, rows, tol, share):
    (place / "zero.svm").write_text("1\n" * 3)  # decisions of a bias that is 0
    done = run("fit", "two.svm", "--C", 0.1, "--rho", int(rows == "two"), "--tol", tol, "--model",
               "until", "--until", f"certain={share}", "--valid", f"{rows}.svm",
               "--overwrite")  # fmt: skip
    model = streamtron.load(place / "until")
    if rows == "zero":
        assert done.returncode == 4, done.stderr
        assert "certain labels     0 of 3" in done.stdout
        assert model.certificate is not None
        return
    assert done.returncode == 0, done.stderr
    [found] = streamtron.predict(model, place / "two.svm", certain=True)
    assert found.certain.mean() >= share
    assert (model.settings["tol"] < tol) == (tol == 0.3), "which was enough at once, else"
    assert done.stdout.endswith(f"certain labels     {found.certain.sum()} of 700\n")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--until", "certain=0.9"], "--valid SHARDS"),
        (["--until", "certain=0.9", "--valid", "20%"], "--valid SHARDS"),
        (["--until", "sure=0.9", "--valid", "two.svm"], "wanted certain=SHARE"),
        (["--until", "certain=1.5", "--valid", "two.svm"], "at most 1"),
        (["--until", "certain=0.9", "--valid", "two.svm", "--tol", "0"], "tol 0"),
    ],
)
def test_an_until_that_cannot_be_met_is_refused_before_the_fit(run, place, words, part):
    one_sentence(run("fit", "two.svm", "--model", "refused", *words), 2, part)
    assert not (place / "refused").exists()
