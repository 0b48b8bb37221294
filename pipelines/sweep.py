"""A sweep over C and ρ: the best of them on held-out rows, proven, and judged on rows of its own.

    python pipelines/sweep.py TRAIN VALID TEST --C 0.1,1,10 --rho 0,1 --to DIRECTORY [--workers N]
    python pipelines/sweep.py --tiny --to DIRECTORY

TRAIN, VALID and TEST are files or directories of shards. DIRECTORY gets the table of all
candidates, the best model, and the status of the batch that made them; called again after it was
stopped, it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import streamtron


def write_tiny(directory: Path) -> list[str]:
    """A small corpus in three parts, none of which shares a row with another."""
    parts = []
    for name, rows, first_row in (("train", 2000, 0), ("valid", 500, 2000), ("test", 500, 2500)):
        parts.append(str(directory / name))
        if not (directory / name).exists():
            streamtron.generate(
                parts[-1], rows=rows, columns=500, seed=1, shards=2, first_row=first_row
            )
    return parts


def jobs(parts: Sequence[str], C: str, rho: str, where: str) -> str:
    """The batch: the sweep, the best model's accuracy on the test rows, and its proof."""
    train, valid, test = (shlex.quote(str(Path(part).absolute())) for part in parts)
    lists = f"--C {shlex.quote(C)} --rho {shlex.quote(rho)}"
    files = "--table candidates.csv --model best"
    commands = {
        "sweep": f"sweep {train} --valid {valid} {lists} {where} {files}",
        "test": f"evaluate best {test} --json",
        "proof": f"certify best {train} --json",
    }
    return "\n".join(
        f'[[job]]\nname = "{name}"\ncommand = {json.dumps(command)}\n'
        for name, command in commands.items()
    )


def show(directory: Path) -> None:
    """The candidates, and what is known of the best one."""
    print((directory / "candidates.csv").read_text())
    test = json.loads((directory / "sweep.logs" / "test.out").read_text())
    proof = json.loads((directory / "sweep.logs" / "proof.out").read_text())
    gap = proof["certificate"]["relative_duality_gap"]
    print(f"the best one: accuracy {test['accuracy']:.4f} on the test rows, gap {gap:.2%}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Sweep, test, prove, and print what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="SHARDS", help="TRAIN, VALID and TEST")
    parser.add_argument("--to", required=True, metavar="DIRECTORY", help="of what comes out")
    parser.add_argument("--C", default="0.1,1,10", help="prices of a slack, between commas")
    parser.add_argument("--rho", default="0,1", help="augmentations, between commas")
    parser.add_argument("--workers", type=int, help="candidates side by side, in so many processes")
    parser.add_argument("--scheduler", help="or on the workers of this Dask scheduler")
    parser.add_argument("--tiny", action="store_true", help="on a small generated corpus")
    chosen = parser.parse_args(arguments)
    if len(chosen.parts) != (0 if chosen.tiny else 3):
        parser.error("name TRAIN, VALID and TEST, or give --tiny alone")
    directory = Path(chosen.to)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        parts = write_tiny(directory) if chosen.tiny else chosen.parts
    except streamtron.errors.StreamtronError as error:
        raise SystemExit(f"sweep: {error}") from None
    where = ""
    if chosen.workers or chosen.scheduler:
        name = "workers" if chosen.workers else "scheduler"
        where = f"--{name} {shlex.quote(str(chosen.workers or chosen.scheduler))}"
    (directory / "sweep.toml").write_text(jobs(parts, chosen.C, chosen.rho, where))
    command = [
        sys.executable,
        "-P",
        "-m",
        "streamtron",
        "batch",
        str(directory / "sweep.toml"),
    ]
    code = subprocess.run(command, check=False).returncode
    if code:
        raise SystemExit(code)
    show(directory)


if __name__ == "__main__":
    main()
