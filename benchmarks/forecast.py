"""Whether `inspect --plan` is right: memory, disk and seconds of whole fits beside its forecast.

    python benchmarks/forecast.py --rows 1000000

Peak memory is compared with the whole plan where Newton's method has solved rows, else with the
plan without its items.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from streamtron.core.config import Machine, Settings
from streamtron.data.writers.corpus import generate
from streamtron.runs.inspect import describe_shards

SETS: dict[str, tuple[dict[str, Any], float]] = {
    "clicks": ({"kind": "clicks", "format": "parquet"}, 1.0),
    "text": ({"kind": "text", "format": "parquet", "columns": 100_000}, 0.3),
    "text as libsvm": ({"kind": "text"}, 0.3),
    "dense": ({"kind": "dense", "format": "parquet", "columns": 100}, 0.5),
}
"""Name → how a corpus is generated, and its rows as a part of ``--rows``."""

FIT = "import sys; from streamtron.cli.main import main; main(sys.argv[1:])"


def fit(shards: str, model: Path, *options: str) -> dict[str, Any]:
    """Run a fit in a process of its own, and return its report."""
    report = model.with_suffix(".json")
    words = ["fit", shards, "--model", str(model), "--overwrite", "--report", str(report)]
    subprocess.run([sys.executable, "-c", FIT, *words, *options], check=True, capture_output=True)
    return dict(json.loads(report.read_text(encoding="utf-8")))


def main() -> None:
    """Compare forecasts and fits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--loss", nargs="+", default=["log_loss", "squared_hinge"])
    arguments = parser.parse_args()
    titles = "set loss active_set readings visits seconds forecast ratio memory disk phases"
    print("\t".join(titles.split()))
    with tempfile.TemporaryDirectory() as place:
        for name, (how, share) in SETS.items():
            rows = int(share * arguments.rows)
            shards = generate(f"{place}/{name}", rows=rows, seed=0, **how) and f"{place}/{name}"
            facts = describe_shards([shards], Settings(), Machine())
            tenth = f"{facts['plan']['items']['active set'] // 10**7}MB"
            for loss in arguments.loss:
                for given in ([], ["--active-set", tenth]):
                    settings = Settings(loss=loss, active_set=given[1] if given else None)
                    plan = describe_shards([shards], settings, Machine())["plan"]
                    shutil.rmtree(Path(place, f"{name}.model.run"), ignore_errors=True)
                    report = fit(shards, Path(place, name + ".model"), "--loss", loss, *given)
                    total = plan["total" if report["newton_steps"] else "total_of_visits"]
                    seconds = plan["preparing"] + plan["scanning"] + plan["solving"]
                    files = Path(place, name + ".model.run").rglob("*.cache")
                    cache = sum(file.stat().st_size for file in files)
                    print(
                        f"{name}\t{loss}\t{given[1] if given else 'all'}",
                        f"{report['readings']:.1f}\t{report['visits']:.1f}",
                        f"{report['seconds']:.2f}\t{seconds:.2f}",
                        f"{seconds / report['seconds']:.2f}",
                        f"{total / report['peak_rss_bytes']:.2f}\t{plan['disk'] / cache:.2f}",
                        *(f"{phase} {each:.2f}" for phase, each in report["phases"].items()),
                        *(f"({plan[phase]:.2f})" for phase in ("preparing", "scanning", "solving")),
                        sep="\t",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
