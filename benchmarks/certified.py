"""streamtron to a certified gap, beside solvers that reach the same primal and certify nothing.

    python benchmarks/certified.py a9a.xz rcv1.xz --generate 200000 --C 0.5 50

For every data set and C: readings, nonzeros visited, seconds and peak memory to each tolerance,
and the seconds in which every rival's weights reach the same primal. See README.md here.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import measure
import ours
import peers
from data import add_data_arguments, data_sets, load, need_data, write_libsvm
from problem import Data, Problem

from streamtron.core.config import Settings
from streamtron.core.errors import StreamtronError
from streamtron.core.text import parse_size

ROUNDING = 1e-9
"""Relative: how far rounding may put an optimum outside of its bounds."""

REFERENCE = 1e-10
"""LIBLINEAR's -e for the optimum."""


@dataclass(frozen=True)
class RivalRun:
    """One run of a rival: with what setting, how long, and how far it came."""

    setting: float
    seconds: float
    passes: float
    primal: float


@dataclass
class Rival:
    """A rival's runs, one a setting."""

    peer: peers.Peer
    runs: list[RivalRun] = field(default_factory=list)

    def search(self, target: float, time_limit: float) -> None:
        """Try finer and finer settings until one reaches the target or ``time_limit`` is spent."""
        spent = 0.0
        for setting in self.peer.settings():
            run = self.peer.run(setting)
            primal = self.peer.primal(run.v)
            primal = primal if math.isfinite(primal) else math.inf
            self.runs.append(RivalRun(setting, run.seconds, run.passes, primal))
            spent += run.seconds
            if primal <= target or spent > time_limit:
                return

    def quickest(self, target: float) -> RivalRun | None:
        """Of the runs that reached the target."""
        reached = [run for run in self.runs if run.primal <= target]
        return min(reached, key=lambda run: run.seconds, default=None)

    @property
    def nearest(self) -> RivalRun:
        """The run of the least primal."""
        return min(self.runs, key=lambda run: run.primal)


# --- one data set, one C ---


@dataclass
class Case:
    """A data set at one C: what is run on it."""

    name: str
    paths: list[str]
    cache: str
    data: Data
    C: float
    options: argparse.Namespace

    def settings(self, tol: float) -> Settings:
        """streamtron's settings."""
        size = active_set(self.options.active_set, self.data)
        options = self.options
        return Settings(C=self.C, loss=options.loss, rho=options.rho, tol=tol, active_set=size)


def active_set(text: str, data: Data) -> int:
    """Bytes from a size, or from a part of the rows such as ``10%``."""
    if not text.endswith("%"):
        return int(parse_size(text))
    whole = 8 * data.nonzeros + 24 * len(data.labels)
    return int(float(text[:-1]) / 100 * whole)


def compare(case: Case) -> dict[str, Any]:
    """Everything about one case, as plain values."""
    options = case.options
    problem = Problem.of(case.data, case.C, options.rho, options.loss)
    measure.note(f"{case.name}, C = {case.C:g}: streamtron")
    fits = {tol: ours.fit(case.paths, case.cache, case.settings(tol)) for tol in options.tol}
    optimum = reference(problem)
    if optimum is not None:  # P at our weights, without our kernels, may be nearer to it
        optimum = min(optimum, *(problem.primal(fit.v) for fit in fits.values()))
    rivals = [Rival(peer) for peer in peers.rivals(problem, options.passes)]
    for rival in rivals:
        measure.note(f"{case.name}, C = {case.C:g}: {rival.peer.name}")
        rival.search(min(fit.primal for fit in fits.values()), options.time_limit)
    return {
        "data": case.name,
        "rows": len(case.data.labels),
        "columns": int(case.data.rows.shape[1]),
        "nonzeros": case.data.nonzeros,
        "C": case.C,
        "loss": options.loss,
        "rho": options.rho,
        "active_set": active_set(options.active_set, case.data),
        "optimum": optimum,
        "tolerances": [race(case, tol, fit, rivals, optimum) for tol, fit in fits.items()],
        "runs": {rival.peer.name: [vars(run) for run in rival.runs] for rival in rivals},
        "unbracketed": [] if optimum is None else unbracketed(fits, optimum),
        "decomposition": against_decomposition(case),
    }


def reference(problem: Problem) -> float | None:
    """The optimum by LIBLINEAR's own best effort; None without LIBLINEAR, and for the hinge, whose
    only solver there ends after 1,000 iterations."""
    if problem.loss == "hinge" or not peers.available("liblinear"):
        return None
    return problem.primal(
        peers.Liblinear(problem, peers.SOLVERS[problem.loss][-1]).run(REFERENCE).v
    )


def misses(proof: ours.Proof, optimum: float) -> bool:
    """Whether the optimum lies outside of bounds that were proven."""
    below, above = proof.dual <= optimum * (1 + ROUNDING), proof.primal * (1 + ROUNDING)
    return not (below and optimum <= above)


def unbracketed(fits: dict[float, ours.Fit], optimum: float) -> list[str]:
    """What is wrong with our bounds, in sentences: nothing, it is hoped."""
    wrong = []
    for tol, fit in fits.items():
        for proof in fit.proofs:
            if misses(proof, optimum):
                wrong.append(
                    f"tol {tol:g}, after {proof.readings:g} readings: {proof.dual!r} … "
                    f"{proof.primal!r} does not hold LIBLINEAR's optimum {optimum!r}"
                )
    return wrong


def race(
    case: Case, tol: float, fit: ours.Fit, rivals: Sequence[Rival], optimum: float | None
) -> dict[str, Any]:
    """One tolerance: ours and every rival that reaches our primal, in turn."""
    settings = case.settings(tol)
    target = fit.primal
    quickest = {rival.peer.name: rival.quickest(target) for rival in rivals}
    reached = {name: [0, 0] for name in quickest}

    def again(rival: Rival, setting: float) -> float:
        run = rival.peer.run(setting)
        count = reached[rival.peer.name]
        count[0] += rival.peer.primal(run.v) <= target * (1 + ROUNDING)
        count[1] += 1
        return run.seconds

    def own_seconds() -> float:
        return ours.fit(case.paths, case.cache, settings).seconds

    contenders: dict[str, Callable[[], float]] = {"streamtron": own_seconds}
    for rival in rivals:
        if (found := quickest[rival.peer.name]) is not None:
            contenders[rival.peer.name] = partial(again, rival, found.setting)
    measure.note(f"{case.name}, C = {case.C:g}: {len(contenders)} contenders to {tol:g} in turn")
    seconds = measure.alternate(contenders, case.options.repeats)
    own = measure.median(seconds["streamtron"])
    with ours.counting_nonzeros() as visited:
        ours.fit(case.paths, case.cache, settings)
    _, peak = measure.in_fresh_process(ours.fit_plainly, case.paths, case.cache, settings.to_dict())
    return {
        "tol": tol,
        "ours": {
            **fit.to_dict(),
            "median_seconds": own,
            "all_seconds": seconds["streamtron"],
            "nonzeros_visited": visited[0],
            "peak_bytes": peak,
            "true_gap": None if optimum is None else max(0.0, 1.0 - optimum / fit.primal),
        },
        "rivals": [
            standing(rival, quickest[rival.peer.name], seconds, own, reached, target)
            for rival in rivals
        ],
        "liblinear_peak_bytes": liblinear_peak(case, quickest),
    }


def standing(
    rival: Rival,
    found: RivalRun | None,
    seconds: dict[str, list[float]],
    own: float,
    reached: dict[str, list[int]],
    target: float,
) -> dict[str, Any]:
    """How a rival fared: the median to our primal, or how far it stayed above it."""
    name = rival.peer.name
    if found is None:
        return {
            "name": name,
            "median_seconds": None,
            "tried_to": rival.runs[-1].setting,
            "above_target": rival.nearest.primal / target - 1.0,
            "nearest_seconds": rival.nearest.seconds,
        }
    middle = measure.median(seconds[name])
    return {
        "name": name,
        "median_seconds": middle,
        "all_seconds": seconds[name],
        "ratio": middle / own,
        "setting": found.setting,
        "passes": found.passes,
        "reached": reached[name][0] / reached[name][1],
    }


def liblinear_peak(case: Case, quickest: dict[str, RivalRun | None]) -> dict[str, int]:
    """Peak memory of LIBLINEAR alone with the same rows, by solver."""
    peaks = {}
    problem = Problem.of(case.data, case.C, case.options.rho)
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as directory:
        path = str(Path(directory) / "rows")
        problem.save(path)
        for solver in (1, 2):
            if (found := quickest.get(f"LIBLINEAR -s {solver}")) is not None:
                task = (peers.liblinear_alone, path, case.C, solver, found.setting)
                _, peaks[f"-s {solver}"] = measure.in_fresh_process(*task)
    return peaks


def against_decomposition(case: Case) -> dict[str, Any] | None:
    """The paper's own comparison, on as many rows as a decomposition SVM can bear."""
    rows = min(case.options.svc_rows, len(case.data.labels))
    few = case.data.first(rows)
    if rows == 0 or not peers.available("sklearn") or len(set(few.labels.tolist())) < 2:
        return None
    measure.note(f"{case.name}, C = {case.C:g}: a decomposition SVM on {rows} extended rows")
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as directory:
        shard, cache = Path(directory) / "rows.svm", str(Path(directory) / "cache")
        write_libsvm(few, shard)
        ours.fill_cache([str(shard)], cache)
        settings = case.settings(min(case.options.tol))
        fits: list[ours.Fit] = []
        found: list[peers.Decomposition] = []

        def own() -> float:
            fits.append(ours.fit([str(shard)], cache, settings))
            return fits[-1].seconds

        def theirs() -> float:
            delta = math.sqrt(0.5 / case.C)
            found.append(peers.decomposition(few, delta, case.options.svc_tol))
            return found[-1].seconds

        seconds = measure.alternate({"ours": own, "theirs": theirs}, case.options.repeats)
    # P less the price of the bias weight is ½ ‖extended w‖² at margin 1
    geometric = 1.0 / math.sqrt(2.0 * fits[-1].primal - fits[-1].v[-1] ** 2)
    middle = {name: measure.median(values) for name, values in seconds.items()}
    return {
        "rows": rows,
        "tol": settings.tol,
        "seconds": middle["ours"],
        "geometric_margin": geometric,
        "svc_tol": case.options.svc_tol,
        "svc_seconds": middle["theirs"],
        "svc_geometric_margin": found[-1].geometric_margin,
        "svc_iterations": found[-1].iterations,
        "ratio": middle["theirs"] / middle["ours"],
    }


# --- what is printed ---


def show(case: dict[str, Any]) -> None:
    """Tables of one case."""
    title = (
        f"{case['data']}: {case['rows']:,} rows, {case['columns']:,} columns, "
        f"{case['nonzeros']:,} nonzeros; C = {case['C']:g}, ρ = {case['rho']:g}"
    )
    head = ["to the primal of tol", "seconds", "ratio", "peak MB", "readings", "setting", "remark"]
    lines = []
    for level in case["tolerances"]:
        own = level["ours"]
        visited = own["nonzeros_visited"] / case["nonzeros"]
        lines.append(
            [
                f"{level['tol']:g}  streamtron",
                f"{own['median_seconds']:.3f}",
                "1",
                f"{own['peak_bytes'] / 1e6:.0f}",
                f"{own['readings']:g}",
                "",
                f"certified {own['gap']:.1e}, true {_number(own['true_gap'])}, "
                f"visited {visited:.1f} × nonzeros, {own['stop_reason']}",
            ]
        )
        lines += [_rival_line(rival, level) for rival in level["rivals"]]
    measure.print_table(title, head, lines)
    print(f"LIBLINEAR's optimum {case['optimum']!r}", end=": ")
    print("not there" if case["optimum"] is None else _verdict(case["unbracketed"]))
    if case["decomposition"] is not None:
        _show_decomposition(case["decomposition"])


def _rival_line(rival: dict[str, Any], level: dict[str, Any]) -> list[str]:
    name = rival["name"]
    if rival["median_seconds"] is None:
        remark = f"stays {rival['above_target']:.1e} above, {rival['nearest_seconds']:.3f} s"
        return [f"       {name}", "–", "–", "", "", f"to {rival['tried_to']:g}", remark]
    peak = level["liblinear_peak_bytes"].get(name.removeprefix("LIBLINEAR "))
    remark = f"{rival['passes']:g} passes, no certificate"
    if rival["reached"] < 1:
        remark += f", reached in {rival['reached']:.0%} of the runs"
    return [
        f"       {name}",
        f"{rival['median_seconds']:.3f}",
        f"{rival['ratio']:.2f}",
        f"{peak / 1e6:.0f}" if peak else "",
        "",
        f"{rival['setting']:g}",
        remark,
    ]


def _verdict(unbracketed: list[str]) -> str:
    return "; ".join(unbracketed) or "inside every bound we certified"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1e}"


def _show_decomposition(found: dict[str, Any]) -> None:
    print(
        f"decomposition SVM, {found['rows']:,} extended rows, C = 1e5, tol {found['svc_tol']:g}: "
        f"{found['svc_seconds']:.3f} s, 10³ γ' = {1e3 * found['svc_geometric_margin']:.4f}; "
        f"streamtron on the same rows, tol {found['tol']:g}: {found['seconds']:.3f} s, "
        f"10³ γ' = {1e3 * found['geometric_margin']:.4f}; ratio {found['ratio']:.1f}"
    )


def show_all(cases: Sequence[dict[str, Any]]) -> None:
    """One line for each case: our seconds to each tolerance, and those of the faster LIBLINEAR."""
    head = ["data", "C"]
    for level in cases[0]["tolerances"]:
        head += [f"{level['tol']:g}", "LIBLINEAR", "ratio"]
    lines = []
    for case in cases:
        line = [case["data"], f"{case['C']:g}"]
        for level in case["tolerances"]:
            own, rivals = level["ours"]["median_seconds"], level["rivals"]
            liblinear = [rival for rival in rivals if rival["name"].startswith("LIBLINEAR")]
            reached = [rival["median_seconds"] or math.inf for rival in liblinear]
            theirs = min(reached, default=math.inf)
            line += [f"{own:.3f}", f"{theirs:.3f}", f"{theirs / own:.2f}"]
        lines.append(line)
    measure.print_table("seconds to a certified gap", head, lines)


def draw(case: dict[str, Any], path: Path) -> None:
    """Gap against readings and against seconds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (by_readings, by_seconds) = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    proofs = min(case["tolerances"], key=lambda level: level["tol"])["ours"]["proofs"]
    curves = [
        (
            "streamtron, certified",
            "k-o",
            [
                (proof["readings"], proof["seconds"], 1.0 - proof["dual"] / proof["primal"])
                for proof in proofs
            ],
        )
    ]
    optimum = case["optimum"]
    if optimum is not None:
        true = [(p["readings"], p["seconds"], 1.0 - optimum / p["primal"]) for p in proofs]
        curves.append(("streamtron, true", "k:.", true))
        for name, runs in case["runs"].items():
            points = [(a["passes"], a["seconds"], 1.0 - optimum / a["primal"]) for a in runs]
            curves.append((name, "-x", sorted(points)))
    for name, style, points in curves:
        x, seconds, gap = zip(*points, strict=True) if points else ((), (), ())
        visible = [max(value, 1e-12) for value in gap]
        by_readings.loglog(x, visible, style, label=name)
        by_seconds.loglog(seconds, visible, style)
    by_readings.set_xlabel("readings from disk (streamtron), passes (the others)")
    by_seconds.set_xlabel("seconds")
    by_readings.set_ylabel("relative gap, 1 − P*/P")
    by_readings.legend(fontsize="small")
    figure.suptitle(f"{case['data']}, C = {case['C']:g}")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


# --- the command ---


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_arguments(parser)
    parser.add_argument("--C", type=float, nargs="+", default=[0.5, 50.0])
    parser.add_argument("--loss", choices=[*peers.SOLVERS], default="squared_hinge")
    parser.add_argument("--rho", type=float, default=1.0, help="the augmentation; 0 = no bias")
    parser.add_argument("--tol", type=float, nargs="+", default=[1e-2, 1e-3])
    parser.add_argument("--active-set", default="1GB", help="a size, or a part of the rows: 10%%")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each, in turn")
    parser.add_argument("--passes", type=int, default=64, help="of SGD and VW, at most")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds a rival may take")
    parser.add_argument("--svc-rows", type=int, default=2000, help="0 = no decomposition SVM")
    parser.add_argument("--svc-tol", type=float, default=1e-3)
    parser.add_argument("--results", type=Path, default=measure.RESULTS, help="where they go")
    parser.add_argument("--tiny", action="store_true", help="does it run at all? some seconds")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.generate, options.columns = 300, 400
        options.C, options.tol = options.C[:1], options.tol[:1]
        options.repeats, options.passes, options.svc_rows = 1, 4, 40
    need_data(parser, options)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, save; 1 if a bound was wrong."""
    options = parse(arguments)
    found = measure.machine()
    measure.print_machine(found)
    cases = []
    with ExitStack() as stack:
        for path in data_sets(options, stack):
            cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="streamtron-bench-"))
            data = load([path])
            ours.fill_cache([path], cache)
            for C in options.C:
                name = Path(path).name
                case = compare(Case(name, [path], cache, data, C, options))
                show(case)
                cases.append(case)
                if peers.available("matplotlib"):
                    draw(case, options.results / f"certified-{name}-C{C:g}.png")
    show_all(cases)
    plain = {key: value for key, value in vars(options).items() if key != "results"}
    saved = measure.save(
        "certified", {"machine": found, "options": plain, "cases": cases}, options.results
    )
    print(f"\n{saved}")
    return int(any(case["unbracketed"] for case in cases))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except StreamtronError as error:
        raise SystemExit(f"certified: {error}") from None
