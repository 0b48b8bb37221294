"""Documents from a CSV file to a page, to probabilities, and out of the project as raw text."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import onnxruntime
import skops.io

import streamtron
from tests.helpers.processes import here

PACKAGES = ("asyncio", "email", "importlib", "multiprocessing", "unittest", "xml")
"""Of Python itself: classes of documents that are on every machine."""

LINES, FILES = 40, 12


def write(place: Path) -> list[str]:
    """Write pieces of sources with the package they are of, every fifth into a file of its own,
    whose texts are returned."""
    root = Path(csv.__file__).parent
    files = [
        (kind, path) for kind in PACKAGES for path in sorted((root / kind).rglob("*.py"))[:FILES]
    ]
    pieces = []
    for kind, path in files:
        lines = path.read_text(encoding="utf-8").splitlines()
        pieces += [("\n".join(lines[k : k + LINES]), kind) for k in range(0, len(lines), LINES)]
    for name, rows in (("new", pieces[::5]), ("docs", [*pieces[1::5], *pieces[2::5]])):
        with (place / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(
                [("id", "text", "kind"), *((k, *r) for k, r in enumerate(rows))]
            )
    return [text for text, _ in pieces[::5]]


def test_documents_become_a_page_probabilities_and_models_of_raw_text_that_agree(
    tmp_path: Path,
) -> None:
    texts = write(tmp_path)
    words = ("--text", "text,tfidf,ngrams=1-2", "--label", "kind", "--model", "m")
    done = here(tmp_path, "fit", "docs.csv", *words, "--valid", "20%", "--calibrate", "10%")
    assert done.returncode == 0, done.stderr
    assert "of the best possible training objective, proven" in done.stdout
    found = json.loads(here(tmp_path, "evaluate", "m", "new.csv", "--json").stdout)
    assert found["accuracy"] > 0.7
    here(tmp_path, "report", "m", "--valid", "new.csv", "-o", "page.html")
    assert "held-out rows it gets" in (tmp_path / "page.html").read_text(encoding="utf-8")
    here(tmp_path, "predict", "m", "new.csv", "--proba", "--keep", "id", "-o", "p.csv")
    with (tmp_path / "p.csv").open(encoding="utf-8", newline="") as file:
        written = [*csv.DictReader(file)]
    model = streamtron.load(tmp_path / "m")
    probabilities, decisions = model.predict_proba(texts), model.decision_function(texts)
    names = [f"probability {kind}" for kind in PACKAGES]
    assert [int(row["id"]) for row in written] == [*range(len(texts))]
    assert np.allclose([[float(row[n]) for n in names] for row in written], probabilities)
    for kind in ("onnx", "sklearn"):
        assert here(tmp_path, "export", "m", "--format", kind, "-o", kind).returncode == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx"))
    labels, scores = session.run(["label", "scores"], {"text": np.array(texts, object)})
    assert np.allclose(scores, decisions, rtol=1e-9, atol=1e-12)
    assert [*labels] == [*model.predict(texts)]
    trusted = skops.io.get_untrusted_types(file=tmp_path / "sklearn")
    pipeline = skops.io.load(tmp_path / "sklearn", trusted=trusted)
    assert np.allclose(pipeline.predict_proba(texts), probabilities, atol=1e-6)
