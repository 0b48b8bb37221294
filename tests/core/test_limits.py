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

TWO = (
    "23 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
)
ONE = (
    "31 23 0:28 / /sys/fs/cgroup ro - tmpfs  ro,mode=755\n"
    "32 31 0:29 {group} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 {group} /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "35 31 0:32 {group} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def machine(root: Path, groups: str, mounts: str, files: Mapping[str, str]) -> str:
    """A root directory with the control groups of a process, what is mounted, and the files of
    /sys/fs/cgroup."""
    contents = {f"sys/fs/cgroup/{name}": content for name, content in files.items()}
    contents |= {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts}
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return str(root)


def test_the_memory_limit_of_a_container_counts_in_both_versions_of_control_groups(
    tmp_path: Path,
) -> None:
    two = machine(tmp_path / "2", "0::/\n", TWO, {"memory.max": "2000000000\n"})
    assert available_memory(two) == 2_000_000_000
    one = machine(
        tmp_path / "1", "5:memory:/docker/f00\n4:cpu,cpuacct:/docker/f00\n",
        ONE.format(group="/docker/f00"), {"memory/memory.limit_in_bytes": "2000000000\n"},
    )  # fmt: skip
    assert available_memory(one) == 2_000_000_000


def test_the_least_limit_of_all_groups_around_the_process_counts(tmp_path: Path) -> None:
    two = machine(
        tmp_path / "2", "0::/system.slice/job.service/step\n", TWO,
        {
            "system.slice/job.service/step/memory.max": "max\n",
            "system.slice/job.service/memory.max": "700000000\n",
            "system.slice/memory.max": "900000000\n",
            "system.slice/other.service/memory.max": "1\n",
        },
    )  # fmt: skip
    assert available_memory(two) == 700_000_000
    one = machine(
        tmp_path / "1", "5:memory:/slurm/job7/step\n", ONE.format(group="/"),
        {
            "memory/slurm/job7/step/memory.limit_in_bytes": NO_LIMIT,
            "memory/slurm/job7/memory.limit_in_bytes": "800000000\n",
            "memory/slurm/memory.limit_in_bytes": "900000000\n",
            "memory/memory.limit_in_bytes": NO_LIMIT,
        },
    )  # fmt: skip
    assert available_memory(one) == 800_000_000


def test_a_container_that_sees_only_its_own_group_finds_its_limit_whatever_the_path(
    tmp_path: Path,
) -> None:
    files = {"memory/memory.limit_in_bytes": "600000000\n"}
    for number, group in enumerate(("/docker/f00", "/../f00", "/docker/other")):
        root = machine(
            tmp_path / str(number), f"5:memory:{group}\n", ONE.format(group="/docker/f00"), files
        )
        assert available_memory(root) == 600_000_000


def test_without_a_limit_the_machine_s_memory_and_processors_count(tmp_path: Path) -> None:
    none = machine(
        tmp_path / "2", "0::/\n", TWO, {"memory.max": "max\n", "cpu.max": "max 100000\n"}
    )
    unlimited = {
        "memory/memory.limit_in_bytes": NO_LIMIT,
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    one = machine(tmp_path / "1", "5:memory:/\n4:cpu,cpuacct:/\n", ONE.format(group="/"), unlimited)
    nothing = str(tmp_path / "no control groups at all")
    for root in (none, one):
        assert available_memory(root) == available_memory(nothing)
        assert available_processors(root) == available_processors(nothing) == PROCESSORS


@pytest.mark.parametrize(("quota", "processors"), [(50_000, 1), (100_000, 1), (10**7, PROCESSORS)])
def test_a_quota_of_processors_counts_in_both_versions_and_a_share_of_one_is_one(
    tmp_path: Path, quota: int, processors: int
) -> None:
    two = machine(tmp_path / "2", "0::/a\n", TWO, {"a/cpu.max": f"{quota} 100000\n"})
    files = {
        "cpu,cpuacct/cpu.cfs_quota_us": f"{quota}\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    one = machine(tmp_path / "1", "4:cpu,cpuacct:/\n", ONE.format(group="/"), files)
    assert available_processors(two) == available_processors(one) == processors


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


def test_a_line_of_300_mb_in_a_container_of_300_mb_is_refused_and_the_process_lives(
    group: Path, tmp_path: Path
) -> None:
    (group / "memory.limit_in_bytes").write_text(str(300 << 20))
    with open(tmp_path / "long.svm", "wb") as file:
        file.write(b"1 1:1\n" * 3)
        file.truncate(300 << 20)
    done = within(group, f"import sys; sys.argv[1:] = ['inspect', {str(tmp_path)!r}]; {COMMAND}")
    one_sentence(
        done, 5, "long.svm, line 4: longer than 19,660,800 bytes", "300 MiB of memory",
        "Check that this is libsvm text, with a row on each line, or give the process more memory",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["long.csv", "long.jsonl", "long.vw"])
def test_a_row_of_60_mb_in_a_container_of_300_mb_is_refused_whatever_its_format(
    name: str, group: Path, tmp_path: Path
) -> None:
    (group / "memory.limit_in_bytes").write_text(str(300 << 20))
    begin = {"csv": 'label,f1,t\n1,1,"', "jsonl": '{"label": 1, "t": "', "vw": "1 |f "}
    with open(tmp_path / name, "wb") as file:
        file.write(begin[name.split(".")[1]].encode() + b"word " * (12 << 20))
    words = ["inspect", str(tmp_path), "--hash-bits", "9"]
    done = within(group, f"import sys; sys.argv[1:] = {words!r}; {COMMAND}")
    line = 1 + name.endswith("csv")
    one_sentence(done, 5, f"{name}, line {line}: longer than", "300 MiB of memory", "a row on each")


@pytest.mark.parametrize("command", [pytest.param("fit", marks=pytest.mark.slow), "inspect"])
def test_a_line_too_long_for_the_address_space_is_refused_with_its_place(
    command: str, tmp_path: Path
) -> None:
    with open(tmp_path / "long.svm", "wb") as file:
        file.write(b"1 1:1\n")
        file.truncate(300 << 20)
    words = [
        command,
        str(tmp_path),
        *(["--model", str(tmp_path / "m")] if command == "fit" else []),
    ]
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (4 * 10**9, 4 * 10**9))\n"
        f"sys.argv[1:] = {words!r}; {COMMAND}"
    )
    one_sentence(in_python(code), 5, "long.svm, line 2: longer than 250,000,000 bytes")
