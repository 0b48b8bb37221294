"""Turn dates and times into features: age, weekday, hour and month."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamtron.core.text import cells_of
from streamtron.data.formats.layouts import Spot, is_string
from streamtron.data.formats.number_column import Moments, ScaledColumn
from streamtron.data.formats.recipe_column import REFUSED, Cells, counted, dense_cells

DAY = 86_400_000_000
"""Microseconds."""

PARTS: dict[str, tuple[str, ...]] = {
    "age": (),
    "weekday": ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    "hour": tuple(map(str, range(24))),
    "month": ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
}
"""Part of a date → the names of its features, one-hot; the age is a number."""

_NUMBERS = {
    "weekday": pc.day_of_week,
    "hour": pc.hour,
    "month": lambda t: pc.subtract(pc.month(t), 1),
}
"""Part of a date → the function that gives its place among these."""

_DATE = re.compile("-?[0-9]{4,}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class DateColumn(ScaledColumn):
    """A date or a time: its age in days, and what is asked of weekday, hour and month, one-hot.

    Parameters
    ----------
    parts : of ``"age"``, ``"weekday"``, ``"hour"``, ``"month"``.
    scale : of the age; see ``NumberColumn``.
    at : the date, as YYYY-MM-DD, on which the age is counted; None = the last one in the data.
    null : ``"0"``, no feature; ``"column"``, one of its own.
    """

    parts: tuple[str, ...] = ("age", "weekday", "month")
    at: str | None = None
    last: str | None = counted()

    KIND = "date"
    TYPES = "dates, timestamps or strings such as 2026-01-31"
    NULLS = (REFUSED, "0", "column")
    CHOICES: ClassVar = {**ScaledColumn.CHOICES, "parts": tuple(PARTS)}

    def _check(self) -> None:
        super()._check()
        for date in filter(None, (self.at, self.last)):
            try:
                if not _DATE.fullmatch(date):  # numpy knows today, now, NaT, months and years too
                    raise ValueError
                np.datetime64(date, "D")
            except ValueError:
                self.refuse(f"at={date:.40}: expected a date such as 2026-01-31")
        if not self.parts or len(set(self.parts)) < len(self.parts):
            self.refuse("parts: expected each once, one at least")

    @staticmethod
    def _fits(type_: pa.DataType) -> bool:
        return pa.types.is_date(type_) or pa.types.is_timestamp(type_) or is_string(type_)

    def _wanted(self) -> bool:
        dated = self.at is not None or self.last is not None
        return "age" in self.parts and (not dated or super()._wanted())

    def _names(self) -> Iterable[str]:
        for part in self.parts:
            names = [f"={name}" for name in PARTS[part]] or [""]
            yield from (f"{self.name}.{part}{name}" for name in names)

    def _times(self, array: pa.Array, spot: Spot) -> pa.Array:
        """Return timestamps on the column's own clock; of nanoseconds the last digits are cut."""
        type_, is_time = array.type, pa.types.is_timestamp(array.type)
        zone, cut = (type_.tz, type_.unit == "ns") if is_time else (None, False)
        try:
            times = array.cast(pa.timestamp("us", zone), safe=not cut)
            return pc.local_timestamp(times) if zone else times
        except pa.ArrowInvalid as error:
            if len(array) > 1:
                for k in range(len(array)):
                    self._times(array[k : k + 1], spot._replace(first_row=spot.first_row + k))
            [cell] = cells_of(array)
            spot.refuse(
                0,
                f"column {self.name!r} holds {cell!r:.60} ({error}). Wanted are dates "
                "such as 2026-01-31 or 2026-01-31 23:59:59.",
            )

    def _days(self, times: pa.Array) -> NDArray[np.float64]:
        """Return days since 1970, 0 where they are missing."""
        micros = times.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        days: NDArray[np.float64] = micros / DAY
        return days

    def _cells(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> Cells:
        times, present, start = self._times(array, spot), ~missing, 0
        columns, values = list[NDArray[np.int64]](), list[NDArray[np.float64]]()
        for part in self.parts:
            if part == "age":
                today = np.datetime64(self.at or self.last, "D").astype(np.int64)
                values.append(self._scaled(today - self._days(times)) * present)
                columns.append(np.full(len(array), start))
            else:
                numbers = _NUMBERS[part](times).fill_null(0).to_numpy(zero_copy_only=False)
                values.append(present.astype(np.float64))
                columns.append(start + numbers)
            start += max(len(PARTS[part]), 1)
        if self.null == "column":
            values.append(missing.astype(np.float64))
            columns.append(np.full(len(array), start))
        return Cells(dense_cells(np.column_stack(columns), np.column_stack(values), self.width))

    def _tally(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> Moments:
        days = self._days(self._times(array, spot))
        return Moments.of(days[~missing], int(missing.sum()))

    def fitted(self, tally: Moments) -> Self:
        """Return the column with the date of its age, and its scale."""
        last = str(np.datetime64(int(np.floor(tally.high)) if tally.rows else 0, "D"))
        today = int(np.datetime64(self.at or last, "D").astype(np.int64))
        mean, low, high = today - tally.mean, today - tally.high, today - tally.low
        scaling = self._scaling(tally._replace(mean=mean, low=low, high=high))
        return replace(self, last=None if self.at else last, **scaling)
