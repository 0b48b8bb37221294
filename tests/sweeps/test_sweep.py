"""Sweeps: what they try, what they measure, which they choose, and what they leave behind."""

import json
import math
import shutil
import signal
from itertools import product
from typing import Any

import click
import numpy as np
import pytest

import streamtron
from streamtron.cli import options
from streamtron.cli.main import streamtron as main
from streamtron.cli.sweep import sweep as sweep_command
from streamtron.core.config import SETTINGS, Settings
from streamtron.core.errors import SettingsError
from streamtron.core.text import (
    METRICS,
    METRICS_OF_COUNTS,
    METRICS_OF_MANY,
    METRICS_OF_PROBABILITIES,
)
from streamtron.data import SCRATCH
from streamtron.data.writers.corpus import generate
from streamtron.model.linear_model import LinearModel
from streamtron.runs.convert import convert
from streamtron.runs.evaluate import evaluate
from streamtron.sweeps.folds import folds_of
from streamtron.sweeps.grid import Range, candidates_of, values_of
from streamtron.sweeps.trial import BOUNDS, COLUMNS, ranked
from tests.helpers.examples import slow_but
from tests.helpers.processes import COMMAND, Process, one_sentence, until
from tests.helpers.runs import report_of
from tests.helpers.sweep_rows import LAST_TWO, Rows, lasting, run_files, table

TRAIN, HELD = 1200, 400


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with shards to fit (train, four of them) and to measure on (held-out)."""
    directory = tmp_path_factory.mktemp("sweep")
    for name, rows, first, shards in (("train", TRAIN, 0, 4), ("held-out", HELD, TRAIN, 2)):
        where = str(directory / name)
        generate(where, rows=rows, columns=400, seed=1, shards=shards, first_row=first)
    return directory


@pytest.fixture(scope="module")
def swept(run, place):
    """The table of a sweep over six candidates, which has written everything it can write."""
    words = "sweep train --valid held-out --C 0.01,0.1,1 --rho 0,1 --table results.parquet"
    files = ("--model", "best", "--report", "best.json", "--witness", "best.witness")
    done = run(*words.split(), *files)
    assert (done.returncode, done.stderr) == (0, "")
    return table(place / "results.parquet")


def the_best(rows: Rows) -> dict[str, Any]:
    """The one row that is marked."""
    [best] = [row for row in rows if row["best"]]
    return best


def test_a_list_of_c_puts_a_delta_of_the_settings_aside_and_the_other_way_round():
    assert candidates_of(Settings(delta=2.0), {"C": (3.0,)}) == [Settings(C=3.0)]
    assert candidates_of(Settings(C=3.0), {"delta": (2.0,)}) == [Settings(delta=2.0)]
    assert candidates_of(Settings(C=3.0), {"rho": (0.0,)}) == [Settings(C=3.0, rho=0.0)]


def test_draws_depend_on_the_seed_alone_and_fewer_are_the_first_of_more():
    values = {"C": Range(0.01, 100.0), "rho": (0.0, 1.0)}
    many = candidates_of(Settings(), values, random=40)
    assert candidates_of(Settings(tol=0.5), values, random=7) == [
        one.but(tol=0.5) for one in many[:7]
    ]
    other = candidates_of(Settings(seed=1), values, random=40)
    assert {one.C for one in other}.isdisjoint(one.C for one in many)


def test_draws_are_log_uniform_numbers_that_can_be_typed_and_uniform_in_the_list():
    values = {"C": Range(0.01, 100.0), "rho": (0.0, 1.0, 3.0)}
    drawn = candidates_of(Settings(), values, random=3000)
    assert all(float(f"{one.C:.6g}") == one.C for one in drawn)
    logs = np.log10([one.C or math.nan for one in drawn])
    assert np.abs(logs).max() <= 2
    counts = *np.histogram(logs, bins=4, range=(-2, 2))[0], *(one.rho == 3.0 for one in drawn)
    # five standard deviations of a binomial count
    assert np.abs(np.array(counts[:4]) - 750).max() < 5 * math.sqrt(3000 * 0.25 * 0.75)
    assert abs(sum(counts[4:]) - 1000) < 5 * math.sqrt(3000 * 2 / 9)
    assert values_of("C", np.int64(1)) == (1.0,)
    narrow = Range(0.12345678, 0.12345679)
    close = [one.C or math.nan for one in candidates_of(Settings(), {"C": narrow}, random=50)]
    assert narrow.low <= min(close) <= max(close) <= narrow.high


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--C 1,x", "C is '1,x'"),
        ("--C 0,1", "C is 0.0"),
        ("--C 1 --delta 1", "C and delta"),
        ("--C 0.1..10", "C is the range 0.1..10: a grid needs a list"),
        ("--C 10..0.1 --random 3", "0 < LOW < HIGH"),
        ("--rho 0..1 --random 3", "rho is the range 0..1"),
        ("--C 0.1,1 --random 3", "random draws from a range"),
        ("--C 0.1..1 --random 0", "random is 0"),
        ("--C 1..2 --random 1000000000", "random is 1000000000: expected 1 to 100,000"),
        ("--metric beauty", "beauty"),
        ("--folds 1", "folds is 1, and there are 4 shards"),
        ("--valid 20% --folds 2", "folds are for a sweep without"),
        ("--folds 5", "folds is 5, and there are 4 shards"),
        ("--folds 2 --no-refit", "no-refit is for a share of the rows"),
        ("--folds 2 --valid held-out", "folds are for a sweep without validation shards"),
        ("--loss hinge,log_los", "loss is 'log_los': expected squared_hinge, log_loss, hinge, "),
        ("--loss squared_hinge,hinge --two-stage", "for the squared hinge, and the loss is hinge"),
        ("--table results.xlsx", "results.xlsx: a table is CSV or Parquet"),
    ],
)
def test_what_cannot_be_swept_is_a_sentence_that_names_it_and_exit_code_2(words, part, run, place):
    one_sentence(run("sweep", "train", "--model", "refused", *words.split()), 2, part)
    assert not list(place.glob("refused*"))


def test_two_shares_of_the_rows_are_not_held_out(place):
    with pytest.raises(SettingsError, match=r"held_out is 0.1 and also 0.2: give one"):
        streamtron.sweep(place / "train", valid="20%", held_out=0.1)


@pytest.mark.parametrize(
    ("how", "part"),
    [
        ({"rho": []}, "rho is an empty list"),
        ({"loss": ()}, "loss is an empty list: expected names"),
        ({"loss": 5}, "loss is 5: expected names"),
        ({"loss": [1]}, "loss is .1.: expected names"),
        ({"C": ["a"]}, "C is .'a'.: expected numbers"),
        ({"C": "0.1..1", "random": 1.5}, "random is 1.5: expected a whole number"),
    ],
)
def test_what_cannot_be_swept_is_a_settings_error_in_python(how, part):
    with pytest.raises(SettingsError, match=part):
        streamtron.sweep("train", **how)


def test_every_setting_is_an_option_of_sweep_and_the_lists_are_those_that_take_many():
    words = ["train", "--C", "1,2", "--rho", "0", "--delta", "3..4", "--tol", "0.5"]
    words += ["--loss", "hinge, log_loss"]
    with sweep_command.make_context("sweep", words, **main.context_settings) as context:
        given, _ = options.split(context.params)
    lists = {"loss": ("hinge", "log_loss"), "C": (1.0, 2.0), "rho": (0.0,)}
    assert given == {**lists, "delta": Range(3.0, 4.0), "tol": 0.5}
    there = {
        parameter.name for parameter in sweep_command.params if isinstance(parameter, click.Option)
    }
    assert set(SETTINGS) - {"held_out"} <= there


def test_the_best_is_byte_for_byte_what_fit_writes_with_its_settings(run, place, swept):
    best = the_best(swept)
    words = ("--C", best["C"], "--rho", best["rho"], "--tol", best["tol"], "--model", "alone")
    assert run("fit", "train", *words, "--witness", "w").returncode == 0
    assert run_files(place / "best") == run_files(place / "alone")
    assert (place / "best.witness").read_bytes() == (place / "w").read_bytes()
    report = json.loads((place / "best.json").read_text())
    alone = report_of(place / "alone.run")
    for name in ("certificate", "settings"):
        assert report[name] == alone[name]
    assert [row["C"] for row in report["sweep"]["candidates"]] == [row["C"] for row in swept]


def test_a_share_of_the_rows_is_held_out_and_measured_and_then_the_best_is_fitted_on_all(
    run, place
):
    words = ("--valid", "20%", "--C", "0.01,1", "--table", "share.csv")
    assert run("sweep", "train", *words, "--model", "all").returncode == 0
    assert run("sweep", "train", *words, "--model", "measured", "--no-refit").returncode == 0
    best = the_best(table(place / "share.csv"))
    how = {"C": best["C"], "tol": best["tol"]}
    for name, held_out in (("all", 0.0), ("measured", 0.2)):
        alone = streamtron.fit(place / "train", held_out=held_out, **how)
        alone.save(place / "alone")
        assert (place / name).read_bytes() == (place / "alone").read_bytes()
    measured = evaluate(place / "measured", place / "train", share=(0.0, 0.2))
    assert float(best["accuracy"]) == measured.accuracy


@pytest.mark.parametrize("metric", METRICS_OF_PROBABILITIES)
def test_probabilities_are_measured_and_the_smallest_loss_of_them_is_the_best(metric, place):
    how = {"valid": place / "held-out", "C": (0.001, 0.1, 10.0), "metric": metric}
    found = streamtron.sweep(place / "train", loss="log_loss", **how)
    values = [row[metric] for row in found.rows()]
    assert found.rows()[values.index(min(values))]["best"]
    of_best = streamtron.fit(place / "train", settings=found.best.settings)
    assert evaluate(of_best, place / "held-out").to_dict()[metric] == min(values)
    mixed = streamtron.sweep(place / "train", loss="log_loss,hinge", **how | {"metric": "f1"})
    assert metric not in mixed.rows()[0], "hinges have no probabilities"
    with pytest.raises(SettingsError, match=f"{metric}.* where log_loss is the only --loss"):
        streamtron.sweep(place / "train", loss="log_loss,hinge", **how)


def test_no_rank_depends_on_where_within_the_tolerance_candidates_stop(place):
    """At a gap of 0.001 another C is the best by accident."""
    grid = {"valid": place / "held-out", "C": (2.0, 2.5, 3.0, 4.0)}
    found = [streamtron.sweep(place / "train", tol=tol, **grid) for tol in (0.5, 1e-3, 1e-6)]
    orders = [[trial.candidate for trial in ranked(sw.trials, "accuracy")] for sw in found]
    assert orders == [[2, 0, 1, 3]] * 3


LOSSES = ("squared_hinge", "log_loss", "hinge")


@pytest.mark.parametrize(
    ("active_set", "grid"),
    [
        (10**9, {"C": (0.01, 0.1, 1.0), "rho": (0.0, 1.0)}),
        (10**9, {"loss": LOSSES, "C": (0.1, 0.3, 1.0, 3.0)}),
        pytest.param(20_000, {"loss": LOSSES, "C": (0.3, 1.0)}, marks=pytest.mark.slow),
    ],
)
def test_candidates_are_measured_and_proven_as_if_fitted_alone(place, tmp_path, active_set, grid):
    how = {"active_set": active_set, "max_epochs": 2, "model": tmp_path / "best"}
    swept = streamtron.sweep(place / "train", valid=place / "held-out", **how, **grid)
    rows = swept.rows()
    assert {tuple(row[name] for name in grid) for row in rows} == {*product(*grid.values())}
    for trial, row in list(zip(swept.trials, rows, strict=True))[1 :: len(grid["C"])]:
        alone = streamtron.fit(place / "train", settings=trial.settings)
        measured = evaluate(alone, place / "held-out").to_dict()
        assert {name: row[name] for name in METRICS} == {name: measured[name] for name in METRICS}
        assert [row[name] for name in BOUNDS] == [alone.certificate[name] for name in BOUNDS]
    assert LinearModel.load(tmp_path / "best").settings["loss"] == swept.best.settings.loss


def test_the_best_has_the_highest_metric_whichever_is_asked_for(place, swept):
    assert the_best(swept)["accuracy"] == max(row["accuracy"] for row in swept)
    how = {"valid": place / "held-out", "C": "0.01,0.1,1", "rho": (0, 1)}
    chosen = set()
    for metric in METRICS:
        found = streamtron.sweep(place / "train", metric=metric, **how)
        rows = found.rows()
        assert lasting(rows, "best") == lasting(swept, "best"), "those of the command"
        assert found.outcome.model.settings["C"] == the_best(rows)["C"]
        assert all(trial.outcome is None for trial in found.trials)
        assert the_best(rows)[metric] == max(row[metric] for row in rows)
        chosen.add(the_best(rows)["candidate"])
    assert len(chosen) > 1  # else the option might do nothing


@pytest.mark.parametrize(
    ("how", "metrics", "best"),
    [
        ({"C": [10, 0.1, 1], "rho": [1, 0]}, [1.0] * 6, {"C": 0.1, "rho": 1.0}),
        ({"delta": [1, 3, 2], "rho": [0, 1]}, [1.0] * 6, {"delta": 3.0, "rho": 0.0}),
        # the smaller C calls no row positive: its precision is 0/0
        ({"C": [0.001, 100], "metric": "precision"}, [None, 1.0], {"C": 100.0}),
    ],
    ids=["smaller C, then the first", "larger delta", "no metric comes last"],
)
def test_of_equals_the_smaller_c_is_the_best_and_then_the_first_and_none_is_last(
    tmp_path, how, metrics, best
):
    shard, rows = tmp_path / "easy.svm", "1 1:1\n-1 1:-1\n1 1:2\n-1 1:-2\n"
    shard.write_text("1 1:1\n" + "-1 2:1\n" * 9 if "metric" in how else rows)
    found = streamtron.sweep(shard, valid=shard, **how)
    assert [trial.metrics[how.get("metric", "accuracy")] for trial in found.trials] == metrics
    assert {name: getattr(found.best.settings, name) for name in best} == best


def test_csv_and_parquet_hold_the_same_values_in_columns_of_the_same_names(run, place):
    words = ("--valid", "held-out", "--delta", "1,2", "--max-epochs", 2, "--table")
    tables = []
    for name in ("same.csv", "same.parquet"):
        assert run("sweep", "train", *words, name).returncode in (0, 4)
        tables.append(table(place / name))
    text, binary = tables
    of_others = {*METRICS_OF_MANY, *METRICS_OF_COUNTS, *METRICS_OF_PROBABILITIES} - {*METRICS}
    of_others |= {"class", "l1_ratio", "nonzero_weights"}
    columns = [name for name in COLUMNS if name not in of_others]
    assert list(text[0]) == list(binary[0]) == columns
    assert columns[-2:] == [*LAST_TWO]
    assert lasting(text) == lasting(binary)
    assert [row["C"] for row in text] == [0.5, 0.125]


def test_a_sweep_without_a_model_leaves_only_what_it_was_asked_for(run, place, tmp_path):
    words = ("--C", "0.1,1", "--tol", 0.5, "--table", tmp_path / "t.csv")
    before = set(place.iterdir())
    for valid in ([], ["--valid", "held-out"]):
        assert run("sweep", "train", *words, *valid).returncode == 0
    assert set(place.iterdir()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_the_exit_code_is_that_of_the_best_whatever_became_of_the_others(run, place):
    # two mini-epochs solve a small C and not a large one, which is worse on other rows
    words = ("--max-epochs", 1, "--mini-epochs", 2, "--tol", 0.001, "--valid", "held-out")
    done = run("sweep", "train", *words, "--C", "1000,0.1", "--table", "ends.csv")
    endings = {row["C"]: row["stop_reason"] for row in table(place / "ends.csv")}
    assert endings == {1000.0: "epoch limit", 0.1: "certified"}
    assert the_best(table(place / "ends.csv"))["C"] == 0.1
    assert (done.returncode, done.stderr) == (0, "")
    for more in ([], ["--model", "early"]):
        early = run("sweep", "train", *words, "--C", "50,100", *more)
        assert early.returncode == 4
        assert early.stderr.count("\n") == 1
        assert "before" in early.stderr
        assert "--max-epochs" in early.stderr
    assert (place / "early").is_file()


@pytest.mark.parametrize(
    ("train", "valid", "parts"),
    [
        ("train", "strange.svm", ("strange.svm", "label 3.0")),
        ("tables", "held-out", ("libsvm text", "part-00000.parquet has the columns of tables")),
        ("train", "late.svm", ("late.svm, line 5001", "3.0")),
        ("train", "nonesuch", ("nonesuch",)),
        ("nonesuch", "held-out", ("nonesuch", "no such file")),
    ],
)
def test_validation_shards_of_another_kind_are_refused_by_place(train, valid, parts, run, place):
    (place / "strange.svm").write_text("1 1:1\n3 1:1\n")
    (place / "late.svm").write_text("1 1:1\n" * 5000 + "3 1:1\n")
    convert(place / "train", place / "tables", to="parquet", overwrite=True)
    done = run("sweep", train, "--valid", valid, "--model", "refused", "--tol", 0.5)
    one_sentence(done, 3, *parts)
    assert not (place / "refused").exists()
    assert (place / "refused.run").exists() == (valid == "late.svm"), "the others before any fit"
    shutil.rmtree(place / "refused.run", ignore_errors=True)


@pytest.mark.parametrize(
    ("count", "folds", "wanted"), [(4, None, 4), (4, 2, 2), (4, 3, 3), (7, None, 5), (7, 7, 7)]
)
def test_without_validation_shards_every_shard_is_held_out_once(count, folds, wanted, tmp_path):
    generate(str(tmp_path), rows=70, columns=80, seed=0, shards=count)
    shards = [str(path) for path in sorted(tmp_path.iterdir())]
    splits = folds_of(tmp_path, None, folds, Settings())
    assert [split.valid for split in splits] == [shards[k::wanted] for k in range(wanted)]
    for split in splits:
        assert sorted(split.shards + split.valid) == shards


@pytest.fixture(scope="module")
def folded(run, place):
    """The table of a sweep over two folds."""
    words = ("--C", "0.1,1,10", "--folds", 2, "--table", "folded.csv")
    assert run("sweep", "train", *words).returncode == 0
    return table(place / "folded.csv")


def test_with_folds_metrics_are_means_costs_are_sums_and_the_gap_is_the_widest(place, folded):
    shards = sorted((place / "train").iterdir())
    by_hand = [
        streamtron.sweep(shards[1 - k :: 2], valid=shards[k::2], C=(0.1, 1.0, 10.0)).rows()
        for k in range(2)
    ]
    for row, one, two in zip(folded, *by_hand, strict=True):
        for metric in METRICS:
            assert row[metric] == (one[metric] + two[metric]) / 2
        for cost in ("readings", "full_epochs"):
            assert row[cost] == one[cost] + two[cost]
        worst = max((one, two), key=lambda part: part["relative_duality_gap"])
        assert [row[name] for name in BOUNDS] == [worst[name] for name in BOUNDS]


def test_column_0_disturbs_no_fold_without_it_and_nothing_is_fitted_on_all_shards(tmp_path):
    texts = ("1 0:1 1:1\n-1 2:1\n", "1 1:1\n-1 2:2\n", "1 1:3\n-1 2:1 3:1\n")
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.svm").write_text(text)
    found = streamtron.sweep(tmp_path, C=[0.1, 1])
    assert found.best.metrics["accuracy"] == 1.0
    assert found.best.settings.index_base == "auto"
    assert (found.outcome, found.report, found.exit_code) == (None, None, 0)


def test_a_metric_that_one_fold_lacks_is_no_mean_and_what_cannot_be_a_fold_is_named(run, tmp_path):
    for name, text in (("a", "1 1:1\n-1 2:1\n"), ("b", "1 1:2\n-1 2:2\n"), ("c", "1 1:3\n")):
        (tmp_path / f"{name}.svm").write_text(text)
    trial = streamtron.sweep(tmp_path).best
    assert trial.metrics["accuracy"] == 1.0
    assert trial.metrics["roc_auc"] is None
    one_sentence(run("sweep", tmp_path, "--metric", "roc_auc"), 3, "no candidate has a roc_auc")
    (tmp_path / "b.svm").unlink()
    one_sentence(run("sweep", tmp_path, "--C", 1), 3, "fold 1 of 2:", "two labels")
    one_sentence(run("sweep", tmp_path / "a.svm", "--C", "1,2"), 2, "a.svm", "--valid")


@pytest.mark.parametrize("number", slow_but([signal.SIGINT, signal.SIGTERM], signal.SIGINT))
def test_an_interrupted_sweep_says_so_and_leaves_no_fold_and_no_model(number, place):
    words = "sweep train --model stopped --tol 0 --stage 0.01 --table stopped.csv"
    process = Process(COMMAND, *words.split(), "--max-epochs", 1_000_000, cwd=place)
    until(lambda: any(place.glob(f"stopped.run/cache/{SCRATCH}*/fold-*/*")))
    process.send_signal(number)
    ended = process.end(timeout=100.0)
    assert (ended.returncode, ended.stdout) == (128 + number, "")
    assert ended.stderr.splitlines()[-1].startswith(f"stopped by {number.name}")
    assert not list(place.glob("stopped*"))


def test_rows_that_a_killed_sweep_left_in_the_cache_are_removed_by_the_next_command(run, place):
    words = "sweep train --model killed --tol 0 --stage 0.01 --max-epochs 1000000"
    process = Process(COMMAND, *words.split(), cwd=place)
    until(lambda: any(place.glob(f"killed.run/cache/{SCRATCH}*/fold-*/*")))
    process.kill()
    process.end()
    assert any(place.glob(f"killed.run/cache/{SCRATCH}*/fold-*/*"))
    assert run("fit", "train", "--model", "killed").returncode == 0
    assert not any(place.glob(f"killed.run/cache/{SCRATCH}*"))
