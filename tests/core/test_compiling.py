"""The second process that compiles what a first fit calls late."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from streamtron.core import compiling
from tests.helpers.processes import COMMAND, python

WAITS = """\
import os
from streamtron.core.compiling import compiling_ahead
with compiling_ahead():
    assert os.waitpid(-1, os.WNOHANG) == (0, 0), "it does not run"
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("gone")
"""


def compiled(kernels: Path) -> set[str]:
    """The kernels there, without what they call."""
    names = {path.name.split("-")[0].removeprefix("kernels.") for path in kernels.rglob("*.nbi")}
    return {name for name in names if not name.startswith("_")}


def test_all_that_a_fit_calls_once_it_has_rows_is_compiled_beside_it(tmp_path: Path) -> None:
    rows, kernels = tmp_path / "rows", tmp_path / "kernels"
    python(kernels, "-c", COMMAND, "generate", rows, "--rows", 1000)
    python(kernels, *compiling.COMMAND[1:])
    beside = compiled(kernels)
    assert beside == {kernel.__name__ for kernel in compiling.TRAINING}
    python(kernels, "-c", COMMAND, "fit", rows, "--model", tmp_path / "model")
    assert compiled(kernels) - beside == {"dot", "parse_libsvm"}


def test_the_second_process_is_gone_when_the_fit_is(tmp_path: Path) -> None:
    assert python(tmp_path, "-c", WAITS) == "gone\n"


def test_there_is_no_second_process_where_kernels_have_been_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiling.kernels.dot.compile()

    def refused(*_: object, **__: object) -> None:
        pytest.fail("a process was started")

    monkeypatch.setattr(compiling, "Popen", refused)
    with compiling.compiling_ahead():
        pass


def test_a_fit_goes_on_where_compiled_kernels_cannot_be_kept(tmp_path: Path) -> None:
    package, nowhere = tmp_path / "streamtron", tmp_path / "a file, no directory"
    source = Path(compiling.__file__).parents[1]
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "core" / "__pycache__").touch()
    nowhere.touch()
    (tmp_path / "rows.svm").write_text("1 1:1\n-1 2:1\n" * 10)
    places = {"NUMBA_CACHE_DIR": nowhere / "n", "XDG_CACHE_HOME": nowhere, "PYTHONPATH": tmp_path}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "fit", "rows.svm", "--model", "model"],
        env={**os.environ, **{name: str(place) for name, place in places.items()}},
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("NUMBA_CACHE_DIR") == 1
    assert "certified" in done.stdout


def test_a_fit_goes_on_where_no_second_process_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling.kernels.dot, "compile", lambda: True)
    monkeypatch.setattr(compiling, "COMMAND", [""])
    with compiling.compiling_ahead():
        pass
