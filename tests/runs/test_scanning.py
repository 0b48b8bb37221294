"""One reading at frozen weights: the same sums here and on workers, a shard each."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from liblinear import liblinearutil
from sklearn.datasets import load_svmlight_file

from streamtron.cli import main
from streamtron.cluster.client import Workers
from streamtron.core import kernels
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError
from streamtron.core.executor import serial
from streamtron.core.rows import BLOCK_ROWS
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.data import ReaderConfig, open_shards
from streamtron.model.import_model import load_any
from streamtron.model.linear_model import LinearModel
from streamtron.runs import witness as witness_file
from streamtron.runs.certify import Proof, certify
from streamtron.runs.convert import convert
from streamtron.runs.fit import run
from streamtron.runs.inputs import cache_here
from streamtron.runs.outcome import Outcome
from streamtron.runs.scan import scan_shard
from streamtron.solver.scan import BlockScan
from tests.helpers.examples import slow_but
from tests.helpers.oracle import Row
from tests.helpers.runs import dies_amid_a_scan, pickled, write_corpus
from tests.helpers.sources import csr

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
    assert sum(sizes) == len(lines)
    ends = itertools.accumulate(sizes)
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
    proof = certify(outcome.model, shard, witness=directory / "witness")
    return outcome, proof


def witnessed(outcome: Outcome, shards: Path) -> Path:
    """The counts of the model as a witness of its rows in other shards."""
    with open_shards([str(shards)], ReaderConfig(), cache_dir=None) as source:
        for _ in source.chunks():
            pass
        witness_file.save(shards.parent / f"{shards.name}.witness", outcome.counts, source.manifest)
    return shards.parent / f"{shards.name}.witness"


SIZES = {
    "shards that end where blocks do": [BLOCK_ROWS, 2 * BLOCK_ROWS, 700],
    "one row before and behind": [BLOCK_ROWS - 1, 2, 2 * BLOCK_ROWS - 1, 700],
    "many small ones": [*[100] * 50, 0, *[3] * 30, 0, ROWS - 5090],
    "nothing in front and at the end": [0, 0, 5000, 0, ROWS - 5000, 0],
    "one row each side": [1, ROWS - 2, 1],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
def test_a_task_a_shard_proves_what_one_process_proves_and_bounds_hold_however_the_rows_are_cut(
    lines: list[str], whole: tuple[Outcome, Proof], tmp_path: Path, sizes: list[int]
) -> None:
    outcome, proof = whole
    shards = cut(lines, tmp_path / "cut", sizes)
    witness = witnessed(outcome, shards)
    here, executor = (
        certify(outcome.model, shards, witness=witness, executor=executor)
        for executor in (serial, pickled)
    )
    assert here == executor
    one, other = proof.certificate, here.certificate
    assert other.rows_scanned == one.rows_scanned
    assert other.primal_margin <= one.upper_bound  # both hold the same optimum
    assert one.primal_margin <= other.upper_bound
    assert other.upper_bound == pytest.approx(one.upper_bound, rel=1e-12)
    assert other.primal_margin == pytest.approx(one.primal_margin, rel=1e-12)
    assert other.directional_margin == pytest.approx(one.directional_margin, rel=1e-12)


# --- the kernel ----------------------------------------------------------------------------------

SPARSE: list[Row] = [[(0, 1.0), (2, -2.0)], [], [(2, 2.0), (5, 0.5)], [(1, 3.0)], [(0, 1.0)]]


def test_drain_takes_every_columns_sum_once_and_leaves_nothing() -> None:
    counts = np.array([1, 1, 1, 0, 4], dtype=np.int32)
    fresh = np.array([5.0, 0.0, 0.0, 0.0, 0.0, 0.5])  # -2 + 2 is 0; column 1 has no count
    low = np.array([1.0, 0.0, 0.25, 0.0, 0.0, 0.0])  # what was rounded off
    columns, values = np.empty(9, np.uint32), np.empty(9)
    found = kernels.drain(csr(SPARSE), counts, fresh, low, columns, values)
    assert list(zip(columns[:found].tolist(), values[:found].tolist(), strict=True)) == [
        (0, 6.0), (2, 0.25), (5, 0.5),
    ]  # fmt: skip
    assert not fresh.any()
    assert not low.any()


# --- on workers ----------------------------------------------------------------------------------


def test_workers_prove_of_a_run_and_of_a_model_what_one_process_proves_and_it_is_printed(
    workers: Workers, lines: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shards = cut(lines, tmp_path / "cut", [3000, 6000, 0, ROWS - 9000])
    model = tmp_path / "model"
    run(shards, Settings(C=2.0, class_weight={"1": 3.0}), model=model, machine=Machine())
    address = workers.client.scheduler.address
    for words in ([], [str(shards), "--readings", "2"]):
        said = []
        for more in ([], ["--scheduler", address]):
            assert main._run(["certify", str(model), *words, "--json", *more]) == 0
            said.append(capfd.readouterr().out)
        assert said[0] == said[1]
        assert json.loads(said[0])["readings"] == 1.0


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_workers_prove_of_many_classes_what_one_process_proves(
    workers: Workers, tmp_path: Path, class_weight: Any
) -> None:
    write_corpus(tmp_path / "many", rows=9000, columns=80, classes=4)
    settings = Settings(multiclass=True, tol=0.1, class_weight=class_weight)
    done = run(tmp_path / "many", settings, machine=Machine(), witness=tmp_path / "w")
    one, many = (
        certify(done.model, tmp_path / "many", witness=tmp_path / "w", executor=executor)
        for executor in (serial, workers)
    )
    assert one.classes
    assert one == many
    assert one.readings == (1.0 if class_weight is None else 2.0)


@pytest.mark.parametrize("off", [-1, 1, -BLOCK_ROWS, BLOCK_ROWS])
@pytest.mark.parametrize("at", [0, 1])
def test_a_shard_of_more_rows_or_fewer_than_its_witness_has_is_named(
    lines: list[str], whole: tuple[Outcome, Proof], tmp_path: Path, off: int, at: int
) -> None:
    outcome, _ = whole
    shards = cut(lines, tmp_path / "cut", [6000, ROWS - 6000])
    content, tensors = read_sealed(witnessed(outcome, shards), "witness")
    content["shards"][at]["rows"] -= off
    kept = np.cumsum(tensors["000000.gaps"], dtype=np.int64) < ROWS - max(off, 0)
    write_sealed(tmp_path / "w", content, {name: own[kept] for name, own in tensors.items()})
    with pytest.raises(
        DataError, match=f"000{at}.svm: it holds .* {'more' if off > 0 else 'fewer'}"
    ):
        certify(outcome.model, shards, witness=tmp_path / "w", executor=serial)


# --- without a witness ----------------------------------------------------------------------------

FEW = BLOCK_ROWS + 900


class Case(NamedTuple):
    """What is certified, and how many of its readings workers make."""

    model: LinearModel
    shards: Path
    settings: Settings | None
    readings: int
    scans: int


class Corpora(NamedTuple):
    """Shards of two classes and of four, in text and in Parquet, and LIBLINEAR's models."""

    place: Path

    def shards(self, name: str) -> Path:
        return self.place / name

    def liblinear(self, name: str) -> LinearModel:
        return load_any(self.place / f"{name}.liblinear")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    place = tmp_path_factory.mktemp("corpora")
    write_corpus(place / "two", rows=FEW, columns=COLUMNS, noise=0.1)
    write_corpus(place / "many", rows=FEW, columns=COLUMNS, classes=4)
    convert(place / "two", place / "two.parquet", to="parquet", rows_per_shard=2001)
    for name in ("two", "many"):
        text = "".join(shard.read_text() for shard in sorted((place / name).iterdir()))
        (place / f"{name}.svm").write_text(text)
        X, y = load_svmlight_file(str(place / f"{name}.svm"))
        model = liblinearutil.train(y, X, "-s 2 -c 1 -B 1 -e 0.1 -q")
        liblinearutil.save_model(str(place / f"{name}.liblinear"), model)
    _weighted(place / "two", place / "weighted")
    return Corpora(place)


def _weighted(shards: Path, to: Path) -> None:
    """The same rows with weights, some of them 0."""
    pick = random.Random(0)
    to.mkdir()
    for shard in shards.iterdir():
        lines = shard.read_text().splitlines()
        weights = [pick.choice(["0", "0.5", "3"]) for _ in lines]
        rows = (
            f"{line.replace(' ', f':{w} ', 1)}\n" for line, w in zip(lines, weights, strict=True)
        )
        (to / shard.name).write_text("".join(rows))


def fitted(shards: Path, **settings: Any) -> LinearModel:
    return run(shards, Settings(tol=0.1, **settings), machine=Machine()).model


def scaled(model: LinearModel, factor: float) -> LinearModel:
    return model.but(weights=factor * model.weights, bias=factor * model.bias)


def case(name: str, corpora: Corpora) -> Case:
    two, many = corpora.shards("two"), corpora.shards("many")
    rough = Settings(C=1.0, active_set=60_000)
    match name:
        case "ours of many classes":
            return Case(fitted(many, multiclass=True), many, None, 3, 2)
        case "ours in Parquet":
            parquet = corpora.shards("two.parquet")
            return Case(fitted(parquet), parquet, None, 2, 2)
        case "LIBLINEAR's":
            return Case(corpora.liblinear("two"), two, Settings(C=1.0), 3, 3)
        case "of another size":
            return Case(scaled(corpora.liblinear("two"), 1e4), two, Settings(C=1.0), 2, 3)
        case "no upper bound looked for":
            return Case(corpora.liblinear("two"), two, Settings(C=1.0), 0, 1)
        case "hard margin":
            return Case(corpora.liblinear("two"), two, Settings(delta=0.0), 4, 1)
        case "classes balanced":
            balanced = Settings(C=1.0, class_weight="balanced")
            return Case(corpora.liblinear("two"), two, balanced, 2, 3)
        case "rows with weights":
            weighted = corpora.shards("weighted")
            return Case(fitted(weighted, weights_in_label=True), weighted, None, 2, 2)
        case "too many rows for memory":
            return Case(corpora.liblinear("two"), two, rough, 5, 2)
        case "too many rows of some classes":
            return Case(corpora.liblinear("many"), many, rough, 4, 2)
    raise ValueError(name)


def proven(one: Case, executor: Any = serial, **machine: Any) -> Proof:
    return certify(
        one.model, one.shards, settings=one.settings, readings=one.readings,
        machine=Machine(**machine), executor=executor,
    )  # fmt: skip


class Noted:
    """A executor that notes what it is asked for, and passes on what comes."""

    def __init__(self, inner: Any, passed: Any = None) -> None:
        self.inner, self.passed = inner, passed or (lambda result: None)
        self.asked: list[str] = []

    def __call__(self, function: Any, items: Any, *shared: Any) -> Iterator[Any]:
        self.asked.append(function.__name__)
        for result in self.inner(function, items, *shared):
            self.passed(result)
            yield result


slow = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    [
        "ours of many classes",
        "ours in Parquet",
        "LIBLINEAR's",
        "of another size",
        pytest.param("no upper bound looked for", marks=slow),
        "hard margin",
        "classes balanced",
        pytest.param("rows with weights", marks=slow),
        pytest.param("too many rows for memory", marks=slow),
        "too many rows of some classes",
    ],
)
def test_without_a_witness_workers_prove_what_one_process_proves_and_make_its_frozen_readings(
    workers: Workers, corpora: Corpora, name: str
) -> None:
    one, executor = case(name, corpora), Noted(workers)
    assert proven(one, executor) == proven(one)
    assert executor.asked == ["scan_shard"] * one.scans


@pytest.mark.parametrize("name", slow_but(SIZES, "one row before and behind"))
def test_without_a_witness_a_task_a_shard_proves_what_one_process_proves(
    lines: list[str], whole: tuple[Outcome, Proof], tmp_path: Path, name: str
) -> None:
    model, problem = whole[0].model, Settings(active_set=100_000)
    rough = np.random.default_rng(1).normal(scale=0.1, size=model.weights.shape)
    model = model.but(weights=model.weights + rough)
    shards = cut(lines, tmp_path / "cut", SIZES[name])
    here, executor = (
        certify(model, shards, settings=problem, executor=one) for one in (serial, pickled)
    )
    assert here == executor
    assert here.readings == 5.0
    known, found = whole[1].certificate, here.certificate
    assert found.primal_margin <= known.upper_bound  # both hold the same optimum
    assert known.primal_margin <= found.upper_bound


def test_rows_for_which_there_is_no_room_do_not_travel(corpora: Corpora) -> None:
    one, sent = case("too many rows for memory", corpora), []

    def passed(result: Any) -> None:
        if isinstance(result, BlockScan):
            sent.append(8 * len(result.held.values) + 24 * len(result.positions))

    executor = Noted(serial, passed)
    proven(one._replace(readings=2), executor)
    room = one.settings.active_set
    assert executor.asked.count("scan_shard") == 2  # both of which want rows
    assert 2 * room - 2 * 100 <= sum(sent) <= 2 * room


def test_workers_that_see_the_clients_disk_keep_a_flat_copy_there_for_later_readings(
    workers: Workers, corpora: Corpora, tmp_path: Path
) -> None:
    one = case("LIBLINEAR's", corpora)
    assert proven(one, workers, cache_dir=str(tmp_path)) == proven(one)
    assert len(list(tmp_path.glob("*.cache"))) == len(list(one.shards.iterdir()))
    for there in (tmp_path, tmp_path / "of another machine"):
        found = workers.client.run(cache_here, str(there))
        assert set(found.values()) == {str(there) if there.exists() else None}


@pytest.mark.parametrize(
    "reading",
    [pytest.param(0, marks=slow), pytest.param(1, marks=slow), 2],
    ids=["first", "counts from slacks", "certifying"],
)
def test_a_worker_that_is_killed_amid_a_reading_without_a_witness_changes_nothing(
    workers: Workers, corpora: Corpora, tmp_path: Path, reading: int
) -> None:
    one, mark = case("LIBLINEAR's", corpora), tmp_path / "died"
    scans = 0

    def executor(function: Any, items: Any, *shared: Any) -> Any:
        nonlocal scans
        scans += function is scan_shard
        if function is scan_shard and scans == reading + 1:
            return workers(dies_amid_a_scan, items, *shared, str(mark))
        return workers(function, items, *shared)

    assert proven(one, executor) == proven(one)
    assert mark.exists()


BAD = {
    "duplicates": ("1 1:1\n-1 2:1\n", "1 1:1\n-1 2:1\n", r"b\.svm: the same bytes as a\.svm"),
    "a label": ("1 1:1\n-1 2:1\n", "1 1:1\n7 2:1\n", r"b\.svm, line 2"),
    "no text": ("1 1:1\n-1 2:1\n", "1 1:x\n", r"b\.svm, line 1"),
    "no rows": ("# nothing\n", "# nothing, too\n", r"a\.svm: no rows, in 2 shard"),
    "no margin": ("1 1:1\n-1 2:1\n", "1 1:1\n1\n", r"b\.svm: row 2 has no features"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_without_a_witness_workers_refuse_what_one_process_refuses_in_its_words(
    guest: Workers, tmp_path: Path, name: str
) -> None:
    *shards, sentence = BAD[name]
    for letter, text in zip("ab", shards, strict=True):
        (tmp_path / f"{letter}.svm").write_text(text)
    model = LinearModel(np.array([0.5, -0.5]), 0.0, (-1.0, 1.0), {}, None, {"index_base": 1})
    one = Case(model, tmp_path, Settings(delta=0.0, rho=0.0), 4, 1)
    said = []
    for executor in (serial, guest):
        with pytest.raises(DataError, match=sentence) as caught:
            proven(one, executor)
        said.append(str(caught.value))
    assert said[0] == said[1]
