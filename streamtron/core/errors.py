"""The exception tree. Every message says where, what was found, what was wanted, what to do.

::

    StreamtronError                 anything streamtron refuses              exit code
    ├── SettingsError (ValueError)  a setting, or settings that clash            2
    ├── DataError (ValueError)      what is in the user's files                  3
    │   └── FileDamaged             a file of our own that fails its checksum    3
    ├── MachineError                disk, memory, network                        5
    └── InternalError               a proof that contradicts itself              1
"""

from __future__ import annotations


class StreamtronError(Exception):
    """Base of everything streamtron refuses on purpose; ``str()`` is one sentence for the user.

    Examples
    --------
    >>> issubclass(DataError, StreamtronError), DataError.exit_code
    (True, 3)
    """

    exit_code = 1


class SettingsError(StreamtronError, ValueError):
    """A setting is out of its range, or two settings contradict each other."""

    exit_code = 2


class DataError(StreamtronError, ValueError):
    """A user's file holds something that is refused.

    Examples
    --------
    >>> str(DataError("a.svm, line 3: value nan. Values must be finite; remove the row."))
    'a.svm, line 3: value nan. Values must be finite; remove the row.'
    """

    exit_code = 3


class FileDamaged(DataError):
    """A file that streamtron wrote (model, cache, witness) fails its checksum or its format."""


class MachineError(StreamtronError):
    """The machine says no: disk full, memory limit, file not readable, network gone."""

    exit_code = 5


class InternalError(StreamtronError):
    """What was computed cannot be true: a defect of streamtron, or of the machine's memory."""

    exit_code = 1
