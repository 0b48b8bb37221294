"""One reading at frozen weights: the same sums here and on workers, a shard each."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from liblinear import liblinearutil
from scipy import sparse
from sklearn.datasets import load_svmlight_files

from streamtron import Certificate, LinearModel, Machine, Settings, certify, convert, fit, run
from streamtron.cli import main
from streamtron.core import kernels
from streamtron.core.errors import DataError
from streamtron.core.executor import serial
from streamtron.core.rows import BLOCK_ROWS
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.data import ReaderConfig, open_shards
from streamtron.model.import_model import load_any
from streamtron.runs import witness as witness_file
from streamtron.runs.certify import Proof
from streamtron.runs.inputs import cache_here
from streamtron.runs.report import Outcome
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
def test_a_task_a_shard_proves_what_one_process_proves_however_rows_are_cut(
    lines, whole, tmp_path, sizes
):
    outcome, proof = whole
    shards = cut(lines, tmp_path / "cut", sizes)
    witness = witnessed(outcome, shards)
    here, executor = (
        certify(outcome.model, shards, witness=witness, executor=executor)
        for executor in (serial, pickled)
    )
    assert here == executor
    known, found = proof.certificate, here.certificate
    assert found.rows_scanned == known.rows_scanned
    hold_the_same(known, found)
    for name in ("upper_bound", "primal_margin", "directional_margin"):
        assert getattr(found, name) == pytest.approx(getattr(known, name), rel=1e-12)
    rough = np.random.default_rng(1).normal(scale=0.1, size=outcome.model.weights.shape)
    problem = Settings(active_set=100_000)
    if sizes is SIZES["one row before and behind"]:  # without a witness, and with worse weights
        model = outcome.model.but(weights=outcome.model.weights + rough)
        here, executor = (
            certify(model, shards, settings=problem, executor=executor)
            for executor in (serial, pickled)
        )
        assert here == executor
        assert here.readings == 5.0
        hold_the_same(known, here.certificate)


def hold_the_same(known: Certificate, found: Certificate) -> None:
    """The bounds may hold the same optimum."""
    assert found.primal_margin <= known.upper_bound
    assert known.primal_margin <= found.upper_bound


SPARSE: list[Row] = [[(0, 1.0), (2, -2.0)], [], [(2, 2.0), (5, 0.5)], [(1, 3.0)], [(0, 1.0)]]


def test_drain_takes_every_columns_sum_once_and_leaves_nothing():
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


@pytest.mark.parametrize(
    ("classes", "settings"),
    [
        (2, {"C": 2.0, "class_weight": {"1": 3.0}}),
        (4, {"multiclass": True, "tol": 0.1}),
        (4, {"multiclass": True, "tol": 0.1, "class_weight": "balanced"}),
    ],
)
def test_workers_prove_of_runs_and_models_what_one_process_proves(
    classes, settings, workers, tmp_path, capfd
):
    write_corpus(tmp_path / "data", rows=9000, columns=80, classes=classes, noise=0.1)
    run(tmp_path / "data", Settings(**settings), model=tmp_path / "m", machine=Machine())
    on_workers = ["--scheduler", workers.client.scheduler.address]
    for words in ([], [str(tmp_path / "data"), "--readings", "2"]):
        said = []
        for more in ([], on_workers):
            assert main._run(["certify", str(tmp_path / "m"), *words, "--json", *more]) == 0
            said.append(capfd.readouterr().out)
        assert said[0] == said[1]
        if not words:  # which has a witness; balanced weights want the labels first
            assert json.loads(said[0])["readings"] == 1.0 + ("balanced" in settings.values())


@pytest.mark.parametrize("off", [-1, 1, -BLOCK_ROWS, BLOCK_ROWS])
@pytest.mark.parametrize("at", [0, 1])
def test_a_shard_of_more_or_fewer_rows_than_its_witness_has_is_named(
    lines, whole, tmp_path, off, at
):
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
    """What is certified, and how many of its readings workers make: shards, a fit of them with
    these settings or LIBLINEAR's model, times a factor, the problem, and the most readings."""

    name: str
    ours: dict[str, Any] | None
    problem: dict[str, Any] | None
    readings: int
    scans: int
    factor: float = 1.0


CASES = {
    "ours of many classes": Case("many", {"multiclass": True}, None, 3, 2),
    "ours in Parquet": Case("two.parquet", {}, None, 2, 2),
    "LIBLINEAR's": Case("two", None, {"C": 1.0}, 3, 3),
    "of another size": Case("two", None, {"C": 1.0}, 2, 3, 1e4),
    "no upper bound looked for": Case("two", None, {"C": 1.0}, 0, 1),
    "hard margin": Case("two", None, {"delta": 0.0}, 4, 1),
    "classes balanced": Case("two", None, {"C": 1.0, "class_weight": "balanced"}, 2, 3),
    "rows with weights": Case("weighted", {"weights_in_label": True}, None, 2, 2),
    "too many rows for memory": Case("two", None, {"C": 1.0, "active_set": 60_000}, 5, 2),
    "too many rows of some classes": Case("many", None, {"C": 1.0, "active_set": 60_000}, 4, 2),
}
SLOW = ("no upper bound looked for", "rows with weights", "too many rows for memory")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of two classes, with weights and without, and of four, in text and in Parquet, and
    LIBLINEAR's models."""
    place, pick = tmp_path_factory.mktemp("corpora"), random.Random(0)
    write_corpus(place / "two", rows=FEW, columns=COLUMNS, noise=0.1)
    write_corpus(place / "many", rows=FEW, columns=COLUMNS, classes=4)
    convert(place / "two", place / "two.parquet", to="parquet", rows_per_shard=2001)
    for name in ("two", "many"):
        parts = load_svmlight_files([str(shard) for shard in sorted((place / name).iterdir())])
        X, y = sparse.vstack(parts[::2]), np.concatenate(parts[1::2])
        model = liblinearutil.train(y, X, "-s 2 -c 1 -B 1 -e 0.1 -q")
        liblinearutil.save_model(str(place / f"{name}.liblinear"), model)
    (place / "weighted").mkdir()
    for shard in (place / "two").iterdir():
        lines = shard.read_text().splitlines(True)
        rows = [line.replace(" ", f":{pick.choice(['0', '0.5', '3'])} ", 1) for line in lines]
        (place / "weighted" / shard.name).write_text("".join(rows))
    return place


@cache
def model_of(corpora: Path, case: str) -> LinearModel:
    name, ours, *_, factor = CASES[case]
    if ours is not None:
        return fit(corpora / name, tol=0.1, **ours)
    model = load_any(corpora / f"{name}.liblinear")
    return model.but(weights=factor * model.weights, bias=factor * model.bias)


def proven(
    corpora: Path, case: str, executor: Any = serial, readings: int | None = None, **machine: Any
) -> Proof:
    name, _, problem, most, *_ = CASES[case]
    settings, most = problem and Settings(**problem), most if readings is None else readings
    return certify(
        model_of(corpora, case), corpora / name, settings=settings, readings=most,
        executor=executor, machine=Machine(**machine),
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


@pytest.mark.parametrize("case", slow_but(CASES, *(CASES.keys() - SLOW)))
def test_without_a_witness_workers_prove_what_one_process_proves_scan_by_scan(
    workers, corpora, case
):
    executor = Noted(workers)
    assert proven(corpora, case, executor) == proven(corpora, case)
    assert executor.asked == ["scan_shard"] * CASES[case].scans


def test_rows_for_which_there_is_no_room_do_not_travel(corpora):
    sent: list[int] = []

    def passed(result: Any) -> None:
        if isinstance(result, BlockScan):
            sent.append(8 * len(result.held.values) + 24 * len(result.positions))

    executor = Noted(serial, passed)
    proven(corpora, "too many rows for memory", executor, readings=2)
    assert executor.asked.count("scan_shard") == 2  # both of which want rows
    assert 2 * 60_000 - 2 * 100 <= sum(sent) <= 2 * 60_000


def test_workers_that_see_the_clients_disk_keep_a_flat_copy_there(workers, corpora, tmp_path):
    kept = proven(corpora, "LIBLINEAR's", workers, cache_dir=str(tmp_path))
    assert kept == proven(corpora, "LIBLINEAR's")
    assert len(list(tmp_path.glob("*.cache"))) == len(list((corpora / "two").iterdir()))
    for there in (tmp_path, tmp_path / "of another machine"):
        found = workers.client.run(cache_here, str(there))
        assert set(found.values()) == {str(there) if there.exists() else None}


@pytest.mark.parametrize("reading", slow_but(range(3), 2))  # the first, by slacks, to certify
def test_a_worker_killed_amid_a_reading_changes_nothing(workers, corpora, tmp_path, reading):
    mark, scans = tmp_path / "died", 0

    def executor(function: Any, items: Any, *shared: Any) -> Any:
        nonlocal scans
        scans += function is scan_shard
        if function is scan_shard and scans == reading + 1:
            return workers(dies_amid_a_scan, items, *shared, str(mark))
        return workers(function, items, *shared)

    assert proven(corpora, "LIBLINEAR's", executor) == proven(corpora, "LIBLINEAR's")
    assert mark.exists()


BAD = {
    "duplicates": ("1 1:1\n-1 2:1\n", "1 1:1\n-1 2:1\n", r"b\.svm: the same bytes as a\.svm"),
    "a label": ("1 1:1\n-1 2:1\n", "1 1:1\n7 2:1\n", r"b\.svm, line 2"),
    "no text": ("1 1:1\n-1 2:1\n", "1 1:x\n", r"b\.svm, line 1"),
    "no rows": ("# nothing\n", "# nothing, too\n", r"a\.svm: no rows, in 2 shard"),
    "no margin": ("1 1:1\n-1 2:1\n", "1 1:1\n1\n", r"b\.svm: row 2 has no features"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_without_a_witness_workers_refuse_alike_what_one_process_refuses(guest, tmp_path, name):
    *shards, sentence = BAD[name]
    for letter, text in zip("ab", shards, strict=True):
        (tmp_path / f"{letter}.svm").write_text(text)
    model = LinearModel(np.array([0.5, -0.5]), 0.0, (-1.0, 1.0), {}, None, {"index_base": 1})
    said = []
    for executor in (serial, guest):
        with pytest.raises(DataError, match=sentence) as caught:
            certify(model, tmp_path, settings=Settings(delta=0.0, rho=0.0), executor=executor)
        said.append(str(caught.value))
    assert said[0] == said[1]
