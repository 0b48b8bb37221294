"""The witness: counts find their rows again by what the shards hold, or are refused."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtron.core.errors import FileDamaged, MachineError
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.runs import witness
from streamtron.solver.duals import Counts
from tests.helpers.models import refused

LARGEST = 2**31 - 1
COUNTS = {"a": [0, 3, 0, 0, 1], "b": [], "c": [0, 0], "d": [LARGEST, 1, 0]}
"""The counts of four shards by fingerprint."""


def saved(path, *shards: tuple[str, list[int]]):
    """A witness of shards, each (fingerprint, its counts)."""
    records, first = [], 0
    for fingerprint, own in shards:
        record = SimpleNamespace(
            name=f"{fingerprint}.svm", fingerprint=fingerprint, first_row=first, rows=len(own)
        )
        records.append(record)
        first += len(own)
    witness.save(
        path, [plain([c for _, own in shards for c in own])], SimpleNamespace(shards=records)
    )
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


def named(fingerprints: str) -> list[tuple[str, str]]:
    """The shards of these fingerprints, under other names than they were written with."""
    return [(f"moved/{n}.svm", fingerprint) for n, fingerprint in enumerate(fingerprints)]


# --- matched -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["abcd", "dcba", "cabd"])
def test_counts_follow_the_fingerprint_whatever_the_names_and_the_order(path, order):
    counts = listed(load(path, named(order)))
    assert counts == [count for fingerprint in order for count in COUNTS[fingerprint]]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, LARGEST), max_size=9), max_size=5), st.randoms())
def test_any_counts_of_any_shards_come_back_in_any_order(tmp_path_factory, shards, rng):
    numbered = {str(n): own for n, own in enumerate(shards)}
    path = saved(tmp_path_factory.mktemp("witness") / "w", *numbered.items())
    order = rng.sample(list(numbered), len(numbered))
    counts = listed(load(path, [("x", fingerprint) for fingerprint in order]))
    assert counts == [count for number in order for count in numbered[number]]


def test_shards_of_one_fingerprint_get_their_counts_in_the_order_they_were_written(tmp_path):
    path = saved(tmp_path / "w", ("a", [1, 0]), ("b", [9]), ("a", [0, 2]))
    assert listed(load(path, named("aba"))) == [1, 0, 9, 0, 2]
    assert listed(load(path, named("baa"))) == [9, 1, 0, 0, 2]


def test_every_learner_gets_its_own_counts_back(tmp_path):
    records = [
        SimpleNamespace(fingerprint="a", first_row=0, rows=2),
        SimpleNamespace(fingerprint="b", first_row=2, rows=3),
    ]
    learners = [[1, 0, 0, 2, 0], [0, 0, 0, 0, 0], [0, 0, 7, 0, 9]]
    witness.save(tmp_path / "w", [plain(own) for own in learners], SimpleNamespace(shards=records))
    found = load(tmp_path / "w", named("ba"))
    assert [own.dense(sum(found.shard_rows)).tolist() for own in found.counts] == [
        [0, 2, 0, 1, 0], [0] * 5, [7, 0, 9, 0, 0]
    ]  # fmt: skip


def test_no_shards_have_no_counts(tmp_path):
    found = load(saved(tmp_path / "w"), [])
    assert (listed(found), found.shard_rows) == ([], ())


def test_a_support_row_costs_eight_bytes_and_another_row_none(tmp_path):
    few = saved(tmp_path / "few", ("a", [1] * 10 + [0] * 1_000_000))
    many = saved(tmp_path / "many", ("a", [1] * 1_010 + [0] * 999_000))
    grown = many.stat().st_size - few.stat().st_size
    assert few.stat().st_size < 1_000
    assert grown == pytest.approx(8 * 1_000, abs=16)  # numbers in the header are longer


def test_equal_counts_are_equal_files_whatever_the_shards_are_called(tmp_path):
    saved(tmp_path / "one", ("a", [1, 0]), ("b", [2]))
    records = [
        SimpleNamespace(name="other.svm", fingerprint="a", first_row=0, rows=2),
        SimpleNamespace(name="names.svm", fingerprint="b", first_row=2, rows=1),
    ]
    witness.save(tmp_path / "two", [plain([1, 0, 2])], SimpleNamespace(shards=records))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


# --- refused -------------------------------------------------------------------------------------


def test_a_shard_that_the_witness_does_not_know_is_refused_by_name(path):
    message = refused(lambda: load(path, [*named("abc"), ("new.svm", "e")]))
    assert f"new.svm: its content is not among the 4 shards of the witness {path}" in message


def test_a_shard_given_more_often_than_it_was_written_is_refused_by_name(path):
    message = refused(lambda: load(path, [*named("abcd"), ("again.svm", "a")]))
    assert "again.svm: its content is not among" in message


@pytest.mark.parametrize(("given_too", "missing"), [("abc", 1), ("d", 3), ("", 4)])
def test_missing_shards_are_refused_and_counted(path, given_too, missing):
    message = refused(lambda: load(path, named(given_too)))
    assert f"{path}: {missing} of its 4 shards are not among those given" in message


def test_one_of_two_shards_of_one_fingerprint_missing_is_refused(tmp_path):
    path = saved(tmp_path / "w", ("a", [1]), ("a", [2]))
    assert "1 of its 2 shards" in refused(lambda: load(path, named("a")))


def test_flipped_bits_are_all_found_and_the_file_named(path):
    raw = path.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(raw)), 500):
        changed = bytes([raw[bit // 8] ^ 1 << bit % 8])
        path.write_bytes(raw[: bit // 8] + changed + raw[bit // 8 + 1 :])
        message = refused(lambda: load(path, named("abcd")), FileDamaged)
        assert f"{path}: not a streamtron witness, or " in message


@pytest.mark.parametrize("content", [{}, {"format_version": 1}, {"witness_version": 1}])
def test_a_sealed_file_of_another_kind_or_version_is_refused(tmp_path, content):
    write_sealed(tmp_path / "w", content, {"weights": np.ones(2)})
    message = refused(lambda: load(tmp_path / "w", []))
    assert "w: not a witness of version 2" in message


def test_a_witness_that_is_not_there_is_the_machines_fault(tmp_path):
    assert "cannot be read" in refused(lambda: load(tmp_path / "w", []), MachineError)


@pytest.mark.parametrize(
    "change",
    [
        {"000000.counts": np.array([3, -1, 1, 1], dtype=np.int32)},
        {"000000.counts": np.array([3, 0, 1, 1], dtype=np.int32)},
        {"000000.counts": np.array([3.0, 1.0, 1.0, 1.0])},
        {"000000.counts": np.array([3], dtype=np.int32)},
        {"000000.counts": np.array([[3, 1, 1, 1]], dtype=np.int32)},
        {"000000.gaps": np.array([1, 3, 3, 3], dtype=np.uint32)},
        {"000000.gaps": np.array([1, 3, 3, 2**32 - 1], dtype=np.uint32)},
        {"000000.gaps": np.array([1, 3, 0, 1], dtype=np.uint32)},
        {"000000.gaps": np.array([1, 3, 3, -1], dtype=np.int32)},
    ],
)
def test_sealed_counts_that_prove_nothing_are_refused(path, change):
    content, tensors = read_sealed(path)
    write_sealed(path, content, {**tensors, **change})
    message = refused(lambda: load(path, named("abcd")), FileDamaged)
    assert "w: sealed, but what it holds is no witness" in message


@pytest.mark.parametrize(
    "shards",
    [
        None,
        3,
        [3],
        [{"rows": 5}],
        [{"fingerprint": "a"}],
        [{"fingerprint": "a", "rows": -1}],
        [{"fingerprint": "a", "rows": "5"}],
        [{"fingerprint": "a", "rows": 4}],
    ],
)
def test_a_sealed_table_of_shards_that_fits_no_counts_is_refused(path, shards):
    content, tensors = read_sealed(path)
    write_sealed(path, {**content, "shards": shards}, tensors)
    message = refused(lambda: load(path, named("a")), FileDamaged)
    assert "w: sealed, but what it holds is no witness" in message
