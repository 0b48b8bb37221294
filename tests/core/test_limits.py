"""What a process may use: control groups as files of the kernel's form in a directory, a real one
where this machine lets us make it, and the limits of a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from streamtron.core.limits import available_memory, available_processors
from tests.helpers.processes import COMMAND, ROOT, Ended, one_sentence

PROCESSORS = len(os.sched_getaffinity(0))
NO_LIMIT = "9223372036854771712\n"
"""What version 1 writes where there is none."""

ONE = "5:memory:{0}\n4:cpu,cpuacct:{0}\n"
"""A process's groups in version 1."""


def machine(root: Path, groups: str, files: Mapping[str, str]) -> str:
    """A root directory with the control groups of a process and the files of /sys/fs/cgroup."""
    contents = {f"sys/fs/cgroup/{name}": content for name, content in files.items()}
    for name, content in {**contents, "proc/self/cgroup": groups}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return str(root)


MEMORY = "memory/{}memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("groups", "files", "memory"),
    [
        ("0::/\n", {"memory.max": "2000000000\n"}, 2_000_000_000),
        (ONE.format("/docker/f00"), {MEMORY.format(""): "2000000000\n"}, 2_000_000_000),
        (
            "0::/system.slice/job.service/step\n",
            {
                "system.slice/job.service/step/memory.max": "max\n",
                "system.slice/job.service/memory.max": "700000000\n",
                "system.slice/memory.max": "900000000\n",
                "system.slice/other.service/memory.max": "1\n",
            },
            700_000_000,
        ),
        (
            ONE.format("/slurm/job7/step"),
            {
                MEMORY.format("slurm/job7/step/"): NO_LIMIT,
                MEMORY.format("slurm/job7/"): "800000000\n",
                MEMORY.format("slurm/"): "900000000\n",
                MEMORY.format(""): NO_LIMIT,
            },
            800_000_000,
        ),
        (ONE.format("/../f00"), {MEMORY.format(""): "600000000\n"}, 600_000_000),
        (ONE.format("/docker/other"), {MEMORY.format(""): "600000000\n"}, 600_000_000),
    ],
    ids=["2", "1", "groups around it, 2", "groups around it, 1", "path beyond", "path unseen"],
)
def test_the_least_limit_of_memory_of_all_groups_around_the_process_counts(
    tmp_path: Path, groups: str, files: dict[str, str], memory: int
) -> None:
    assert available_memory(machine(tmp_path, groups, files)) == memory


def test_without_a_limit_the_machine_s_memory_and_processors_count(tmp_path: Path) -> None:
    two = machine(tmp_path / "2", "0::/\n", {"memory.max": "max\n", "cpu.max": "max 100000\n"})
    unlimited = {
        MEMORY.format(""): NO_LIMIT,
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    one = machine(tmp_path / "1", ONE.format("/"), unlimited)
    nothing = str(tmp_path / "no control groups at all")
    for root in (two, one):
        assert available_memory(root) == available_memory(nothing)
        assert available_processors(root) == available_processors(nothing) == PROCESSORS


@pytest.mark.parametrize(("quota", "processors"), [(50_000, 1), (100_000, 1), (10**7, PROCESSORS)])
def test_a_quota_of_processors_counts_in_both_versions_and_a_share_of_one_is_one(
    tmp_path: Path, quota: int, processors: int
) -> None:
    two = machine(tmp_path / "2", "0::/a\n", {"a/cpu.max": f"{quota} 100000\n"})
    files = {
        "cpu,cpuacct/cpu.cfs_quota_us": f"{quota}\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    one = machine(tmp_path / "1", ONE.format("/"), files)
    assert available_processors(two) == available_processors(one) == processors


SLOW = pytest.mark.slow


def in_python(code: str, *before: str) -> Ended:
    """Code in a Python of its own, which a command before it starts."""
    done = subprocess.run(
        [*before, sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def test_processors_that_the_process_is_not_allowed_do_not_count() -> None:
    one = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, [{one}])\n"
        "from streamtron.core.config import Machine; print(Machine().thread_count)"
    )
    assert in_python(code).stdout == "1\n"


@pytest.fixture
def group() -> Iterator[Path]:
    """A new control group within this process's own, that limits memory."""
    groups = Path("/proc/self/cgroup").read_text().splitlines()
    [ours] = [line.split(":", 2)[2] for line in groups if line.split(":")[1] == "memory"] or [""]
    directory = Path(f"/sys/fs/cgroup/memory{ours}/streamtron-test-{os.getpid()}")
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"no control group for memory can be made here: {error}")
    yield directory
    directory.rmdir()


def within(group: Path, code: str) -> Ended:
    """Code in a Python that joins a control group before anything else."""
    join = f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    return in_python(join + code)


def test_a_process_in_a_real_control_group_takes_half_of_its_memory_at_most(group: Path) -> None:
    (group / "memory.limit_in_bytes").write_text("2000003072")
    limit = "from streamtron.core.config import Machine; print(Machine().memory_limit)"
    allowed = int((group / "memory.limit_in_bytes").read_text())
    assert within(group, limit).stdout == f"{allowed // 2}\n"


@pytest.mark.parametrize(
    ("name", "begin", "line", "advice"),
    [
        ("long.svm", "1 1:1\n" * 3, 4, "Check that this is libsvm text, with a row on each line"),
        ("long.csv", 'label,f1,t\n1,1,"', 2, "a row on each"),
        pytest.param("long.jsonl", '{"label": 1, "t": "', 1, "a row on each", marks=SLOW),
        pytest.param("long.vw", "1 |f ", 1, "a row on each", marks=SLOW),
    ],
)
def test_a_row_too_long_for_a_container_of_300_mb_is_refused_and_the_process_lives(
    name: str, begin: str, line: int, advice: str, group: Path, tmp_path: Path
) -> None:
    (group / "memory.limit_in_bytes").write_text(str(300 << 20))
    with open(tmp_path / name, "wb") as file:
        file.write(begin.encode())
        if name.endswith("svm"):
            file.truncate(300 << 20)
        else:
            file.write(b"word " * (12 << 20))
    words = ["inspect", str(tmp_path), *([] if name.endswith("svm") else ["--hash-bits", "9"])]
    done = within(group, f"import sys; sys.argv[1:] = {words!r}; {COMMAND}")
    one_sentence(done, 5, f"{name}, line {line}: longer than", "300 MiB of memory", advice)


@pytest.mark.parametrize("command", [pytest.param("fit", marks=pytest.mark.slow), "inspect"])
def test_a_line_too_long_for_the_address_space_is_refused_with_its_place(
    command: str, tmp_path: Path
) -> None:
    with open(tmp_path / "long.svm", "wb") as file:
        file.write(b"1 1:1\n")
        file.truncate(300 << 20)
    model = ["--model", str(tmp_path / "m")] if command == "fit" else []
    words = [command, str(tmp_path), *model]
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (4 * 10**9, 4 * 10**9))\n"
        f"sys.argv[1:] = {words!r}; {COMMAND}"
    )
    one_sentence(in_python(code), 5, "long.svm, line 2: longer than 250,000,000 bytes")
