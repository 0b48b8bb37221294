"""A run directory that came from another user, or was moved or copied: what only reads writes
nothing, and what writes changes nothing but this run and its model."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import streamtron
from streamtron import generate
from streamtron.core.errors import DataError
from streamtron.runs import transaction
from tests.helpers.processes import here, succeeded
from tests.helpers.runs import fit

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
    files = {str(path.relative_to(place)): path for path in place.rglob("*") if path.is_file()}
    return {name: (path.stat().st_mtime_ns, path.read_bytes()) for name, path in files.items()}


def leave_change(place: Path, plan: object) -> Path:
    """A change that is whole, with this plan, and with a model."""
    staged = place / "m.run" / transaction.COMMITTED
    staged.mkdir()
    (staged / transaction.PLAN).write_text(plan if isinstance(plan, str) else json.dumps(plan))
    (staged / transaction.MODEL).write_bytes(b"a stranger's")
    return staged


NOTHING: dict[str, Any] = {"remove": []}

PLANS = {
    "another model": lambda at: NOTHING | {"model": str(at)},
    "a file to remove by its whole path": lambda at: NOTHING | {"remove": [str(at)]},
    "a file to remove by a way up": lambda _: NOTHING | {"remove": ["../../precious"]},
    "a name that is none": lambda _: {"remove": [7]},
    "no names": lambda _: NOTHING | {"remove": 7},
    "no plan": lambda _: [],
    "nested deep": lambda _: "[" * 100_000,
}  # fmt: skip


def update(place: Path) -> None:
    streamtron.update(place / "m", last_shard(place))


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_that_names_files_of_others_is_refused_and_changes_nothing(plan, place, tmp_path):
    leave_change(place, PLANS[plan](tmp_path / "precious"))
    before = everything(tmp_path)
    with pytest.raises(DataError, match=r"change.json: not the plan of a change"):
        update(place)
    after = everything(tmp_path)
    assert {name for name in after if after[name] != before.get(name)} == {"place/m.run/lock"}
    assert before.keys() <= after.keys()


@pytest.mark.parametrize("words", [("certify", "m"), ("certify", "m.run"), ("inspect", "m.run"),
                                   ("inspect", "m"), ("cache", "m")])  # fmt: skip
def test_what_only_reads_a_run_writes_nothing_even_if_a_change_is_left_in_it(words, place):
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
        shutil.rmtree(place / "m.run" / transaction.COMMITTED)
        checkpoint = place / "m.run" / "checkpoint"
        shutil.copy2(checkpoint, place / "m.run" / "checkpoint.before")
        checkpoint.write_bytes(checkpoint.read_bytes()[:-1])  # what goes on removes this
        (place / "m.run" / "lock").unlink()
        before = everything(place)
        succeeded(here(place, *words))
        assert everything(place) == before


@pytest.mark.parametrize(
    "name",
    ["lock", "run.json", "deletions", "change", "changed", "cache/sources.json", "witness"],
)
@pytest.mark.parametrize("change", ["update", "fit"])
def test_a_link_out_of_a_run_is_refused_by_what_would_write_through_it(
    change, name, place, tmp_path
):
    path = place / "m.run" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "precious")
    words = ["--model", "m", "--overwrite"] if change == "fit" else []
    done = here(place, change, *([] if words else ["m"]), last_shard(place), *words)
    assert done.returncode == DataError.exit_code
    assert "a symbolic link, and what is written here" in done.stderr
    assert (tmp_path / "precious").read_bytes() == PRECIOUS


def test_of_a_run_named_by_its_directory_the_summary_names_its_model_and_errors_say_why(place):
    shard = last_shard(place)
    assert "\nmodel              m\n" in here(place, "update", "m.run", shard).stdout
    assert "of a run give MODEL, not MODEL.run." in here(place, "evaluate", "m.run", shard).stderr
    for words, told in (((), ""), (("--C", "2"), "C is 2.0, the run has 1.0."), (("--C", "1"), "")):
        done = here(place, "fit", shard, "--model", "n", "--resume", *words)
        assert (done.returncode, told in done.stderr) == (2 if told else 0, True)
    (place / "m.run" / "lock").unlink()
    (place / "m.run" / "lock").mkdir()
    assert "m.run: cannot be written (Is a" in here(place, "forget", "m.run", shard).stderr


def test_a_model_that_is_a_link_elsewhere_is_changed_only_where_the_run_is_named(place, tmp_path):
    (place / "m").rename(tmp_path / "theirs")
    (place / "m").symlink_to(tmp_path / "theirs")
    before = (tmp_path / "theirs").read_bytes()
    with pytest.raises(DataError, match=r"m: a symbolic link to .*/theirs, .* by --run-dir"):
        update(place)
    assert (tmp_path / "theirs").read_bytes() == before
    shard = str(last_shard(place))
    succeeded(here(place, "update", tmp_path / "theirs", shard, "--run-dir", "m.run"))
    assert (tmp_path / "theirs").read_bytes() != before


def test_a_run_directory_of_another_name_is_changed_and_proven_where_its_model_is_named(place):
    proof = streamtron.certify(place / "m")
    (place / "m.run").rename(place / "elsewhere")
    for command in (partial(streamtron.update, shards=last_shard(place)), streamtron.certify):
        with pytest.raises(DataError, match=r"elsewhere: neither MODEL nor MODEL.run. Name the"):
            command(place / "elsewhere")
    for model in (place / "m", streamtron.load(place / "m")):
        assert streamtron.certify(model, run=place / "elsewhere") == proof
    assert here(place, "certify", "m", "--run-dir", "elsewhere").returncode == 0
    assert "or the run directory, --run-dir" in here(place, "certify", "m").stderr
    assert "m.run/cache: there is no cache. If it is elsewhere" in here(place, "cache", "m").stdout
    machine = streamtron.Machine(run_dir=str(place / "elsewhere"))
    updated = streamtron.update(place / "m", last_shard(place), machine=machine)
    assert updated.report["rows"] == 400
    assert streamtron.load(place / "m").certificate == updated.model.certificate


def original(place: Path) -> dict[str, tuple[int, bytes]]:
    return {name: file for name, file in everything(place).items() if "copy" not in name}


def test_a_change_of_a_copy_leaves_the_original_as_it_was(place, tmp_path):
    shutil.copytree(place, tmp_path / "whole", copy_function=shutil.copy)  # not the times
    (tmp_path / "some").mkdir()
    copies = [tmp_path / "some" / "copy", place / "copy"]  # of the model alone, elsewhere and here
    for copy in copies:
        shutil.copy(place / "m", copy)
        shutil.copytree(place / "m.run", f"{copy}.run")
    assert str(place) not in (place / "m.run" / "run.json").read_text()
    before = original(place)
    for copy in (tmp_path / "whole" / "m", *copies):
        updated = streamtron.update(copy, last_shard(place))
        assert updated.report["rows"] == 400, copy
        assert streamtron.load(copy).certificate == updated.model.certificate
        assert original(place) == before, copy


RELEASES = sorted((Path(__file__).resolve().parents[1] / "files" / "releases").iterdir())


@pytest.fixture(params=[pytest.param(path, id=path.name) for path in RELEASES])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The files of a release, somewhere else than where they were written."""
    return Path(shutil.copytree(request.param, tmp_path / "kept"))


def test_a_model_of_a_release_decides_and_its_certificate_is_proven_again(kept):
    model = streamtron.load(kept / "model")
    proven = streamtron.certify(model, kept / "rows.svm").certificate
    assert proven.primal == pytest.approx(model.certificate["primal_objective"])
    assert streamtron.evaluate(model, kept / "rows.svm").accuracy > 0.8


def test_a_run_of_a_release_is_certified_goes_on_and_learns_more_rows(kept):
    old = streamtron.load(kept / "model").certificate
    run = streamtron.certify(kept / "model.run").certificate
    assert run.upper_bound == pytest.approx(old["upper_bound"])
    streamtron.generate(
        kept / "more", rows=30, columns=3, kind="dense", first_row=60, shards=1, seed=0
    )
    outcome = streamtron.update(kept / "model", kept / "more", tol=1e-6)
    assert outcome.report["rows"] == 90
    assert outcome.report["certificate"]["relative_duality_gap"] <= 1e-6
