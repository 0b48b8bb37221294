"""Directories for a while."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from streamtron.scratch import scratch_directory


def test_a_directory_goes_although_somebody_writes_there_when_it_has_just_been_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, late = os.rmdir, []

    def rmdir(path: Any, **how: Any) -> None:
        late.append(os.path.exists(directory))
        if late[-1]:
            Path(directory, "late").touch()
        real(path, **how)

    with scratch_directory("some-", str(tmp_path)) as directory:
        Path(directory, "early").touch()
        monkeypatch.setattr(os, "rmdir", rmdir)
    assert late == [False], "who writes there finds no such directory"
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_somebody_else_has_removed_is_no_error(tmp_path: Path) -> None:
    with scratch_directory("some-", str(tmp_path)) as directory:
        os.rmdir(directory)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_told_and_nothing_that_was_found_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "not permitted")

    with scratch_directory("some-", str(tmp_path)) as directory:
        monkeypatch.setattr(os, "rmdir", refuse)
    assert f"{directory}-gone: cannot be removed. Remove it by hand." in caplog.text
