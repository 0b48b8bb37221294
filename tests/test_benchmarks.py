"""The benchmarks run, and judge everybody by the same objective."""

import doctest
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from streamtron.core.config import Settings
from tests.helpers.examples import slow_but
from tests.helpers.processes import Process

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """What imports a benchmark's module, as the scripts do: from their own directory."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def tiny(script: str, results: Path, *options: str) -> dict[str, Any]:
    """What a script saves, run as people run it; it fails where a bound does not hold."""
    command = [sys.executable, BENCHMARKS / f"{script}.py", *(options or ["--tiny"])]
    done = subprocess.run([*command, "--results", results], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((results / f"{script}.json").read_text())


def few_rows(load: Any) -> Any:
    """Forty dense random rows of four columns, the first one negative."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(40, 4)).astype(np.float32).astype(np.float64)
    labels = np.where(rows[:, 0] + 0.3 * random.normal(size=40) > 0, 1.0, -1.0)
    labels[0] = -1.0
    return load("problem").Data(sparse.csr_matrix(rows), labels)


LEARNERS = ("--generate", "200", "--candidates", "3", "--repeats", "1", "--pairs", "2")
FEW = "--generate 400 --columns 100 --candidates 2 --workers 1 --repeats 1"


def figures(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number in JSON, with its name."""
    inner = value.items() if isinstance(value, dict) else ()
    inner = [(name, item) for item in value] if isinstance(value, list) else inner
    for key, item in inner:
        yield from figures(item, key)
    if isinstance(value, float):
        yield name, value


OPTIONS = {"learners": LEARNERS, "workers": FEW.split()}
TINY = "parts certified updating reading wide startup in_memory criteo learners workers"


@pytest.mark.parametrize("script", slow_but(TINY.split(), "parts"))
def test_a_tiny_run_saves_finite_figures_and_gaps_that_are_proven(script, tmp_path):
    saved = tiny(script, tmp_path, *OPTIONS.get(script, ()))
    numbers = [*figures(saved)]
    assert any(number > 0.0 for name, number in numbers if name != "load"), saved
    assert all(np.isfinite(number) for _, number in numbers)
    assert all(number <= 0.01 for name, number in numbers if name == "gap")
    if script == "parts":  # rounds, and a vector each way
        [row] = saved["rows"]
        assert row["rounds"] == sum(row["steps"].values()) <= 20
        assert 0.5 < row["to"] < 2.2


def test_out_of_core_fits_with_all_rows_and_with_a_sixth_in_memory_for_each_tree(tmp_path):
    results, tree = tmp_path / "results.jsonl", BENCHMARKS.parent
    command = [sys.executable, BENCHMARKS / "out_of_core.py", "--tiny", "--results", results]
    command += ["--loss", "log_loss", "--trees", tree, tree]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    saved = [json.loads(line) for line in results.read_text().splitlines()]
    kinds = ["machine", *["fit", "fit", "medians", "medians"] * 2]
    assert [line["kind"] for line in saved] == kinds
    fits = [line for line in saved if line["kind"] == "fit"]
    assert [(fit["tree"], fit["held"]) for fit in fits] == [("A", 1), ("B", 1), ("A", 6), ("B", 6)]
    whole = 8 * 19_500 + 24 * 500
    assert [fit["active_set"] for fit in fits[1:3]] == [whole * 11 // 10, whole // 6]
    for fit in fits:
        assert fit["certified"]
        assert fit["gap"] <= 1e-3
        assert fit["seconds"] > fit["fit_seconds"] > 0.0
    assert "seconds of B / A in 2 cases: median" in done.stdout


@pytest.mark.slow
def test_vowpal_wabbits_weights_have_the_scale_of_its_predictions(load):
    vowpalwabbit = pytest.importorskip("vowpalwabbit")
    peers, data = load("peers"), few_rows(load)
    problem = load("problem").Problem.of(data, 1.0, 1.0, "log_loss")
    cache = peers.VowpalCache(load("problem").Data(problem.rows, problem.labels))
    v = peers.VowpalWabbit(problem, 8, "logistic", cache).run(8).v
    model = vowpalwabbit.Workspace(f"-i {cache.path}.model -t --quiet")
    row = problem.rows[0]
    text = " ".join(f"{j}:{x:.9g}" for j, x in zip(row.indices, row.data, strict=True))
    predicted = model.predict(f"| {text}")
    model.finish()
    cache.directory.cleanup()
    assert float((row @ v)[0]) == pytest.approx(predicted, rel=1e-4)


@pytest.mark.parametrize("script", ["reading", pytest.param("certified", marks=pytest.mark.slow)])
def test_a_file_that_is_refused_is_told_in_one_sentence(script, tmp_path):
    bad = tmp_path / "bad.svm"
    bad.write_text("1 1:nan\n-1 1:2\n")
    code = f"import runpy; runpy.run_path({str(BENCHMARKS / script)!r} + '.py', None, '__main__')"
    code = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); {code}"
    done = Process(code, bad, "--results", tmp_path, cwd=tmp_path).end()
    assert done.returncode == 1
    assert done.stderr.startswith(f"{script}: ")
    assert "line 1" in done.stderr
    assert "Traceback" not in done.stderr


EXAMPLES = "measure problem data peers ours certified out_of_core reading startup updating"


@pytest.mark.parametrize("name", EXAMPLES.split())
def test_the_examples_in_the_benchmarks_come_out_as_written(load, name):
    assert doctest.testmod(load(name)).failed == 0


def test_every_script_is_told_of_in_the_readme():
    readme = (BENCHMARKS / "README.md").read_text()
    assert [path.name for path in BENCHMARKS.glob("*.py") if path.name not in readme] == []


def test_the_least_primal_is_that_of_the_best_scale(load):
    problem = load("problem").Problem.of(few_rows(load), 3.0, 1.0)
    v = np.array([70.0, 1.0, 2.0, -3.0, 1.0])
    tried = min(problem.primal(s * v) for s in np.geomspace(1e-4, 1e2, 4000))
    assert problem.least_primal(v) == pytest.approx(tried, rel=1e-5)
    assert problem.least_primal(-v) == problem.primal(0 * v)


def test_an_optimum_outside_of_the_bounds_is_reported(load):
    certified, ours = load("certified"), load("ours")
    fit = SimpleNamespace(proofs=[ours.Proof(2, 0.1, primal=10.0, dual=9.0)])
    assert certified.unbracketed({0.1: fit}, 9.5) == []
    assert certified.unbracketed({0.1: fit}, 9.0 * (1 - 1e-10)) == []
    assert len(certified.unbracketed({0.1: fit}, 9.0 * (1 - 1e-8))) == 1
    assert len(certified.unbracketed({0.1: fit}, 10.0 * (1 + 1e-8))) == 1


@pytest.mark.parametrize("maker", ["Liblinear 1", "Liblinear 2", "SklearnLinear"])
def test_a_rival_of_the_same_objective_comes_to_the_optimum_we_certify(load, maker, tmp_path):
    if maker.startswith("Liblinear"):
        pytest.importorskip("liblinear")
    peers, ours = load("peers"), load("ours")
    data = few_rows(load)
    shard, cache = tmp_path / "rows.svm", str(tmp_path / "cache")
    load("data").write_libsvm(data, shard)
    ours.fill_cache([str(shard)], cache)
    fit = ours.fit([str(shard)], cache, Settings(C=2.0, rho=0.5, tol=1e-7))
    problem = load("problem").Problem.of(data, 2.0, 0.5)
    name, *solver = maker.split()
    peer = getattr(peers, name)(problem, *map(int, solver))
    run = peer.run(1e-8)
    assert fit.dual * (1 - 1e-9) <= peer.primal(run.v) <= fit.primal * (1 + 1e-6)
    assert run.passes >= 1
    assert peer.run(0.3).v.tobytes() == peer.run(0.3).v.tobytes()


def rival_of(load: Any, primals: list[float], seconds: list[float]) -> Any:
    """A rival whose settings are 0, 1, 2, … with the primals and seconds given."""
    run = load("peers").Run
    peer = SimpleNamespace(
        name="rival",
        settings=lambda: range(len(primals)),
        run=lambda k: run(seconds[k], np.array([float(k)]), 1.0),
        primal=lambda v: primals[int(v[0])],
    )
    return load("certified").Rival(peer)


def test_a_rival_stops_at_the_target_or_the_time_and_its_quickest_setting_is_taken(load):
    rival = rival_of(load, [9.0, 5.0, 3.0, 2.0, 1.0], [1.0, 4.0, 2.0, 3.0, 9.0])
    rival.search(target=2.5, time_limit=100.0)
    assert [run.primal for run in rival.runs] == [9.0, 5.0, 3.0, 2.0]
    assert rival.quickest(5.0).seconds == 2.0
    assert rival.quickest(2.5).setting == 3
    assert rival.quickest(1.5) is None
    rival = rival_of(load, [9.0, 5.0, 3.0], [1.0, 4.0, 2.0])
    rival.search(target=0.0, time_limit=4.5)
    assert [run.primal for run in rival.runs] == [9.0, 5.0]


def test_the_peak_of_a_fresh_process_leaves_out_what_its_parent_holds(load):
    measure = load("measure")
    ballast = np.ones(50_000_000)
    found, peak = measure.in_fresh_process(measure.median, [3.0, 1.0, 2.0])
    assert found == 2.0
    assert 5e6 < peak < ballast.nbytes < measure.peak_memory()


def test_the_process_that_measures_liblinear_does_not_load_streamtron(load):
    code = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import peers; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "problem" in done.stdout.split()
    assert not {"streamtron", "numba", "pyarrow"} & set(done.stdout.split())
