"""The house as DESIGN draws it: who may import whom, read from source."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "streamtron"

GROUND = {"errors", "theory", "chunk", "files", "limits", "config", "certificate", "events"}

ALLOWED: dict[str, set[str]] = {
    # ground
    "errors": set(),
    "theory": set(),
    "chunk": set(),
    "limits": set(),
    "files": {"errors"},
    "config": {"errors", "files", "limits"},
    "candidates": {"config", "errors"},
    "certificate": {"errors", "kernels"},
    "events": {"certificate"},
    "sealed": {"errors", "files"},
    "spread": set(),
    "scratch": set(),
    # first floor
    "kernels": {"chunk"},
    "shards": {"chunk", "errors", "files", "kernels", "limits", "sealed", "spread"},
    "model_checks": {"chunk", "errors", "sealed"},
    "model": {"chunk", "errors", "model_checks", "sealed"},
    "foreign": {"chunk", "errors", "files", "model", "sealed"},
    "evaluation": {"chunk", "errors"},
    "reach": {"model", "theory"},
    "compiling": {"kernels"},
    # second floor
    "training": {*GROUND, "kernels"},
    # faces
    "interruption": set(),
    "witness": {"errors", "sealed", "shards", "training"},
    "outputs": {"errors", "sealed", "shards"},
    "memory": {"chunk", "config", "errors", "kernels", "training"},
    "learning": {*GROUND, "kernels", "memory", "shards", "training"},
    "locks": {"errors", "sealed"},
    "changes": {"errors", "sealed", "shards"},
    "runs": {*GROUND, "changes", "interruption", "locks", "sealed", "training"},
    "ended": {*GROUND, "changes", "locks", "runs", "training"},
    "outcome": {*GROUND, "learning", "model", "sealed", "shards", "training", "witness"},
    "fitting": {
        *GROUND, "interruption", "learning", "memory", "model", "outcome", "outputs", "runs",
        "scratch", "shards", "training",
    },
    "updating": {
        *GROUND, "changes", "ended", "fitting", "learning", "memory", "model", "outcome",
        "outputs", "runs",
        "shards", "training",
    },
    "leaving": {"errors", "files", "limits", "sealed", "shards", "updating"},
    "forgetting": {
        *GROUND, "changes", "ended", "fitting", "learning", "leaving", "outcome", "shards",
        "training", "updating",
    },
    "block_scans": {*GROUND, "kernels", "training"},
    "scanning": {*GROUND, "block_scans", "shards", "spread", "training"},
    "carried": {"ended", "errors", "learning", "model", "outcome", "training", "witness"},
    "proof": {
        *GROUND, "block_scans", "carried", "learning", "model", "fitting", "scanning", "shards",
        "spread", "training", "witness",
    },
    "summary": {"config"},
    "scoring": {
        *GROUND, "evaluation", "kernels", "model", "fitting", "outputs", "reach",
        "sealed", "shards", "spread", "summary",
    },
    "splits": {*GROUND, "fitting", "learning", "scoring", "shards"},
    "trials": {*GROUND, "fitting", "learning", "outcome", "sealed", "shards", "summary"},
    "rungs": {"config", "errors", "training", "trials"},
    "sweeping": {
        *GROUND, "candidates", "evaluation", "fitting", "learning", "model", "outcome", "outputs",
        "rungs", "runs", "scoring", "scratch", "shards", "splits", "summary", "trials",
    },
    "plot": {"errors", "sealed", "summary"},
    "conversion": {"config", "errors", "fitting", "outputs", "scoring", "shards", "spread"},
    "inspection": {
        *GROUND, "changes", "ended", "foreign", "learning", "locks", "memory", "model", "fitting",
        "runs", "sealed", "shards", "summary", "witness",
    },
    "estimator": {
        *GROUND, "memory", "learning", "fitting", "model_checks", "shards", "training",
    },
    "cluster": {"config", "errors", "files"},
    "attempts": {
        "cluster", "config", "errors", "events", "locks", "runs", "scratch", "sealed", "shards",
        "splits", "summary", "sweeping", "trials",
    },
    "batch": {"errors", "files", "sealed", "shards"},
    "jobs": {"batch", "cluster", "errors", "sealed"},
    "progress": {"events"},
    "options": {"candidates", "config", "errors"},
    "commands": {
        "attempts", "batch", "candidates", "cluster", "compiling", "proof", "config", "conversion",
        "ended", "errors", "foreign", "forgetting", "inspection", "jobs",
        "model", "options", "outcome", "outputs", "plot", "progress", "fitting", "runs", "scoring",
        "sealed", "shards", "spread", "summary", "sweeping", "trials", "updating",
    },
    "cli": {"commands", "errors", "interruption"},
}  # fmt: skip
"""Module or package → what of streamtron it may import beside itself."""

OWNERS: dict[str, set[str]] = {
    "numba": {"kernels"},
    "llvmlite": {"kernels"},
    "pyarrow": {"shards"},
    "sklearn": {"estimator", "evaluation", "model_checks", "shards"},
    "dask": {"cluster"},
    "distributed": {"cluster"},
    "click": {"cli", "commands", "options"},
    "rich": {"progress"},
    "matplotlib": {"plot"},
}
"""Library → the only modules that import it."""

MAY_PRINT = {"cli", "commands", "progress"}

SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def _row(path: Path) -> str:
    """The row of the table that a file belongs to: its package below streamtron, or its name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it, by its full name."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            assert node.module is not None
            if node.module == "streamtron":
                yield from (f"streamtron.{name.name}" for name in node.names)
            else:
                yield node.module


def _named(paths: list[Path]) -> list[object]:
    return [pytest.param(path, id=_module(path)) for path in paths]


@pytest.mark.parametrize("path", _named(SOURCES))
def test_a_module_imports_only_what_its_row_of_the_table_allows(path: Path) -> None:
    row = _row(path)
    assert row in ALLOWED, f"{path}: give it a row in the table"
    ours = {name.split(".")[1] for name in _imports(path) if name.startswith("streamtron.")}
    assert ours - {row} <= ALLOWED[row]
    assert "streamtron" not in set(_imports(path)), "name the module, not the package"


def test_the_table_has_no_row_for_a_module_that_is_gone() -> None:
    assert set(ALLOWED) <= {_row(path) for path in SOURCES}


@pytest.mark.parametrize("path", _named(SOURCES))
def test_a_library_is_imported_only_by_its_owner(path: Path) -> None:
    for name in _imports(path):
        owners = OWNERS.get(name.split(".")[0])
        assert owners is None or _row(path) in owners, f"{path} imports {name}"


def test_theory_imports_math_and_nothing_else() -> None:
    assert set(_imports(PACKAGE / "theory.py")) - {"__future__"} == {"math"}


def test_the_ground_does_not_import_shards_training_or_a_face() -> None:
    above = set(ALLOWED) - GROUND - {"sealed", "spread", "kernels"}
    assert all(not ALLOWED[module] & above for module in GROUND)


def test_training_never_imports_shards() -> None:
    assert "shards" not in ALLOWED["training"]
    assert not ALLOWED["shards"] & {"training", "model", "fitting", "config"}


@pytest.mark.parametrize("path", _named([path for path in SOURCES if _row(path) not in MAY_PRINT]))
def test_the_library_prints_nothing(path: Path) -> None:
    calls = (node.func for node in ast.walk(_tree(path)) if isinstance(node, ast.Call))
    assert not any(isinstance(called, ast.Name) and called.id == "print" for called in calls)


@pytest.mark.parametrize("path", _named(SOURCES))
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    assert not {"pickle", "dill", "joblib", "marshal", "shelve"} & set(_imports(path))
    calls = (node.func for node in ast.walk(_tree(path)) if isinstance(node, ast.Call))
    assert not any(
        isinstance(called, ast.Name) and called.id in {"eval", "exec"} for called in calls
    )


@pytest.mark.parametrize("path", _named(SOURCES))
def test_no_module_gives_a_name_twice(path: Path) -> None:
    given = [
        name.id
        for statement in _tree(path).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    ]
    assert {name for name in given if given.count(name) > 1} == set()


@pytest.mark.parametrize("path", _named(SOURCES))
def test_whatever_is_public_has_a_docstring(path: Path) -> None:
    tree = _tree(path)
    if path.read_text(encoding="utf-8").strip():
        assert ast.get_docstring(tree), f"{path}: no docstring"
    private = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.ClassDef) and node.name.startswith("_"))
        for inner in ast.walk(node)
        if inner is not node
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or id(node) in private:
            continue
        assert node.name.startswith("_") or ast.get_docstring(node), f"{path}: {node.name}"


@pytest.mark.parametrize("path", _named([PACKAGE / "__init__.py", *SOURCES]))
def test_the_examples_in_the_docstrings_come_out_as_written(path: Path) -> None:
    found = doctest.testmod(importlib.import_module(_module(path)))
    assert found.failed == 0


def _fresh(code: str) -> str:
    """What a fresh Python prints when it runs the code."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


LOADED = (
    "import sys; print([name for name in "
    "('dask', 'click', 'rich', 'sklearn', 'scipy', 'numpy', 'numba', 'pyarrow', 'matplotlib') "
    "if name in sys.modules])"
)


def test_importing_the_package_loads_no_library() -> None:
    assert _fresh(f"import streamtron; {LOADED}") == "[]\n"


def test_the_command_line_without_a_command_loads_click_alone() -> None:
    assert _fresh(f"import streamtron.cli; {LOADED}") == "['click']\n"


def test_every_public_name_is_there_and_is_not_a_module_but_errors() -> None:
    import streamtron

    for name in streamtron.__all__:
        assert inspect.ismodule(getattr(streamtron, name)) == (name == "errors")
    assert set(streamtron.__all__) <= set(dir(streamtron))


def test_no_module_has_the_name_of_a_public_thing() -> None:
    import streamtron

    assert not {path.stem for path in (ROOT / "streamtron").glob("*.py")} & {
        *streamtron.__all__
    } - {"errors"}


def test_an_unknown_public_name_is_an_attribute_error_that_names_it() -> None:
    import streamtron

    with pytest.raises(AttributeError, match="nonesuch"):
        streamtron.nonesuch  # noqa: B018
