"""A data set of prepared shards: its rows, ranks, labels and facts against plain Python."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

from streamtron.core import kernels
from streamtron.core.errors import DataError, MachineError
from streamtron.core.rows import freeze
from streamtron.core.threads import open_threads
from streamtron.data import Dataset, MemoryData, ReaderConfig, dataset
from streamtron.data.blocks import squares_of
from streamtron.data.flat_file import ColumnNumbers, read_prepared
from tests.helpers.examples import examples
from tests.helpers.models import refused
from tests.helpers.shard_rows import (
    Row,
    bits,
    chunks_of,
    data_of,
    lists_are_read,
    rows_in,
    small_blocks,
    write_shard,
)

FAR = 2**32 - 2
SEVERAL, NUMBERS = ReaderConfig(multilabel=True), ReaderConfig(numbers=True)
NAMES = st.sampled_from(["ham", "spam", "eggs"])
LABELS = {
    ReaderConfig(multiclass=True): st.one_of(st.none(), NAMES),
    SEVERAL: st.lists(NAMES, unique=True, max_size=3),
    NUMBERS: st.floats(-1e9, 1e9),
}


@pytest.fixture(autouse=True)
def _shards_are_lists():
    with lists_are_read(), small_blocks():
        yield


@st.composite
def data_sets(draw: st.DrawFn) -> tuple[ReaderConfig, list[list[Row]]]:
    """How labels are read, and the rows of some shards, of which one has a row."""
    reading = draw(st.sampled_from([*LABELS]))
    values = draw(
        st.sampled_from(
            [st.just(1.0), st.sampled_from([1.0, -2.5, 0.0, -0.0]), st.floats(-99, 99, width=32)]
        )
    )
    columns = st.one_of(st.integers(0, 12), st.sampled_from([2**24, 2**31, FAR]))
    features = st.one_of(
        st.dictionaries(columns, values, max_size=7),
        values.map(lambda x: dict.fromkeys((3, 4, 8), x)),
        values.map(lambda x: {3: x, 4: 2.0, 5: x}),
    )
    weights = draw(st.sampled_from([st.just(1.0), st.sampled_from([1.0, 0.25, 0.0])]))
    rows = st.lists(st.tuples(LABELS[reading], weights, features), max_size=20)
    shards = draw(st.lists(rows, min_size=1, max_size=4).filter(any))
    return reading, [[*map(as_stored, shard)] for shard in shards]


def as_stored(row: Row) -> Row:
    label, weight, features = row
    return label, weight, {c: float(np.float32(features[c])) for c in sorted(features)}


def written(directory: Path, shards: Sequence[Sequence[Row]]) -> list[Path]:
    """Shards with these rows; a batch of none tells those without rows apart."""
    return [
        write_shard(directory / f"{k}.svm", [*rows], [len(rows), *[0] * k])
        for k, rows in enumerate(shards)
    ]


def plain(rows: Sequence[Row]) -> list[str]:
    """Rows so that == tells -0 from 0."""
    return [repr((label, weight, sorted(row.items()))) for label, weight, row in rows]


def ranks_of(shards: Sequence[Sequence[Row]]) -> list[int]:
    counts = Counter(column for rows in shards for _, _, row in rows for column in row)
    return sorted(counts, key=lambda column: (-counts[column], column))


@settings(max_examples=examples(60), deadline=None)
@given(data_sets(), st.randoms(use_true_random=False), st.booleans())
def test_rows_come_back_bit_for_bit_from_disk_and_from_memory_in_any_order(case, random, by_rank):
    reading, shards = case
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patched:
        if by_rank:
            patched.setattr(dataset, "AS_NUMBERED", 0)
        directory = Path(root)
        paths = written(directory, shards)
        options = {"reading": reading, "allow_duplicate": True}
        with data_of(paths, directory / "_c", **options) as data:
            assert data.numbers.tolist() == (
                ranks_of(shards) if by_rank else sorted(ranks_of(shards))
            )
            wanted = [row for rows in shards for row in rows]
            chunks = list(data.chunks())
            assert plain(rows_in(data, chunks)) == plain(wanted)
            for chunk in chunks:
                assert chunk.squares.tobytes() == squares_of(*chunk.rows).tobytes()
            order = list(range(len(data.blocks)))
            random.shuffle(order)
            groups = [order[k : k + 3] for k in range(0, len(order), 3)]
            mixed = list(data.chunks(groups))
            for chunk, group in zip(mixed, groups, strict=True):
                numbers = [
                    first + k
                    for b in group
                    for first, rows, _ in [data.blocks[b]]
                    for k in range(rows)
                ]
                assert chunk.numbers.tolist() == numbers
                assert plain(rows_in(data, [chunk])) == plain([wanted[k] for k in numbers])
            before = [*map(bits, chunks)], [*map(bits, mixed)]
            with open_threads(2):
                data.load()
            assert [bits(chunk) for chunk in data.chunks()] == before[0]
            assert [bits(chunk) for chunk in data.chunks(groups)] == before[1]
            check_facts(data, wanted, reading)
            check_parts(data, before[0])


def check_facts(data: Dataset, rows: Sequence[Row], reading: ReaderConfig) -> None:
    """What is known of rows of a weight above 0 is what numpy says."""
    counting, facts = [row for row in rows if row[1] > 0], data.facts
    weights = np.array([weight for _, weight, _ in counting])
    assert (facts.rows, facts.weight) == (len(counting), weights.sum())
    if counting:
        assert (facts.least_weight, facts.largest_weight) == (weights.min(), weights.max())
        norms = [sum(value * value for value in row.values()) for _, _, row in counting]
        assert facts.sq_norm == pytest.approx(max(norms), rel=1e-12)
    else:
        assert (facts.least_weight, facts.largest_weight, facts.sq_norm) == (0, 0, 0)
    if reading.numbers:
        targets = np.array([target for target, _, _ in counting] or [0.0])
        assert (facts.least, facts.largest) == (targets.min(), targets.max())
        assert facts.mean == pytest.approx(targets.mean(), rel=1e-9, abs=1e-9)
        assert data.labels == []
        return
    of_labels = Counter[Any]()
    for label, weight, _ in counting:
        for own in label if isinstance(label, list) else [label]:
            of_labels[own] += weight
    assert facts.label_weights == tuple(of_labels[label] for label in data.labels)
    assert set(data.unseen_labels) == {label for label in data.labels if not of_labels[label]}


def check_parts(data: Dataset, chunks: list[Any]) -> None:
    """Shards by themselves have the ranks, labels and facts of all, and their rows from 0 on."""
    assert data.readings == (3.0 if data.nonzeros else 0.0)  # prepared, and two from disk
    found = []
    for k, shard in enumerate(data.manifest.shards):
        with data.part(k, k + 1) as part:
            assert (part.readings, part.rows, part.nonzeros) == (0, shard.rows, shard.nonzeros)
            assert (part.numbers is data.numbers, part.labels, part.facts) == (
                True,
                data.labels,
                data.facts,
            )
            own = chunks_of(part)
            moved = [
                tuple((a + shard.first_row, z + shard.first_row) for a, z in c[-1]) for c in own
            ]
            found += [(*c[:-1], ranges) for c, ranges in zip(own, moved, strict=True)]
            part.load()
            assert chunks_of(part) == own
    assert found == chunks


@settings(max_examples=examples(25), deadline=None)
@given(data_sets(), st.data())
def test_however_rows_are_cut_the_ranks_are_the_same_and_a_shard_is_its_matrix(case, data):
    _, shards = case
    rows = [("a", weight, row) for shard in shards for _, weight, row in shard]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    again = [rows[a:z] for a, z in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patched:
        patched.setattr(dataset, "AS_NUMBERED", 0)
        paths = [Path(root, name) for name in ("whole", "cut")]
        for path in paths:
            path.mkdir()
        write_shard(paths[0] / "a.svm", rows, data.draw(st.sampled_from([None, [1] * len(rows)])))
        written(paths[1], again)
        with (
            data_of(paths[0], Path(root, "_c")) as whole,
            data_of(paths[1], Path(root, "_c"), how={"threads": 2}) as cut,
        ):
            assert cut.numbers.tolist() == whole.numbers.tolist() == ranks_of([rows])
            assert plain(rows_in(cut, cut.chunks())) == plain(rows_in(whole, whole.chunks()))
            pairs = [(column, value) for _, _, row in rows for column, value in row.items()]
            indptr = np.cumsum([0, *(len(row) for _, _, row in rows)])
            columns = np.array([column for column, _ in pairs], np.int64)
            values = np.array([value for _, value in pairs], np.float32)
            X = sparse.csr_array((values, columns, indptr), shape=(len(rows), FAR + 1))
            weights = np.array([weight for _, weight, _ in rows])
            memory = MemoryData(X, np.zeros(len(rows), int), ["a"], weights)
            assert chunks_of(memory) == chunks_of(whole)
            assert memory.numbers.tolist() == whole.numbers.tolist()
            assert (memory.blocks, memory.facts) == (whole.blocks, whole.facts)


def test_ranks_are_by_total_count_and_few_columns_keep_their_order(tmp_path, monkeypatch):
    counts = [{9: 3, 5: 1, 2**24 + 1: 2}, {5: 2, 7: 3}, {FAR: 4, 9: 1}]
    for k, shard in enumerate(counts):
        columns = [column for column, count in shard.items() for _ in range(count)]
        write_shard(tmp_path / f"{k}.svm", [("a", 1.0, {column: 1.0}) for column in columns])
    by_number = [5, 7, 9, 2**24 + 1, FAR]
    for few, most, wanted in (
        (4, 1 << 22, [9, FAR, 5, 7, 2**24 + 1]),
        (4, 0, [9, FAR, 5, 7, 2**24 + 1]),  # their ranks are in a file
        (5, 1 << 22, by_number),
    ):
        monkeypatch.setattr(dataset, "AS_NUMBERED", few)
        monkeypatch.setattr(dataset, "IN_MEMORY", most)
        with data_of(tmp_path, tmp_path / "_c") as data:
            assert data.numbers.tolist() == wanted
            assert (data.columns, data.width, data.index_base) == (5, FAR + 1, 1)
            assert data.places_of(np.array([7, 6, FAR, 0])).tolist() == [
                wanted.index(7),
                -1,
                wanted.index(FAR),
                -1,
            ]
            found = [column for _, _, [column] in rows_in(data, data.chunks())]
            assert Counter(found) == sum(map(Counter, counts), Counter())


def test_ranks_for_which_the_disk_has_no_room_are_a_sentence(tmp_path, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    write_shard(tmp_path / "a.svm", [("a", 1.0, {1: 1.0})])
    monkeypatch.setattr(dataset, "IN_MEMORY", 0)
    monkeypatch.setattr("os.posix_fallocate", full)
    message = refused(lambda: data_of(tmp_path, tmp_path / "_c"), MachineError)
    assert "the disk is full (No space left on device)" in message


def test_columns_that_a_part_does_not_share_with_the_whole_are_refused(tmp_path):
    write_shard(tmp_path / "a.svm", [("a", 1.0, {7: 1.0})])
    for numbers in ([], [8], [6], [2**31]):
        given = np.array(numbers, np.uint32)
        with data_of(tmp_path, tmp_path / "_c") as data:
            made = data._prepared
        with pytest.raises(DataError, match=r"a\.svm: it has columns that the data set has not"):
            Dataset(made, data.reading, data.directory, None, given)


@small_blocks(4096, 1 << 20)
def test_a_shard_of_more_columns_than_two_bytes_number_has_blocks_of_either_size(tmp_path):
    width = 70_000
    rows = [{(5 * k + 7 * j) % width: 1.0 + j for j in range(9)} for k in range(9000)]
    rows += [dict.fromkeys(range(start, start + 700), 0.5) for start in range(0, width, 700)]
    write_shard(tmp_path / "a.svm", [("a", 1.0, row) for row in rows])
    with data_of(tmp_path, tmp_path / "_c") as data:
        [file] = (tmp_path / "_c").glob("*.cache")
        sizes = [entry.column_bytes for entry in read_prepared(str(file)).entries]
        assert {*sizes} == {2, 4}
        assert data.columns == width
        wanted = [("a", 1.0, {column: row[column] for column in sorted(row)}) for row in rows]
        assert data.numbers.tolist() == ranks_of([wanted])
        for _ in range(2):
            assert plain(rows_in(data, data.chunks())) == plain(wanted)
            data.load()


def test_a_third_label_is_refused_with_its_place_also_where_its_shard_is_prepared(tmp_path):
    write_shard(tmp_path / "part-1.svm", [(-1.0, 1.0, {}), (1.0, 1.0, {})])
    write_shard(tmp_path / "part-2.svm", [(1.0, 1.0, {})] * 6 + [(3.0, 1.0, {})] * 2)
    cache = tmp_path / "_c"
    for _ in range(2):
        assert refused(lambda: data_of(tmp_path, cache, most_labels=2)) == (
            "part-2.svm, line 7: a third label 3.0 after -1.0 and 1.0. "
            "Use --multiclass if the numbers are classes, or --loss squared_error if they are "
            "to be predicted as numbers."
        )
    assert len(list(cache.glob("*.cache"))) == 2, "the label is one too many only among both"
    (tmp_path / "part-2.svm").rename(tmp_path / "part-3.svm")
    words = refused(lambda: data_of(tmp_path, cache, most_labels=2))
    assert words.startswith("part-3.svm, line 7: a third label")
    data_of(tmp_path, cache, most_labels=3).close()


@pytest.mark.parametrize(
    ("first", "second", "expected", "words"),
    [
        ("1", 1.0, {}, "the number 1.0 as label, where the labels before are strings"),
        (1.0, True, {}, "the boolean True as label, where the labels before are"),
        (1.0, "1", {}, "the string '1' as label, where the labels before are numbers"),
        (1.0, -1.0, {"classes": [0.0, 1.0]}, "label -1.0. Known are 0.0 and 1.0"),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_a_label_that_does_not_go_with_others_is_refused(
    tmp_path, first, second, expected, words, together
):
    write_shard(tmp_path / "a.svm", [(first, 1.0, {1: 1.0})])
    write_shard(tmp_path / "b.svm", [(first, 1.0, {2: 1.0})] * together + [(second, 1.0, {})])
    message = refused(lambda: data_of(tmp_path, tmp_path / "_c", **expected))
    assert message.startswith(f"b.svm, line {1 + together}: {words}")


def test_given_classes_fix_the_codes(tmp_path):
    rows = [(None, 0.25, {3: 2.0}), (1.0, 1.0, {}), (-1.0, 1.0, {})]
    write_shard(tmp_path / "a.svm", rows)
    for classes, codes in (([-1.0, 1.0], [-1, 1, 0]), (None, [-1, 0, 1])):
        with data_of(tmp_path, tmp_path / "_c", classes=classes) as data:
            [chunk] = data.chunks()
            assert chunk.codes.tolist() == codes
            assert data.labels == (classes or [1.0, -1.0])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([("a", 1.0)] * 2, "all 2 rows have the label a: expected two labels"),
        ([("a", 1.0), ("b", 0.0)], "all rows of a weight above 0 have the label a"),
        ([("a", 0.0), ("b", 0.0)], "none of the 2 rows has a label and a weight above 0"),
        ([(None, 1.0)], "none of the 1 rows has a label: "),
    ],
)
def test_too_few_labels_of_rows_that_count_are_refused(tmp_path, rows, sentence):
    write_shard(tmp_path / "a.svm", [(label, weight, {}) for label, weight in rows])
    message = refused(lambda: data_of(tmp_path, tmp_path / "_c", least_labels=2))
    assert message.startswith(sentence)


def test_the_same_bytes_twice_are_refused_naming_both_unless_allowed_or_empty(tmp_path):
    cache = tmp_path / "_c"
    for name in ("a.svm", "c.svm"):
        write_shard(tmp_path / name, [])
    write_shard(tmp_path / "d.svm", [(1.0, 1.0, {})])
    with data_of(tmp_path, cache) as data:
        assert [shard.rows for shard in data.manifest.shards] == [0, 0, 1]
    write_shard(tmp_path / "b.svm", [(1.0, 1.0, {})])
    assert "d.svm: the same bytes as b.svm" in refused(lambda: data_of(tmp_path, cache))
    with data_of(tmp_path, cache, allow_duplicate=True, how={"threads": 2}) as data:
        assert [len(chunk) for chunk in data.chunks()] == [1, 1]


def test_shards_without_rows_are_refused_unless_they_may_be_empty(tmp_path):
    write_shard(tmp_path / "a.svm", [])
    assert refused(lambda: data_of(tmp_path, tmp_path / "_c")).startswith("a.svm: no rows, in 1")
    with data_of(tmp_path, tmp_path / "_c", allow_empty=True) as data:
        assert (data.rows, data.columns, data.readings, list(data.chunks())) == (0, 0, 0.0, [])
        data.load()
        assert (data.index_base, list(data.chunks([]))) == (1, [])


def read_only(values: Sequence[Any], dtype: Any) -> NDArray[Any]:
    array = np.array(values, dtype)
    freeze(array)
    return array


@given(st.lists(st.lists(st.one_of(st.integers(0, 9), st.integers(0, FAR)), max_size=40)))
def test_columns_are_numbered_by_first_occurrence_and_counted(parts):
    numbers = ColumnNumbers()
    numbers._columns, numbers._counts = numbers._columns[:0], numbers._counts[:0]
    numbers._grow(1)  # so that there is room for one, and it grows often
    known, counts = dict[int, int](), Counter[int]()
    for part in parts:
        wanted = [known.setdefault(column, len(known)) for column in part]
        counts.update(part)
        assert numbers.number(read_only(part, np.uint32)).tolist() == wanted
    assert numbers.table.columns.tolist() == [*known]
    assert numbers.table.counts.tolist() == [counts[column] for column in known]


@given(st.lists(st.integers(0, FAR), unique=True, max_size=30))
def test_a_table_filled_anew_finds_every_column_where_it_was_numbered(columns):
    size = max(1, len(columns))
    slots = np.zeros(1 << (2 * size - 1).bit_length(), np.uint64)
    kernels.fill_table(read_only(columns, np.uint32), slots)
    assert sorted(slots[slots > 0].tolist()) == sorted(
        column << 32 | k + 1 for k, column in enumerate(columns)
    )
    room, counts = np.array(columns, np.uint32), np.zeros(len(columns), np.int64)
    found = np.empty(len(columns), np.uint32)
    given_columns = read_only(columns, np.uint32)
    known, done = kernels.number_columns(given_columns, 0, slots, room, counts, len(columns), found)
    assert (known, done) == (len(columns), len(columns))
    assert found.tolist() == [*range(len(columns))]
    assert counts.tolist() == [1] * len(columns)


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, FAR), max_size=10))
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_numbers_become_ranks_or_are_told_to_be_too_large(dtype, numbers, ranks):
    kernel = kernels.renumber_short if dtype == np.uint16 else kernels.renumber
    found = np.empty(len(numbers), np.uint32)
    fits = kernel(read_only(numbers, dtype), read_only(ranks, np.uint32), found)
    assert fits == all(number < len(ranks) for number in numbers)
    if fits:
        assert found.tolist() == [ranks[number] for number in numbers]
