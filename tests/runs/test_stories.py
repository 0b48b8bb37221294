"""Whatever is done to a run, one change after another, killed, moved, copied and called again: its
bounds hold the optimum of the rows that are there, which another solver finds from the rows alone,
and no byte of the others is left."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

import streamtron
from streamtron import certify
from streamtron.runs.finished_run import locate
from streamtron.runs.report import Outcome
from streamtron.runs.store import changing, is_run
from tests.helpers.examples import slow_but
from tests.helpers.optimum import holds, least_primal
from tests.helpers.runs import (
    WAS_KILLED,
    content,
    forgotten_of,
    kept,
    killed_at_call,
    manifest_of,
    report_of,
    state,
)
from tests.helpers.user_rows import list_rows, write_rows

SHARDS, ROWS, USERS = 7, 40, 12
CHANGES = 9
CALLS = 90
"""A change is killed before one of so many first system calls, or not at all."""

Way = Callable[[], Outcome | None]


class Story:
    """A run, and what is done to it; what is drawn depends on the seed alone.

    ``rows``, ``labels``, ``users`` and ``weights`` are of every shard, by its name; ``there`` are
    the shards of the run, with the numbers of the rows that it has of each; some may be ``away``,
    so that they cannot be read. ``absent`` has the rows of others that were not forgotten. ``last``
    is the change that can be called again. ``kinds`` are those of runs.
    """

    def __init__(self, place: Path, seed: int, **kinds: Any) -> None:
        self.rng = np.random.default_rng(seed)
        self.place = place / "0"
        self.place.mkdir()
        self.kind = {"suffix": "svm", "classes": 2, "weights": (1.0,), **kinds}
        self.rows: dict[str, NDArray[np.float32]] = {}
        self.labels: dict[str, NDArray[np.float64]] = {}
        self.users: dict[str, NDArray[np.str_]] = {}
        self.weights: dict[str, NDArray[np.float64]] = {}
        self.there: dict[str, NDArray[np.int64]] = {}
        self.away: set[str] = set()
        self.absent: dict[str, NDArray[np.int64]] = {}
        self.last: Way | None = None
        truth = self.rng.normal(size=3 * SHARDS + 9)
        for number in range(SHARDS):
            rows = np.round(self.rng.normal(size=(ROWS, len(truth))), 4).astype(np.float32)
            rows[self.rng.random(rows.shape) < 0.6] = 0.0
            rows[:, 9 + 3 * number :] = 0.0  # later shards have columns that no earlier one has
            scores = rows @ truth + self.rng.normal(size=ROWS)
            labels = np.sign(scores)
            if self.kind["classes"] == 3:
                labels = np.digitize(scores, [-1.0, 1.0]).astype(float)
            users = np.array([f"user-{k}" for k in self.rng.integers(USERS, size=ROWS)])
            weights = np.resize(self.kind["weights"], ROWS)
            self.write(f"shard-{number}.{self.kind['suffix']}", rows, labels, users, weights)
        settings = {
            "C": float(self.rng.choice([0.1, 2.0, 30.0])),
            "rho": float(self.rng.choice([0.0, 1.0])),
            "active_set": int(self.rng.choice([10**9, 6_000])),
            "multiclass": self.kind["classes"] == 3,
            "max_epochs": 1000,
            "index_base": 1,
        }
        self.settings = streamtron.Settings.from_dict(settings | kinds.get("settings", {}))

    @property
    def model(self) -> Path:
        return self.place / "m"

    def write(self, name: str, rows: Any, labels: Any, users: Any, weights: Any) -> None:
        written = [f"{y:g}:{w:g}" for y, w in zip(labels, weights, strict=True)]
        given = written if len(self.kind["weights"]) > 1 else labels
        write_rows(self.place / name, sparse.csr_array(rows), given, users.tolist())
        self.rows[name], self.labels[name], self.users[name] = rows, labels, users
        self.weights[name] = weights

    def paths(self, names: Iterable[str]) -> list[str]:
        return [str(self.place / name) for name in names]

    def some(self, names: Iterable[str], least: int = 1) -> list[str]:
        """One or two of them, if there are any."""
        drawn = self.rng.permutation(np.array(sorted(names), dtype=object))
        return list(drawn[: self.rng.integers(least, 3)])

    def tolerance(self) -> float:
        """Another one."""
        self.settings = self.settings.but(tol=float(self.rng.choice([0.05, 1e-2, 1e-3])))
        return self.settings.tol

    # --- what can be done ---

    def fit(self) -> Outcome:
        names = self.some(self.rows, least=2 if self.settings.parts else 1)
        self.there, self.absent = self.whole(names), {}
        return self.fitted(overwrite=True)

    def whole(self, names: Iterable[str]) -> dict[str, NDArray[np.int64]]:
        return {name: np.arange(len(self.rows[name])) for name in names}

    def coming(self, names: Iterable[str], again: bool = False) -> dict[str, NDArray[np.int64]]:
        """The rows with which shards come in, of those of which any were not forgotten."""
        kept = {name: rows for name, rows in self.absent.items() if name in names and not again}
        coming = self.whole(names) | kept
        coming = {name: rows for name, rows in coming.items() if len(rows)}
        self.absent = {name: rows for name, rows in self.absent.items() if name not in coming}
        return coming

    def fitted(self, model: str = "m", **how: Any) -> Outcome:
        machine, path, self.last = streamtron.Machine(), self.place / model, None
        settings = self.settings
        if how.get("resume") and is_run(f"{path}.run"):
            settings = settings.but(parts=None)  # the run has its own
        return streamtron.run(self.paths(self.there), settings, model=path, machine=machine, **how)

    def fit_killed(self) -> Outcome | None:
        """Anew, killed and taken up: to the bytes of the run that nothing has killed."""
        if self.away or any(len(rows) < len(self.rows[n]) for n, rows in self.there.items()):
            return None
        if self.settings.parts and len(self.there) < 2:
            return None
        words = {k: v for k, v in self.settings.to_dict().items() if v is not None}
        words |= {"first": self.paths(self.there), "model": str(self.model)}
        shutil.rmtree(f"{self.model}.run")
        self.absent.clear()
        for how in ("overwrite", "resume"):
            number = int(self.rng.integers(CALLS // 2))
            code, _ = killed_at_call(number, "fit", self.model, words | {how: True})
            assert code in (0, WAS_KILLED)
        outcome = self.fitted(resume=True)
        self.fitted("fresh", overwrite=True)
        assert kept(self.place, "m") == kept(self.place, "fresh")
        return outcome

    def resume(self) -> Outcome | None:
        if self.away:
            return None
        self.tolerance()
        manifest = manifest_of(f"{self.model}.run")
        self.there = {shard.name: self.there[shard.name] for shard in manifest.shards}
        return self.fitted(resume=True)

    def update(self) -> Outcome | None:
        new = self.some(self.rows.keys() - self.there.keys())
        if self.away or not new:
            return None
        old, again = self.some(self.there, least=0), bool(self.rng.random() < 0.5)
        coming = self.coming(new, again)
        self.there |= coming
        outcome = self.changed("update", shards=self.paths([*old, *new]), again=again)
        assert {*outcome.report["already_in_run"]} >= {*old}
        assert {*outcome.report["stays_forgotten"]} == {*new} - {*coming}
        return outcome

    def mirror(self) -> Outcome | None:
        """Some shards stay, some come in, all others go out, and those away with them."""
        names = sorted({*self.some(self.there), *self.some(self.rows)} - self.away)
        new = self.coming([name for name in names if name not in self.there])
        there = {name: rows for name, rows in self.there.items() if name in names} | new
        if not there or not self.keeps_all_classes(there):
            return None
        gone = {n: rows for n, rows in self.there.items() if n not in there}
        self.absent |= {n: rows for n, rows in gone.items() if len(rows) < len(self.rows[n])}
        self.there = there
        outcome = self.changed("update", shards=self.paths(names), mirror=True)
        assert {*outcome.report["forgotten"]} in ({*gone}, {*()})
        self.away_are_back()
        return outcome

    def forget(self) -> Outcome | None:
        gone = sorted({*self.some(self.there), *self.away})
        if len(self.there) <= len(gone) or not self.can_lose(dict.fromkeys(gone, ())):
            return None
        rows = {name: len(self.there.pop(name)) for name in gone}
        self.absent |= dict.fromkeys(gone, np.zeros(0, np.int64))
        given = gone if self.rng.random() < 0.5 else self.paths(gone)
        outcome = self.changed("forget", shards=given)
        assert [*outcome.report["forgotten"].values()] in ([*rows.values()], [])
        self.away_are_back()
        return outcome

    def forget_rows(self) -> Outcome | None:
        listed = {}
        for name in self.some(self.there):
            left = self.there[name]
            gone = self.rng.choice(left, size=max(min(len(left) - 9, 5), 0), replace=False)
            listed[name] = np.setdiff1d(left, gone)
        if self.away or not self.can_lose(listed):
            return None
        lists = {name: sorted({*self.there[name]} - {*left}) for name, left in listed.items()}
        if not any(lists.values()):
            return None
        self.there |= listed
        return self.changed("forget", rows=str(list_rows(self.place / "list", lists)))

    def forget_user(self) -> Outcome | None:
        """By value; of text, which has no such column, nothing."""
        if self.away or self.kind["suffix"] == "svm":
            return None
        user = str(self.rng.choice([f"user-{k}" for k in range(USERS)]))
        left = {n: rows[self.users[n][rows] != user] for n, rows in self.there.items()}
        if not self.can_lose(left):
            return None
        self.there = left
        return self.changed("forget", key="user", values=[user])

    def replace(self) -> Outcome | None:
        """A shard is written anew without its first rows, in its place or beside it."""
        if self.away or len(self.there) < 2:
            return None
        [name, *_] = self.some(self.there)
        if not self.can_lose({name: ()}) or len(self.there[name]) < 9:
            return None
        left = self.there.pop(name)[3:]
        new = name
        if self.rng.random() < 0.5:
            new = name.replace(".", "x.")
        content = [of[name][left] for of in (self.rows, self.labels, self.users, self.weights)]
        del self.rows[name]
        self.absent.pop(name, None)
        self.write(new, *content)
        self.there[new] = np.arange(len(left))
        streamtron.forget(self.model, self.place / name, tol=self.tolerance())
        return self.changed("update", shards=self.paths([new]))

    def changed(self, change: str, **words: Any) -> Outcome:
        """Make a change, perhaps killed first; the run is then as before or as after."""
        words["tol"] = self.tolerance()
        before = killed = None
        if self.rng.random() < 0.4:
            before = state(self.place)
            code, _ = killed_at_call(int(self.rng.integers(CALLS)), change, self.model, words)
            assert code in (0, WAS_KILLED)
            with changing(locate(self.model).directory, self.model):
                pass  # who opens it next puts a whole change in place
            killed = state(self.place)
        self.last = lambda: getattr(streamtron, change)(self.model, **words)
        outcome = self.last()
        assert killed in (None, before, state(self.place))
        self.certificate = outcome.report["certificate"]
        assert len([*Path(f"{self.model}.run").glob("state-*")]) == 1
        return outcome

    def call_again(self) -> None:
        if self.last is None or self.away:
            return
        before = content(Path(f"{self.model}.run"), self.model)
        outcome = self.last()
        assert outcome.report["readings"] == 0.0
        assert content(Path(f"{self.model}.run"), self.model) == before
        assert outcome.report["certificate"] == self.certificate

    def move(self) -> None:
        """Run, model and shards, together."""
        if not self.away:
            self.place = self.place.rename(self.place.parent / str(int(self.place.name) + 1))
            self.last = None

    def copy(self) -> None:
        """A change of a copy leaves the original as it was."""
        before = content(Path(f"{self.model}.run"), self.model)
        other = self.place.parent / "copy"
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(self.place, other, copy_function=shutil.copy2)
        for name in self.some(self.rows.keys() - self.there.keys()):
            streamtron.update(other / "m", self.place / name) if not self.away else None
        assert content(Path(f"{self.model}.run"), self.model) == before

    def lose_cache(self) -> None:
        files = sorted(Path(f"{self.model}.run", "cache").glob("*.cache"))
        if files and self.rng.random() < 0.5:
            damaged = bytearray(files[0].read_bytes())
            damaged[-60] ^= 1  # in the footer
            files[0].write_bytes(damaged)
        else:
            shutil.rmtree(f"{self.model}.run/cache", ignore_errors=True)

    def go_away(self) -> None:
        for name in self.some(self.there.keys() - self.away):
            (self.place / name).rename(self.place / f"{name}.away")
            self.away.add(name)
            self.last = None

    def away_are_back(self) -> None:
        for name in self.away:
            (self.place / f"{name}.away").rename(self.place / name)
        self.away.clear()

    def can_lose(self, left: Any) -> bool:
        """Whether every class keeps rows if the run has only these of some shards."""
        own_rows = {name: np.array(own, np.int64) for name, own in left.items()}
        return self.keeps_all_classes({**self.there, **own_rows})

    def keeps_all_classes(self, rows: dict[str, NDArray[np.int64]]) -> bool:
        labels = np.concatenate([self.labels[name][own] for name, own in rows.items()])
        return len(np.unique(labels)) == self.kind["classes"]

    # --- what must hold ---

    def step(self) -> None:
        ways: list[Callable[[], Outcome | None]] = [
            self.update,
            self.mirror,
            self.forget,
            self.forget_rows,
            self.forget_user,
            self.replace,
            self.resume,
            self.fit_killed,
            self.go_away,
            self.away_are_back,
            self.move,
            self.copy,
            self.lose_cache,
            self.call_again,
        ]
        outcome = ways[self.rng.integers(len(ways))]()
        if outcome is not None:
            self.check(outcome)

    def check(self, outcome: Outcome) -> None:
        """The report's bounds, and those that ``certify RUN`` proves, hold the optimum."""
        self.check_bounds(outcome.report)
        self.check_files(outcome)
        if self.away:
            return
        self.check_bounds(certify(self.model).to_dict())

    def check_bounds(self, report: Any) -> None:
        names = sorted(self.there)
        rows = np.vstack([self.rows[name][self.there[name]] for name in names]).astype(float)
        labels, weights = (
            np.concatenate([of[name][self.there[name]] for name in names])
            for of in (self.labels, self.weights)
        )
        for learner in report.get("learners", [report]):
            own, weight = labels, self.settings.class_weight
            if "label" in learner:
                own = labels == learner["label"]
                weight = weight and {True: len(rows) / (3 * own.sum())}  # the rest weighs 1
            s, certificate = self.settings, learner["certificate"]
            how = {"loss": s.loss, "weights": weights}
            least = least_primal(rows, own, s.C or 1.0, s.rho, weight, **how)
            assert certificate["rows_scanned"] == len(rows)
            assert holds(learner, least)
            if "radius" in learner and not s.class_weight and weights.max() == 1.0:
                lengths = (rows**2).sum(axis=1) + s.rho**2 + (0.5 / (s.C or 1.0))
                assert learner["radius"] ** 2 == pytest.approx(lengths.max(), rel=1e-12)
            # the gap is what was asked for, but for how the model's weights were rounded
            assert certificate["relative_duality_gap"] <= 1.01 * self.settings.tol + 1e-9

    def check_files(self, outcome: Outcome) -> None:
        """Nothing of rows that are not there, and the report of those that are."""
        run = Path(f"{self.model}.run")
        written = [path.read_bytes() for path in run.rglob("*") if path.is_file()]
        traces = self.bytes_of(absent=True) - self.bytes_of()
        traces |= {name.encode() for name in self.rows if name not in self.there}
        assert not any(trace in file for trace in traces for file in written)
        occurs = np.any([self.rows[n][rows].any(axis=0) for n, rows in self.there.items()], axis=0)
        weights = outcome.model.weights.reshape(-1, outcome.model.columns)
        assert outcome.model.columns == 1 + np.flatnonzero(occurs).max()
        assert not weights[:, ~occurs[: weights.shape[1]]].any()
        gone = sum(len(self.rows[name]) - len(rows) for name, rows in self.there.items())
        report = report_of(run)
        assert report["rows"] == sum(map(len, self.there.values()))
        assert report.get("forgotten_rows", 0) == gone
        for learner in (report, *report.get("learners", ())):
            assert learner["certificate"]["rows_excluded"] == gone
        half_written = self.place.rglob(".streamtron-*")  # another process may use the cache
        assert {path.parent.name for path in half_written} <= {"cache"}
        assert not [*run.glob("model-*")]
        assert bool(forgotten_of(run)) == (gone > 0)

    def bytes_of(self, absent: bool = False) -> set[bytes]:
        """The values of each row of the run, or of the rows that it has not, as the cache has
        them."""
        found = set()
        for name, rows in self.rows.items():
            own = self.there.get(name, np.zeros(0, np.int64))
            chosen = np.setdiff1d(np.arange(len(rows)), own) if absent else own
            found |= {row[row != 0.0].tobytes() for row in rows[chosen]}
        return {values for values in found if len(values) >= 12}


PARTS = {"parts": 2}

KINDS: dict[str, dict[str, Any]] = {
    "text": {},
    "tables": {"suffix": "parquet", "settings": {"loss": "log_loss"}},
    "many classes": {"classes": 3, "suffix": "parquet", "settings": {"class_weight": "balanced"}},
    "parts": {"settings": PARTS},
    "balanced": {"settings": {"class_weight": "balanced", "loss": "hinge"}, "suffix": "parquet"},
    "many classes on parts": {
        "classes": 3,
        "settings": {**PARTS, "loss": "log_loss", "class_weight": "balanced"},
    },
    "softmax": {"classes": 3, "settings": {"loss": "softmax", "class_weight": "balanced"}},
    "row weights": {
        "weights": (0.1, 1.0, 5.0, 1.0),
        "settings": {"weights_in_label": True, "loss": "hinge"},
    },
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", slow_but(range(40), 0, 1))
def test_after_any_story_the_bounds_hold_the_optimum_of_the_rows_there_are(seed, kind, tmp_path):
    story = Story(tmp_path, 1000 * list(KINDS).index(kind) + seed, **KINDS[kind])
    story.check(story.fit())
    for _ in range(CHANGES):
        story.step()
    story.away_are_back()
    story.check(story.resume())
