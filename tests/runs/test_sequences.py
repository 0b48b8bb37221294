"""Whatever is done to a run, one change after another: its bounds hold the optimum of the rows that
are there, which another solver finds from the rows alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import streamtron
from streamtron.runs.certify import certify
from streamtron.runs.finished_run import inputs_of_run
from streamtron.runs.outcome import Outcome
from tests.helpers.optimum import least_primal

SHARDS, ROWS = 7, 40
CHANGES = 8


class Story:
    """A run, and what is done to it; what is drawn depends on the seed alone.

    ``there`` are the shards of the run, with the numbers of the rows that it has of each; some of
    them may be ``away``, so that they cannot be read.
    """

    def __init__(self, place: Path, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.place, self.model = place, place / "m"
        self.rows: dict[Path, NDArray[np.float64]] = {}
        self.labels: dict[Path, NDArray[np.float64]] = {}
        self.there: dict[Path, NDArray[np.int64]] = {}
        self.away: set[Path] = set()
        self.told: list[str] = []
        truth = self.rng.normal(size=3 * SHARDS + 9)
        for number in range(SHARDS):
            rows = np.round(self.rng.normal(size=(ROWS, len(truth))), 2).astype(np.float32)
            rows[self.rng.random(rows.shape) < 0.7] = 0.0
            rows[:, 9 + 3 * number :] = 0.0  # later shards have columns that no earlier one has
            noise = self.rng.normal(size=ROWS)
            self.write(place / f"{number}.svm", rows, np.sign(rows @ truth + noise))
        self.settings = streamtron.Settings(
            C=float(self.rng.choice([0.1, 2.0, 30.0])),
            rho=float(self.rng.choice([0.0, 1.0])),
            active_set=int(self.rng.choice([10**9, 6_000])),
            order=str(self.rng.choice(["random", "sequential"])),
            index_base=0,
            max_epochs=1000,
        )

    def write(self, path: Path, rows: NDArray[Any], labels: NDArray[Any]) -> None:
        """As text."""
        lines = [
            " ".join([f"{label:g}", *(f"{k}:{row[k]:g}" for k in np.flatnonzero(row))])
            for row, label in zip(rows, labels, strict=True)
        ]
        path.write_text("\n".join(lines) + "\n")
        self.rows[path], self.labels[path] = rows.astype(np.float64), labels

    def some(self, paths: Any) -> list[Path]:
        """One or two of them, if there are any."""
        drawn = self.rng.permutation(np.array(sorted(paths), dtype=object))
        return list(drawn[: self.rng.integers(1, 3)])

    # --- what can be done ---

    def fit(self) -> Outcome:
        shards = self.some(self.rows)
        self.there = {shard: np.arange(ROWS) for shard in shards}
        return self.fitted(overwrite=True)

    def fitted(self, **how: Any) -> Outcome:
        machine = streamtron.Machine()
        shards = list(self.there)
        return streamtron.run(shards, self.settings, model=self.model, machine=machine, **how)

    def update(self) -> Outcome | None:
        new = self.some(self.rows.keys() - self.there.keys())
        if self.away or not new:
            return None
        self.there |= {shard: np.arange(len(self.rows[shard])) for shard in new}
        return streamtron.update(self.model, new, tol=self.tolerance())

    def forget(self) -> Outcome | None:
        gone = {*self.some(self.there), *self.away}
        if len(self.there) <= len(gone):
            return None
        outcome = streamtron.forget(self.model, sorted(gone), tol=self.tolerance())
        for shard in gone:
            del self.there[shard]
        self.away_are_back()
        return outcome

    def forget_rows(self) -> Outcome | None:
        if self.away:
            return None
        lines = ["shard,row"]
        for shard in self.some(self.there):
            left = self.there[shard]
            gone = self.rng.choice(left, size=min(len(left) - 9, 5), replace=False)
            self.there[shard] = np.setdiff1d(left, gone)
            lines += [f"{shard},{row}" for row in gone]
        (self.place / "list").write_text("\n".join(lines) + "\n")
        return streamtron.forget(self.model, rows=self.place / "list", tol=self.tolerance())

    def replace(self) -> Outcome | None:
        if self.away or len(self.there) < 2:
            return None
        [shard, *_] = self.some(self.there)
        left = self.there.pop(shard)[3:]
        rows, labels = self.rows[shard][left], self.labels[shard][left]
        if self.rng.random() < 0.5 and self.settings.random:  # the cache has the rows as they were
            new = shard
        else:
            new = self.place / f"{shard.stem}x.svm"
            del self.rows[shard]
        self.write(new, rows, labels)
        self.there[new] = np.arange(len(left))
        streamtron.forget(self.model, shard, tol=self.tolerance())
        return streamtron.update(self.model, new, tol=self.tolerance())

    def resume(self) -> Outcome | None:
        if self.away:
            return None
        self.tolerance()
        order = [Path(shard.path) for shard in _manifest(self.model)]
        self.there = {shard: self.there[shard] for shard in order}
        return self.fitted(resume=True)

    def go_away(self) -> None:
        for shard in self.some(self.there.keys() - self.away):
            shard.rename(self.hidden(shard))
            self.away.add(shard)

    def away_are_back(self) -> None:
        for shard in self.away:
            self.hidden(shard).rename(shard)
        self.away.clear()

    def hidden(self, shard: Path) -> Path:
        return shard.with_suffix(".away")

    def tolerance(self) -> float:
        """Another one."""
        self.settings = self.settings.but(tol=float(self.rng.choice([0.05, 1e-2, 1e-3])))
        return self.settings.tol

    # --- what must hold ---

    def step(self) -> None:
        ways: list[Callable[[], Outcome | None]] = [
            self.update, self.update, self.forget, self.forget_rows,
            self.replace, self.resume, self.go_away, self.away_are_back,
        ]  # fmt: skip
        way = ways[self.rng.integers(len(ways))]
        self.told.append(way.__name__)
        outcome = way()
        if outcome is not None:
            self.check(outcome)

    def check(self, outcome: Outcome) -> None:
        """The report's bounds, and those that ``certify RUN`` proves, hold the optimum."""
        certificate = outcome.report["certificate"]
        assert certificate["rows_scanned"] == sum(map(len, self.there.values()))
        least = self.least_primal(sorted(self.there))
        assert 0.5 / certificate["primal_margin"] ** 2 >= least * (1 - 1e-7)
        assert 0.5 / certificate["upper_bound"] ** 2 <= least * (1 + 1e-7)
        self.near(certificate["relative_duality_gap"])
        if not self.away:
            self.prove()

    def prove(self) -> None:
        _, _, shards, witness = inputs_of_run(str(self.model))
        run = Path(f"{self.model}.run")
        model = streamtron.load(self.model)
        proof = certify(model, shards, witness=witness, run=run, accept_exclusions=True)
        certificate, least = proof.certificate, self.least_primal(sorted(self.there))
        assert certificate.upper_bound is not None
        assert certificate.drift is not None
        assert certificate.drift < 1e-9
        assert certificate.rows_scanned == sum(map(len, self.there.values()))
        self.near(certificate.relative_duality_gap)
        assert 0.5 / certificate.primal_margin**2 >= least * (1 - 1e-7)
        assert 0.5 / certificate.upper_bound**2 <= least * (1 + 1e-7)

    def near(self, gap: float) -> None:
        """The gap is what was asked for, but for how the model's weights were rounded."""
        assert gap <= 1.01 * self.settings.tol + 1e-9

    def least_primal(self, shards: list[Path]) -> float:
        """LIBLINEAR's."""
        rows = np.vstack([self.rows[shard][self.there[shard]] for shard in shards])
        labels = np.concatenate([self.labels[shard][self.there[shard]] for shard in shards])
        return least_primal(rows, labels, self.settings.C or 1.0, self.settings.rho)


def _manifest(model: Path) -> Any:
    return streamtron.data.Manifest.load(f"{model}.run/manifest.json").shards


@pytest.mark.parametrize(
    "seed",
    [
        *range(4),  # 3: a changed run goes on from weights that are worse than its best
        15,  # the weights have columns that no row has any more, while training goes on
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 150) if seed != 15),
    ],
)
def test_after_any_sequence_of_changes_the_bounds_hold_the_optimum_of_the_rows_that_are_there(
    seed: int, tmp_path: Path
) -> None:
    story = Story(tmp_path, seed)
    story.check(story.fit())
    for _ in range(CHANGES):
        story.step()
    story.away_are_back()
    last = story.resume()
    assert last is not None
    story.check(last)


@pytest.mark.parametrize("labels", [(1, 2), (1, 2, 3)], ids=["two classes", "many classes"])
def test_a_run_whose_first_rows_were_forgotten_is_taken_up_with_every_class_as_it_was(
    labels: tuple[int, ...], tmp_path: Path
) -> None:
    """The labels of the rows that are left come in another order."""
    shards = [tmp_path / "0.svm", tmp_path / "1.svm"]
    for shard, own in zip(shards, (labels, labels[::-1]), strict=True):
        lines = [f"{label} {label}:1 {9 + k}:0.5\n" for k in range(20) for label in own]
        shard.write_text("".join(lines))
    held = streamtron.Settings(tol=0.1, index_base=0, multiclass=len(labels) > 2)
    model, machine = tmp_path / "m", streamtron.Machine()
    streamtron.run(shards, held, model=model, machine=machine)
    streamtron.forget(model, shards[0])
    finer = held.but(tol=1e-6)
    again = streamtron.run(shards[1:], finer, model=model, machine=machine, resume=True)
    fresh = streamtron.run(shards[1:], finer, machine=machine)
    assert again.model.classes == fresh.model.classes
    assert again.model.weights == pytest.approx(fresh.model.weights, abs=1e-2)
    assert streamtron.evaluate(again.model, shards[1]).accuracy == 1.0
