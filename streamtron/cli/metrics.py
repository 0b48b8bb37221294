"""What became of a command in Prometheus' text format, for a file that its collector reads."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from streamtron.core.errors import SettingsError
from streamtron.core.files import is_stream, reading_from, write_atomically


def checked_metrics(path: str) -> str:
    """Return the absolute path; refuse a file that holds something else than metrics."""
    if is_stream(path) or not os.path.isfile(path):
        return os.path.abspath(path)
    with reading_from(path), open(path, "rb") as file:
        first = file.readline(1 << 10)
    if first and not first.startswith(b"# TYPE streamtron_"):
        raise SettingsError(f"{path}: not metrics of streamtron, so it is kept. Name another file.")
    return os.path.abspath(path)


def write_metrics(
    path: str, command: str, code: int, report: Mapping[str, Any] | None = None
) -> None:
    """Write the metrics of a command that has ended: whole, or not at all."""
    write_atomically(
        path, ["".join(f"{line}\n" for line in _lines(command, code, report)).encode()]
    )


def _lines(command: str, code: int, report: Mapping[str, Any] | None) -> Iterator[str]:
    values: dict[str, Any] = {"exit_status": code, "end_time_seconds": round(time.time(), 3)}
    if report is not None:
        values |= {name: report[name] for name in ("rows", "readings")}
        values["relative_duality_gap"] = report["certificate"]["relative_duality_gap"]
        values["tolerance"] = report["settings"]["tol"]
    for name, value in values.items():
        yield f"# TYPE streamtron_{name} gauge"
        yield f'streamtron_{name}{{command="{command}"}} {value!r}'
    if report is not None:
        yield "# TYPE streamtron_phase_seconds gauge"
        for phase, seconds in report["phases"].items():
            yield f'streamtron_phase_seconds{{command="{command}",phase="{phase}"}} {seconds!r}'
