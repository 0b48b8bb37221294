"""A run directory that came from another user, or was moved or copied: what only reads writes
nothing, and what writes changes nothing but this run and its model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import streamtron
from streamtron.core.errors import DataError
from streamtron.data.writers.corpus import generate
from streamtron.runs import transaction
from streamtron.runs.finished_run import FinishedRun, locate
from tests.helpers.processes import Process, here
from tests.helpers.runs import WAS_KILLED, fit, state

PRECIOUS = b"of another user\n"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``data`` with four shards of 100 rows, and the run ``m`` of the first three."""
    place = tmp_path_factory.mktemp("run") / "place"
    generate(str(place / "data"), rows=400, columns=100, seed=3, shards=4)
    fit(sorted((place / "data").glob("*.svm"))[:3], place / "m")
    return place


@pytest.fixture
def place(generated: Path, tmp_path: Path) -> Path:
    """The same, moved from where it was fitted; beside it lies the file ``precious``."""
    (tmp_path / "precious").write_bytes(PRECIOUS)
    return Path(shutil.copytree(generated, tmp_path / "place", copy_function=shutil.copy2))


def last_shard(place: Path) -> Path:
    return max((place / "data").glob("*.svm"))


def everything(place: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a directory, with the time of its last change."""
    return {
        str(path.relative_to(place)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }


def leave_change(place: Path, plan: object) -> Path:
    """A change that is whole, with this plan, and with a model."""
    staged = place / "m.run" / transaction.COMMITTED
    staged.mkdir()
    (staged / transaction.PLAN).write_text(plan if isinstance(plan, str) else json.dumps(plan))
    (staged / transaction.MODEL).write_bytes(b"a stranger's")
    return staged


NOTHING: dict[str, Any] = {"remove": [], "fingerprints": [], "used": [], "elsewhere": None}

PLANS = {
    "another model": lambda at: NOTHING | {"model": str(at)},
    "another model as it was once named": lambda at: {
        "model": str(at), "remove": [], "stale": None,
    },
    "a file to remove by its whole path": lambda at: NOTHING | {"remove": [str(at)]},
    "a file to remove by a way up": lambda _: NOTHING | {"remove": ["../../precious"]},
    "a flat file by a way up": lambda _: NOTHING | {"used": ["../../precious"]},
    "a fingerprint that is none": lambda _: NOTHING | {"fingerprints": [7]},
    "a cache that is none": lambda _: NOTHING | {"elsewhere": 7},
    "no names": lambda _: NOTHING | {"remove": 7},
    "no plan": lambda _: [],
    "nested deep": lambda _: "[" * 100_000,
}  # fmt: skip


def update(place: Path) -> None:
    streamtron.update(place / "m", last_shard(place))


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_that_names_files_of_others_is_refused_and_changes_nothing(
    plan: str, place: Path, tmp_path: Path
) -> None:
    leave_change(place, PLANS[plan](tmp_path / "precious"))
    before = everything(tmp_path)
    with pytest.raises(DataError, match=r"change.json: not the plan of a change"):
        update(place)
    after = everything(tmp_path)
    assert {name for name in after if after[name] != before.get(name)} == {"place/m.run/lock"}
    assert before.keys() <= after.keys()


@pytest.mark.parametrize("words", [("certify", "m"), ("certify", "m.run"), ("inspect", "m.run"),
                                   ("inspect", "m"), ("cache", "m")])  # fmt: skip
def test_what_only_reads_a_run_writes_nothing_even_if_a_change_is_left_in_it(
    words: tuple[str, str], place: Path
) -> None:
    leave_change(place, NOTHING)
    (place / "m.run" / ".streamtron-half-written").touch()
    (place / "m.run" / transaction.STAGED).mkdir()
    before = everything(place)
    done = here(place, *words)
    assert "Traceback" not in done.stderr
    assert everything(place) == before
    assert (place / "m.run" / transaction.STAGED).is_dir()
    if words[0] == "certify":
        assert done.returncode == DataError.exit_code
        assert "a change of the run was interrupted" in done.stderr


def test_a_run_is_certified_without_a_byte_written(place: Path) -> None:
    checkpoint = place / "m.run" / "checkpoint"
    shutil.copy2(checkpoint, place / "m.run" / "checkpoint.before")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])  # what goes on with the run removes this
    (place / "m.run" / "lock").unlink()
    before = everything(place)
    done = here(place, "certify", "m")
    assert done.returncode == 0, done.stderr
    assert everything(place) == before


def linked(name: str) -> Callable[[Path, Path], None]:
    def link(run: Path, to: Path) -> None:
        path = run / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(to)

    return link


LINKS = ["lock", "run.json", "deletions", "change", "changed", "cache/sources.json", "witness"]


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("change", ["update", "fit"])
def test_a_link_that_leads_out_of_a_run_is_refused_by_what_would_write_through_it(
    change: str, name: str, place: Path, tmp_path: Path
) -> None:
    linked(name)(place / "m.run", tmp_path / "precious")
    words = ["--model", "m", "--overwrite"] if change == "fit" else []
    done = here(place, change, *([] if words else ["m"]), last_shard(place), *words)
    assert done.returncode == DataError.exit_code
    assert "a symbolic link, and what is written here" in done.stderr
    assert (tmp_path / "precious").read_bytes() == PRECIOUS


def test_a_model_that_is_a_link_out_of_its_directory_is_changed_only_where_the_run_is_named_too(
    place: Path, tmp_path: Path
) -> None:
    (place / "m").rename(tmp_path / "theirs")
    (place / "m").symlink_to(tmp_path / "theirs")
    before = (tmp_path / "theirs").read_bytes()
    with pytest.raises(DataError, match=r"m: a symbolic link to .* by --run-dir"):
        update(place)
    assert (tmp_path / "theirs").read_bytes() == before
    shard = str(last_shard(place))
    done = here(place, "update", tmp_path / "theirs", shard, "--run-dir", "m.run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "theirs").read_bytes() != before


def test_a_run_directory_of_another_name_is_changed_where_its_model_is_named(place: Path) -> None:
    (place / "m.run").rename(place / "elsewhere")
    with pytest.raises(DataError, match=r"elsewhere: neither MODEL nor MODEL.run. Name the model"):
        streamtron.update(place / "elsewhere", last_shard(place))
    machine = streamtron.Machine(run_dir=str(place / "elsewhere"))
    updated = streamtron.update(place / "m", last_shard(place), machine=machine)
    assert updated.report["rows"] == 400
    assert streamtron.load(place / "m").certificate == updated.model.certificate


# --- moved and copied ----------------------------------------------------------------------------


def test_a_change_of_a_copy_leaves_the_original_as_it_was(place: Path, tmp_path: Path) -> None:
    copies = {
        "with its shards, not their times": tmp_path / "whole",
        "with its model alone": tmp_path / "some",
        "beside the original": place,
    }
    shutil.copytree(place, copies["with its shards, not their times"], copy_function=shutil.copy)
    copies["with its model alone"].mkdir()
    before = everything(place)
    for how, at in copies.items():
        model = at / ("m" if at == tmp_path / "whole" else "copy")
        if how != "with its shards, not their times":
            shutil.copy(place / "m", model)
            shutil.copytree(place / "m.run", f"{model}.run")
        updated = streamtron.update(model, last_shard(place))
        assert updated.report["rows"] == 400, how
        assert streamtron.load(model).certificate == updated.model.certificate
        after = everything(place)
        assert {name: after[name] for name in before} == before, how


def test_a_change_that_was_cut_off_is_ended_where_the_run_was_copied_to(
    place: Path, tmp_path: Path
) -> None:
    """It counted before it was copied, and the original is left as it is."""
    code = (
        "import os, signal, sys, streamtron; from streamtron.runs import transaction; "
        "transaction.recover = lambda *_: os.kill(os.getpid(), signal.SIGKILL) "
        "if (transaction.Path(sys.argv[1] + '.run') / 'changed').is_dir() else None; "
        "streamtron.update(*sys.argv[1:])"
    )
    done = Process(code, place / "m", last_shard(place), cwd=place).end()
    assert done.returncode == WAS_KILLED, done.stderr
    copy = Path(shutil.copytree(place, tmp_path / "copy", copy_function=shutil.copy2))
    before = everything(place)
    with FinishedRun.to_change(locate(copy / "m")):
        pass
    assert everything(place) == before
    assert streamtron.load(copy / "m").certificate["rows_scanned"] == 400
    with FinishedRun.to_change(locate(place / "m")):
        pass
    assert state(place)["m"] == state(copy)["m"]


def test_no_file_of_a_run_says_where_its_model_is(place: Path, generated: Path) -> None:
    for directory in (place, generated):
        text = (generated / "m.run" / "run.json").read_text()
        assert str(directory) not in text
        assert "model" not in json.loads(text)
