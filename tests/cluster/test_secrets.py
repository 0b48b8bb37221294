"""Who can talk to Dask runs code in its processes: who can talk to our own workers, and how a
scheduler that expects certificates is talked to."""

import asyncio
import os
import signal
import ssl
import time
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import dask
import pytest
from distributed import Security, comm

import streamtron
from streamtron.cluster.client import Workers
from streamtron.cluster.connect import connect
from streamtron.core.config import Machine
from streamtron.core.errors import MachineError, SettingsError
from tests.helpers.dask_processes import dask_scheduler, dask_worker
from tests.helpers.processes import COMMAND, Process, command

TLS = "distributed.comm.tls"


def _is_there(item: str) -> Iterator[str]:
    yield item


NO_CERTIFICATE = dict.fromkeys((f"{TLS}.ca-file", f"{TLS}.client.cert", f"{TLS}.client.key"))


def _addresses(workers: Workers) -> list[str]:
    """Where scheduler, workers and nannies listen."""
    info = workers.client.scheduler_info()
    nannies = [worker["nanny"] for worker in info["workers"].values()]
    return [info["address"], *info["workers"], *nannies]


def _context(stranger: str) -> ssl.SSLContext | None:
    """What somebody has who trusts every server."""
    if stranger == "without TLS":
        return None
    context = Security.temporary().get_connection_args("client")["ssl_context"]
    if stranger == "without a certificate":
        context = ssl.create_default_context()
        context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize("stranger", ["without a certificate", "with another", "without TLS"])
def test_a_client_without_the_certificate_reaches_none_of_our_processes(workers, stranger):
    addresses = _addresses(workers)
    assert len(addresses) == 5
    assert {address.partition("://")[0] for address in addresses} == {"tls"}
    own = workers.client.security.get_connection_args("client")["ssl_context"]
    theirs = _context(stranger)
    for address in addresses:
        asyncio.run(_reach(address, own, timeout=60.0))
        if stranger == "without TLS":
            address = address.replace("tls:", "tcp:")
        with pytest.raises(OSError, match=r"Timed out|SSL|closed"):
            asyncio.run(_reach(address, theirs, timeout=0.5))
    assert list(workers(_is_there, ["a"])) == ["a"]


async def _reach(address: str, context: ssl.SSLContext | None, timeout: float) -> None:
    """Connect, and ask what anybody may ask who can connect."""
    found = await comm.connect(address, timeout=timeout, ssl_context=context)
    try:
        await found.write({"op": "identity", "reply": True})
        assert "id" in await found.read()
    finally:
        await found.close()


def test_no_page_tells_what_our_workers_do(workers):
    info = workers.client.scheduler_info()
    ports = [info["services"]["dashboard"]]
    ports += [worker["services"]["dashboard"] for worker in info["workers"].values()]
    for port in ports:
        for page in ("info/main/workers.html", "json/identity.json", "metrics", "status"):
            with pytest.raises(HTTPError, match="404"):
                urlopen(f"http://127.0.0.1:{port}/{page}", timeout=30)


@pytest.mark.parametrize(
    ("asked", "kind", "words"),
    [
        ({}, SettingsError, "give one of them"),
        ({"workers": 0}, SettingsError, "workers is 0: expected 1 or more"),
        ({"workers": 2.0}, SettingsError, r"workers is 2\.0: expected a whole number"),
        (
            {"workers": 10**11, "machine": Machine(memory=10**9)},
            MachineError,
            "100000000000 workers would have 0 B of memory each: .* Ask for 14 at most",
        ),
        ({"scheduler": "no-such-file.json"}, MachineError, "cannot be used .*No such file"),
        ({"scheduler": __file__}, SettingsError, "cannot be used .*--scheduler-file"),
        ({"scheduler": "gopher://127.0.0.1:1"}, SettingsError, "unknown address scheme"),
        ({"scheduler": "tls://127.0.0.1:1"}, SettingsError, "certificates in Dask's config"),
        ({"scheduler": "inproc://x"}, SettingsError, "cannot be used"),
        ({"scheduler": "tcp://127.0.0.1:1"}, MachineError, "Timed out .* after 0.5 s"),
    ],
)
def test_what_cannot_be_a_cluster_is_a_sentence_at_once(asked, kind, words):
    begin = time.monotonic()
    with dask.config.set(NO_CERTIFICATE), pytest.raises(kind, match=words):
        connect(**asked, timeout=0.5).__enter__()
    assert time.monotonic() - begin < 30.0


def test_an_address_that_cannot_be_used_leaves_one_sentence_of_a_command(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    words = ["fit", "a.svm", "--model", "m", "--scheduler", "inproc://x"]
    done = Process(COMMAND, *words, cwd=tmp_path).end(timeout=50.0)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_a_scheduler_with_certificates_takes_commands_that_have_them_set(tmp_path, monkeypatch):
    made = Security.temporary()
    for name, content in (("cert", made.tls_ca_file), ("key", made.tls_client_key)):
        (tmp_path / name).write_text(content)
    start = "DASK_DISTRIBUTED__COMM__"
    monkeypatch.setenv(f"{start}TLS__CA_FILE", str(tmp_path / "cert"))
    for role in ("CLIENT", "SCHEDULER", "WORKER"):
        monkeypatch.setenv(f"{start}TLS__{role}__CERT", str(tmp_path / "cert"))
        monkeypatch.setenv(f"{start}TLS__{role}__KEY", str(tmp_path / "key"))
    monkeypatch.setenv(f"{start}REQUIRE_ENCRYPTION", "True")
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    streamtron.fit(tmp_path / "a.svm").save(tmp_path / "m")
    words = ["predict", "m", "a.svm", "-o", "labels"]
    with dask_scheduler() as address, dask_worker(address):
        assert address.startswith("tls://")
        done = command(tmp_path, *words, "--scheduler", address)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "labels").read_text().splitlines()) == 2


@pytest.mark.slow  # Dask looks for its scheduler for half a minute when it is closed
def test_whoever_asks_a_scheduler_that_is_gone_is_told_what_to_do(scheduler):
    soon = {"distributed.comm.timeouts.connect": "200 ms"}
    with dask.config.set(soon), dask_worker(scheduler), connect(scheduler=scheduler) as workers:
        os.kill(workers.client.run_on_scheduler(os.getpid), signal.SIGKILL)
        for ask in (lambda: workers.threads, lambda: workers.wait_for(2)):
            with pytest.raises(MachineError, match=r"the scheduler is gone .*Start it, and run"):
                ask()
