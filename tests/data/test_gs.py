"""Google Cloud Storage: shards behind a real server of its protocol on loopback."""

from __future__ import annotations

import gzip
import importlib.util
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamtron.core.errors import DataError, MachineError
from streamtron.data import find_shards, open_shards, storage
from streamtron.data.writers.corpus import generate
from tests.helpers.processes import COMMAND, Process, command
from tests.helpers.shard_rows import TEXT, chunks_of

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gcp_storage_emulator") is None,
    reason="no server to ask: pip install gcp-storage-emulator",
)

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


@pytest.fixture(scope="module")
def gs() -> Iterator[Emulator]:
    there = Emulator()
    yield there
    there.stop()


_prefixes = count()


@pytest.fixture
def prefix() -> str:
    """Keys that no other test has."""
    return f"prefix-{next(_prefixes)}"


def upload(gs: Emulator, prefix: str, directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            gs.put(f"{prefix}/{path.relative_to(directory)}", path.read_bytes())


def test_a_directory_in_google_cloud_storage_stands_for_the_names_that_it_would_on_disk(
    gs: Emulator, prefix: str, tmp_path: Path
) -> None:
    for key in ("day-2/b.svm", "day-1/a.svm", "day-1/_SUCCESS", "é.svm", "a b%41.svm", "_x/a.svm"):
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(TEXT)
    upload(gs, prefix, tmp_path)
    for root in ("", "day-*", "**/*.svm", "day-1/a.svm"):
        stored = find_shards([gs.uri(f"{prefix}/{root}")])
        on_disk = find_shards([f"{tmp_path}/{root}"])
        assert [shard.name for shard in stored] == [shard.name for shard in on_disk]
        for shard in stored:
            assert b"".join(storage.blocks(shard.path, "")) == TEXT


def test_text_and_parquet_in_google_cloud_storage_give_the_chunks_of_local_files(
    gs: Emulator, prefix: str, tmp_path: Path
) -> None:
    generate(str(tmp_path / "text"), rows=600, columns=300, seed=3, shards=2)
    plain = min((tmp_path / "text").iterdir())
    plain.with_name(f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    (tmp_path / "parquet").mkdir()
    rows = [list(range(k % 9)) for k in range(500)]
    table = pa.table({"indices": rows, "label": [k % 2 for k in range(500)]})
    pq.write_table(table, tmp_path / "parquet" / "0.parquet", row_group_size=90)
    upload(gs, prefix, tmp_path)
    for root in ("text", "parquet"):
        cache = str(tmp_path / "cache")
        with (
            open_shards([str(tmp_path / root)], cache_dir=None) as local,
            open_shards([gs.uri(f"{prefix}/{root}")], cache_dir=cache) as stored,
        ):
            wanted = chunks_of(local)
            assert chunks_of(stored) == wanted
            assert chunks_of(stored) == wanted


def test_a_large_object_arrives_in_order(gs: Emulator, prefix: str) -> None:
    data = bytes(range(256)) * 40
    gs.put(f"{prefix}/a.svm", data)
    assert b"".join(storage.blocks(gs.uri(f"{prefix}/a.svm"), "", 333)) == data


def test_an_object_that_changed_is_read_again_by_the_next_run(
    gs: Emulator, prefix: str, tmp_path: Path
) -> None:
    uri = gs.uri(f"{prefix}/a.svm")
    found = []
    for data in (TEXT, TEXT + b"1 4:1\n"):
        gs.put(f"{prefix}/a.svm", data)
        with open_shards([uri], cache_dir=str(tmp_path)) as source:
            found.append(sum(len(chunk) for chunk in source.chunks()))
    assert found == [2, 3]


def test_fit_and_evaluate_give_from_google_cloud_storage_what_they_give_from_disk(
    gs: Emulator, prefix: str, tmp_path: Path
) -> None:
    generate(str(tmp_path / "train"), rows=300, columns=100, seed=1, shards=2)
    upload(gs, f"{prefix}/train", tmp_path / "train")
    printed = []
    for where, shards in (("disk", "train"), ("store", gs.uri(f"{prefix}/train"))):
        for words in (("fit", shards, "--model", where), ("evaluate", where, shards)):
            done = command(tmp_path, *words)
            assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert (tmp_path / "store").read_bytes() == (tmp_path / "disk").read_bytes()
    assert printed[0] == printed[1].replace(shards, "train")


def test_what_is_not_in_google_cloud_storage_is_a_sentence(gs: Emulator, prefix: str) -> None:
    with pytest.raises(MachineError, match=r"no such bucket\. Check its name and the endpoint"):
        find_shards([gs.uri("a.svm").replace("@data", "@nowhere")])
    with pytest.raises(DataError, match="no such file or directory"):
        find_shards([gs.uri(f"{prefix}/a.svm")])


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
