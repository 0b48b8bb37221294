"""Proofs for models that exist already, ours and others', with a witness and without."""

import ctypes
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from liblinear import liblinearutil
from numpy.typing import NDArray

from streamtron import LinearModel, Machine, Settings, certify, fit, run
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.feature_names import Hashing
from streamtron.model.import_model import load_any
from streamtron.runs import witness as witness_file
from streamtron.runs.certify import Proof
from streamtron.runs.inputs import with_places
from streamtron.runs.report import Outcome
from streamtron.solver.alphas import Alphas
from tests.helpers.examples import slow_but
from tests.helpers.optimum import least_primal
from tests.helpers.oracle import Row
from tests.helpers.runs import begins
from tests.helpers.sources import dense, random_rows
from tests.helpers.svm_text import svm_lines

COLUMNS = 6
ROWS = 600
MACHINE = Machine()


class Data(NamedTuple):
    """Rows, and the file that holds them."""

    path: Path
    rows: list[Row]
    labels: list[int]

    @property
    def X(self) -> NDArray[np.float64]:
        return dense(self.rows, COLUMNS)


def text(rows: Sequence[Row], labels: Any, weights: Sequence[float] | None = None) -> str:
    """libsvm text, columns from 1; ``label:weight`` if there are weights."""
    if weights is not None:
        labels = [f"{name}:{weight}" for name, weight in zip(labels, weights, strict=True)]
    return "".join(svm_lines(dense(rows, COLUMNS), labels))


@pytest.fixture
def data(tmp_path: Path) -> Data:
    rows, labels = random_rows(0, ROWS, COLUMNS)
    path = tmp_path / "rows.svm"
    path.write_text(text(rows, labels))
    return Data(path, rows, labels)


def liblinear(X: Any, labels: Any, options: str) -> Any:
    """LIBLINEAR's model, as its own Python package trains it."""
    ctypes.CDLL(None).srand(1)  # its order of rows, by which -s 3 ends nearer to the optimum or not
    problem, how = liblinearutil.problem(labels, X), liblinearutil.parameter(f"{options} -q")
    return liblinearutil.train(problem, how)


def least_objective(data: Data, C: float, rho: float, loss: str = "squared_hinge") -> float:
    return least_primal(data.X, np.array(data.labels), C, rho, loss=loss)


def best_margin(data: Data, C: float, rho: float) -> float:
    """γ_d to some ten digits."""
    return (2.0 * least_objective(data, C, rho)) ** -0.5


def objective(data: Data, model: LinearModel, C: Any, rho: float, loss: str) -> float:
    """P of a model, C a number or one a row."""
    margins = np.array(data.labels) * model.decision_function(data.X[:, : model.columns])
    slacks = np.maximum(0.0, 1.0 - margins)
    losses = {"log_loss": np.logaddexp(0.0, -margins), "hinge": slacks}.get(loss, slacks**2)
    bias = model.bias / rho if rho else 0.0
    return 0.5 * (float(model.weights @ model.weights) + bias**2) + float(np.sum(C * losses))


def sound(proof: Proof, optimum: float) -> None:
    """The bounds bracket the optimum, and the gap is what they say."""
    found = proof.certificate
    upper = found.upper_bound or math.inf  # where no dual objective is above 0
    assert found.primal_margin <= optimum * (1 + 1e-9)
    assert upper >= optimum * (1 - 1e-9)
    gap = 1.0 - (found.primal_margin / upper) ** 2
    assert found.relative_duality_gap == pytest.approx(max(gap, 0.0), abs=1e-12)


def proves(proof: Proof, objective: float, least: float) -> None:
    """P is that of the weights, and D at most the optimum."""
    certificate = proof.certificate
    assert certificate.primal == pytest.approx(objective, rel=1e-9)
    assert certificate.dual <= least * (1 + 1e-12)
    gap = 1.0 - certificate.dual / certificate.primal
    assert certificate.relative_duality_gap == pytest.approx(gap, abs=1e-12)
    assert certificate.upper_bound is None, "margins belong to the squared hinge"


def fitted(data: Data, directory: Path, **settings: Any) -> Outcome:
    """Our own model, its witness in ``directory / "witness"``."""
    chosen = Settings(**{"tol": 1e-3, **settings})
    return run(data.path, chosen, machine=MACHINE, witness=directory / "witness")


@pytest.mark.parametrize(
    ("loss", "noise", "active_set"),
    [
        *(("squared_hinge", noise, 10**9) for noise in (0.01, 0.1, 1.0)),
        *itertools.product(("log_loss", "hinge"), (0.3,), (10**9, 3000)),
    ],
)
def test_worse_weights_are_bracketed_more_closely_by_every_reading(data, loss, noise, active_set):
    model, least = fit(data.path, C=2.0, loss=loss), least_objective(data, 2.0, 1.0, loss)
    off = np.random.default_rng(0).normal(scale=noise, size=len(model.weights))
    worse, gaps = model.but(weights=model.weights * (1.0 + off)), []
    settings = Settings(C=2.0, loss=loss, active_set=active_set)
    for readings in (0, 1, 4):
        proof = certify(worse, data.path, settings=settings, readings=readings)
        assert proof.readings <= (1.0 if active_set == 10**9 else 2.0 + readings)
        if loss == "squared_hinge":
            sound(proof, best_margin(data, 2.0, 1.0))
        else:
            proves(proof, objective(data, worse, 2.0, 1.0, loss), least)
        gaps.append(proof.certificate.relative_duality_gap)
    assert gaps[0] > gaps[1] >= gaps[2]
    assert proof.certificate.dual >= least * (0.9 if active_set == 3000 else 1 - 1e-3)


def test_other_rows_labels_learners_or_a_bias_than_the_models_are_refused_by_name(data, tmp_path):
    model, witness = fitted(data, tmp_path, weights_in_label=True).model, tmp_path / "witness"
    other, strange, nothing = (tmp_path / f"{name}.svm" for name in ("other", "strange", "nothing"))
    other.write_text(text(*random_rows(1, ROWS, COLUMNS)))
    strange.write_text(text(data.rows[:5], [1, -1, 7, 1, -1]))
    nothing.write_text(text(data.rows[:40], data.labels[:40], [0.0] * 40))
    biased = model.but(bias=0.5)
    classes, path, _ = many(data, tmp_path)
    two = run(path, Settings(multiclass=True), witness=tmp_path / "two", machine=MACHINE)
    witness_file.save(tmp_path / "two", two.alphas[:2], two.manifest)
    for call, parts in (
        (lambda: certify(model, other, witness=witness), r"other\.svm.*witness"),
        (lambda: certify(model, strange), r"strange\.svm.*line 3.*7"),
        (lambda: certify(model, nothing), "none of the 40 rows has a weight above 0"),
        (lambda: certify(biased, data.path, settings=Settings(C=1, rho=0)), "bias.*--rho"),
        (
            lambda: certify(classes, path, witness=tmp_path / "two", C=0.5, rho=1.0),
            "witness of 2 learners.*model has 3",
        ),
    ):
        with pytest.raises((DataError, SettingsError), match=parts):
            call()


@pytest.mark.parametrize(
    ("loss", "of"),
    [
        ("squared_hinge", "rows"),
        ("log_loss", "rows"),
        ("hinge", "rows"),
        ("log_loss", "classes"),
        ("squared_hinge", "classes"),
    ],
)
def test_weights_of_rows_and_classes_are_those_of_the_proof(data, tmp_path, loss, of):
    how: dict[str, Any] = {"class_weight": {"1": 5.0}}
    weights = np.where(np.array(data.labels) == 1, 5.0, 1.0)
    if of == "rows":
        how = {"weights_in_label": True}
        weights = np.random.default_rng(0).choice([0.0, 0.5, 4.0, 1000.0], size=ROWS)
        data.path.write_text(text(data.rows, data.labels, weights.tolist()))
    model = fitted(data, tmp_path, C=0.5, loss=loss, tol=1e-6, **how).model
    mine = objective(data, model, 0.5 * weights, 1.0, loss)
    for witness in (tmp_path / "witness", None):
        found = certify(model, data.path, witness=witness).certificate
        assert found.rows_scanned == np.count_nonzero(weights)
        assert found.primal == pytest.approx(mine, rel=1e-8)
        assert found.dual <= mine * (1 + 1e-12)
        assert found.relative_duality_gap < (1e-4 if witness is None else 2e-6)
    if of == "classes":
        plain = certify(model, data.path, settings=Settings(C=0.5, loss=loss))
        assert plain.certificate.relative_duality_gap > 0.01


def liblinears(data: Data, directory: Path, options: str, C: float, rho: float) -> LinearModel:
    rival = liblinear(data.X, data.labels, f"{options} -c {C} -B {rho or -1}")
    liblinearutil.save_model(str(directory / "liblinear"), rival)
    return load_any(directory / "liblinear")


@pytest.mark.parametrize("rho", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("C", [0.05, 50.0])
@pytest.mark.parametrize("solver", [1, 2])
def test_liblinears_model_has_its_primal_and_true_gap(data, tmp_path, solver, C, rho):
    model = liblinears(data, tmp_path, f"-s {solver}", C, rho)
    proof = certify(model, data.path, settings=Settings(C=C, rho=rho))
    by_hand = (2.0 * objective(data, model, C, rho, "squared_hinge")) ** -0.5
    found = proof.certificate
    assert by_hand * (1 - 1e-8) <= found.primal_margin <= by_hand * (1 + 1e-12)
    optimum = best_margin(data, C, rho)
    sound(proof, optimum)
    assert proof.readings <= 5.0
    true_gap = 1.0 - (by_hand / optimum) ** 2
    assert true_gap - 1e-8 <= found.relative_duality_gap <= true_gap + 1e-3


def many(
    data: Data, tmp_path: Path, options: str = "-s 1"
) -> tuple[LinearModel, Path, NDArray[Any]]:
    """LIBLINEAR's model of three classes, shards with their labels, and the labels."""
    y = np.random.default_rng(5).permutation(np.array([4.0, -2.0, 9.0]))[
        np.argmax(data.X[:, :3], axis=1)
    ]
    theirs = liblinear(data.X, y, f"-c 0.5 -B 1 -e 0.001 {options}")
    liblinearutil.save_model(str(tmp_path / "theirs"), theirs)
    path = tmp_path / "many.svm"
    path.write_text(text(data.rows, y.tolist()))
    return load_any(tmp_path / "theirs"), path, y


@pytest.mark.parametrize("readings", [1, 4])
@pytest.mark.parametrize(
    ("options", "loss", "class_weight"),
    [
        ("-s 1", "squared_hinge", None),
        ("-s 1 -w9 3", "squared_hinge", {"9": 3.0}),
        ("-s 0", "log_loss", None),
        ("-s 3", "hinge", None),
    ],
)
def test_every_class_is_certified_as_alone(data, tmp_path, options, loss, class_weight, readings):
    model, path, y = many(data, tmp_path, options)
    settings = Settings(C=0.5, rho=1.0, class_weight=class_weight, loss=loss)
    proof = certify(model, path, settings=settings, readings=readings)
    assert proof.classes
    assert proof.readings <= 1 + readings
    assert [label for label, _ in proof.classes] == [-2.0, 4.0, 9.0]
    for direction, (label, found) in zip(model.directions(), proof.classes, strict=True):
        data.path.write_text(text(data.rows, np.where(y == label, 1, -1).tolist()))
        weight = {"1": 3.0} if class_weight and label == 9.0 else None
        binary = foreign(direction.weights, direction.bias)
        problem = settings.but(class_weight=weight)
        alone = certify(binary, data.path, settings=problem, readings=readings)
        assert found.certificate == alone.certificate
    if readings == 4:
        gaps = [found.certificate.relative_duality_gap for _, found in proof.classes]
        assert max(gaps) < 0.01
        plain = proof.to_dict()
        assert plain["certificate"]["relative_duality_gap"] == max(gaps)
        assert proof.certificate.relative_duality_gap == max(gaps)
        assert plain["certificate"]["rows_scanned"] == ROWS
        assert [each["label"] for each in plain["learners"]] == [-2.0, 4.0, 9.0]


def foreign(weights: Sequence[float], bias: float = 0.0) -> LinearModel:
    """A model that was not trained here."""
    return LinearModel(np.array(weights), bias, (-1.0, 1.0), {}, None, {"index_base": 1})


@pytest.mark.parametrize("factor", [7.0, 1e-3, 1e6, 1e20, 1e-20])
def test_a_scaled_model_is_certified_as_it_is_and_its_scale_does_not_spoil_the_search(
    data, tmp_path, factor
):
    outcome = fitted(data, tmp_path, C=2.0)
    scaled = foreign((factor * outcome.model.weights).tolist(), factor * outcome.model.bias)
    proof, best = certify(scaled, data.path, settings=Settings(C=2.0)), best_margin(data, 2.0, 1.0)
    sound(proof, best)
    assert proof.readings <= 5  # one and the four allowed
    assert proof.certificate.upper_bound <= best * (1.0 + 1e-3)
    own = objective(data, scaled, 2.0, 1.0, "squared_hinge")
    assert own * (1 - 1e-9) <= proof.certificate.primal <= own * (1 + 1e-6)


@pytest.mark.parametrize("weights", [[0.0] * COLUMNS, [1e-30] * COLUMNS, [-1.0] * COLUMNS])
@pytest.mark.parametrize("active_set", [10**9, 3_000, 0])
def test_bad_weights_get_a_true_certificate_too(data, weights, active_set):
    proof = certify(foreign(weights), data.path, settings=Settings(C=2.0, active_set=active_set))
    sound(proof, best_margin(data, 2.0, 1.0))
    assert proof.certificate.relative_duality_gap > 0.1


@pytest.mark.parametrize("readings", slow_but([2, 6], 2))
def test_a_search_that_does_not_end_early_takes_the_readings_allowed_and_no_more(data, readings):
    problem = Settings(C=2.0, active_set=500)
    proof = certify(foreign([0.05] * COLUMNS), data.path, settings=problem, readings=readings)
    assert proof.readings == 2.0 + readings  # that which prepares the rows, and the first scan
    random = foreign(np.random.default_rng(0).normal(size=COLUMNS).tolist())
    proof = certify(random, data.path, settings=problem.but(active_set=3_000), readings=8)
    assert proof.certificate.upper_bound <= 1.1 * best_margin(data, 2.0, 1.0)


def test_rows_of_one_label_or_of_more_columns_than_the_model_has_are_certified(data, tmp_path):
    rival = liblinear(data.X[:, : COLUMNS - 2], data.labels, "-s 2 -B 1")
    liblinearutil.save_model(str(tmp_path / "narrow"), rival)
    narrow = load_any(tmp_path / "narrow")
    assert narrow.columns < COLUMNS
    proof = certify(narrow, data.path, settings=Settings(C=1.0))
    mine = objective(data, narrow, 1.0, 1.0, "squared_hinge")
    assert proof.certificate.primal == pytest.approx(mine, rel=1e-8)
    sound(proof, best_margin(data, 1.0, 1.0))
    of_one = [row for row, label in zip(data.rows, data.labels, strict=True) if label == -1]
    one = Data(data.path, of_one, [-1] * len(of_one))
    data.path.write_text(text(one.rows, one.labels))
    proof = certify(narrow, data.path, settings=Settings(C=1.0))
    assert proof.certificate.rows_scanned == len(one.rows) < ROWS
    mine = objective(one, narrow, 1.0, 1.0, "squared_hinge")
    assert proof.certificate.primal == pytest.approx(mine, rel=1e-8)


def test_coefficients_are_certified_against_tables_with_labels_and_names(tmp_path):
    """The same bounds as for libsvm text of the same rows."""
    x = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    y = np.where(x @ [1.0, -1.0, 0.5] > 0, 1, -1)
    (tmp_path / "a.svm").write_text("".join(svm_lines(x, y)))
    hashes = {Hashing(2).columns([name])[0]: name for name in map(str, range(99))}
    names = tuple(hashes[k] for k in range(3))
    lists = [list(zip(names, row, strict=True)) for row in x.tolist()]
    columns = dict(zip(names, x.T, strict=True))
    pq.write_table(pa.table({"class of": y, "w": np.ones(300), **columns}), tmp_path / "a.parquet")
    pairs = pa.array(lists, pa.map_(pa.string(), pa.float32()))
    pq.write_table(pa.table({"class of": y, "bag": pairs}), tmp_path / "b.parquet")
    np.save(tmp_path / "w.npy", [1.0, -1.0, 0.5])
    problem = Settings(C=1.0, rho=0.0)
    model, place = (load_any(tmp_path / "w.npy", index_base=base) for base in (1, 0))
    wanted = certify(model, tmp_path / "a.svm", settings=problem).certificate
    bag = {"features": ("bag",), "hash_bits": 2}
    for shard, places in (("a", {"features": names, "weight": "w"}), ("b", bag)):
        model = with_places(place, Settings(label="class of", **places))
        found = certify(model, tmp_path / f"{shard}.parquet", settings=problem).certificate
        assert found.primal_margin == wanted.primal_margin
        assert found.upper_bound == wanted.upper_bound
    with pytest.raises(SettingsError, match="the model knows its columns"):
        with_places(fit(tmp_path / "a.svm"), Settings(label="class of"))


@pytest.mark.parametrize(
    ("solver", "C", "rho"),
    [(0, 0.05, 0.0), (0, 50.0, 1.0), (7, 1.0, 2.5), (3, 0.05, 0.0), (3, 0.05, 2.5)],
)
def test_liblinears_model_of_another_loss_is_certified_for_it(data, tmp_path, solver, C, rho):
    loss = "hinge" if solver == 3 else "log_loss"
    model = liblinears(data, tmp_path, f"-s {solver} -e 1e-8", C, rho)
    told: list[object] = []
    proof = certify(model, data.path, C=C, listen=told.append)
    mine = objective(data, model, C, rho, loss)
    proves(proof, mine, min(mine, least_objective(data, C, rho, loss)))
    assert proof.certificate.relative_duality_gap < 1e-4
    assert proof.readings == 1.0
    scans = [event for event in told if begins(event)]
    assert (len(scans) == 1) is (loss == "log_loss")


@pytest.mark.parametrize(("solver", "loss"), [(5, "squared_hinge"), (6, "log_loss")])
def test_liblinears_model_of_a_1_norm_is_certified_for_it(data, tmp_path, solver, loss):
    model = liblinears(data, tmp_path, f"-s {solver} -e 1e-8", 0.5, 0.0)
    proof = certify(model, data.path, C=0.5)
    square = 0.5 * float(model.weights @ model.weights)
    mine = objective(data, model, 0.5, 0.0, loss) - square + float(np.abs(model.weights).sum())
    proves(proof, mine, mine)
    assert proof.certificate.relative_duality_gap < 1e-3
    assert proof.problem == {"loss": loss, "penalty": "l1", "C": 0.5}


@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss", "hinge"])
def test_a_witness_proves_in_a_reading_and_a_forged_one_nothing_false(data, tmp_path, loss):
    outcome = fitted(data, tmp_path, C=2.0, loss=loss)
    claimed = outcome.report["certificate"]
    proof = certify(outcome.model, data.path, witness=tmp_path / "witness")
    assert proof.readings == 1.0
    assert proof.certificate.primal == pytest.approx(claimed["primal_objective"], rel=1e-12)
    assert proof.certificate.dual == pytest.approx(claimed["dual_objective"], rel=1e-12)
    assert proof.certificate.rows_scanned == claimed["rows_scanned"] == ROWS
    without = certify(outcome.model, data.path)
    assert without.readings == 1.0
    assert without.certificate.relative_duality_gap <= 1e-3
    most = (2.0 * (claimed["primal_objective"] - claimed["dual_objective"])) ** 0.5
    length = float(np.linalg.norm(outcome.model.weights))
    assert proof.distance <= most / (length - most), "½ ‖v − u‖² ≤ P − D"
    v = data.X.T @ (outcome.alphas[0].dense(ROWS) * data.labels)
    by_hand = np.linalg.norm(outcome.model.weights - v) / np.linalg.norm(v)
    assert proof.distance == pytest.approx(by_hand, rel=1e-4, abs=1e-9)
    solver = {"squared_hinge": 1, "log_loss": 0, "hinge": 3}[loss]
    theirs = liblinears(data, tmp_path, f"-s {solver}", 2.0, 1.0)
    proof = certify(theirs, data.path, C=2.0, witness=tmp_path / "witness")
    assert proof.certificate.dual == pytest.approx(claimed["dual_objective"], rel=1e-12)
    forged = outcome.alphas[0].dense(ROWS)
    worse = np.random.default_rng(0).permutation(forged)
    forged[forged.argmax()] += np.float32(1e6)
    gaps = []
    for alphas in (worse, forged):
        other = Alphas()
        other.put(np.arange(ROWS), alphas)
        witness_file.save(tmp_path / "other", [other], outcome.manifest)
        proof = certify(outcome.model, data.path, witness=tmp_path / "other")
        gaps.append(proof.certificate.relative_duality_gap)
        assert proof.certificate.dual <= least_objective(data, 2.0, 1.0, loss)
        assert proof.distance > 0.1
    assert gaps[0] > 0.1
    assert gaps[1] >= (0.999 if loss == "squared_hinge" else 1.0)
