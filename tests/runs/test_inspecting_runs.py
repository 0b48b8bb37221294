"""``inspect`` of a run, whatever became of it: what it is of, how far it has come, what is next."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from streamtron.runs import transaction
from tests.helpers.processes import COMMAND, Process, here, one_sentence, succeeded
from tests.helpers.runs import at_checkpoint, killed, reached, write_corpus
from tests.runs.test_moved_runs import everything

WORDS = ("fit", "data", "--model", "m", "--C", "20", "--tol", "1e-9")
OFTEN = (*WORDS, "--checkpoint-every", "0s")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with three shards in ``data``."""
    write_corpus(tmp_path / "data", rows=6000, noise=0.1)
    return tmp_path


def inspected(place: Path, *words: str) -> dict[str, Any]:
    """What ``inspect --json`` tells of the run, named by its directory or by its model."""
    names = words or ("m.run", "m")
    named = [succeeded(here(place, "inspect", name, "--json")) for name in names]
    facts: dict[str, Any] = json.loads(named[0].stdout)
    assert {json.loads(done.stdout)["state"] for done in named} == {facts["state"]}
    return facts


def test_of_a_run_that_is_going_on_it_tells_the_process_and_how_far_it_has_come(place):
    process = Process(COMMAND, *OFTEN, cwd=place)
    assert reached(place, "m", process, at_checkpoint(2))
    process.stop()
    before = everything(place)
    facts = inspected(place)
    told = here(place, "inspect", "m").stdout
    assert everything(place) == before
    process.kill()
    process.end()
    assert (facts["state"], facts["settings"]["C"]) == ("running", 20.0)
    assert f"process {process.pid} on" in facts["process"]
    assert facts["progress"]["nonzeros_read"] > 0
    assert facts["progress"]["finished"] is False
    assert [shard["name"] for shard in facts["shards"]] == [f"part-{k}.svm" for k in range(3)]
    assert f"running, by process {process.pid}" in told
    assert "wait for it" in told


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_of_a_run_that_was_killed_or_stopped_it_tells_how_to_go_on_which_then_works(number, place):
    ended = killed(place, OFTEN, "m", at_checkpoint(2), number)
    assert ended.returncode == (-number if number == signal.SIGKILL else 128 + number), ended.stderr
    if number != signal.SIGKILL:
        said = f"stopped by {signal.Signals(number).name}; nothing half-written is left. "
        assert ended.stderr.splitlines()[-1] == said + "Go on from m.run with --resume."
        names = [path.name for path in (place / "m.run").rglob("*")]
        assert not [n for n in names if n.startswith(".streamtron-") or n.endswith(".tmp")]
    facts = inspected(place)
    assert (facts["state"], facts["process"]) == ("stopped", None)
    assert "--resume goes on from the last checkpoint" in facts["next"]
    assert facts["progress"]["reading"] >= 1
    assert facts["bytes"] == sum(path.stat().st_size for path in (place / "data").iterdir())
    assert here(place, *WORDS, "--resume").returncode in (0, 4)
    facts = inspected(place, "m.run")
    assert (facts["state"], facts["rows"]) == ("ended", 6000)
    assert facts["progress"]["finished"] is True
    assert "certify m.run" in facts["next"]


def test_of_a_run_without_a_checkpoint_it_tells_that_it_is_still_to_begin(place):
    def begun(directory: Path, process: int) -> bool:
        return (directory / "run.json").exists()

    assert killed(place, WORDS, "m", begun).returncode == -signal.SIGKILL
    facts = inspected(place)
    assert (facts["state"], facts["progress"]) == ("begun", None)
    assert facts["settings"]["tol"] == 1e-9
    assert "--resume starts it" in facts["next"]


def test_of_a_run_whose_change_was_cut_off_or_checkpoint_spoilt_it_tells_what_to_do(place, caplog):
    assert here(place, *WORDS[:4]).returncode == 0
    staged = place / "m.run" / transaction.COMMITTED
    staged.mkdir()
    (staged / transaction.PLAN).write_text("{}")
    checkpoint = place / "m.run" / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    (place / "m.run" / "checkpoint.before").unlink(missing_ok=True)
    before = everything(place)
    facts = inspected(place, "m.run")
    assert (facts["state"], facts["progress"]) == ("change interrupted", None)
    assert "call the update or forget that was interrupted again" in facts["next"]
    assert "its checksum does not match" in caplog.text
    assert everything(place) == before


def test_inspect_and_export_show_every_setting_the_recipe_and_the_calibration_of_a_model(tmp_path):
    texts = {"good fine day": "a", "bad awful day": "b", "fine good": "a", "awful": "b"}
    lines = [json.dumps({"t": text, "y": label}) for text, label in texts.items()]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    for words in (
        "convert d.jsonl out --text t,tfidf,ngrams=1-2 --label y",
        "fit out --model m",
        "fit out --model c --C 1 --calibrate d.jsonl",
        "export m --format json -o j",
    ):
        assert here(tmp_path, *words.split()).returncode == 0
    plain, calibrated = (here(tmp_path, "inspect", name).stdout for name in ("m", "c"))
    for line in ("format version  3", "C  1.0", "not set  .*class_weight, .*delta"):
        for said in (plain, calibrated):
            assert re.search(line.replace("  ", " +"), said), line
    assert "t:text,ngrams=1-2,tfidf" in plain
    assert "probabilities      none, it is not calibrated" in plain
    assert "probabilities      sigmoid" in calibrated
    exported = json.loads((tmp_path / "j").read_text())
    assert exported["settings"]["C"] == 1.0
    assert exported["reading"]["recipe"]["columns"][0]["ngram_range"] == [1, 2]
    assert json.loads(here(tmp_path, "diff", "m", "c", "--json").stdout)["settings"] == {}
    os.mkfifo(tmp_path / "pipe")
    ended = here(tmp_path, "explain", "m", "--names", "pipe")
    one_sentence(ended, 3, "pipe: not a file but a pipe or a device. Copy it to a file.")
