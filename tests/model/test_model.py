"""The model: its decisions, what it may hold, its file."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from streamtron.core.errors import FileDamaged, SettingsError
from streamtron.core.rows import make_rows
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.model.display import joint_certificate
from streamtron.model.linear_model import LinearModel
from streamtron.model.scoring import chosen_classes, labels_of
from tests.helpers.models import make_model, random_matrix, refused


def as_rows(dense, base, before=0):
    """The same rows as shards have them: numbered from ``base``, ``before`` values cut off."""
    csr = sparse.csr_array(dense)
    pad = np.zeros(before)
    indices = np.concatenate([pad, csr.indices + base])
    return make_rows(csr.indptr + before, indices, np.concatenate([pad, csr.data]))


def test_a_decision_is_the_plain_sum_of_weights_times_values_plus_the_bias_in_every_matrix():
    dense, weights = random_matrix()
    model, totals = make_model(weights, bias=0.7), []
    for row in dense.tolist():
        total = 0.0
        for x, w in zip(row, weights.tolist(), strict=True):
            total += x * w
        totals.append(total + 0.7)
    wide = sparse.csr_array(dense)
    wide.indices, wide.indptr = wide.indices.astype("i8"), wide.indptr.astype("i8")
    kinds = [make(dense) for make in (sparse.csr_matrix, sparse.csc_array, sparse.coo_array)]
    for matrix in (dense, wide, *kinds):
        assert model.decision_function(matrix).tolist() == totals
    for kind in ("i8", "f2", "g"):
        decisions = make_model().decision_function(np.array([[0, 3, 0], [1, 0, 0]], kind))
        assert (decisions.dtype, decisions.tolist()) == (np.float64, [-5.75, 1.75])


@pytest.mark.parametrize("classes", [(-1.0, 1.0), (0.5, 7.0), ("neg", "pos\0"), (False, True)])
def test_a_positive_decision_means_the_larger_class_and_zero_the_smaller(classes):
    found = make_model([1.0], 0.0, classes).predict(np.array([[-1.0], [0.0], [1e-300]]))
    assert found.tolist() == [classes[0], classes[0], classes[1]]


NAMES = ("ant", "bee", "cow", "doe")


def make_many(weights, bias, classes, **more) -> LinearModel:
    gaps = [(0.01, 0.03, 0.02)[k % 3] for k in range(len(classes))]
    certificate = joint_certificate(
        [
            {"relative_duality_gap": gap, "rows_scanned": 9 - k, "upper_bound": 1 / 3}
            for k, gap in enumerate(gaps)
        ]
    )
    return make_model(weights, bias, classes, **{"certificate": certificate, **more})


def random_many(seed=0, **more) -> tuple[LinearModel, np.ndarray]:
    dense, _ = random_matrix(seed=seed)
    rng = np.random.default_rng(seed + 1)
    return make_many(rng.normal(size=(4, 20)), rng.normal(size=4), NAMES, **more), dense


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("base", [0, 1])
@pytest.mark.parametrize("width", [0, 1, 13, 20])
def test_rows_in_pieces_have_the_matrix_s_bits_and_columns_beyond_are_counted(many, base, width):
    whole, dense = random_many()
    whole = whole if many else make_model(whole.weights[0], whole.bias[0])
    known = np.where(np.arange(20) < width, whole.weights, 0.0)
    expected = whole.but(weights=known).decision_function(dense)
    model = whole.but(weights=whole.weights[..., :width], reading={"index_base": base})
    pieces = [dense[:1], dense[1:1], dense[1:30], dense[30:]]  # an empty row, no row, …
    decided = [model.decision_rows(as_rows(piece, base, 3)) for piece in pieces]
    assert np.array_equal(np.concatenate([decisions for decisions, _ in decided]), expected)
    assert sum(out_of_range for _, out_of_range in decided) == np.count_nonzero(dense[:, width:])
    assert not base or "column 0" in refused(lambda: model.decision_rows(as_rows(dense, 0)))


def test_a_row_of_many_classes_has_that_of_the_highest_decision_or_all_those_above_zero():
    zero = np.zeros((3, 1)), np.zeros(3)
    one = make_many(*zero, (1.0, 2.5, 7.0))
    decisions = np.array([[-3.0, -1, -2], [0, 0, 0], [-1, 4, 4], [1, 2, 3]])  # the first of equals
    assert (one.kind, labels_of(one, decisions).tolist()) == ("multiclass", [2.5, 1, 2.5, 7])
    assert chosen_classes(one, decisions).nonzero()[1].tolist() == [1, 0, 1, 2]
    several = make_many(*zero, ("a", "b", "c"), multilabel=True)
    decisions = np.array([[-3.0, -1, 0], [1e-300, -0.0, 5], [1, 2, 3], [1, 2, -3]])
    assert several.kind == "multilabel"
    assert labels_of(several, decisions).tolist() == [(), ("a", "c"), ("a", "b", "c"), ("a", "b")]
    assert np.array_equal(chosen_classes(several, decisions), decisions > 0)
    assert labels_of(several, decisions[:1] + 9).tolist() == [("a", "b", "c")]  # one set a row


@pytest.mark.parametrize("more", [{}, {"multilabel": True}])
def test_directions_are_the_learners_of_classes_in_order_and_certified_as_the_worst_of_them(more):
    model, dense = random_many(**more)
    decisions = model.decision_function(dense)
    for k, learner in enumerate(model.directions()):
        assert learner.positive == NAMES[k]
        alone = make_model(learner.weights, learner.bias)
        assert np.array_equal(alone.decision_function(dense), decisions[:, k])
        assert learner.certificate == model.certificate["learners"][k]
    joint = model.certificate["relative_duality_gap"], model.certificate["rows_scanned"]
    assert joint == (0.03, 6)
    two = make_model()
    [only] = two.directions()
    assert (only.positive, only.bias, only.certificate) == (1.0, 0.25, two.certificate)
    assert np.array_equal(only.weights, two.weights)
    bare, _ = random_many(certificate=None)
    assert [learner.certificate for learner in bare.directions()] == [None] * 4


PROOFS = joint_certificate([{"relative_duality_gap": 0, "rows_scanned": 1}] * 3)
MANY = {
    "weights": np.zeros((3, 2)),
    "bias": np.zeros(3),
    "classes": ("a", "b", "c"),
    "certificate": PROOFS,
}


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"weights": [1.0, np.nan]}, "weights: nan at position 1"),
        ({"weights": [[1.0]]}, "weights of shape (1, 1)"),
        ({"weights": [1j, 0]}, "weights: complex or masked numbers"),
        ({"bias": 1j}, "bias: complex or masked numbers"),
        ({"bias": np.inf}, "bias: inf"),
        ({"classes": (1.0, -1.0)}, "Give 2 of one kind, in rising order"),
        ({"classes": (1.0, 1.0)}, "Give 2 of one kind, in rising order"),
        ({"classes": (0.0, True)}, "Give 2 of one kind"),
        ({"classes": ("a", "b", "c")}, "Give 2 of one kind"),
        ({"classes": (0.0, np.nan)}, "classes: nan"),
        ({"settings": {"C": np.nan}}, "settings: Out of range float"),
        ({"certificate": {"a": {1}}}, "certificate: Object of type set"),
        ({"certificate": {"upper_bound": 0.0}}, "upper_bound = 0.0, expected a number"),
        ({"certificate": {"upper_bound": 1e-200}}, "upper_bound = 1e-200, expected"),
        ({"index_base": 2}, "index_base = 2. Give 0 or 1"),
        ({"vocabulary": ["a"]}, "1 names, 3 columns"),
        ({"columns": 9}, "columns = 9, but 3 weights"),
        ({"multilabel": True}, "reading: multilabel, but one row of weights"),
        (MANY | {"classes": ("a", "b")}, "Give 3 of one kind, in rising order"),
        (MANY | {"classes": ("a", "c", "b")}, "Give 3 of one kind, in rising order"),
        (MANY | {"bias": np.zeros(2)}, "bias: shape (2,), but weights of shape (3, 2)"),
        (MANY | {"weights": np.zeros((0, 2)), "bias": np.zeros(0)}, "weights: shape (0, 2)"),
        (MANY | {"weights": np.zeros((3, 2, 1))}, "weights: shape (3, 2, 1)"),
        (MANY | {"weights": np.zeros((2, 2)), "bias": np.zeros(2)}, "weights: shape (2, 2). Two"),
        (MANY | {"certificate": {"upper_bound": 1.0}}, "certificate: no learners for 3 classes"),
        (MANY | {"certificate": PROOFS | {"learners": [{}]}}, "no learners for 3 classes"),
        (MANY | {"certificate": {"learners": [None] * 3}}, "certificate: None is not that of a"),
        (MANY | {"certificate": {"learners": [7] * 3}}, "certificate: 7 is not that of a class"),
    ],
)
def test_what_no_model_can_hold_is_refused_with_its_name(parts, sentence):
    assert sentence in refused(lambda: make_model(**parts), SettingsError)


def test_a_model_keeps_its_own_read_only_weights():
    weights = np.array([1.0, 2.0])
    model = make_model(weights)
    weights[0] = 9
    assert model.weights.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        model.weights[0] = 9


@pytest.mark.parametrize(
    "classes", [NAMES[:2], ("a", "ß\ud800"), (False, True), (0.1, 1e300), NAMES, (-1.0, 0.5, 2.0)]
)
@pytest.mark.parametrize("more", [{}, {"multilabel": True}, {"certificate": None}])
def test_a_model_read_again_has_the_same_classes_decisions_and_bytes(tmp_path, classes, more):
    model, dense = random_many()
    weights, bias = model.weights[: len(classes)], model.bias[: len(classes)]
    if len(classes) == 2 and "multilabel" not in more:
        model = make_model(weights[0], bias[0], classes, **more)
    else:
        model = make_many(weights, bias, classes, **more)
    model.save(tmp_path / "m")
    again = LinearModel.load(tmp_path / "m")
    assert again == model
    assert again.to_bytes() == (tmp_path / "m").read_bytes() == model.to_bytes()
    assert (again.kind, again.certificate) == (model.kind, model.certificate)
    assert [(type(label), label) for label in again.classes] == [(type(a), a) for a in classes]
    assert np.array_equal(again.decision_function(dense), model.decision_function(dense))


def test_equal_models_are_equal_files_whatever_the_order_of_their_settings_and_the_sign_of_zero():
    one = make_model([0.0, 1.0], 0.0, (0.0, 1.0), settings={"a": 1, "b": 2})
    two = make_model([-0.0, 1.0], -0.0, (-0.0, 1), settings={"b": 2, "a": 1})
    assert one.to_bytes() == two.to_bytes()
    assert one == two
    assert one != make_model([0.0, 1.0], 5e-324, (0.0, 1.0), settings={"a": 1, "b": 2})
    model, _ = random_many()
    assert model.but(weights=np.asfortranarray(model.weights)).to_bytes() == model.to_bytes()
    negative = make_many(np.full((3, 2), -0.0), np.full(3, -0.0), ("a", "b", "c"))
    assert negative == make_many(np.zeros((3, 2)), np.zeros(3), ("a", "b", "c"))


GOLDEN = (
    '{"__metadata__":{"digest":"9eeebc0381736d17d2a031cff8e85e60","streamtron":"{'
    r"\"certificate\":null,\"classes\":[\"a\",\"b\"],\"format_version\":3,"
    r'\"reading\":{\"columns\":3,\"index_base\":1},\"settings\":{\"C\":1.0}}"},'
    '"bias":{"data_offsets":[0,8],"dtype":"F64","shape":[]},'
    '"columns":{"data_offsets":[8,16],"dtype":"U32","shape":[2]},'
    '"values":{"data_offsets":[16,32],"dtype":"F64","shape":[2]}}',
    "000000000000e03f 00000000 02000000 0000000000000040 000000000000f0bf",
)
"""Header and tensors, of the weights that are not 0."""


def test_golden_bytes_are_written_and_read_and_another_format_version_is_refused(tmp_path):
    header, tensors = GOLDEN[0].encode(), bytes.fromhex(GOLDEN[1])
    header += b" " * (-len(header) % 8)
    golden = len(header).to_bytes(8, "little") + header + tensors
    weights = np.array([2.0, -0.0, -1.0])
    model = LinearModel(weights, 0.5, ("a", "b"), {"C": 1.0}, None, {"index_base": 1})
    assert model.to_bytes() == golden
    (tmp_path / "m").write_bytes(golden)
    assert LinearModel.load(tmp_path / "m") == model
    assert LinearModel.load(tmp_path / "m").weights.tolist() == weights.tolist()
    make_model([]).save(tmp_path / "m")
    assert LinearModel.load(tmp_path / "m").columns == 0
    later = sealed_again(tmp_path / "later", {"format_version": 7}, {})
    message = refused(lambda: LinearModel.load(later))
    assert "later: model format version 7, this streamtron reads 3. Use" in message


def sealed_again(path: Path, change, tensors) -> Path:
    """A model's file with other content and tensors; one that is None is left out."""
    make_model().save(path)
    content, whole = read_sealed(path)
    parts = {name: array for name, array in {**whole, **tensors}.items() if array is not None}
    write_sealed(path, {**content, **change}, parts)
    return path


@pytest.mark.parametrize(
    ("change", "tensors"),
    [
        ({"classes": [1.0]}, {}),
        ({"classes": None}, {}),
        ({"settings": [1]}, {}),
        ({"certificate": 3}, {}),
        ({}, {"columns": None}),
        ({}, {"bias": None}),
        ({}, {"values": np.array(1.0)}),
        ({}, {"values": np.array([1, 0.0, 1])}),
        ({}, {"values": np.ones(4)}),
        ({}, {"values": np.ones((3, 1)), "columns": np.arange(3, dtype=np.uint32)[:, None]}),
        ({}, {"values": np.arange(3)}),
        ({}, {"columns": np.array([0, 1, 3], np.uint32)}),
        ({}, {"columns": np.array([0, 1, 1], np.uint32)}),
        ({}, {"columns": np.arange(3)}),
        ({}, {"starts": np.array([0, 1, 3]), "bias": np.ones(2)}),
        ({}, {"starts": np.array([1, 3])}),
        ({}, {"starts": np.array([0, 4])}),
        ({}, {"starts": np.array([3])}),
        ({}, {"starts": np.array([0, 5, 2, 3]), "bias": np.ones(3)}),
        ({}, {"starts": np.array([[0, 3]])}),
        ({}, {"starts": np.array([0.0, 3.0])}),
    ],
)
def test_a_sealed_file_that_holds_no_model_is_refused_in_a_sentence(tmp_path, change, tensors):
    assert LinearModel.load(sealed_again(tmp_path / "m", {}, {})) == make_model()
    path = sealed_again(tmp_path / "m", change, tensors)
    message = refused(lambda: LinearModel.load(path), FileDamaged)
    assert "m: sealed, but what it holds is no model" in message


def wide_many(classes=40, columns=5_000, seed=5, **more) -> LinearModel:
    """A model of many classes, 1 % of whose weights are not 0."""
    kept = sparse.random_array((classes, columns), density=0.01, format="csr", rng=seed)
    names = tuple(float(k) for k in range(classes))
    reading = {"index_base": 0, **more}
    return LinearModel(kept, np.linspace(-1, 1, classes), names, {"C": 1.0}, None, reading)


@pytest.mark.parametrize("more", [{}, {"multilabel": True}])
def test_few_weights_of_many_classes_decide_to_the_bit_as_all_do(tmp_path, monkeypatch, more):
    model = wide_many(**more)
    model.save(tmp_path / "m")
    read = LinearModel.load(tmp_path / "m")
    rng = np.random.default_rng(6)
    dense = (rng.normal(size=(60, 5_000)) * (rng.random((60, 5_000)) < 0.02)).astype(np.float32)
    monkeypatch.setattr("streamtron.model.scoring.SPARSE", 10**9)
    whole = model.but()
    assert whole == read == model
    assert np.array_equal(whole.weights, model.sparse_weights.toarray())
    expected = sparse.csr_array(dense) @ whole.weights.T + whole.bias
    for one in (whole, read):
        assert np.array_equal(one.decision_function(dense), expected)
        assert np.array_equal(one.decision_rows(as_rows(dense, 0))[0], expected)
    for direction, weights in zip(read.directions(), whole.weights, strict=True):
        assert np.array_equal(direction.weights, weights)


def test_the_weights_of_many_classes_never_lie_in_memory_as_a_whole_if_few_are_not_0(tmp_path):
    columns, classes = 200_000, 300  # 480 MB as a whole
    model, path = wide_many(classes, columns), tmp_path / "m"
    X = sparse.random_array((50, columns), density=1e-4, format="csr", rng=7, dtype=np.float32)
    tracemalloc.start()
    model.save(path)
    read = LinearModel.load(path)
    decisions = read.decision_function(X)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert decisions.shape == (50, classes)
    nonzero = read.sparse_weights.nnz
    assert path.stat().st_size <= 12 * nonzero + 20 * classes + 10_000
    assert peak <= 100 * nonzero


def test_weights_given_sparse_are_those_given_as_a_whole_whatever_their_order():
    dense = np.array([[0.0, 2.0, -1.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    unordered = sparse.coo_array(
        ([-1.0, 1.5, 0.5, 3.0, 0.0], ([0, 0, 0, 1, 2], [2, 1, 1, 0, 2])), shape=(3, 3)
    )
    parts = np.zeros(3), ("a", "b", "c"), {}, None, {"index_base": 0}
    assert LinearModel(unordered, *parts) == LinearModel(dense, *parts)
    two = 0.5, ("a", "b"), {}, None, {"index_base": 0}
    for first in (unordered.tocsr()[[0]], sparse.coo_array(dense[0])):
        assert LinearModel(first, *two) == LinearModel(dense[0], *two)
    with pytest.raises(SettingsError, match="weights: nan at position 0"):
        LinearModel(sparse.csr_array([[np.nan]]), *two)
