"""One reading at frozen weights: the same sums however the rows are cut, here and on workers."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamtron import cli, kernels
from streamtron import witness as witness_file
from streamtron.cluster import Workers
from streamtron.config import Machine, Settings
from streamtron.errors import DataError
from streamtron.fitting import Outcome, run
from streamtron.groups import GROUP_ROWS
from streamtron.proof import ManyProof, Proof, certify
from streamtron.scanning import scan_stretch, stretches
from streamtron.sealed import read_sealed, write_sealed
from streamtron.shards import Reading, ShardFile, open_shards
from streamtron.spread import in_turn
from tests.oracle import Row
from tests.runs import write_corpus
from tests.sources import csr

ROWS = 3 * GROUP_ROWS + 700
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
    assert isinstance(proof, Proof)
    return outcome, proof


def witnessed(outcome: Outcome, shards: Path) -> Path:
    """The counts of the model as a witness of its rows in other shards."""
    with open_shards([str(shards)], Reading(), cache_dir=None) as source:
        for _ in source.chunks():
            pass
        assert source.manifest is not None
        witness_file.save(shards.parent / f"{shards.name}.witness", outcome.counts, source.manifest)
    return shards.parent / f"{shards.name}.witness"


SIZES = {
    "shards that end where groups do": [GROUP_ROWS, 2 * GROUP_ROWS, 700],
    "one row before and behind": [GROUP_ROWS - 1, 2, 2 * GROUP_ROWS - 1, 700],
    "many small ones in a group": [*[100] * 50, 0, *[3] * 30, 0, ROWS - 5090],
    "nothing in front and at the end": [0, 0, 5000, 0, ROWS - 5000, 0],
    "one row each side": [1, ROWS - 2, 1],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
@pytest.mark.parametrize("spread", [None, in_turn], ids=["one source", "a task a shard"])
def test_what_is_proven_is_the_same_to_the_bit_however_the_rows_are_cut_into_shards(
    lines: list[str], whole: tuple[Outcome, Proof], tmp_path: Path, sizes: list[int], spread: Any
) -> None:
    outcome, proof = whole
    shards = cut(lines, tmp_path / "cut", sizes)
    assert certify(outcome.model, shards, witness=witnessed(outcome, shards), spread=spread) == (
        proof
    )


def test_groups_are_summed_by_themselves_and_then_added(
    lines: list[str], whole: tuple[Outcome, Proof], tmp_path: Path
) -> None:
    """Σ c_k l_k x_k in plain loops, one group after the other."""
    outcome, proof = whole
    counts = outcome.counts[0].dense(ROWS)
    rows = [line.split() for line in lines]
    total, bias, extension = [0.0] * (COLUMNS + 1), 0.0, 0.0
    for first in range(0, ROWS, GROUP_ROWS):
        part, own_bias, own_extension = [0.0] * (COLUMNS + 1), 0.0, 0.0
        for count, (label, *entries) in zip(
            counts[first : first + GROUP_ROWS].tolist(), rows[first : first + GROUP_ROWS],
            strict=True,
        ):  # fmt: skip
            step = count * float(label)
            for column, _, value in (entry.partition(":") for entry in entries if count):
                part[int(column)] += step * float(np.float32(value))
            own_bias += step
            own_extension += 0.5 * count * count  # C = 1: Δ² = ½
        total = [a + b for a, b in zip(total, part, strict=True)]
        bias, extension = bias + own_bias, extension + own_extension
    upper = (sum(value * value for value in total) + bias * bias + extension) ** 0.5 / int(
        counts.sum()
    )
    found = proof.certificate
    assert found.upper_bound is not None
    assert found.upper_bound - found.rounding_bound == pytest.approx(upper, rel=1e-14)


def test_the_directional_margin_is_the_least_of_all_groups(
    lines: list[str], whole: tuple[Outcome, Proof]
) -> None:
    """min y_k·a / ‖a‖ of the weights as they were trained, in plain loops."""
    outcome, proof = whole
    assert outcome.model.certificate is not None
    scale, base = outcome.model.certificate["scale"], outcome.model.index_base
    w, bias = outcome.model.weights / scale, float(outcome.model.bias) / scale
    counts = outcome.counts[0].dense(ROWS).tolist()
    margins = []
    for count, line in zip(counts, lines, strict=True):
        label, *entries = line.split()
        pairs = [entry.split(":") for entry in entries]
        dot = sum(float(w[int(column) - base]) * float(np.float32(x)) for column, x in pairs)
        margins.append(float(label) * (dot + bias) + 0.5 * count)
    extension = sum(0.5 * count * count for count in counts)
    length = (float(w @ w) + bias * bias + extension) ** 0.5
    assert np.argmin(margins) < ROWS - 700  # not in the last group
    assert proof.certificate.directional_margin == pytest.approx(min(margins) / length, rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_every_row_is_in_one_task_and_no_task_opens_a_shard_in_vain(seed: int) -> None:
    pick = random.Random(seed)
    sizes = [pick.choice([0, 1, 50, GROUP_ROWS, 5000, 9000]) for _ in range(12)]
    shards = [ShardFile(f"/{k}", str(k), "libsvm", 0, 0) for k in range(12)]
    tasks = stretches(shards, sizes, [])
    borders = [task.start for task in tasks]
    assert [task.stop for task in tasks] == [*borders[1:], sum(sizes)]
    assert borders[0] == 0
    for task in tasks:
        assert task.start % GROUP_ROWS == 0
        assert task.rows == tuple(sizes[int(shard.name)] for shard in task.shards)
        assert task.start < task.first_row + task.rows[0]
        assert sum(task.rows[:-1]) < task.stop - task.first_row <= sum(task.rows)


# --- the kernel ----------------------------------------------------------------------------------

SPARSE: list[Row] = [[(0, 1.0), (2, -2.0)], [], [(2, 2.0), (5, 0.5)], [(1, 3.0)], [(0, 1.0)]]


def test_drain_takes_every_columns_sum_once_and_leaves_nothing() -> None:
    counts = np.array([1, 1, 1, 0, 4], dtype=np.int32)
    fresh = np.array([5.0, 0.0, 0.0, 0.0, 0.0, 0.5])  # -2 + 2 is 0; column 1 has no count
    columns, values = np.empty(9, np.uint32), np.empty(9)
    found = kernels.drain(csr(SPARSE), counts, fresh, columns, values)
    assert list(zip(columns[:found].tolist(), values[:found].tolist(), strict=True)) == [
        (0, 5.0), (5, 0.5),
    ]  # fmt: skip
    assert not fresh.any()


# --- on workers ----------------------------------------------------------------------------------


def test_workers_prove_of_a_run_what_one_process_proves_and_the_command_prints_it(
    workers: Workers, lines: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shards = cut(lines, tmp_path / "cut", [3000, 6000, 0, ROWS - 9000])
    model = tmp_path / "model"
    run(shards, Settings(C=2.0, class_weight={"1": 3.0}), model=model, machine=Machine())
    address = workers.client.scheduler.address
    said = []
    for more in ([], ["--scheduler", address]):
        assert cli._run(["certify", str(model), "--json", *more]) == 0
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
        certify(done.model, tmp_path / "many", witness=tmp_path / "w", spread=spread)
        for spread in (None, workers)
    )
    assert isinstance(one, ManyProof)
    assert one == many
    assert one.readings == (1.0 if class_weight is None else 2.0)


def test_a_model_without_a_witness_is_proven_the_same_with_workers_at_hand(
    workers: Workers, lines: list[str], whole: tuple[Outcome, Proof], tmp_path: Path
) -> None:
    shards = cut(lines, tmp_path / "cut", [5000, ROWS - 5000])
    one, many = (
        certify(whole[0].model, shards, readings=3, spread=spread) for spread in (None, workers)
    )
    assert one == many


def test_a_worker_that_is_killed_in_mid_scan_changes_nothing(
    workers: Workers, lines: list[str], whole: tuple[Outcome, Proof], tmp_path: Path
) -> None:
    outcome, proof = whole
    shards = cut(lines, tmp_path / "cut", [2000] * 6 + [ROWS - 12000])
    witness = witnessed(outcome, shards)

    def spread(function: Any, items: Any, *shared: Any) -> Any:
        if function is scan_stretch:
            return workers(_dies_in_mid_scan, items, *shared, str(tmp_path / "died"))
        return workers(function, items, *shared)

    assert certify(outcome.model, shards, witness=witness, spread=spread) == proof
    assert (tmp_path / "died").exists()


def _dies_in_mid_scan(item: Any, *shared: Any) -> Iterator[Any]:
    *shared_then, mark = shared
    for number, group in enumerate(scan_stretch(item, *shared_then)):
        if number == 0 and item.start > 0 and not Path(mark).exists():
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield group


@pytest.mark.parametrize("off", [-1, 1, -GROUP_ROWS, GROUP_ROWS])
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
    with pytest.raises(DataError, match=f"000{at}.svm: it holds {'more' if off > 0 else 'fewer'}"):
        certify(outcome.model, shards, witness=tmp_path / "w", spread=in_turn)


def test_what_a_shard_is_refused_for_on_workers_is_the_sentence_of_one_process(
    guest: Workers, whole: tuple[Outcome, Proof], tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    for number in range(4):
        (directory / f"{number}.svm").write_text(f"1 1:{number + 1}\n-1 2:1\n")
    done = run(directory, Settings(), machine=Machine(), witness=tmp_path / "w")
    sentences = []
    strange = type(done.model)(
        done.model.weights, done.model.bias, (0.0, 1.0), done.model.settings,
        done.model.certificate, done.model.reading,
    )  # fmt: skip
    for spread in (None, guest):
        with pytest.raises(DataError) as caught:
            certify(strange, directory, witness=tmp_path / "w", spread=spread)
        sentences.append(str(caught.value))
    assert sentences[0] == sentences[1]
    assert "0.svm" in sentences[0]
