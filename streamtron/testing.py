"""Tests that every format and every loss passes, for whoever adds one: subclass, say what is asked
for, and let pytest collect the subclass.

    class TestMyFormat(ReaderTests):
        def write(self, path, rows): ...          # the file
        def open(self, path, threads): ...        # its reader

    class TestMyLoss(LossTests):
        loss = MY_LOSS
        def oracle(self, m): ...                  # φ(m), −φ'(m), φ''(m), in plain Python
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from streamtron.core.errors import StreamtronError
from streamtron.core.losses import Loss, curvatures, gains, slopes, values
from streamtron.data.row_batch import FileReader

Row = tuple[float, Mapping[int, float]]
"""The label of a row, and {column: value}."""


class ReaderTests(ABC):
    """What the reader of a format owes; see ``RowBatch`` and ``FileReader``."""

    ROWS: ClassVar[Sequence[Row]] = [
        (1.0, {1: 0.5, 4: -2.0}),
        (-1.0, {2: 1.0}),
        (1.0, {}),
        (1.0, {1: 0.25, 2: 3.5, 9: 7.0}),
    ] * 100
    """Rows in columns from 1 on, of which one is empty; their values are float32."""

    @abstractmethod
    def write(self, path: Path, rows: Sequence[Row]) -> None:
        """Write rows in the format."""

    @abstractmethod
    def open(self, path: Path, threads: int) -> FileReader:
        """Open a file, whose name in messages is that of the path."""

    def rows(self, path: Path, threads: int = 1) -> list[Row]:
        """Return the rows that the reader delivers, whose arrays are as ``RowBatch`` has them."""
        rows: list[Row] = []
        for batch in self.open(path, threads).batches():
            ones = np.ones(batch.nonzeros, np.float32)
            cells = ones if batch.values is None else batch.values
            arrays = batch.indptr, batch.indices, cells, batch.codes
            assert [array.dtype.str[1:] for array in arrays] == ["i8", "u4", "f4", "i4"]
            assert all(batch.place(i).startswith(path.name) for i in range(batch.rows))
            for i, (start, stop) in enumerate(zip(batch.indptr, batch.indptr[1:], strict=False)):
                columns = batch.indices[start:stop].tolist()
                assert columns == sorted(set(columns)), "columns rise strictly within a row"
                pairs = zip(columns, cells[start:stop].tolist(), strict=True)
                rows.append((float(batch.classes[batch.codes[i]]), dict(pairs)))
        return rows

    def test_rows_come_in_the_order_of_the_file(self, tmp_path: Path) -> None:
        """With one thread and with two."""
        self.write(tmp_path / "rows", self.ROWS)
        assert self.rows(tmp_path / "rows") == self.rows(tmp_path / "rows", 2) == self.ROWS

    def test_a_file_without_rows_gives_no_batch_or_is_refused(self, tmp_path: Path) -> None:
        """Where it does not say what its columns are."""
        self.write(tmp_path / "rows", [])
        assert not self._rows_unless_refused(tmp_path / "rows")

    def test_the_fingerprint_is_that_of_the_content(self, tmp_path: Path) -> None:
        """After a reading as before one, and another one of other rows."""
        for name, rows in (("a", self.ROWS), ("b", self.ROWS), ("c", self.ROWS[1:])):
            self.write(tmp_path / name, rows)
        readers = [self.open(tmp_path / name, 1) for name in "abc"]
        _ = list(readers[0].batches())
        a, b, c = (reader.fingerprint() for reader in readers)
        assert a == b != c

    def test_a_file_that_was_cut_off_is_refused_or_gives_rows(self, tmp_path: Path) -> None:
        """Its first rows; a refusal is one of streamtron's errors, and names the file."""
        self.write(tmp_path / "rows", self.ROWS)
        complete, content = self.rows(tmp_path / "rows"), (tmp_path / "rows").read_bytes()
        for size in range(0, len(content), len(content) // 20 + 1):
            (tmp_path / "cut").write_bytes(content[:size])
            rows = self._rows_unless_refused(tmp_path / "cut")
            assert rows[:-1] == complete[: len(rows)][:-1]  # the last may have lost pairs

    def _rows_unless_refused(self, path: Path) -> list[Row]:
        try:
            return self.rows(path)
        except StreamtronError as error:
            refusal = str(error)
        assert path.name in refusal
        return []


class LossTests(ABC):
    """What a loss owes; see ``core.losses``."""

    loss: Loss
    MARGINS: ClassVar = np.append(np.linspace(-8.0, 8.0, 641), [-1e6, -745.5, 1e-300, 745.5, 1e6])
    """z at which it is looked at."""
    LABEL: ClassVar = 2.5
    """t where labels are numbers, and 0."""

    @abstractmethod
    def oracle(self, z: float, t: float) -> tuple[float, float, float]:
        """Return φ(t, z), −∂φ/∂z and ∂²φ/∂z², with the bits of the kernel."""

    def test_it_equals_its_oracle_bit_for_bit(self) -> None:
        """Value, slope and curvature, with labels that are numbers, and without."""
        z, loss = self.MARGINS, self.loss
        for label in (0.0, self.LABEL) if loss.numbers else (0.0,):
            t = np.full(len(z) if label else 0, label)
            arrays = [f(loss, z, t).tolist() for f in (values, slopes, curvatures)]
            assert [*zip(*arrays, strict=True)] == [self.oracle(at, label) for at in z.tolist()]

    def test_slopes_and_curvatures_are_those_of_the_values(self) -> None:
        """By differences, away from bends, where the curvatures on both sides are alike."""
        m, h = self.MARGINS[:641] + 1e-3, 1e-4
        low, at, high = (values(self.loss, m + step) for step in (-h, 0.0, h))
        bends = (high - 2 * at + low) / h**2
        np.testing.assert_allclose(slopes(self.loss, m), (low - high) / (2 * h), atol=1e-6)
        np.testing.assert_allclose(curvatures(self.loss, m), bends, atol=1e-4)

    def test_the_dual_is_never_above_the_primal_and_meets_it_at_the_slope(self) -> None:
        """Fenchel and Young: −φ*(−p) ≤ φ(t, m) + p m, with equality at p = −φ'(m)."""
        m, loss = self.MARGINS[:641], replace(self.loss, zone=0.0)
        t = np.full(len(m) if loss.numbers else 0, self.LABEL)
        p, primal = slopes(loss, m, t), values(loss, m, t)
        for shift in range(0, len(m), 40):
            shifted = np.roll(p, shift)
            above = primal + shifted * m - gains(loss, shifted, t)
            assert (above >= -1e-12 * (1.0 + np.abs(primal) + np.abs(shifted * m))).all()
        earned = gains(loss, p, t)
        inner = np.isfinite(earned)  # at the ends of what p may be, a rounding is beyond them
        np.testing.assert_allclose(earned[inner], (primal + p * m)[inner], atol=1e-9)
