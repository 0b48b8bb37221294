"""Shards in object stores: a server of S3's protocol on loopback, and whatever fsspec opens."""

import gzip
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
from collections import Counter
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch
from urllib.parse import quote

import fsspec
import pyarrow as pa
import pytest

from streamtron.core.errors import DataError, MachineError
from streamtron.data import (
    Dataset,
    Preparing,
    ReaderConfig,
    ShardRows,
    find_shards,
    fingerprints,
    resolve_reading,
    storage,
)
from streamtron.data.writers.corpus import generate
from tests.helpers.layouts import write_table
from tests.helpers.models import refused
from tests.helpers.processes import COMMAND, Process, here, succeeded
from tests.helpers.runs import manifest_of
from tests.helpers.shard_rows import PLAIN, TEXT, bits, chunks_in, chunks_of, data_of

SERVE_S3 = """
import datetime, itertools, os, threading
import moto.s3.models as models
from moto.server import DomainDispatcherApplication as Dispatcher, main

seconds = itertools.count()
models.utcnow = lambda: datetime.datetime.fromtimestamp(next(seconds))
answer = Dispatcher.__call__

def answer_or_stall(self, environ, start):
    if environ["REQUEST_METHOD"] == os.environ.get("SILENT"):
        print("reached", flush=True)
        threading.Event().wait()
    return answer(self, environ, start)

Dispatcher.__call__ = answer_or_stall
main()
"""


class Server:
    """moto's S3 server in a process of its own, on a port of its own choosing. Its clock goes
    on by a second whenever it is asked. ``SILENT`` is a method of requests that
    it never answers."""

    def __init__(self, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE_S3, "-H", "127.0.0.1", "-p", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.url = self.line_with(r"http://127\.0\.0\.1:\d+")[0]
        self._marks = count()

    def _listen(self) -> None:
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)

    def line_with(self, pattern: str) -> re.Match[str]:
        """Wait for something in what it prints."""
        while not (match := re.search(pattern, self._lines.get(timeout=120))):
            pass
        return match

    def put(self, path: str, data: bytes = b"", method: str = "PUT") -> None:
        """Make a bucket, or an object in one."""
        headers = {"Content-Type": "application/octet-stream", "Authorization": "AWS key:hush"}
        request = urllib.request.Request(f"{self.url}/{path}", data, headers, method=method)
        urllib.request.urlopen(request, timeout=60).close()

    def uri(self, path: str) -> str:
        """The URI of ``bucket/key``, or of a pattern of them."""
        return f"s3://{path}"

    def upload(self, path: str, data: bytes) -> None:
        """Make an object, ``bucket/key``."""
        self.put(quote(path), data)

    def requests(self) -> list[str]:
        """``METHOD /path`` of all requests since the last call."""
        mark, requests = f"GET /mark-{next(self._marks)}", list[str]()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(self.url + mark.removeprefix("GET "), timeout=60)
        while (line := self.line_with(r"((GET|HEAD|PUT|POST) /\S*) HTTP")[1]) != mark:
            requests.append(line)
        return requests

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The server is gone, and its port answers no more."""
        self._process.kill()
        self._process.wait()
        self._listener.join()


class Memory:
    """A file system that fsspec opens."""

    def uri(self, path: str) -> str:
        return f"memory://{path}"

    def upload(self, path: str, data: bytes) -> None:
        fsspec.filesystem("memory").pipe(f"/{path}", data)


@dataclass
class Store:
    """Keys of a server, below a root that no other test has."""

    server: Any
    root: str

    def uri(self, key: str) -> str:
        return self.server.uri(f"{self.root}/{key}")

    def put(self, key: str, data: bytes) -> None:
        self.server.upload(f"{self.root}/{key}", data)

    def upload(self, directory: Path) -> None:
        for path in directory.rglob("*"):
            if path.is_file():
                self.put(str(path.relative_to(directory)), path.read_bytes())


def bucket_of(server: Server, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty bucket, and in the environment what a user of this server has there."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    storage._connected.cache_clear()
    server.put(name := f"bucket-{next(_numbers)}")
    return Store(server, name)


_numbers = count()


@pytest.fixture(scope="module")
def server():
    with Server() as there:
        yield there


@pytest.fixture
def s3(server, monkeypatch):
    return bucket_of(server, monkeypatch)


@pytest.fixture(params=["s3", "memory"])
def store(request):
    if request.param == "s3":
        return request.getfixturevalue("s3")
    return Store(Memory(), f"data/prefix-{next(_numbers)}")


KEYS = (
    "day-2/b.svm|day-1/a.svm|day-1/_SUCCESS|day-1/deep/z.svm|night/c.svm|B.svm|10.svm|9.svm|é.svm"
    "|_x/a.svm|.hidden.svm|a b%41+c.svm|day-1.svm|#b.svm|%.svm|&=.svm|?b.svm|x[1].svm|ü .svm"
)
ROOTS = (
    "|day-1|day-1/|day-1/a.svm|_x|*|day-*|**/*.svm|day-*/*.svm|*/deep|[0-9]*.svm|_x/*|**"
    "|day-1/**/*.svm|d*/d*/z.svm"
)


def test_a_root_stands_for_the_same_names_in_the_same_order_in_a_store_and_on_disk(store, tmp_path):
    for number, key in enumerate(KEYS.split("|")):
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_text(f"1 {number + 1}:1\n")
    store.upload(tmp_path)
    for root in ROOTS.split("|"):
        on_disk, stored = find_shards([f"{tmp_path}/{root}"]), find_shards([store.uri(root)])
        facts = [[(shard.name, shard.size) for shard in shards] for shards in (on_disk, stored)]
        assert facts[0] == facts[1], root
        for shard, local in zip(stored, on_disk, strict=True):
            assert b"".join(storage.blocks(shard.path, "")) == Path(local.path).read_bytes()
            [again] = find_shards([shard.path])
            assert again._replace(name=shard.name) == shard


def test_stores_and_disks_go_together_and_a_key_given_twice_is_refused(s3, tmp_path):
    (tmp_path / "a.svm").write_bytes(b"1 7:1\n")
    s3.put("a.svm", TEXT)
    uri, local = s3.uri("a.svm"), str(tmp_path / "a.svm")
    assert [shard.name for shard in find_shards([str(tmp_path), s3.uri("")])] == [local, uri]
    for root, again in ((uri, s3.uri("*.svm")), ((tmp_path / "a.svm").as_uri(), local)):
        with pytest.raises(DataError, match=r"a\.svm: the same file as .*a\.svm, given twice"):
            find_shards([root, again])


def test_a_file_uri_is_the_local_file(tmp_path):
    (tmp_path / "a b.svm").write_bytes(TEXT)
    for uri in (tmp_path.as_uri(), (tmp_path / "a b.svm").as_uri()):
        assert find_shards([uri]) == find_shards([str(tmp_path)])
    with pytest.raises(DataError, match="file://elsewhere/a: not a file of this machine"):
        find_shards(["file://elsewhere/a"])


def test_text_plain_and_packed_and_parquet_give_the_chunks_of_local_files(store, tmp_path):
    generate(str(tmp_path / "text"), rows=600, columns=300, seed=3, shards=2)
    plain = min((tmp_path / "text").iterdir())
    plain.with_name(f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    rows = [list(range(k % 9)) for k in range(500)]
    table = {"indices": rows, "values": [[0.5 + k for k in row] for row in rows]}
    for number in range(2):
        more = {"label": [k % 2 for k in range(500)], "n": [number] * 500}
        write_table(tmp_path / "parquet" / f"{number}.parquet", table | more, 90)
    store.upload(tmp_path)
    for root in ("text", "parquet"):
        places = tmp_path / root, store.uri(root)
        local, stored = ([*map(bits, chunks_in(place))] for place in places)
        assert stored == local
        prints = [fingerprints(find_shards([str(place)]), PLAIN) for place in places]
        assert prints[0] == prints[1]


def test_an_object_arrives_in_order_however_many_requests_it_takes(store, monkeypatch):
    monkeypatch.setattr(storage, "RANGE_BYTES", 10)
    for size in (1, 9, 10, 11, 39, 40, 41, 1000):
        data = bytes(k % 251 for k in range(size))
        store.put(f"{size}", data)
        parts = list(storage.blocks(store.uri(f"{size}"), "", 7))
        assert b"".join(parts) == data
        assert all(0 < len(part) <= 7 for part in parts)


def test_a_table_is_fetched_once_its_copy_is_gone_and_without_room_for_one_not_a_byte_is_fetched(
    s3, tmp_path, monkeypatch
):
    monkeypatch.setattr(storage, "RANGE_BYTES", 1 << 13)
    table = pa.table({"indices": [[k, k + 1] for k in range(9_000)], "label": [0, 1, 1] * 3_000})
    requests = {}
    for number in range(2):
        path = write_table(tmp_path / f"{number}.parquet", table.slice(number), 1_000)
        s3.put(path.name, path.read_bytes())
        requests[f"GET /{s3.root}/{path.name}"] = -(-path.stat().st_size // (1 << 13))
    assert min(requests.values()) >= 5
    cache = tmp_path / "_cache"
    files = find_shards([s3.uri("")])
    resolved = resolve_reading(files[0], ReaderConfig())  # by the footer of the first shard
    s3.server.requests()
    with patch("streamtron.data.dataset.resolve_reading", lambda *_: resolved):
        data = Dataset.prepare(files, resolved, Preparing(str(cache)))
    fetched = Counter(s3.server.requests())
    assert {line: fetched[line] for line in requests} == requests
    with data, data_of(tmp_path, tmp_path / "_local") as local:
        assert chunks_of(local) == chunks_of(data)
        assert data.bytes_read == sum(shard.size for shard in data.shards) + data.bytes
    assert {path.suffix for path in cache.iterdir()} == {".cache"}
    usage = type(shutil.disk_usage("/"))
    with ShardRows(files[0], resolved) as shard:
        s3.server.requests()
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 0))
        with pytest.raises(MachineError, match=rf"{s3.uri('0')}\.parquet: no copy of it"):
            list(shard.chunks())
    assert not gets(s3)


def gets(s3: Store) -> set[str]:
    """The objects whose bytes were asked for since the last call."""
    asked = [line.split("/") for line in s3.server.requests() if line.startswith("GET /")]
    return {key for _, bucket, *keys in asked if bucket == s3.root for key in keys}


def text_of(number: int, rows: int = 9000) -> bytes:
    """Two blocks and more, with as many bytes for every one-digit number."""
    return "".join(f"{1 - 2 * (k % 2)} {k + 1}:{number}\n" for k in range(rows)).encode()


def test_an_object_that_is_rewritten_is_not_mixed(s3, tmp_path):
    root = [s3.uri("")]
    s3.put("a.svm", text_of(1))
    s3.put("b.svm", text_of(2))
    [_, before] = find_shards(root)
    with ShardRows(before, PLAIN) as shard:
        s3.put("b.svm", text_of(3))
        with pytest.raises(DataError, match=r"b\.svm: changed while .* \(written anew\)"):
            list(shard.chunks())
    [_, after] = find_shards(root)
    assert before[:4] == after[:4]
    assert before.mtime_ns < after.mtime_ns
    for there in (3, 4):  # a.svm is prepared, and b.svm as it was before
        s3.server.requests()
        how = Preparing(str(tmp_path))
        with Dataset.prepare(find_shards(root), ReaderConfig(), how) as data:
            values = {value for c in data.chunks() for value in c.rows.values.tolist()}
            assert values == {1.0, there}
            assert gets(s3) == ({"a.svm", "b.svm"} if there == 3 else {"b.svm"})
            s3.put("b.svm", text_of(there + 1))
            with pytest.raises(DataError, match="changed while the run was going"):
                list(data.chunks())


def test_commands_give_from_a_store_what_they_give_from_disk(s3, tmp_path):
    generate(str(tmp_path / "train"), rows=1500, columns=500, seed=1, shards=3)
    generate(str(tmp_path / "new"), rows=200, columns=500, seed=1, shards=1, first_row=1500)
    s3.upload(tmp_path)

    def told(root: str) -> list[object]:
        commands = (
            f"fit {root}/train --model m --overwrite",
            f"predict m {root}/new -o rows.txt",
            f"evaluate m {root}/new --json",
            "certify m --json",
        )
        said = [succeeded(here(tmp_path, *words.split())).stdout for words in commands]
        return [*said[1:], *((tmp_path / name).read_bytes() for name in ("m", "rows.txt"))]

    assert told(".") == told(f"s3://{s3.root}")
    assert len((tmp_path / "rows.txt").read_text().splitlines()) == 200
    assert [shard.path for shard in manifest_of(tmp_path / "m.run").shards] == [
        s3.uri(f"train/{path.name}") for path in sorted((tmp_path / "train").iterdir())
    ]
    facts = succeeded(here(tmp_path, "inspect", s3.uri("train/*"), "--json")).stdout
    assert json.loads(facts)["rows"] == 1500
    s3.server.requests()
    succeeded(here(tmp_path, "fit", s3.uri("train"), "--model", "m", "--overwrite"))
    assert not [key for key in gets(s3) if key.endswith(".svm")]


def only_slow(*case: object) -> object:
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize("number", [signal.SIGINT, only_slow(signal.SIGTERM)])
@pytest.mark.parametrize(
    ("words", "name", "method"),
    [
        ("fit {} --model m", "a.svm", "HEAD"),
        ("fit {} --model m", "a.parquet", "GET"),
        only_slow("fit {} --model m", "a.svm", "GET"),
        only_slow("fit {} --model m", "a.svm.gz", "GET"),
        only_slow("convert {} -o out", "a.svm", "GET"),
    ],
)
def test_a_command_of_a_silent_store_ends_by_signals(
    words, name, method, number, tmp_path, monkeypatch
):
    with Server(SILENT=method) as server:
        root = bucket_of(server, monkeypatch).root
        server.upload(f"{root}/{name}", TEXT)
        words = words.format(server.uri(f"{root}/{name}")).split()
        process = Process(COMMAND, *words, cwd=tmp_path)
        try:
            server.line_with("reached")
            process.send_signal(number)
            ended = process.end(timeout=100)
        finally:
            process.kill()
    assert ended.returncode == 128 + number
    assert ended.stderr == f"stopped by {number.name}; nothing half-written is left.\n"


def test_what_is_not_in_a_store_is_a_sentence_with_the_uri(s3):
    store = s3
    store.put("t/_x", TEXT)
    for key in ("", "t", "t/*.svm"):
        with pytest.raises(DataError, match=rf"^{re.escape(store.uri(key))}: no shards there"):
            find_shards([store.uri(key)])
    for uri in (store.uri("no/a.svm"), store.server.uri("no-such-bucket/t")):
        with pytest.raises(DataError, match=rf"^{re.escape(uri)}: no such file or directory"):
            find_shards([uri])
        with pytest.raises(MachineError, match=rf"^{re.escape(uri)}: cannot be read"):
            storage.stamp(uri)
    with pytest.raises(MachineError, match="cannot be read"):
        storage.open_arrow(store.uri("no"))


def test_wrong_credentials_are_a_sentence_with_the_uri(monkeypatch):
    with Server(INITIAL_NO_AUTH_ACTION_COUNT="2") as strict:
        store = bucket_of(strict, monkeypatch)
        store.put("a.svm", TEXT)
        message = refused(lambda: find_shards([store.uri("a.svm")]), MachineError)
    assert message.startswith(f"{store.uri('a.svm')}: cannot be read (access is denied")


@pytest.mark.parametrize(
    ("uri", "error", "words"),
    [
        ("s3://", DataError, "s3://: no bucket"),
        ("gs://data/a.svm", MachineError, "gs://data/a.svm: cannot be read (Please install gcsfs"),
        ("s3://data/a?nonsense=1", DataError, "s3://data/a?nonsense=1: Unexpected query param"),
        ("zz://data/a.svm", DataError, "zz://data/a.svm: Protocol not known: zz. Expected a URI"),
        ("az://data/a.svm", MachineError, "az://data/a.svm: cannot be read (Install adlfs"),
        ("s3://me:hush@data/a.svm", DataError, "s3://data: a secret in the URI. Give it in"),
        ("abfs://c@acc/a?sas_token=hush", DataError, "abfs://acc: a secret in the URI (sas_token)"),
    ],
)
def test_a_uri_that_nothing_opens_or_with_a_secret_is_a_sentence(uri, error, words):
    message = refused(lambda: find_shards([uri]), error)
    assert message.startswith(words)
    assert "\n" not in message
    assert "hush" not in message


def test_the_page_that_a_library_writes_becomes_its_first_line():
    sentence = (
        r"^abfs://h/a: cannot be read \(Unable to load libazure\)\. Check the URI, the n[^\n]*$"
    )
    with pytest.raises(MachineError, match=sentence), storage.store_errors("abfs://h/a"):
        raise OSError("Unable to load libazure\ndlopen(/usr/lib/a.so) failed\n" + 50 * "no\n")


def test_a_server_that_goes_damages_no_file(tmp_path, monkeypatch):
    rows = [[k, k + 1] for k in range(40_000)]
    table = {"indices": rows, "label": [k % 2 for k in range(40_000)]}
    path = write_table(tmp_path / "a.parquet", table, 2_000)
    with Server() as there:
        store = bucket_of(there, monkeypatch)
        store.put("a.parquet", path.read_bytes())
        uri = store.uri("a.parquet")
        [file] = find_shards([uri])
        source = ShardRows(file, resolve_reading(file, PLAIN))
        chunks = source.chunks()
        next(chunks)
    with source:
        assert refused(lambda: list(chunks), MachineError) == (
            f"{uri}: cannot be read (the server does not answer). "
            "Check the network and the endpoint, and run again."
        )
