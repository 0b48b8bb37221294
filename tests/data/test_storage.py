"""Shards in object stores: real servers of S3's and Google's protocols on loopback, and whatever
fsspec opens."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, NamedTuple
from urllib.parse import quote

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, MachineError
from streamtron.data import find_shards, open_shards, storage
from streamtron.data.writers.corpus import generate
from streamtron.runs.convert import convert
from tests.helpers.processes import COMMAND, Process, command, here
from tests.helpers.shard_rows import TEXT, chunks_of


class Server:
    """moto's S3 server in a process of its own, on a port of its own choosing."""

    how: tuple[str, ...] = ("-m", "moto.server")

    def __init__(self, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *self.how, "-H", "127.0.0.1", "-p", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.url = ""
        while not self.url:
            found = re.search(r"http://127\.0\.0\.1:\d+", self._lines.get(timeout=120))
            self.url = found[0] if found else ""
        self._marks = count()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)

    def put(self, path: str, data: bytes = b"") -> None:
        """Make a bucket, or an object in one."""
        url = f"{self.url}/{quote(path)}"
        headers = {"Content-Type": "application/octet-stream", "Authorization": "AWS key:hush"}
        request = urllib.request.Request(url, data, headers, method="PUT")
        urllib.request.urlopen(request, timeout=60).close()

    def requests(self) -> list[str]:
        """``METHOD /path`` of all requests since the last call."""
        mark = f"/mark-{next(self._marks)}"
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(self.url + mark, timeout=60)
        found: list[str] = []
        while True:
            line = re.search(r"(GET|HEAD|PUT|POST) (/\S*) HTTP", self._lines.get(timeout=60))
            if line and line[2] == mark:
                return found
            found += [f"{line[1]} {line[2]}"] if line else []

    def stop(self) -> None:
        """The server is gone, and its port answers no more."""
        self._process.kill()
        self._process.wait()
        self._listener.join()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    there = Server()
    yield there
    there.stop()


def use(server: Server | Stalling, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user of this server has in the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    storage._connected.cache_clear()


@pytest.fixture
def s3(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    use(server, monkeypatch)
    return server


_buckets = count()


@pytest.fixture
def bucket(s3: Server) -> str:
    """An empty bucket."""
    name = f"bucket-{next(_buckets)}"
    s3.put(name)
    return name


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that a test may stop, with the bucket ``data``."""
    there = Server()
    use(there, monkeypatch)
    there.put("data")
    yield there
    there.stop()


SERVE = """
import sys, threading
from http import server
from gcp_storage_emulator.server import RequestHandler, create_server

answer = RequestHandler.do_GET

def answer_or_stall(self):
    if "stall" in sys.argv and "alt=media" in self.path:
        print("reached", flush=True)
        threading.Event().wait()
    answer(self)

RequestHandler.do_GET = answer_or_stall

class Announced(server.ThreadingHTTPServer):
    def server_activate(self):
        super().server_activate()
        print(self.server_port, flush=True)

server.HTTPServer = Announced
create_server("127.0.0.1", 0, in_memory=True, default_bucket="data").run()
"""


class Emulator:
    """The server in a process of its own, on a port of its own choosing, with the bucket
    ``data``; with ``stall`` it never answers requests for the contents of an object."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def uri(self, key: str) -> str:
        """Of something in the bucket, with all that this server's user has to say."""
        options = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&retry_limit_seconds=2"
        return f"gs://anonymous@data/{key}?{options}"

    def put(self, key: str, data: bytes) -> None:
        """Make an object."""
        url = f"http://127.0.0.1:{self.port}/upload/storage/v1/b/data/o?uploadType=media&name="
        headers = {"Content-Type": "application/octet-stream"}
        request = urllib.request.Request(url + quote(key, safe=""), data, headers, method="POST")
        urllib.request.urlopen(request, timeout=60).close()

    def wait_until_reached(self) -> None:
        """Wait until a request is not answered."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "reached\n"

    def stop(self) -> None:
        """The server is gone, and its port answers no more."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


needs_emulator = pytest.mark.skipif(
    importlib.util.find_spec("gcp_storage_emulator") is None,
    reason="no server to ask: pip install gcp-storage-emulator",
)


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    there = Emulator()
    yield there
    there.stop()


class Store(NamedTuple):
    """Keys of a store that no other test has: the URI of one, and how to put an object there."""

    uri: Callable[[str], str]
    put: Callable[[str, bytes], None]

    def upload(self, directory: Path) -> None:
        for path in directory.rglob("*"):
            if path.is_file():
                self.put(str(path.relative_to(directory)), path.read_bytes())


def store_of(server: Server, bucket: str) -> Store:
    return Store(
        lambda key: f"s3://{bucket}/{key}", lambda key, data: server.put(f"{bucket}/{key}", data)
    )


@pytest.fixture(params=["s3", pytest.param("gs", marks=needs_emulator)])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "s3":
        return store_of(request.getfixturevalue("s3"), request.getfixturevalue("bucket"))
    emulator, prefix = request.getfixturevalue("emulator"), f"prefix-{next(_buckets)}"
    return Store(
        lambda key: emulator.uri(f"{prefix}/{key}"),
        lambda key, data: emulator.put(f"{prefix}/{key}", data),
    )


def names(*uris: str) -> list[str]:
    return [shard.name for shard in find_shards(uris)]


# What is found -----------------------------------------------------------------------------------

KEYS = [
    "day-2/b.svm", "day-1/a.svm", "day-1/_SUCCESS", "day-1/deep/z.svm", "night/c.svm", "B.svm",
    "10.svm", "9.svm", "é.svm", "_x/a.svm", ".hidden.svm", "a b%41+c.svm", "day-1.svm",
]  # fmt: skip


ROOTS = [
    "", "day-1", "day-1/", "day-1/a.svm", "_x", "*", "day-*", "**/*.svm", "day-*/*.svm",
    "*/deep", "[0-9]*.svm", "_x/*", "**", "day-1/**/*.svm", "d*/d*/z.svm",
]  # fmt: skip


def test_a_root_stands_for_the_same_names_in_the_same_order_in_a_store_and_on_disk(
    store: Store, tmp_path: Path
) -> None:
    for number, key in enumerate(KEYS):
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_text(f"1 {number + 1}:1\n")
    store.upload(tmp_path)
    for root in ROOTS:
        on_disk, stored = find_shards([f"{tmp_path}/{root}"]), find_shards([store.uri(root)])
        facts = [[(shard.name, shard.size) for shard in shards] for shards in (on_disk, stored)]
        assert facts[0] == facts[1], root
        for shard, local in zip(stored, on_disk, strict=True):
            assert b"".join(storage.blocks(shard.path, "")) == Path(local.path).read_bytes()


def test_a_prefix_ends_at_a_slash(s3: Server, bucket: str) -> None:
    s3.put(f"{bucket}/train/a.svm", TEXT)
    s3.put(f"{bucket}/train-old/b.svm", TEXT)
    assert names(f"s3://{bucket}/train") == ["a.svm"]
    with pytest.raises(DataError, match=rf"s3://{bucket}/trai: no such file or directory"):
        names(f"s3://{bucket}/trai")


def test_a_key_of_any_signs_is_found_and_its_uri_opens_it(s3: Server, bucket: str) -> None:
    keys = ["#b.svm", "%.svm", "&=.svm", "?b.svm", "x[1].svm", "ü .svm"]
    for key in keys:
        s3.put(f"{bucket}/{key}", TEXT)
    shards = find_shards([f"s3://{bucket}"])
    assert [shard.name for shard in shards] == keys
    for shard in shards:
        assert find_shards([shard.path]) == [shard]
        assert b"".join(storage.blocks(shard.path, "")) == TEXT


def test_stores_and_disks_go_together_and_a_key_given_twice_is_refused(
    s3: Server, bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "a.svm").write_bytes(b"1 7:1\n")
    s3.put(f"{bucket}/a.svm", TEXT)
    uri = f"s3://{bucket}/a.svm"
    assert names(str(tmp_path), f"s3://{bucket}") == [str(tmp_path / "a.svm"), uri]
    with pytest.raises(DataError, match=rf"{uri}: the same file as {uri}, given twice"):
        find_shards([uri, f"s3://{bucket}/*.svm"])


def test_the_endpoint_may_stand_in_the_uri_and_stays_in_the_uris_of_the_shards(
    s3: Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put(f"{bucket}/t/a.svm", TEXT)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    options = f"?scheme=http&endpoint_override={s3.url.removeprefix('http://')}"
    [shard] = find_shards([f"s3://{bucket}/t{options}"])
    assert (shard.name, shard.path) == ("a.svm", f"s3://{bucket}/t/a.svm{options}")
    assert b"".join(storage.blocks(shard.path, "")) == TEXT


def test_a_file_uri_is_the_local_file(tmp_path: Path) -> None:
    (tmp_path / "a b.svm").write_bytes(TEXT)
    assert find_shards([tmp_path.as_uri()]) == find_shards([str(tmp_path)])
    assert find_shards([(tmp_path / "a b.svm").as_uri()]) == find_shards([str(tmp_path)])
    with pytest.raises(DataError, match="given twice"):
        find_shards([tmp_path.as_uri(), str(tmp_path)])
    with pytest.raises(DataError, match="file://elsewhere/a: not a file of this machine"):
        find_shards(["file://elsewhere/a"])


def test_what_fsspec_opens_is_read_too(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for name, data in (("b.svm", TEXT), ("a.svm.gz", gzip.compress(b"1 4:1\n")), ("_x", b"?")):
        memory.pipe(f"/corpus/{name}", data)
        (tmp_path / name).write_bytes(data)
    with (
        open_shards(["memory://corpus"], cache_dir=str(tmp_path / "_c")) as source,
        open_shards([str(tmp_path)], cache_dir=None) as local,
    ):
        assert [shard.name for shard in source.shards] == ["a.svm.gz", "b.svm"]
        assert chunks_of(source) == chunks_of(local)


def test_a_store_that_does_not_tell_times_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/timeless/a.svm", TEXT)

    def modified(path: str) -> None:
        raise NotImplementedError

    monkeypatch.setattr(type(memory), "modified", lambda _, path: modified(path))
    with pytest.raises(MachineError, match=r"memory://timeless/a\.svm: this store does not tell"):
        find_shards(["memory://timeless"])


# What is read ------------------------------------------------------------------------------------


def test_text_plain_and_packed_and_parquet_give_the_chunks_of_local_files(
    store: Store, tmp_path: Path
) -> None:
    generate(str(tmp_path / "text"), rows=600, columns=300, seed=3, shards=2)
    plain = min((tmp_path / "text").iterdir())
    plain.with_name(f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    (tmp_path / "parquet").mkdir()
    for number in range(2):
        rows = [list(range(k % 9)) for k in range(500)]
        table = pa.table(
            {"indices": rows, "values": [[0.5 + k for k in row] for row in rows],
             "label": [k % 2 for k in range(500)], "n": [number] * 500}
        )  # fmt: skip
        pq.write_table(table, tmp_path / "parquet" / f"{number}.parquet", row_group_size=90)
    store.upload(tmp_path)
    for root in ("text", "parquet"):
        with (
            open_shards([str(tmp_path / root)], cache_dir=None) as local,
            open_shards([store.uri(root)], cache_dir=str(tmp_path / "c")) as stored,
        ):
            wanted = chunks_of(local)
            assert chunks_of(stored) == wanted
            assert chunks_of(stored) == wanted
            assert stored.manifest is not None
            assert local.manifest is not None
            assert [s.fingerprint for s in stored.manifest.shards] == [
                s.fingerprint for s in local.manifest.shards
            ]


def test_an_object_arrives_in_order_however_many_requests_it_takes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "RANGE_BYTES", 10)
    for size in (1, 9, 10, 11, 39, 40, 41, 1000):
        data = bytes(k % 251 for k in range(size))
        store.put(f"{size}", data)
        parts = list(storage.blocks(store.uri(f"{size}"), "", 7))
        assert b"".join(parts) == data
        assert all(0 < len(part) <= 7 for part in parts)


def test_an_answer_that_ends_early_is_not_taken_for_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(io.BytesIO):
        def size(self) -> int:
            return 25

        def read_at(self, count: int, start: int) -> bytes:
            return bytes(25)[start : start + count][: 4 if start == 10 else 10]

    monkeypatch.setattr(storage, "RANGE_BYTES", 10)
    store = SimpleNamespace(open_input_file=lambda _: Short())
    parts = storage._stored(storage.Place("s3://data", "a", "", store, "data"), 10)
    assert next(parts) == bytes(10)
    with pytest.raises(MachineError, match=r"s3://data/a: cannot be read \(it ends early\)"):
        next(parts)


def test_an_object_that_shrinks_while_it_is_read_is_not_taken_for_whole(
    s3: Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "RANGE_BYTES", 10)
    uri = f"s3://{bucket}/a"
    s3.put(f"{bucket}/a", bytes(100))
    blocks = storage.blocks(uri, "")
    next(blocks)
    s3.put(f"{bucket}/a", bytes(65))
    with pytest.raises(MachineError, match=re.escape(uri)):
        list(blocks)


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_a_table_is_fetched_once_and_its_copy_is_gone_with_the_reading(
    format_: str, s3: Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "RANGE_BYTES", 1 << 14)
    table = pa.table({"indices": [[k, k + 1] for k in range(9_000)], "label": [0, 1, 1] * 3_000})
    for number in range(2):
        path = tmp_path / f"{number}.{format_}"
        if format_ == "parquet":
            pq.write_table(table.slice(number), path, row_group_size=1_000, compression="none")
        else:
            feather.write_feather(table.slice(number), path, compression="uncompressed")
        s3.put(f"{bucket}/t/{path.name}", path.read_bytes())
    requests = [-(-path.stat().st_size // (1 << 14)) for path in sorted(tmp_path.iterdir())]
    assert min(requests) >= 5
    cache = tmp_path / "_cache"
    with open_shards([f"s3://{bucket}/t"], cache_dir=str(cache)) as source:
        source.chunks()  # the columns are those of the first shard's footer
        s3.requests()
        first = chunks_of(source)
        assert source.bytes_read == sum(shard.size for shard in source.shards)
    fetched = [line for line in s3.requests() if line.startswith(f"GET /{bucket}/t/")]
    assert [fetched.count(f"GET /{bucket}/t/{k}.{format_}") for k in range(2)] == requests
    with open_shards([str(tmp_path)], cache_dir=None) as local:
        assert chunks_of(local) == first
    assert {path.suffix for path in cache.iterdir()} == {".cache", ".sealed"}


def test_no_room_for_the_copy_of_a_table_is_a_sentence_and_not_a_byte_is_fetched(
    s3: Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"indices": [[1], [2]], "label": [0, 1]}), tmp_path / "a.parquet")
    s3.put(f"{bucket}/a.parquet", (tmp_path / "a.parquet").read_bytes())
    usage = type(shutil.disk_usage("/"))
    with open_shards([f"s3://{bucket}/a.parquet"], cache_dir=None) as source:
        source.chunks()
        s3.requests()
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 0))
        with pytest.raises(MachineError, match=rf"s3://{bucket}/a\.parquet: no copy of it"):
            chunks_of(source)
    assert not [line for line in s3.requests() if line.startswith("GET")]


def test_an_object_that_changed_is_read_again_by_the_next_run_and_refused_within_one(
    store: Store, tmp_path: Path
) -> None:
    uri, cache = store.uri("a.svm"), str(tmp_path)
    store.put("a.svm", TEXT)
    with open_shards([uri], cache_dir=cache) as source:
        first = chunks_of(source)
    with open_shards([uri], cache_dir=cache) as source:
        store.put("a.svm", TEXT + b"1 9:9\n")
        with pytest.raises(DataError, match=r"a\.svm: changed while the run was going"):
            chunks_of(source)
    with open_shards([uri], cache_dir=cache) as source:
        assert chunks_of(source) != first
        assert source.rows == 3


class Timeless(Server):
    """A server whose clock stands still: all that is written is written within a second."""

    how = (
        "-c",
        "import datetime, moto.s3.models as models\n"
        "models.utcnow = lambda: datetime.datetime(2026, 1, 1)\n"
        "from moto.server import main\n"
        "main()",
    )


@pytest.fixture(scope="module")
def clock_that_stands() -> Iterator[Server]:
    there = Timeless()
    yield there
    there.stop()


@pytest.fixture
def timeless(clock_that_stands: Server, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty bucket of that server."""
    use(clock_that_stands, monkeypatch)
    clock_that_stands.put(name := f"bucket-{next(_buckets)}")
    return store_of(clock_that_stands, name)


def text_of(number: int, rows: int = 9000) -> bytes:
    """Two blocks and more, with as many bytes for every one-digit number."""
    return "".join(f"{1 - 2 * (k % 2)} {k + 1}:{number}\n" for k in range(rows)).encode()


@pytest.mark.parametrize(("cached", "on_bad_shard"), [(False, "skip"), (True, "error")])
def test_an_object_rewritten_within_the_second_and_of_the_same_size_is_not_mixed_with_the_old_one(
    cached: bool, on_bad_shard: Literal["error", "skip"], timeless: Store, tmp_path: Path
) -> None:
    cache = str(tmp_path) if cached else None
    timeless.put("a.svm", text_of(1))
    timeless.put("b.svm", text_of(2))
    [_, before] = find_shards([timeless.uri("")])
    with open_shards([timeless.uri("")], cache_dir=cache, on_bad_shard=on_bad_shard) as source:
        chunks = source.chunks()
        next(chunks)
        timeless.put("b.svm", text_of(3))
        with pytest.raises(DataError, match=r"b\.svm: changed while .* \(written anew\)"):
            list(chunks)
    [_, after] = find_shards([timeless.uri("")])
    assert before[:5] == after[:5]
    assert before.tag != after.tag
    with open_shards([timeless.uri("")], cache_dir=cache) as source:
        read = list(source.chunks())
        assert {value for chunk in read for value in chunk.rows.values.tolist()} == {1.0, 3.0}
        timeless.put("b.svm", text_of(4))
        with pytest.raises(DataError, match="changed while the run was going"):
            list(source.chunks())


def test_an_object_rewritten_amid_its_ranges_is_noticed_by_every_reader(
    timeless: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "RANGE_BYTES", 1000)
    timeless.put("a.svm", text_of(1))
    real = storage.blocks

    def rewritten(path: str, *rest: object) -> Iterator[bytes]:
        blocks = real(path, *rest)
        yield next(blocks)
        timeless.put("a.svm", text_of(2))
        yield from blocks

    monkeypatch.setattr(storage, "blocks", rewritten)
    with pytest.raises(DataError, match=r"a\.svm: changed while the run was going"):
        convert(timeless.uri(""), tmp_path / "out", to="parquet", settings=Settings(index_base=1))
    assert not (tmp_path / "out").exists()
    timeless.put("a.svm", text_of(1))
    with (
        open_shards([timeless.uri("")], cache_dir=None) as source,
        pytest.raises(DataError, match=r"a\.svm: changed while the run was going"),
    ):
        list(source.chunks())


def test_a_cache_of_an_object_is_not_used_for_one_written_within_the_same_second(
    timeless: Store, clock_that_stands: Server, tmp_path: Path
) -> None:
    found = []
    for number in (1, 2, 2):
        timeless.put("a.svm", text_of(number))
        clock_that_stands.requests()
        with open_shards([timeless.uri("a.svm")], cache_dir=str(tmp_path)) as source:
            [chunk, *_] = source.chunks()
            found.append(chunk.rows.values[0])
        gets = [line for line in clock_that_stands.requests() if line.startswith("GET /")]
    assert found == [1.0, 2.0, 2.0]
    assert not [line for line in gets if "a.svm" in line], (
        "the same bytes once more are known by their tag"
    )


# The commands ------------------------------------------------------------------------------------


def test_fit_predict_evaluate_certify_and_inspect_give_from_a_store_what_they_give_from_disk(
    s3: Server, bucket: str, tmp_path: Path
) -> None:
    generate(str(tmp_path / "train"), rows=1500, columns=500, seed=1, shards=3)
    generate(str(tmp_path / "new"), rows=200, columns=500, seed=1, shards=1, first_row=1500)
    store_of(s3, bucket).upload(tmp_path)
    found = {}
    for where, root in (("disk", "."), ("store", f"s3://{bucket}")):
        model = tmp_path / f"{where}.model"
        done = here(tmp_path, "fit", f"{root}/train", "--model", model)
        assert done.returncode == 0, done.stderr
        for words in (
            ("predict", model, f"{root}/new", "-o", tmp_path / f"{where}.txt"),
            ("evaluate", model, f"{root}/new", "--json"),
            ("certify", model, "--json"),
        ):
            done = here(tmp_path, *words)
            assert done.returncode == 0, done.stderr
            found[where, words[0]] = done.stdout
        found[where, "files"] = model.read_bytes().hex()
        found[where, "rows"] = (tmp_path / f"{where}.txt").read_text()
    for what in ("predict", "evaluate", "certify", "files", "rows"):
        assert found["disk", what] == found["store", what]
    assert len(found["store", "rows"].splitlines()) == 200
    manifest = json.loads((tmp_path / "store.model.run" / "manifest.json").read_text())
    assert [shard["path"] for shard in manifest["shards"]] == [
        f"s3://{bucket}/train/{path.name}" for path in sorted((tmp_path / "train").iterdir())
    ]
    done = here(tmp_path, "inspect", f"s3://{bucket}/train/*", "--json")
    assert json.loads(done.stdout)["rows"] == 1500
    s3.requests()
    again = ("fit", f"s3://{bucket}/train", "--model", tmp_path / "store.model", "--overwrite")
    done = here(tmp_path, *again)
    assert done.returncode == 0, done.stderr
    assert not [line for line in s3.requests() if line.startswith(f"GET /{bucket}/train/")]


def test_a_command_without_its_server_says_one_sentence_and_exits_5(
    own: Server, tmp_path: Path
) -> None:
    own.stop()
    done = here(tmp_path, "fit", "s3://data/train", "--model", "m")
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == (
        "s3://data/train: cannot be read (the server does not answer). Check the network and the "
        "endpoint (AWS_ENDPOINT_URL), and run again.\n"
    )
    assert list(tmp_path.iterdir()) == []


class Stalling(ThreadingHTTPServer):
    """A store that knows one object of any name and never answers requests of one method."""

    daemon_threads = True

    def __init__(self, method: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                stall.answer(self)

            def do_GET(self) -> None:
                stall.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        stall = self
        super().__init__(("127.0.0.1", 0), Handler)
        self.method, self.reached, self._released = method, threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever)
        self._thread.start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        if request.command == self.method:
            self.reached.set()
            self._released.wait()
            return
        request.send_response(200)
        request.send_header("Content-Length", "100000")
        request.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        request.end_headers()

    def stop(self) -> None:
        self._released.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("words", "method"),
    [
        ("fit s3://data/a.svm --model m", "HEAD"),
        pytest.param("fit s3://data/a.svm --model m", "GET", marks=pytest.mark.slow),
        pytest.param("fit s3://data/a.svm.gz --model m", "GET", marks=pytest.mark.slow),
        ("fit s3://data/a.parquet --model m", "GET"),
        pytest.param(
            "convert s3://data/a.svm converted --format parquet", "GET", marks=pytest.mark.slow
        ),
    ],
)
def test_a_command_whose_store_never_answers_is_ended_by_a_signal(
    words: str, method: str, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Stalling(method)
    use(server, monkeypatch)
    try:
        process = Process(COMMAND, *words.split(), cwd=tmp_path)
        assert server.reached.wait(100)
        process.send_signal(number)
        ended = process.end(timeout=100)  # the server waits for longer
    finally:
        process.kill()
        server.stop()
    assert ended.returncode == 128 + number
    assert ended.stderr == f"stopped by {number.name}; nothing half-written is left.\n"


# Google's store -----------------------------------------------------------------------------------


@needs_emulator
def test_what_is_not_in_google_cloud_storage_is_a_sentence(emulator: Emulator) -> None:
    with pytest.raises(MachineError, match=r"no such bucket\. Check its name and the endpoint"):
        find_shards([emulator.uri("a.svm").replace("@data", "@nowhere")])
    with pytest.raises(DataError, match="no such file or directory"):
        find_shards([emulator.uri("no/a.svm")])


@needs_emulator
@pytest.mark.slow
def test_a_server_of_google_cloud_storage_that_is_gone_is_a_sentence_with_the_uri() -> None:
    there = Emulator()
    there.put("a.svm", TEXT)
    [shard] = find_shards([there.uri("a.svm")])
    there.stop()
    with pytest.raises(MachineError) as caught:
        list(storage.blocks(shard.path, ""))
    assert str(caught.value) == (
        f"{shard.path}: cannot be read (the server does not answer). "
        "Check the network and the endpoint, and run again."
    )


@needs_emulator
@pytest.mark.parametrize("name", ["a.svm", pytest.param("a.svm.gz", marks=pytest.mark.slow)])
def test_a_command_whose_google_cloud_storage_never_answers_is_ended_by_a_signal(
    name: str, tmp_path: Path
) -> None:
    server = Emulator("stall")
    try:
        server.put(name, TEXT)
        process = Process(COMMAND, "fit", server.uri(name), "--model", "m", cwd=tmp_path)
        try:
            server.wait_until_reached()
            process.send_signal(signal.SIGTERM)
            ended = process.end(timeout=100)  # the server waits for longer
        finally:
            process.kill()
    finally:
        server.stop()
    assert ended.returncode == 128 + signal.SIGTERM
    assert ended.stderr == "stopped by SIGTERM; nothing half-written is left.\n"


# What is refused ---------------------------------------------------------------------------------


def test_a_bucket_that_is_not_there_is_a_sentence_with_the_uri(s3: Server) -> None:
    for uri in ("s3://no-such-bucket", "s3://no-such-bucket/t/a.svm", "s3://no-such-bucket/*.svm"):
        with pytest.raises(MachineError, match=re.escape(f"{uri}: there is no such bucket")):
            find_shards([uri])


def test_nothing_below_a_prefix_or_for_a_pattern_is_a_sentence(s3: Server, bucket: str) -> None:
    s3.put(f"{bucket}/t/_x", TEXT)
    for uri in (f"s3://{bucket}", f"s3://{bucket}/t", f"s3://{bucket}/t/*.svm"):
        with pytest.raises(DataError, match=rf"^{re.escape(uri)}: no shards there"):
            find_shards([uri])


def test_wrong_credentials_are_a_sentence_with_the_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    strict = Server(INITIAL_NO_AUTH_ACTION_COUNT="2")
    try:
        use(strict, monkeypatch)
        strict.put("data")
        strict.put("data/a.svm", TEXT)
        with pytest.raises(MachineError, match=r"s3://data/a\.svm: cannot be read \(access is den"):
            find_shards(["s3://data/a.svm"])
    finally:
        strict.stop()


@pytest.mark.parametrize(
    ("uri", "error", "words"),
    [
        ("s3://", DataError, "s3://: no bucket"),
        ("s3:///a.svm", DataError, "s3:///a.svm: no bucket"),
        ("s3://data/a?nonsense=1", DataError, "s3://data/a?nonsense=1: Unexpected query param"),
        ("zz://data/a.svm", DataError, "zz://data/a.svm: Protocol not known: zz. Wanted is a URI"),
        ("az://data/a.svm", MachineError, "az://data/a.svm: Install adlfs to access Azure"),
    ],
)
def test_a_uri_that_nothing_opens_is_a_sentence(uri: str, error: type, words: str) -> None:
    with pytest.raises(error) as caught:
        find_shards([uri])
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    ["s3://me:hush@data/a.svm", "abfs://c@account/a.svm?client_secret=hush",
     "abfs://c@account/a.svm?credential_kind=x&sas_token=hush"],
)  # fmt: skip
def test_a_secret_in_a_uri_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(DataError, match="a secret in the URI") as caught:
        find_shards([uri])
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["hdfs", "viewfs"])
def test_a_uri_of_hadoop_without_hadoop_says_what_to_install(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JAVA_HOME", "HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    done = command(tmp_path, "fit", f"{scheme}://localhost/a.svm", "--model", "m")
    assert done.returncode == 5
    assert done.stderr == (
        f"{scheme}://localhost/a.svm: cannot be read (Java or Hadoop's native client is not "
        "there). Install both and set JAVA_HOME, HADOOP_HOME and CLASSPATH (hadoop classpath "
        "--glob), or copy the shards to a local disk.\n"
    )


@pytest.mark.parametrize(
    ("options", "seconds"),
    [("", storage.GOOGLE_PATIENCE), ("?scheme=http", storage.GOOGLE_PATIENCE),
     ("?retry_limit_seconds=7&scheme=http", 7)],
)  # fmt: skip
def test_googles_store_is_given_up_after_half_a_minute_unless_the_uri_says_otherwise(
    options: str, seconds: int
) -> None:
    there = storage.place(f"gs://anonymous@bucket/key{options}")
    _, (made_of,) = there.filesystem.__reduce__()
    assert made_of["retry_time_limit"] == timedelta(seconds=seconds)
    assert there.options == options, "what we add stands in no name"


def test_the_page_that_a_library_writes_becomes_its_first_line() -> None:
    with pytest.raises(MachineError) as caught, storage.store_errors("abfs://h/a"):
        raise OSError("Unable to load libazure\ndlopen(/usr/lib/a.so) failed\n" + 50 * "no\n")
    assert str(caught.value) == (
        "abfs://h/a: cannot be read (Unable to load libazure). Check the URI, the network and the "
        "credentials."
    )


@pytest.mark.parametrize("on_bad_shard", ["error", pytest.param("skip", marks=pytest.mark.slow)])
def test_a_server_that_goes_away_in_mid_file_does_not_make_the_file_damaged(
    own: Server, tmp_path: Path, on_bad_shard: Literal["error", "skip"]
) -> None:
    rows = [[k, k + 1] for k in range(40_000)]
    table = pa.table({"indices": rows, "label": [k % 2 for k in range(40_000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2_000, compression="none")
    own.put("data/a.parquet", (tmp_path / "a.parquet").read_bytes())
    with open_shards(["s3://data/a.parquet"], cache_dir=None, on_bad_shard=on_bad_shard) as source:
        chunks = source.chunks()
        next(chunks)
        own.stop()
        with pytest.raises(MachineError, match=r"s3://data/a\.parquet: cannot be read \(the serv"):
            list(chunks)


# A file for the Parquet library ------------------------------------------------------------------


def test_a_file_that_is_not_there_fails_as_it_is_opened(s3: Server, bucket: str) -> None:
    with pytest.raises(FileNotFoundError):
        storage.open_arrow("/no/such/file")
    with pytest.raises(MachineError, match=rf"s3://{bucket}/no: cannot be read \(it is not there"):
        storage.open_arrow(f"s3://{bucket}/no")
    with pytest.raises(MachineError, match=rf"s3://{bucket}/no: cannot be read \(it is not there"):
        storage.stamp(f"s3://{bucket}/no")
