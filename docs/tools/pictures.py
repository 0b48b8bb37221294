"""Draw the pictures of the README and the documentation from a real run.

    python docs/tools/pictures.py

A corpus is generated and fitted with the default settings. ``gap.svg`` shows the two bounds on the
best margin against what has been read; ``certificate.svg`` shows what the certificate of the run
says about the objective. Both depend on the corpus alone, so a second call writes the same bytes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import streamtron

ROWS, SHARDS, COLUMNS = 20_000, 8, 30_000
IMAGES = Path(__file__).resolve().parents[1] / "images"

UPPER, LOWER, INK = "#c2571a", "#0f8578", "#7b828c"
"""Colours that can be read on white and on black."""


class Bounds(NamedTuple):
    """Both bounds on the best margin, once a part of the rows has been visited."""

    readings: float
    lower: float
    upper: float


def bounds_by_reading(directory: Path) -> tuple[list[Bounds], dict[str, Any]]:
    """Measure the bounds during the first reading, and return the certificate of the run.

    The first reading follows the files. So a fit that stops after one reading of the first k shards
    has the weights of the whole run at that moment. Its upper bound holds for all rows; its lower
    bound is proven by one more reading of all rows.
    """
    corpus, machine = directory / "corpus", streamtron.Machine(cache_dir=str(directory / "cache"))
    streamtron.generate(str(corpus), rows=ROWS, columns=COLUMNS, seed=0, shards=SHARDS)
    shards = sorted(corpus.iterdir())
    points = []
    for read in range(1, SHARDS + 1):
        part = streamtron.fit(shards[:read], tol=1e-9, max_epochs=1, machine=machine)
        proof = streamtron.certify(part, corpus, readings=2, machine=machine)
        points.append(
            Bounds(read / SHARDS, proof.certificate.primal_margin, part.certificate["upper_bound"])
        )
    final = streamtron.fit(corpus, machine=machine).certificate
    return points, dict(final)


def draw_gap(points: Sequence[Bounds], final: dict[str, Any]) -> str:
    """Draw the bounds against readings, which meet after the rows have been solved in memory."""
    width, height, left, right, top, bottom = 540, 330, 60, 24, 28, 52
    highest = 0.05
    lower, upper = final["primal_margin"], final["upper_bound"]

    def at(readings: float, margin: float) -> str:
        x = left + readings / 2 * (width - left - right)
        y = height - bottom - margin / highest * (height - top - bottom)
        return f"{x:.1f},{y:.1f}"

    def xy(readings: float, margin: float) -> tuple[float, float]:
        x, y = at(readings, margin).split(",")
        return float(x), float(y)

    down = [at(p.readings, p.upper) for p in points] + [at(1.0, upper), at(2.0, upper)]
    rise = [at(p.readings, p.lower) for p in points] + [at(1.0, lower), at(2.0, lower)]
    end, base = xy(2.0, 0.0)
    meet = xy(2.0, upper)[1]
    solved, start = xy(1.0, 0.0)[0], xy(0.0, 0.0)[0]
    lines = [
        f'<polygon points="{" ".join([*down, *reversed(rise)])}" fill="{INK}" opacity=".16"/>',
        f'<polyline points="{" ".join(down)}" stroke="{UPPER}" class="line"/>',
        f'<polyline points="{" ".join(rise)}" stroke="{LOWER}" class="line"/>',
        f'<path d="M{start} {top}V{base}H{end}" class="axis"/>',
        f'<path d="M{solved} {top}V{base}M{end} {top}V{base}" class="grid"/>',
        f'<circle cx="{end}" cy="{meet}" r="4.5" fill="{LOWER}"/>',
        *(
            _text(x, base + 18, name, "middle")
            for x, name in ((start, "0"), (solved, "1"), (end, "2"))
        ),
        _text((start + end) / 2, base + 40, "readings of the data", "middle"),
        _text((start + solved) / 2, top - 9, "1. visit every row", "middle"),
        _text(solved + 8, top + 20, "solve the rows", "start"),
        _text(solved + 8, top + 38, "kept in memory", "start"),
        _text((solved + end) / 2, top - 9, "2. prove", "middle"),
        _text(*_above(xy(0.5, points[3].upper), 8, 10), "upper bound", "start", UPPER),
        _text(*_above(xy(0.5, points[3].lower), -8, -16), "lower bound", "start", LOWER),
        _text(end - 8, meet - 44, "certified:", "end", LOWER, bold=True),
        _text(end - 8, meet - 26, f"at most {final['relative_duality_gap']:.2%} from", "end"),
        _text(end - 8, meet - 8, "the best objective", "end"),
        f'<text transform="translate(14 {(top + base) / 2}) rotate(-90)" text-anchor="middle" '
        f'fill="{INK}">margin</text>',
        *(_text(left - 8, xy(0, m)[1] + 5, f"{m:g}", "end") for m in (0, 0.01, 0.02, 0.03, 0.04)),
    ]
    title = (
        f"Bounds on the best margin while streamtron fits {ROWS:,} rows: they close within one "
        "reading and work in memory, and the second reading proves it"
    )
    return _svg(width, height, title, lines)


def _above(point: tuple[float, float], right: float, up: float) -> tuple[float, float]:
    return point[0] + right, point[1] - up


def draw_certificate(final: dict[str, Any]) -> str:
    """Draw where the objective of the model and that of the best classifier can be."""
    width, height, y = 540, 190, 82
    primal, dual = final["primal_objective"], final["dual_objective"]
    low, high = 130.0, 415.0
    lines = [
        f'<path d="M15 {y}H{low}M{high} {y}H525" class="axis"/>',
        f'<rect x="{low}" y="{y - 13}" width="{high - low}" height="26" fill="{INK}" '
        'opacity=".18"/>',
        f'<path d="M{low} {y - 22}V{y + 22}" stroke="{UPPER}" class="line"/>',
        f'<circle cx="{high}" cy="{y}" r="7" fill="{LOWER}"/>',
        _text(low, y - 34, f"dual objective D = {dual:,.2f}", "middle", UPPER, bold=True),
        _text(high, y - 34, f"your model, P = {primal:,.2f}", "middle", LOWER, bold=True),
        _text((low + high) / 2, y + 5, "the best objective", "middle"),
        _text(low, y + 44, "no classifier on these", "middle"),
        _text(low, y + 62, "rows is below", "middle"),
        _text(high, y + 44, f"gap = 1 − D/P = {final['relative_duality_gap']:.2%}", "middle"),
        _text(high, y + 62, "smaller objectives are better", "middle"),
    ]
    title = "A certificate: the best objective lies between the dual objective and the model's"
    return _svg(width, height, title, lines)


def _text(
    x: float, y: float, words: str, anchor: str, colour: str = INK, *, bold: bool = False
) -> str:
    weight = ' style="font-weight:600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>'
        f"{words}</text>"
    )


def _svg(width: int, height: int, title: str, lines: Sequence[str]) -> str:
    style = (
        "text{font:15px system-ui,sans-serif}.line{fill:none;stroke-width:3;stroke-linejoin:round}"
        f".axis{{fill:none;stroke:{INK};stroke-width:1.5}}"
        f".grid{{fill:none;stroke:{INK};stroke-dasharray:3 4;opacity:.7}}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            f"<title>{title}</title>",
            f"<style>{style}</style>",
            *lines,
            "</svg>",
            "",
        ]
    )


def main() -> None:
    """Write both pictures."""
    with tempfile.TemporaryDirectory() as directory:
        points, final = bounds_by_reading(Path(directory))
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "gap.svg").write_text(draw_gap(points, final), encoding="utf-8")
    (IMAGES / "certificate.svg").write_text(draw_certificate(final), encoding="utf-8")


if __name__ == "__main__":
    main()
