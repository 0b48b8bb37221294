"""README, documentation and metadata: what they show runs, and what they name is there."""

import doctest
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from contextlib import chdir
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import streamtron
from streamtron.cli import main
from streamtron.data.writers.corpus import generate
from streamtron.runs import memory
from streamtron.solver.hessian import HEAD
from tests.helpers.processes import here

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "streamtron"
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
"""The pages whose blocks run."""

LINKED = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "pipelines" / "README.md",
    ROOT / "benchmarks" / "README.md",
]
"""The pages whose links are followed."""

EVERYTHING = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def _params(pages: list[Path]) -> list[Any]:
    return [pytest.param(page, id=page.name) for page in pages]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with the files that the pages name."""
    directory = tmp_path_factory.mktemp("docs")
    corpora = (
        ("train", 800, 0),
        ("held-out", 200, 800),
        ("new", 20, 9999),
        ("monday", 30, 2000),
        ("inbox", 30, 3000),
    )
    for name, rows, first in corpora:
        generate(str(directory / name), rows=rows, columns=500, seed=1, shards=2, first_row=first)
    (directory / "topics").mkdir()
    (directory / "topics" / "a.svm").write_text("sport 1:1\nhome 2:1\nworld 3:1\nsport 1:2\n")
    _write_clicks(directory)
    policies = (
        f"{k % 3},{1 / (1 + k % 4)},{20 + k},{['north', 'south', 'east'][k % 3]}" for k in range(40)
    )
    (directory / "policies.csv").write_text("\n".join(["rate,exposure,age,region", *policies]))
    streamtron.export(
        streamtron.fit(directory / "train"), directory / "liblinear.model", "liblinear"
    )
    (directory / "night.toml").write_text(_block("every-night.md", "toml"))
    return directory


def _write_clicks(directory: Path) -> None:
    """Write two shards of clicks by user, and a list of rows to forget."""
    (directory / "clicks").mkdir()
    for number in range(2):
        rows = range(40 * number, 40 * (number + 1))
        columns = {
            "label": [k % 2 for k in rows],
            "user_id": [4690 + k for k in rows],
            "indices": [[k % 2, 2 + k % 3] for k in rows],
            "values": [[1.0, 0.5]] * 40,
        }
        pq.write_table(pa.table(columns), directory / "clicks" / f"part-0000{number}.parquet")
    (directory / "gone.csv").write_text("shard,row\npart-00000.parquet,7\n")


def _blocks(page: Path) -> list[tuple[str, str]]:
    """Return language and text of every fenced block of a page."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```(\S*)\n(.*?)^```\n", TITLED.sub("", text), re.DOTALL | re.MULTILINE)


TITLED = re.compile(r'^```(\S+) title="(\S+)"\n(.*?)^```\n', re.DOTALL | re.MULTILINE)
"""A block that is a file: its language, its name, its text."""


def _block(page: str, language: str) -> str:
    """Return the one block of a page in this language."""
    [block] = [text for name, text in _blocks(DOCS / page) if name == language]
    return block


def _run_line(line: str, directory: Path) -> None:
    """Run one command, in this process; it generates a tenth of the rows."""
    program, *words = shlex.split(re.sub(r"(--(?:rows|skip) \d+)0\b", r"\1", line))
    assert program == "streamtron", line
    done = here(directory, *words)
    assert done.returncode == 0, f"{line}\n{done.stderr}"


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("page", _params(PAGES))
def test_every_command_and_snippet_of_a_page_runs_as_written(page, place, tmp_path):
    directory = tmp_path / "place"
    blocks = _blocks(page)
    if any(name == "sh" and "streamtron generate train" in block for name, block in blocks):
        directory.mkdir()  # it makes its own files
    else:
        shutil.copytree(place, directory)
    names: dict[str, Any] = {"__name__": "__main__"}
    for language, block in blocks:
        if language == "sh":
            for line in block.replace("\\\n", "").strip().splitlines():
                _run_line(line, directory)
        elif language == "python" and not block.startswith(">>>"):
            with chdir(directory):
                exec(compile(block, page.name, "exec"), names)


def test_the_web_service_of_the_docs_answers_with_labels_and_goes_on_after_an_error(tmp_path):
    page = DOCS / "models.md"
    [makes_the_model] = [block for _, block in _blocks(page) if '"mails.model"' in block]
    with chdir(tmp_path):
        exec(compile(makes_the_model, page.name, "exec"), {})
    [(_, name, text)] = TITLED.findall(page.read_text(encoding="utf-8"))
    assert len([line for line in text.splitlines() if line]) == 10
    printing = (  # at a port that is free
        'server = make_server("127.0.0.1", 0, label)\n'
        'print(f"http://127.0.0.1:{server.server_port}", flush=True)\n'
        "server.serve_forever()\n"
    )
    text, serving = text.rsplit("make_server", 1)
    assert serving == '("127.0.0.1", 8000, label).serve_forever()\n'
    (tmp_path / name).write_text(text + printing)
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    paths = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, name], cwd=tmp_path, env=paths, **how) as server:
        try:
            address = server.stdout.readline().strip()
            assert _posted(address, [["cheap", "pills"], ["noon"]]) == ["spam", "ham"]
            with pytest.raises(urllib.error.HTTPError, match="500"):
                _posted(address, [{"team": "much"}])
            assert _posted(address, [{"team": 2.5}]) == ["ham"]
        finally:
            server.kill()


def _posted(address: str, rows: Any) -> Any:
    """Return the JSON that a server answers to JSON."""
    request = urllib.request.Request(address, json.dumps(rows).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.parametrize("page", _params([*PAGES, ROOT / "CONTRIBUTING.md"]))
def test_a_block_that_does_not_run_is_output_or_installs_or_makes(page):
    for language, block in _blocks(page):
        assert language in {"sh", "python", "shell", "text", "toml", "diff"}
        if language == "shell":
            for line in block.strip().splitlines():
                assert line.startswith(("python3 -m venv", ".venv/bin/pip", "export PATH", "make "))
        if language == "text":
            assert not re.search(r"^streamtron ", block, re.MULTILINE)


@pytest.mark.parametrize("page", _params([*PAGES, ROOT / "CONTRIBUTING.md"]))
def test_every_path_and_make_target_of_a_page_is_there_and_its_examples_come_out_as_written(page):
    text, makefile = page.read_text(encoding="utf-8"), (ROOT / "Makefile").read_text()
    paths = set(re.findall(r"(?:streamtron|tests|benchmarks|pipelines|docs)/[\w./-]*\w/?", text))
    paths |= set(re.findall(r"`((?:\w+/)+\w*(?:\.py|\.md)?)`", text))  # some within the package
    assert len(paths) > 20 or page.name not in ("architecture.md", "extending.md")
    assert not [p for p in paths if not any((at / p).exists() for at in (PACKAGE, ROOT))]
    for target in re.findall(r"make (\w[\w-]*)  ", text):
        assert f"\n{target}:" in makefile
    assert doctest.testfile(str(page), module_relative=False).failed == 0


ABOUT_CODE = [*map(DOCS.joinpath, ("algorithm.md", "architecture.md", "extending.md"))]
"""Pages that name functions and classes."""


@pytest.mark.parametrize("page", _params(ABOUT_CODE))
def test_every_name_that_a_page_about_the_code_gives_is_in_the_code(page):
    code = "\n".join(path.read_text() for path in (ROOT / "streamtron").rglob("*.py"))
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    names = set(re.findall(r"`@?(\w+)(?:\(\w*\))?`", text))
    assert len(names) > 3
    assert not [name for name in names if not re.search(rf"\b{name}\b", code)]


VOWPAL = (
    "passes cache_file loss_function l2 power_t initial_t noconstant oaa multilabel_oaa "
    "holdout_period holdout_off ngram random_seed save_resume invert_hash link"
)
FOREIGN = {"--system-site-packages", *map("--{}".format, VOWPAL.split())}
"""Options of other programs."""

DASK = {"--port", "--nthreads", "--memory-limit", "--rm", "--user"}
"""Options of Dask's commands and of Docker's."""


def test_every_option_that_a_page_names_is_one_of_a_command():
    commands = main.streamtron.commands
    there = {
        word
        for command in commands.values()
        for parameter in command.params
        for word in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help", "--generate", "--columns"}
    vowpal = (DOCS / "coming-from.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", EVERYTHING))
    assert named - there <= FOREIGN | DASK
    assert named - there - DASK <= set(re.findall(r"--[\w-]+", vowpal))


def test_the_memory_figures_are_those_of_the_sum():
    page = (DOCS / "scale.md").read_text(encoding="utf-8")
    told = {
        item: [int(figure) for figure in re.findall(r"\d+", sizes.replace(",", ""))]
        for item, sizes in re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    }
    of_one = memory.IDLE_BYTES + memory.SOLVER_BYTES
    assert told["interpreter and libraries"] == [memory.INTERPRETER_BYTES // 10**6]
    assert told["each column that occurs"] == [
        memory.LEARNER_BYTES,
        memory.IDLE_BYTES,
        memory.SOLVER_BYTES,
        of_one,
    ]
    assert told["each row"][0] == memory.ALPHA_BYTES
    newton = told["Newton's method, for each class that is solved at the same time"]
    assert newton == [memory.HEAD_BYTES * HEAD**2 // 10**6, memory.HEAD_BYTES, HEAD]
    more = told["each class more"]
    assert more[:2] == [memory.LEARNER_BYTES, memory.ALPHA_BYTES]
    assert more[-1] == memory.SHARED_ROW_BYTES


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", _params(LINKED))
def test_every_link_leads_to_a_file_and_a_heading(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in _anchors(linked), f"{page.name}: {target}"


@pytest.fixture(scope="module")
def with_marks():
    """What the script that builds the site puts in the place of marks."""
    return runpy.run_path(str(DOCS / "tools" / "pages.py"))["with_marks"]


def test_the_pages_of_commands_and_of_python_have_every_option_and_every_public_name(with_marks):
    page = with_marks("<!-- commands -->")
    for name, command in main.streamtron.commands.items():
        section = page.split(f"## {name}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert max(parameter.opts, key=len) in section
    page = with_marks("<!-- api -->")
    public = set(streamtron.__all__) - {"__version__", "errors", "events"}
    for name in public | {"SettingsError", "Outcome", "ReadingDone"}:
        assert re.search(rf"^### {name}( \{{|$)", page, re.MULTILINE), name


def test_a_page_shows_the_changelog_and_what_its_commands_print(with_marks):
    assert "## 0.1.0" in with_marks("<!-- changelog -->")
    block = "```sh\nstreamtron --version\n```\n"
    shown = with_marks(f"Look:\n\n{block}\n<!-- output -->\n")
    assert shown == f"Look:\n\n{block}\n```text\nstreamtron {streamtron.__version__}\n```\n"


def test_every_page_is_in_the_navigation():
    named = re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(named) == [page.name for page in sorted(DOCS.glob("*.md"))]


@pytest.mark.slow
def test_the_documentation_builds_without_a_warning_and_asks_the_network_for_nothing(tmp_path):
    pytest.importorskip("zensical", reason="zensical is not installed: pip install '.[docs]'")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    command = [sys.executable, str(ROOT / "docs" / "tools" / "pages.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len([*(tmp_path / "site").glob("*.html")]) >= len(PAGES) - 1
    for page in (tmp_path / "site").glob("*.html"):
        html = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?:', html), page.name


@pytest.fixture(scope="module")
def project():
    """The metadata of the wheel."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_metadata_name_the_licence_and_the_version(project):
    assert project["license"] == "BSD-3-Clause"
    assert (ROOT / "LICENSE").read_text().startswith("BSD 3-Clause")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]
    assert f"streamtron {project['version']}," in (ROOT / "mkdocs.yml").read_text()
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_conda_recipe_needs_what_the_wheel_needs_in_the_same_version(project):
    recipe = yaml.safe_load((ROOT / "release" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == project["version"]
    assert recipe["context"]["python_min"] == project["requires-python"].removeprefix(">=")
    names = {"python-xxhash": "xxhash", "dask-core": "dask"}  # here and on PyPI
    needed = [line.split(" >=") for line in recipe["requirements"]["run"] if " >=" in line]
    wheel = [line.split(";")[0].split(">=") for line in project["dependencies"]]
    assert sorted([names.get(name, name), least] for name, least in needed[1:]) == sorted(wheel)
