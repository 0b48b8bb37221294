"""Memory and processors that this process may use: the machine's, or fewer by a limit.

Limits are those of control groups (containers, batch jobs, systemd services), ``ulimit -v`` and
``taskset``.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from streamtron.core.text import format_size


@cache
def available_memory(root: str = "/") -> int:
    """Return the bytes of memory that this process may use; ``root`` holds ``proc`` and ``sys``."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_address_space()]
    for group in _groups("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):  # version 2, version 1
            limits += _numbers(group / name)
    return min(limits)


def _address_space() -> list[int]:
    """Return the limit on addresses, if there is one."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return [] if limit == resource.RLIM_INFINITY else [limit]


def out_of_memory() -> str:
    """Say that there is no more memory, and what to do: ``ulimit -v`` may allow less than there is,
    and libraries alone take up to 2 GB of addresses, most of which they do not use."""
    for limit in _address_space():
        return f"out of memory: ulimit -v allows {format_size(limit)} of addresses. Allow more"
    return "out of memory. Use a machine with more"


def peak_memory() -> int:
    """Return the most bytes of memory that this process has used since its program began.

    ``ru_maxrss`` also counts the process that it was started from: a large one would be told of.
    """
    with suppress(OSError, IndexError):
        return 1024 * int(Path("/proc/self/status").read_bytes().split(b"\nVmHWM:")[1].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def return_memory() -> None:
    """Return free memory that the allocator keeps between memory in use to the system;
    where the C library cannot (it is not glibc's), do nothing."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def available_processors(root: str = "/") -> int:
    """Return the number of processors that this process may use, at least 1, rounded up."""
    limits: list[float] = [len(os.sched_getaffinity(0))]
    for group in _groups("cpu", root):
        quota = _numbers(group / "cpu.max") or [
            *_numbers(group / "cpu.cfs_quota_us"),
            *_numbers(group / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and min(quota) > 0:  # microseconds of processors in so many of time
            limits.append(quota[0] / quota[1])
    return max(1, math.ceil(min(limits)))


def _numbers(path: Path) -> list[int]:
    """Read the numbers in a control group's file, which may say "max" where there is no limit."""
    return [int(word) for word in _text(path).split() if word.lstrip("-").isdecimal()]


def _text(path: Path) -> str:
    """Read a file of the kernel; nothing if it is missing."""
    with suppress(OSError):
        return path.read_text()
    return ""


def _groups(controller: str, root: str) -> Iterator[Path]:
    """Yield the directories of this process's control group, in either version, and its parents."""
    for line in _text(Path(root, "proc/self/cgroup")).splitlines():
        _, names, group = line.split(":", 2)
        if not names or controller in names.split(","):  # version 2 has no names
            top = Path(root, "sys/fs/cgroup", names)
            # in a container often no group but the top one is visible, whatever the path
            within = Path("" if ".." in group else group.lstrip("/"))
            yield from (top / directory for directory in (within, *within.parents))
