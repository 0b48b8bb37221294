"""The witness: counts find their rows again by what the shards hold, or are refused."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtron.core.errors import FileDamaged
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.data import ShardFile
from streamtron.runs import witness
from streamtron.runs.scan import scan_tasks
from streamtron.solver.duals import Counts
from tests.helpers.models import refused

LARGEST = 2**31 - 1
COUNTS = {"a": [0, 3, 0, 0, 1], "b": [], "c": [0, 0], "d": [LARGEST, 1, 0]}
"""The counts of four shards by fingerprint."""


def saved(path, *shards: tuple[str, list[int]], twice: bool = False, suffix: str = "svm"):
    """A witness of shards, each (fingerprint, its counts); or of two learners, of which the second
    has half of the counts of the first."""
    records, first = [], 0
    for fingerprint, own in shards:
        names = {"name": f"{fingerprint}.{suffix}", "fingerprint": fingerprint}
        records.append(SimpleNamespace(**names, first_row=first, rows=len(own)))
        first += len(own)
    counts = [c for _, own in shards for c in own]
    learners = [plain(counts), plain([c // 2 for c in counts])][: 1 + twice]
    witness.save(path, learners, SimpleNamespace(shards=records))
    return path


def plain(values: list[int]) -> Counts:
    """Counts of rows 0, 1, …"""
    counts = Counts()
    counts.put(np.arange(len(values)), np.array(values, dtype=np.int32))
    return counts


def load(path, shards: list[tuple[str, str]]) -> witness.Witness:
    """The witness with the shards in this order."""
    return witness.load(path).ordered_as(shards)


def listed(found: witness.Witness) -> list[int]:
    """The counts of the only learner."""
    [counts] = found.counts
    return counts.dense(sum(found.shard_rows)).tolist()


@pytest.fixture
def path(tmp_path):
    return saved(tmp_path / "w", *COUNTS.items())


def named(fingerprints: Iterable[str]) -> list[tuple[str, str]]:
    """The shards of these fingerprints, under other names than they were written with."""
    return [(f"moved/{n}.svm", fingerprint) for n, fingerprint in enumerate(fingerprints)]


# --- matched -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, LARGEST), max_size=9), max_size=5), st.randoms())
def test_any_counts_of_any_shards_come_back_in_any_order(tmp_path_factory, shards, rng):
    numbered = {str(n): own for n, own in enumerate(shards)}
    path = saved(tmp_path_factory.mktemp("witness") / "w", *numbered.items(), twice=True)
    order = rng.sample(list(numbered), len(numbered))
    found = load(path, named(order))
    wanted = [count for number in order for count in numbered[number]]
    assert found.shard_rows == tuple(len(numbered[number]) for number in order)
    one, other = (own.dense(sum(found.shard_rows)).tolist() for own in found.counts)
    assert (one, other) == (wanted, [count // 2 for count in wanted])
    names = saved(path.parent / "names", *numbered.items(), twice=True, suffix="other")
    assert names.read_bytes() == path.read_bytes()


def test_shards_of_one_fingerprint_get_their_counts_in_order_and_none_may_be_missing(tmp_path):
    path = saved(tmp_path / "w", ("a", [1, 0]), ("b", [9]), ("a", [0, 2]))
    assert listed(load(path, named("aba"))) == [1, 0, 9, 0, 2]
    assert listed(load(path, named("baa"))) == [9, 1, 0, 0, 2]
    for given_too, missing in (("ba", 1), ("b", 2), ("", 3)):
        message = refused(lambda given=given_too: load(path, named(given)))
        assert f"{path}: {missing} of its 3 shards are not among those given" in message


def test_a_support_row_costs_eight_bytes_and_another_row_none(tmp_path):
    few = saved(tmp_path / "few", ("a", [1] * 10 + [0] * 1_000_000))
    many = saved(tmp_path / "many", ("a", [1] * 1_010 + [0] * 999_000))
    grown = many.stat().st_size - few.stat().st_size
    assert few.stat().st_size < 1_000
    assert grown == pytest.approx(8 * 1_000, abs=16)  # numbers in the header are longer


def test_a_scan_with_a_witness_holds_the_counts_of_one_shard_at_a_time(tmp_path):
    rows = 2_000_000
    saved(tmp_path / "w", *((f"{k}", [k + 1] * (rows // 40)) for k in range(40)))
    assert os.path.getsize(tmp_path / "w") > 8 * rows
    shards = [ShardFile(f"{k}", f"{k}", "libsvm", 0, 0) for k in range(40)]
    seen = 0
    tracemalloc.start()
    try:
        known = load(tmp_path / "w", named(map(str, reversed(range(40)))))
        for task in scan_tasks(shards, known.shard_rows, known.counts):
            seen += len(task.counts[0].numbers)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == rows
    assert peak < 8 * rows / 3


def test_a_witness_that_changes_while_it_is_read_is_refused(tmp_path):
    for spoil in (
        lambda: os.truncate(tmp_path / "w", os.path.getsize(tmp_path / "w") - 4),
        lambda: saved(tmp_path / "w", ("a", [2] * 100)),  # another file of the same name and size
    ):
        known = witness.load(saved(tmp_path / "w", ("a", [1] * 100)))
        spoil()
        with pytest.raises(FileDamaged, match="w: changed while it was read"):
            known.counts[0].entries()


# --- refused -------------------------------------------------------------------------------------


def test_a_shard_that_the_witness_does_not_know_or_not_so_often_is_refused_by_name(path):
    for known, unknown in (("abc", "e"), ("abcd", "a")):
        message = refused(lambda k=known, u=unknown: load(path, [*named(k), ("new.svm", u)]))
        assert f"new.svm: its content is not among the 4 shards of the witness {path}" in message


@pytest.mark.parametrize("content", [{}, {"format_version": 1}, {"witness_version": 1}])
def test_a_sealed_file_of_another_kind_or_version_is_refused(tmp_path, content):
    write_sealed(tmp_path / "w", content, {"weights": np.ones(2)})
    assert "w: not a witness of version 2" in refused(lambda: load(tmp_path / "w", []))


SHARDS = [
    None, 3, [3], [{"rows": 5}], [{"fingerprint": "a"}], [{"fingerprint": "a", "rows": -1}],
    [{"fingerprint": "a", "rows": "5"}], [{"fingerprint": "a", "rows": 4}],
    *([{"fingerprint": "a", "rows": rows}] for rows in (2**60, 2**63, 2**80)),
]  # fmt: skip
"""Tables of shards that fit no counts."""

TENSORS = [
    *(("counts", [3, count, 1, 1], np.int32) for count in (-(2**31), 0)),
    ("counts", [3.0, 1.0, 1.0, 1.0], np.float64),
    ("counts", [3], np.int32),
    ("counts", [[3, 1, 1, 1]], np.int32),
    *(("gaps", gaps, np.uint32) for gaps in ([1, 3, 3, 3], [1, 3, 3, 2**32 - 1], [1, 3, 0, 1])),
    ("gaps", [1, 3, 3, -1], np.int32),
]
"""Counts, or the gaps between their rows, that prove nothing."""


@pytest.mark.parametrize("change", [*SHARDS, *TENSORS], ids=repr)
def test_a_sealed_file_whose_shards_or_counts_prove_nothing_is_refused(path, change):
    content, tensors = read_sealed(path)
    if isinstance(change, tuple):
        name, values, kind = change
        tensors = {**tensors, f"000000.{name}": np.array(values, kind)}
    else:
        content = {**content, "shards": change}
    write_sealed(path, content, tensors)
    message = refused(lambda: load(path, named("abcd")), FileDamaged)
    assert "w: sealed, but what it holds is no witness" in message


@pytest.mark.parametrize(
    ("at", "gap", "count"), [(0, 5, 0), (3, 5, -1), (2**18, 0, 1), (4, 0, 1), (9, 2**31, 1)]
)
def test_counts_that_no_run_writes_are_refused_wherever_they_stand(tmp_path, at, gap, count):
    rows = 2**18 + 10
    saved(tmp_path / "w", ("a", [1] * rows))
    content, tensors = read_sealed(tmp_path / "w")
    gaps, counts = tensors["000000.gaps"].copy(), tensors["000000.counts"].copy()
    gaps[at], counts[at] = gap, count
    write_sealed(tmp_path / "w", content, {"000000.gaps": gaps, "000000.counts": counts})
    with pytest.raises(FileDamaged, match="w: sealed, but what it holds is no witness"):
        witness.load(tmp_path / "w")
    shorter = {"000000.gaps": gaps[:-1], "000000.counts": np.ones(rows, np.int32)}
    write_sealed(tmp_path / "w", content, shorter)
    with pytest.raises(FileDamaged, match="another number of counts"):
        witness.load(tmp_path / "w")
