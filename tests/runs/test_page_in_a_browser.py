"""The page about a run in a real browser: it sorts, it fits a phone, it cuts off no label."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import streamtron
from streamtron.core.errors import DataError
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
dispatchEvent(new Event("resize"));
told.hints = all(".hint + .card").length;
told.scrolling = all(".card").filter(card => card.scrollWidth > card.clientWidth + 1).length;
told.words = all("svg text").length;
told.ran = window.ran ?? null;
told.elements = all("body script, body img").length;
const handles = own => own.name.startsWith("on");
told.handled = all("*").filter(node => [...node.attributes].some(handles)).length;
parent.document.body.textContent = JSON.stringify(told);
</script>
"""
"""Stands at the end of a page in a frame: clicks every heading twice, measures, and answers in the
place of the frame."""


def _hash(script: str) -> str:
    """What a policy calls a script."""
    content = script.partition("<script>")[2].partition("</script>")[0]
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


def _ask(page: Path, width: int) -> dict[str, Any]:
    """Open a page so wide in a browser, and return what the script finds."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser to open pages in: looked for {', '.join(BROWSERS)}")
    text = page.read_text(encoding="utf-8").replace("</body>", ASKS + "</body>")
    asking = escape(text.replace("script-src ", f"script-src {_hash(ASKS)} "))
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
    by_class, by_support, by_gap = (told["sorted"][column] for column in (0, 1, 7))
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
        tmp_path / "rows", valid=tmp_path / "rows", C=[1e-5, 1e-3, 0.1, 1], rho=[0, 1], model=model,
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
    assert told["hints"] == told["scrolling"]
    assert (told["scrolling"] > 0) == (width == 400)


PAYLOADS = (
    "<script>window.ran = 1</script>",
    "'\"><img src=x onerror='window.ran = 1'>",
    "' onmouseover='window.ran = 1' x='",
)


def _places(told: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a report that is no table or list, or to an empty one; in a list
    to those of its first entry."""
    if isinstance(told, dict | list) and told:
        items = told.items() if isinstance(told, dict) else enumerate(told[:1])
        for key, value in items:
            yield from _places(value, (*path, key))
    else:
        yield path


@pytest.mark.parametrize("many", [False, True], ids=["two classes", "many classes"])
def test_a_page_of_any_hostile_report_is_refused_or_holds_its_words_as_text(
    tmp_path: Path, many: bool
) -> None:
    (tmp_path / "a.svm").write_text("1 1:1 3:1\n2 2:1\n" * 9 + "3 3:1\n" * (9 * many))
    model = tmp_path / "m"
    streamtron.fit(tmp_path / "a.svm", model=model, multiclass=many)
    path = tmp_path / "m.run" / "report.json"
    before = path.read_text()
    made = 0
    for place in _places(json.loads(before)):
        for payload in ("".join(PAYLOADS), [PAYLOADS[0]]):
            told = json.loads(before)
            table = told
            for key in place[:-1]:
                table = table[key]
            table[place[-1]] = payload
            path.write_text(json.dumps(told))
            with suppress(DataError):
                streamtron.report(model, tmp_path / "m.html", margins=False)
                made += 1
                text = (tmp_path / "m.html").read_text()
                tags = Tags(text)
                assert (tags.scripts, tags.images, tags.handlers) == (1, 0, 0), (place, payload)
    assert made > 10


class Tags(HTMLParser):
    """Counts what could run in a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts = self.images = self.handlers = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.scripts += tag == "script"
        self.images += tag == "img"
        self.handlers += any(name.startswith("on") for name, _ in attrs)


def test_a_browser_runs_nothing_that_a_hostile_run_says(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:1 3:1\n2 2:1\n3 3:1\n" * 9)
    streamtron.fit(tmp_path / "a.svm", model=tmp_path / "m", multiclass=True)
    path = tmp_path / "m.run" / "report.json"
    told = json.loads(path.read_text())
    for learner, payload in zip(told["learners"], PAYLOADS, strict=True):
        learner["stop_reason"] = [payload]
    told["settings"] |= dict.fromkeys(PAYLOADS, PAYLOADS[0])
    path.write_text(json.dumps(told))
    page = tmp_path / "m.html"
    streamtron.report(tmp_path / "m", page, margins=False)
    found = _ask(page, 1280)
    assert (found["ran"], found["elements"], found["handled"]) == (None, 2, 0)  # its own, and ASKS


def test_a_browser_runs_no_script_that_got_into_the_page_in_spite_of_all(tmp_path: Path) -> None:
    """The page's policy names its own script; so markup that is not escaped would do nothing."""
    (tmp_path / "a.svm").write_text("1 1:1\n2 2:1\n")
    streamtron.fit(tmp_path / "a.svm", model=tmp_path / "m")
    page = tmp_path / "m.html"
    streamtron.report(tmp_path / "m", page, margins=False)
    text = page.read_text(encoding="utf-8")
    assert "unsafe" not in text
    page.write_text(text.replace("<header>", "".join(PAYLOADS[:2]) + "<header>"), encoding="utf-8")
    found = _ask(page, 1280)
    assert (found["ran"], found["elements"]) == (None, 4)
