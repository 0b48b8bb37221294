"""From shards to chunks: discovery, blocks, labels, what a source knows and when."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, MachineError
from streamtron.data import (
    Manifest,
    ReaderConfig,
    RowBatch,
    find_shards,
    open_shards,
    storage,
)
from streamtron.data.prefetch import THREAD_NAME, in_order, prefetch
from streamtron.data.readers import open_reader, resolve_reading
from streamtron.data.writers.shards import ShardStyle
from streamtron.runs import convert
from tests.helpers.shard_rows import ListReader, Row, bits, small_blocks, source_of, write_shard
from tests.helpers.sources import RowsInMemory


def reading_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == THREAD_NAME]


rows_strategy = st.lists(
    st.tuples(
        st.sampled_from(["ham", "spam", "eggs"]),
        st.sampled_from([1.0, 1.0, 1.0, 0.25, 0.0]),
        st.dictionaries(st.integers(0, 30), st.sampled_from([1.0, 1.0, -2.5]), max_size=7),
    ),
    min_size=1,
    max_size=40,
)


def cut_at_random(draw: st.DrawFn, count: int) -> list[int]:
    """Sizes, some of them 0, that add up to ``count``."""
    borders = sorted(draw(st.lists(st.integers(0, count), max_size=5)))
    return [b - a for a, b in zip([0, *borders], [*borders, count], strict=True)]


@st.composite
def cut_rows(draw: st.DrawFn) -> tuple[list[Row], list[tuple[int, list[int]]]]:
    """Rows, and how they are cut into shards and these into batches."""
    rows = draw(rows_strategy)
    return rows, [(n, cut_at_random(draw, n)) for n in cut_at_random(draw, len(rows))]


def write_cut(directory: Path, rows: Sequence[Row], cut: list[tuple[int, list[int]]]) -> None:
    first = 0
    for number, (count, sizes) in enumerate(cut):
        write_shard(directory / f"{number:03d}.svm", rows[first : first + count], sizes)
        first += count


def blocks_by_definition(
    rows: Sequence[Row], shards: Sequence[int], most_rows: int, most_nonzeros: int
) -> list[Any]:
    """``shards`` are the rows of each."""
    blocks, first, nonzeros = [], 0, 0
    ends = set(itertools.accumulate(shards))
    for stop, (_, _, row) in enumerate(rows, 1):
        nonzeros += len(row)
        if stop - first == most_rows or nonzeros >= most_nonzeros or stop in ends:
            blocks.append((first, stop - first, nonzeros))
            first, nonzeros = stop, 0
    return blocks


# Cutting -----------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(cut_rows())
def test_blocks_are_those_of_the_definition_and_end_with_their_shard(
    tmp_path_factory: pytest.TempPathFactory, case: Any
) -> None:
    rows, cut = case
    directory = tmp_path_factory.mktemp("cut")
    write_cut(directory, rows, cut)
    with (
        small_blocks(5, 12),
        source_of(directory, most_labels=None, allow_duplicate=True) as source,
    ):
        for _ in source.chunks():
            assert source.blocks == ()
        assert list(source.blocks) == blocks_by_definition(rows, [n for n, _ in cut], 5, 12)


@st.composite
def rows_in_batches(draw: st.DrawFn) -> tuple[list[Row], list[int]]:
    """The rows of a shard, and the sizes of its batches."""
    rows = draw(rows_strategy)
    return rows, cut_at_random(draw, len(rows))


@settings(max_examples=40, deadline=None)
@given(rows_in_batches(), st.randoms(use_true_random=False))
def test_chunks_are_bit_for_bit_the_same_however_a_reader_cuts_and_wherever_they_are_stored(
    tmp_path_factory: pytest.TempPathFactory, case: Any, random: Any
) -> None:
    rows, sizes = case
    directory = tmp_path_factory.mktemp("batches")
    write_shard(directory / "a.svm", rows, sizes)
    with small_blocks():
        dense = np.full((len(rows), 31), np.nan)
        for k, (_, _, row) in enumerate(rows):
            dense[k, list(row)] = list(row.values())
        held = np.nonzero(~np.isnan(dense))
        from scipy import sparse

        matrix = sparse.csr_array((dense[held], held), shape=dense.shape)
        memory = RowsInMemory(matrix, [row[0] for row in rows], [row[1] for row in rows])
        wanted = [bits(chunk) for chunk in memory.chunks()]
        order = list(range(len(wanted)))
        random.shuffle(order)
        groups = [order[k : k + 2] for k in range(0, len(order), 2)]
        wanted_groups = [bits(chunk) for chunk in memory.chunks(groups)]
        for cache in (None, directory / "_cache"):
            with source_of(directory, cache, most_labels=None) as source:
                assert [bits(chunk) for chunk in source.chunks()] == wanted
                assert [bits(chunk) for chunk in source.chunks()] == wanted
                if cache:
                    assert [bits(chunk) for chunk in source.chunks(groups)] == wanted_groups
            assert source.labels == memory.labels
            assert source.width == memory.width
            assert source.blocks == memory.blocks
            assert source.manifest is not None
            assert source.manifest.nonzeros == source.nonzeros == memory.nonzeros
    assert reading_threads() == []


def test_a_chunk_holds_the_very_rows_of_its_range(tmp_path: Path) -> None:
    rows: list[Row] = [(k % 2 - 0.5, 1.0, {k: k + 0.5, 40 + k: 1.0}) for k in range(12)]
    write_shard(tmp_path / "a.svm", rows[:7])
    write_shard(tmp_path / "b.svm", rows[7:])
    with small_blocks(), source_of(tmp_path) as source:
        chunks = list(source.chunks())
    assert [chunk.ranges for chunk in chunks] == [((0, 5),), ((5, 7),), ((7, 12),)]
    for chunk in chunks:
        for i, k in enumerate(range(*chunk.ranges[0])):
            here = slice(chunk.rows.indptr[i], chunk.rows.indptr[i + 1])
            assert chunk.rows.indices[here].tolist() == [k, 40 + k]
            assert chunk.rows.values[here].tolist() == [k + 0.5, 1.0]
            assert source.labels[chunk.codes[i]] == rows[k][0]
        for array in (*chunk.rows, chunk.codes):
            assert not array.flags.writeable


def test_a_block_ends_with_the_4096th_row_or_the_row_that_fills_a_million_nonzeros(
    tmp_path: Path,
) -> None:
    rows = [
        np.arange(n, dtype=np.uint32) for n in [0] * 5000 + [2**19, 2**19 - 1, 0, 1, 2**20 + 9, 2]
    ]
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    indices = np.concatenate(rows)
    (tmp_path / "a.svm").write_text("stands for the rows below")

    class Big(ListReader):
        def batches(self) -> Iterator[RowBatch]:
            codes = np.zeros(len(rows), np.int32)
            yield RowBatch(indptr, indices, None, codes, [1.0], None, str)

    with source_of(tmp_path, open_reader=Big) as source:
        lengths = [(len(chunk), chunk.nonzeros) for chunk in source.chunks()]
    assert lengths == [(4096, 0), (904 + 4, 2**20), (1, 2**20 + 9), (1, 2)]


# Labels ------------------------------------------------------------------------------------------


def test_a_third_label_is_refused_with_its_row_and_the_labels_before_also_from_the_cache(
    tmp_path: Path,
) -> None:
    write_shard(tmp_path / "part-1.svm", [(-1.0, 1.0, {}), (1.0, 1.0, {})])
    write_shard(tmp_path / "part-2.svm", [(1.0, 1.0, {})] * 6 + [(3.0, 1.0, {})] * 2)
    for cache, place in ((None, "line 7"), (tmp_path / "_c", "row 6 of the shard")):
        with small_blocks(), source_of(tmp_path, cache) as source:
            chunks = source.chunks()
            assert [len(next(chunks)), len(next(chunks))] == [2, 5]
            with pytest.raises(DataError) as caught:
                list(chunks)
        assert str(caught.value) == (
            f"part-2.svm, {place}: a third label 3.0 after -1.0 and 1.0. "
            "Use --multiclass if the numbers are classes, or --loss squared_error if they are to "
            "be predicted as numbers."
        )
        assert reading_threads() == []
        with small_blocks(), source_of(tmp_path, tmp_path / "_c", most_labels=None) as source:
            list(source.chunks())


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("1", 1.0, "the number 1.0 as label, where the labels before are strings ('1')"),
        (1.0, True, "the boolean True as label, where the labels before are numbers (1.0)"),
        (1.0, "1", "the string '1' as label, where the labels before are numbers (1.0)"),
    ],
)
def test_labels_of_different_kinds_are_refused(
    tmp_path: Path, first: Any, second: Any, words: str
) -> None:
    write_shard(tmp_path / "a.svm", [(first, 1.0, {})] * 2)
    write_shard(tmp_path / "b.svm", [(first, 1.0, {}), (second, 1.0, {})])
    with source_of(tmp_path) as source, pytest.raises(DataError) as caught:
        list(source.chunks())
    assert str(caught.value).startswith(f"b.svm, line 2: {words}")


def test_a_row_without_a_label_has_code_minus_one_also_from_the_cache(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.svm", [(None, 1.0, {}), ("x", 1.0, {}), (None, 1.0, {})])
    with source_of(tmp_path, tmp_path / "_c") as source:
        for _ in range(2):
            [chunk] = source.chunks()
            assert chunk.codes.tolist() == [-1, 0, -1]
    assert source.labels == ["x"]


def test_what_a_source_says_is_as_of_the_last_chunk_delivered(tmp_path: Path) -> None:
    rows: list[Row] = [(str(k // 5), 1.0, {k: 2.0}) for k in range(20)]
    write_shard(tmp_path / "a.svm", rows)
    with small_blocks(), source_of(tmp_path, most_labels=None) as source:
        labels = source.labels
        for number, chunk in enumerate(source.chunks()):
            assert labels == [str(k) for k in range(number + 1)]
            assert source.width == chunk.width == 5 * (number + 1)
            assert source.nonzeros_read == 5 * (number + 1)
            assert source.rows is None
            assert source.readings == 0.0
        assert (source.rows, source.nonzeros, source.readings) == (20, 20, 1.0)
        assert len(list(source.chunks())) == 4
        assert source.readings == 2.0


def test_given_classes_fix_the_codes_and_refuse_other_labels(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.svm", [(1.0, 1.0, {}), (-1.0, 1.0, {})])
    with source_of(tmp_path, classes=[-1.0, 1.0]) as source:
        [chunk] = source.chunks()
        assert chunk.codes.tolist() == [1, 0]
        assert source.labels == [-1.0, 1.0]
    with (
        source_of(tmp_path, classes=[0.0, 1.0]) as source,
        pytest.raises(DataError, match=r"a\.svm, line 2: label -1\.0\. Known are 0\.0 and 1\.0"),
    ):
        list(source.chunks())


# What is refused ---------------------------------------------------------------------------------


def test_a_column_beyond_the_room_for_weights_is_refused_with_its_place(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.svm", [(1.0, 1.0, {9: 1.0}), (1.0, 1.0, {1: 1.0, 10: 1.0, 11: 1.0})])
    with source_of(tmp_path, most_columns=11) as source, pytest.raises(MachineError) as caught:
        list(source.chunks())
    assert "a.svm, line 2: column 11. Weights up to there would take 96 B" in str(caught.value)
    with source_of(tmp_path, most_columns=12) as source:
        assert sum(chunk.nonzeros for chunk in source.chunks()) == 4


def test_the_same_bytes_twice_are_refused_naming_both_unless_allowed(tmp_path: Path) -> None:
    for name in ("a.svm", "b.svm"):
        write_shard(tmp_path / name, [(1.0, 1.0, {})])
    with (
        source_of(tmp_path) as source,
        pytest.raises(DataError, match=r"b\.svm: the same bytes as a\.svm"),
    ):
        list(source.chunks())
    with source_of(tmp_path, allow_duplicate=True) as source:
        assert [len(chunk) for chunk in source.chunks()] == [1, 1]


def test_two_empty_shards_are_no_duplicates(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.svm", [])
    write_shard(tmp_path / "b.svm", [])
    write_shard(tmp_path / "c.svm", [(1.0, 1.0, {})])
    with source_of(tmp_path) as source:
        assert [len(chunk) for chunk in source.chunks()] == [1]
        assert source.manifest is not None
        assert [shard.rows for shard in source.manifest.shards] == [0, 0, 1]


def test_a_shard_that_changes_between_readings_is_named(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.svm", [(1.0, 1.0, {1: 2.0})])
    shard = write_shard(tmp_path / "b.svm", [(1.0, 1.0, {1: 3.0})])
    with source_of(tmp_path) as source:
        list(source.chunks())
        before = shard.stat()
        write_shard(shard, [(1.0, 1.0, {1: 4.0})])
        os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        with pytest.raises(DataError, match=r"b\.svm: changed while the run was going"):
            list(source.chunks())
        os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))  # only the bytes tell now
        with pytest.raises(DataError, match=r"b\.svm: .*contents differ"):
            list(source.chunks())


def test_a_shard_that_changed_since_it_was_found_is_not_opened(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.svm", [(1.0, 1.0, {})])
    source = source_of(tmp_path)
    write_shard(shard, [(1.0, 1.0, {})] * 2)
    ListReader.opened.clear()
    with source, pytest.raises(DataError, match=r"a\.svm: changed .* bytes when the run began"):
        list(source.chunks())
    assert ListReader.opened == []


def test_a_shard_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    class Disturbed(ListReader):
        def batches(self) -> Iterator[RowBatch]:
            yield from super().batches()
            write_shard(Path(self.shard.path), [(1.0, 1.0, {})] * 2)

    write_shard(tmp_path / "a.svm", [(1.0, 1.0, {})])
    with (
        source_of(tmp_path, tmp_path / "_c", open_reader=Disturbed) as source,
        pytest.raises(DataError, match=r"a\.svm: changed while the run was going"),
    ):
        list(source.chunks())
    assert list((tmp_path / "_c").iterdir()) == []


@pytest.mark.parametrize("part", ["alone", "survey", "stretch"])
def test_a_shard_replaced_while_it_is_converted_is_refused(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "a.svm", tmp_path / "other"
    path.write_text("1 1:1\n-1 2:1\n")
    other.write_text("1 1:7\n-1 2:7\n")
    [shard] = find_shards([str(path)])
    real = convert.open_reader

    class Replaced:
        def __init__(self, *given: Any) -> None:
            self.real = real(*given)

        def batches(self) -> Iterator[RowBatch]:
            found = list(self.real.batches())
            other.replace(path)
            yield from found

    monkeypatch.setattr(convert, "open_reader", Replaced)
    reading, known = ReaderConfig(index_base=1), Settings(index_base=1)
    stretch = convert.RowRange("a.svm", [shard], 0, 1, [str(tmp_path / "part")].__getitem__, 1)
    parts: dict[str, Callable[[], object]] = {
        "alone": lambda: convert.convert(path, tmp_path / "out", to="parquet", settings=known),
        "survey": lambda: list(convert.survey(shard, reading)),
        "stretch": lambda: list(convert.write_range(stretch, reading, ShardStyle("parquet", -1))),
    }
    with pytest.raises(DataError, match=r"a\.svm: changed .* \(written anew\)"):
        parts[part]()
    assert list((tmp_path / "out").glob("*")) == []


def test_an_order_needs_a_cache_and_a_first_reading(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.svm", [(1.0, 1.0, {})])
    with source_of(tmp_path) as source, pytest.raises(MachineError, match="--order sequential"):
        source.chunks([[0]])
    with source_of(tmp_path, tmp_path / "_c") as source, pytest.raises(ValueError, match="first"):
        source.chunks([[0]])


# What is known -----------------------------------------------------------------------------------


def test_the_index_base_is_settled_by_whether_column_0_occurs(tmp_path: Path) -> None:
    for column, base in ((0, 0), (1, 1), (7, 1)):
        write_shard(tmp_path / "a.svm", [(1.0, 1.0, {9: 1.0}), (1.0, 1.0, {column: 1.0})])
        with source_of(tmp_path) as source:
            assert source.index_base is None
            list(source.chunks())
            assert source.index_base == base
    with source_of(tmp_path, reading=ReaderConfig(index_base=0)) as source:
        assert source.index_base == 0
    write_shard(tmp_path / "a.svm", [(1.0, 1.0, {0: 1.0})])
    write_shard(tmp_path / "b.svm", [(1.0, 1.0, {5: 1.0})])
    with source_of(tmp_path) as source:
        list(source.chunks())
        assert source.index_base == 0, "once is enough, wherever it is"


def test_the_manifest_says_what_was_read_and_survives_json(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.svm", [(1.0, 1.0, {1: 1.0, 2: 1.0})] * 3)
    write_shard(tmp_path / "b.svm", [(2.0, 1.0, {1: 1.0})] * 2)
    with source_of(tmp_path) as source:
        assert source.manifest is None
        list(source.chunks())
        manifest = source.manifest
    assert manifest is not None
    found = [(s.name, s.rows, s.nonzeros, s.first_row, s.bytes) for s in manifest.shards]
    sizes = [(tmp_path / name).stat().st_size for name in ("a.svm", "b.svm")]
    assert found == [("a.svm", 3, 6, 0, sizes[0]), ("b.svm", 2, 2, 3, sizes[1])]
    manifest.save(str(tmp_path / "m.json"))
    assert Manifest.load(str(tmp_path / "m.json")) == manifest
    assert source.fingerprints() == [(s.name, s.fingerprint) for s in manifest.shards]
    assert source_of(tmp_path / "a.svm").fingerprints() == source.fingerprints()[:1]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda m: m["shards"][0].pop("rows"), "not a manifest"),
        (lambda m: m["shards"][0].update(rows="3"), "rows of shard 'a.svm' is '3'"),
        (lambda m: m["shards"][0].update(rows=-3), "rows of shard 'a.svm' is -3"),
        (lambda m: m["shards"][1].update(first_row=2), "begins at row 2"),
        (lambda m: m.clear(), "not a manifest"),
    ],
)
def test_a_spoilt_manifest_is_refused(tmp_path: Path, spoil: Any, words: str) -> None:
    write_shard(tmp_path / "a.svm", [(1.0, 1.0, {})] * 3)
    write_shard(tmp_path / "b.svm", [(1.0, 1.0, {})] * 2)
    with source_of(tmp_path) as source:
        list(source.chunks())
    assert source.manifest is not None
    content = source.manifest.to_dict()
    spoil(content)
    with pytest.raises(DataError, match=words):
        Manifest.from_dict(content)


def test_bytes_read_are_those_of_shards_and_then_of_the_cache(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.svm", [(1.0, 1.0, {3: 1.0}), (2.0, 1.0, {4: 2.0, 5: 1.0})])
    with source_of(tmp_path, tmp_path / "_c") as source:
        list(source.chunks())
        assert source.bytes_read == shard.stat().st_size
        list(source.chunks())
        assert source.bytes_read == shard.stat().st_size + 2 * 16 + 3 * 8


@pytest.mark.parametrize("suffix", ["svm", "parquet", "arrow", "arrows"])
def test_bytes_read_of_a_shard_grow_with_its_rows_to_its_size(suffix: str, tmp_path: Path) -> None:
    table = pa.table({"indices": [[k % 70] for k in range(60_000)], "label": [0, 1] * 30_000})
    path = tmp_path / f"a.{suffix}"
    if suffix == "svm":
        path.write_text("".join(f"{k % 2} {k % 70}:0.25".ljust(60) + "\n" for k in range(60_000)))
    elif suffix == "parquet":
        pq.write_table(table, path, row_group_size=7_000)
    else:
        new = pa.ipc.new_file if suffix == "arrow" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=20_000)
    [shard] = find_shards([str(path)])
    reader, delivered = open_reader(shard, resolve_reading(shard, ReaderConfig())), 0
    assert reader.bytes_read == 0
    for batch in reader.batches():
        delivered += len(batch.codes)
        assert reader.bytes_read == pytest.approx(shard.size * delivered / 60_000, rel=0.03)
    assert delivered == 60_000
    assert reader.bytes_read == pytest.approx(shard.size, rel=0.03)


# Reading ahead -----------------------------------------------------------------------------------


def test_a_reading_left_early_leaves_no_thread(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.svm", [(1.0, 1.0, {})] * 100)
    write_shard(tmp_path / "b.svm", [(1.0, 1.0, {})] * 101)
    with small_blocks(), source_of(tmp_path) as source:
        chunks = source.chunks()
        next(chunks)
        assert reading_threads() == [THREAD_NAME]
        source.close()
        assert reading_threads() == []
        assert list(chunks) == []


def test_reading_ahead_keeps_the_order_and_at_most_depth_items_wait() -> None:
    made: list[int] = []
    waiting = threading.Event()

    def numbers() -> Iterator[int]:
        for k in range(100):
            made.append(k)
            if k == 3:  # one taken, two waiting: this one is in the producer's hand
                waiting.set()
            yield k

    items = prefetch(numbers, depth=2)
    assert next(items) == 0
    assert waiting.wait(30)
    assert made == [0, 1, 2, 3]
    assert list(items) == list(range(1, 100))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    others_done = threading.Event()

    def slow_at_first(k: int) -> int:
        if k == 0 and threads > 1:
            assert others_done.wait(30)
        elif k == threads - 1:
            others_done.set()
        return k

    assert list(in_order(slow_at_first, range(50), threads)) == list(range(50))


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_ahead_or_among_items_made_in_order_is_raised_after_the_results_before_it(
    threads: int,
) -> None:
    def items() -> Iterator[int]:
        yield from range(7)
        raise DataError("cut off")

    for results in (in_order(str, items(), threads), prefetch(lambda: map(str, items()))):
        assert [next(results) for _ in range(7)] == list("0123456")
        with pytest.raises(DataError, match="cut off"):
            next(results)
    assert reading_threads() == []
    results = in_order(lambda k: 1 // (3 - k), items(), threads)
    assert [next(results) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_items_made_in_order_are_asked_for_only_as_far_ahead_as_there_are_threads() -> None:
    asked: list[int] = []

    def items() -> Iterator[int]:
        for k in range(100):
            asked.append(k)
            yield k

    results = in_order(str, items(), 3)
    assert next(results) == "0"
    assert asked == [0, 1, 2, 3]
    before = threading.active_count()
    results.close()
    assert threading.active_count() < before
    assert asked == [0, 1, 2, 3]


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_no_bit_and_is_the_machines_if_none_is_given(
    threads: int, tmp_path: Path
) -> None:
    rows = [f"{k % 2} {k % 70 + 1}:{k}\n" for k in range(100_000)]
    (tmp_path / "a.svm").write_text("".join(rows))
    (tmp_path / "b.svm").write_text("".join(rows[1:]))

    def everything(number: int | None) -> list[object]:
        cache = str(tmp_path / f"_{number}")
        with open_shards([str(tmp_path)], cache_dir=cache, threads=number) as source:
            first = [(bits(chunk), source.width, source.bytes_read) for chunk in source.chunks()]
            groups = [range(k, k + 8) for k in range(0, len(source.blocks) - 8, 8)]
            return [*first, *map(bits, source.chunks(groups))]

    assert everything(threads) == everything(None)


def test_a_reading_ahead_stops_in_the_midst_of_hashing_an_endless_file() -> None:
    def hashing() -> Iterator[str]:
        yield "begun"
        yield storage.fingerprint("/dev/zero", "zero")

    items = prefetch(hashing)
    next(items)
    items.close()
    assert reading_threads() == []


def test_closing_closes_the_iterator_in_its_own_thread() -> None:
    closed_in: list[threading.Thread] = []

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed_in.append(threading.current_thread())

    items = prefetch(endless)
    next(items)
    items.close()
    assert [thread.name for thread in closed_in] == [THREAD_NAME]
    assert reading_threads() == []


# Discovery ---------------------------------------------------------------------------------------


def plant(root: Path, *names: str) -> None:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"1 {number + 1}:1\n")


def names_in(*paths: Path | str) -> list[str]:
    return [shard.name for shard in find_shards([str(path) for path in paths])]


def test_shards_come_in_byte_order_of_the_relative_path(tmp_path: Path) -> None:
    plant(tmp_path, "b.svm", "a/z.svm", "a-b/x.svm", "B.svm", "é.svm", "10.svm", "9.svm")
    in_order = ["10.svm", "9.svm", "B.svm", "a-b/x.svm", "a/z.svm", "b.svm", "é.svm"]
    assert names_in(tmp_path) == in_order


def test_roots_come_in_the_order_given_and_equal_names_are_told_apart(tmp_path: Path) -> None:
    plant(tmp_path, "b/1.svm", "a/1.svm", "a/2.svm")
    assert names_in(tmp_path / "b", tmp_path / "a") == [
        str(tmp_path / "b/1.svm"),
        str(tmp_path / "a/1.svm"),
        "2.svm",
    ]


def test_hidden_names_are_ignored_below_a_root_but_not_as_a_root(tmp_path: Path) -> None:
    plant(tmp_path, "_x/a.svm", "_x/_SUCCESS", "_x/.crc", "_x/_t/b.svm", "_x/.t/c.svm")
    assert names_in(tmp_path / "_x") == ["a.svm"]
    assert names_in(tmp_path / "_x" / "_SUCCESS") == ["_SUCCESS"]
    assert names_in(f"{tmp_path}/_x/*") == ["a.svm"]


def test_a_pattern_stands_for_files_and_directories_and_a_real_name_wins(tmp_path: Path) -> None:
    plant(tmp_path, "day-2/b.svm", "day-1/a.svm", "night/c.svm", "x[1].svm")
    assert names_in(f"{tmp_path}/day-*") == ["day-1/a.svm", "day-2/b.svm"]
    assert names_in(f"{tmp_path}/**/*.svm") == names_in(tmp_path)
    assert names_in(f"{tmp_path}/x[1].svm") == ["x[1].svm"]


def test_links_to_directories_are_followed_and_circles_end(tmp_path: Path) -> None:
    plant(tmp_path, "far/a.svm", "near/b.svm")
    (tmp_path / "near" / "link").symlink_to(tmp_path / "far")
    for name in ("circle", "circus"):  # two, for one alone ends by itself, after forty rounds
        (tmp_path / "near" / name).symlink_to(tmp_path / "near")
    assert names_in(tmp_path / "near") == ["b.svm", "link/a.svm"]


def test_mixed_formats_are_refused_naming_one_of_each(tmp_path: Path) -> None:
    plant(tmp_path, "a.svm", "b.parquet", "c.parquet")
    with pytest.raises(DataError, match=r"a\.svm is libsvm text and b\.parquet is Parquet"):
        names_in(tmp_path)


def test_what_is_not_there_and_what_is_no_shard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such file or directory"):
        names_in(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no shards there"):
        names_in(tmp_path)
    with pytest.raises(DataError, match=r"no shards there"):
        names_in(f"{tmp_path}/*.svm")
    with pytest.raises(DataError, match="no path was given"):
        names_in()
    plant(tmp_path, "notes.md")
    with pytest.raises(DataError, match=r"notes\.md: neither Parquet"):
        names_in(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a file"):
        names_in(tmp_path / "pipe")


def test_what_is_refused_is_named_by_the_path_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plant(tmp_path / "t", "notes.md")
    plant(tmp_path, "a.svm")
    for paths, words in (
        (["t"], "t/notes.md: neither Parquet"),
        (["./t/*"], "t/notes.md: neither Parquet"),
        (["t/*.svm"], "t/*.svm: no shards there"),
        (["a.svm", str(tmp_path / "a.svm")], f"{tmp_path}/a.svm: the same file as a.svm, given"),
    ):
        with pytest.raises(DataError) as caught:
            names_in(*paths)
        assert str(caught.value).startswith(words)


def test_the_same_file_by_two_ways_is_refused(tmp_path: Path) -> None:
    plant(tmp_path, "a.svm")
    with pytest.raises(DataError, match="given twice"):
        names_in(tmp_path, tmp_path / "a.svm")
    (tmp_path / "b.svm").symlink_to(tmp_path / "a.svm")
    with pytest.raises(DataError, match="given twice"):
        names_in(tmp_path)


def test_where_no_thread_can_be_started_the_reason_is_a_sentence() -> None:
    code = (
        "import resource\n"
        "from streamtron.core.errors import MachineError\n"
        "from streamtron.data.prefetch import prefetch\n"
        "now = 4096 * int(open('/proc/self/statm').read().split()[0])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + 2**20,) * 2)\n"
        "try:\n    next(prefetch(lambda: iter([1])))\n"
        "except MachineError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    assert "a thread for reading ahead cannot be started" in done.stdout
