"""Lines of a certificate, and of the command ``certify``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamtron.core.text import Lines, aligned, class_table, down, left_out, number, up


def certificate_lines(certificate: Mapping[str, Any]) -> Lines:
    """Yield lower bound, upper bound and gap."""
    upper, gap = certificate["upper_bound"], certificate["relative_duality_gap"]
    yield f"{'lower bound':<18} {down(certificate['primal_margin']):>13}"
    yield f"{'upper bound':<18} {'none found' if upper is None else up(upper):>13}"
    yield f"{'gap':<18} {up(gap):>13}"
    yield from covered(certificate)


def covered(certificate: Mapping[str, Any]) -> Lines:
    """Yield which rows the bounds cover, if shards were left out."""
    if certificate.get("skipped"):
        yield f"They cover the {certificate['rows_scanned']:,} rows that were read."
        yield from left_out(certificate["skipped"])


def bounds(certificates: Sequence[Mapping[str, Any] | None]) -> dict[str, list[str]]:
    """Return lower bound, upper bound and gap as columns of a table; ``-`` for unknown values."""

    def cell(certificate: Mapping[str, Any] | None, name: str) -> str:
        value = None if certificate is None else certificate[name]
        return "-" if value is None else f"{value:.6g}"

    names = ("primal_margin", "upper_bound", "relative_duality_gap")
    return {
        head: [cell(each, name) for each in certificates]
        for head, name in zip(("lower bound", "upper bound", "gap"), names, strict=True)
    }


def proof_lines(proof: Mapping[str, Any]) -> Lines:
    """Yield the summary of ``certify``."""
    certificate = proof["certificate"]
    yield from aligned(
        [("rows", certificate["rows_scanned"]), ("readings", round(proof["readings"], 3))]
    )
    learners = proof.get("learners", [proof])
    if "learners" in proof:
        yield from aligned([("largest gap", float(certificate["relative_duality_gap"]))])
    else:
        yield from certificate_lines(certificate)
        yield from aligned([("scale of weights", proof["weights_scale"])])
        yield f"{'decision radius':<18} {up(proof['decision_radius']):>13}"
    yield from _distances(learners)
    if "learners" in proof:
        yield ""
        scales = [f"{each['weights_scale']:.4g}" for each in learners]
        yield from class_table(
            [each["label"] for each in learners],
            bounds([each["certificate"] for each in learners]),
            ("scale of weights", scales),
        )
    else:
        yield _meaning(certificate)
    if excluded := certificate["rows_excluded"]:
        yield (
            f"{excluded:,} rows of the shards were left out, because the witness excludes them as "
            "forgotten: nothing is proven of them."
        )


def _meaning(certificate: Mapping[str, Any]) -> str:
    """Return what the bounds mean."""
    if certificate["primal_margin"] == certificate["directional_margin"]:
        return (
            "No linear classifier on these rows has a margin above the upper bound; this one's is "
            "at least the lower bound."
        )
    return (
        "No linear classifier on these rows has a soft margin above the upper bound; this one's is "
        "at least the lower bound. The soft margin is 1/√(2 P), P the objective."
    )


def _distances(proofs: Sequence[Mapping[str, Any]]) -> Lines:
    """Yield the largest distance of the weights from those that the counts give, where known."""
    distances = [each["distance"] for each in proofs]
    drifts = [each["certificate"]["drift"] for each in proofs]
    for name, found, whose in (
        ("distance", distances, "the model's"),
        ("drift", drifts, "the running"),
    ):
        if None not in found:
            shown = f"{name:<18} {number(max(found)):>13}"
            yield f"{shown}  of {whose} weights from those that the counts give"
