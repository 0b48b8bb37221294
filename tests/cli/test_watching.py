"""Watching a run: on real terminals, in pipes, in logs, in batches, from Python."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import termios
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from streamtron.cli.progress import Watch
from streamtron.core import events
from streamtron.core.errors import SettingsError
from streamtron.core.text import BOUNDS
from streamtron.data.writers.corpus import generate
from tests.helpers.optimum import of_margins
from tests.helpers.processes import COMMAND, Process, one_sentence, succeeded, until

WIDTHS = (40, 120)
CLOCK = r"\d\d:\d\d:\d\d"


class Screen:
    """What a terminal shows of the bytes that it is sent: lines and cursor, without colours.

    ``broken`` : lines that it had to break because they were wider than itself.
    """

    def __init__(self, columns: int) -> None:
        self.columns, self.broken = columns, 0
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0

    @property
    def lines(self) -> list[str]:
        """The lines, without what is empty at their ends."""
        return "\n".join("".join(row).rstrip() for row in self._rows).rstrip().split("\n")

    def feed(self, text: str) -> None:
        """Take text with control sequences."""
        for found in re.finditer(r"\x1b\[([?\d;]*)([A-Za-z])|(.)", text, re.DOTALL):
            number, command, character = found.groups()
            if command == "A":
                self._row = max(self._row - int(number or 1), 0)
            elif command == "K":  # to the end of the line, or all of it
                del self._rows[self._row][0 if number == "2" else self._column :]
            elif character == "\r":
                self._column = 0
            elif character == "\n":
                self._down()
            elif character is not None:
                self._put(character)
            else:
                assert command in "mhl", f"a control sequence not known here: {found[0]!r}"

    def _put(self, character: str) -> None:
        if self._column == self.columns:
            self.broken, self._column = self.broken + 1, 0
            self._down()
        row = self._rows[self._row]
        row += " " * (self._column + 1 - len(row))
        row[self._column] = character
        self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append([])


class Terminal:
    """A terminal, and a command that runs on it."""

    def __init__(self, columns: int, *words: object, cwd: Path) -> None:
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self.screen, self.raw = Screen(columns), ""
        self.process = Process(COMMAND, *words, cwd=cwd, terminal=os.ttyname(self._slave))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def type(self, keys: bytes) -> None:
        """Type keys, which the terminal shows."""
        os.write(self._master, keys)

    def shows(self, text: str) -> None:
        """Wait until the text has been shown."""
        until(lambda: text in self.raw or self.process.poll() is not None)
        assert text in self.raw, self.raw

    def end(self) -> int:
        """Wait for the command, and return its exit code."""
        code = self.process.end().returncode
        os.close(self._slave)
        self._reader.join()
        os.close(self._master)
        return code

    def _read(self) -> None:
        found = b""
        while True:
            try:
                found += os.read(self._master, 1 << 16)
            except OSError:  # no process has the terminal any more
                break
            self.raw = found.decode(errors="ignore")
        self.screen.feed(self.raw)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with shards to fit (train) and to measure (held-out)."""
    directory = tmp_path_factory.mktemp("place")
    for name, rows, first in (("train", 1500, 0), ("held-out", 300, 1500), ("more", 200, 1800)):
        generate(str(directory / name), rows=rows, columns=500, seed=1, shards=2, first_row=first)
    return directory


@pytest.fixture
def terminal(place, monkeypatch):
    """Run a command on a terminal of so many columns."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    opened: list[Terminal] = []

    def call(columns: int, *words: object) -> Terminal:
        opened.append(Terminal(columns, *words, cwd=place))
        return opened[-1]

    yield call
    for one in opened:
        one.process.kill()


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_fit_on_a_terminal_shows_whole_lines_and_leaves_no_bar(terminal, columns):
    shown = terminal(columns, "fit", "train", "--model", f"m{columns}", "-v", "--tol", 1e-4)
    assert shown.end() == 0
    assert "reading 1: train" in shown.raw, "the bar was there"
    lines, screen = shown.screen.lines, shown.screen
    assert screen.broken == 0
    assert max(map(len, lines)) <= columns
    assert not [line for line in lines if "reading 1: train" in line or "━" in line]
    readings = [line for line in lines if re.match(rf"{CLOCK} reading \d+: stage", line)]
    assert len(readings) >= 2
    assert re.search(r"gap [\d.e-]+", " ".join(lines))


def test_a_strangers_table_cannot_control_the_terminal(terminal, place):
    """Its escape sequences and marks of direction are shown as text, wherever a command prints."""
    rows = "".join(f"{k},\x1b]0;a\x07{k % 3},\x1b[5m{'ab'[k % 2]}\n" for k in range(60))
    (place / "odd.csv").write_text("\u202eage,ci\x9bty,label\n" + rows, encoding="utf-8")
    for words in (
        "inspect odd.csv",
        "fit odd.csv --columns auto --label label --model odd -v",
        "predict odd odd.csv -o -",
        "explain odd",
        "explain odd odd.csv --row 1",
        "evaluate odd odd.csv --worst 3",
        "inspect odd",
        "fit odd.csv --columns nonesuch:number --label label --model never",
    ):
        shown = terminal(120, *words.split())
        shown.end()
        assert not re.search(r"\x1b\]|\x1b\[5m|[\x07\x9b\u202e]", shown.raw), words
        assert re.search(r"\\x1b|\\x9b|\\u202e", shown.raw), words


def test_a_warning_stands_above_the_bar_on_a_line_of_its_own(terminal, place):
    (place / "short.svm").write_text("1 1:1\n-1 2:1")  # without the last newline
    shown = terminal(120, "fit", "short.svm", "--model", "short")
    assert shown.end() == 0
    assert shown.screen.lines[0].startswith("short.svm: ")
    assert not [line for line in shown.screen.lines if "━" in line or "preparing" in line]


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("where", [(), pytest.param(("--workers", 2), marks=pytest.mark.slow)])
def test_the_candidates_of_a_sweep_are_whole_lines_on_a_terminal(terminal, columns, where):
    words = ("sweep", "train", "--valid", "held-out", "--C", "0.1,1")
    shown = terminal(columns, *words, *where)
    assert shown.end() == 0
    if where:
        assert "fits  0%" in shown.raw
        assert "(worker " in " ".join(shown.screen.lines)
    lines = shown.screen.lines
    assert shown.screen.broken == 0
    told = [line for line in lines if re.match(CLOCK, line)]
    assert [line.split(",")[0] for line in told] == [told[0][:8] + " C 0.1", told[1][:8] + " C 1"]
    assert all("accuracy" in line for line in told)
    assert not [line for line in lines if "fits" in line or "starting" in line]
    assert "best (*)           C = " in "\n".join(lines)
    if columns == 40:  # the table is wider, and becomes lines of name and value
        pairs = [line.split() for line in lines]
        assert [words[1] for words in pairs if words[:1] == ["C"]] == ["0.1", "1"]
        assert ["best", "*"] in pairs
        assert lines[-1].strip() != "*"


def test_ctrl_c_on_a_narrow_terminal_leaves_one_message_and_no_piece_of_the_bar(terminal, place):
    words = ("--tol", 0, "--stage", "0.01", "--max-epochs", 10**6)
    shown = terminal(40, "fit", "train", "--model", "stopped", *words)
    shown.shows("gap ")
    shown.type(b"\x03")  # the terminal shows ^C, though the signal is sent by hand
    shown.shows("^C")
    shown.process.send_signal(signal.SIGINT)
    assert shown.end() == 130
    message = " ".join(line.strip() for line in shown.screen.lines)
    assert message.startswith("stopped by SIGINT; nothing half-written is left"), message
    assert message.endswith("Go on from stopped.run with --resume."), message
    assert shown.screen.broken == 0


def test_in_a_pipe_v_prints_plain_lines_each_with_a_time(place):
    done = succeeded(Process(COMMAND, "fit", "train", "--model", "piped", "-v", cwd=place).end())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.stdout + done.stderr)
    lines = done.stderr.splitlines()
    assert all(re.match(f"{CLOCK} ", line) for line in lines)
    readings = [line for line in lines if "active rows" in line]
    assert re.search(f", ends about {CLOCK}$", readings[0]), "the rows in memory are solved"
    assert "ends about" not in readings[-1]
    assert re.search(r", gap [\d.e-]+$", readings[-1])


class Clock:
    """Seconds that are set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def _reading(forecast: Watch, clock: Clock, number: int, problems: int = 1) -> None:
    """Ten seconds for the rows, and five for the solve."""
    forecast.observe(events.WorkDone("scan", number, 0, 1000, problems=problems))
    clock.now += 10.0
    forecast.observe(events.WorkDone("solving", number))
    clock.now += 5.0


def _done(
    number: int, gap: float | None, tol: float = 0.01, active: int = 10, **more: Any
) -> events.ReadingDone:
    more |= {"tol": tol, "rows": 100}
    proven = None if gap is None else of_margins((1.0 - gap) ** 0.5, 1.0, 100)
    return events.ReadingDone(number, "ascent", "scan", 0, 0, active, proven, 1.0, **more)


def test_with_all_rows_solved_in_memory_one_more_reading_is_expected():
    clock = Clock()
    forecast = Watch(clock)
    assert forecast.end() is None
    _reading(forecast, clock, 0)
    assert forecast.end() is None, "nothing is known in the first reading"
    forecast.observe(_done(0, None, active=100))
    assert forecast.end() == clock.now + 10.0
    forecast.observe(events.WorkDone("scan", 1, 0, 1000))
    clock.now += 8.0
    forecast.observe(events.WorkDone("scan", 1, 200, 1000))  # 8 seconds for a fifth
    assert forecast.end() == pytest.approx(clock.now + 32.0)


@pytest.mark.parametrize(
    ("readings", "tol", "left"),
    [
        ([[0.8]], 0.01, None),  # one gap says nothing of its fall
        # .4 → .2 → .1 → .05 → .025 → .0125 → below .01: 6 readings, with 5 solves between them
        ([[0.8], [0.4]], 0.01, 6),
        ([[0.4], [0.4]], 0.01, None),  # it does not fall
        ([[1.0], [0.4]], 0.01, None),  # nothing was proven
        ([[0.8], [0.4]], 0.0, None),
        ([[0.8], [], [0.2]], 0.01, 5),  # 2 log 20 / log 4 = 4.3
        ([[0.8, 0.2], [0.4, 0.02]], 0.01, 6),  # the problem that needs most decides
        ([[0.8, 0.2], [0.4]], 0.01, None),  # the other one has not told yet
    ],
)
def test_the_end_follows_from_how_the_gaps_fell(readings, tol, left):
    clock = Clock()
    forecast = Watch(clock)
    for number, gaps in enumerate(readings):
        _reading(forecast, clock, number, problems=len(readings[0]))
        for C, gap in enumerate(gaps or [None]):
            forecast.observe(_done(number, gap, tol, problem=events.Problem(float(C))))
    end = None if left is None else pytest.approx(clock.now + left * 10.0 + (left - 1) * 5.0)
    assert forecast.end() == end


def test_a_sweep_ends_when_the_fits_left_have_taken_as_long_as_those_done():
    clock = Clock()
    forecast = Watch(clock)
    for total, left in ((5, 4), (4, 3), (0, None)):
        forecast.observe(events.WorkDone("fits", total=total))
        assert forecast.end() is None
        clock.now += 60.0
        forecast.observe(events.WorkDone("fits", None, 1, total))
        assert forecast.end() == (None if left is None else clock.now + 60.0 * left)


def _log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_of_a_fit_has_every_event_with_time_memory_and_proven_bounds(run, place):
    words = ("fit", "train", "--model", "logged", "--report", "r.json", "--log", "fit.jsonl")
    assert run(*words).returncode == 0
    lines, report = _log(place / "fit.jsonl"), json.loads((place / "r.json").read_text())
    assert {line["event"] for line in lines} == {"work_done", "reading_done"}
    steps = [(line["step"], line["reading"]) for line in lines if line["event"] == "work_done"]
    assert dict.fromkeys(steps) == dict.fromkeys(
        [("preparing", None), ("train", 1), ("solving", 1), ("scan", 2), ("solving", 2)]
    )
    times = [datetime.fromisoformat(line["time"]) for line in lines]
    assert times == sorted(times)
    assert all(line["peak_rss_bytes"] > 1e7 for line in lines)
    done = [line for line in lines if line["event"] == "reading_done"]
    assert [line["reading"] for line in done] == [1, 2]  # solved in memory, and scanned there
    assert {line["rows"] for line in done} == {1500}
    assert done[0]["proven_gap"] is None
    assert done[0]["estimated_upper_bound"] > 0.0
    proven = [done[-1][f"proven_{name}"] for name in ("lower_bound", "upper_bound", "gap")]
    assert proven == [report["certificate"][name] for name in BOUNDS]
    assert done[-1]["stop_reason"] == "certified"


def test_the_rounds_of_a_fit_in_parts_are_told():
    watch = Watch()
    watch.observe(events.WorkDone("scan", 1))
    assert watch.text() == "reading 2: scan"
    watch.observe(events.WorkDone("round 38: product", estimated_gap=0.00312))
    assert watch.text() == "round 38: product, gap ~0.003 in memory"


def test_update_forget_and_certify_append_to_a_log(run, place):
    assert run("fit", "train", "--model", "changed").returncode == 0
    log, told, before = place / "changes.jsonl", [], 0
    for words in (
        "update changed more",
        "forget changed more/part-00000.svm",
        "certify changed",
        "certify changed train --json",
    ):
        done = succeeded(run(*words.split(), "--log", log))
        lines = _log(log)
        told.append(lines[before:])
        before = len(lines)
    assert all(told)
    assert told[1][-1]["stop_reason"]
    proof = json.loads(done.stdout)
    certified, searched = (
        [line for line in lines if line["event"] == "reading_done"] for lines in told[2:]
    )
    assert [line["reading"] for line in certified] == [1]
    assert certified[0]["proven_gap"] <= 0.01
    assert [line["reading"] for line in searched] == [*range(1, len(searched) + 1)]
    assert searched[-1]["proven_gap"] == proof["certificate"]["relative_duality_gap"] < 0.1
    steps = [line for line in told[3] if line["event"] == "work_done"]
    started = [line for line in steps if line["reading"] and line["step"] != "solving"]
    assert len(started) == len(searched)
    assert proof["readings"] == 1.0, "rows in memory are scanned there"


def test_a_sweep_names_every_candidate_in_its_log_and_its_lines(run, place):
    words = ("--valid", "held-out", "--C", "0.1,1", "--log", "sweep.jsonl", "-v")
    told = succeeded(run("sweep", "train", *words)).stderr.splitlines()
    lines, candidates = _log(place / "sweep.jsonl"), ["C 0.1, rho 1", "C 1, rho 1"]
    trials = [line for line in lines if line["event"] == "trial_done"]
    assert {line["candidate"] for line in trials} == {*candidates}
    assert all(0.5 < line["metrics"]["accuracy"] <= 1.0 for line in trials)
    readings = {line[9:].partition(": reading")[0] for line in told if "active rows" in line}
    assert readings == {*candidates}
    assert [line[9:].partition(": accuracy")[0] for line in told[-2:]] == candidates


def _gauges(path: Path) -> dict[str, float]:
    """The numbers of a file in Prometheus' text format, by name and labels."""
    lines = path.read_text().splitlines()
    assert all(line.endswith(" gauge") for line in lines if line.startswith("# TYPE streamtron_"))
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name.removeprefix("streamtron_"): float(value) for name, value in pairs}


def test_metrics_say_how_a_command_ended_and_what_it_has_proven(run, place):
    path, report = place / "m.prom", place / "m.json"
    words = ("--metrics", path, "--report", report)
    assert run("fit", "train", "--model", "measured", *words).returncode == 0
    for command in ("fit", "update"):
        told, found, by = json.loads(report.read_text()), _gauges(path), f'{{command="{command}"}}'
        assert found[f"exit_status{by}"] == 0
        assert found[f"rows{by}"] == told["rows"]
        assert found[f"readings{by}"] == told["readings"]
        assert found[f"relative_duality_gap{by}"] == told["certificate"]["relative_duality_gap"]
        for phase, seconds in told["phases"].items():
            assert found[f'phase_seconds{{command="{command}",phase="{phase}"}}'] == seconds
        succeeded(run("update", "measured", "more", *words))
    assert run("update", "measured", "nonesuch", *words).returncode == 3
    found = _gauges(path)
    assert [*found] == ['exit_status{command="update"}', 'end_time_seconds{command="update"}']
    assert found['exit_status{command="update"}'] == 3
    for name, sentence in (("train/part-00000.svm", "so it is kept"), ("new", "the model is")):
        one_sentence(run("fit", "train", "--model", "new", "--metrics", name), 2, sentence)
    failed = run("fit", "train", "--model", "new", "--metrics", "/dev/full")
    assert failed.returncode == 5, failed.stderr
    assert "/dev/full: the disk is full" in failed.stderr


def test_chunks_are_logged_at_most_so_often(tmp_path):
    for every, wanted in ((0.0, 5), (1e6, 1)):
        path = tmp_path / str(every)
        with events.log_events(path, every) as listen:
            for number in range(5):
                listen(events.WorkDone("train", 0, number + 1, 5))
        assert len(_log(path)) == wanted


def test_infinite_numbers_are_null_in_a_log_and_estimates_are_marked_in_a_line():
    line = events.event_fields(events.ReadingDone(0, "1", "train", 5, 2, 7, None, float("inf")))
    assert line["estimated_upper_bound"] is None
    shown = str(events.ReadingDone(0, "1", "train", 5, 2, 7, None, 0.25))
    assert shown == (
        "reading 1: stage 1, train, 5 updates, 2 mini-epochs, 7 active rows, upper bound ~0.25"
    )


@pytest.mark.parametrize(
    "content",
    [
        "1 1:1\n",
        "3\n",
        '"time event"',
        "[" * 60_000,
        '{"time": 1}\n',
        '{"event": "click", "time": 3, "label": 1}\n',
    ],
)
def test_a_file_that_is_no_log_is_refused_and_kept(run, place, content):
    (place / "precious").write_text(content)
    one_sentence(run("fit", "train", "--model", "m1", "--log", "precious"), 2, "precious")
    assert (place / "precious").read_text() == content
    assert not (place / "m1.run").exists()
    with pytest.raises(SettingsError, match="not a log"), events.log_events(place / "precious"):
        pass


def test_a_log_that_cannot_go_on_costs_a_warning_and_not_the_model(place):
    words = ("fit", "train", "--model", "full", "--log", "/dev/full")
    assert succeeded(Process(COMMAND, *words, cwd=place).end()).stderr == (
        "/dev/full: the log ends here (No space left on device); the run goes on.\n"
    )
    assert (place / "full").exists()
