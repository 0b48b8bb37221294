"""Show models and certificates: in a line of text, and as HTML in a notebook."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from streamtron.core.errors import SettingsError
from streamtron.core.names import settled
from streamtron.core.text import MANY, PROVEN, down, label_text, metric_words, number, up

if TYPE_CHECKING:
    from streamtron.model.linear_model import LinearModel

Facts = Iterable[tuple[str, str]]

NOTHING = ("nothing proven", "")


ROUNDED = {"relative_duality_gap": up, **{name: rounded for _, name, rounded in PROVEN}}
"""Values that are proven, and which way they are rounded; see ``ENDS``, too."""

ENDS = {"at_least": down, "at_most": up}
"""How names of columns end that hold the ends of a bracket, and which way these are rounded."""


NOT_SHOWN = frozenset((
    "candidate", "tol", "stage", "b", "iteration", "directional_margin", "primal_objective",
    "dual_objective", "full_epochs", "stop_reason", "worker", "started", "finished",
))  # fmt: skip
"""Columns of a sweep that a notebook leaves out; a data frame has them."""


class Tabled(ABC):
    """Show rows of named values as tables in a notebook, or give them as a data frame."""

    __slots__ = ()

    @abstractmethod
    def tables(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return the rows of each table by its title."""

    def to_frame(self) -> Any:
        """Return the rows of the last table as a data frame of pandas, in full precision; a
        SettingsError where pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise SettingsError(
                "to_frame makes a data frame of pandas, which is not installed. Install pandas."
            ) from error
        return pandas.DataFrame([*self.tables().values()][-1])

    def _repr_html_(self) -> str:
        return "".join(_html_rows(title, rows) for title, rows in self.tables().items())


def _html_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as an HTML table of the columns that hold something, rounded to four digits."""
    known = dict.fromkeys(name for row in rows for name in row if row[name] is not None)
    names = [name for name in known if name not in NOT_SHOWN]
    heads = "".join(f"<th>{html.escape(metric_words(name))}</th>" for name in names)
    lines = "".join(
        f"<tr>{''.join(f'<td>{html.escape(_cell(n, row.get(n)))}</td>' for n in names)}</tr>"
        for row in rows
    )
    return f"<table><caption>{html.escape(title)}</caption><tr>{heads}</tr>{lines}</table>"


def _cell(name: str, value: Any) -> str:
    ends = (rounded for end, rounded in ENDS.items() if name.endswith(end))
    if rounded := ROUNDED.get(name) or next(ends, None):
        return rounded(value, 4)
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}"
    if isinstance(value, bool) or value is None:
        return "yes" if value else ""
    return label_text(value) if name == "class" else number(value)


class ModelCertificate(dict[str, Any]):
    """What is proven of a model, as plain values by name; empty if nothing is.

    Of two classes the fields of ``Certificate``, and ``history``: of every reading of the fit its
    number, the bounds ``lower`` and ``upper`` on the best margin (None unless the loss is the
    squared hinge), the relative duality ``gap``, and whether they are ``proven``. If not, ``upper``
    is an estimate, for rows were visited while they passed, and there is no lower bound. Of many
    classes ``relative_duality_gap`` (the widest), ``rows_scanned`` and ``learners``, the
    certificate of each class.

    >>> ModelCertificate(relative_duality_gap=0.0021, rows_scanned=1200)
    ModelCertificate(relative duality gap 0.0021, rows 1,200)
    """

    def __missing__(self, name: str) -> Any:
        raise KeyError(name if self else f"{name}: nothing is proven; use streamtron.certify")

    def __repr__(self) -> str:
        return facts_text("ModelCertificate", certificate_facts(self) or [NOTHING])

    def _repr_html_(self) -> str:
        return html_table("Certificate", certificate_facts(self) or [NOTHING])


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


def model_facts(model: LinearModel) -> list[tuple[str, str]]:
    """Return what a model is, in words."""
    names = [label_text(label) for label in model.classes]
    count_of_all = f", … ({len(names):,} in all)" if len(names) > MANY else ""
    shown = ", ".join(names[: 3 if count_of_all else MANY]) + count_of_all
    facts = [("classes", shown)] if names else []
    if model.kind != "two classes":
        facts.append(("kind", model.kind))
    facts.append(("columns", number(model.columns)))
    return facts


def model_text(model: LinearModel) -> str:
    """Return a model in one line."""
    gap = model.certificate.get("relative_duality_gap")
    proven = "no certificate" if gap is None else f"relative duality gap {up(gap, 3)}"
    return facts_text("LinearModel", [*model_facts(model), (proven, "")], "; ")


def model_html(model: LinearModel) -> str:
    """Return a model, the problem that it solves and its certificate as HTML tables."""
    known = settled(model.settings)
    names = [name for name in ("loss", "C", "delta", "rho", "tol") if known.get(name) is not None]
    settings = [(name, number(known[name])) for name in names]
    tables = [("LinearModel", [*model_facts(model), *settings])]
    tables.append(("Certificate", certificate_facts(model.certificate) or [NOTHING]))
    return "".join(html_table(*table) for table in tables)


def facts_text(title: str, facts: Facts, between: str = ", ") -> str:
    """Return facts as a line of text.

    >>> facts_text("Proof", [("rows", "7"), ("nothing else", "")])
    'Proof(rows 7, nothing else)'
    """
    return f"{title}({between.join(f'{name} {value}'.rstrip() for name, value in facts)})"


def html_table(title: str, facts: Facts) -> str:
    """Return facts as an HTML table.

    >>> html_table("Model", [("classes", "<1>")])
    '<table><caption>Model</caption><tr><th>classes</th><td>&lt;1&gt;</td></tr></table>'
    """
    cells = ((html.escape(name), html.escape(value)) for name, value in facts)
    rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in cells)
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"
