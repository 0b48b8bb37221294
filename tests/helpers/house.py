"""What the sources of the package show: their lines, imports and names."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "streamtron"


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def modules(room: str = "") -> list[Path]:
    """The modules of a room, or of all the package."""
    return sorted((PACKAGE / room).rglob("*.py"))


def lines(paths: list[Path]) -> int:
    """How many lines files have together."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def imports(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it, if only for types, and what it takes of
    them; ``streamtron`` itself is left out where something is taken of it."""
    found = set[str]()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}: a relative import"
            taken = {f"{node.module}.{name.name}" for name in node.names}
            found |= taken | ({node.module} - {"streamtron"})
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


@cache
def graph(room: str) -> dict[str, set[str]]:
    """The modules of a room, and which of them each imports."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in modules(room)
        if path.name != "__init__.py"
    }
    return {name: imports(path) & set(names) - {name} for name, path in names.items()}


def circle(room: str) -> list[str]:
    """Modules of a room that import themselves through one another, if there are any."""
    try:
        TopologicalSorter(graph(room)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


_WORDS = "found one own each more shared alone now before these those both other others such same"
PRONOUNS = {*_WORDS.split(), "whole", "rest"}
"""Words that name no value: a name says what something is, not which."""


def pronouns() -> Iterator[str]:
    """Where the package assigns to a name that is a pronoun, or an adverb in its place."""
    for path in modules():
        for node in ast.walk(tree_of(path)):
            stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            if stored and node.id in PRONOUNS:
                yield f"{path.relative_to(PACKAGE)}, line {node.lineno}: {node.id}"
