"""The history of a certificate, its plot, the plot of margins, and what a notebook shows."""

import html
import json
import re
import sys
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

import streamtron
from streamtron.core.errors import DataError, SettingsError
from tests.helpers.models import make_model

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with shards, more shards, and topics of three classes."""
    place = tmp_path_factory.mktemp("display")
    streamtron.generate(str(place / "train"), rows=800, columns=400, seed=5, shards=2)
    streamtron.generate(str(place / "more"), rows=60, columns=400, seed=5, first_row=800)
    rng = np.random.default_rng(0)
    rows = (f"{k % 3} {1 + k % 3}:1 {4 + rng.integers(9)}:{rng.random():.3f}\n" for k in range(90))
    (place / "topics.svm").write_text("".join(rows))
    return place


@pytest.fixture(scope="module")
def outcome(place):
    """A fit of the shards, with its report."""
    settings = streamtron.Settings(tol=1e-3)
    return streamtron.run(place / "train", settings, report=place / "report.json")


@pytest.fixture(scope="module")
def topics(place):
    """A fit of the topics."""
    return streamtron.run(place / "topics.svm", streamtron.Settings(multiclass=True))


@pytest.fixture(scope="module")
def swept(place):
    """A sweep of two candidates."""
    return streamtron.sweep(place / "train", valid=place / "more", C=[0.001, 1.0], tol=0.5)


@pytest.fixture(autouse=True)
def _no_figure_is_left():
    yield
    plt.close("all")


def test_report_and_model_have_bounds_of_every_reading_and_the_report_its_seconds(place, outcome):
    report = json.loads((place / "report.json").read_text())
    history, certificate = report["history"], report["certificate"]
    assert [row["reading"] for row in history] == list(range(1, round(report["readings"]) + 1))
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
    untimed = [{name: row[name] for name in row if name != "seconds"} for row in history]
    assert outcome.model.certificate["history"] == untimed


@pytest.mark.parametrize(
    "settings", [{"stage": "1.5,1,0.5", "active_set": 20_000}, {"active_set": 20_000}, {}]
)
def test_a_reading_is_called_proven_where_it_made_a_certificate(place, settings):
    told: list[streamtron.events.Event] = []
    how = {"tol": 1e-3, "max_epochs": 30, "listen": told.append}
    history = streamtron.fit(place / "train", **how, **settings).certificate["history"]
    done = [event for event in told if isinstance(event, streamtron.events.ReadingDone)]
    assert [row["proven"] for row in history] == [event.certificate is not None for event in done]
    assert len(history) > 1
    if "active_set" in settings:  # P is not known where not all rows are in memory
        assert {row["lower"] for row in history if not row["proven"]} == {None}
    assert history[0]["upper"] > 0


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


def test_a_resumed_run_goes_on_with_its_history_and_its_clock(place):
    reports = []
    for most in (2, 4):
        settings = streamtron.Settings(active_set=30_000, tol=1e-6, max_epochs=most)
        how = {"model": place / "resumed.st", "resume": True}
        reports.append(streamtron.run(place / "train", settings, **how).report)
        streamtron.fit(place / "train", tol=1e-9)  # time that is not the run's
    before, after = (report["history"] for report in reports)
    assert after[: len(before)] == before
    assert len(after) > len(before)
    seconds = [row["seconds"] for row in after]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= reports[1]["seconds"]


def _points(line: Any) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]


def test_the_plot_of_the_certificate_has_every_bound_and_marks_what_is_an_estimate(place, outcome):
    top, bottom = outcome.model.plot_certificate()
    history = outcome.model.certificate["history"]
    drawn = {line.get_label(): _points(line) for line in (*top.lines, *bottom.lines)}
    for name, label in (("upper", "upper bound"), ("lower", "lower bound"), ("gap", "gap")):
        assert drawn[label] == [(row["reading"], row[name]) for row in history]
    assert [y for _, y in drawn["tol = 0.001"]] == [1e-3, 1e-3]
    hollow = [_points(line) for line in top.lines if line.get_markerfacecolor() == "white"]
    assert hollow[:2] == [[(1.0, history[0][name])] for name in ("upper", "lower")]
    top.figure.savefig(place / "certificate.png")
    own = plt.figure().subplots(2, 1)
    assert outcome.model.plot_certificate(axes=own)[0] is own[0]


def test_every_class_has_its_history_and_the_plot_shows_one_that_is_named_or_the_widest_gap(topics):
    proven = topics.model.certificate["learners"]
    gaps = [learner["relative_duality_gap"] for learner in proven]
    for learners in (proven, topics.report["learners"]):
        assert [learner["history"][-1]["gap"] for learner in learners] == gaps
    for label, gap in ((None, max(gaps)), (1.0, gaps[1])):
        _, bottom = topics.model.plot_certificate(label=label)
        assert _points(bottom.lines[0])[-1][1] == gap
    for model in (topics.model, make_model()):
        with pytest.raises(SettingsError, match="label 7"):
            model.plot_certificate(label=7)


def test_a_model_without_a_history_or_a_machine_without_a_library_is_told_so(monkeypatch):
    with pytest.raises(SettingsError, match="no history"):
        make_model().plot_certificate()
    for library in ("matplotlib.pyplot", "pandas"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SettingsError, match=r"Install streamtron\[plot\]"):
        make_model().plot_margins(np.eye(3), [-1, 1, 1])
    with pytest.raises(SettingsError, match="Install pandas"):
        streamtron.explain(make_model()).to_frame()


def test_the_plot_of_margins_counts_every_row_on_the_side_where_it_is(place):
    model = make_model(weights=(1.0, -2.0), bias=0.5, classes=("ham", "spam"))
    X = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [4.0, 0.0]])
    ax = model.plot_margins(X, ["spam", "spam", "ham", "spam"])  # 1.5, −1.5, −0.5, 4.5
    bars = [(bar.get_x(), bar.get_x() + bar.get_width(), bar.get_height()) for bar in ax.patches]
    assert sum(height for _, _, height in bars) == 4
    for margin in (1.5, -1.5, -0.5, 4.5):
        assert any(low <= margin <= high + 1e-9 and height for low, high, height in bars)
    assert [line.get_label() for line in ax.lines] == [
        "50.0% of the rows at 0 or below",
        "50.0% of the rows below 1",
    ]
    with pytest.raises(DataError, match="y: the label 'eggs'"):
        model.plot_margins(X, ["spam", "eggs", "ham", "spam"])
    with pytest.raises(DataError, match="Wanted one label a row"):
        model.plot_margins(X, ["spam"])


def test_the_margin_of_many_classes_is_that_to_the_next_one():
    three = np.eye(3), np.zeros(3), ("a", "b", "c")
    model = make_model(*three, certificate={})
    ax = model.plot_margins(np.array([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]]), ["a", "b"])  # 2, −2
    bars = [bar for bar in ax.patches if bar.get_height()]
    assert (len(bars), bars[0].get_x()) == (2, -2.0)
    assert bars[1].get_x() + bars[1].get_width() == pytest.approx(2.0)
    with pytest.raises(SettingsError, match="multilabel"):
        make_model(*three, certificate={}, multilabel=True).plot_margins(np.eye(3), ["a", "b", "c"])


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


def test_what_the_functions_return_is_short_in_text(place, topics, swept):
    assert repr(topics).startswith("Outcome(certified; LinearModel(classes 0, 1, 2; kind multi")
    proof = streamtron.certify(topics.model, place / "topics.svm")
    gap = max(bound.certificate.relative_duality_gap for _, bound in proof.classes)
    told = re.fullmatch(
        r"Proof\(relative duality gap (.*), rows 90, classes 3, readings (.*)\)", repr(proof)
    )
    assert gap <= float(told[1]) < 1.01 * gap
    assert float(told[2]) == pytest.approx(proof.readings, rel=1e-2)
    assert "<th>rows</th><td>90</td>" in proof._repr_html_()
    best = f"C {swept.best.settings.C:g}, rho 1 with accuracy {swept.best.metrics['accuracy']:.4g}"
    assert repr(swept) == f"Sweep(best of 2: {best})"


def test_a_notebook_shows_tables_in_which_labels_are_escaped(outcome):
    model = make_model(classes=("<a>", "b"), settings={"C": 0.5, "rho": 1.0})
    assert "<td>&lt;a&gt;, b</td>" in model._repr_html_()
    assert "<th>C</th><td>0.5</td>" in model._repr_html_()
    shown = outcome.model.certificate._repr_html_()
    assert shown in outcome.model._repr_html_()
    assert "<th>upper bound</th>" in shown


def cells(page: str) -> list[list[str]]:
    """The cells of tables, a list a row."""
    rows = (re.findall(r"<t[hd][^>]*>(.*?)</t", row) for row in re.findall(r"<tr>(.*?)</tr>", page))
    return [[html.unescape(cell) for cell in row] for row in rows]


def test_what_evaluate_explain_and_sweep_return_is_a_table_and_a_data_frame(place, outcome, swept):
    (place / "odd.svm").write_text("<b> 1:1\n<b> 2:1\nc 3:1\nd 4:1\n" * 9)
    model = streamtron.fit(place / "odd.svm", multiclass=True)
    measured = streamtron.evaluate(model, place / "odd.svm")
    frame = measured.to_frame()
    assert frame["class"].tolist() == ["<b>", "c", "d"]
    assert frame["recall"].tolist() == [row["recall"] for row in measured.classes]
    rows = cells(measured._repr_html_())
    assert ["accuracy", "1"] in rows
    assert [row[0] for row in rows[-3:]] == ["<b>", "c", "d"]
    two = streamtron.evaluate(outcome.model, place / "more")
    assert dict(two.to_frame().values)["accuracy"] == two.accuracy
    assert ["accuracy", f"{two.accuracy:.4g}"] in cells(two._repr_html_())

    for where in ({"most": 2}, {"shards": place / "odd.svm", "row": 0}):
        explained = streamtron.explain(model, **where)
        listed = [f["weight"] for d in explained["directions"] for f in d["features"]]
        assert explained.to_frame()["weight"].tolist() == listed
        heads, *rows = cells(explained._repr_html_())
        weights = [row[heads.index("weight")] for row in rows]
        assert weights == [f"{weight:.4g}" for weight in listed]

    assert swept.to_frame().to_dict("records") == swept.rows()
    heads, *rows = cells(swept._repr_html_())
    assert sorted(row[heads.index("best")] for row in rows) == ["", "yes"]
    assert "worker" not in heads
    for row, exact in zip(rows, swept.rows(), strict=True):
        assert float(row[heads.index("relative duality gap")]) >= exact["relative_duality_gap"]
        least, most = (row[heads.index(f"accuracy at {end}")] for end in ("least", "most"))
        assert float(least) <= exact["accuracy_at_least"] < float(least) + 1e-3
        assert float(most) >= exact["accuracy_at_most"] > float(most) - 1e-3


def test_where_nothing_is_proven_the_certificate_is_empty_and_says_what_to_do():
    model = make_model(certificate={})
    assert not model.certificate
    assert repr(model.certificate) == "ModelCertificate(nothing proven)"
    with pytest.raises(KeyError, match=r"use streamtron\.certify"):
        model.certificate["relative_duality_gap"]
    assert make_model(certificate=None) == model
