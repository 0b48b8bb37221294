"""One reading at frozen weights: the same sums here and on workers, a shard each; and the witness,
whose dual variables find their rows again by what the shards hold, or are refused."""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from liblinear import liblinearutil
from scipy import sparse
from sklearn.datasets import load_svmlight_files

from streamtron import Certificate, LinearModel, Machine, Settings, certify, fit, run
from streamtron.core.errors import DataError, FileDamaged
from streamtron.core.executor import serial
from streamtron.core.rows import BLOCK_ROWS
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.model.import_model import load_any
from streamtron.runs import witness as witness_file
from streamtron.runs.certify import Proof, scan_part
from streamtron.runs.report import Outcome
from streamtron.solver.alphas import Alphas
from tests.helpers.examples import slow_but
from tests.helpers.models import refused
from tests.helpers.runs import dies_amid_a_scan, pickled, write_corpus
from tests.helpers.shard_rows import data_of

ROWS = 3 * BLOCK_ROWS + 700
COLUMNS = 90


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The rows as text, a line each."""
    directory = tmp_path_factory.mktemp("whole") / "data"
    write_corpus(directory, rows=ROWS, columns=COLUMNS, noise=0.1)
    text = "".join(shard.read_text() for shard in sorted(directory.iterdir()))
    return text.splitlines(keepends=True)


def cut(lines: Sequence[str], directory: Path, sizes: Sequence[int]) -> Path:
    """The rows in shards of these sizes; one of size 0 holds a comment."""
    directory.mkdir()
    ends = list(itertools.accumulate(sizes))
    assert ends[-1] == len(lines)
    for number, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        text = "".join(lines[end - size : end]) or "# nothing\n"
        (directory / f"{number:04d}.svm").write_text(text)
    return directory


@pytest.fixture(scope="module")
def whole(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Proof]:
    """A model of the rows, and what one process proves of it where they are one shard."""
    directory = tmp_path_factory.mktemp("fitted")
    shard = cut(lines, directory / "data", [ROWS])
    outcome = run(shard, Settings(), machine=Machine(), witness=directory / "witness")
    return outcome, certify(outcome.model, shard, witness=directory / "witness")


def witnessed(outcome: Outcome, shards: Path) -> Path:
    """The α of the model as a witness of its rows in other shards."""
    with data_of(shards, shards.parent / f"{shards.name}.cache") as data:
        witness_file.save(shards.parent / f"{shards.name}.witness", outcome.alphas, data.manifest)
    return shards.parent / f"{shards.name}.witness"


SIZES = {
    "shards that end where blocks do": [BLOCK_ROWS, 2 * BLOCK_ROWS, 700],
    "one row before and behind": [BLOCK_ROWS - 1, 2, 2 * BLOCK_ROWS - 1, 700],
    "many small ones": [*[100] * 50, 0, *[3] * 30, 0, ROWS - 5090],
    "nothing in front and at the end": [0, 0, 5000, 0, ROWS - 5000, 0],
    "one row each side": [1, ROWS - 2, 1],
}


NOT_IN_MEMORY = Settings(active_set=100_000)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
def test_a_task_a_shard_proves_what_a_scan_in_memory_does_however_cut(
    lines, whole, tmp_path, sizes
):
    outcome, proof = whole
    shards = cut(lines, tmp_path / "cut", sizes)
    witness = witnessed(outcome, shards)
    here = certify(outcome.model, shards, witness=witness)
    tasks = {"witness": witness, "settings": NOT_IN_MEMORY}
    serially, executor = (
        certify(outcome.model, shards, executor=executor, **tasks) for executor in (serial, pickled)
    )
    assert serially == executor == replace(here, readings=2.0)
    known, found = proof.certificate, here.certificate
    assert found.rows_scanned == known.rows_scanned
    hold_the_same(known, found)
    for name in ("upper_bound", "primal_margin"):
        assert getattr(found, name) == pytest.approx(getattr(known, name), rel=1e-12)
    rough = np.random.default_rng(1).normal(scale=0.1, size=outcome.model.weights.shape)
    if sizes is SIZES["one row before and behind"]:  # without a witness, and with worse weights
        model = outcome.model.but(weights=outcome.model.weights + rough)
        here, executor = (
            certify(model, shards, settings=NOT_IN_MEMORY, executor=executor)
            for executor in (serial, pickled)
        )
        assert here.readings == 6.0  # to prepare, to scan, and the four allowed
        assert executor == reading_more(here, 1.0)  # the search begins with a scan of its own
        hold_the_same(known, here.certificate)


def reading_more(proof: Proof, readings: float) -> Proof:
    """The same proof after so many readings more."""
    classes = tuple((label, reading_more(each, readings)) for label, each in proof.classes)
    return replace(proof, readings=proof.readings + readings, classes=classes)


def hold_the_same(known: Certificate, found: Certificate) -> None:
    """The bounds may hold the same optimum."""
    assert found.primal_margin <= known.upper_bound
    assert known.primal_margin <= found.upper_bound


@pytest.mark.parametrize("off", [-1, 1, -BLOCK_ROWS, BLOCK_ROWS])
@pytest.mark.parametrize("at", [0, 1])
def test_a_shard_of_more_or_fewer_rows_than_its_witness_is_named(lines, whole, tmp_path, off, at):
    outcome, _ = whole
    shards = cut(lines, tmp_path / "cut", [6000, ROWS - 6000])
    content, tensors = read_sealed(witnessed(outcome, shards), "witness")
    content["shards"][at]["rows"] -= off
    kept = np.cumsum(tensors["000000.gaps"], dtype=np.int64) < ROWS - max(off, 0)
    write_sealed(tmp_path / "w", content, {name: own[kept] for name, own in tensors.items()})
    with pytest.raises(
        DataError, match=f"000{at}.svm: it holds .* {'more' if off > 0 else 'fewer'}"
    ):
        certify(outcome.model, shards, witness=tmp_path / "w")


FEW = BLOCK_ROWS + 900


SMALL, TOO_SMALL = {"active_set": 200_000}, {"active_set": 60_000}
"""Less than all rows take, and less than those that matter take."""


class Case(NamedTuple):
    """What is certified: shards, a fit of them with these settings or LIBLINEAR's model, the
    problem, and the most readings."""

    name: str
    ours: dict[str, Any] | None
    problem: dict[str, Any]
    readings: int


CASES = {
    "ours of many classes": Case("many", {"multiclass": True}, SMALL, 3),
    "LIBLINEAR's": Case("two", None, {"C": 1.0, **SMALL}, 3),
    "no upper bound looked for": Case("two", None, {"C": 1.0, **SMALL}, 0),
    "classes balanced": Case("two", None, {"C": 1.0, "class_weight": "balanced", **SMALL}, 2),
    "too many rows for memory": Case("two", None, {"C": 1.0, **TOO_SMALL}, 5),
    "too many rows of some classes": Case("many", None, {"C": 1.0, **TOO_SMALL}, 4),
}
SLOW = ("no upper bound looked for", "too many rows for memory")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of two classes and of four, and LIBLINEAR's models."""
    place = tmp_path_factory.mktemp("corpora")
    write_corpus(place / "two", rows=FEW, columns=COLUMNS, noise=0.1)
    write_corpus(place / "many", rows=FEW, columns=COLUMNS, classes=4)
    for name in ("two", "many"):
        parts = load_svmlight_files([str(shard) for shard in sorted((place / name).iterdir())])
        X, y = sparse.vstack(parts[::2]), np.concatenate(parts[1::2])
        model = liblinearutil.train(y, X, "-s 2 -c 1 -B 1 -e 0.1 -q")
        liblinearutil.save_model(str(place / f"{name}.liblinear"), model)
    return place


@cache
def model_of(corpora: Path, case: str) -> LinearModel:
    name, ours, *_ = CASES[case]
    if ours is not None:
        return fit(corpora / name, tol=0.1, **ours)
    return load_any(corpora / f"{name}.liblinear")


def proven(
    corpora: Path, case: str, executor: Any = serial, readings: int | None = None, **machine: Any
) -> Proof:
    name, ours, problem, most, *_ = CASES[case]
    model, most = model_of(corpora, case), most if readings is None else readings
    settings = Settings(**problem)
    if ours is not None:
        settings = Settings.from_dict(model.settings).but(**problem)
    return certify(
        model,
        corpora / name,
        settings=settings,
        readings=most,
        executor=executor,
        machine=Machine(**machine),
    )


class Noted:
    """A executor that notes what it is asked for."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.asked: list[str] = []

    def __call__(self, function: Any, items: Any, *shared: Any) -> Iterator[Any]:
        self.asked.append(function.__name__)
        yield from self.inner(function, items, *shared)


@pytest.mark.parametrize("case", slow_but(CASES, *(CASES.keys() - SLOW)))
def test_without_a_witness_workers_prove_the_same_and_a_search_reads_once_more(
    workers, corpora, case
):
    executor, searches = Noted(workers), CASES[case].readings > 0
    assert proven(corpora, case, executor) == reading_more(proven(corpora, case), float(searches))
    assert executor.asked == ["scan_part"]


def test_a_scan_of_the_hinge_that_proves_little_without_a_search_is_not_made_on_workers(corpora):
    model, how = load_any(corpora / "two.liblinear"), {"C": 1.0, "loss": "hinge", **SMALL}
    executor = Noted(pickled)
    for readings, asked in ((1, []), (0, ["scan_part"])):
        proofs = [
            certify(model, corpora / "two", settings=Settings(**how), readings=readings, **where)
            for where in ({}, {"executor": executor})
        ]
        assert proofs[0] == proofs[1]
        assert executor.asked == asked


def test_softmax_is_scanned_on_workers_as_in_one_process(corpora, tmp_path):
    settings = Settings(loss="softmax", multiclass=True, tol=0.1)
    outcome = run(corpora / "many", settings, machine=Machine(), witness=tmp_path / "witness")
    for witness, most in ({"witness": tmp_path / "witness"}, 0.1), ({"readings": 0}, 1.0):
        executor, how = Noted(pickled), {**witness, "settings": settings.but(active_set=60_000)}
        here = certify(outcome.model, corpora / "many", **how)
        assert certify(outcome.model, corpora / "many", executor=executor, **how) == here
        assert executor.asked == ["scan_part"]
        assert here.readings == 2.0
        assert here.certificate.relative_duality_gap <= most


def test_workers_prepare_the_shards_where_a_directory_for_that_is_named(workers, corpora, tmp_path):
    executor = Noted(workers)
    kept = proven(corpora, "LIBLINEAR's", executor, cache_dir=str(tmp_path))
    assert kept == reading_more(proven(corpora, "LIBLINEAR's"), 1.0)
    assert executor.asked == ["prepare_shard", "scan_part"]
    assert len(list(tmp_path.glob("*.cache"))) == len(list((corpora / "two").iterdir()))
    again = proven(corpora, "LIBLINEAR's", cache_dir=str(tmp_path))
    assert again == replace(kept, readings=kept.readings - 2.0)  # nothing is prepared


def test_a_worker_that_does_not_see_the_prepared_shards_prepares_them_itself(corpora, tmp_path):
    def elsewhere(function: Any, items: Any, *shared: Any) -> Iterator[Any]:
        *others, plan = shared
        where = plan._replace(cache_dir=str(tmp_path / "of another machine"))
        return serial(function, items, *others, where)

    here = proven(corpora, "LIBLINEAR's", readings=0)
    assert proven(corpora, "LIBLINEAR's", elsewhere, readings=0) == here
    assert not list(tmp_path.iterdir())


def test_a_worker_killed_amid_a_reading_changes_nothing(workers, corpora, tmp_path):
    mark = tmp_path / "died"

    def executor(function: Any, items: Any, *shared: Any) -> Any:
        assert function is scan_part
        return workers(dies_amid_a_scan, items, *shared, str(mark))

    here = proven(corpora, "LIBLINEAR's", readings=0)
    assert proven(corpora, "LIBLINEAR's", executor, readings=0) == here
    assert mark.exists()


LARGEST = float(np.finfo(np.float32).max)
ALPHAS = {"a": [0.0, 0.5, 0.0, 0.0, 1.0], "b": [], "c": [0.0, 0.0], "d": [LARGEST, 1e-40, 0.0]}
"""The dual variables of four shards by fingerprint."""


def saved(path, *shards: tuple[str, list[float]], twice: bool = False, suffix: str = "svm"):
    """A witness of shards, each (fingerprint, its α); or of two learners, of which the second has
    the α of the first with the other sign."""
    records, first = [], 0
    for fingerprint, own in shards:
        names = {"name": f"{fingerprint}.{suffix}", "fingerprint": fingerprint}
        records.append(SimpleNamespace(**names, first_row=first, rows=len(own)))
        first += len(own)
    alphas = [alpha for _, own in shards for alpha in own]
    learners = [plain(alphas), plain([-alpha for alpha in alphas])][: 1 + twice]
    witness_file.save(path, learners, SimpleNamespace(shards=records))
    return path


def plain(values: list[float]) -> Alphas:
    """α of rows 0, 1, …"""
    alphas = Alphas()
    alphas.put(np.arange(len(values)), np.array(values, dtype=np.float32))
    return alphas


def load(path, shards: list[tuple[str, str]] | None = None) -> list[list[float]]:
    """The α of every learner of a witness, with the shards in this order; None = their own."""
    witness = witness_file.load(path)
    rows = {shard.fingerprint: shard.rows for shard in witness.shards}
    records = [
        SimpleNamespace(name=name, fingerprint=fingerprint, rows=rows.get(fingerprint, 0))
        for name, fingerprint in shards or ()
    ]
    order = [*range(len(witness.shards))] if shards is None else witness.order_of(records)
    learners = [witness.alphas(number, order) for number in range(len(witness.stored))]
    return [alphas.dense(sum(witness.shard_rows)).tolist() for alphas in learners]


@pytest.fixture
def path(tmp_path):
    return saved(tmp_path / "w", *ALPHAS.items())


def named(fingerprints: Iterable[str]) -> list[tuple[str, str]]:
    """The shards of these fingerprints, under other names than they were written with."""
    return [(f"moved/{n}.svm", fingerprint) for n, fingerprint in enumerate(fingerprints)]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.floats(-LARGEST, LARGEST, width=32), max_size=9), max_size=5), st.randoms()
)
def test_any_dual_variables_of_any_shards_come_back_in_any_order(tmp_path_factory, shards, rng):
    numbered = {str(n): own for n, own in enumerate(shards)}
    path = saved(tmp_path_factory.mktemp("witness") / "w", *numbered.items(), twice=True)
    order = rng.sample(list(numbered), len(numbered))
    expected = [alpha for number in order for alpha in numbered[number]]
    assert load(path, named(order)) == [expected, [-alpha for alpha in expected]]
    names = saved(path.parent / "names", *numbered.items(), twice=True, suffix="other")
    assert names.read_bytes() == path.read_bytes()


def test_shards_of_one_fingerprint_get_their_dual_variables_in_order_and_none_may_be_missing(
    tmp_path,
):
    path = saved(tmp_path / "w", ("a", [1, 0]), ("b", [9]), ("a", [0, 2]))
    assert load(path, named("aba")) == [[1, 0, 9, 0, 2]]
    assert load(path, named("baa")) == [[9, 1, 0, 0, 2]]
    for given_too, missing in (("ba", 1), ("b", 2), ("", 3)):
        message = refused(lambda given=given_too: load(path, named(given)))
        assert f"{path}: {missing} of its 3 shards are not among those given" in message


def test_a_support_row_costs_eight_bytes_and_another_row_none(tmp_path):
    few = saved(tmp_path / "few", ("a", [1] * 10 + [0] * 1_000_000))
    many = saved(tmp_path / "many", ("a", [1] * 1_010 + [0] * 999_000))
    grown = many.stat().st_size - few.stat().st_size
    assert few.stat().st_size < 1_000
    assert grown == pytest.approx(8 * 1_000, abs=16)  # numbers in the header are longer


def test_a_witness_that_changes_while_it_is_read_is_refused(tmp_path):
    for spoil in (
        lambda: os.truncate(tmp_path / "w", os.path.getsize(tmp_path / "w") - 4),
        lambda: saved(tmp_path / "w", ("a", [2] * 100)),  # another file of the same name and size
    ):
        known = witness_file.load(saved(tmp_path / "w", ("a", [1] * 100)))
        spoil()
        with pytest.raises(FileDamaged, match="w: changed while it was read"):
            known.alphas(0, [0])


def test_a_shard_that_the_witness_does_not_know_or_not_so_often_is_refused_by_name(path):
    for known, unknown in (("abc", "e"), ("abcd", "a")):
        message = refused(lambda k=known, u=unknown: load(path, [*named(k), ("new.svm", u)]))
        assert f"new.svm: its content is not among the 4 shards of the witness {path}" in message


@pytest.mark.parametrize("content", [{}, {"format_version": 1}, {"witness_version": 2}])
def test_a_sealed_file_of_another_kind_or_version_is_refused(tmp_path, content):
    write_sealed(tmp_path / "w", content, {"weights": np.ones(2)})
    assert "w: not a witness of version 3" in refused(lambda: load(tmp_path / "w", []))


SHARDS = [
    None,
    3,
    [3],
    [{"rows": 5}],
    [{"fingerprint": "a"}],
    [{"fingerprint": "a", "rows": -1}],
    [{"fingerprint": "a", "rows": "5"}],
    [{"fingerprint": "a", "rows": 4}],
    *([{"fingerprint": "a", "rows": rows}] for rows in (2**60, 2**63, 2**80)),
]
"""Tables of shards that fit no dual variables."""

TENSORS = [
    *(("alphas", [3, alpha, 1, 1], np.float32) for alpha in (np.nan, np.inf, 0.0)),
    ("alphas", [3.0, 1.0, 1.0, 1.0], np.float64),
    ("alphas", [3], np.float32),
    ("alphas", [[3, 1, 1, 1]], np.float32),
    *(("gaps", gaps, np.uint32) for gaps in ([1, 3, 3, 3], [1, 3, 3, 2**32 - 1], [1, 3, 0, 1])),
    ("gaps", [1, 3, 3, -1], np.int32),
]
"""Dual variables, or the gaps between their rows, that prove nothing."""


@pytest.mark.parametrize("change", [*SHARDS, *TENSORS], ids=repr)
def test_a_sealed_file_whose_shards_or_dual_variables_prove_nothing_is_refused(path, change):
    content, tensors = read_sealed(path)
    if isinstance(change, tuple):
        name, values, kind = change
        tensors = {**tensors, f"000000.{name}": np.array(values, kind)}
    else:
        content = {**content, "shards": change}
    write_sealed(path, content, tensors)
    message = refused(lambda: load(path), FileDamaged)
    assert "w: sealed, but what it holds is no witness" in message


@pytest.mark.parametrize(
    ("at", "gap", "alpha"), [(0, 5, 0), (3, 5, np.nan), (2**18, 0, 1), (4, 0, 1), (9, 2**31, 1)]
)
def test_dual_variables_that_no_run_writes_are_refused_wherever_they_are(tmp_path, at, gap, alpha):
    rows = 2**18 + 10
    saved(tmp_path / "w", ("a", [1] * rows))
    content, tensors = read_sealed(tmp_path / "w")
    gaps, alphas = tensors["000000.gaps"].copy(), tensors["000000.alphas"].copy()
    gaps[at], alphas[at] = gap, alpha
    write_sealed(tmp_path / "w", content, {"000000.gaps": gaps, "000000.alphas": alphas})
    with pytest.raises(FileDamaged, match="w: sealed, but what it holds is no witness"):
        load(tmp_path / "w")
    shorter = {"000000.gaps": gaps[:-1], "000000.alphas": np.ones(rows, np.float32)}
    write_sealed(tmp_path / "w", content, shorter)
    with pytest.raises(FileDamaged, match="another number of dual variables"):
        load(tmp_path / "w")
