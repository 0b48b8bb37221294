"""The table of a sweep, without what depends on machine and time."""

from __future__ import annotations

from typing import Any

from streamtron.cluster.client import Workers
from streamtron.cluster.sweep import sweep_executor
from streamtron.sweeps.sweep import Sweep

LASTING = ("seconds", "worker", "started", "finished")

Rows = list[dict[str, Any]]


def by(workers: Workers) -> dict[str, Any]:
    """Arguments of a sweep on workers."""
    return {"executor": sweep_executor(workers), "tasks": workers.threads}


def lasting(found: Sweep) -> Rows:
    """The table without what is about machine and time."""
    return [
        {name: value for name, value in row.items() if name not in LASTING} for row in found.rows()
    ]
