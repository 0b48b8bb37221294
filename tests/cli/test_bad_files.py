"""Every file that new users got wrong is refused, or read, with a sentence that names the cause."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from streamtron.core.errors import DataError
from streamtron.runs.fit import fit

ROWS = "1 1:0.5 2:1\n-1 1:0.25\n"

REFUSED: dict[str, tuple[str | bytes, str]] = {
    "truncated.svm.gz": (gzip.compress(ROWS.encode() * 500)[:-9], "cut off before its end"),
    "program.svm": (b"\x7fELF\x02\x01\x01\0\0", "line 1: byte 0x7f, which is not in libsvm text"),
    "nan.svm": ("1 1:nan\n", "line 1: value nan in column 1"),
    "cut.svm": (f"{ROWS}1 1:0.5 5376:0.", "line 3: the file ends with 5376:0. and no newline"),
    "nohead.csv": ("1,2,3\n2,3,4\n", "line 1: numbers .* where the names of the columns are"),
    "header.csv": ("y,f0\n1,2\n2,1\ny,f0\n1,3\n", "line 4: repeats the header. Remove the line"),
    "semicolons.csv": ("y;f0;f1\n1;2,5;3\n2;1;1\n", "line 1: ';' between the names"),
    "tabs.csv": ("y\tf0\n1\t2\n2\t1\n", r"line 1: '\\t' between the names .* ends in \.tsv"),
    "commas.tsv": ("y,f0\n1,2\n2,1\n", "line 1: ',' between the names of the columns"),
    "latin1.csv": ("y,f0,f1\n1,2,3\n2,café,1\n".encode("latin-1"), "line 3: not UTF-8"),
    "mixed.jsonl": ('{"y":1,"f0":2}\n\n{"y":"x","f0":1}\n', "line 3: .*number to string"),
    "blank.csv": ("y,f0\nyes,1\nno,2\n Yes,3\n", "line 4: label ' Yes', which differs from 'yes'"),
    "target.csv": ("y,f0\n3,1\n6.5,2\n9,3\n", "line 4: a third label 9.0 .* squared_error"),
    "identifiers.csv": (
        "y,f0\n" + "".join(f"{7 * k},1\n" for k in range(101)),
        "line 102: label number 101, 700.0 .* --multiclass if .* squared_error",
    ),
    "one.svm": ("1 1:1\n1 2:1\n", "all 2 rows have the label 1.0: wanted two labels"),
    "empty.svm": ("", "no rows"),
}

READ: dict[str, tuple[str, str]] = {
    "no-newline.svm": (f"{ROWS}1 1:0.5 5376:0.2", "the last line ends without a newline"),
    "columns-out-of-order.svm": ("1 2:1 1:1\n-1 1:1\n", ""),
    "byte-order-mark.csv": ("\ufeffy,f0\n1,2\n2,1\n", ""),
}
"""What is read nevertheless, and with which warning."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_file_is_refused_by_its_true_cause_and_leaves_no_model(
    name: str, tmp_path: Path
) -> None:
    content, message = REFUSED[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=f"(?s)^({name}.*)?{message}"):
        fit(tmp_path / name, model=tmp_path / "m")
    assert not (tmp_path / "m").exists()
    run = tmp_path / "m.run"
    assert not run.exists() or [path.name for path in run.iterdir()] == ["cache"]


@pytest.mark.parametrize("name", READ)
def test_an_odd_file_is_read_and_what_may_be_wrong_is_said(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text, message = READ[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    fit(tmp_path / name)
    assert [message in record for record in caplog.messages] == [True] * bool(message)
