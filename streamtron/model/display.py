"""Models and certificates as a line of text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from streamtron.core.text import MANY, PROVEN, label_text, number, up

if TYPE_CHECKING:
    from streamtron.model.linear_model import LinearModel


class ModelCertificate(dict[str, Any]):
    """The certificate of a model, as plain values by name; empty if nothing is proven.

    For two classes the fields of ``Certificate``, and ``history``: of every reading of the fit its
    number, the bounds ``lower`` and ``upper`` on the best margin (None unless the loss is the
    squared hinge), the relative duality ``gap``, and whether they are ``proven``. If not, ``upper``
    is an estimate, because rows were visited while they passed, and there is no lower bound. With
    more than two classes ``relative_duality_gap`` (the widest), ``rows_scanned`` and ``learners``,
    the certificate of each class.

    >>> ModelCertificate(relative_duality_gap=0.0021, rows_scanned=1200)
    ModelCertificate(relative duality gap 0.0021, rows 1,200)
    """

    def __missing__(self, name: str) -> Any:
        raise KeyError(name if self else f"{name}: nothing is proven; use streamtron.certify")

    def __repr__(self) -> str:
        return facts_text("ModelCertificate", certificate_facts(self) or [("nothing proven", "")])


def joint_certificate(learners: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join certificates of classes, in their order: widest gap, or None, fewest rows, and all."""
    gaps = [certificate["relative_duality_gap"] for certificate in learners]
    return {
        "relative_duality_gap": None if None in gaps else max(gaps),
        "rows_scanned": min(certificate["rows_scanned"] for certificate in learners),
        "learners": [dict(certificate) for certificate in learners],
    }


def certificate_facts(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a certificate says, in words; lower bounds are rounded down, others up."""
    shown = (
        ("relative duality gap", "relative_duality_gap", partial(up, digits=3)),
        *PROVEN,
        ("rows", "rows_scanned", number),
    )
    known = [(words, rounded, certificate.get(name)) for words, name, rounded in shown]
    facts = [(words, rounded(value)) for words, rounded, value in known if value is not None]
    if learners := certificate.get("learners"):
        facts.append(("classes", number(len(learners))))
    return facts


def model_text(model: LinearModel) -> str:
    """Return a model in one line."""
    names = [label_text(label) for label in model.classes]
    if len(names) > MANY:
        names[3:] = [f"… ({len(names):,} in all)"]
    facts = [("classes", ", ".join(names))] if names else []
    if model.kind != "two classes":
        facts.append(("kind", model.kind))
    gap = model.certificate.get("relative_duality_gap")
    proven = "no certificate" if gap is None else f"relative duality gap {up(gap, 3)}"
    facts += [("columns", number(model.columns)), (proven, "")]
    return facts_text("LinearModel", facts, "; ")


def facts_text(title: str, facts: Iterable[tuple[str, str]], between: str = ", ") -> str:
    """Return facts as a line of text.

    >>> facts_text("Proof", [("rows", "7"), ("nothing else", "")])
    'Proof(rows 7, nothing else)'
    """
    return f"{title}({between.join(f'{name} {value}'.rstrip() for name, value in facts)})"
