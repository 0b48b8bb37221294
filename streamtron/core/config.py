"""Settings, which decide the model, and Machine, which does not (threads, paths, memory).

Settings have the same names on the command line, in TOML and in Python; `SKLEARN_NAMES` maps
scikit-learn's names to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from streamtron.core.errors import SettingsError
from streamtron.core.files import absolute, as_path, read_toml
from streamtron.core.limits import available_memory, available_processors
from streamtron.core.names import check_names
from streamtron.core.text import digits, label_meant, parse_size, short

SKLEARN_NAMES = {
    "intercept_scaling": "rho",
    "random_state": "seed",
    "max_iter": "max_epochs",
    "C": "C",
    "tol": "tol",
    "class_weight": "class_weight",
}
"""Maps scikit-learn's name of a setting to ours."""

METRICS = ("accuracy", "precision", "recall", "f1", "roc_auc", "average_precision")
"""Metrics by which a sweep of two classes can choose; see ``model.metrics.Evaluation``."""

METRICS_OF_MANY = (
    "accuracy", "micro_precision", "micro_recall", "micro_f1", "macro_precision", "macro_recall",
    "macro_f1", "macro_roc_auc", "macro_average_precision",
)  # fmt: skip
"""Metrics by which a sweep of many classes can choose."""

SMALLEST, LARGEST = 1e-30, 1e30
"""Range of C, weights and ρ: their products and squares neither overflow nor vanish."""

PRICES = (1e-40, 1e40)
"""Range of C_k = C · weight of the row · weight of its class."""

DEFAULT_ACTIVE_SET = 10**9


def _as(types: tuple[Any, ...], given: Any) -> Any:
    """Return a value of these types, or a scalar of NumPy, as the first; TypeError for others."""
    given = given.tolist() if hasattr(given, "tolist") else given
    if type(given) not in types:
        raise TypeError
    if type(given) is int and not -(2**63) <= given < 2**63:
        raise OverflowError
    return types[0](given)


_number, _whole = partial(_as, (float, int)), partial(_as, (int,))


def _weights(given: Any) -> Any:
    """Name labels by text, as JSON does; a SettingsError if two names may mean one label."""
    if isinstance(given, str) and given == "balanced":
        return given
    weights = {str(label): _number(weight) for label, weight in given.items()}
    if len({label_meant(name) for name in weights}) < len(given):
        raise SettingsError(f"class-weight {short(given)}: a label has two weights. Give one.")
    for name, weight in weights.items():
        _need(SMALLEST <= weight <= LARGEST, f"class-weight of {name}", weight, "1e-30 to 1e30")
    return weights


_KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "float": (_number, "a number"),
    "int": (_whole, "a whole number below 2⁶³"),
    "int | str": (lambda size: parse_size(size) if isinstance(size, str) else _whole(size),
                  "a whole number of bytes, or text such as 1GB"),
    "bool": (partial(_as, (bool,)), "true or false"),
    "str": (partial(_as, (str,)), "text"),
    "stage": (partial(_as, (str, int, float)), "text or a number"),
    "index_base": (lambda base: base if isinstance(base, str) else _whole(base), "auto, 0 or 1"),
    "b": (lambda b: (*map(_number, b if hasattr(b, "__iter__") else [b]),), "one number a stage"),
    "class_weight": (_weights, "balanced, or a number above 0 for a label"),
    "features": (lambda names: tuple(map(
        str.strip, names.split(",") if isinstance(names, str) else names)), "names"),
    "vocabulary": (as_path, "a path"),
     **dict.fromkeys(("cache_dir", "run_dir"), (absolute, "a path")),
}  # fmt: skip
"""Name or type of a setting → what makes it of its forms in Python and TOML; these in words."""

_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "C": (lambda C: C is None or SMALLEST <= C <= LARGEST, "1e-30 to 1e30"),
    "delta": (lambda Δ: not Δ or 1e-15 <= Δ <= 1e15, "0 (the hard margin), or 1e-15 to 1e15"),
    "rho": (lambda rho: rho == 0 or SMALLEST <= rho <= LARGEST, "0 (no bias), or 1e-30 to 1e30"),
    "variant": (lambda variant: variant in ("length", "steps"), "length or steps"),
    "order": (lambda order: order in ("random", "sequential"), "random or sequential"),
    "on_bad_shard": (lambda action: action in ("error", "skip"), "error or skip"),
    "tol": (lambda tol: 0 <= tol < 1, "a relative duality gap, 0 ≤ tol < 1"),
    "max_epochs": (lambda epochs: epochs >= 1, "at least 1"),
    "mini_epochs": (lambda epochs: epochs >= 0, "0 or more"),
    "active_set": (lambda size: size is None or size >= 0, "a size of 0 bytes or more"),
    "seed": (lambda seed: seed >= 0, "0 or more"),
    "index_base": (lambda base: base in ("auto", 0, 1), "auto, 0 or 1"),
    "parts": (lambda parts: parts is None or parts >= 1, "at least 1"),
    "hash_bits": (lambda bits: bits is None or 1 <= bits <= 31, "1 to 31"),
    "hash_seed": (lambda seed: 0 <= seed < 2**32, "0 to 2³²-1"),
    "features": (lambda names: names is None or (names and all(names)), "names of columns"),
    **dict.fromkeys(
        ("label", "weight", "vocabulary"), (lambda name: name != "", "a name that is not empty")
    ),
}
"""Setting → whether a value is within its range, and the range in words."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Hold everything that decides the model of given rows.

    The problem is LIBLINEAR's L2-regularised L2-loss support vector machine:
    minimise ½(‖w‖² + w_bias²) + Σ C_k max(0, 1 − l_k(w·x_k + ρ w_bias))² (a sum, not a mean).

    Parameters
    ----------
    C : price of a slack, 10⁻³⁰ to 10³⁰; C = 1 / (2 Δ²). Default 1 unless ``delta`` is given.
    delta : Δ, the extension, 10⁻¹⁵ to 10¹⁵; 0 is the hard margin. Give C or delta, not both.
    rho : ρ, the augmentation (LIBLINEAR's -B), 10⁻³⁰ to 10³⁰; 0 = no bias.
    stage : ``"auto"``, or stages in order: numbers ε with 0 < ε < 2, or ``ascent``: ``"1,0.1"``.
    variant : ``"length"`` (ℓ-margitron) or ``"steps"`` (t-margitron).
    b : b/R^(1+ε) (length) or b/R² (steps), one number a stage; None = chosen from the bounds.
    tol : relative duality gap in [0, 1) at which a run ends; 0 = run to convergence.
    max_epochs : full epochs at most, ≥ 1.
    mini_epochs : N_ep ≥ 0, mini-epochs at most after a reading.
    active_set : memory for the rows that mini-epochs visit (8 bytes a nonzero + 24 a row), in bytes
        or as text such as ``"1GB"``; None = 1 GB, or what the limit of memory leaves.
    class_weight : None, ``"balanced"``, or {label: weight > 0}; multiplies C.
    seed : of the order of rows, ≥ 0.
    order : ``"random"``, or ``"sequential"``: always as in the files, which are then read in every
        epoch; a cache is written only if ``cache_dir`` is given.
    faithful : the paper's procedure to the letter (file order, active set renewed each full
        epoch, every stage run to convergence, tol 0, no epoch limit).
    index_base : number of the first column in text: ``"auto"``, 0 or 1.
    weights_in_label : text labels are written ``label:weight``.
    multiclass : any number of labels, one a row: a classifier for each, against the rest. Labels in
        text may be names.
    multilabel : a row may have several labels or none: ``1,5,7`` in text, a list in Parquet and
        Arrow. Labels in text may be names.
    label, weight, values : column names in Parquet and Arrow; None = the usual names.
    features : names of the feature columns, or patterns for columns of numbers; a string is split
        at its commas.
    hash_bits : hash named features into 2^hash_bits columns, 1 … 31.
    hash_seed : seed of that hash, 0 … 2³²-1.
    vocabulary : file of feature names, one a line, whose line numbers are the columns.
    parts : into how many parts the shards are dealt, ≥ 1, which train together; it affects the
        model. None = 1; with workers as many as there are shards, 64 at most.
    allow_duplicate : let two shards have the same content.
    on_bad_shard : ``"error"`` ends the run at a shard that is not readable as data; ``"skip"``
        leaves the whole shard out and lists it. Errors of disk or network always end the run.

    Raises
    ------
    SettingsError : a value out of range, or two that contradict each other.
    """

    C: float | None = None
    delta: float | None = None
    rho: float = 1.0
    stage: str = "auto"
    variant: Literal["length", "steps"] = "length"
    b: tuple[float, ...] | None = None
    tol: float = 0.01
    max_epochs: int = 100
    mini_epochs: int = 50
    active_set: int | str | None = None
    class_weight: Mapping[str, float] | Literal["balanced"] | None = None
    seed: int = 0
    order: Literal["random", "sequential"] = "random"
    faithful: bool = False
    index_base: Literal["auto", 0, 1] = "auto"
    weights_in_label: bool = False
    multiclass: bool = False
    multilabel: bool = False
    label: str | None = None
    weight: str | None = None
    features: tuple[str, ...] | None = None
    values: str | None = None
    hash_bits: int | None = None
    hash_seed: int = 0
    vocabulary: str | None = None
    parts: int | None = None
    allow_duplicate: bool = False
    on_bad_shard: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        _make_kinds(self)
        for name, (is_within, wanted) in _RANGES.items():
            given = getattr(self, name)
            _need(is_within(given), name.replace("_", "-"), given if given != "" else "''", wanted)
        self._check_clashes()
        for value in self.b or ():
            _need(SMALLEST <= value <= LARGEST, "b", value, "1e-30 to 1e30")

    def _check_clashes(self) -> None:
        stages = self.stages or ()
        refusal = None
        if self.C is not None and self.delta is not None:
            refusal = "C and delta are two names of one thing (C = 1/(2 Δ²)): give one."
        elif self.hash_bits is not None and self.vocabulary is not None:
            refusal = "hash-bits and vocabulary both give names their columns: give one."
        elif self.multiclass and self.multilabel:
            refusal = "multiclass is one label a row, multilabel any number of them: give one."
        elif self.weights_in_label and self.multilabel:
            refusal = (
                "weights-in-label reads label:weight, and with multilabel a row may have several "
                "labels or none: leave it out, or give the weights in a Parquet column, --weight."
            )
        elif self.b is not None and len(self.b) != (len(stages) or 2):
            given = len(self.b)
            refusal = f"b has {given} numbers for the stages {self.stage}: give one a stage."
        elif self.faithful and "ascent" in stages:
            refusal = "faithful is the paper's procedure, which has no ascent stage."
        if refusal is not None:
            raise SettingsError(refusal)

    @property
    def delta2(self) -> float:
        """Return Δ² = 1 / (2 C) of a row of weight 1."""
        if self.delta is not None:
            return self.delta**2
        return 1.0 / (2.0 * (1.0 if self.C is None else self.C))

    @property
    def active_set_bytes(self) -> int:
        """Return the bytes of memory for the rows that mini-epochs visit."""
        return DEFAULT_ACTIVE_SET if self.active_set is None else int(self.active_set)

    @property
    def hard(self) -> bool:
        """Tell whether Δ = 0: the hard margin."""
        return self.delta == 0

    @property
    def one_vs_rest(self) -> bool:
        """Return whether there is a classifier for every label."""
        return self.multiclass or self.multilabel

    @property
    def stages(self) -> tuple[float | Literal["ascent"], ...] | None:
        """Return the stages given; None for auto."""
        if self.stage == "auto":
            return None
        return tuple(_stage(word.strip()) for word in self.stage.split(","))

    @property
    def random(self) -> bool:
        """Tell whether later readings permute the rows."""
        return self.order == "random" and not self.faithful

    @property
    def tolerance(self) -> float:
        """Return the gap at which the run ends: tol, or 0 if faithful."""
        return 0.0 if self.faithful else self.tol

    @property
    def epoch_limit(self) -> float:
        """Return the largest number of full epochs."""
        return math.inf if self.faithful else self.max_epochs

    def to_dict(self) -> dict[str, Any]:
        """Return every setting as a JSON value; ``parts`` only where it decides the model."""
        plain = asdict(self) | {"active_set": self.active_set_bytes}
        if self.parts in (None, 1):
            del plain["parts"]
        return {name: [*own] if isinstance(own, tuple) else own for name, own in plain.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Create settings from JSON values; an unknown name is a SettingsError."""
        check_names(values, (field.name for field in fields(cls)))
        return cls(**values)

    @classmethod
    def from_toml(cls, path: str | Path) -> Settings:
        """Read settings from a TOML file of ``name = value`` lines."""
        return cls.from_dict(read_toml(path, "settings"))

    @property
    def label_weights(self) -> dict[float | str, float]:
        """Return the weights of all labels that the names may mean: 1 a string, a number, True."""
        given = self.class_weight if isinstance(self.class_weight, Mapping) else {}
        return {label_meant(name): weight for name, weight in given.items()} | dict(given)

    def but(self, **changes: Any) -> Settings:
        """Return the same settings with some changed."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Machine:
    """Hold what never changes a bit of the model.

    Parameters
    ----------
    memory : what a run may use, in bytes or as text such as ``"8GB"``; None = half of what this
        process may use.
    cache_dir : directory of the flat copy of the shards; None = in the run directory.
    threads : threads that read and train, ≥ 1; None = the processors that this process may use.
    run_dir : directory of checkpoints, witness and cache; None = ``MODEL.run`` beside the model.
    checkpoint_every : seconds ≥ 0 between checkpoints.
    """

    memory: int | str | None = None
    cache_dir: str | None = None
    threads: int | None = None
    run_dir: str | None = None
    checkpoint_every: float = 300.0

    def __post_init__(self) -> None:
        _make_kinds(self)  # paths are absolute: a listener may change the working directory
        _need(self.threads is None or self.threads >= 1, "threads", self.threads, "at least 1")

    @property
    def thread_count(self) -> int:
        """Return the number of threads that read and train."""
        return self.threads or available_processors()

    @property
    def memory_limit(self) -> int:
        """Return the bytes that a run may use."""
        return available_memory() // 2 if self.memory is None else int(self.memory)


def _need(condition: bool, name: str, found: object, wanted: str) -> None:
    if not condition:
        raise SettingsError(f"{name} is {short(found)}: wanted {wanted}.")


def _make_kinds(settings: Settings | Machine) -> None:
    """Bring every field into its kind; one that cannot be is a SettingsError that names it."""
    for field in fields(settings):
        given, kind = getattr(settings, field.name), str(field.type)
        entry = _KINDS.get(field.name) or _KINDS.get(kind.removesuffix(" | None"))
        if entry is None or (given is None and kind.endswith("None")):
            continue
        try:
            object.__setattr__(settings, field.name, entry[0](given))
        except SettingsError:
            raise
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            shown = "a number beyond 2⁶³" if isinstance(error, OverflowError) else short(given)
            name = field.name.replace("_", "-")
            raise SettingsError(f"{name} is {shown}: wanted {entry[1]}.") from error


def _stage(word: str) -> float | Literal["ascent"]:
    if word == "ascent":
        return "ascent"
    try:
        epsilon = float(digits(word))
    except ValueError:
        epsilon = math.nan
    if not 0 < epsilon < 2:
        raise SettingsError(
            f"stage {word!r}: wanted auto, or numbers with 0 < ε < 2 or `ascent`, as in 1,0.1."
        )
    return epsilon


def prices(C: float | None, delta: float | None) -> dict[str, float | None]:
    """Return C and Δ, given one of them or none, where C is 1: C = 1/(2 Δ²), None if Δ is 0."""
    if delta is None:
        C = 1.0 if C is None else C
        return {"C": C, "delta": (1.0 / (2.0 * C)) ** 0.5}
    return {"C": 0.5 / delta**2 if delta else None, "delta": delta}


def settled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return kept settings with the C that holds where neither C nor delta was given."""
    default = "C" in settings and settings["C"] is settings.get("delta") is None
    return {**settings, "C": 1.0} if default else dict(settings)


def one_price(given: Mapping[str, Any]) -> dict[str, Any]:
    """Let a given C replace a delta from elsewhere, and the other way round."""
    others = {"C": "delta", "delta": "C"}
    return {**{others[name]: None for name in given if name in others}, **given}


def meets(settings: Mapping[str, Any], gap: float, stop_reason: str) -> bool:
    """Tell whether a fit did what was asked: proved a gap within ``tol``; converged where that is 0
    or the procedure ``faithful``."""
    tol = 0.0 if settings.get("faithful") else settings["tol"]
    return bool(gap <= tol) if tol > 0.0 else stop_reason == "converged"
