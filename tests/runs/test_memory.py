"""Memory: the plan and the fit agree, the default active set is what fits, and many classes and
columns take no more than is given, and find the same."""

import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import skops.io
from pyarrow import parquet
from scipy import sparse

import streamtron
from streamtron import LinearModel, Machine, Settings, generate, run
from streamtron.core.config import DEFAULT_ACTIVE_SET
from streamtron.core.errors import MachineError, SettingsError
from streamtron.runs.inspect import describe_shards
from streamtron.runs.job import STATE_COLUMN, STATE_ROW
from tests.helpers.runs import kept, state_file

TWO_ROWS = "1 1:1\n-1 1:-1\n"
WIDE_ROW = "1 " + " ".join(f"{column}:1" for column in range(1, 40_000))

FIT = """
import json, resource, sys
from streamtron import Machine, Settings, run
from streamtron.core.limits import peak_memory
resource.setrlimit(resource.RLIMIT_AS, (3_400_000_000,) * 2)
settings, machine = Settings(**json.loads(sys.argv[3])), Machine(**json.loads(sys.argv[4]))
report = run(sys.argv[1], settings, model=sys.argv[2], machine=machine).report
print(json.dumps([peak_memory(), report["settings"]["active_set"]]))
"""


def printed(code: str, *words: object) -> Any:
    """What a process of its own says in JSON."""
    command = [sys.executable, "-c", code, *map(str, words)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 20 MB in memory: those that are not held take 16 MB of their own."""
    path = tmp_path_factory.mktemp("small") / "train.parquet"
    write_rows(path, 300_000)
    return path


def write_rows(path: Path, rows: int) -> None:
    """Rows of ten columns of 3,000."""
    nonzeros, rng = 10, np.random.default_rng(0)
    columns = np.sort(rng.integers(0, 300, (rows, nonzeros))) + 300 * np.arange(nonzeros)
    labels = np.where(columns.sum(1) + rng.normal(size=rows) > columns.sum(1).mean(), 1, -1)
    lists = list_array(columns.astype(np.uint32))
    ones = list_array(np.ones(columns.shape, np.float32))
    parquet.write_table(pa.table({"label": labels, "indices": lists, "values": ones}), path)


def list_array(rows: np.ndarray) -> pa.ListArray:
    """Rows of as many entries each."""
    starts = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(starts, rows.ravel())


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.svm"
    path.write_text(TWO_ROWS)
    return path


def plan_of(path: Path, memory: int, **settings: Any) -> dict[str, Any]:
    facts = describe_shards([str(path)], Settings(**settings), Machine(memory=memory, threads=2))
    plan: dict[str, Any] = facts["plan"]
    return plan


def least_memory(path: Path) -> int:
    """What a fit needs with the default active set."""
    return int(plan_of(path, 10**12)["total"])


@pytest.mark.parametrize(
    ("rows", "memory"),
    [(0, "300MB"), (20_000, "600MB"), pytest.param(0, None, marks=pytest.mark.slow)],
)
def test_two_rows_or_a_demo_are_fitted_in_little_memory_as_planned(two, tmp_path, rows, memory):
    """In a process of its own, with 3.4 GB of addresses."""
    if rows:
        generate(str(tmp_path / "demo"), rows=rows, shards=4, seed=0)
        two = tmp_path / "demo"
    machine = json.dumps({"memory": memory, "threads": 2})
    peak, active_set = printed(FIT, two, tmp_path / "m", "{}", machine)
    assert active_set == DEFAULT_ACTIVE_SET, "no rows could fill more than a smaller one has"
    if rows:
        plan = plan_of(two, 600 * 10**6)
        assert peak <= plan["total"] <= plan["limit"]
        assert plan["total_of_visits"] < 1.15 * peak, "visits alone solve it"
        assert plan["active_set"] == DEFAULT_ACTIVE_SET
    else:
        assert peak < 300e6


@pytest.mark.parametrize(("kind", "columns"), [("clicks", 50_000), ("text", 30_000), ("dense", 50)])
def test_the_plan_says_how_large_the_prepared_data_will_be_and_that_more_rows_take_longer(
    tmp_path, kind, columns
):
    plans = []
    for rows in (4_000, 20_000):
        shards = tmp_path / str(rows)
        generate(str(shards), rows=rows, kind=kind, columns=columns, shards=1, seed=0)
        plans.append(plan_of(shards, 10**10))
    run(shards, Settings(), machine=Machine(cache_dir=str(tmp_path / "cache")))
    prepared = sum(file.stat().st_size for file in (tmp_path / "cache").iterdir())
    assert 0.8 < plans[1]["disk"] / prepared < 1.25
    assert plans[0]["preparing"] < plans[1]["preparing"]
    for phase in ("scanning", "solving"):
        assert 0.0 < 4.0 * plans[0][phase] < plans[1][phase]


def test_a_run_of_two_rows_is_updated_where_it_was_fitted(two, tmp_path):
    machine = Machine(memory="300MB", threads=1)
    run(two, Settings(), model=tmp_path / "m", machine=machine)
    (tmp_path / "more.svm").write_text("1 2:1\n-1 2:-1\n")
    updated = streamtron.update(tmp_path / "m", tmp_path / "more.svm", machine=machine)
    assert updated.report["rows"] == 4
    assert streamtron.StreamtronClassifier().fit_shards(two, machine=machine).n_features_in_ == 1


@pytest.mark.parametrize("given", [None, 5_000_000])
@pytest.mark.parametrize("rows", [TWO_ROWS, WIDE_ROW + "\n-1 1:1\n"], ids=["two rows", "wide"])
def test_what_the_plan_says_fits_is_fitted_and_nothing_else(tmp_path, rows, given):
    path = tmp_path / "rows.svm"
    path.write_text(rows)
    needed = least_memory(path)
    for memory in (needed - 10**7, needed - 1, needed, needed + 10**8):
        plan = plan_of(path, memory, active_set=given)
        fits = plan["total"] <= plan["limit"]
        machine, settings = Machine(memory=memory, threads=2), Settings(active_set=given)
        if fits:
            found = run(path, settings, machine=machine).report
            assert found["settings"]["active_set"] == plan["active_set"]
        else:
            with pytest.raises(MachineError, match="the limit is"):
                run(path, settings, machine=machine)
    assert fits


def test_the_default_active_set_is_what_memory_leaves_and_the_model_keeps_it(shards, tmp_path):
    memory = least_memory(shards) - 2 * 10**6
    small = Machine(memory=memory, threads=2)
    outcome = run(shards, Settings(), model=tmp_path / "m", machine=small)
    kept = outcome.report["settings"]["active_set"]
    assert 0 < kept < 15 * 10**6
    assert kept == plan_of(shards, memory)["active_set"]
    assert outcome.model.settings["active_set"] == kept
    run(shards, Settings(active_set=kept), model=tmp_path / "given")
    assert (tmp_path / "m").read_bytes() == (tmp_path / "given").read_bytes()
    finer = run(shards, Settings(tol=1e-3), model=tmp_path / "m", resume=True)
    assert finer.model.settings["active_set"] == kept, "on any machine"
    with pytest.raises(SettingsError, match="active_set is 1000000000, the run has"):
        run(shards, Settings(active_set="1GB"), model=tmp_path / "m", resume=True)
    write_rows(tmp_path / "more.parquet", 2)
    updated = streamtron.update(tmp_path / "m", tmp_path / "more.parquet", machine=small)
    assert updated.model.settings["active_set"] == kept
    with pytest.raises(MachineError, match=r"larger --memory or a smaller --active-set\.$"):
        run(shards, Settings(active_set="1GB"), machine=small)


def test_rows_that_fill_less_give_the_same_bits_on_a_small_machine(shards, tmp_path):
    for name, memory in (("small", least_memory(shards)), ("large", 8 * 10**9)):
        run(shards, Settings(), model=tmp_path / name, machine=Machine(memory=memory, threads=2))
    assert (tmp_path / "small").read_bytes() == (tmp_path / "large").read_bytes()


CLASSES, MEMORY = 48, 370_000_000

FIT_MANY = """
import sys
import streamtron
from streamtron.core.config import Machine
from streamtron.core.limits import peak_memory
place, memory = sys.argv[1], int(sys.argv[2])
machine = Machine(memory=memory, threads=2)
first = [f"{place}/0.svm", f"{place}/1.svm"]
model = f"{place}/{sys.argv[3]}"
streamtron.fit(first, model=model, multiclass=True, tol=0.05, active_set=10**6, machine=machine)
"""
CHANGE = """\
streamtron.update(model, f"{place}/2.svm", machine=machine)
streamtron.forget(model, "0.svm", machine=machine)
"""
SAY = "print(peak_memory())"


def write_classes(path: Path, rows: int, seed: int) -> None:
    """Rows of all classes: some of the columns of their class, and others."""
    most = 300_000
    own = np.random.default_rng(0).integers(1, most, (CLASSES, 12))
    rng = np.random.default_rng(seed)
    lines = []
    for row in range(rows):
        label = row % CLASSES
        columns = [rng.choice(own[label], 5, replace=False), rng.integers(1, most, 120)]
        drawn = np.unique(np.concatenate([*columns, [most]]))
        lines.append(f"c{label} " + " ".join(f"{j}:1" for j in drawn.tolist()) + "\n")
    path.write_text("".join(lines))


@pytest.mark.parametrize(
    "steps", [FIT_MANY, pytest.param(FIT_MANY + CHANGE, marks=pytest.mark.slow)]
)
def test_little_memory_is_kept_to_by_many_classes_which_find_the_same(tmp_path, steps):
    for number, rows in enumerate((240, 320, 80)):
        write_classes(tmp_path / f"{number}.svm", rows, number)
    sizes = {"loose": 20 * MEMORY, "tight": MEMORY}  # the first compiles what is not compiled yet
    _, tight = (printed(steps + SAY, tmp_path, memory, name) for name, memory in sizes.items())
    assert tight <= 1.05 * MEMORY
    assert kept(tmp_path, "tight") == kept(tmp_path, "loose")
    model = streamtron.load(tmp_path / "tight")
    assert model.certificate["relative_duality_gap"] <= 0.05
    assert len(model.classes) == CLASSES
    few, together = (
        streamtron.certify(tmp_path / "tight", machine=Machine(memory=memory, threads=2))
        for memory in (237_000_000, sizes["loose"])
    )
    assert few.readings > together.readings == 1.0
    of_few = [(label, replace(proof, readings=1.0)) for label, proof in few.classes]
    assert of_few == list(together.classes)


def test_the_plan_says_how_many_classes_train_at_a_time(tmp_path):
    write_classes(tmp_path / "0.svm", 2 * CLASSES, 0)
    settings = Settings(multiclass=True, active_set=10**4)
    plan = describe_shards([str(tmp_path / "0.svm")], settings, Machine(memory=MEMORY))["plan"]
    assert plan["learners"] == CLASSES
    assert 1 < plan["learners_at_once"] < CLASSES
    assert sum(plan["items"].values()) == plan["total"] <= MEMORY
    plan = describe_shards([str(tmp_path / "0.svm")], settings, Machine(memory=20 * MEMORY))["plan"]
    assert plan["learners_at_once"] == CLASSES


def wide_model(classes: int, columns: int, seed: int) -> LinearModel:
    """A model of which one weight in 1,000 is not 0."""
    weights = sparse.random_array(
        (classes, columns), density=1e-3, format="csr", rng=np.random.default_rng(seed)
    )
    names = [f"c{number:03d}" for number in range(classes)]
    return LinearModel(weights, np.zeros(classes), names, {"rho": 1.0}, None, {"index_base": 1})


def test_a_wide_model_of_many_classes_is_a_linear_svc_with_sparse_weights(tmp_path):
    model = wide_model(50, 20_000, 0)
    tracemalloc.start()
    streamtron.export(model, tmp_path / "m.skops", "sklearn")
    with pytest.raises(SettingsError, match="less than 2 GiB"):
        streamtron.export(wide_model(200, 2_000_000, 0), tmp_path / "m.onnx", "onnx")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 200 * 2_000_000 / 20
    types = skops.io.get_untrusted_types(file=tmp_path / "m.skops")
    assert types == ["scipy.sparse._csr.csr_matrix"]
    theirs = skops.io.load(tmp_path / "m.skops", trusted=types)
    assert sparse.issparse(theirs.coef_)
    rows = sparse.random_array((40, 20_000), density=0.01, format="csr", rng=0)
    assert theirs.predict(rows).tolist() == model.predict(rows).tolist()


ROWS, COLUMNS, NONZEROS = 400, 4_000_000, 30


def corpus(path: Path, columns: int, seed: int = 0, rows: int = ROWS) -> Path:
    """Rows whose columns are drawn from all, the first few in most rows."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        rare = rng.integers(10, columns, NONZEROS)
        drawn = np.unique(np.concatenate([1 + rng.choice(9, 4), rare, [columns]]))
        values = rng.normal(size=len(drawn)).astype(np.float32)
        label = 1 if values[0] + 0.3 * rng.normal() > 0 else -1
        pairs = zip(drawn.tolist(), values.tolist(), strict=True)
        lines.append(f"{label} " + " ".join(f"{j}:{value!r}" for j, value in pairs) + "\n")
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of many columns, and a model of them with its run."""
    directory = tmp_path_factory.mktemp("wide")
    corpus(directory / "rows.svm", COLUMNS)
    settings = Settings(C=50.0, tol=1e-6)
    run(directory / "rows.svm", settings, model=directory / "m", machine=Machine(threads=1))
    return directory


def test_columns_that_never_occur_cost_no_more_than_a_count_at_the_peak_of_a_fit(tmp_path):
    how = json.dumps({"C": 50.0, "tol": 1e-6}), json.dumps({"threads": 1})
    few, many = (
        printed(
            FIT, corpus(tmp_path / f"{columns}.svm", columns), tmp_path / f"{columns}.st", *how
        )[0]
        for columns in (4_000, COLUMNS)
    )
    assert many - few <= 8 * COLUMNS


def test_the_plan_counts_columns_that_occur_as_a_state_does_and_a_model_those_that_are_not_0(place):
    told = describe_shards([str(place / "rows.svm")], Settings(), Machine())
    assert told["columns"] == COLUMNS
    pairs = (place / "rows.svm").read_text().split()
    occurring = len({pair.split(":")[0] for pair in pairs if ":" in pair})
    assert told["plan"]["items"]["weights (120 bytes a column)"] == 120 * occurring
    assert told["plan"]["items"]["active set"] == 8 * told["nonzeros"] + 24 * ROWS
    model = LinearModel.load(place / "m")
    kept = model.sparse_weights.nnz
    assert (model.columns, kept == np.count_nonzero(model.weights)) == (COLUMNS, True)
    assert kept > ROWS
    assert os.path.getsize(place / "m") <= 14 * kept + 4_000
    room = STATE_ROW * ROWS + STATE_COLUMN * occurring
    assert os.path.getsize(state_file(place / "m.run")) <= room + 20_000
