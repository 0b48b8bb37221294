"""What a process may use: control groups as files of the kernel's form in a directory, a real one
where this machine lets us make it, and the limits of a shell."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from streamtron.core.limits import available_memory, available_processors
from tests.helpers.processes import COMMAND, ROOT, Ended, one_sentence

PROCESSORS = len(os.sched_getaffinity(0))
NO_LIMIT = 9223372036854771712
"""What version 1 writes where there is none."""


def machine(
    root: Path, version: int, group: str, memory: Mapping[str, int | None], quota: int | None = None
) -> str:
    """A root directory with the control group of a process, limits of memory by group (None: there
    is none), and of processors in microseconds of 100,000."""
    files = {"proc/self/cgroup": f"0::{group}\n"}
    if version == 1:
        files["proc/self/cgroup"] = f"5:memory:{group}\n4:cpu,cpuacct:{group}\n"
        files["sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us"] = f"{quota or -1}\n"
        files["sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us"] = "100000\n"
    else:
        files["sys/fs/cgroup/cpu.max"] = f"{quota or 'max'} 100000\n"
    for name, limit in memory.items():
        if version == 1:
            place, value = f"memory/{name}/memory.limit_in_bytes", limit or NO_LIMIT
        else:
            place, value = f"{name}/memory.max", limit or "max"
        files[f"sys/fs/cgroup/{place}"] = f"{value}\n"
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return str(root)


JOB = {"a/job/step": None, "a/job": 700_000_000, "a": 900_000_000, "": None}


@pytest.mark.parametrize(
    ("version", "group", "limits", "memory"),
    [
        (2, "/", {"": 2_000_000_000}, 2_000_000_000),
        (1, "/docker/f00", {"": 2_000_000_000}, 2_000_000_000),
        (2, "/a/job/step", {**JOB, "a/other": 1}, 700_000_000),
        (1, "/a/job/step", JOB, 700_000_000),
        (1, "/../f00", {"": 600_000_000, "../f00": 1}, 600_000_000),
        (1, "/docker/other", {"": 600_000_000}, 600_000_000),
    ],
    ids=["2", "1", "groups around it, 2", "groups around it, 1", "path beyond", "path unseen"],
)
def test_the_least_limit_of_memory_counts(tmp_path, version, group, limits, memory):
    assert available_memory(machine(tmp_path, version, group, limits)) == memory


@pytest.mark.parametrize("version", [1, 2])
def test_without_a_limit_the_machine_s_memory_and_processors_count(tmp_path, version):
    root, nothing = machine(tmp_path, version, "/", {"": None}), str(tmp_path / "nothing")
    assert available_memory(root) == available_memory(nothing)
    assert available_processors(root) == available_processors(nothing) == PROCESSORS


QUOTAS = [(50_000, 1), (100_000, 1), (150_000, min(2, PROCESSORS)), (10**7, PROCESSORS)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("quota", "number"), QUOTAS)
def test_a_quota_of_processors_counts_and_a_share_of_one_is_one(tmp_path, version, quota, number):
    assert available_processors(machine(tmp_path, version, "/a", {}, quota)) == number


def in_python(code: str) -> Ended:
    """Code in a Python of its own."""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=300)
    return Ended(done.returncode, done.stdout, done.stderr)


def test_processors_that_the_process_is_not_allowed_do_not_count():
    one = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, [{one}])\n"
        "from streamtron.core.config import Machine; print(Machine().thread_count)"
    )
    assert in_python(code).stdout == "1\n"


@pytest.mark.parametrize("command", [pytest.param("fit", marks=pytest.mark.slow), "inspect"])
def test_a_line_too_long_for_the_address_space_is_refused_with_its_place(command, tmp_path):
    with open(tmp_path / "long.svm", "wb") as file:
        file.write(b"1 1:1\n")
        file.truncate(300 << 20)
    model = ["--model", str(tmp_path / "m")] if command == "fit" else []
    words = [command, str(tmp_path), *model]
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (4 * 10**9, 4 * 10**9))\n"
        f"sys.argv[1:] = {words!r}; {COMMAND}"
    )
    one_sentence(in_python(code), 5, "long.svm, line 2: a row longer than 250,000,000 bytes")


def test_what_does_not_fit_in_the_addresses_of_ulimit_is_not_called_too_large():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (8 * 10**8, 8 * 10**8))\n"
        "from streamtron.core.files import reading_from\n"
        "with reading_from('t.parquet'): bytearray(10**9)"
    )
    said = in_python(code).stderr.splitlines()[-1]
    assert (
        "t.parquet: cannot be read, out of memory: ulimit -v allows 800.0 MB of addresses" in said
    )
    assert said.endswith("Allow more, or check that it is the right file.")
