"""Parts whose memory holds a tenth of rows of few columns: the others are one quadratic of all."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamtron.data.writers.corpus import generate
from streamtron.runs.certify import certify
from streamtron.runs.outcome import Outcome
from streamtron.runs.update import update
from tests.helpers.optimum import holds_optimum
from tests.runs import test_parts as of_parts

ROWS, COLUMNS, PARTS = 4000, 30, 5
TENTH = ROWS * (8 * COLUMNS + 24) // 10


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Dense rows in six shards, of which five are fitted."""
    place = tmp_path_factory.mktemp("dense")
    generate(str(place), rows=ROWS, columns=COLUMNS, seed=3, kind="dense", shards=PARTS + 1)
    return sorted(place.glob("*.svm"))


def trained(corpus: list[Path], model: Path | None = None, **names: Any) -> Outcome:
    return of_parts.trained(corpus[:PARTS], model, **{"active_set": TENTH, "C": 5.0} | names)


@pytest.mark.parametrize("C", [0.5, 50.0])
def test_a_tenth_of_the_rows_in_parts_takes_hardly_more_readings_than_in_one_process(
    corpus: list[Path], C: float
) -> None:
    found, alone = trained(corpus, C=C), trained(corpus, C=C, parts=1)
    assert found.stop_reason == "certified"
    assert holds_optimum(found.report, corpus[:PARTS])
    assert found.report["readings"] <= 1.5 * alone.report["readings"]
    assert found.report["rounds"] <= 30


def test_threads_lost_parts_and_a_death_of_the_client_change_no_bit(
    corpus: list[Path], tmp_path: Path
) -> None:
    train = partial(trained, corpus, tol=1e-6)
    of_parts.no_bit_changes(train, tmp_path, lambda rounds: {*range(2, rounds)}, [1])


def test_the_witness_proves_the_certificate_and_a_run_takes_more_rows(
    corpus: list[Path], tmp_path: Path
) -> None:
    found = trained(corpus, tmp_path / "m").report["certificate"]
    proof = certify(tmp_path / "m")
    assert proof.readings == 1.0
    assert proof.certificate.upper_bound == pytest.approx(found["upper_bound"], rel=1e-13)
    grown = update(tmp_path / "m", corpus[PARTS])
    assert (grown.report["parts"], grown.stop_reason) == (PARTS + 1, "certified")
    assert holds_optimum(grown.report, corpus)


def test_each_class_has_the_weights_of_its_own_fit(corpus: list[Path], tmp_path: Path) -> None:
    names = ("all", "0", "1", "2")
    for name in names:
        (tmp_path / name).mkdir()
    for shard in corpus[:PARTS]:
        rows = [line.split(" ", 1)[1] for line in shard.read_text().splitlines()]
        classes = [(3 * ("1:-" in row) + row.count("-")) % 3 for row in rows]
        for name in names:
            labels = (k if name == "all" else 1 if k == int(name) else -1 for k in classes)
            lines = [f"{label} {row}\n" for label, row in zip(labels, rows, strict=True)]
            (tmp_path / name / shard.name).write_text("".join(lines))
    found = trained(sorted((tmp_path / "all").glob("*.svm")), multiclass=True)
    assert found.stop_reason == "certified"
    for number, label in enumerate(found.model.classes):
        alone = trained(sorted((tmp_path / f"{label:g}").glob("*.svm")))
        assert (found.model.weights[number] == alone.model.weights).all(), label
