"""Commands on a real terminal of a given width, and what its user sees."""

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from pathlib import Path

from tests.helpers.processes import COMMAND, Process, until


class Screen:
    """What a terminal shows of the bytes that it is sent: lines and cursor, without colours.

    ``broken`` : lines that it had to break because they were wider than itself.
    """

    def __init__(self, columns: int) -> None:
        self.columns, self.broken = columns, 0
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0

    @property
    def lines(self) -> list[str]:
        """The lines, without what is empty at their ends."""
        return "\n".join("".join(row).rstrip() for row in self._rows).rstrip().split("\n")

    def feed(self, text: str) -> None:
        """Take text with control sequences."""
        for found in re.finditer(r"\x1b\[([?\d;]*)([A-Za-z])|(.)", text, re.DOTALL):
            number, command, character = found.groups()
            if command == "A":
                self._row = max(self._row - int(number or 1), 0)
            elif command == "K":  # to the end of the line, or all of it
                del self._rows[self._row][0 if number == "2" else self._column :]
            elif character == "\r":
                self._column = 0
            elif character == "\n":
                self._down()
            elif character is not None:
                self._put(character)
            else:
                assert command in "mhl", f"a control sequence not known here: {found[0]!r}"

    def _put(self, character: str) -> None:
        if self._column == self.columns:
            self.broken, self._column = self.broken + 1, 0
            self._down()
        row = self._rows[self._row]
        row += " " * (self._column + 1 - len(row))
        row[self._column] = character
        self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append([])


class Terminal:
    """A terminal, and a command that runs on it."""

    def __init__(self, columns: int, *words: object, cwd: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self.screen, self.raw = Screen(columns), ""
        self.process = Process(COMMAND, *words, cwd=cwd, terminal=slave)
        os.close(slave)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def type(self, keys: bytes) -> None:
        """Type keys, which the terminal shows."""
        os.write(self._master, keys)

    def shows(self, text: str) -> None:
        """Wait until the text has been shown."""
        until(lambda: text in self.raw or self.process.poll() is not None)
        assert text in self.raw, self.raw

    def end(self) -> int:
        """Wait for the command, and return its exit code."""
        code = self.process.end().returncode
        self._reader.join()
        os.close(self._master)
        return code

    def _read(self) -> None:
        found = b""
        while True:
            try:
                found += os.read(self._master, 1 << 16)
            except OSError:  # no process has the terminal any more
                break
            self.raw = found.decode(errors="ignore")
        self.screen.feed(self.raw)
