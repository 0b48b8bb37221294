"""Several parts of few rows, alike or not, separable or not: proven as fast as one part proves
them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamtron.core.config import Machine, Settings
from streamtron.runs import fit

READINGS = 4
"""Those of a fit at most where memory holds all rows; two are usual."""

Table = tuple[NDArray[np.float64], NDArray[Any]]


def shards_of(directory: Path, rows: Table, ends: Sequence[int]) -> list[Path]:
    """Write the rows to shards that end before these rows."""
    X, labels = rows
    lines = [
        " ".join([str(label), *(f"{j}:{value:.6g}" for j, value in enumerate(row, 1))]) + "\n"
        for row, label in zip(X, labels, strict=True)
    ]
    directory.mkdir()
    starts = [0, *ends]
    for number, (start, end) in enumerate(zip(starts, [*ends, len(lines)], strict=True)):
        (directory / f"{number}.svm").write_text("".join(lines[start:end]))
    return sorted(directory.glob("*.svm"))


def report(shards: list[Path], parts: int | None, **names: Any) -> dict[str, Any]:
    settings = Settings.from_dict({"tol": 1e-3, "max_epochs": 20, "parts": parts} | names)
    return fit.run(shards, settings, machine=Machine(threads=1)).report


def agree(found: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the bounds of two certificates may hold the same best margin."""
    least = max(found["primal_margin"], other["primal_margin"])
    return bool(least <= min(found["upper_bound"], other["upper_bound"]) * (1 + 1e-12))


def proven_as_by_one_part(shards: list[Path], **names: Any) -> None:
    found, alone = report(shards, len(shards), **names), report(shards, None, **names)
    assert found["stop_reason"] == alone["stop_reason"] == "certified"
    assert found["readings"] <= READINGS
    assert agree(found["certificate"], alone["certificate"])


def separable(seed: int) -> Table:
    """20 to 1,000 rows, 2 to 50 columns, two classes that some margin parts."""
    rng = np.random.default_rng(seed)
    rows = int(np.exp(rng.uniform(np.log(20), np.log(1000))))
    X = rng.standard_normal((rows, int(np.exp(rng.uniform(np.log(2), np.log(50))))))
    w = rng.standard_normal(X.shape[1])
    w /= np.linalg.norm(w)
    labels = np.where(X @ w > 0.0, 1, -1)
    return X + np.outer(10.0 ** rng.uniform(-3.0, 0.0) * labels, w), labels


def test_four_separable_rows_in_two_parts_are_proven(tmp_path: Path) -> None:
    X = np.array([[0.1, -0.1], [-0.5, 0.4], [0.6, 0.1], [1.3, 0.9]])
    proven_as_by_one_part(shards_of(tmp_path / "s", (X, np.array([1, -1, 1, 1])), [2]), C=1e4)


@pytest.mark.parametrize("seed", range(15))
def test_separable_rows_are_proven_in_any_parts_at_any_C(seed: int, tmp_path: Path) -> None:
    rows, parts = separable(seed), 2 + seed % 3
    if seed % 2:  # a part may have one label only
        order = np.argsort(rows[1], kind="stable")
        rows = rows[0][order], rows[1][order]
    ends = [len(rows[1]) * k // parts for k in range(1, parts)]
    proven_as_by_one_part(shards_of(tmp_path / "s", rows, ends), C=10.0 ** (2 + seed // 3 % 5))


@pytest.mark.parametrize("C", [1e-3, 1.0, 1e4])
def test_parts_of_one_row_each_are_proven(C: float, tmp_path: Path) -> None:
    X, labels = separable(7)
    labels[:2] = 1, -1
    shards = shards_of(tmp_path / "s", (X[:6], labels[:6]), range(1, 6))
    proven_as_by_one_part(shards, C=C)


def test_rows_a_million_times_as_heavy_as_others_are_proven(tmp_path: Path) -> None:
    X, signs = separable(5)
    labels = np.array([f"{sign}:{10 ** (6 * (k % 3 == 0))}" for k, sign in enumerate(signs)])
    shards = shards_of(tmp_path / "s", (X, labels), [len(X) // 3, len(X) // 2])
    proven_as_by_one_part(shards, weights_in_label=True)


@pytest.mark.parametrize(
    ("loss", "at_0", "size", "active_set"),
    [
        ("squared_hinge", 1.0, 1e8, 100), ("log_loss", np.log(2.0), 1e8, 200),
        ("hinge", 1.0, 1e12, 200),
    ],
)  # fmt: skip
def test_equal_rows_of_both_labels_and_any_length_have_their_optimum_at_0_between_the_bounds(
    loss: str, at_0: float, size: float, active_set: int, tmp_path: Path
) -> None:
    rows = np.full((6, 3), size) * [1.0, 2.0, 3.0], np.array([1, 1, -1, -1, 1, -1])
    shards = shards_of(tmp_path / "s", rows, [3])
    names = {"loss": loss, "active_set": active_set, "rho": 0.0, "max_epochs": 3}
    proven = report(shards, 2, **names)["certificate"]
    assert (proven["dual_objective"] or 0.0) <= 6.0 * at_0 * (1 + 1e-15)
    assert 6.0 * at_0 * (1 - 1e-15) <= proven["primal_objective"]


def test_separable_classes_are_proven_in_parts(tmp_path: Path) -> None:
    X = np.random.default_rng(0).standard_normal((90, 4))
    labels = np.repeat(["a", "b", "c"], 30)  # a class a part
    X[np.arange(90), np.arange(90) // 30] += 8.0
    shards = shards_of(tmp_path / "s", (X, labels), [30, 60])
    found, alone = (
        report(shards, parts, C=1e5, multiclass=True)["learners"] for parts in (3, None)
    )
    assert len(found) == len(alone) == 3
    for one, other in zip(found, alone, strict=True):
        assert one["certificate"]["relative_duality_gap"] <= 1e-3
        assert agree(one["certificate"], other["certificate"])


@pytest.mark.parametrize("active_set", [0, 50, 1000])
def test_memory_for_less_than_a_row_a_part_ends_a_run_with_true_bounds(
    active_set: int, tmp_path: Path
) -> None:
    X = np.array([[0.1, -0.1], [-0.5, 0.4], [0.6, 0.1], [1.3, 0.9]])
    shards = shards_of(tmp_path / "s", (X, np.array([1, -1, 1, 1])), [2])
    found = report(shards, 2, active_set=active_set)
    assert found["stop_reason"] in ("certified", "epoch limit")
    assert agree(found["certificate"], report(shards, None)["certificate"])
