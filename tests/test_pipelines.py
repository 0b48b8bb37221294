"""The pipelines run as they are written, on public names only."""

import ast
import csv
import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType

import pytest

import streamtron
from tests.helpers.processes import Ended, Process, succeeded
from tests.helpers.sources import dense, random_rows
from tests.helpers.svm_text import svm_lines

PIPELINES = Path(__file__).resolve().parents[1] / "pipelines"


@pytest.fixture(scope="module")
def paper_tables() -> ModuleType:
    """The script as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PIPELINES)
        return importlib.import_module("paper_tables")


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    """Sixty random rows as libsvm text."""
    rows, labels = random_rows(0, 60, 5)
    path = tmp_path / "small.svm"
    path.write_text("".join(svm_lines(dense(rows, 5), labels)))
    return path


@pytest.mark.parametrize("script", sorted(PIPELINES.glob("*.py")), ids=lambda path: path.stem)
def test_a_pipeline_uses_public_names_only_and_is_named_in_the_readme(script):
    assert script.name in (PIPELINES / "README.md").read_text()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamtron"):
            assert node.module == "streamtron"
            assert {alias.name for alias in node.names} <= set(streamtron.__all__)
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("streamtron.") for alias in node.names)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id != "streamtron" or node.attr in streamtron.__all__


def _pipeline(script: str, *words: object, cwd: Path = PIPELINES) -> Ended:
    run = f"import runpy; runpy.run_path({str(PIPELINES / script)!r}, run_name='__main__')"
    return Process(run, *words, cwd=cwd).end()


def _lines(script: str, *words: object) -> list[str]:
    """What a pipeline prints that does well."""
    return succeeded(_pipeline(script, *words)).stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(("topics", "workers"), [("CCAT", ()), ("CCAT,GCAT", ("--workers", "2"))])
def test_rcv1_in_two_stages_sweeps_every_topic_and_goes_on_where_it_was(topics, workers, tmp_path):
    options = f"--tiny --topics {topics} --delta 0.3,1000"
    words = ("rcv1_two_stage.py", tmp_path / "rcv1", *options.split(), *workers)
    shown = succeeded(_pipeline(*words)).stdout.split("topic ")[1]
    work = tmp_path / "rcv1" / "work"
    for topic in topics.split(","):
        with open(work / f"{topic}.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert {row["worker"] for row in rows} <= ({"0", "1"} if workers else {"local"})
        # counts of the first stage, a few a row, are too coarse for the 10⁻⁴ of a sweep; those of
        # the second meet it where delta is huge, so that all slacks are paid
        assert [(row["stage"], row["iteration"]) for row in rows] == [("0.1", "1")] * 2
        assert [row["stop_reason"] for row in rows] == ["converged", "certified"]
        assert [float(row["tol"]) for row in rows] == [1e-4] * 2
        assert float(rows[0]["relative_duality_gap"]) <= 0.01
        for row in rows:
            assert f"{1e3 * float(row['upper_bound']):.5f}" in shown
        report = json.loads((work / f"{topic}.json").read_text())
        assert report["rows"] == 600
        [best] = [row for row in rows if row["best"] == "True"]
        assert report["settings"]["delta"] == float(best["delta"])
    again = succeeded(_pipeline(*words))
    assert "running" not in again.stdout
    assert again.stdout.split("topic ")[1] == shown


def test_rcv1_refuses_a_file_that_has_changed_or_that_is_not_what_is_known(tmp_path):
    tiny = ("rcv1_two_stage.py", tmp_path, "--tiny", "--topics", "none")
    first = _pipeline(*tiny)
    assert first.returncode == 1
    assert first.stderr == "rcv1_two_stage: no topic none; there are C11, CCAT, GCAT.\n"
    vectors = tmp_path / "lyrl2004_vectors_test_pt0.dat"
    vectors.write_text(vectors.read_text().replace("2286 ", "2286  1:0.5 ", 1))
    changed = _pipeline(*tiny)
    assert changed.returncode == 1
    assert changed.stderr.startswith(f"rcv1_two_stage: {vectors}: its SHA-256 is ")
    (tmp_path / "hashes.json").unlink()
    (tmp_path / "work" / "topics.json").unlink()
    real = _pipeline("rcv1_two_stage.py", tmp_path)
    assert real.returncode == 1
    assert "600 rows and 60 columns, where 199,328 and 47,236 are known" in real.stderr


@pytest.mark.slow
def test_a_sweep_ends_with_its_best_model_tested_and_proven(tmp_path):
    words = ("sweep.py", "--tiny", "--to", tmp_path, "--C", "0.1,1", "--rho", "1")
    assert "the best one: accuracy 0.9" in succeeded(_pipeline(*words)).stdout


@pytest.mark.slow
def test_a_cluster_fits_one_model_and_adds_what_has_arrived(tmp_path):
    words = ("cluster_fit.py", "--tiny", "--to", tmp_path, "--workers", "2")
    first = succeeded(_pipeline(*words))
    assert "rounds over 6 parts" in first.stdout
    assert first.stdout.count(" bytes to it, ") == 2
    assert "accuracy" in first.stdout
    streamtron.generate(
        str(tmp_path / "train" / "more"), rows=300, columns=500, seed=1, first_row=9000, shards=1
    )
    assert "rounds over 7 parts" in _pipeline(*words).stdout
    assert json.loads((tmp_path / "report.json").read_text())["rows"] == 3300


@pytest.mark.parametrize(
    ("script", "words", "code", "sentence"),
    [
        ("paper_tables.py", ("bad.svm", "--set", "adult"), 1, "paper_tables: bad.svm, line 1"),
        ("nightly_update.py", ("m", "inbox"), 3, "bad.svm, line 1"),
        ("rcv1_two_stage.py", ("away",), 1, "there is neither lyrl2004_vectors_test_pt0.dat nor "),
        (
            "raw_text.py",
            ("a.jsonl", "a.jsonl", "--to", "."),
            1,
            "the transformer cannot be fitted on the first 1 rows",
        ),
    ],
)
def test_a_pipeline_ends_with_a_sentence_of_what_is_wrong(
    script, words, code, sentence, tmp_path, monkeypatch
):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # nothing can be fetched
    (tmp_path / "inbox").mkdir()
    for place in (tmp_path, tmp_path / "inbox"):
        (place / "bad.svm").write_text("1 1:nan\n-1 1:2\n")
    (tmp_path / "a.jsonl").write_text('{"text": 1, "kind": "a"}\n')
    done = _pipeline(script, *words, cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert sentence in done.stderr


def test_paper_tables_prints_both_tables_beside_the_papers_figures(small_file):
    words = (small_file, "--set", "adult", "--table", "all", "--tiny", "--epochs", "2000")
    said = "\n".join(_lines("paper_tables.py", *words))
    for figure in ("6.8839", "11.352", "577", "8.3274", "0.838", "8.4917", "0.942"):
        assert figure in said
    assert "t-Margitron, ε = 0.001" in said
    assert "ℓ-Margitron, ε = 0.0005" in said


def test_the_geometric_margin_leaves_the_augmentation_out(paper_tables, small_file):
    """Against min y·a / √(‖w‖² + Σ Δ² c²) from the model's own weights and α."""
    paper = paper_tables.Paper("", 1, 1, 1, 1, 1, 1, 1, 1, None, None)
    outcome, (_, second) = paper_tables.faithful_run(
        str(small_file), paper, paper_tables.Effort(5000)
    )
    directional = second["directional_margin"]
    alphas = outcome.alphas[0].dense(outcome.manifest.rows).astype(float)
    square = float((outcome.model.weights**2).sum()) + float((alphas**2).sum())
    length = math.sqrt(square + outcome.model.bias**2)
    expected = directional * length / math.sqrt(square)
    assert paper_tables.geometric_margin(outcome, directional, 1) == pytest.approx(expected)


def test_adult_shows_the_papers_first_stage_to_its_last_digit(paper_tables, shared_data):
    paper, effort = paper_tables.PAPER["adult"], paper_tables.Effort(1000)
    _, [first] = paper_tables.faithful_run(str(shared_data / "a9a.xz"), paper, effort, stage="1")
    assert 1e3 * first["directional_margin"] == pytest.approx(6.884, abs=0.0005)
    assert 1e3 * first["paper_upper_bound"] == pytest.approx(11.352, abs=0.0005)
    assert first["b_relative"] == pytest.approx(5.0)


@pytest.mark.slow
def test_adult_shows_the_papers_second_stage_within_its_chance(paper_tables, shared_data):
    paper, effort = paper_tables.PAPER["adult"], paper_tables.Effort(10_000)
    _, (_, second) = paper_tables.faithful_run(str(shared_data / "a9a.xz"), paper, effort)
    assert 1e5 * second["b_relative"] == pytest.approx(577, abs=0.5)
    assert 1e3 * second["directional_margin"] == pytest.approx(8.3274, rel=0.0015)
    assert second["f_est"] == pytest.approx(0.838, abs=0.001)


def test_the_nightly_update_takes_what_is_complete_and_skips_what_the_run_has():
    first, second, third = _lines("nightly_update.py", "--tiny")
    assert first.startswith("300 rows, gap ")
    assert second == first  # the new shard is there, and its directory has no _SUCCESS
    assert third.startswith("900 rows, gap ")


def test_raw_text_ends_with_a_proven_model_that_reads_documents(tmp_path):
    lines = _lines("raw_text.py", "--tiny", "--to", tmp_path)
    first, accuracy, gap = (line.split()[-1] for line in lines)
    assert first == "features"
    assert float(accuracy) > 0.95
    assert float(gap) <= 0.01
    model = streamtron.load(tmp_path / "model")
    (tmp_path / "new.csv").write_text('text\n"Return the name of a file."\n"return self.x[0]"\n')
    [scores] = streamtron.predict(model, tmp_path / "new.csv")
    assert scores.labels.tolist() == ["docstring", "source"]


def test_linear_probes_end_with_what_embeddings_know_and_how_well_that_is_proven(tmp_path):
    lines = _lines("linear_probe.py", "--tiny", "--to", tmp_path, "--C", "10")
    assert len(lines) == 2  # of the topic, and of the length
    for line in lines:
        assert 0.5 < float(line.split()[2]) < 1.0
        assert float(line.split()[-1]) <= 1e-3
