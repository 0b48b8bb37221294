"""Format numbers, sizes, labels, lists and tables as text, and parse sizes and durations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from streamtron.core.errors import SettingsError

Lines = Iterator[str]

METRICS = ("accuracy", "precision", "recall", "f1", "roc_auc", "average_precision")
"""Metrics by which a sweep of two classes can choose; see ``model.metrics.Evaluation``."""

METRICS_OF_MANY = (
    "accuracy",
    *(f"micro_{name}" for name in METRICS[1:4]),
    *(f"macro_{name}" for name in METRICS[1:]),
)
"""Metrics by which a sweep of many classes can choose."""

METRICS_OF_NUMBERS = ("r2", "rmse", "mae")
"""Metrics by which a sweep of regression can choose."""

METRICS_OF_COUNTS = ("d2", "deviance", *METRICS_OF_NUMBERS)
"""Metrics by which a sweep of Poisson's loss can choose."""

METRICS_OF_PROBABILITIES = ("log_loss", "brier_score")
"""Metrics by which a sweep of the logistic loss can choose, too."""

ALL_METRICS = tuple(
    dict.fromkeys((*METRICS, *METRICS_OF_MANY, *METRICS_OF_PROBABILITIES, *METRICS_OF_COUNTS))
)

ERRORS = ("rmse", "mae", "deviance", *METRICS_OF_PROBABILITIES)
"""Metrics for which less is better."""

MANY = 20
"""Largest number of shards or labels that are listed one by one."""

BOUNDS = ("primal_margin", "upper_bound", "relative_duality_gap")
"""What is printed of a certificate: a lower bound, an upper one, and their gap."""


def aligned(items: Sequence[tuple[str, object]]) -> Lines:
    """Yield ``name   value`` lines with right-aligned numbers."""
    width = max([18, *(len(name) for name, _ in items)])
    for name, value in items:
        text = str(value) if isinstance(value, bool | str) else f"{number(value):>13}"
        yield f"{name:<{width}} {text}"


def label_text(label: object, quote: bool = False) -> str:
    """Format a label; a whole number without its decimal point, a string perhaps in quotes."""
    if quote and isinstance(label, str):
        return short(label)
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def label_meant(name: str) -> float | str:
    """Return the number that the name of a label may mean, where true is 1; else the name."""
    with suppress(ValueError):
        return float(digits({"true": "1", "false": "0"}.get(name.lower(), name)))
    return name


def short(value: object) -> str:
    """Return the repr of what a user gave, for a message: not longer than a line."""
    shown = repr(value)
    return shown if len(shown) <= 99 else f"{shown[:80]}… ({len(shown):,} characters)"


def digits(text: str) -> str:
    """Return the text of a number; a ValueError for 1_0 and ٣, which Python takes for 10 and 3."""
    if "_" in text or not text.isascii():
        raise ValueError(f"{short(text)} is no number")
    return text


def down(value: float | None, digits: int = 7) -> str:
    """Format a lower bound, rounded down: 0.123456789 as 0.1234567; ``-`` for None. What is proven
    is printed by this and by ``up`` alone, so that it holds as printed."""
    return _rounded(value, digits, ROUND_FLOOR)


def up(value: float | None, digits: int = 7) -> str:
    """Format an upper bound or a gap, rounded up; ``-`` for None."""
    return _rounded(value, digits, ROUND_CEILING)


PROVEN = (
    ("primal objective", "primal_objective", up),
    ("dual objective", "dual_objective", down),
    ("lower bound", "primal_margin", down),
    ("upper bound", "upper_bound", up),
)
"""What is proven of a model, in words, and how it is rounded; the margins of the squared hinge."""


def within(gap: float) -> str:
    """Return how far above the best possible objective one is at most, in percent; the last factor
    is for the rounding here.

    >>> within(0.01)
    'within 1.1 % of the best possible training objective'
    """
    above = 100.0 * gap / (1.0 - gap) * (1.0 + 1e-12) if gap < 1.0 else math.inf
    return f"within {up(above, 2)} % of the best possible training objective"


def _rounded(value: float | None, digits: int, rounding: str) -> str:
    if value is None:
        return "-"
    shown = Context(prec=digits, rounding=rounding).create_decimal(Decimal(value))
    return f"{float(shown):.{digits}g}"


def number(value: object) -> str:
    """Format a number as 1,234,567 or 0.01234568; ``-`` for None."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.7g}" if isinstance(value, float) else "-" if value is None else str(value)


def shown(value: float | None) -> str:
    """Format a number in three digits, a whole one in all; only 1 reads as 1."""
    if not isinstance(value, int | float | None):
        raise TypeError(f"{value!r} is not a number")
    if not isinstance(value, float) or (value.is_integer() and abs(value) < 1e15):
        return number(value if value is None else int(value))
    texts = (f"{value:.{digits}g}" for digits in range(3, 18))
    return next(text for text in texts if float(text) != 1.0 or value == 1.0)


def and_more(shards: Sequence[Any]) -> Lines:
    """Yield a line that counts the entries beyond the first MANY."""
    if len(shards) > MANY:
        yield f"… and {len(shards) - MANY:,} more"


def some(names: Iterable[Any], most: int = 5, form: Callable[[Any], str] = repr) -> str:
    """List the first names, and how many more there are."""
    listed = list(names)
    rest_of_list = f", … {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(map(form, listed[:most])) + rest_of_list


def reason_of(error: BaseException) -> str:
    """Return what an error of a library says, in one line that ends without a full stop.

    >>> reason_of(ValueError("no\\n  number."))
    'no number'
    """
    return " ".join(str(error).split()).rstrip(".")


def unknown_text(values: int) -> str:
    """Say how many values a model does not know."""
    return f"{values:,} unknown values, as in new columns, weigh 0"


def with_types(columns: Mapping[str, str]) -> str:
    """List the first columns of a table with their types: ``city (string)``."""
    return some(columns, form=lambda name: f"{name or repr(name)} ({columns[name]})")


def column_lines(told: Mapping[str, Any]) -> Lines:
    """Yield which columns of a table are features and which are not used, where that is told."""
    if features := told.get("features"):
        yield f"{'features':<18} {some(features, form=str)}"
    if unused := told.get("columns_not_used"):
        yield f"{'not used':<18} {with_types(unused)}"


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and marks that turn the direction of the text around them."""


def visible(text: str) -> str:
    """Show control characters and marks of direction as escapes; line ends and tabs stay.

    >>> print(visible("a\\x1b[31m\\u202eb"))
    a\\x1b[31m\\u202eb
    """
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def quoted(name: str) -> str:
    """Quote a name where a blank at its end would not be seen."""
    return name if name == name.strip() else repr(name)


def feature_text(feature: Mapping[str, Any]) -> str:
    """Return the name of a feature, quoted where a blank would not be seen, or its column."""
    if "name" not in feature:
        return f"column {feature['column']}"
    name = str(feature["name"])
    return repr(name) if "= " in name else quoted(name)


def metrics_shown(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics that are printed: of probabilities where there are any; none
    that is the accuracy again, as the micro averages where each row has one class."""
    if "r2" in metrics:
        return [name for name in (*METRICS_OF_COUNTS, "target_deviation") if name in metrics]
    names: Sequence[str] = METRICS
    if "classes" in metrics:
        again = metrics["accuracy"] == metrics["micro_f1"] == metrics["micro_recall"]
        has_one_class = "confusions" in metrics and not metrics["rows_of_other_classes"]
        names = [*METRICS_OF_MANY, "hamming_loss"]
        if again or has_one_class:
            names = [name for name in METRICS_OF_MANY if not name.startswith("micro")]
    return [*names, *(name for name in METRICS_OF_PROBABILITIES if name in metrics)]


def metric_words(name: str) -> str:
    """Return the name of a metric in words: ``macro_f1`` is ``macro F1``."""
    words = name.replace("_", " ").replace("roc auc", "ROC AUC")
    names = {"f1": "F1", "hamming": "Hamming", "newton": "Newton", "brier": "Brier"}
    names |= {"d2": "D²", "deviance": "mean Poisson deviance"}
    names |= {"r2": "R²", "rmse": "RMSE", "mae": "MAE", "target deviation": "standard deviation"}
    return re.sub("|".join(names), lambda match: names[match[0]], words)


def parse_size(text: str) -> int:
    """Parse a size into bytes.

    >>> parse_size("1GB"), parse_size("1.5 MiB"), parse_size("300")
    (1000000000, 1572864, 300)
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt])(i?))?b?\s*", text.lower())
    if match is None:
        raise SettingsError(
            f"size {short(text)}: expected a number with B, kB, MB, GB, MiB or GiB."
        )
    number, unit, binary = match.groups()
    size = float(number) * (1024 if binary else 1000) ** [None, *"kmgt"].index(unit)
    if size >= 2**63:
        raise SettingsError(f"size {text[:20]!r}: more bytes than any machine has.")
    return int(size)


def format_duration(seconds: float) -> str:
    """Format seconds in the unit that a person would use, with two digits.

    >>> [format_duration(seconds) for seconds in (0.04, 12.3, 95, 7300)]
    ['0.04 s', '12 s', '1.6 min', '2 h']
    """
    large = [(size, unit) for size, unit in ((3600, "h"), (60, "min")) if seconds >= 1.5 * size]
    size, unit = large[0] if large else (1, "s")
    return f"{float(f'{seconds / size:.2g}'):,g} {unit}"


def parse_duration(text: str) -> float:
    """Parse a duration into seconds.

    >>> parse_duration("5m"), parse_duration("0s"), parse_duration("1.5h"), parse_duration("90")
    (300.0, 0.0, 5400.0, 90.0)
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([smh]?)\s*", text.lower())
    if match is None:
        raise SettingsError(f"duration {short(text)}: expected a number with s, m or h, as in 5m.")
    number, unit = match.groups()
    return float(number) * {"": 1, "s": 1, "m": 60, "h": 3600}[unit]


def share_of_rows(given: Sequence[str]) -> float | None:
    """Return the share of the rows that is given, as ``20%``; None where paths are.

    >>> share_of_rows(["20%"]), share_of_rows(["a.svm"])
    (0.2, None)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", given[0]) if len(given) == 1 else None
    if match is None:
        return None
    share = float(match[1]) / 100
    if not 0.0 < share < 1.0:
        raise SettingsError(f"{given[0]} of the rows: expected a share above 0% and below 100%.")
    return share


def format_size(size: float) -> str:
    """Format bytes with a unit.

    >>> format_size(1_530_000), format_size(12), format_size(999_999)
    ('1.5 MB', '12 B', '1.0 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < (1000 if unit == "B" else 999.95):
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def cells_of(array: Any) -> list[Any]:
    """Return the cells of an Arrow array, as text where Python has no such date or time zone."""
    try:
        return list(array.to_pylist())
    except (OverflowError, ValueError):
        pass
    try:
        return list(array.cast("string").to_pylist())
    except (NotImplementedError, ValueError):  # within a list; a zone that is none
        unabridged = {"skip_new_lines": True, "window": 1 << 30, "container_window": 1 << 30}
        pieces = (array[k : k + 1] for k in range(len(array)))
        return [None if cell.null_count else cell.to_string(**unabridged)[1:-1] for cell in pieces]
