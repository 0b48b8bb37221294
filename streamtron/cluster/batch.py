"""Batch jobs: a TOML file of commands with dependencies, checked whole before any of them runs.

::

    [[job]]
    name = "train"
    command = "fit"
    shards = ["data/train"]
    model = "model"
    C = 0.5

    [[job]]
    name = "score"
    command = "predict"
    after = ["train"]
    model = "model"
    shards = "data/new"
    output = "new.tsv"

Every other name in a job is an argument or an option of its command: ``rows_per_shard`` is
``--rows-per-shard``. Paths are relative to the file's directory. ``accept_uncertified = true`` lets
those behind a fit run also if it stopped before its tolerance was certified. A job that may run
again over its own shards, a ``generate`` or ``convert``, wants ``overwrite = true``; a ``fit`` that
was cut off goes on by itself, and an ``update`` or ``forget`` finds what is done already. A job is
done as long as its inputs are what they were when it began: a shard that is added, removed or
changed makes it, and those behind it, run again. ``jobs`` runs what is read here.
"""

from __future__ import annotations

import glob
import os
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

import xxhash

from streamtron.core.errors import SettingsError, StreamtronError
from streamtron.core.files import read_toml
from streamtron.core.sealed import canonical
from streamtron.data import Manifest, find_shards

OUTPUTS: dict[str, tuple[str, ...]] = {
    "fit": ("model", "report", "witness"),
    "update": ("report",),
    "forget": ("report",),
    "sweep": ("table", "plot", "model", "report", "witness"),
    "predict": ("output",),
    "convert": ("destination",),
    "generate": ("directory",),
    "evaluate": (),
    "certify": (),
    "inspect": (),
}
"""Command → those of its names that are files or directories it writes; no other is run here."""

INPUTS: dict[str, tuple[str, ...]] = {
    "fit": ("shards", "config", "vocabulary"),
    "update": ("shards",),
    "forget": ("shards", "rows", "replaced_by"),
    "sweep": ("shards", "valid", "config", "vocabulary"),
    "predict": ("model", "shards"),
    "convert": ("shards", "vocabulary"),
    "generate": (),
    "evaluate": ("model", "shards"),
    "certify": ("model", "shards", "witness"),
    "inspect": ("paths", "vocabulary"),
}
"""Command → those of its names that are files, directories or globs it reads, but for a run that it
changes."""

OWN = ("name", "command", "after", "accept_uncertified")

IN_PLACE = ("update", "forget")
"""Commands that change a run: its argument ``run``."""

STOPPED = 4
"""The exit code of a fit that stopped before its tolerance was certified; its model is written."""

CommandLine = Callable[[str, Mapping[str, Any]], list[str]]
"""From a command and its settings to the words of its command line; SettingsError if they are
refused."""


@dataclass(frozen=True, slots=True)
class Job:
    """One command of a batch.

    Parameters
    ----------
    name : its name, as a file can have it.
    words : the command line, ``["fit", "data", "--model", "m"]``.
    after : names of the jobs that must be done before.
    inputs : absolute paths, globs and URIs of what it reads.
    outputs : absolute paths of what it writes.
    digest : of the job and of everything before it: another one where any setting has changed.
    accepted : exit codes with which it is done.
    changes : the absolute path of the run, or model, that it changes in place; None = none.
    """

    name: str
    words: tuple[str, ...]
    after: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    digest: str
    accepted: tuple[int, ...] = (0,)
    changes: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs in an order in which each comes after those it needs.

    Parameters
    ----------
    path : the file, absolute.
    jobs : in order; those free to run come as in the file.
    """

    path: str
    jobs: tuple[Job, ...]

    @property
    def directory(self) -> str:
        """Where the file is, and where its jobs run."""
        return os.path.dirname(self.path)


def load_batch(path: str | os.PathLike[str], command_line: CommandLine) -> Batch:
    """The jobs of a TOML file, all of them checked.

    Raises
    ------
    SettingsError : not TOML, an unknown command or setting, a name twice, an ``after`` that is no
        job, jobs that wait for each other, two jobs that write the same file.
    """
    where = os.path.abspath(path)
    tables = {table["name"]: table for table in _tables(where)}
    for name, table in tables.items():
        for before in table["after"]:
            if before not in tables:
                raise _refused(where, name, f"after names {before!r}, which is no job")
    jobs: dict[str, Job] = {}
    for name in _ordered(where, tables):
        jobs[name] = _job(where, tables[name], jobs, command_line)
    _refuse_shared_outputs(where, jobs.values())
    return Batch(where, tuple(jobs.values()))


def _tables(path: str) -> Iterator[dict[str, Any]]:
    """The jobs as the file has them, with a checked ``name``, ``command`` and ``after``."""
    content = read_toml(path, "jobs")
    found = content.get("job")
    if set(content) != {"job"} or not isinstance(found, list) or not found:
        raise SettingsError(f"{path}: wanted [[job]] tables and nothing else, found {[*content]}.")
    met: set[str] = set()
    for number, table in enumerate(found, start=1):
        name = table.get("name") if isinstance(table, dict) else None
        if not isinstance(name, str) or not name or not set(name) <= _NAME or name[0] in ".-":
            raise SettingsError(
                f"{path}, job number {number}: its name is {name!r}. Wanted: letters, digits, _, "
                "- and ., the last two not in front."
            )
        if name in met:
            raise _refused(path, name, "the name of an earlier job too")
        met.add(name)
        after = table.get("after", [])
        after = [after] if isinstance(after, str) else after
        if not isinstance(after, list) or not all(isinstance(one, str) for one in after):
            raise _refused(path, name, f"after is {after!r}, wanted names of jobs")
        if table.get("accept_uncertified", False) not in (True, False):
            found_word = repr(table["accept_uncertified"])
            raise _refused(path, name, f"accept_uncertified is {found_word}, wanted true or false")
        if table.get("command") not in OUTPUTS:
            found_word = table.get("command", "missing")
            raise _refused(
                path, name, f"command is {found_word}, wanted one of {', '.join(OUTPUTS)}"
            )
        yield {**table, "after": after}


_NAME = frozenset(string.ascii_letters + string.digits + "_-.")


def _ordered(path: str, tables: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The names, each behind those it comes after, else as in the file."""
    graph = TopologicalSorter({name: table["after"] for name, table in tables.items()})
    try:
        graph.prepare()
    except CycleError as error:
        circle = " after ".join(reversed(error.args[1]))
        raise SettingsError(f"{path}: jobs that wait for each other: {circle}.") from error
    place = {name: number for number, name in enumerate(tables)}
    while graph.is_active():
        for name in sorted(graph.get_ready(), key=place.__getitem__):
            yield name
            graph.done(name)


def _job(
    path: str, table: Mapping[str, Any], jobs: Mapping[str, Job], command_line: CommandLine
) -> Job:
    name, command = table["name"], table["command"]
    given = {key: value for key, value in table.items() if key not in OWN}
    try:
        with chdir(os.path.dirname(path)):  # a settings file it names is looked for here
            words = command_line(command, given)
    except SettingsError as error:
        raise _refused(path, name, str(error).rstrip(".")) from error
    outputs = [given[key] for key in OUTPUTS[command] if key in given]
    before = [jobs[other].digest for other in table["after"]]
    digest = xxhash.xxh3_128_hexdigest(canonical([command, words, before]).encode())
    return Job(
        name,
        (command, *words),
        tuple(table["after"]),
        tuple(
            _absolute(os.path.dirname(path), str(one))
            for key in INPUTS[command]
            for one in _listed(given.get(key, []))
        ),
        tuple(os.path.join(os.path.dirname(path), str(output)) for output in outputs),
        digest,
        (0, STOPPED) if table.get("accept_uncertified") is True else (0,),
        os.path.join(os.path.dirname(path), given["run"]) if command in IN_PLACE else None,
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _absolute(directory: str, path: str) -> str:
    """A path, glob or URI that is not relative to a directory any more."""
    if "://" in path:
        return path
    there = os.path.lexists(os.path.join(directory, path))
    return os.path.join(directory if there else glob.escape(directory), path)


def state_of(inputs: Iterable[str]) -> str:
    """A digest of the names, sizes and times of all files that paths, globs and URIs stand for; of
    a run's directory those of its witness and of its shards, and the shards' fingerprints."""
    return xxhash.xxh3_128_hexdigest(canonical([_stamps(path) for path in inputs]).encode())


def _stamps(path: str) -> list[Any]:
    manifest = os.path.join(path, "manifest.json")
    try:
        if os.path.isfile(path):
            return [_stamp(path)]
        if os.path.isfile(manifest):
            shards = Manifest.load(manifest).shards
            own = [[shard.fingerprint, *_stamp(shard.path)] for shard in shards]
            return [_stamp(os.path.join(path, "witness")), *own]
        return [[shard.path, shard.size, shard.mtime_ns] for shard in find_shards([path])]
    except (StreamtronError, OSError) as error:
        return [str(error)]  # the job itself will say so


def _stamp(path: str) -> list[Any]:
    """Name, size and time of a file; only the name where it is none."""
    if not os.path.isfile(path):
        return [path]
    status = os.stat(path)
    return [path, status.st_size, status.st_mtime_ns]


def _refuse_shared_outputs(path: str, jobs: Iterable[Job]) -> None:
    writer: dict[str, str] = {}
    for job in jobs:
        for output in map(os.path.normpath, job.outputs):
            other = writer.setdefault(output, job.name)
            if other != job.name and job.words[0] not in IN_PLACE:
                raise _refused(path, job.name, f"{output} is what {other!r} writes too")


def _refused(path: str, name: str, why: str) -> SettingsError:
    return SettingsError(f"{path}, job {name!r}: {why}.")
