"""The history of a certificate, and models and certificates in a line of text."""

import json
import re

import numpy as np
import pytest

import streamtron
from tests.helpers.models import make_model


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with shards, and more shards."""
    place = tmp_path_factory.mktemp("display")
    streamtron.generate(str(place / "train"), rows=800, columns=400, seed=5, shards=2)
    streamtron.generate(str(place / "more"), rows=60, columns=400, seed=5, first_row=800)
    return place


@pytest.fixture(scope="module")
def outcome(place):
    """A fit of the shards, with its report."""
    settings = streamtron.Settings(tol=1e-3)
    return streamtron.run(place / "train", settings, report=place / "report.json")


def test_report_and_model_have_bounds_of_every_reading_and_the_report_its_seconds(place, outcome):
    report = json.loads((place / "report.json").read_text())
    history, certificate = report["history"], report["certificate"]
    assert [row["reading"] for row in history] == [1, 2]  # solved in memory, and scanned there
    [first, last] = history
    assert 0 < first["seconds"] < last["seconds"] <= report["seconds"]
    assert (first["proven"], last["proven"]) == (False, True)
    assert last["lower"] == certificate["primal_margin"]
    assert last["upper"] == certificate["upper_bound"]
    assert last["gap"] == certificate["relative_duality_gap"]
    assert "history" not in certificate
    # all rows were in memory, and solved: what the scan then proves is known but for rounding
    for name in ("lower", "upper"):
        assert first[name] == pytest.approx(last[name], rel=1e-3)
    assert first["gap"] == 1 - (first["lower"] / first["upper"]) ** 2
    own = dict(outcome.model.certificate)
    untimed = [{name: row[name] for name in row if name != "seconds"} for row in history]
    assert own.pop("history") == untimed
    del own["ball"]  # which belongs to the offsets in the model
    assert {**own, "rows_excluded": 0} == certificate
    names = "rows columns nonzeros readings full_epochs bytes_read peak_rss_bytes settings stages"
    assert {*names.split()} <= set(report)


@pytest.mark.parametrize("tol", [1e-3, 0.2])  # the latter is proven by the new rows alone
def test_an_update_begins_a_history_of_its_own(place, tmp_path, tol):
    model = streamtron.fit(place / "train", model=tmp_path / "updated.st", tol=tol)
    changed = streamtron.update(tmp_path / "updated.st", place / "more").report
    history = changed["history"]
    alone = tol == 0.2
    assert (changed["readings"] < 1, [row["reading"] for row in history] == [0]) == (alone, alone)
    assert history[-1]["proven"]
    assert history[-1]["gap"] == changed["certificate"]["relative_duality_gap"]
    assert model.certificate["history"][-1]["upper"] not in [row["upper"] for row in history]
    assert history[-1]["seconds"] <= changed["seconds"]
    again = streamtron.update(tmp_path / "updated.st", place / "more")  # has them already
    assert again.report["history"] == history


def test_a_model_and_a_certificate_are_short_in_text_and_true(outcome):
    proven = outcome.model.certificate
    assert repr(outcome.model).startswith(
        "LinearModel(classes -1, 1; columns 400; relative duality gap 0."
    )
    told = re.fullmatch(
        r"ModelCertificate\(relative duality gap (.*), primal objective (.*), dual objective (.*), "
        r"lower bound (.*), upper bound (.*), rows 800\)",
        repr(proven),
    )
    gap, primal, dual, lower, upper = map(float, told.groups())
    assert gap >= proven["relative_duality_gap"]
    assert primal >= proven["primal_objective"]
    assert dual <= proven["dual_objective"]
    assert lower <= proven["primal_margin"]
    assert upper >= proven["upper_bound"]
    many = make_model(np.zeros((40, 2)), np.zeros(40), tuple(map(float, range(40))), certificate={})
    assert repr(many) == (
        "LinearModel(classes 0, 1, 2, … (40 in all); kind multiclass; columns 2; no certificate)"
    )


def test_where_nothing_is_proven_the_certificate_is_empty_and_says_what_to_do():
    model = make_model(certificate={})
    assert not model.certificate
    assert repr(model.certificate) == "ModelCertificate(nothing proven)"
    with pytest.raises(KeyError, match=r"use streamtron\.certify"):
        model.certificate["relative_duality_gap"]
    assert make_model(certificate=None) == model
