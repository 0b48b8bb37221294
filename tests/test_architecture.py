"""The packages as docs/architecture.md describes them, and what its pages say about files."""

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import streamtron

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "streamtron"

FLOORS: dict[str, int] = {
    "core": 0,
    "data": 1,
    "solver": 1,
    "model": 2,
    "testing": 2,
    "runs": 3,
    "sweeps": 4,
    "cluster": 5,
    "estimator": 6,
    "cli": 6,
    "__main__": 7,
}
"""What lies in streamtron: each may import what lies lower, nothing beside it."""

OWNERS: dict[str, set[str]] = {
    "numba": {"core.kernels"},
    "llvmlite": {"core.kernels"},
    "pyarrow": {"data"},
    "sklearn": {"core.feature_names", "data", "estimator", "model", "sweeps"},
    "pandas": {"data.transform"},
    "dask": {"cluster"},
    "distributed": {"cluster"},
    "click": {"cli"},
    "rich": {"cli"},
    "jinja2": {"runs.report_page"},
    "onnx": {"model.onnx_graph"},
    "skl2onnx": {"model.onnx_graph"},
    "skops": {"data.packed", "model.export"},
}
"""Library → the packages or modules that may import it."""

GOALS: dict[str, tuple[int, int]] = {
    "streamtron": (24_000, 35247),
    "tests": (18_000, 25595),
}
"""Directory → lines of Python that are its goal, and that it has today, as the formatter counts."""

TOLERANCE = 100
"""Lines above today's that fail no test, so that a comment may be added."""

SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def imports(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it, if only for types, and what it takes of
    them; ``streamtron`` itself is left out where something is taken of it."""
    found = set[str]()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{name.name}" for name in node.names}
            found |= {str(node.module)} - {"streamtron"}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def _entry(path: Path) -> str:
    """The entry of streamtron that a file lies in: a package, or a module by itself."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _called(path: Path) -> set[str]:
    """What a file calls, as it is written."""
    calls = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call))
    return {ast.unparse(node.func) for node in calls}


def test_streamtron_has_at_most_nine_entries_beside_its_two_doors_and_each_a_floor() -> None:
    entries = {_entry(path) for path in SOURCES}
    assert entries == set(FLOORS)
    doors = {"__main__", "testing"}  # __init__ and __main__ are the names Python looks for
    assert len(entries - doors) <= 9


def test_a_module_imports_only_what_lies_lower_or_in_its_own_package() -> None:
    for path in SOURCES:
        own = _entry(path)
        for name in imports(path):
            if name.startswith("streamtron."):
                entry = name.split(".")[1]
                assert entry == own or FLOORS[entry] < FLOORS[own], f"{path} imports {name}"
            assert name != "streamtron", f"{path}: name the module, not the package"


def test_a_library_is_imported_only_by_its_owner() -> None:
    for path in SOURCES:
        module = _module(path).removeprefix("streamtron.")
        for name in imports(path):
            owners = OWNERS.get(name.split(".")[0], {""})
            assert any(f"{module}.".startswith(owner) for owner in owners), f"{path}: {name}"


@pytest.mark.parametrize("directory", GOALS)
def test_package_and_tests_grow_no_further_from_their_goals(directory: str) -> None:
    goal, today = GOALS[directory]
    files = (ROOT / directory).rglob("*.py")
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert lines <= today + TOLERANCE, (
        f"{directory} has {lines:,} lines. The goal is at most {goal:,}; until it is met, today's "
        f"figure, {today:,}, is the limit, with a tolerance of {TOLERANCE} lines, and it may only "
        "fall: take lines away, and lower the limit where you have."
    )


def test_modules_import_each_other_in_no_circle() -> None:
    """But for rooms whose classes name each other's types."""
    rooms = {"core", "solver", "runs", "sweeps", "cluster", "cli"}
    paths = [path for path in SOURCES if _entry(path) in rooms and path.name != "__init__.py"]
    names = {_module(path) for path in paths}
    graph = {_module(path): imports(path) & names - {_module(path)} for path in paths}
    TopologicalSorter(graph).prepare()  # raises a CycleError with the modules of a circle


_WORDS = "found one own each more shared alone now before these those both other others such same"
PRONOUNS = {*_WORDS.split(), "whole", "rest"}
"""Words that name no value: a name says what something is, not which."""


def test_no_name_is_a_pronoun() -> None:
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                assert node.id not in PRONOUNS, f"{path}, line {node.lineno}"


OWNERS_OF_STATE = {"solver/learner", "solver/progress", "solver/part"}
"""What may assign the state of a learner; the last one that of a part's learner."""


def _assigned(path: Path) -> Iterator[list[str]]:
    """The attributes that a module assigns, each as the names that lead to it."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield ast.unparse(node).split(".")


def test_the_state_of_a_learner_is_assigned_by_its_own_modules_alone() -> None:
    for path in SOURCES:
        if str(path.relative_to(PACKAGE).with_suffix("")) not in OWNERS_OF_STATE:
            for names in _assigned(path):
                state = {"learner", "progress", "best"} & set(names[:-1])
                assert not state, f"{path}: {'.'.join(names)}"


def test_rows_are_scanned_and_readings_looped_over_in_one_module_each() -> None:
    callers = {"kernels.scan": "solver/scan", "data.read": "solver/train"}
    for path in SOURCES:
        module = str(path.relative_to(PACKAGE).with_suffix(""))
        calls = {call for call, owner in callers.items() if owner != module} & _called(path)
        assert calls == set(), path


def test_theory_imports_math_and_nothing_else() -> None:
    modules = {name.split(".")[0] for name in imports(PACKAGE / "core" / "theory.py")}
    assert modules - {"__future__"} == {"math"}


def test_no_module_gives_a_name_twice() -> None:
    for path in SOURCES:
        given = [
            name.id
            for statement in tree_of(path).body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            for name in ast.walk(target)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        ]
        assert {name for name in given if given.count(name) > 1} == set(), path


def test_the_examples_in_the_docstrings_come_out_as_written() -> None:
    for path in [PACKAGE / "__init__.py", *SOURCES]:
        assert doctest.testmod(importlib.import_module(_module(path))).failed == 0, path


def _public() -> Iterator[object]:
    """Every public function and class of the package, and the methods of the classes."""
    for name in streamtron.__all__:
        value = getattr(streamtron, name)
        if callable(value):
            yield value
        for member, own in vars(value).items() if inspect.isclass(value) else ():
            if not member.startswith("_") and callable(own):
                yield own


def test_public_docstrings_name_no_constant_and_no_function_that_is_not_public() -> None:
    for one in _public():
        module = getattr(one, "__module__", "")
        if not module.startswith("streamtron."):
            continue
        inner = {
            name
            for name in vars(importlib.import_module(module))
            if (name.isupper() or "_" in name) and len(name) > 1 and name not in streamtron.__all__
        }
        assert not inner & set(re.findall(r"\w+", inspect.getdoc(one) or "")), one


def _answers() -> Iterator[tuple[str, str]]:
    """Every answer of docs/architecture.md that names a definition: it, and the file it is in."""
    for line in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines():
        yield from re.findall(r"`(\w+)` in `((?:\w+/)+\w+\.py)`", line)
        for file, names in re.findall(r"`((?:\w+/)+\w+\.py)` \(((?:`\w+`(?:, )?)+)\)", line):
            yield from ((name, file) for name in re.findall(r"\w+", names))


@pytest.mark.parametrize(("name", "file"), sorted(set(_answers())))
def test_a_file_defines_what_the_page_of_the_architecture_finds_in_it(name: str, file: str) -> None:
    defined = {
        node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else node.id
        for node in ast.walk(tree_of(PACKAGE / file))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }
    assert name in defined


LOADED = (
    "import sys; print([name for name in "
    "('dask', 'click', 'sklearn', 'scipy', 'numpy', 'numba', 'pyarrow', 'pandas', "
    "'onnx', 'skops') if name in sys.modules])"
)


DECIDE = """
import numpy as np
from streamtron.model.linear_model import LinearModel
model = LinearModel(np.ones(2), 0.5, ('no', 'yes'), {}, {}, {'index_base': 0})
model.predict(np.ones((3, 2)))
"""
READ = """
import sys, streamtron.model.metrics
from streamtron.data import ReaderConfig, ShardRows, find_shards
assert len(list(ShardRows(*find_shards([sys.argv[1]]), ReaderConfig()).chunks())) == 1
"""


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import streamtron.errors, streamtron.events", []),
        (DECIDE, ["scipy", "numpy"]),
        (READ, ["scipy", "numpy", "numba", "pyarrow"]),
        ("import streamtron.cli.main", ["click"]),
    ],
    ids=["errors and events", "a decision", "reading and measuring", "the command line"],
)
def test_what_does_little_loads_few_libraries(code: str, loaded: list[str], tmp_path: Path) -> None:
    (tmp_path / "rows.svm").write_text("1 1:1\n-1 2:0.5\n")
    words = [sys.executable, "-c", f"{code}\n{LOADED}", tmp_path]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == f"{loaded}\n"


def test_every_public_name_is_there_and_is_not_a_module_but_errors_and_events() -> None:
    for name in streamtron.__all__:
        assert inspect.ismodule(getattr(streamtron, name)) == (name in ("errors", "events"))
    assert set(streamtron.__all__) <= set(dir(streamtron))
    with pytest.raises(AttributeError, match="nonesuch"):
        streamtron.nonesuch  # noqa: B018
