"""Files that people name and write by hand: opened only if they are files, and read only so far as
a file of their kind can reasonably go. Pipes would let us wait, devices never end."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable
from functools import partial
from typing import Any

from streamtron.core.errors import DataError, SettingsError, StreamtronError

SMALL = 1 << 20
"""Bytes at most of what is written by hand: settings, jobs, the address of a scheduler."""


def regular(path: str, flags: int) -> int:
    """An ``opener`` for ``open`` that refuses what is no file, where a pipe would let us wait.

    Raises
    ------
    DataError : a pipe, a socket or a device.

    Examples
    --------
    >>> open("/dev/null", opener=regular)
    Traceback (most recent call last):
    ...
    streamtron.core.errors.DataError: /dev/null: not a file but a pipe or a device. \
Copy it to a file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # ``open`` itself refuses a directory
        os.close(descriptor)
        raise DataError(f"{path}: not a file but a pipe or a device. Copy it to a file.")
    return descriptor


def at_most(size: int) -> Callable[[str, int], int]:
    """An ``opener`` that refuses, like ``regular``, what is no file, and a file of more bytes."""
    return partial(_regular_at_most, size)


def _regular_at_most(size: int, path: str, flags: int) -> int:
    descriptor = regular(path, flags)
    found = os.fstat(descriptor).st_size
    if found > size:
        os.close(descriptor)
        raise DataError(
            f"{path}: {found:,} bytes, where {size:,} are the most that is read. Check that it is "
            "the right file."
        )
    return descriptor


def read_toml(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """The tables of a TOML file.

    Parameters
    ----------
    what : what the file should hold, for messages: ``"settings"``.

    Raises
    ------
    SettingsError : it cannot be read, is not TOML, or no person has written it: nested a hundred
        deep, with a number of thousands of digits.
    """
    refused = f"{path}: cannot be read as TOML {what}"
    try:
        with open(path, "rb", opener=at_most(SMALL)) as file:
            text = file.read().decode()
        if _LONG_KEY.search(text):  # the parser takes memory with the square of a key's parts
            raise SettingsError(f"{refused}: a key of more than {KEY_PARTS} parts. Shorten it.")
        return tomllib.loads(text)
    except StreamtronError as error:
        raise SettingsError(str(error)) from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{refused}: {error}.") from error
    except ValueError as error:  # Python's limit of the digits of an integer
        raise SettingsError(f"{refused}: a number of thousands of digits. Shorten it.") from error
    except RecursionError as error:
        raise SettingsError(f"{refused}: nested too deep. Flatten it.") from error


KEY_PARTS = 16
"""Parts of a dotted key, at most: none of ours has more than two."""

_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?m)^[ \t]*\[*[ \t]*(?:{_PART}[ \t]*\.[ \t]*){{{KEY_PARTS}}}{_PART}")
