"""Memory and processors that this process may use: the machine's, or fewer by a limit.

Limits are those of control groups (containers, batch jobs, systemd services), ``ulimit -v`` and
``taskset``.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def available_memory(root: str = "/") -> int:
    """Return the bytes of memory that this process may use.

    Parameters
    ----------
    root : the directory that holds ``proc`` and the control groups' file systems.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits = [physical] if address_space == resource.RLIM_INFINITY else [physical, address_space]
    for group in _groups("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):  # version 2, version 1
            limits += _numbers(group / name)
    return min(limits)


@cache
def available_processors(root: str = "/") -> int:
    """Return the number of processors that this process may use, at least 1, rounded up.

    Parameters
    ----------
    root : see ``available_memory``.
    """
    limits: list[float] = [len(os.sched_getaffinity(0))]
    for group in _groups("cpu", root):
        quota = _numbers(group / "cpu.max") or [
            *_numbers(group / "cpu.cfs_quota_us"), *_numbers(group / "cpu.cfs_period_us")
        ]  # fmt: skip
        if len(quota) == 2 and min(quota) > 0:  # microseconds of processors in so many of time
            limits.append(quota[0] / quota[1])
    return max(1, math.ceil(min(limits)))


def _numbers(path: Path) -> list[int]:
    """Read the numbers in a control group's file; none if the file or the limit is missing."""
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):  # version 2 writes "max" where there is no limit
        return []


def _groups(controller: str, root: str) -> Iterator[Path]:
    """Yield the directories of this process's control group and its parents.

    Their limits apply too. The machine may have version 1, version 2 or both.
    """
    group_of = {
        name: path
        for _, names, path in (line.split(":", 2) for line in _lines(root, "cgroup"))
        for name in names.split(",")
    }
    for line in _lines(root, "mountinfo"):
        place, _, what = line.partition(" - ")
        kind, _, options = what.split(" ", 2)
        if kind == "cgroup2":
            group = group_of.get("")
        elif kind == "cgroup" and controller in options.split(","):
            group = group_of.get(controller)
        else:
            continue
        _, _, _, mounted, mount_point, *_ = place.split(" ")
        if group is not None:
            yield from _upwards(Path(root, mount_point.lstrip("/")), mounted, group)


def _lines(root: str, name: str) -> list[str]:
    try:
        return Path(root, "proc/self", name).read_text().splitlines()
    except OSError:
        return []


def _upwards(mount_point: Path, mounted: str, group: str) -> Iterator[Path]:
    """Yield the directories from a group's up to the mount point.

    The mount point shows the group ``mounted``, in a container often the only one that is visible.
    """
    within = Path(os.path.relpath(group, mounted))
    if ".." not in within.parts:
        for directory in (within, *within.parents):
            yield mount_point / directory
    else:
        yield mount_point
