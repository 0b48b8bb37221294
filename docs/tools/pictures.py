"""Draw the pictures of README and documentation.

    python docs/tools/pictures.py

A corpus is generated and fitted with the default settings. ``certificate.svg`` shows what the
certificate of the run says about the objective. It depends on the corpus alone, so a second call
writes the same bytes. ``seconds.svg`` shows the figures of ``SECONDS``, which were measured.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import streamtron

IMAGES = Path(__file__).resolve().parents[1] / "images"

SECONDS: list[tuple[str, float, str]] = [
    ("streamtron, all rows in memory", 7.3, "0.89 GB"),
    ("streamtron, a sixth of them", 9.9, "0.59 GB"),
    ("streamtron, a 24th of them", 9.1, "0.49 GB"),
    ("Cyanure, all rows in memory", 20.9, ""),
    ("LIBLINEAR, all rows in memory", 36.5, ""),
    ("Vowpal Wabbit, one cached pass", 2.2, "held-out log loss 0.5214, ours 0.5198"),
]
"""Name, seconds, what else: 2 million click logs, log_loss, C = 1 to the same objective, by
``benchmarks/out_of_core.py --held 1 6 24 --rivals``, medians of 3 on 2 cores."""

UPPER, LOWER, INK = "#c2571a", "#0f8578", "#7b828c"
"""Colours that can be read on white and on black."""

WIDTH, HEIGHT, Y, LOW, HIGH = 540, 190, 82, 130, 415


def text(x: float, y: int, words: str, colour: str = INK) -> str:
    """Return a line of text around x; in bold if it has a colour of its own."""
    weight = ' style="font-weight:600"' if colour != INK else ""
    return f'<text x="{x}" y="{y}" fill="{colour}"{weight}>{words}</text>'


def draw(primal: float, dual: float, gap: float) -> str:
    """Draw where the objective of the model and that of the best classifier can be."""
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" \
width="{WIDTH}" height="{HEIGHT}" role="img">
<title>A certificate: the best objective lies between the dual objective and the model's</title>
<style>text{{font:15px system-ui,sans-serif;text-anchor:middle}}path{{fill:none}}</style>
<path d="M15 {Y}H{LOW}M{HIGH} {Y}H525" stroke="{INK}" stroke-width="1.5"/>
<rect x="{LOW}" y="{Y - 13}" width="{HIGH - LOW}" height="26" fill="{INK}" opacity=".18"/>
<path d="M{LOW} {Y - 22}V{Y + 22}" stroke="{UPPER}" stroke-width="3"/>
<circle cx="{HIGH}" cy="{Y}" r="7" fill="{LOWER}"/>
{text(LOW, Y - 34, f"dual objective D = {dual:,.2f}", UPPER)}
{text(HIGH, Y - 34, f"your model, P = {primal:,.2f}", LOWER)}
{text((LOW + HIGH) / 2, Y + 5, "the best objective")}
{text(LOW, Y + 44, "no classifier on these")}
{text(LOW, Y + 62, "rows is below")}
{text(HIGH, Y + 44, f"gap = 1 − D/P = {gap:.2%}")}
{text(HIGH, Y + 62, "smaller objectives are better")}
</svg>
"""


def bars(figures: list[tuple[str, float, str]]) -> str:
    """Draw a bar for each figure, ours in a colour of their own."""
    height, start, scale = 26, 265, 9.5
    lines = []
    for number, (name, seconds, note) in enumerate(figures):
        y, end = 6 + height * number, start + scale * seconds
        colour = LOWER if name.startswith("streamtron") else INK
        words = f"{seconds:g} s" + (f", {note}" if note else "")
        lines += [
            f'<text x="{start - 8}" y="{y + 15}" fill="{colour}" text-anchor="end">{name}</text>',
            f'<rect x="{start}" y="{y}" width="{end - start:g}" height="20" fill="{colour}"/>',
            f'<text x="{end + 8:g}" y="{y + 15}" fill="{colour}">{words}</text>',
        ]
    size = f'viewBox="0 0 720 {height * len(figures) + 8}" width="720"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            "<title>Seconds from files to a model of 2 million click logs</title>",
            "<style>text{font:14px system-ui,sans-serif}</style>",
            *lines,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Fit, and write the pictures."""
    (IMAGES / "seconds.svg").write_text(bars(SECONDS), encoding="utf-8")
    with tempfile.TemporaryDirectory() as directory:
        machine = streamtron.Machine(cache_dir=f"{directory}/cache")
        streamtron.generate(f"{directory}/corpus", rows=20_000, columns=30_000, seed=0, shards=8)
        proof = streamtron.fit(f"{directory}/corpus", machine=machine).certificate
    numbers = proof["primal_objective"], proof["dual_objective"], proof["relative_duality_gap"]
    (IMAGES / "certificate.svg").write_text(draw(*numbers), encoding="utf-8")


if __name__ == "__main__":
    main()
