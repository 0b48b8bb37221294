"""From raw documents to a model that reads documents, its accuracy and its proof.

    python pipelines/raw_text.py DOCUMENTS HELD_OUT --text COLUMN --label COLUMN --to OUT
    python pipelines/raw_text.py --tiny --to OUT

DOCUMENTS and HELD_OUT are JSON lines, CSV, Parquet or Arrow files, or directories of them. With
``--tiny`` they are docstrings and sources of Python's standard library, and the model tells one
from the other.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer

import streamtron


def standard_library() -> Iterator[tuple[str, str]]:
    """Yield docstrings and sources of functions and classes, each with its kind."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-j]*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
                yield ast.get_docstring(node) or "", "docstring"
                yield ast.unparse(node.body[-1])[:1000], "source"


def write_tiny(place: Path) -> tuple[Path, Path]:
    """Write documents, and every fifth of them as held out, as JSON lines."""
    place.mkdir(parents=True, exist_ok=True)
    documents, held_out = place / "documents.jsonl", place / "held-out.jsonl"
    with documents.open("w", encoding="utf-8") as most, held_out.open("w", encoding="utf-8") as few:
        for number, (text, kind) in enumerate(standard_library()):
            file = most if number // 2 % 5 else few  # a docstring stays beside its source
            file.write(json.dumps({"text": text, "kind": kind}) + "\n")
    return documents, held_out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("documents", nargs="?", type=Path)
    parser.add_argument("held_out", nargs="?", type=Path)
    parser.add_argument("--text", default="text")
    parser.add_argument("--label", default="kind")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.tiny:
        given.documents, given.held_out = write_tiny(given.to)
    elif given.held_out is None:
        parser.error("give DOCUMENTS and HELD_OUT, or --tiny")
    try:
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        model = streamtron.fit(
            given.documents, transformer=words, text=given.text, label=given.label, tol=0.01
        )
        model.save(given.to / "model")
        print(f"{model.certificate['rows_scanned']:,} documents, {model.columns:,} features")
        measured = streamtron.evaluate(model, given.held_out)
        print(f"accuracy on held-out documents: {measured.accuracy:.4f}")
        proof = streamtron.certify(model, given.documents).certificate
        print(f"relative duality gap, proven from the documents: {proof.relative_duality_gap:.2e}")
    except streamtron.errors.StreamtronError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
