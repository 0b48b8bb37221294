"""What earlier releases wrote is read: a model and a run of each are kept in tests/files/releases.

How they are made: see "A release" in CONTRIBUTING.md.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import streamtron

RELEASES = sorted((Path(__file__).resolve().parents[1] / "files" / "releases").iterdir())


@pytest.fixture(params=[pytest.param(path, id=path.name) for path in RELEASES])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The files of a release, somewhere else than where they were written."""
    return Path(shutil.copytree(request.param, tmp_path / "kept"))


def test_a_model_of_a_release_decides_and_its_certificate_is_proven_again(kept: Path) -> None:
    model = streamtron.load(kept / "model")
    proven = streamtron.certify(model, kept / "rows.svm").certificate
    assert proven.primal == pytest.approx(model.certificate["primal_objective"])
    assert streamtron.evaluate(model, kept / "rows.svm").accuracy > 0.8


def test_a_run_of_a_release_is_certified_goes_on_and_learns_more_rows(kept: Path) -> None:
    old = streamtron.load(kept / "model").certificate
    run = streamtron.certify(kept / "model.run").certificate
    assert run.upper_bound == pytest.approx(old["upper_bound"])
    streamtron.generate(
        kept / "more", rows=30, columns=3, kind="dense", first_row=60, shards=1, seed=0
    )
    outcome = streamtron.update(kept / "model", kept / "more", tol=1e-6)
    assert outcome.report["rows"] == 90
    assert outcome.report["certificate"]["relative_duality_gap"] <= 1e-6
