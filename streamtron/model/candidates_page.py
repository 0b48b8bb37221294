"""The candidates of a sweep on the page that reports a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamtron.core.config import meets
from streamtron.core.text import BOUNDS, metric_words
from streamtron.model.charts import FEWEST, Series, line_chart
from streamtron.model.html import gap_cell, grid, numeric, table

Values = Mapping[str, Any]


def candidates_section(metric: str, rows: Sequence[Values]) -> Iterator[str]:
    """Yield a chart and a table of the candidates, as the report of a sweep has them."""
    words = metric_words(metric)
    price = "delta" if any(row["C"] is None for row in rows) else "C"
    known = [row for row in rows if row[metric] is not None]
    if len({row[price] for row in known}) >= FEWEST:
        title, log = f"{words[0].upper()}{words[1:]} by {price}", "x" * (price == "C")
        charts = [line_chart(title, [*_lines(known, price, metric)], price, words, log=log,
                             hollow="dropped, or not certified")]  # fmt: skip
        if "nonzero_weights" in rows[0]:
            lines, title = [*_lines(known, price, "nonzero_weights")], "Weights that are not 0"
            charts.append(line_chart(f"{title} by {price}", lines, price, "weights", log=log))
        yield grid(charts)
    names = [price, "rho", "l1_ratio", metric, "nonzero_weights", BOUNDS[2], "readings", "seconds"]
    names = [name for name in names if name in rows[0]]
    yield table([*map(metric_words, names), "ended because", "best"], [
        [*(gap_cell(row[name]) if name == BOUNDS[2] else numeric(row[name]) for name in names),
         row["dropped"] or row["stop_reason"],
         "best" if row["best"] else ""]
        for row in rows
    ], sorts=True)  # fmt: skip


def _lines(rows: Sequence[Values], price: str, metric: str) -> Iterator[Series]:
    """Yield a line for each loss, ρ and r."""
    kinds = sorted(set(map(_kind, rows)))
    for key, (loss, rho, ratio) in enumerate(kinds):
        of_kind = (row for row in rows if _kind(row) == (loss, rho, ratio))
        line = sorted(of_kind, key=lambda row: row[price])
        unproven = (
            row["dropped"] or not meets(row, row[BOUNDS[2]], row["stop_reason"]) for row in line
        )
        hollow = frozenset(k for k, is_unproven in enumerate(unproven) if is_unproven)
        name = f"{loss}, ρ = {rho:g}" if kinds[0][0] != kinds[-1][0] else f"ρ = {rho:g}"
        name += f", l1_ratio = {ratio:g}" if ratio else ""
        points = [(row[price], row[metric]) for row in line]
        yield Series(name, points, key % 5 + 1, True, hollow)


def _kind(row: Values) -> tuple[str, float, float]:
    return row["loss"], row["rho"], row.get("l1_ratio", 0.0)
