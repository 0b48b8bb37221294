"""Rows that a run forgets: the bounds hold the optimum of the others, whatever reads for the run
later leaves them out, and no byte of them stays."""

from __future__ import annotations

import copy
import io
import json
import lzma
import os
import re
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

import streamtron
from streamtron.cli.main import main
from streamtron.core.errors import DataError, FileDamaged, SettingsError
from streamtron.core.sealed import write_sealed
from streamtron.data import (
    ReaderConfig,
    deletions,
    find_shards,
    open_reader,
    open_shards,
)
from streamtron.data.deletions import Deletions
from streamtron.data.row_search import rows_with
from tests.helpers.optimum import holds, least_primal
from tests.helpers.oracle import gamma_d
from tests.helpers.processes import here, one_sentence
from tests.helpers.runs import code, content, files_of, fit, gap
from tests.helpers.user_rows import Corpus, list_rows, write_rows


def holds_optimum_without(
    gone: NDArray[np.int64], user_rows: Corpus, report: dict[str, Any]
) -> bool:
    """Whether the bounds hold the best margin over the rows that are left."""
    left = np.setdiff1d(np.arange(800), gone)
    return holds(
        report, least_primal(user_rows.rows[left].astype(float), user_rows.labels[left], 5.0)
    )


def deleted_rows(run: Path) -> dict[str, list[int]]:
    return {Path(path).name: g.rows.tolist() for path, g in deletions.load(run).items()}


def test_after_a_tenth_of_the_rows_is_forgotten_by_key_the_bounds_hold_liblinears_optimum(
    shared_data: Path, tmp_path: Path
) -> None:
    with lzma.open(shared_data / "rcv1_27613.ccat.xz", "rb") as file:
        some = io.BytesIO(b"".join(islice(file, 6000)))
    rows, labels = load_svmlight_file(some, n_features=47237)
    rows = rows[:, 1:].tocsr().astype(np.float32)
    users = np.array([f"u{k}" for k in np.random.default_rng(1).integers(10, size=len(labels))])
    for k in range(4):
        own = np.array_split(np.arange(len(labels)), 4)[k]
        write_rows(tmp_path / f"{k}.parquet", rows[own], labels[own], users[own].tolist())
    shards = [tmp_path / f"{k}.parquet" for k in range(4)]
    fit(shards, tmp_path / "m", C=1.0)
    found = streamtron.forget(tmp_path / "m", key="user", values="u3").report
    left = users != "u3"
    assert found["rows"] == left.sum() < 0.92 * len(labels)
    assert found["forgotten_rows"] == (~left).sum()
    assert holds(found, least_primal(rows[left].astype(np.float64), labels[left]))
    assert gap(found) <= 0.01


@pytest.mark.parametrize("by", ["key", "list"])
@pytest.mark.parametrize("users", [["user-3"], ["user-3", "user-4", "nobody"]])
def test_the_bounds_of_the_rows_that_are_left_hold_liblinears_optimum_of_them(
    by: str, users: list[str], user_rows: Corpus, tmp_path: Path
) -> None:
    fit(
        user_rows.shards("parquet" if by == "key" else "svm"),
        tmp_path / "m",
        index_base=1,
        tol=1e-3,
    )
    gone = user_rows.numbers(*users)
    if by == "key":
        found = streamtron.forget(tmp_path / "m", key="user", values=users)
    else:
        rows = {f"{k}.svm": [n - 200 * k for n in gone if n // 200 == k] for k in range(4)}
        found = streamtron.forget(tmp_path / "m", rows=list_rows(tmp_path / "gone.csv", rows))
    left = np.setdiff1d(np.arange(800), gone)
    assert found.report["rows"] == len(left) == 800 - found.report["forgotten_rows"]
    assert found.report["certificate"]["rows_scanned"] == len(left)
    assert holds_optimum_without(gone, user_rows, found.report)
    assert gap(found.report) <= 1e-3


@pytest.mark.parametrize("suffix", ["svm", "parquet"])
def test_a_shard_with_deletions_is_read_as_one_written_without_those_rows(
    suffix: str, user_rows: Corpus, tmp_path: Path
) -> None:
    gone = np.random.default_rng(2).choice(800, 300, replace=False)
    gone = np.union1d(gone, np.arange(400, 600))  # of one shard nothing is left
    shards, deleted = user_rows.shards(suffix), {}
    for k, shard in enumerate(shards):
        own = np.arange(200 * k, 200 * (k + 1))
        user_rows.write(tmp_path / shard.name, np.setdiff1d(own, gone)) if k != 2 else None
        with open_shards([str(shard)], cache_dir=None) as alone:
            [(_, fingerprint)] = alone.fingerprints()
        rows = np.intersect1d(own, gone) - 200 * k
        deleted[str(shard)] = Deletions(str(shard), fingerprint, rows)
    for cache in (None, str(tmp_path / "cache")):
        wanted = open_shards([str(tmp_path / f"*.{suffix}")], cache_dir=cache)
        found = open_shards([str(shard) for shard in shards], cache_dir=cache)
        found.exclude(deleted.values())
        for order in (None, None, *([[[0]]] if cache else [])):
            for ours, theirs in zip(found.chunks(order), wanted.chunks(order), strict=True):
                assert ours.ranges == theirs.ranges
                assert ours.codes.tolist() == theirs.codes.tolist()
                for one, other in zip(ours.rows, theirs.rows, strict=True):
                    assert one.tobytes() == other.tobytes()
        assert found.rows == wanted.rows == 800 - len(gone)
        assert found.labels == wanted.labels


def test_rows_with_weights_and_several_labels_are_left_out_with_all_that_is_theirs(
    tmp_path: Path,
) -> None:
    rows = {"indices": [[1], [2], [3], [4]], "values": [[1.0], [2.0], [3.0], [4.0]]}
    labels = [["a"], ["b", "c"], [], ["a", "c"]]
    pq.write_table(pa.table({**rows, "labels": labels, "w": [1.0, 2, 3, 4]}), tmp_path / "a.pq")
    reading = ReaderConfig(multilabel=True, label_column="labels", weight_column="w")
    path = str(tmp_path / "a.pq")
    with open_shards([path], reading, cache_dir=None, most_labels=None) as source:
        [(_, fingerprint)] = source.fingerprints()
        source.exclude([Deletions(path, fingerprint, np.array([1, 2]))])
        [chunk] = source.chunks()
        assert source.labels == ["a", "c"]
    assert chunk.rows.indices.tolist() == [1, 4]
    assert chunk.rows.values.tolist() == [1.0, 4.0]
    assert chunk.codes.tolist() == [0, 0, 1]
    assert chunk.code_offsets is not None
    assert chunk.code_offsets.tolist() == [0, 1, 3]
    assert chunk.weights is not None
    assert chunk.weights.tolist() == [1.0, 4.0]


def test_rows_are_forgotten_in_two_readings_of_those_that_stay(
    user_rows: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(user_rows.shards("parquet"), tmp_path / "m")
    report = streamtron.forget(tmp_path / "m", key="user", values="user-7").report
    assert report["readings"] == 2.0
    assert not caplog.records
    assert holds_optimum_without(user_rows.numbers("user-7"), user_rows, report)


# --- what reads for the run later -------------------------------------------------------------


def test_an_update_leaves_the_forgotten_rows_out(user_rows: Corpus, tmp_path: Path) -> None:
    shards = user_rows.shards("parquet")
    fit(shards[:3], tmp_path / "m")
    streamtron.forget(tmp_path / "m", key="user", values="user-3")
    before = deleted_rows(tmp_path / "m.run")
    updated = streamtron.update(tmp_path / "m", shards[3])
    gone = user_rows.numbers("user-3")
    gone = gone[gone < 600]
    assert deleted_rows(tmp_path / "m.run") == before
    assert before == {
        f"{k}.parquet": [n - 200 * k for n in gone if n // 200 == k] for k in range(3)
    }
    assert updated.report["rows"] == 800 - len(gone)
    assert updated.report["forgotten_rows"] == len(gone)
    assert holds_optimum_without(gone, user_rows, updated.report)


def test_a_run_that_is_taken_up_leaves_the_forgotten_rows_out(
    user_rows: Corpus, tmp_path: Path
) -> None:
    shards = user_rows.shards("parquet")
    fit(shards, tmp_path / "m")
    streamtron.forget(tmp_path / "m", key="user", values="user-3")
    settings = streamtron.Settings(C=5.0, index_base=0, tol=1e-5)
    again = streamtron.run(
        shards, settings, model=tmp_path / "m", machine=streamtron.Machine(), resume=True
    )
    assert gap(again.report) <= 1e-5
    assert again.report["rows"] == 800 - len(user_rows.numbers("user-3"))
    assert holds_optimum_without(user_rows.numbers("user-3"), user_rows, again.report)
    assert len(deletions.load(tmp_path / "m.run")) == 4


def test_shards_that_were_moved_are_known_by_their_bytes_when_a_run_is_taken_up(
    user_rows: Corpus, tmp_path: Path
) -> None:
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
    shards = user_rows.shards("svm", tmp_path / "here")
    fit(shards, tmp_path / "m")
    streamtron.forget(tmp_path / "m", rows=list_rows(tmp_path / "l", {"1.svm": [3], "2.svm": [4]}))
    moved = [shard.rename(tmp_path / "there" / shard.name) for shard in shards]
    shutil.copy2(moved[2], shards[2])
    settings = streamtron.Settings(C=5.0, index_base=0, tol=1e-5)
    again = streamtron.run(
        [*moved[:2], shards[2], moved[3]], settings, model=tmp_path / "m",
        machine=streamtron.Machine(), resume=True,
    )  # fmt: skip
    assert again.report["rows"] == 798
    assert sorted(deletions.load(tmp_path / "m.run")) == sorted(map(str, (moved[1], shards[2])))


def test_a_shard_goes_to_a_worker_with_its_deletions(user_rows: Corpus) -> None:
    [shard] = find_shards([str(user_rows.shards("svm")[0])])
    with open_shards([shard.path], cache_dir=None) as source:
        [(_, fingerprint)] = source.fingerprints()
    excluded = shard._replace(without=Deletions(shard.path, fingerprint, np.array([0, 199])))
    [there] = copy.deepcopy([excluded])  # by the protocol that carries it
    assert (
        sum(piece.rows for piece in open_reader(there, ReaderConfig(index_base=1)).batches()) == 198
    )


def test_a_run_that_begins_anew_reads_them_again_and_says_so(
    user_rows: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = user_rows.shards("parquet")
    fit(shards, tmp_path / "m")
    streamtron.forget(tmp_path / "m", key="user", values="user-3")
    settings = streamtron.Settings(C=5.0, index_base=0)
    again = streamtron.run(
        shards, settings, model=tmp_path / "m", machine=streamtron.Machine(), overwrite=True
    )
    assert again.report["rows"] == 800
    assert "forgotten_rows" not in again.report
    assert "rows that were forgotten are read again" in caplog.text


@pytest.mark.parametrize("suffix", ["svm", "parquet"])
def test_the_certificate_is_proven_again_without_the_forgotten_rows(
    suffix: str, user_rows: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = user_rows.shards(suffix)
    fit(shards, tmp_path / "m")
    gone = list_rows(tmp_path / "gone.csv", {shards[1].name: [0, 7, 199], shards[3].name: [5]})
    found = streamtron.forget(tmp_path / "m", rows=gone)
    assert code("certify", str(tmp_path / "m"), "--json") == 0
    proof = json.loads(capsys.readouterr().out)["certificate"]
    certificate = found.report["certificate"]
    assert proof["rows_scanned"] == 796
    assert proof["upper_bound"] == pytest.approx(certificate["upper_bound"], rel=1e-12)
    assert proof["primal_margin"] == pytest.approx(certificate["primal_margin"], rel=1e-3)
    # a witness elsewhere, and shards of other names in another order, do as well
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for k, shard in enumerate(reversed(shards)):
        shutil.copy2(shard, elsewhere / f"z{k}.{suffix}")
    shutil.copy2(tmp_path / "m.run" / "witness", elsewhere / "witness")
    again = streamtron.certify(
        streamtron.load(tmp_path / "m"),
        sorted(elsewhere.glob(f"*.{suffix}")),
        witness=elsewhere / "witness",
        accept_exclusions=True,
    )
    assert again.to_dict()["certificate"]["upper_bound"] == pytest.approx(
        certificate["upper_bound"], rel=1e-12
    )


HIDING = ("certify", "m", "whole", "--witness", "m.run/witness")


@pytest.fixture
def hiding(user_rows: Corpus, tmp_path: Path) -> Path:
    """A model whose witness hides the 140 rows that it is worst at, as if they were forgotten."""
    (tmp_path / "whole").mkdir()
    fit(
        [user_rows.write(tmp_path / "whole" / "0.svm", np.arange(800))],
        tmp_path / "m",
        index_base=1,
    )
    decisions = streamtron.load(tmp_path / "m").decision_function(user_rows.rows)
    hardest = np.argsort(user_rows.labels * decisions)[:140]
    gone = list_rows(tmp_path / "gone.csv", {"0.svm": sorted(hardest.tolist())})
    streamtron.forget(tmp_path / "m", rows=gone)
    return tmp_path


def test_a_witness_that_hides_rows_proves_nothing_unless_that_is_accepted(hiding: Path) -> None:
    one_sentence(here(hiding, *HIDING), 3, "m.run/witness", "140 rows", "--accept-exclusions")
    one_sentence(here(hiding, "certify", "m", "--witness", "m.run/witness"), 3, "140 rows")
    model, whole = streamtron.load(hiding / "m"), hiding / "whole"
    with pytest.raises(DataError, match="140 rows"):
        streamtron.certify(model, whole, witness=hiding / "m.run" / "witness")


@pytest.mark.parametrize("words", [(*HIDING, "--accept-exclusions"), ("certify", "m.run")])
def test_certify_ends_with_how_many_rows_were_left_out(
    words: tuple[str, ...], hiding: Path
) -> None:
    done = here(hiding, *words)
    assert done.returncode == 0
    *_, last = " ".join(done.stdout.split()).split(". ")
    assert "140 rows of the shards were left out" in last
    certificate = json.loads(here(hiding, *words, "--json").stdout)["certificate"]
    assert (certificate["rows_scanned"], certificate["rows_excluded"]) == (660, 140)


def test_certify_does_not_speak_of_rows_left_out_where_there_are_none(
    user_rows: Corpus, tmp_path: Path
) -> None:
    fit([user_rows.write(tmp_path / "0.svm", np.arange(100))], tmp_path / "m", index_base=1)
    words = ("certify", "m", "0.svm", "--witness", "m.run/witness")
    assert "left out" not in here(tmp_path, *words).stdout
    certificate = json.loads(here(tmp_path, *words, "--json").stdout)["certificate"]
    assert certificate["rows_excluded"] == 0


@pytest.mark.parametrize("more", [{}, {"multiclass": True}])
def test_the_report_says_how_many_rows_every_certificate_leaves_out(
    more: dict[str, bool], user_rows: Corpus, tmp_path: Path
) -> None:
    shards = user_rows.shards("parquet")
    fit(shards, tmp_path / "m", **more)
    found = streamtron.forget(tmp_path / "m", key="user", values=["user-3"])
    gone = found.report["forgotten_rows"]
    few = user_rows.write(tmp_path / "few.parquet", user_rows.numbers("user-4")[:2])
    after = streamtron.update(tmp_path / "m", few)
    assert after.report["readings"] < 1  # the rows from before were not read
    for report in (found.report, after.report):
        learners = report.get("learners", [])
        assert {each["certificate"]["rows_excluded"] for each in [report, *learners]} == {gone}


def test_rows_are_numbered_as_they_lie_in_the_file_however_often_some_are_forgotten(
    user_rows: Corpus, tmp_path: Path
) -> None:
    fit(user_rows.shards("svm"), tmp_path / "m", index_base=1)
    for rows in ([3, 4], [5, 199], [4, 0]):
        gone = list_rows(tmp_path / "gone.csv", {"1.svm": rows})
        found = streamtron.forget(tmp_path / "m", rows=gone)
    assert deleted_rows(tmp_path / "m.run") == {"1.svm": [0, 3, 4, 5, 199]}
    assert found.report["rows"] == 795
    assert holds_optimum_without(200 + np.array([0, 3, 4, 5, 199]), user_rows, found.report)


def test_a_shard_that_is_forgotten_whole_takes_its_deletions_with_it(
    user_rows: Corpus, tmp_path: Path
) -> None:
    fit(user_rows.shards("svm"), tmp_path / "m")
    streamtron.forget(tmp_path / "m", rows=list_rows(tmp_path / "l", {"1.svm": [3], "2.svm": [4]}))
    streamtron.forget(tmp_path / "m", "1.svm")
    assert deleted_rows(tmp_path / "m.run") == {"2.svm": [4]}
    found = streamtron.forget(tmp_path / "m", "2.svm")
    assert not (tmp_path / "m.run" / "deletions").exists()
    assert found.report["rows"] == 400


def test_a_shard_of_the_same_bytes_loses_the_same_rows_and_none_brings_them_back(
    user_rows: Corpus, tmp_path: Path
) -> None:
    shards = user_rows.shards("svm", tmp_path)
    duplicate, other = tmp_path / "duplicate.svm", tmp_path / "other.svm"
    for path in (duplicate, other):
        shutil.copy2(shards[0], path)
    fit([*shards, duplicate], tmp_path / "m", allow_duplicate=True)
    found = streamtron.forget(tmp_path / "m", rows=list_rows(tmp_path / "l", {"0.svm": [9]}))
    assert deleted_rows(tmp_path / "m.run") == {"0.svm": [9], "duplicate.svm": [9]}
    assert found.report["rows"] == 998
    with pytest.raises(DataError, match=r"other.svm: the same bytes as 0.svm, but other rows"):
        streamtron.update(tmp_path / "m", other)


def test_a_shard_that_was_changed_after_rows_of_it_were_forgotten_is_refused(
    user_rows: Corpus, tmp_path: Path
) -> None:
    shards = user_rows.shards("svm", tmp_path)
    fit(shards, tmp_path / "m")
    streamtron.forget(tmp_path / "m", rows=list_rows(tmp_path / "l", {"0.svm": [9]}))
    shards[0].write_text(shards[0].read_text() + "1 1:1\n")
    settings = streamtron.Settings(C=5.0, index_base=0)
    deleted = deletions.load(tmp_path / "m.run").values()
    with open_shards([str(s) for s in shards], cache_dir=None) as source:
        source.exclude(deleted)
        with pytest.raises(DataError, match=r"0.svm: its bytes changed since 1 of its rows"):
            list(source.chunks())
    with pytest.raises(DataError, match=r"0.svm: changed"):
        streamtron.run(
            shards, settings, model=tmp_path / "m", machine=streamtron.Machine(), resume=True
        )


def test_rows_of_many_classes_are_forgotten_and_the_run_goes_on(
    user_rows: Corpus, tmp_path: Path
) -> None:
    names = np.array(["x", "y", "z"])[np.digitize(user_rows.rows.sum(axis=1).A1, [2.5, 3.5])]
    for k in range(2):
        own = np.arange(400 * k, 400 * (k + 1))
        write_rows(
            tmp_path / f"{k}.parquet",
            user_rows.rows[own],
            names[own].tolist(),
            user_rows.users[own],
        )
    shards = [tmp_path / f"{k}.parquet" for k in range(2)]
    fit(shards, tmp_path / "m", multiclass=True, active_set=30_000, class_weight="balanced")
    found = streamtron.forget(tmp_path / "m", key="user", values=["user-1", "user-2"])
    left = np.setdiff1d(np.arange(800), user_rows.numbers("user-1", "user-2"))
    assert found.report["rows"] == len(left)
    assert gap(found.report) <= 0.01
    assert {one["label"] for one in found.report["learners"]} == {"x", "y", "z"}
    rows = user_rows.rows[left].astype(float)
    for one in found.report["learners"]:
        own = names[left] == one["label"]
        weight = {True: len(left) / (3 * own.sum())}  # a class is weighted, the rest is not
        assert holds(one, least_primal(rows, own, 5.0, class_weight=weight))


@pytest.mark.parametrize("touched", [1, 4])  # shards
@pytest.mark.parametrize(
    "settings",
    [
        {"stage": "1,0.1", "max_epochs": 9},
        {"order": "sequential"},
        {"delta": 0.0, "C": None},
        {"active_set": 20_000},
    ],
)
def test_rows_are_forgotten_however_the_run_was_trained(
    settings: dict[str, Any], touched: int, user_rows: Corpus, tmp_path: Path
) -> None:
    scores = user_rows.rows @ user_rows.truth
    own = np.flatnonzero(scores * user_rows.labels > 0.6)  # so that there is a margin
    parts = np.array_split(own, 4)
    shards = [user_rows.write(tmp_path / f"{k}.svm", part) for k, part in enumerate(parts)]
    fit(shards, tmp_path / "m", index_base=1, **settings)
    gone = list_rows(tmp_path / "l", {f"{k}.svm": range(15) for k in range(touched)})
    found = streamtron.forget(tmp_path / "m", rows=gone).report
    left = [part[15:] if k < touched else part for k, part in enumerate(parts)]
    stay = np.concatenate(left)
    assert found["rows"] == len(stay) == len(own) - 15 * touched
    X, y = user_rows.rows[stay].astype(float), user_rows.labels[stay]
    if settings.get("delta") == 0.0:
        rows = [list(zip(row.indices, row.data, strict=True)) for row in X]
        margin, _ = gamma_d(rows, y.astype(int).tolist(), [0.0] * len(y), rho=1.0)
        assert holds(found, 0.5 / margin**2)
    else:
        assert holds(found, least_primal(X, y, 5.0))


def test_of_text_only_rows_are_numbered(tmp_path: Path) -> None:
    text = "# a comment\n1 1:1\n\n-1 2:1 # the second\n   \n1 3:1\n-1 4:1\n"
    (tmp_path / "a.svm").write_text(text.replace("\n", "\r\n"))
    fit([tmp_path / "a.svm"], tmp_path / "m", index_base=1)
    found = streamtron.forget(tmp_path / "m", rows=list_rows(tmp_path / "l", {"a.svm": [2]}))
    assert found.model.weights.tolist()[2] == 0.0
    assert np.flatnonzero(found.model.weights).tolist() == [0, 1, 3]


# --- nothing stays -------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["key", "list"])
def test_no_file_of_the_run_holds_a_value_that_only_a_forgotten_row_had(
    way: str, user_rows: Corpus, tmp_path: Path
) -> None:
    suffix = "parquet" if way == "key" else "svm"
    rows, secret = user_rows.rows[:200].copy(), np.float32(0.73105857863)
    rows.data[rows.indptr[17]] = secret
    users = ["somebody"] * 17 + ["who is forgotten"] + ["somebody"] * 182
    shards = user_rows.shards(suffix, tmp_path)
    write_rows(shards[0], rows, user_rows.labels[:200].tolist(), users)
    often = streamtron.Machine(checkpoint_every=0.0)
    streamtron.run(shards, streamtron.Settings(C=5.0), model=tmp_path / "m", machine=often)
    assert any(secret.tobytes() in written for written in files_of(tmp_path))
    if way == "key":
        streamtron.forget(tmp_path / "m", key="user", values=["who is forgotten"])
    else:
        streamtron.forget(tmp_path / "m", rows=list_rows(tmp_path / "l", {"0.svm": [17]}))
    assert streamtron.certify(
        streamtron.load(tmp_path / "m"),
        shards,
        witness=tmp_path / "m.run" / "witness",
        accept_exclusions=True,
    )
    for written in files_of(tmp_path):
        assert secret.tobytes() not in written
        assert b"who is forgotten" not in written
    assert not (tmp_path / "m.run" / "checkpoint.before").exists()


# --- shards that were written anew ---------------------------------------------------------------


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("suffix", ["svm", "parquet"])
def test_a_shard_that_was_written_without_rows_takes_the_place_of_the_old_one(
    suffix: str, in_place: bool, user_rows: Corpus, tmp_path: Path
) -> None:
    shards = user_rows.shards(suffix, tmp_path)
    fit(shards, tmp_path / "m")
    left = np.setdiff1d(np.arange(400, 600), [400, 433, 434, 599])
    new = user_rows.write(shards[2] if in_place else tmp_path / f"new.{suffix}", left)
    streamtron.forget(tmp_path / "m", shards[2])
    found = streamtron.update(tmp_path / "m", new)
    assert found.report["rows"] == 796
    assert "forgotten_rows" not in found.report
    assert not (tmp_path / "m.run" / "deletions").exists()
    assert holds_optimum_without(np.array([400, 433, 434, 599]), user_rows, found.report)
    names = [shard.path for shard in found.manifest.shards]
    assert names == [str(path) for path in (*shards[:2], shards[3], new)]
    assert code("certify", str(tmp_path / "m")) == 0


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3])
def test_a_class_that_would_lose_all_its_rows_is_named_and_nothing_is_forgotten(
    classes: int, tmp_path: Path
) -> None:
    for name, label in zip("abc"[:classes], ("-1", "1", "7"), strict=False):
        lines = [f"{label} {1 + k % 3}:1 {5 + ord(name)}:0.5\n" for k in range(20)]
        (tmp_path / f"{name}.svm").write_text("".join(lines))
    shards = sorted(tmp_path.glob("*.svm"))
    fit(shards, tmp_path / "m", multiclass=classes == 3)
    before = content(tmp_path / "m.run", tmp_path / "m")
    rows = list_rows(tmp_path / "l", {"b.svm": range(20)})
    for words in ({"rows": rows}, {"shards": "b.svm"}, {"rows": rows, "max_epochs": 1}):
        with pytest.raises(DataError, match=r"no remaining row has the label 1\.0|label 1,"):
            streamtron.forget(tmp_path / "m", **words)
        assert content(tmp_path / "m.run", tmp_path / "m") == before
    rows = list_rows(tmp_path / "l", {"b.svm": range(19)})
    assert streamtron.forget(tmp_path / "m", rows=rows).report["rows"] == 20 * classes - 19


def test_a_shard_that_went_bad_is_refused_even_where_bad_shards_are_skipped(
    user_rows: Corpus, tmp_path: Path
) -> None:
    shards = user_rows.shards("svm", tmp_path)
    fit(shards, tmp_path / "m", on_bad_shard="skip")
    shutil.rmtree(tmp_path / "m.run" / "cache")
    before, was = content(tmp_path / "m.run", tmp_path / "m"), shards[1].stat()
    with shards[1].open("r+") as file:
        file.write("x")
    os.utime(shards[1], ns=(was.st_atime_ns, was.st_mtime_ns))
    with pytest.raises(DataError, match=r"1.svm, line 1: .* or forget it whole"):
        streamtron.forget(tmp_path / "m", "0.svm")
    assert content(tmp_path / "m.run", tmp_path / "m") == before
    assert streamtron.forget(tmp_path / "m", "1.svm").report["rows"] == 600


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"key": "user"}, "give both"),
        ({"values": ["a"]}, "give both"),
        ({"key": "user", "values": "a", "rows": "l"}, "exclude each other"),
        ({"shards": "0.svm", "rows": "l"}, "names the shards itself"),
        ({}, "nothing to forget"),
        ({"key": "user", "values": "a"}, "libsvm text has no column 'user'.*--rows FILE"),
    ],
)
def test_ways_to_name_rows_that_do_not_go_together_are_refused(
    words: dict[str, Any], sentence: str, user_rows: Corpus, tmp_path: Path
) -> None:
    fit(user_rows.shards("svm"), tmp_path / "m")
    with pytest.raises(SettingsError, match=sentence):
        streamtron.forget(tmp_path / "m", **words)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("name", "a", "0.parquet: 0 columns of the name 'name'. Wanted is one of indices, values"),
        ("y", "high", "column 'y' holds double, and --value is none .Failed to parse string"),
        ("indices", "1", "column 'indices' holds list"),
    ],
)
def test_a_key_that_no_row_can_have_is_a_sentence(
    key: str, value: str, sentence: str, user_rows: Corpus, tmp_path: Path
) -> None:
    fit(user_rows.shards("parquet"), tmp_path / "m")
    with pytest.raises((DataError, SettingsError), match=sentence):
        streamtron.forget(tmp_path / "m", key=key, values=value)


@pytest.mark.parametrize(
    ("cells", "value", "rows"),
    [
        (["a", None, "b", "a"], "a", [0, 3]),
        (pa.array(["a", "b", None, "a"]).dictionary_encode(), "b", [1]),
        ([7, 70, 7, None], "7", [0, 2]),
        ([0.5, 0.25, float("nan"), 0.5], "0.5", [0, 3]),
        ([True, False, None, True], "false", [1]),
        (pa.array([b"a", b"b", b"a", None]), "a", [0, 2]),
        (pa.array(["2026-01-02", "2026-01-03", None, "2026-01-02"]).cast("date32"), "2026-01-03",
         [1]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_value_is_looked_for_as_the_column_has_it(
    suffix: str, cells: Any, value: str, rows: list[int], tmp_path: Path
) -> None:
    table = pa.table({"key": cells})
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            for batch in table.to_batches(max_chunksize=2):
                writer.write_batch(batch)
    [shard] = find_shards([str(path)])
    assert rows_with(shard, "key", [value, value])[0].tolist() == rows
    path.touch()
    with pytest.raises(DataError, match="changed"):
        rows_with(shard, "key", [value])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "begins with ''. Wanted is a CSV file whose first line is shard,row"),
        ("0.svm,3\n", "begins with '0.svm,3'"),
        ("shard,row\n0.svm,-1\n", "line 2: shard '0.svm', row '-1'"),
        ("shard,row\n0.svm\n", "line 2: shard '0.svm', row None"),
        ("shard,row\n0.svm,200\n", "row 200 of 0.svm, which has 200 rows"),
        ('shard,row\n"0.svm,0\n', "not CSV"),
    ],
)
def test_a_list_that_is_none_is_a_sentence(
    text: str, sentence: str, user_rows: Corpus, tmp_path: Path
) -> None:
    fit(user_rows.shards("svm"), tmp_path / "m")
    (tmp_path / "l").write_text(text)
    with pytest.raises(DataError, match=sentence):
        streamtron.forget(tmp_path / "m", rows=tmp_path / "l")


def test_all_rows_of_a_run_are_not_forgotten(user_rows: Corpus, tmp_path: Path) -> None:
    fit(user_rows.shards("svm")[:1], tmp_path / "m")
    with pytest.raises(DataError, match="these are all rows of the run"):
        streamtron.forget(tmp_path / "m", rows=list_rows(tmp_path / "l", {"0.svm": range(200)}))


def test_deletions_that_are_damaged_or_none_of_ours_are_refused(tmp_path: Path) -> None:
    deletion = Deletions("/data/a.svm", "0" * 32, np.array([1, 5]))
    deletions.save(tmp_path / "deletions", [deletion])
    [found] = deletions.load(tmp_path).values()
    assert (found.path, found.fingerprint, found.rows.tolist()) == ("/data/a.svm", "0" * 32, [1, 5])
    written = bytearray((tmp_path / "deletions").read_bytes())
    written[-1] ^= 1
    (tmp_path / "deletions").write_bytes(written)
    with pytest.raises(FileDamaged, match="checksum"):
        deletions.load(tmp_path)
    table = [{"path": "a", "fingerprint": "b"}]
    for rows in (np.array([3, 3]), np.array([-1]), np.array([1.0]), np.zeros((1, 1), np.int64)):
        content = {"deletions_version": 1, "deletions": table}
        write_sealed(tmp_path / "deletions", content, {"000000.forgotten": rows})
        with pytest.raises(FileDamaged, match="rows that are not rising"):
            deletions.load(tmp_path)
    write_sealed(tmp_path / "deletions", {"deletions_version": 2}, {})
    with pytest.raises(DataError, match="not deletions of version 1"):
        deletions.load(tmp_path)


# --- the rest ------------------------------------------------------------------------------------


def test_the_command_forgets_the_rows_of_users_and_can_be_called_again(
    user_rows: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(user_rows.shards("parquet"), tmp_path / "m")
    words = ["forget", str(tmp_path / "m"), "--key", "user", "--value", "user-3", "--value=user-4"]
    left = 800 - len(user_rows.numbers("user-3", "user-4"))
    each = {f"user = {name}": len(user_rows.numbers(name)) for name in ("user-3", "user-4")}
    for forgotten in (each, {}):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--report", str(tmp_path / "r.json")])
        assert ended.value.code == 0
        report = json.loads((tmp_path / "r.json").read_text())
        assert report["rows"] == left
        assert report["forgotten"] == forgotten
        assert report["not_in_run"] == ([] if forgotten else [*each])
        assert report["forgotten_rows"] == 800 - left
        said = capsys.readouterr().out
        told = [f"{name}: {rows} rows forgotten\n" for name, rows in each.items()]
        assert [line in said for line in told] == [bool(forgotten)] * 2
        assert said.count(" forgotten\n") == len(forgotten)
        assert re.search(rf"rows left out +{800 - left}\n", said)
    assert code("inspect", str(tmp_path / "m.run")) == 0
    assert re.search(
        rf"rows +{left}\n(.*\n)?rows forgotten +{800 - left}\n", capsys.readouterr().out
    )


WAYS: dict[str, tuple[Callable[..., dict[str, Any]], str]] = {
    "a shard by its name": (lambda *_: {"shards": "1.svm"}, "1.svm"),
    "a shard by its path": (lambda _, shards, __: {"shards": shards[1]}, "1.svm"),
    "rows of a list": (
        lambda _, __, place: {"rows": list_rows(place / "l", {"1.svm": [3, 5], "2.svm": [9]})},
        "2 row(s) of 1.svm",
    ),
    "rows of a shard and a shard that is gone": (
        lambda _, __, place: {"rows": list_rows(place / "l", {"9.svm": [0], "1.svm": [3]})},
        "9.svm",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_forgotten_already_is_named_and_nothing_is_changed(
    way: str, user_rows: Corpus, tmp_path: Path
) -> None:
    shards = user_rows.shards("svm", tmp_path)
    fit(shards, tmp_path / "m", tol=1e-13, max_epochs=2)
    words = WAYS[way][0](user_rows, shards, tmp_path)
    first = streamtron.forget(tmp_path / "m", **words)
    before = content(tmp_path / "m.run", tmp_path / "m")
    again = streamtron.forget(tmp_path / "m", **words, report=tmp_path / "r.json")
    assert content(tmp_path / "m.run", tmp_path / "m") == before
    assert again.report["not_in_run"][0].endswith(WAYS[way][1])
    assert (again.exit_code, again.report["readings"]) == (first.exit_code, 0.0)
    assert again.report["certificate"] == first.report["certificate"]
    assert again.report.get("forgotten_rows") == first.report.get("forgotten_rows")
    assert json.loads((tmp_path / "r.json").read_text()) == again.report


def test_what_is_in_the_run_is_forgotten_though_something_else_that_is_named_is_not(
    user_rows: Corpus, tmp_path: Path
) -> None:
    fit(user_rows.shards("svm"), tmp_path / "m")
    found = streamtron.forget(tmp_path / "m", ["nobody.svm", "1.svm"])
    assert (found.report["rows"], found.report["not_in_run"]) == (600, ["nobody.svm"])
    assert found.report["forgotten"] == {"1.svm": 200}


def test_of_each_value_the_rows_that_this_call_forgets_are_counted(
    user_rows: Corpus, tmp_path: Path
) -> None:
    fit(user_rows.shards("parquet"), tmp_path / "m")
    streamtron.forget(tmp_path / "m", key="user", values="user-3")
    some = streamtron.forget(tmp_path / "m", key="user", values=["user-3", "user-4", "no-one"])
    assert some.report["forgotten"] == {"user = user-4": len(user_rows.numbers("user-4"))}
    assert some.report["not_in_run"] == ["user = user-3", "user = no-one"]


def test_a_key_that_no_row_has_is_named_and_nothing_is_changed(
    user_rows: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(user_rows.shards("parquet"), tmp_path / "m")
    before = content(tmp_path / "m.run", tmp_path / "m")
    assert code("forget", str(tmp_path / "m"), "--key", "user", "--value", "nobody") == 0
    assert "user = nobody: not in the run; there is nothing to forget" in capsys.readouterr().out
    assert content(tmp_path / "m.run", tmp_path / "m") == before


@pytest.mark.parametrize("change", ["update", "forget"])
def test_shards_that_could_not_be_read_are_still_listed_after_a_change(
    change: str, user_rows: Corpus, tmp_path: Path
) -> None:
    shards = user_rows.shards("svm", tmp_path)
    (tmp_path / "bad.svm").write_text("1 nonsense\n")
    found = [*shards[:3], tmp_path / "bad.svm"]
    fit(found, tmp_path / "m", on_bad_shard="skip")
    if change == "update":
        changed = streamtron.update(tmp_path / "m", shards[3])
    else:
        changed = streamtron.forget(tmp_path / "m", shards[0])
    [entry] = changed.report["skipped"]
    assert entry["name"] == "bad.svm"
    assert changed.model.certificate is not None
    assert changed.model.certificate["skipped"] == [entry]
    (tmp_path / "bad.svm").write_text("1 1:1\n")
    mended = streamtron.update(tmp_path / "m", tmp_path / "bad.svm")
    assert mended.report["skipped"] == []
