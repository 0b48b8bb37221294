"""Compiled kernels and where numba keeps them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from streamtron.core import kernels


@pytest.mark.slow
def test_kernels_work_where_compiled_ones_cannot_be_kept(tmp_path: Path) -> None:
    package, nowhere = tmp_path / "streamtron", tmp_path / "a file, no directory"
    source = Path(kernels.__file__).parents[1]
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "core" / "__pycache__").touch()
    nowhere.touch()
    places = {"NUMBA_CACHE_DIR": nowhere / "n", "XDG_CACHE_HOME": nowhere, "PYTHONPATH": tmp_path}
    code = "from streamtron.core.kernels import dot, np; print(dot(np.ones(2), np.ones(2)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **{name: str(place) for name, place in places.items()}},
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("NUMBA_CACHE_DIR") == 1
    assert done.stdout == "2.0\n"
