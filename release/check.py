"""Install a wheel as its users do, and run README's commands and snippets as written.

    python release/check.py dist/streamtron-0.1.0-py3-none-any.whl [PYTHON ...]

Every PYTHON gets a fresh environment, in which nothing is compiled: all packages are wheels, and
no compiler is on the path. Prints the size of each.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    """The fenced blocks of README in a language."""
    text = README.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def check(wheel: Path, python: str, place: Path) -> None:
    """Install the wheel for one Python, and run all of README."""
    environment = {**os.environ, "PATH": str(place / "env" / "bin"), "CC": "no-compiler"}
    environment.pop("PYTHONPATH", None)

    def run(*words: str) -> None:
        program = shutil.which(words[0], path=environment["PATH"]) or words[0]
        subprocess.run([program, *words[1:]], cwd=place, env=environment, check=True)

    subprocess.run([python, "-m", "venv", place / "env"], check=True)
    run("pip", "install", "--quiet", "--only-binary", ":all:", str(wheel))
    for line in "".join(blocks("sh")).replace("\\\n", "").splitlines():
        run(*shlex.split(line))
    for snippet in blocks("python"):
        run("python", "-c", snippet)
    run("python", "-m", "streamtron", "--version")
    files = [path for path in (place / "env").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    packages = len([*(place / "env").glob("lib/python*/site-packages/*.dist-info")])
    print(f"{python}: README runs; {size:,.0f} MB, {packages} packages, pip among them")


def main() -> None:
    """Check the wheel with every Python that is named, by default this one."""
    wheel, *pythons = sys.argv[1:]
    for python in pythons or [sys.executable]:
        with tempfile.TemporaryDirectory(prefix="streamtron-release-") as directory:
            check(Path(wheel).resolve(), python, Path(directory))


if __name__ == "__main__":
    main()
