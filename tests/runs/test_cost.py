"""What fits cost, held as snapshots: readings, visits, Newton steps, rounds, rows in memory, and
how near the optimum each reading comes. Bits are the same on every machine, so are these; after a
change that is meant, ``pytest --snapshot-update`` writes them again: their diff is read like code.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamtron
from streamtron import Machine, Settings, generate
from streamtron.core.events import Event, ReadingDone
from tests.helpers.svm_text import svm_lines, write_shards

SHARDS = 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of text, which has many columns, of few dense ones, of numbers, counts and classes."""
    directory, rng = tmp_path_factory.mktemp("place"), np.random.default_rng(0)
    generate(str(directory / "text"), rows=400, columns=1500, seed=1, shards=SHARDS)
    generate(str(directory / "dense"), rows=400, columns=20, seed=1, kind="dense", shards=SHARDS)
    X = np.round(rng.normal(size=(300, 60)), 2) * (rng.random((300, 60)) < 0.2)
    scores = X @ np.round(rng.normal(size=(60, 3)), 2) + 5.0
    labels = {
        "numbers": np.round(scores[:, 0] + rng.normal(size=300), 1),
        "counts": np.rint(np.maximum(scores[:, 0], 0.0)),
        "classes": scores.argmax(axis=1),
    }
    for name, own in labels.items():
        write_shards(directory / name, svm_lines(X, own), SHARDS)
    return directory


TENTH = {"text": 20_000, "dense": 8_000, "numbers": 4_500, "counts": 4_500, "classes": 13_500}
"""Memory for about a tenth of the rows."""

ALONE: dict[str, list[dict[str, Any]]] = {
    "text": [
        *({"C": C} for C in (0.1, 1.0, 50.0)),
        *({"C": C, "loss": loss} for C in (0.5, 50.0) for loss in ("log_loss", "hinge")),
        {"C": 1.0, "penalty": "l1"},
        {"C": 5.0, "penalty": "elasticnet", "loss": "log_loss"},
        {"C": 5.0, "tol": 1e-9},
        {"C": 5.0, "mini_epochs": 5},
        {"C": 5.0, "intercept": "free"},
        {"stage": "1,0.1", "tol": 0.05},
    ],
    "dense": [
        *({"C": C} for C in (0.01, 50.0, 1e4)),
        *({"C": 50.0, "loss": loss} for loss in ("log_loss", "hinge")),
        {"C": 50.0, "penalty": "l1"},
        {"C": 5.0, "tol": 0.0},
        {"C": 5.0, "intercept": "none", "tol": 1e-9},
    ],
    "numbers": [
        {"loss": loss}
        for loss in ("squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive")
    ],
    "counts": [{"loss": "poisson"}, {"loss": "poisson", "C": 50.0}],
    "classes": [{"loss": "softmax"}, {"multiclass": True, "C": 50.0}],
}

IN_PARTS: dict[str, list[dict[str, Any]]] = {
    "text": [{"C": 1.0}, {"C": 0.5, "loss": "hinge"}],
    "dense": [{"C": 50.0}, {"C": 0.5, "loss": "log_loss"}, {"C": 0.5, "loss": "hinge"}],
    "numbers": [{"loss": "huber"}],
    "counts": [{"loss": "poisson"}],
    "classes": [{"multiclass": True, "C": 5.0}],
}

CASES = [
    (corpus, {**fit, **parts, **memory})
    for table, parts in ((ALONE, {}), (IN_PARTS, {"parts": SHARDS}))
    for corpus, fits in table.items()
    for fit in fits
    for memory in ({}, {"active_set": TENTH[corpus]})
]
"""Every fit with all rows in memory, and with a tenth of them."""

CASES += [
    *(("text", {"C": 5.0, "tol": tol, "active_set": 90_000}) for tol in (1e-7, 0.0)),
    ("text", {"C": 1.0, "tol": 1e-10, "active_set": TENTH["text"], "max_epochs": 20}),
    ("text", {"C": 0.5, "loss": "hinge", "active_set": TENTH["text"], "max_epochs": 12}),
    ("text", {"C": 100.0, "tol": 1e-9, "mini_epochs": 500}),
    ("text", {"C": 500.0, "tol": 1e-6}),
    ("dense", {"C": 5.0, "active_set": 100}),  # less than a row
    ("text", {"C": 50.0, "mini_epochs": 9}),
    *(("text", {"C": 500.0, "mini_epochs": most}) for most in (8, 10, 500)),
    ("text", {"C": 5.0, "loss": "log_loss", "active_set": 90_000}),  # those that matter
    ("text", {"C": 20.0, "intercept": "free", "active_set": TENTH["text"]}),
    ("text", {"C": 5.0, "intercept": "free", "active_set": 900}),  # two rows
    ("text", {"C": 0.5, "loss": "log_loss", "parts": SHARDS}),
    ("dense", {"penalty": "l1", "parts": SHARDS}),
    ("dense", {"stage": "1", "variant": "steps", "faithful": True}),
    *(("dense", {"stage": "1,0.1", "b": (0.2, 0.2), "tol": 0.0, "max_epochs": k}) for k in (4, 5)),
]


@pytest.mark.parametrize(("corpus", "how"), CASES, ids=str)
def test_cost(corpus, how, place, snapshot):
    events: list[Event] = []
    settings = Settings.from_dict({"max_epochs": 6, **how})
    machine = Machine(threads=1)
    report = streamtron.run(place / corpus, settings, machine=machine, listen=events.append).report
    phases = {name for name, seconds in report["phases"].items() if seconds > 0.0}
    assert phases >= {"preparing", "solving"} | ({"scanning"} if "parts" not in how else set())
    assert cost(events, report) == snapshot


def cost(events: list[Event], report: Mapping[str, Any]) -> str:
    """What the readings of all learners cost, and the rounds of parts."""
    lines = [str(event) for event in events if isinstance(event, ReadingDone)]
    rounds = {name: step["rounds"] for name, step in report.get("steps", {}).items()}
    for learner in report.get("learners", [report]):
        told = {**report, **learner}
        steps = [reading["newton_steps"] for reading in told["history"]]
        visits = f"{told['visits']:.3f} visits, {report['readings']:.3f} readings"
        lines.append(f"{told['stop_reason']}, {visits}, Newton steps {steps}, {rounds}")
    return "\n".join(lines)


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("text", {"C": 0.1, "tol": 0.05}),
    ("text", {"C": 5.0, "loss": "hinge", "active_set": TENTH["text"]}),
    ("text", {"C": 50.0, "loss": "log_loss", "tol": 1e-9, "active_set": 7_500}),
    ("text", {"C": 0.5, "penalty": "elasticnet", "tol": 1e-4, "active_set": TENTH["text"]}),
    ("dense", {"C": 50.0, "active_set": TENTH["dense"]}),
    ("dense", {"C": 0.5, "active_set": TENTH["dense"], "parts": 3}),
    ("dense", {"C": 0.5, "penalty": "l1", "tol": 1e-6}),
    ("numbers", {"loss": "huber"}),
    ("classes", {"multiclass": True, "tol": 0.05}),
]


@pytest.mark.parametrize(("corpus", "how"), CHANGES, ids=str)
def test_cost_of_new_rows_and_of_rows_that_go(corpus, how, place, tmp_path, snapshot):
    """A tenth of a shard comes in, a shard, and a shard goes out."""
    *first, last = sorted((place / corpus).iterdir())
    (tmp_path / "few.svm").write_text("".join(last.read_text().splitlines(keepends=True)[:10]))
    machine = Machine(threads=1)
    settings = Settings.from_dict({"max_epochs": 6, **how})
    streamtron.run(first, settings, model=tmp_path / "m", machine=machine)
    costs = []
    for change, shard in (
        (streamtron.update, tmp_path / "few.svm"),
        (streamtron.update, last),
        (streamtron.forget, first[0]),
    ):
        events: list[Event] = []
        done = change(tmp_path / "m", shard, machine=machine, listen=events.append)
        costs.append(cost(events, done.report))
    assert "\n".join(costs) == snapshot
