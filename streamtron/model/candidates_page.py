"""The candidates of a sweep on the page that reports a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from streamtron.core.config import meets
from streamtron.core.text import BOUNDS, metric_words
from streamtron.model.charts import FEWEST, Series, heat_map, line_chart
from streamtron.model.html import gap_cell, grid, numeric, table

Values = Mapping[str, Any]


def candidates_section(metric: str, rows: Sequence[Values]) -> Iterator[str]:
    """Yield charts and a table of the candidates, as the report of a sweep has them."""
    words = metric_words(metric)
    title = f"{words[0].upper()}{words[1:]} by"
    price = "delta" if any(row["C"] is None for row in rows) else "C"
    known = [row for row in rows if row[metric] is not None]
    xs, rhos = (sorted({row[name] for row in known}) for name in (price, "rho"))
    charts = []
    if len(xs) >= FEWEST:
        lines = [
            _candidates([row for row in known if row["rho"] == rho], rho, k % 5 + 1, price, metric)
            for k, rho in enumerate(rhos)
        ]
        charts.append(
            line_chart(f"{title} {price}", lines, price, words, log_x=price == "C",
                       hollow="dropped, or not certified")
        )  # fmt: skip
    if len(xs) > 1 and len(rhos) > 1 and len(known) >= FEWEST:
        cells = {(row[price], row["rho"]): row[metric] for row in known}
        best = next((row[price], row["rho"]) for row in rows if row["best"])
        charts.append(heat_map(f"{title} {price} and ρ", xs, rhos, cells, best, price, "ρ"))
    yield grid(charts)
    names = [price, "rho", metric, "relative_duality_gap", "readings", "seconds"]
    yield table([*map(metric_words, names), "ended because", "best"], [
        [*(gap_cell(row[name]) if name == BOUNDS[2] else numeric(row[name]) for name in names),
         row["dropped"] or row["stop_reason"],
         "best" if row["best"] else ""]
        for row in rows
    ], sorts=True)  # fmt: skip


def _candidates(rows: Iterable[Values], rho: float, key: int, price: str, metric: str) -> Series:
    line = sorted(rows, key=lambda row: row[price])
    hollow = frozenset(
        k
        for k, row in enumerate(line)
        if row["dropped"] or not meets(row, row[BOUNDS[2]], row["stop_reason"])
    )
    return Series(f"ρ = {rho:g}", [(row[price], row[metric]) for row in line], key, True, hollow)
