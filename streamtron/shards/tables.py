"""What goes wrong in a table, Parquet or Arrow, as one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pyarrow as pa

from streamtron.errors import DataError, MachineError


@contextmanager
def sentences(name: str, kind: str) -> Iterator[None]:
    """Turn what pyarrow and the operating system raise into one sentence about this file.

    ``kind`` is what it should be: ``"a Parquet file"``.
    """
    try:
        yield
    except MemoryError as error:
        raise MachineError(
            f"{name}: out of memory while reading ({error}). Give the machine more."
        ) from error
    except OSError as error:
        if error.errno is not None:
            reason = os.strerror(error.errno)  # pyarrow's own message is a paragraph
            raise MachineError(
                f"{name}: cannot be read ({reason}). Check the path, its permissions and the disk."
            ) from error
        _damaged(name, kind, error)  # pyarrow's word for a bad page, checksum or footer
    except (pa.ArrowException, UnicodeDecodeError) as error:
        _damaged(name, kind, error)


def _damaged(name: str, kind: str, error: Exception) -> NoReturn:
    reason = " ".join(str(error).split()).rstrip(".")
    raise DataError(
        f"{name}: not {kind}, or a damaged one ({reason}). Write or fetch it again."
    ) from error
