"""Exceptions. Every message says where, what was found, what was expected, what to do.

For example: ``a.svm, line 3: value nan. Values must be finite; remove the row.``

::

    StreamtronError                 any error raised on purpose              exit code
    ├── SettingsError (ValueError)  a setting, or settings that conflict         2
    ├── DataError (ValueError)      the content of the user's files              3
    │   └── FileDamaged             a file of streamtron fails its checksum      3
    ├── MachineError                disk, memory, network                        5
    │   └── InUseError              another process uses the run                 6
    └── InternalError               contradicting bounds: a defect               1
"""

from __future__ import annotations


class StreamtronError(Exception):
    """Base of all errors raised on purpose; ``str()`` is one sentence for the user."""

    exit_code = 1

    def __str__(self) -> str:
        text = super().__str__()  # which may quote a header of megabytes
        return text if len(text) <= 4000 else f"{text[:3000]} … {text[-500:]}"


class SettingsError(StreamtronError, ValueError):
    """A setting is out of its range, or two settings contradict each other."""

    exit_code = 2


class DataError(StreamtronError, ValueError):
    """A user's file holds invalid data."""

    exit_code = 3


class FileDamaged(DataError):
    """A file that streamtron wrote (model, cache, witness) fails its checksum or its format."""


class MachineError(StreamtronError):
    """The machine fails: disk full, memory limit, file not readable, network down."""

    exit_code = 5


class InUseError(MachineError):
    """Another process uses the run or the directory; ``holder`` names it."""

    exit_code = 6

    def __init__(self, directory: object, holder: str) -> None:
        super().__init__(f"{directory}: in use by {holder}. Wait for it, or stop it.")
        self.holder = holder


class InternalError(StreamtronError):
    """A result is impossible: a defect of streamtron, or of the machine's memory."""
