"""Compiled kernels and where numba keeps them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from streamtron.core import kernels
from tests.helpers.processes import COMMAND


def test_a_fit_goes_on_where_compiled_kernels_cannot_be_kept(tmp_path: Path) -> None:
    package, nowhere = tmp_path / "streamtron", tmp_path / "a file, no directory"
    source = Path(kernels.__file__).parents[1]
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
