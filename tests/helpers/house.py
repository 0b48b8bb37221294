"""The sizes of the house, counted in its sources: run it to see them."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import quantiles

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "streamtron"
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


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


def functions() -> Iterator[tuple[str, FUNCTIONS]]:
    """Every function with a name that tells its module and class."""
    for path in modules():
        for outer in ast.walk(tree_of(path)):
            for node in ast.iter_child_nodes(outer):
                if isinstance(node, FUNCTIONS):
                    owner = f"{outer.name}." if isinstance(outer, ast.ClassDef) else ""
                    where = path.relative_to(PACKAGE).with_suffix("")
                    yield f"{where}:{owner}{node.name}", node


def length(function: FUNCTIONS) -> int:
    """The lines of a function without its decorators and docstring."""
    assert function.end_lineno is not None
    first = function.body[0]
    docstring = 0
    if ast.get_docstring(function, clean=False) is not None:
        assert first.end_lineno is not None
        docstring = first.end_lineno - first.lineno + 1
    return function.end_lineno - function.lineno + 1 - docstring


def parameters(function: FUNCTIONS) -> int:
    """How many parameters a function has, self left out."""
    own = function.args
    named = [*own.posonlyargs, *own.args, *own.kwonlyargs]
    return len(named) - (bool(named) and named[0].arg in ("self", "cls"))


def public_methods() -> dict[str, int]:
    """Of every class, how many public methods and properties it has."""
    return {
        f"{path.relative_to(PACKAGE).with_suffix('')}:{node.name}": sum(
            isinstance(one, FUNCTIONS) and one.name[0] != "_" for one in node.body
        )
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    }


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


def floors(room: str) -> int:
    """How many modules of a room the longest chain of imports has; there are no circles."""
    arrows, floor = graph(room), dict[str, int]()
    for name in TopologicalSorter(arrows).static_order():
        floor[name] = 1 + max((floor[other] for other in arrows[name]), default=0)
    return max(floor.values())


PRONOUNS = {
    "found",
    "one",
    "own",
    "each",
    "more",
    "shared",
    "alone",
    "now",
    "before",
    "these",
    "those",
    "both",
    "other",
    "others",
    "such",
    "same",
    "whole",
    "rest",
}
"""Words that name no value: a name says what something is, not which."""


def pronouns() -> int:
    """How often the package assigns to a name that is a pronoun, or an adverb in its place."""
    return sum(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in PRONOUNS
        for path in modules()
        for node in ast.walk(tree_of(path))
    )


@cache
def figures() -> dict[str, float]:
    """The sizes that are to fall, by name."""
    bodies = sorted(length(function) for _, function in functions())
    found: dict[str, float] = {
        "package lines": lines(modules()),
        "test lines": lines(sorted((ROOT / "tests").rglob("*.py"))),
        "solver lines": lines(modules("solver")),
        "solver modules": len(graph("solver")),
        "solver circles": len(circle("solver")),
        "runs lines": lines(modules("runs")),
        "functions p90": quantiles(bodies, n=10)[-1],
        "longest function": bodies[-1],
        "most parameters": max(
            parameters(function) for name, function in functions() if not public(name)
        ),
        "most public methods": max(public_methods().values()),
        "names that are pronouns": pronouns(),
        "modules over 400 lines": sum(
            lines([path]) > 400 for path in modules() if "kernels" not in path.name
        ),
    }
    if not found["solver circles"]:
        found["solver floors"] = floors("solver")
    return found


FACES = (
    "kernels",
    "cli/",
    "estimator",
    "sweeps/sweep:sweep",
    "runs/fit:fit",
    "runs/fit:run",
    "runs/certify:certify",
    "runs/update:update",
    "runs/forget:forget",
    "data/writers/corpus:generate",
)
"""Where a function may have more than eight parameters: public faces, and kernels."""


def public(name: str) -> bool:
    """Whether a function is a public face."""
    return any(face in name for face in FACES)


if __name__ == "__main__":
    for name, value in figures().items():
        print(f"{name:<24}{value:>8g}")
    for name, function in functions():
        if length(function) > 50 or (parameters(function) > 8 and not public(name)):
            print(name, length(function), "lines,", parameters(function), "parameters")
    for name, number in public_methods().items():
        if number > 15:
            print(name, number, "public methods")
    print("circle", *circle("solver"))
    for path in modules():
        if lines([path]) > 400:
            print(path.relative_to(PACKAGE), lines([path]), "lines")
