"""One model on a cluster: fitted by all workers together, measured, proven, and what that took.

    python pipelines/cluster_fit.py TRAIN HELD_OUT --to DIRECTORY --scheduler tcp://first:8786
    python pipelines/cluster_fit.py TRAIN HELD_OUT --to DIRECTORY --slurm 16
    python pipelines/cluster_fit.py TRAIN HELD_OUT --to DIRECTORY --kubernetes 16 --image IMAGE
    python pipelines/cluster_fit.py --tiny --to DIRECTORY

TRAIN and HELD_OUT are files or directories of shards. These and DIRECTORY are seen by all workers
under the same paths. ``--slurm`` starts workers as jobs by dask-jobqueue, ``--kubernetes`` as pods
by dask-kubernetes, whose IMAGE has streamtron in it. Called again after it was stopped, it goes on
after its last reading; with more files in TRAIN, it adds them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import LocalCluster

import streamtron


@contextmanager
def scheduler_of(chosen: argparse.Namespace) -> Iterator[list[str]]:
    """Give the options that name the workers; those started here end with the block."""
    if chosen.slurm:
        from dask_jobqueue import SLURMCluster

        with SLURMCluster(cores=chosen.threads, processes=1, memory=chosen.memory) as cluster:
            cluster.scale(jobs=chosen.slurm)
            yield ["--scheduler", cluster.scheduler_address]
    elif chosen.kubernetes:
        from dask_kubernetes.operator import KubeCluster

        each = {"cpu": str(chosen.threads), "memory": chosen.memory.replace("GB", "G")}
        resources = {"requests": each, "limits": each}
        with KubeCluster(
            name="streamtron", image=chosen.image, n_workers=chosen.kubernetes, resources=resources
        ) as cluster:
            yield ["--scheduler", cluster.scheduler_address]
    elif chosen.scheduler:
        yield ["--scheduler", chosen.scheduler]
    else:
        # freed memory is kept: a fit asks for it again in every mini-epoch
        kept = {"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None}
        with (
            dask.config.set(kept),
            LocalCluster(n_workers=chosen.workers, threads_per_worker=1) as cluster,
        ):
            yield ["--scheduler", cluster.scheduler_address]


def write_tiny(directory: Path) -> list[str]:
    """A small corpus in six shards, and other rows to measure on."""
    parts = []
    for name, rows, first_row, shards in (("train", 3000, 0, 6), ("held-out", 600, 3000, 1)):
        parts.append(str(directory / name))
        if not (directory / name).exists():
            streamtron.generate(
                parts[-1], rows=rows, columns=500, seed=1, shards=shards, first_row=first_row
            )
    return parts


def command(*words: object) -> None:
    """Run a command of streamtron; end with its exit code if that is not 0, or 4: not certified."""
    code = subprocess.run(
        [sys.executable, "-P", "-m", "streamtron", *map(str, words)], check=False
    ).returncode
    if code not in (0, 4):
        raise SystemExit(code)


def show(report: dict[str, Any]) -> None:
    """What the rounds took, a line for each kind of step and for each worker."""
    print(f"\n{report['rounds']} rounds over {report['parts']} parts")
    for name, step in report["steps"].items():
        print(f"{name:<12} {step['rounds']:>6} rounds {step['seconds']:>10.2f} s")
    for home, sent in report["workers"].items():
        print(f"{home}: {sent['bytes_to']:,} bytes to it, {sent['bytes_from']:,} from it")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit or update, evaluate, certify, and print what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shards", nargs="*", metavar="SHARDS", help="TRAIN and HELD_OUT")
    parser.add_argument("--to", required=True, metavar="DIRECTORY", help="of the model")
    parser.add_argument("--C", default="1", help="price of a slack")
    parser.add_argument("--tol", default="0.01", help="the gap to certify")
    parser.add_argument("--active-set", default="1GB", help="rows in all workers' memory")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, default=2, help="so many processes of this machine")
    where.add_argument("--scheduler", help="the workers of this Dask scheduler")
    where.add_argument("--slurm", type=int, metavar="JOBS", help="start so many jobs")
    where.add_argument("--kubernetes", type=int, metavar="PODS", help="start so many pods")
    parser.add_argument("--image", help="of the pods, with streamtron in it")
    parser.add_argument("--threads", type=int, default=4, help="of a job or a pod")
    parser.add_argument("--memory", default="16GB", help="of a job or a pod")
    parser.add_argument("--tiny", action="store_true", help="on a small generated corpus")
    chosen = parser.parse_args(arguments)
    if len(chosen.shards) != (0 if chosen.tiny else 2):
        parser.error("name TRAIN and HELD_OUT, or give --tiny alone")
    directory = Path(chosen.to).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    train, held_out = write_tiny(directory) if chosen.tiny else chosen.shards
    model, report = directory / "model", directory / "report.json"
    ended = model.exists()
    how = ["--C", chosen.C, "--tol", chosen.tol, "--active-set", chosen.active_set, "--resume"]
    with scheduler_of(chosen) as workers:
        if ended:
            command("update", model, train, "--report", report, *workers)
        else:
            command("fit", train, "--model", model, "--report", report, *how, *workers)
        command("evaluate", model, held_out, *workers)
        command("certify", model, *workers)
    found = json.loads(report.read_text())
    if "steps" in found:  # an update that finds nothing new makes none
        show(found)


if __name__ == "__main__":
    main()
