"""Batch jobs: read and check a TOML file of commands that depend on each other.

A ``[[job]]`` table has ``name``, ``command``, ``after`` (names of the jobs it depends on) and
``accept_uncertified`` (the jobs after a fit run even if it stopped before its tolerance was
certified). Every other name is an argument or option of the command: ``rows_per_shard`` is
``--rows-per-shard``. Paths are relative to the file's directory.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import chdir
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import xxhash

from streamtron.core.errors import SettingsError, StreamtronError
from streamtron.core.files import read_toml
from streamtron.core.sealed import canonical
from streamtron.data import Manifest, find_shards
from streamtron.runs.report import NOT_CERTIFIED

COMMANDS = (
    "fit",
    "update",
    "forget",
    "sweep",
    "predict",
    "export",
    "report",
    "convert",
    "generate",
    "evaluate",
    "certify",
    "inspect",
)
"""Commands that a job can be."""

WATCHING = ("log", "verbose")
"""Options that change nothing but what a job tells: a job that is done stays so with others."""


class CommandLine(NamedTuple):
    """The arguments of a command, the files that it reads and writes, and all its settings."""

    words: list[str]
    inputs: list[str]
    outputs: list[str]
    settings: dict[str, Any]


ToCommandLine = Callable[[str, Mapping[str, Any]], CommandLine]
"""Makes the command line of a command from its name and parameters."""


@dataclass(frozen=True, slots=True)
class Job:
    """One command of a batch: its command line ``words``, the names of the jobs that it comes
    after, and the exit codes with which it is done.

    ``inputs`` are absolute paths, globs and URIs, ``outputs`` absolute paths. ``digest`` is that of
    the settings of this job and of all jobs before it.
    """

    name: str
    words: tuple[str, ...]
    after: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    digest: str
    accepted: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs, each after those it depends on, and the path of their file, where they run."""

    path: str
    jobs: tuple[Job, ...]

    @property
    def status_file(self) -> str:
        """The file that says what has become of every job: ``night.status.json``."""
        return self.path.removesuffix(".toml") + ".status.json"

    @property
    def logs(self) -> str:
        """The directory of the jobs' stdout and stderr: ``night.logs``."""
        return self.path.removesuffix(".toml") + ".logs"


def load_batch(path: str | os.PathLike[str], command_line: ToCommandLine) -> Batch:
    """Read a TOML file of jobs and check all of them; what is wrong is a SettingsError."""
    where = os.path.abspath(path)
    tables = _tables(where)
    jobs: dict[str, Job] = {}
    writer = dict.fromkeys((where, Batch(where, ()).status_file), "the batch")
    for name in _ordered(where, tables):
        jobs[name] = job = _job(where, tables[name], jobs, command_line)
        for output in map(os.path.normpath, job.outputs):
            first = writer.setdefault(output, name)
            if first != name and job.words[0] not in ("update", "forget"):  # they change a run
                raise _refused(where, name, f"{output} is what {first!r} writes too")
    return Batch(where, tuple(jobs.values()))


def _tables(path: str) -> dict[str, dict[str, Any]]:
    """Return the tables of the file by name, with a checked ``command`` and list ``after``."""
    content = read_toml(path, "jobs")
    entries = content.get("job")
    if set(content) != {"job"} or not isinstance(entries, list) or not entries:
        raise SettingsError(f"{path}: wanted [[job]] tables and nothing else, found {[*content]}.")
    tables: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries, start=1):
        table = entry if isinstance(entry, dict) else {}
        name = table.get("name")
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
            raise SettingsError(
                f"{path}, job number {number}: its name is {name!r}. Wanted: letters, digits, _, "
                "- and ., the last two not in front."
            )
        if name in tables:
            raise _refused(path, name, "the name of an earlier job too")
        after = table.get("after", [])
        tables[name] = {**table, "after": [after] if isinstance(after, str) else after}
        if reason := _table_error(tables[name]):
            raise _refused(path, name, reason)
    for name, table in tables.items():
        if strange := [earlier for earlier in table["after"] if earlier not in tables]:
            raise _refused(path, name, f"after names {strange[0]!r}, which is no job")
    return tables


def _table_error(table: Mapping[str, Any]) -> str | None:
    after, accept = table["after"], table.get("accept_uncertified", False)
    if not isinstance(after, list) or not all(isinstance(name, str) for name in after):
        return f"after is {after!r}, wanted names of jobs"
    if accept not in (True, False):
        return f"accept_uncertified is {accept!r}, wanted true or false"
    if table.get("command") not in COMMANDS:
        return f"command is {table.get('command', 'missing')}, wanted one of {', '.join(COMMANDS)}"
    return None


def _ordered(path: str, tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names, each after those it depends on, else as in the file."""
    graph: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(tables, ()))
    for name, table in tables.items():
        graph.add(name, *table["after"])
    try:
        return list(graph.static_order())
    except CycleError as error:
        circle = " after ".join(reversed(error.args[1]))
        raise SettingsError(f"{path}: jobs that wait for each other: {circle}.") from error


def _job(
    path: str, table: Mapping[str, Any], jobs: Mapping[str, Job], command_line: ToCommandLine
) -> Job:
    name, command, directory = table["name"], table["command"], os.path.dirname(path)
    names = ("name", "command", "after", "accept_uncertified")
    values = {key: value for key, value in table.items() if key not in names}
    try:
        with chdir(directory):  # relative paths of settings files start here
            line = command_line(command, values)
    except SettingsError as error:
        raise _refused(path, name, str(error).rstrip(".")) from error
    lasting = [word for word in line.words if word.partition("=")[0].lstrip("-") not in WATCHING]
    return Job(
        name,
        (command, *line.words),
        after=tuple(table["after"]),
        inputs=tuple(_absolute(directory, file) for file in line.inputs),
        outputs=tuple(os.path.join(directory, file) for file in line.outputs),
        digest=_digest(
            [command, lasting, line.settings, [jobs[name].digest for name in table["after"]]]
        ),
        accepted=(0, NOT_CERTIFIED) if table.get("accept_uncertified") else (0,),
    )


def _absolute(directory: str, path: str) -> str:
    """Make a path or glob absolute; a URI is so already."""
    if "://" in path:
        return path
    exists = os.path.lexists(os.path.join(directory, path))
    return os.path.join(directory if exists else glob.escape(directory), path)


def _refused(path: str, name: str, reason: str) -> SettingsError:
    return SettingsError(f"{path}, job {name!r}: {reason}.")


def state_of(inputs: Iterable[str]) -> str:
    """Return a digest of the names, sizes and times of all files that paths, globs and URIs name;
    of a run's directory these are its witness and its shards, with the shards' fingerprints."""
    return _digest([_stamps(path) for path in inputs])


def _stamps(path: str) -> list[Any]:
    manifest = os.path.join(path, "manifest.json")
    try:
        if os.path.isfile(path):
            return [_stamp(path)]
        if os.path.isfile(manifest):
            shards = Manifest.load(manifest).shards
            stamps = [[shard.fingerprint, *_stamp(shard.path)] for shard in shards]
            return [_stamp(os.path.join(path, "witness")), *stamps]
        return [[shard.path, shard.size, shard.mtime_ns] for shard in find_shards([path])]
    except (StreamtronError, OSError) as error:
        return [str(error)]  # the job itself will report it


def _stamp(path: str) -> list[Any]:
    """Return name, size and time of a file; only the name if there is none."""
    if not os.path.isfile(path):
        return [path]
    status = os.stat(path)
    return [path, status.st_size, status.st_mtime_ns]


def _digest(value: Any) -> str:
    return xxhash.xxh3_128_hexdigest(canonical(value).encode())
