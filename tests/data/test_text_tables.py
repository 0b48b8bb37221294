"""CSV, JSON lines and Vowpal Wabbit's text as shards of numbers, and what is refused in them."""

import csv
import gzip
import io
import itertools
import json
import lzma
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtron.core.errors import DataError
from streamtron.data import ReaderConfig, find_shards
from streamtron.data.formats import text_kernels
from streamtron.data.formats.text_tables import CsvReader
from streamtron.data.readers import open_reader, resolve_reading
from streamtron.data.transform import Transformer
from streamtron.runs.fit import fit
from streamtron.runs.predict import predict
from tests.helpers.examples import examples
from tests.helpers.layouts import write_table

TABLE = {
    "bought": ["yes", "no"] * 150,
    "age": np.random.default_rng(0).normal(40, 10, 300).tolist(),
    "visits": [*range(299), 2.5],  # whole numbers, but for the last
    "open": [True, False, False] * 100,
}


def write(path: Path, table: dict[str, list[Any]] = TABLE) -> Path:
    """Write a table in the format of the name; CSV as Excel writes it, with \\r\\n and a mark."""
    if path.suffix == ".parquet":
        return write_table(path, table)
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    plain = write_table(path.with_name("plain.jsonl" if "json" in path.name else "plain.csv"), rows)
    text = plain.read_bytes()
    if plain.suffix == ".csv":  # without a last end of line
        sign = b"\t" if ".tsv" in path.name else b","
        text = "\ufeff".encode() + text.removesuffix(b"\r\n").replace(b",", sign)
    path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(text))
    return path


@pytest.mark.parametrize(
    "name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.ndjson", "a.csv.gz", "a.jsonl.xz"]
)
def test_a_model_is_that_of_the_same_table_in_parquet(name, tmp_path):
    given_ = {"label": "bought", "features": "age,visits,open"}
    wanted = fit(write(tmp_path / "a.parquet"), **given_)
    model = fit(write(tmp_path / name), **given_)
    assert model.weights.tolist() == wanted.weights.tolist()
    assert model.bias == wanted.bias


fields = st.text(st.sampled_from('ab",\n\r é'), max_size=6)


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(st.lists(st.tuples(fields, st.integers(-9, 9)), min_size=1, max_size=30), st.integers(1, 3))
def test_rows_are_cut_where_they_end_whatever_their_quotes_and_the_number_of_threads(rows, threads):
    class SmallBlocks(CsvReader):
        BLOCK_BYTES = 60

    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_NONNUMERIC).writerows([("t", "n"), *rows])
    with TemporaryDirectory() as root:
        path = Path(root, "a.csv")
        path.write_text(text.getvalue(), newline="", encoding="utf-8")
        texts = ReaderConfig(transformer=Transformer(b"", (("t", "text"),)), null_values=())
        reader = SmallBlocks(str(path), "a.csv", texts, None, threads)
        cells = [row["t"] or "" for batch in reader.rows(["t"]) for row in batch.to_pylist()]
    assert cells == [cell for cell, _ in rows]


MANY = 300_000
"""Rows of more than a batch."""
LONG = "1,2\n" * MANY
NUMBERED = "".join(f"{7 * k},1\n" for k in range(101))
WIDE = ",".join(map("f{}".format, range(300_000)))
OBJECT = '{"y": 1, "f1": 2}\n'
NOT_UTF_8 = r"invalid UTF8 data\)\. Convert the file to UTF-8"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "a;b\n1,5;2\n", "row 1: not a CSV table .*Expected 1 columns, got 2: 1,5;2"),
        ("a.csv", "1,2,3\n2,3,4\n", "line 1: numbers .* where the names of the columns are"),
        ("a.csv", "y\tf0\n1\t2\n2\t1\n", r"no column for the labels, .*there: y\tf0 string"),
        ("a.tsv", "y,f0\n1,2\n2,1\n", "no column for the labels, .*there: y,f0 string"),
        ("a.csv", "y,f0\n3,1\n6.5,2\n9,3\n", "row 3: a third label 9.0 .* squared_error"),
        ("a.csv", f"y,f0\n{NUMBERED}", "row 101: label number 101, .* --multiclass if .* squared_"),
        ("a.csv", f"y,f0\n{LONG}1,2\r-1,b\n", f"row {MANY + 2}: not a CSV table .*In column 'f0'"),
        ("a.csv", "label,text\n1,a\n2,b\n", "features by --columns auto, documents by"),
        ("a.csv", "y,f1\n1,2\n\ny,f1\n2,3\n", "f1 string"),
        ("a.csv", f"y,f1\n{LONG}2,abc\n", f"row {MANY + 1}: not a CSV table .*'f1': .*'abc'"),
        ("a.csv", f"y,f1\n{LONG}2,NA\n", f"row {MANY + 1}: null in column 'f1'"),
        ("a.csv", f"y,f1\n{LONG}2,Na\n", r"'Na'\)\. Correct the row; a field that is a null is"),
        ("a.csv", f"y,t\n1,{'x' * 2**22}\n", r"line 2: a row longer than 1,048,576"),
        ("a.csv", f"y,f1\n{LONG}1,{'2' * 2**22}\n", r"line \d+: a row longer than 1,048,576"),
        ("a.csv", 'y,f1\n1,2\n1,"2\n', "line 3: a quote within a field, or one that is not closed"),
        ("a.csv", f'y,f1\n{LONG}1,"2\n', f"line {MANY + 2}: a quote within a field, or one that"),
        ("a.csv", 'y,f1\n1,2\n1,5" x\n2,3" y\n', "line 3: a quote within a field"),
        ("a.csv", 'y,f1\n1,2\n1,"5" x\n2,"3" y\n', "line 3: a quote within a field"),
        ("a.csv", f'y,f1\n1,2\n1,"2\n{LONG}', "line 3: a quote .* not closed"),
        ("a.csv", "y,f1\n1,2\n3\n", "row 2: not a CSV table .*Expected 2 columns, got 1"),
        ("a.csv", "y,f1\n1,2\n2,\n", "row 2: null in column 'f1'"),
        ("a.csv", f"y,f1\n{LONG}1,{2**53}\n", "from row .* on: a number of 2⁵³ or more in column"),
        ("a.csv", f"label,{WIDE}\n{'1,' * 300_000}1\n", "line 1: 1.*columns; .* libsvm text, or"),
        ("a.csv", "y,f1\n1,2\n0,café\n", f"from line 1 on: .*{NOT_UTF_8}"),
        ("a.csv", f"y,f1\n{LONG}0,café\n", f"row {MANY + 1}: .*invalid value"),
        ("a.jsonl", '[{"y": 1}]', "row 1: not a file of JSON lines .* from object to array"),
        ("a.jsonl", '{"y": 1, "f1": 2}\n{"y": 1, "f1"', "row 2: not a file of JSON lines"),
        ("a.jsonl", '{"y": 1, "f1": 2}\n{"y": 1}\n', "row 2: null in column 'f1'"),
        ("a.jsonl", OBJECT + '{"y": "a", "f1": 2}\n', "row 2: .* changed from number to string"),
        ("a.jsonl", OBJECT * MANY + '{"y": 1, "f1": "a"}\n', f"row {MANY + 1}: .* from number to"),
        ("a.vw", "1 |f a\n\n-1 |f café\n", "line 3: not UTF-8. Convert the file"),
        ("a.vw", "1 |f a\n1 a b\n", r"line 2: no \|"),
        ("a.vw", "1 |f a\n1:0.5 |f a\n", r"line 2: '1:0.5' before the \|"),
        ("a.vw", "1 |f a\n1 1 0.5 |f a\n", r"line 2: '1 1 0.5' before the \|"),
        ("a.vw", "1 |f a\n1 |f a:b\n", "line 2: 'a:b'. Write a feature as name or name:2.5"),
        ("a.vw", "1 |f a\n1 |f a:1:2\n", "line 2: 'a:1:2'"),
        ("a.vw", "1 |f a\n1 |f :2\n", "line 2: a feature without a name"),
        ("a.vw", "1 |f a\n1 3 |f a\n", "line 2: importance 3.0, which would be lost. Read it with"),
        ("a.vw", "1 |f a\n1 |f a\r1 |f b\n", "line 2: a carriage return inside the line"),
        ("a.vw", "1 |f a\n|f a\n", "null in column 'label'"),
    ],
)
def test_what_is_wrong_in_text_is_refused_with_its_place_and_leaves_no_model(
    name, text, message, tmp_path
):
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    hashing = {"hash_bits": 4} if name == "a.vw" else {}
    with pytest.raises(DataError, match=rf"(?s)^{re.escape(name)}.*{message}"):
        fit(tmp_path / name, model=tmp_path / "m", **hashing)
    assert not (tmp_path / "m").exists()
    run = tmp_path / "m.run"
    assert not run.exists() or [path.name for path in run.iterdir()] == ["cache"]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "header", "row", "bad"),
    [("a.csv", "y,f1\n", "1,2\n", "3\n"), ("a.jsonl", "", OBJECT, '{"y": "a"}\n')],
)
def test_a_bad_row_megabytes_later_is_named_after_all_rows_before_it(
    name, header, row, bad, threads, tmp_path
):
    rows = 3 * (1 << 20) // len(row)
    (tmp_path / name).write_text(header + rows * row + bad + rows * row + bad)
    [shard] = find_shards([tmp_path / name])
    reader = open_reader(shard, resolve_reading(shard, ReaderConfig()), threads)
    passed = itertools.accumulate(batch.rows for batch in reader.batches())
    assert rows // 2 < next(so_far for so_far in passed if so_far > rows // 2) <= rows
    with pytest.raises(DataError, match=f"{name}, row {rows + 1}: not a"):
        list(passed)


def test_no_category_is_rounded(tmp_path):
    numbers = [2**63 - 1 - k for k in range(20)] * 2  # every float64 near them is of many
    write(tmp_path / "a.jsonl", {"id": numbers, "y": ["a", "b"] * 20})
    model = fit(tmp_path / "a.jsonl", label="y", columns="id:category")
    [scores] = predict(model, tmp_path / "a.jsonl")
    assert scores.labels.tolist() == ["a", "b"] * 20


def test_numbers_are_whole_in_the_first_megabyte_alone_and_a_later_shard_is_empty(tmp_path):
    early = "3,x,a\n" * 200_000  # 1.2 MB
    (tmp_path / "a.csv").write_text(f"n1,n2,y\n{early}2.5,x,b\n")
    (tmp_path / "b.csv").write_text("n1,n2,y\n")
    for names in ({"features": "n1"}, {"columns": "n1:number"}):
        model = fit([tmp_path / "a.csv", tmp_path / "b.csv"], label="y", **names)
        assert model.weights.shape == (1,)


@pytest.mark.parametrize("before", ["", '{"y": 1, "f1": 2}\n' * 70_000], ids=["first", "later"])
def test_json_is_not_nested_without_bound(before, tmp_path):
    nested = "[" * 100_000 + "]" * 100_000
    (tmp_path / "a.jsonl").write_text(f'{before}{{"y": 1, "f1": 2, "x": {nested}}}\n')
    line = before.count("\n") + 1
    with pytest.raises(DataError, match=rf"a\.jsonl, line {line}: lists and objects nested deeper"):
        fit(tmp_path / "a.jsonl")


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(["[", "]", "{", '"', "\\", "a"]), max_size=12), st.integers(0, 70))
def test_brackets_in_strings_of_json_nest_nothing(parts, depth):
    text = json.dumps(["".join(parts) * 40, json.loads("[" * depth + "]" * depth or "0")]).encode()
    found = text_kernels.too_deep(np.frombuffer(text, np.uint8), 64) < len(text)
    assert found == (depth > 63)


def test_a_process_that_has_refused_a_csv_file_ends_without_being_aborted(tmp_path):
    (tmp_path / "a.csv").write_text("y,f1\n1,2\n2,3,4\n")
    code = f"""
from streamtron.data import ReaderConfig, find_shards
from streamtron.data.formats.text_tables import CsvReader
try:
    CsvReader({str(tmp_path / "a.csv")!r}, "a.csv", ReaderConfig()).resolve()
except Exception as error:
    print(error)
"""
    for _ in range(3):  # pyarrow's own readers ahead aborted two in five
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert "a.csv, row 2: not a CSV table" in done.stdout
