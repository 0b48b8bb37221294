"""Files made to harm: each is refused in a sentence, without a crash, a wait, or the memory that
its header claims."""

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from streamtron.core.errors import DataError, FileDamaged, MachineError
from streamtron.core.rows import Facts
from streamtron.core.sealed import canonical, sealed_bytes
from streamtron.data import Dataset, ReaderConfig
from streamtron.data.flat_file import _END, _TAIL, Entry, read_prepared
from streamtron.model.import_model import load_any
from streamtron.model.linear_model import LinearModel
from streamtron.runs import witness
from streamtron.runs.store import _read_state
from tests.helpers.models import refused
from tests.helpers.processes import ROOT
from tests.helpers.shard_rows import bits, data_of

DEEP = "[" * 100_000 + "]" * 100_000
HUGE = 2**60


def sealed_by_hand(header: dict, data: bytes) -> bytes:
    """Seal any header and data by the rule of sealed files."""
    digest = xxhash.xxh3_128(canonical(header).encode() + data).hexdigest()
    header = {**header, "__metadata__": {**header["__metadata__"], "digest": digest}}
    text = canonical(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def length_first(header: bytes, length: int | None = None) -> bytes:
    """A file with the outline of a safetensors file."""
    return struct.pack("<Q", len(header) if length is None else length) + header


def tensor(shape: list[int], offsets: list[int], dtype: str = "F64") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def stranger(data: bytes = bytes(16), **tensors: dict[str, Any]) -> bytes:
    """A file sealed by the rule, with the tensors told so."""
    return sealed_by_hand({"__metadata__": {"streamtron": "{}"}, **tensors}, data)


def npy(header: str) -> bytes:
    """The beginning of numpy's own format."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


NOT_OURS: dict[str, bytes] = {
    "empty": b"",
    "text": b"1 1:1\n-1 2:1\n",
    "random": np.random.default_rng(0).bytes(4096),
    "a header of 2^60 bytes": length_first(b"{}", length=HUGE),
    "deep nesting": length_first(b'{"a":' + DEEP.encode() + b"}"),
    "sealed deep metadata": sealed_by_hand({"__metadata__": {"streamtron": DEEP}}, b""),
    "a tensor of 2^60 bytes": stranger(weights=tensor([HUGE // 8], [0, HUGE])),
    "a shape below 0": stranger(weights=tensor([-2], [0, 16])),
    "offsets backwards": stranger(weights=tensor([2], [16, 0])),
    "unknown dtype": stranger(weights=tensor([2], [0, 16], "F128")),
    "dtype that is no text": stranger(bytes(8), x={**tensor([1], [0, 8]), "dtype": ["F64"]}),
    "a byte beyond": stranger(bytes(17), weights=tensor([2], [0, 16])),
    "sealed metadata that is a list": sealed_by_hand({"__metadata__": {"streamtron": "[]"}}, b""),
    "another sealed file": sealed_bytes({"witness_version": 1}, {}),
    "npy of 2^60": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976,)}"),
    "npy that nests": npy("(" * 5000),
    "LIBLINEAR of 2^60 columns": b"solver_type L2R_LR\nnr_class 2\nlabel 1 -1\n"
    b"nr_feature 1152921504606846976\nbias -1\nw\n1\n",
    "LIBLINEAR with a label of 400 digits": b"solver_type L2R_LR\nnr_class 2\nlabel 1 -"
    + b"9" * 400
    + b"\nnr_feature 1\nbias -1\nw\n1\n",
    "deep JSON": DEEP.encode(),
    "JSON with many shards": b'{"shards": [' + b'{"a": 1},' * 1000 + b"{}]}",
    "JSON with a long name": b'{"shards": "' + b"a" * 1000 + b'"}',
    "JSON list": b"[]",
}
"""Files that are no model, no witness, no manifest."""

READ: dict[str, Callable[[str], object]] = {
    "model": load_any,
    "our model": LinearModel.load,
    "witness": lambda path: witness.load(path),
    "state": _read_state,
}


@pytest.mark.parametrize("what", READ)
@pytest.mark.parametrize(
    ("name", "kind", "begins"),
    [
        ("pipe", DataError, "not a file but a pipe"),
        (".", MachineError, "cannot be read"),
        ("absent", MachineError, "cannot be read"),
    ],
)
def test_a_pipe_is_not_waited_for_and_a_directory_is_refused(tmp_path, what, name, kind, begins):
    os.mkfifo(tmp_path / "pipe")
    message = refused(lambda: READ[what](str(tmp_path / name)), kind)
    assert message.startswith(f"{tmp_path / name}: {begins}")


@pytest.fixture
def prepared(tmp_path):
    """The prepared file of a shard of nine rows of several labels and lengths."""
    (tmp_path / "data").mkdir()
    rows = [f"{'a,b' if k % 2 else 'b'} {k + 1}:0.5{' 20:2' * (k % 3 > 0)}\n" for k in range(9)]
    (tmp_path / "data" / "a.svm").write_text("".join(rows))
    opened(tmp_path).close()
    [path] = (tmp_path / "cache").glob("*.cache")
    return path


def opened(place: Path) -> Dataset:
    return data_of(place / "data", place / "cache", ReaderConfig(multilabel=True))


def split_flat(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The segments and the table, head included, and the footer of a prepared file."""
    raw = path.read_bytes()
    length, *_ = _TAIL.unpack(raw[-_TAIL.size :])
    stop = len(raw) - _TAIL.size - length
    return raw[:stop], json.loads(raw[stop : stop + length])


def write_flat(path: Path, segments: bytes, footer: dict[str, Any] | bytes) -> None:
    """A prepared file with these segments and this footer, whatever is in it."""
    text = footer if isinstance(footer, bytes) else json.dumps(footer).encode()
    tail = _TAIL.pack(len(text), xxhash.xxh3_64_intdigest(text), _END)
    path.write_bytes(segments + text + tail)


def write_forged(path: Path, segments: bytes, footer: dict[str, Any], entry: Entry) -> None:
    """The same of one segment, whose checksum and that of the table are right."""
    checksum = xxhash.xxh3_64_intdigest(segments[: entry.bytes])
    footer["table_checksum"] = xxhash.xxh3_64_intdigest(segments[entry.bytes :])
    write_flat(path, segments, footer | {"entries": [[*entry._replace(checksum=checksum)]]})


def entry_of(footer: dict[str, Any], **change: Any) -> dict[str, Any]:
    entry = dict(zip(Entry._fields, footer["entries"][0], strict=True)) | change
    return footer | {"entries": [list(entry.values())]}


def facts_of(footer: dict[str, Any], **change: Any) -> dict[str, Any]:
    return footer | {"facts": [*Facts(*footer["facts"])._replace(**change)]}


def size_of(footer: dict[str, Any], array: str, size: Any) -> dict[str, Any]:
    sizes = dict(zip(ARRAYS, Entry(*footer["entries"][0]).sizes, strict=True)) | {array: size}
    return entry_of(footer, sizes=[*sizes.values()])


FOOTERS: dict[str, Callable[[dict[str, Any]], dict[str, Any] | bytes]] = {
    "rows of 2^60": lambda f: entry_of(f, rows=HUGE),
    "rows below 0": lambda f: entry_of(f, rows=-9),
    "rows that are no number": lambda f: entry_of(f, rows="9"),
    "an offset behind the end": lambda f: entry_of(f, offset=HUGE),
    "rows that are all as long": lambda f: size_of(f, "lengths", 0),
    "values that are no number": lambda f: size_of(f, "values", "some"),
    "an array too few": lambda f: entry_of(f, sizes=[]),
    "columns of three bytes": lambda f: entry_of(f, column_bytes=3),
    "codes of three bytes": lambda f: entry_of(f, code_bytes=3),
    "no segments": lambda f: f | {"entries": []},
    "a segment of one number": lambda f: f | {"entries": [[16]]},
    "a table below 0": lambda f: f | {"columns": -1},
    "a table of 2^60 columns": lambda f: f | {"columns": HUGE},
    "no version": lambda f: {"entries": []},
    "deep nesting": lambda f: DEEP.encode(),
    "a number": lambda f: b"3",
    "a list": lambda f: b"[]",
    "another name": lambda f: f | {"name": "another"},
    "labels that are a number": lambda f: f | {"labels": 3},
    "labels that are lists": lambda f: f | {"labels": [["a"], ["b"]]},
    "places that are numbers": lambda f: f | {"places": [1, 2]},
    "a place too few": lambda f: f | {"places": ["line 1"]},
    "no facts": lambda f: f | {"facts": []},
    "facts of more rows": lambda f: facts_of(f, rows=10),
    "facts that are text": lambda f: facts_of(f, weight="9"),
    "facts without an end": lambda f: facts_of(f, least=None),
    "facts that are infinite": lambda f: facts_of(f, sq_norm=float("inf")),
    "facts of more labels": lambda f: facts_of(f, label_weights=[1.0] * 3),
}


@pytest.mark.parametrize("footer", FOOTERS)
def test_a_prepared_file_with_a_hostile_footer_is_refused_and_made_anew(prepared, footer, caplog):
    place, good = prepared.parents[1], prepared.read_bytes()
    with opened(place) as data:
        wanted = [bits(chunk) for chunk in data.chunks()]
    segments, fields = split_flat(prepared)
    write_flat(prepared, segments, fields)
    assert prepared.read_bytes() == good, "the frame itself is as we write it"
    write_flat(prepared, segments, FOOTERS[footer](fields))
    assert str(prepared) in refused(lambda: read_prepared(str(prepared)), FileDamaged)
    with opened(place) as data:
        assert [bits(chunk) for chunk in data.chunks()] == wanted
    assert prepared.read_bytes() == good
    assert re.search(rf"{prepared}.* It is made anew from a\.svm\.", caplog.text)


@pytest.mark.parametrize("length", [HUGE, 2**64 - 1, 0, 10])
def test_a_prepared_file_whose_tail_lies_about_the_footer_is_refused(prepared, length):
    raw = prepared.read_bytes()
    prepared.write_bytes(raw[: -_TAIL.size] + _TAIL.pack(length, 0, _END))
    assert str(prepared) in refused(lambda: read_prepared(str(prepared)), FileDamaged)


@pytest.mark.parametrize(
    ("columns", "length", "nonzeros"), [(2, 2**40, 9 * 2**40), (2, 3, 27), (2000, 2000, 2000**2)]
)
def test_rows_alike_are_no_more_than_their_bytes_can_tell(prepared, columns, length, nonzeros):
    _, footer = split_flat(prepared)
    rows = max(9, columns)
    entry = Entry(0, rows, nonzeros, [0, 0, 0, 0, 0, columns, rows], 2, 1, 0)
    segments = bytes(entry.bytes + 12 * columns)
    write_forged(prepared, segments, footer | {"columns": columns}, entry)
    assert str(prepared) in refused(lambda: read_prepared(str(prepared)), FileDamaged)


ARRAYS = "weights", "squares", "lengths", "label counts", "values", "columns", "codes"

FORGED: dict[str, tuple[str, int, int]] = {
    "a longer row": ("lengths", 0, 2),
    "a far longer row": ("lengths", 0, 2**32 - 1),
    "a shorter row": ("lengths", -1, 1),
    "a row of more labels": ("label counts", 0, 2),
    "a row of far more labels": ("label counts", 0, 2**32 - 1),
    "a row of fewer labels": ("label counts", -1, 0),
    "a label that is none": ("codes", 0, 3),
    "no label among several": ("codes", 0, 0),
    "a column behind the table": ("columns", 3, 10),
    "the last column of all": ("columns", 0, 2**16 - 1),
    "a column twice in the table": ("table", 0, 20),
    "a column beyond all": ("table", 0, 2**32 - 1),
    "a column that never occurs": ("counts", 0, 0),
    "a column that occurs more often": ("counts", 0, 2),
    "a column that occurs less than never": ("counts", 0, -1),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_prepared_file_forged_down_to_its_checksums_leads_nowhere(prepared, what):
    name, index, value = FORGED[what]
    segments, footer = split_flat(prepared)
    entry = Entry(*footer["entries"][0])
    sizes = [*zip(ARRAYS, entry.arrays, strict=True)]
    sizes += [("counts", (np.int64, footer["columns"])), ("table", (np.uint32, footer["columns"]))]
    body, start = bytearray(segments), 0
    for own, (dtype, length) in sizes:
        array = np.frombuffer(body, dtype, length, start)
        start += array.nbytes
        if own == name:
            array[index] = value
    assert start == len(body)
    write_forged(prepared, bytes(body), footer, entry)
    assert read_prepared(str(prepared)).rows == 9

    def read() -> None:
        with opened(prepared.parents[1]) as data:
            list(data.chunks())

    assert str(prepared) in refused(read, FileDamaged)


IN_LITTLE_ROOM = """
import resource, sys
from streamtron.core.errors import StreamtronError
from streamtron.data import ReaderConfig, ShardRows, find_shards, resolve_reading
from tests.cli.test_hostile import READ

def shards(path):
    for shard in find_shards([path]):
        with ShardRows(shard, resolve_reading(shard, ReaderConfig())) as rows:
            for chunk in rows.chunks():
                pass

read = READ | {"shards": shards}
shards(sys.argv[1])  # all libraries are loaded, all threads are there
now = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (now + 300_000_000,) * 2)
for what, path in zip(sys.argv[2::2], sys.argv[3::2]):
    try:
        read[what](path)
        print(path, "was read")
    except StreamtronError as error:
        print(type(error).__name__, error)
"""


def in_little_room(warm: Path, *files: tuple[str, Path]) -> Iterator[str]:
    """What a process with 300 MB left says of each file, after it has read the first one. Each of
    malloc's arenas, one a thread if they are many, would reserve 64 MB of them."""
    words = [str(word) for pair in files for word in pair]
    done = subprocess.run(
        [sys.executable, "-c", IN_LITTLE_ROOM, str(warm), *words],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"MALLOC_ARENA_MAX": "2", "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    yield from done.stdout.splitlines()


def test_what_is_not_ours_is_refused_and_gets_no_memory_because_a_header_says_so(tmp_path):
    (tmp_path / "warm.svm").write_bytes(b"1 1:1\n-1 2:1\n")
    files = []
    for number, content in enumerate(NOT_OURS.values()):
        path = tmp_path / f"{number}"
        path.write_bytes(content)
        files += [(what, path) for what in READ]
    terabyte = tmp_path / "terabyte"
    terabyte.write_bytes(length_first(b'{"__metadata__":{}}'))
    os.truncate(terabyte, 1 << 40)
    files += [("model", terabyte), ("state", terabyte)]
    for (_, path), line in zip(files, in_little_room(tmp_path / "warm.svm", *files), strict=True):
        wanted = rf"(DataError|FileDamaged) {path}"
        if path == terabyte:
            wanted = rf"(MachineError {path}: cannot be read, out of|FileDamaged {path}: not a str)"
        assert re.match(wanted, line), line
        assert len(line) < 1000


def parquet(path: Path, **options: Any) -> bytearray:
    rows = {"indices": [[1, k + 2] for k in range(50)], "label": [k % 2 for k in range(50)]}
    pq.write_table(pa.table(rows), path, write_page_checksum=True, **options)
    return bytearray(path.read_bytes())


TABLES: dict[str, Callable[[Path], bytes | bytearray]] = {
    "magic twice": lambda p: b"PAR1PAR1",
    "a footer of 4 GB": lambda p: parquet(p)[:-8] + b"\xff" * 4 + b"PAR1",
    "a footer of ones": lambda p: b"PAR1" + b"\xff" * 500 + struct.pack("<I", 500) + b"PAR1",
    "a footer nested without end": lambda p: (
        b"PAR1" + b"\x1c" * 100_000 + struct.pack("<I", 100_000) + b"PAR1"
    ),
    "encrypted": lambda p: parquet(p)[:-4] + b"PARE",
}


def arrow(path: Path, compression: str | None = None, stream: bool = False) -> bytearray:
    labels = [float(k % 2) for k in range(5000)]
    table = pa.table({"indices": [[1, k % 9 + 2] for k in range(5000)], "label": labels})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytearray(path.read_bytes())


def inflated(raw: bytearray, size: int) -> bytearray:
    """A compressed file one of whose buffers says that it unpacks to so many bytes."""
    said = struct.pack("<q", 8 * 5000)  # the labels; the number before a buffer is its real size
    at = raw.rindex(said)
    raw[at : at + 8] = struct.pack("<q", size)
    return raw


ARROWS: dict[str, Callable[[Path], bytes | bytearray]] = {
    "magic twice": lambda p: b"ARROW1\0\0ARROW1",
    "a footer of 2 GB": lambda p: arrow(p)[:-10] + struct.pack("<i", 2**31 - 1) + b"ARROW1",
    "a message of 2 GB": lambda p: b"\xff" * 4 + struct.pack("<i", 2**31 - 1) + bytes(100),
    "a message below 0": lambda p: b"\xff" * 4 + struct.pack("<i", -5) + bytes(100),
    "a buffer that unpacks to 2^60 bytes": lambda p: inflated(arrow(p, "lz4"), HUGE),
    "a buffer that unpacks to 16 GB": lambda p: inflated(arrow(p, "zstd"), 2**34),
    "a buffer that unpacks to too much": lambda p: inflated(arrow(p, "lz4"), 8 * 5000 + 8),
    "a stream cut off": lambda p: arrow(p, stream=True)[:-5000],
}


def test_hostile_tables_get_no_memory_that_is_not_theirs(tmp_path):
    parquet(tmp_path / "warm.parquet")
    files = []
    for suffix, tables in (("parquet", TABLES), ("arrow", ARROWS)):
        for number, make in enumerate(tables.values()):
            path = tmp_path / f"{number}.{suffix}"
            path.write_bytes(make(path))
            files.append(("shards", path))
    lines = [*in_little_room(tmp_path / "warm.parquet", *files)]
    for (_, path), line in zip(files, lines, strict=True):
        kind = "DataError" if path.suffix == ".parquet" else "(DataError|MachineError)"
        assert re.match(rf"{kind} {path.name}: ", line), line
