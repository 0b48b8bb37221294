"""What a user reads, held as snapshots: help, summaries and the page. After a change that is meant,
``pytest --snapshot-update`` writes them again; what varies by machine or version is masked."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import streamtron
from streamtron import generate
from streamtron.cli import main
from tests.helpers.processes import succeeded
from tests.helpers.runs import put_fact, report_of

MANY = "".join(f"{name} {1 + k}:1 20:{k}.5\n" for k, name in enumerate("abcdefghij")) * 4
MAILS = '{"t": "good fine day", "y": "a"}\n{"t": "bad awful day", "y": "b"}\n' * 4
NUMBERS = "".join(f"{0.5 * k} 1:{k} 2:{k % 3}\n" for k in range(1, 60))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of two classes, of many and of numbers, and a model of each."""
    directory = tmp_path_factory.mktemp("place")
    for name, rows, first in (("train", 600, 0), ("held-out", 200, 600)):
        generate(str(directory / name), rows=rows, columns=80, seed=1, shards=2, first_row=first)
    (directory / "many.svm").write_text(MANY)
    (directory / "numbers.svm").write_text(NUMBERS)
    (directory / "mails.jsonl").write_text(MAILS)
    for name, shards, how in (
        ("two", "train", {}),
        ("many", "many.svm", {"multiclass": True}),
        ("numbers", "numbers.svm", {"loss": "squared_error"}),
        ("sparse", "train", {"loss": "log_loss", "penalty": "l1", "C": 0.5}),
        ("mails", "mails.jsonl", {"text": "t", "label": "y"}),
    ):
        streamtron.fit(directory / shards, model=directory / name, tol=1e-6, **how)
    calibrated = streamtron.calibrate(directory / "mails", directory / "mails.jsonl")
    calibrated.save(directory / "calibrated")
    return directory


def _masked(text: str) -> str:
    """The text with # for every number that is not whole, whose last digits depend on how far a
    fit went, for seconds, sizes, dates and versions."""
    phases = r"(?m)^( *)(seconds|preparing|waiting|scanning|solving) .*$"
    text = re.sub(phases, r"\1\2 #", text)
    text = re.sub(r"\d+(\.\d+)? [kM]?B\b|\d+\.\d+\.\d+|\d{4}-\d\d-\d\d", "#", text)
    text = re.sub(r" *[+-]?(\d+\.\d+(e[+-]?\d+)?|\d+e-\d+)", " #", text)
    lines = text.splitlines()  # headings above such numbers are as wide as these were
    return "\n".join(
        " ".join(x.split()) if x.endswith((" feature", "because")) else x for x in lines
    )


@pytest.mark.parametrize("command", ["", *sorted(main.streamtron.commands)])
def test_help(command, run, snapshot, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert succeeded(run(*command.split(), "--help")).stdout == snapshot
    monkeypatch.setenv("COLUMNS", "80")
    assert len(run(*command.split(), "--help").stdout.splitlines()) <= 100, "two screens"


@pytest.mark.parametrize(
    "words",
    [
        "fit train --model again",
        "fit train --model steps --stage 1 --tol 0.5 -v",
        "fit train --model length --stage 1 --variant length --tol 0.5 -v",
        "fit train --model hinge --loss hinge -v",
        "fit train --model sparse2 --loss log_loss --penalty l1 --C 0.5",
        "fit mails.jsonl --text t --label y --model anew",
        "sweep train --valid held-out --C 0.1,1",
        "sweep train --valid held-out --penalty elasticnet --C 0.1 --l1-ratio 0.1,0.5,1",
        "sweep many.svm --valid many.svm --multilabel --C 0.01,1 --metric macro_roc_auc",
        "evaluate two held-out",
        "evaluate many many.svm --worst 2",
        "evaluate calibrated mails.jsonl",
        "evaluate numbers numbers.svm",
        "explain two --most 3",
        "explain many many.svm --row 3 --most 2",
        "explain numbers --most 2",
        "explain numbers numbers.svm --row 3",
        "explain mails",
        "explain mails mails.jsonl --row 3",
        "inspect train",
        "inspect sparse",
        "inspect mails",
        "inspect calibrated",
        "inspect numbers",
        "inspect numbers.svm",
        "certify two",
        "certify sparse",
        "certify mails",
    ],
)
def test_summary(words, run, snapshot):
    assert _masked(succeeded(run(*words.split())).stdout) == snapshot


class _Lines(HTMLParser):
    """Collects the texts of a page, a table row or a chart on one line each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines: list[list[str]] = [[]]
        self.skipped = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.skipped = tag in ("style", "title", "text")
        if tag in ("h1", "h2", "p", "tr", "div", "figcaption"):
            self.lines.append([])

    def handle_endtag(self, tag: str) -> None:
        self.skipped = False

    def handle_data(self, data: str) -> None:
        if not self.skipped and data.strip():
            self.lines[-1].append(" ".join(data.split()))


NAMES = "reading seconds lower upper gap proven active_rows newton_steps"
HISTORY = [
    dict(zip(NAMES.split(), (k, k + 1.0, 0.2, 0.4, 0.5**k, True, 9 - k, k), strict=True))
    for k in range(5)
]
HISTORY[0] |= {"lower": None, "gap": None, "proven": False}


@pytest.mark.parametrize(
    ("model", "valid"),
    [
        ("two", "held-out"),
        ("many", "many.svm"),
        ("numbers", "numbers.svm"),
        ("sparse", "held-out"),
    ],
)
def test_page(model, valid, place, snapshot):
    report = report_of(place / f"{model}.run")
    common = {
        "relative_duality_gap": 0.005,
        "tol": 0.01,
        "readings": 2.0,
        "seconds": 1.0,
        "dropped": None,
        "stop_reason": "certified",
        "rho": 1.0,
    }
    if model == "two":
        report["history"], report["stages"] = HISTORY, []
        report["sweep"] = {
            "metric": "accuracy",
            "candidates": [
                {**common, "loss": "hinge", "C": 10.0**k, "accuracy": 0.75, "best": k == 2}
                for k in range(4)
            ],
        }
    for table in (report, *report.get("learners", ())):
        table |= {"full_epochs": 1, "newton_steps": 2, "readings": 2, "stages": []}
    put_fact(place / f"{model}.run", "report", report)
    streamtron.report(place / model, place / "page.html", valid=place / valid)
    lines = (" | ".join(line) for line in _Lines((place / "page.html").read_text()).lines if line)
    assert _masked("\n".join(lines)) == snapshot
