"""Parquet that Spark itself wrote: tests/files/write_with_spark.py says how."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamtron.core.feature_names import Hashing, Vocabulary
from streamtron.data.formats.parquet import ParquetReader
from streamtron.data.reader_config import ReaderConfig
from streamtron.runs.fit import fit
from tests.helpers.shard_rows import rows_of

DATA = Path(__file__).parents[1] / "files"
FORMS = ("", "-legacy")
"""As Spark writes lists and maps, and as it does with writeLegacyFormat."""

VECTORS = [
    (1.0, {0: 0.5, 3: -2.0, 6: 1.25}),
    (0.0, {1: 1.5, 4: -0.1, 6: 3.0}),
    (1.0, {}),
    (0.0, {2: 1e-3}),
    (1.0, dict.fromkeys(range(7), 1.0)),
    (0.0, {}),
]
MAPS = [
    (1.0, {"age": 0.5, "height": -2.0}),
    (0.0, {"weight": 3.0}),
    (1.0, {}),
    (0.0, {"age": 0.1, "height": 1.0, "weight": 1.5}),
]
NAMES = ("age", "height", "weight")
WORDS = [("spam", {"buy": 1.0, "now": 2.0}), ("ham", {"see": 1.0, "you": 1.0}), ("ham", {})]


def rows_in(
    path: Path, reading: ReaderConfig | None = None
) -> list[tuple[object, dict[int, float]]]:
    """(label, {column: value}) of every row of a file."""
    batches = list(ParquetReader(str(path), path.name, reading or ReaderConfig()).batches())
    return [
        (label, dict(zip(columns, values, strict=True)))
        for label, columns, values, _ in rows_of(batches)
    ]


def rounded(row: dict[int, float]) -> dict[int, float]:
    return {column: float(np.float32(value)) for column, value in row.items()}


@pytest.mark.parametrize("form", FORMS)
def test_sparse_and_dense_vectors_of_spark_are_the_rows_that_it_was_given(form: str) -> None:
    found = rows_in(DATA / f"spark-vectors{form}.parquet")
    assert found == [(label, rounded(row)) for label, row in VECTORS]


@pytest.mark.parametrize("form", FORMS)
def test_maps_of_spark_are_the_rows_that_it_was_given(form: str) -> None:
    path = DATA / f"spark-maps{form}.parquet"
    found = rows_in(path, ReaderConfig(names=Vocabulary(NAMES)))
    wanted = [
        (label, rounded({NAMES.index(name): value for name, value in row.items()}))
        for label, row in MAPS
    ]
    assert found == wanted


@pytest.mark.parametrize("form", FORMS)
def test_lists_of_strings_of_spark_are_counted_under_their_hashes(form: str) -> None:
    found = rows_in(DATA / f"spark-words{form}.parquet", ReaderConfig(names=Hashing(20)))

    def column(name: str) -> int:
        return int(Hashing(20, 0).columns([name])[0])

    wanted = [(label, {column(name): n for name, n in row.items()}) for label, row in WORDS]
    assert found == wanted


def test_a_fit_on_a_directory_of_spark_finds_its_shard_and_the_model_of_the_same_rows_in_text(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "table"
    directory.mkdir()
    (directory / "_SUCCESS").touch()
    (directory / ".part-00000.snappy.parquet.crc").write_bytes(b"crc")
    shard = (DATA / "spark-vectors.parquet").read_bytes()
    (directory / "part-00000.snappy.parquet").write_bytes(shard)
    text = tmp_path / "rows.svm"
    lines = (
        " ".join([f"{label:g}", *(f"{column}:{value!r}" for column, value in row.items())])
        for label, row in VECTORS
    )
    text.write_text("\n".join(lines) + "\n")
    ours, theirs = fit(str(directory)), fit(str(text), index_base=0)
    assert ours.weights.tobytes() == theirs.weights.tobytes()
    assert ours.bias == theirs.bias
    assert np.count_nonzero(ours.weights) > 0
