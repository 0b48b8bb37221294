"""Fixtures that several test modules use."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from streamtron.cluster.connect import connect
from tests.helpers.dask_processes import dask_scheduler, trusted
from tests.helpers.processes import here, workers_forked

settings.register_profile("untimed", deadline=None)  # seconds say nothing on a busy machine
settings.load_profile("untimed")

COMPILE = """
from streamtron.core import kernels
for kernel in [getattr(kernels, name) for name in dir(kernels)]:
    if isinstance(kernel, kernels.Kernel):
        kernel.compile()
"""


def pytest_configure(config: pytest.Config) -> None:
    """Compile the kernels while the tests are collected; else each process would do so."""
    if not hasattr(config, "workerinput"):
        config.stash[COMPILING] = subprocess.Popen([sys.executable, "-c", COMPILE])


COMPILING = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Wait until they are."""
    if COMPILING in config.stash:
        config.stash[COMPILING].wait()


@pytest.fixture(scope="session")
def shared_data():
    """The directory of real data beside the project, or a skip that says it is absent."""
    directory = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not directory.is_dir():
        pytest.skip("real data: there is no directory ../shared/data beside the project")
    return directory


@pytest.fixture(scope="module")
def run(place):
    """Run ``streamtron …`` in the module's directory, within this process."""
    return partial(here, place)


@pytest.fixture(scope="module")
def forked():
    """The workers that tests of the module start are forked, which takes a tenth of the time."""
    with workers_forked():
        yield


@pytest.fixture(scope="module")
def workers(forked):
    """Two workers of our own, whose scheduler may be connected to by its address."""
    with connect(2) as found, trusted(found):
        yield found


@pytest.fixture
def guest(workers):
    """The same workers by their scheduler's address: an error does not end them."""
    with connect(scheduler=workers.client.scheduler.address) as found:
        yield found


@pytest.fixture
def scheduler():
    """The address of a scheduler that was started by hand, without workers."""
    with dask_scheduler() as address:
        yield address
