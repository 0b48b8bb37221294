"""Atomic writes and scratch directories."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from streamtron.core.files import remove_scratch, scratch_directory, write_atomically


def test_a_directory_is_removed_although_a_file_is_written_there_meanwhile(tmp_path, monkeypatch):
    real, late = os.rmdir, []

    def rmdir(path: Any, **how: Any) -> None:
        late.append(os.path.exists(directory))
        if late[-1]:
            Path(directory, "late").touch()
        real(path, **how)

    with scratch_directory("some-", str(tmp_path)) as directory:
        Path(directory, "early").touch()
        monkeypatch.setattr(os, "rmdir", rmdir)
    assert late == [False], "a late writer finds no such directory"
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_removed_is_logged_unless_gone(tmp_path, caplog, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "not permitted")

    with scratch_directory("some-", str(tmp_path)) as directory:
        shutil.rmtree(directory)
    assert list(tmp_path.iterdir()) == []
    with scratch_directory("some-", str(tmp_path)) as directory:
        monkeypatch.setattr(os, "rmdir", refuse)
    assert f"{directory}-gone: cannot be removed. Remove it by hand." in caplog.text


def test_what_killed_processes_left_is_removed_and_what_is_locked_or_a_link_stays(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "some-link").symlink_to(tmp_path / "kept")
    (tmp_path / "some-left" / "deep").mkdir(parents=True)
    (tmp_path / "some-left" / "deep" / "file").touch()
    with scratch_directory("some-", str(tmp_path)) as living:
        remove_scratch("some-", str(tmp_path))
        assert {*tmp_path.iterdir()} == {tmp_path / "kept", tmp_path / "some-link", Path(living)}


def test_a_directory_that_is_removed_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    real, removed = tempfile.mkdtemp, []

    def mkdtemp(**how: Any) -> str:
        """As a second process would come between, at the first one."""
        directory = real(**how)
        if not removed:
            remove_scratch("some-", str(tmp_path))
            removed.append(directory)
        return directory

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with scratch_directory("some-", str(tmp_path)) as directory:
        assert list(tmp_path.iterdir()) == [Path(directory)]
    assert directory not in removed


def test_a_write_follows_a_link_syncs_file_and_directory_and_renames_between(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor):
        done.append("directory" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    def replaced(old, new):
        done.append("rename")
        assert Path(old).parent == Path(new).parent
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    (tmp_path / "link").symlink_to(tmp_path / "m")
    write_atomically(tmp_path / "link", [b"a", memoryview(b"b")])
    assert done == ["file", "rename", "directory"]
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "m").read_bytes() == b"ab"
