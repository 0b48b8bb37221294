"""The witness file is read in pieces: the counts of a shard at a time."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from streamtron.core.errors import FileDamaged
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.data import Manifest, ShardFile, ShardRecord
from streamtron.runs import witness as witness_file
from streamtron.runs.scan import scan_tasks
from streamtron.solver.duals import Counts


def named(shards: int) -> list[tuple[str, str]]:
    """Name and fingerprint of every shard."""
    return [(str(number), f"{number:032x}") for number in range(shards)]


def written(
    path: Path, sizes: Sequence[int], learners: Sequence[NDArray[np.int32]]
) -> witness_file.Witness:
    """The witness of shards of these sizes, with the counts of every learner's rows."""
    shards = tuple(
        ShardRecord(name, name, "libsvm", 0, 0, fingerprint, rows, 0, 0)
        for (name, fingerprint), rows in zip(named(len(sizes)), sizes, strict=True)
    )
    counts = [Counts() for _ in learners]
    for own, dense in zip(counts, learners, strict=True):
        own.put_ranges([(0, len(dense))], dense)
    witness_file.save(path, counts, Manifest(shards))
    return witness_file.load(path)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("density", [0.0, 0.02, 1.0])
def test_counts_are_those_that_were_written_whatever_the_order_of_the_shards(
    tmp_path: Path, seed: int, density: float
) -> None:
    pick = np.random.default_rng(seed)
    sizes = pick.choice([0, 1, 7, 300], size=9).tolist()
    learners = [
        (pick.integers(1, 2**31, size=sum(sizes)) * (pick.random(sum(sizes)) < density)).astype(
            np.int32
        )
        for _ in range(2)
    ]
    order = pick.permutation(9).tolist()
    found = written(tmp_path / "w", sizes, learners).ordered_as([named(9)[k] for k in order])
    assert found.shard_rows == tuple(sizes[k] for k in order)
    for own, dense in zip(found.counts, learners, strict=True):
        pieces = np.split(dense, np.cumsum(sizes)[:-1])
        moved = np.concatenate([pieces[k] for k in order])
        assert own.dense(sum(sizes)).tolist() == moved.tolist()
        assert [len(counts) for _, counts in own.nonzero()] == [
            np.count_nonzero(pieces[k]) for k in order
        ]


def test_a_scan_with_a_witness_holds_the_counts_of_one_shard_at_a_time(tmp_path: Path) -> None:
    sizes, rows = [50_000] * 40, 2_000_000
    dense = np.arange(1, rows + 1, dtype=np.int32)
    written(tmp_path / "w", sizes, [dense])
    assert os.path.getsize(tmp_path / "w") > 8 * rows
    shards = [ShardFile(name, name, "libsvm", 0, 0) for name, _ in named(40)]
    backwards = named(40)[::-1]
    seen = 0
    tracemalloc.start()
    try:
        known = witness_file.load(tmp_path / "w").ordered_as(backwards)
        for task in scan_tasks(shards, known.shard_rows, known.counts):
            seen += len(task.counts[0].numbers)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == rows
    assert peak < 8 * rows / 3


def test_a_witness_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    dense = np.ones(100, dtype=np.int32)
    known = written(tmp_path / "w", [100], [dense])
    os.truncate(tmp_path / "w", os.path.getsize(tmp_path / "w") - 4)
    with pytest.raises(FileDamaged, match="w: changed while it was read"):
        known.counts[0].entries()
    known = written(tmp_path / "w", [100], [dense])
    written(tmp_path / "w", [100], [dense + 1])  # another file of the same name and size
    with pytest.raises(FileDamaged, match="w: changed while it was read"):
        known.counts[0].entries()


@pytest.mark.parametrize(
    ("at", "gap", "count"), [(0, 5, 0), (3, 5, -1), (2**18, 0, 1), (4, 0, 1), (9, 2**31, 1)]
)
def test_counts_that_no_run_writes_are_refused_wherever_they_stand(
    tmp_path: Path, at: int, gap: int, count: int
) -> None:
    rows = 2**18 + 10
    written(tmp_path / "w", [rows], [np.ones(rows, dtype=np.int32)])
    content, tensors = read_sealed(tmp_path / "w")
    gaps, counts = tensors["000000.gaps"].copy(), tensors["000000.counts"].copy()
    gaps[at], counts[at] = gap, count
    write_sealed(tmp_path / "w", content, {"000000.gaps": gaps, "000000.counts": counts})
    with pytest.raises(FileDamaged, match="w: sealed, but what it holds is no witness"):
        witness_file.load(tmp_path / "w")
    shorter = {"000000.gaps": gaps[:-1], "000000.counts": np.ones(rows, np.int32)}
    write_sealed(tmp_path / "w", content, shorter)
    with pytest.raises(FileDamaged, match="another number of counts"):
        witness_file.load(tmp_path / "w")
