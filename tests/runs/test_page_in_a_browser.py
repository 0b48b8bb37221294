"""The page about a run in a real browser: it sorts, it fits a phone, it cuts off no label."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

import streamtron
from streamtron.data.writers.corpus import generate

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

ASKS = """
<script>
const all = selector => [...document.querySelectorAll(selector)];
const told = {};
told.sorted = all("table.sorts th").map(head => [1, 2].map(() => {
  head.firstChild.click();
  const names = all("table.sorts tbody tr").map(row => row.cells[0].textContent);
  return [head.getAttribute("aria-sort"), names];
}));
told.marked = all("th[aria-sort]").length;
told.width = [document.documentElement.scrollWidth, innerWidth];
told.cut = all("svg text").filter(text => {
  const box = text.getBBox();
  return box.x < 0 || box.x + box.width > text.ownerSVGElement.viewBox.baseVal.width;
}).map(text => text.textContent);
told.words = all("svg text").length;
parent.document.body.textContent = JSON.stringify(told);
</script>
"""
"""Stands at the end of a page in a frame: clicks every heading twice, measures, and answers in the
place of the frame."""


def _ask(page: Path, width: int) -> dict[str, Any]:
    """Open a page so wide in a browser, and return what the script finds."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser to open pages in: looked for {', '.join(BROWSERS)}")
    asking = escape(page.read_text(encoding="utf-8").replace("</body>", ASKS + "</body>"))
    frame = page.with_name("frame.html")
    frame.write_text(f'<iframe width="{width}" height="900" frameborder="0" srcdoc="{asking}">')
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={page.parent / 'profile'}", "--dump-dom", frame.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r"<body>(.*)</body>", done.stdout, re.DOTALL)
    assert found, done.stderr
    answer: dict[str, Any] = json.loads(unescape(found[1]))
    return answer


def test_a_click_on_a_heading_sorts_by_its_numbers_and_another_one_turns_them_round(
    tmp_path: Path,
) -> None:
    names = ("c10", "c9", "ant", "never")
    rows = "".join(f"{name} {k + 1}:1 9:{k}.5\n" * (3 + k) for k, name in enumerate(names))
    (tmp_path / "a.svm").write_text(rows)
    (tmp_path / "valid.svm").write_text("c9 2:1\nc9 2:1\nc10 1:1\nant 1:1\n")
    model = streamtron.fit(tmp_path / "a.svm", model=tmp_path / "m", multiclass=True)
    streamtron.report(tmp_path / "m", tmp_path / "m.html", valid=tmp_path / "valid.svm")
    told = _ask(tmp_path / "m.html", 1280)
    by_class, by_gap, by_support = told["sorted"][:3]
    assert by_class == [
        ["descending", ["never", "c10", "c9", "ant"]], ["ascending", ["ant", "c9", "c10", "never"]],
    ]  # fmt: skip
    gaps = {each.positive: each.certificate["relative_duality_gap"] for each in model.directions()}
    assert len(set(gaps.values())) == 4
    falling = sorted(gaps, key=lambda name: -gaps[name])
    assert by_gap == [["descending", falling], ["ascending", falling[::-1]]]
    assert by_support[0][0] == "descending"
    assert (by_support[0][1][0], by_support[0][1][-1]) == ("c9", "never")
    assert told["marked"] == 1


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_fits_the_window_and_cuts_off_no_label(tmp_path: Path, width: int) -> None:
    generate(str(tmp_path / "rows"), rows=400, columns=90, seed=1, shards=1)
    model = tmp_path / f"a_name_{'too_long_' * 9}for_a_phone"
    streamtron.sweep(
        tmp_path / "rows", valid=tmp_path / "rows", C=[1e-5, 1.0], rho=[0, 1], model=model,
    )  # fmt: skip
    path = Path(f"{model}.run") / "report.json"
    told = json.loads(path.read_text())
    told["history"][-1] |= {"lower": 0.01480485, "upper": 0.0148051}  # ticks of seven digits
    path.write_text(json.dumps({**told, "history": told["history"][-1:]}))
    streamtron.report(model, tmp_path / "m.html", valid=tmp_path / "rows")
    told = _ask(tmp_path / "m.html", width)
    assert told["width"] == [width, width]
    assert told["words"] > 50
    assert told["cut"] == []
