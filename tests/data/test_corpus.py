"""Generated corpora: the same rows for ever, of the shape that was promised, at any size."""

import hashlib
import itertools
import tracemalloc
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from streamtron.core.errors import SettingsError
from streamtron.data.formats.libsvm import LibsvmReader
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.writers.corpus import corpus_rows, generate


class Corpus(NamedTuple):
    features: sp.csr_matrix
    labels: NDArray[np.float64]

    def same(self, other: "Corpus") -> bool:
        ours, theirs = (
            [c.features.indptr, c.features.indices, c.features.data, c.labels]
            for c in (self, other)
        )
        return all(map(np.array_equal, ours, theirs))

    def rows(self, start: int, stop: int) -> "Corpus":
        return Corpus(self.features[start:stop], self.labels[start:stop])


def gather(batches: object, columns: int, base: int = 0) -> Corpus:
    features, labels = [], []
    for p in batches:
        indices = p.indices.astype(np.int64) - base
        features.append(sp.csr_matrix((p.values, indices, p.indptr), (len(p.codes), columns)))
        labels.append(np.array(p.classes)[p.codes])
    return Corpus(sp.vstack(features, format="csr"), np.concatenate(labels))


@cache
def made(
    rows: int, columns: int = 5000, seed: int = 0, first_row: int = 0, kind: str = "text"
) -> Corpus:
    return gather(corpus_rows(rows, columns, seed, first_row, kind), columns)


kinds = pytest.mark.parametrize(
    ("kind", "columns"), [("text", 5000), ("dense", 50), ("clicks", 9000)]
)


@kinds
def test_any_stretch_of_rows_is_made_without_those_before_it(kind, columns):
    larger = made(9000, columns, kind=kind)
    for start, stop in ((0, 1), (0, 4096), (0, 5000), (3000, 8000)):
        part = made(stop - start, columns, first_row=start, kind=kind)
        assert part.same(larger.rows(start, stop))
    far = made(10, columns, first_row=10**12, kind=kind)
    assert far.same(made(20, columns, first_row=10**12 - 10, kind=kind).rows(10, 20))
    base = made(4096, columns, kind=kind)
    assert not base.same(made(4096, columns, first_row=4096, kind=kind))
    assert not base.same(made(4096, columns, seed=1, kind=kind))


DIGESTS = {
    ("text", 5000): "1d751a28c88820fd",
    ("dense", 50): "802bff5c0f07bdd4",
    ("clicks", 9000): "d94202d8ee26af23",
}


@pytest.mark.parametrize(("kind", "columns"), DIGESTS)
def test_the_rows_of_a_seed_are_the_same_bits_for_ever(kind, columns):
    digest = hashlib.sha256()
    for batch in corpus_rows(9000, columns, 3, 5000, kind):
        for array in (batch.indptr, batch.indices, batch.values, batch.codes):
            digest.update(array.tobytes() + str(array.dtype).encode())
        digest.update(repr((batch.classes, batch.weights, batch.place(0))).encode())
    assert digest.hexdigest()[:16] == DIGESTS[kind, columns]


@pytest.mark.parametrize("shards", [2, 7])
def test_the_files_hold_the_same_rows_however_many_shards(tmp_path, shards):
    generate(str(tmp_path / "made"), rows=4500, columns=3000, seed=3, shards=shards)
    paths = sorted((tmp_path / "made").iterdir())
    assert [path.name for path in paths] == [f"part-0000{k}.svm" for k in range(shards)]
    batches = [list(LibsvmReader(str(path), "t", ReaderConfig()).batches()) for path in paths]
    rows = [sum(batch.rows for batch in shard) for shard in batches]
    assert max(rows) - min(rows) <= 1
    assert gather(itertools.chain(*batches), 3000, base=1).same(made(4500, 3000, seed=3))


@kinds
def test_memory_does_not_grow_with_the_number_of_rows(kind, columns):
    def peak(rows):
        tracemalloc.start()
        for _ in corpus_rows(rows, columns, 0, kind=kind):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak(36 * 4096) < 1.5 * peak(12 * 4096)


@pytest.mark.parametrize(
    ("kind", "columns"), [("text", 80), ("text", 81), ("text", 119), ("text", 200), ("dense", 1)]
)
def test_a_corpus_of_few_columns_is_still_one(kind, columns):
    few = made(500, columns, kind=kind)
    assert few.features.has_canonical_format
    assert (np.diff(few.features.indptr) >= 1).all()
    assert set(few.labels) == {1.0, -1.0}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rows": 0}, r"rows is 0: expected 1 or more"),
        ({"shards": 0}, r"shards is 0: expected 1 or more"),
        ({"columns": 79}, r"columns of text is 79: expected 80 to 4,294,967,295\."),
        ({"kind": "dense", "columns": 1001}, r"columns of dense is 1001: expected 1 to 1,000\."),
        ({"seed": -1}, r"seed is -1: expected 0 or more"),
        ({"first_row": -1}, r"first-row is -1: expected 0 or more"),
        ({"kind": "images"}, r"kind is .*: expected text, dense or clicks"),
    ],
)
def test_numbers_out_of_range_are_refused(tmp_path, settings, sentence):
    asked = {"rows": 5, "seed": 0, **settings}
    with pytest.raises(SettingsError, match=sentence):
        generate(str(tmp_path), **asked)


def test_a_text_of_many_columns_takes_at_most_60_bytes_a_column():
    columns, a_group = 600_000, 60 * 2**20
    tracemalloc.start()
    try:
        batch = next(corpus_rows(1, columns, seed=77, first_row=5000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (batch.rows, batch.place(0)) == (1, "generated corpus, row 5000")
    assert peak < 60 * columns + a_group
