"""Directories for a while, which go at the end whoever still writes there."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_log = logging.getLogger(__name__)


@contextmanager
def scratch_directory(prefix: str, where: str | None = None) -> Iterator[str]:
    """A new directory, removed with all it holds when the context ends.

    Another process may still be writing then: a task that a lost worker goes on with, or one that
    was cancelled and ends with its next chunk. It finds no directory of that name any more.

    Parameters
    ----------
    prefix : how its name begins.
    where : in which directory; None = where the system has temporary files.

    Examples
    --------
    >>> with scratch_directory("example-") as directory:
    ...     os.mkdir(os.path.join(directory, "within"))
    >>> os.path.exists(directory)
    False
    """
    directory = tempfile.mkdtemp(prefix=prefix, dir=where)
    try:
        yield directory
    finally:
        _remove(directory)


def _remove(directory: str) -> None:
    """Rename it first, or files that come while it is emptied would keep it there."""
    gone = f"{directory}-gone"
    with suppress(FileNotFoundError):
        os.rename(directory, gone)
    shutil.rmtree(gone, ignore_errors=True)
    if os.path.exists(gone):  # no reason to lose what the run has found
        _log.warning("%s: cannot be removed. Remove it by hand.", gone)
