"""Build the documentation into site/, with what it takes from the code.

    python docs/tools/pages.py [DIRECTORY]

DIRECTORY has a mkdocs.yml, and is the project's by default. A page has a mark where commands,
Python or the changelog belong. The pages are written to build/docs with these texts in place,
Zensical makes a site of them, and options are kept in one piece where a line is broken. A warning
is an error.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

# --- the command line ---


def commands() -> str:
    """Return the help of every command as Markdown."""
    import click

    from streamtron.cli.main import streamtron

    parts, settings = [], streamtron.context_settings  # a command remembers its help option
    for name, command in streamtron.commands.items():
        with click.Context(command, info_name=f"streamtron {name}", **settings) as context:
            usage = " ".join(command.collect_usage_pieces(context))
            entries = [
                record
                for parameter in command.get_params(context)
                if (record := parameter.get_help_record(context)) and record[1]
            ]
        parts += [
            f"## {name}",
            f"```text\nstreamtron {name} {usage}\n```",
            _prose(inspect.cleandoc(command.help or "")),
            _definitions((f"`{names}`", words) for names, words in entries),
        ]
    return "\n\n".join(parts) + "\n"


# --- Python ---


def api() -> str:
    """Return signature and docstring of every public function and class as Markdown."""
    import streamtron

    public = {name: getattr(streamtron, name) for name in streamtron.__all__}
    functions = {name: value for name, value in public.items() if inspect.isfunction(value)}
    classes = [value for value in public.values() if inspect.isclass(value)]
    returned: dict[str, type] = {}
    for function in functions.values():
        for kind in _classes_in(typing.get_type_hints(function).get("return")):
            if kind.__module__.startswith("streamtron.") and kind not in classes:
                returned.setdefault(kind.__name__, kind)
    errors = [
        kind
        for _, kind in inspect.getmembers(streamtron.errors, inspect.isclass)
        if issubclass(kind, streamtron.errors.StreamtronError)
    ]
    events = typing.get_args(streamtron.events.Event)
    parts = [
        "## Functions",
        *(part for name, function in functions.items() for part in _function(function, name)),
        "## Classes",
        *(part for kind in classes for part in _class(kind)),
        "## What the functions return",
        *(part for kind in returned.values() for part in _class(kind)),
        "## Events",
        *(part for kind in events for part in _class(kind, members=False)),
        "## Errors",
        *(part for kind in errors for part in _class(kind, members=False)),
    ]
    return "\n\n".join(parts) + "\n"


def _function(function: Callable[..., Any], name: str, level: str = "###") -> Iterator[str]:
    yield f"{level} {name} {{ #{name.replace('.', '-')} }}"
    yield f"```text\n{_signature(function, name)}\n```"
    yield docstring(inspect.getdoc(function) or "")


def _class(kind: type, *, members: bool = True) -> Iterator[str]:
    name = kind.__name__
    yield f"### {name}"
    if members and not issubclass(kind, dict):
        yield f"```text\n{_signature(kind, name)}\n```"
    yield docstring(inspect.getdoc(kind) or "")
    for member, value in vars(kind).items() if members else ():
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if member.startswith("_") or getattr(plain, "__module__", None) in {None, "sklearn"}:
            continue
        if inspect.isfunction(plain) and plain.__module__.startswith("streamtron."):
            yield from _function(plain, f"{name}.{member}", "####")


def _classes_in(annotation: Any) -> Iterator[type]:
    for part in typing.get_args(annotation) or (annotation,):
        if inspect.isclass(part):
            yield part


def _signature(called: Callable[..., Any], name: str) -> str:
    """Write a call, on one line if it fits, else with a line for every parameter.

    >>> def add(a: int, *, b: int = 1) -> int: ...
    >>> _signature(add, "add")
    'add(a, *, b=1)'
    """
    words = []
    positional_only = True
    for parameter in inspect.signature(called).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and positional_only:
            words.append("*")
        positional_only = positional_only and parameter.kind is not parameter.KEYWORD_ONLY
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = ""
        if parameter.default is not parameter.empty:
            shown = parameter.default
            default = "=" + (shown.__name__ if inspect.isfunction(shown) else repr(shown))
        words.append(f"{star}{parameter.name}{default}")
    line = f"{name}({', '.join(words)})"
    return line if len(line) <= 80 else f"{name}(\n    " + ",\n    ".join(words) + ",\n)"


def docstring(text: str) -> str:
    """Turn a docstring of numpydoc into Markdown.

    >>> print(docstring("Add.\\n\\nParameters\\n----------\\na : number\\n    of apples."))
    Add.
    <BLANKLINE>
    **Parameters**
    <BLANKLINE>
    `a`
    :   number of apples.
    """
    pieces = re.split(r"^(\w[\w ]*)\n-{3,}\n", text, flags=re.MULTILINE)
    parts = [_prose(pieces[0])]
    for heading, body in zip(pieces[1::2], pieces[2::2], strict=True):
        if heading == "Examples":
            parts += [f"**{heading}**", f"```pycon\n{body.strip()}\n```"]
        elif heading in {"Parameters", "Attributes", "Raises"}:
            parts += [f"**{heading}**", _entries(body)]
        else:
            parts += [f"**{heading}**", _prose(body)]
    return "\n\n".join(part for part in parts if part)


def _entries(body: str) -> str:
    """Turn ``name : what it is`` and the indented lines below into a definition list."""
    entries: list[tuple[str, str]] = []
    for line in body.strip().splitlines():
        if line.startswith(" ") and entries:
            names, words = entries[-1]
            entries[-1] = names, f"{words} {line.strip()}"
        elif line:
            names, _, words = line.partition(" : ")
            entries.append((", ".join(f"`{name}`" for name in names.split(", ")), words))
    if not any(words for _, words in entries):
        return ", ".join(names for names, _ in entries)
    return _definitions(entries)


def _definitions(entries: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> str:
    lines = [f"{names}\n:   {_line(words) or '–'}" for names, words in entries]
    return "\n\n".join(lines)


def _line(words: str) -> str:
    """Turn a description of one paragraph into Markdown; brackets are no links, options are code.

    >>> _line("what --workers do [none]")
    'what `--workers` do \\\\[none]'
    """
    words = re.sub(r"``(.+?)``", r"`\1`", " ".join(words.split()))
    words = re.sub(r"(?<![\w`-])--\w[\w-]*", r"`\g<0>`", words)
    return words.replace("[", r"\[").replace("<", "&lt;")


def _prose(text: str) -> str:
    """Turn paragraphs, lists and ``::`` blocks of a docstring into Markdown."""
    text = inspect.cleandoc(text).replace("\b\n", "")
    text = re.sub(r"``(.+?)``", r"`\1`", text)
    return re.sub(r"^::\n", "", text, flags=re.MULTILINE).strip()


# --- files of the project ---


def changelog() -> str:
    """Return CHANGELOG.md."""
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


MARKS = {"commands": commands, "api": api, "changelog": changelog}
"""Mark in a page → what takes its place."""


def with_output(markdown: str) -> str:
    """Run the commands of a page in an empty directory, up to the last whose output is shown, and
    show what each block prints.

    A block of commands whose output is shown is followed by ``<!-- output -->``.
    """
    blocks = re.split(r"(^```sh\n.*?^```\n)", markdown, flags=re.DOTALL | re.MULTILINE)
    shows = [number for number, block in enumerate(blocks) if "<!-- output -->" in block]
    with tempfile.TemporaryDirectory() as directory:
        for number, block in enumerate(blocks[: max(shows, default=0)]):
            if not block.startswith("```sh\n"):
                continue
            printed = [_output(line, directory) for line in block.splitlines()[1:-1]]
            shown = f"\n```text\n{''.join(printed)}```\n"
            blocks[number + 1] = blocks[number + 1].replace("\n<!-- output -->\n", shown, 1)
    return "".join(blocks)


def _output(line: str, directory: str) -> str:
    program, *words = shlex.split(line)
    assert program == "streamtron", line
    command = [sys.executable, "-m", "streamtron", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=True
    ).stdout


def with_marks(markdown: str) -> str:
    """Replace the marks of a page, ``<!-- commands -->`` and the like."""
    if "<!-- output -->" in markdown:
        markdown = with_output(markdown)
    for mark, text in MARKS.items():
        if f"<!-- {mark} -->" in markdown:
            markdown = markdown.replace(f"<!-- {mark} -->", text())
    return markdown


def unbroken(html: str) -> str:
    """Keep options in one piece where a line of inline code is broken.

    >>> unbroken("<code>fit --model M</code>")
    '<code>fit <span class="word">--model</span> M</code>'
    """

    def keep(code: re.Match[str]) -> str:
        return re.sub(r"(\S*-\S*)", r'<span class="word">\1</span>', code[0])

    return re.sub(r"(?<=<code>)[^<\n]*(?=</code>)", keep, html)


# --- the site ---


def main() -> None:
    """Write the pages, make the site, and finish its HTML."""
    place = Path(*sys.argv[1:2] or [ROOT])
    pages = place / "build" / "docs"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("tools", "__pycache__"))
    for page in pages.glob("*.md"):
        page.write_text(with_marks(page.read_text(encoding="utf-8")), encoding="utf-8")
    zensical = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    subprocess.run(zensical, cwd=place, check=True)
    for page in (place / "site").glob("*.html"):
        page.write_text(unbroken(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
