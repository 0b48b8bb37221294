"""Settings, which decide the model, and Machine, which does not (threads, paths, memory).

Settings have the same names on the command line, in TOML and in Python; `SKLEARN_NAMES` maps
scikit-learn's names to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from streamtron.core import kinds
from streamtron.core.errors import SettingsError
from streamtron.core.files import read_toml
from streamtron.core.kinds import ANY, NOT_EMPTY, POSITIVE, at_least, check_range, setting
from streamtron.core.limits import available_memory, available_processors
from streamtron.core.names import check_names
from streamtron.core.text import label_meant

PRICES = (1e-40, 1e40)
"""Range of C_k = C · weight of the row · weight of its class."""

REGRESSION = ("squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive")
"""The losses whose labels are numbers to be predicted."""

DEFAULT_ACTIVE_SET = 10**9

EPSILONS = {"huber": 1.35, "epsilon_insensitive": 0.1, "squared_epsilon_insensitive": 0.1}
"""Losses that have an ε, and its default."""

_KINKED = ("hinge", "epsilon_insensitive")
"""The losses that are not smooth."""

_LOSSES = ("squared_hinge", "log_loss", "hinge", *REGRESSION)

FREE = 4096.0
"""See ``Settings.augmentation``: a bias of 10 then costs 3·10⁻⁶. The certificate is of the problem
without that penalty (``ScanSums.dual``)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Hold everything that decides the model of given rows.

    The problem is that of LIBLINEAR, with an L2 penalty: minimise
    ½(‖w‖² + w_bias²) + Σ C_k φ(l_k(w·x_k + ρ w_bias)) (a sum, not a mean), where φ(m) is
    max(0, 1 − m)² (``squared_hinge``), ln(1 + e^−m) (``log_loss``) or max(0, 1 − m) (``hinge``).
    With ``elasticnet`` r‖w‖₁ + ½(1 − r)‖w‖² takes the place of ½‖w‖², with ``l1`` ‖w‖₁.

    Where labels are numbers t_k, φ is of m = w·x_k + ρ w_bias − t_k: ½ m² (``squared_error``), the
    same for |m| ≤ ε and ε |m| − ½ ε² beyond (``huber``), max(0, |m| − ε) (``epsilon_insensitive``)
    or its square (``squared_epsilon_insensitive``).

    Parameters
    ----------
    {parameters}

    Raises
    ------
    SettingsError : a value out of range, or two that contradict each other.
    """

    # fmt: off
    C: float | None = setting(None, "number", POSITIVE,
        "Price of a slack, above 0, as LIBLINEAR's -c; C = 1/(2 Δ²) [1].", sklearn="C")
    loss: str = setting(
        "squared_hinge", _LOSSES, ANY,
        "φ of the objective: squared_hinge, log_loss (logistic regression) or hinge; for labels "
        "that are numbers squared_error (ridge regression), huber, epsilon_insensitive or its "
        "square.", sklearn="loss")
    epsilon: float | None = setting(None, "number", kinds.EPSILON,
        "ε of huber [1.35], epsilon_insensitive and its square [0.1].", sklearn="epsilon")
    penalty: Literal["l2", "elasticnet", "l1"] = setting("l2", ("l2", "elasticnet", "l1"), ANY,
        "Of the weights: l2 (½‖w‖²), l1 (‖w‖₁), or elasticnet, a mean of both; sparse but for l2.",
        sklearn="penalty")
    l1_ratio: float | None = setting(None, "number", kinds.RATIO,
        "r of elasticnet, r‖w‖₁ + ½(1 − r)‖w‖², from 0 to 1 [0.5].", sklearn="l1_ratio")
    delta: float | None = setting(None, "number", kinds.DELTA,
        "Δ ≥ 0 in place of C; 0 is the hard margin, for separable rows.")
    rho: float = setting(1.0, "number", kinds.RHO,
        "ρ ≥ 0, the constant feature that carries the bias; 0 = no bias.",
        sklearn="intercept_scaling")
    intercept: Literal["penalised", "free", "none"] | None = setting(
        None, ("penalised", "free", "none"), ANY,
        "penalised as a weight; free: not penalised; none: there is no bias [penalised; free for "
        "labels that are numbers].", sklearn="intercept")
    stage: str = setting("auto", "stage", ANY,
        "auto, or stages in order, each 0 < ε < 2 or ascent, as in 1,0.1.")
    variant: Literal["length", "steps"] = setting("length", ("length", "steps"), ANY,
        "The ℓ-margitron or the t-margitron.")
    b: tuple[float, ...] | None = setting(None, "numbers", ANY,
        "b/R^(1+ε) (length) or b/R² (steps), one number a stage [from the bounds].")
    tol: float = setting(0.01, "number", kinds.GAP,
        "Relative duality gap that ends the run, 0 ≤ tol < 1; 0 = converge.", sklearn="tol")
    max_epochs: int = setting(100, "whole", at_least(1),
        "Full epochs at most, at least 1.", sklearn="max_iter")
    mini_epochs: int | None = setting(None, "whole", at_least(0),
        "Mini-epochs after a reading at most, at least 0 [50; 500 for hinge and "
        "epsilon_insensitive].")
    active_set: int | str | None = setting(None, "size", kinds.BYTES,
        "Memory for the rows that mini-epochs visit, 8 bytes a nonzero and 24 a row; it affects "
        "the model [1 GB, or what --memory leaves].")
    class_weight: Mapping[str, float] | Literal["balanced"] | None = setting(None, "weights", ANY,
        "Factors of C: balanced, or LABEL=W,LABEL=W.", sklearn="class_weight")
    seed: int = setting(0, "whole", at_least(0),
        "Seed of the order of rows, at least 0.", sklearn="random_state")
    order: Literal["random", "sequential"] = setting("random", ("random", "sequential"), ANY,
        "Order of rows; sequential is that of the files, which every epoch reads, without a cache.")
    faithful: bool = setting(False, "flag", ANY,
        "Follow the paper's procedure exactly; needs many readings.")
    index_base: Literal["auto", 0, 1] = setting("auto", ("auto", 0, 1), ANY,
        "Number of the first column in text; auto: 1 if column 0 never occurs.")
    weights_in_label: bool = setting(False, "flag", ANY, "Read text labels as label:weight.")
    multiclass: bool = setting(False, "flag", ANY,
        "Take any number of labels, one a row.")
    multilabel: bool = setting(False, "flag", ANY,
        "Take several labels a row or none: 1,5,7 in text, numbers or names; in Parquet and Arrow "
        "a list.")
    label: str | None = setting(None, "text", NOT_EMPTY,
        "Tables: the column of labels [found by the usual names].")
    weight: str | None = setting(None, "text", NOT_EMPTY,
        "Tables: the column of row weights, ≥ 0 [none].")
    features: tuple[str, ...] | None = setting(None, "names", kinds.NAMES,
        "Tables: the list or map of features; or columns of numbers, NAME,NAME,… [a list or map "
        "of a usual name, or all columns if all are numbers].")
    values: str | None = setting(None, "text", ANY,
        "Tables: the list of values beside a list of features [found by the usual names].")
    columns: tuple[str, ...] | None = setting(None, "columns", kinds.NAMES,
        "Tables: NAME:KIND,OPTION=VALUE,…, a column and its KIND: number, category, date, list, "
        "vector or text, as in age:number,null=mean; can be repeated. Or FILE.toml, or auto.")
    text: str | None = setting(None, "text", NOT_EMPTY,
        "Tables: the column of documents, short for --columns NAME:text; NAME,tfidf,ngrams=1-2.")
    hash_bits: int | None = setting(None, "whole", kinds.BITS,
        "Hash named features into 2^N columns, N from 1 to 31.")
    hash_seed: int = setting(0, "whole", kinds.BITS32, "Seed of that hash, at least 0.")
    vocabulary: str | None = setting(None, "input", NOT_EMPTY,
        "File of feature names, one a line: line 1 is column 0.")
    held_out: float = setting(0.0, "number", kinds.SHARE,
        "Share of the rows that is held out of training, by a hash of the shard's name and the "
        "row's number.")
    parts: int | None = setting(None, "whole", at_least(1),
        "Deal the shards into N parts that train together, on threads or workers; it affects the "
        "model [1; with workers one a shard, up to 64].")
    allow_duplicate: bool = setting(False, "flag", ANY, "Accept two shards with the same content.")
    on_bad_shard: Literal["error", "skip"] = setting("error", ("error", "skip"), ANY,
        "What to do with a malformed, truncated or damaged shard: end the run, or leave it out and "
        "list it.")
    # fmt: on

    def __post_init__(self) -> None:
        kinds.make_fields(self)
        if self.intercept is None:
            moves = self.regression and self.rho > 0.0
            object.__setattr__(self, "intercept", "free" if moves else "penalised")
        for clash, refusal in self._clashes():
            if clash:
                raise SettingsError(refusal)
        for value in self.b or ():
            check_range(value, "b", POSITIVE)

    def _clashes(self) -> Iterator[tuple[object, str]]:
        """Yield whether settings contradict each other, and what to do then."""
        stages = self.stages or ()
        features = self._first_given("features", "values", "vocabulary", "hash_bits")
        of_classes = self._first_given("multiclass", "multilabel", "class_weight")
        of_paper = self._of_the_paper()
        not_smooth = self.loss if self.loss in _KINKED else of_paper
        yield from (
            (self.C is not None and self.delta is not None,
             "C and delta are two names of one thing (C = 1/(2 Δ²)): give one."),
            (self.hash_bits is not None and self.vocabulary is not None,
             "hash-bits and vocabulary both give names their columns: give one."),
            ((self.columns or self.text) and features,
             f"{features} says where features are, and columns and text make them: leave it out. "
             "Options of a column stand behind it, as in --text body,hash_bits=20."),
            (self.multiclass and self.multilabel,
             "multiclass is one label a row, multilabel any number of them: give one."),
            (self.weights_in_label and self.multilabel,
             "weights-in-label reads label:weight, and with multilabel a row may have several "
             "labels or none: leave it out, or give the weights in a Parquet column, --weight."),
            (self.b is not None and len(self.b) != (len(stages) or 2),
             f"b has {len(self.b or ())} numbers for the stages {self.stage}: give one a stage."),
            (self.faithful and "ascent" in stages,
             "faithful is the paper's procedure, which has no ascent stage."),
            (self.intercept == "free" and (self.rho == 0.0 or self.hard or self.faithful),
             "intercept free needs a price of the loss and a feature of the bias: give --C and "
             "--rho above 0, and leave faithful out."),
            (self.regression and of_classes,
             f"{of_classes} is for labels that are classes, and the loss {self.loss} is for "
             "numbers: leave it out, or give --loss log_loss."),
            (self.epsilon is not None and self.loss not in EPSILONS,
             f"the loss {self.loss} has no epsilon: leave it out, or give --loss huber."),
            (self.epsilon == 0.0 and self.loss == "huber",
             "epsilon is 0, where huber has no slope: give a number above 0."),
            (self.loss != "squared_hinge" and of_paper,
             f"{of_paper} belongs to the paper's procedure, which is for the squared hinge, and "
             f"the loss is {self.loss}: leave it out, or give --loss squared_hinge."),
            (self.l1_ratio is not None and self.penalty != "elasticnet",
             f"l1-ratio is for the penalty elasticnet, and it is {self.penalty}: give --penalty "
             "elasticnet, or leave l1-ratio out."),
            (self.ratio and not_smooth,
             f"{not_smooth} with the penalty {self.penalty}: its solver wants a smooth loss of "
             "soft margins. Give another --loss and --C, or leave penalty out."),
        )  # fmt: skip

    def _first_given(self, *names: str) -> str | None:
        """Return the first of the settings that is given."""
        return next((name for name in names if getattr(self, name) not in (None, False)), None)

    def _of_the_paper(self) -> str | None:
        """Name a setting given that only the squared hinge has; None if there is none."""
        settings = {
            "faithful": self.faithful, "stage": self.stage not in ("auto", "ascent"),
            "b": self.b is not None, "variant": self.variant != "length", "delta 0": self.hard,
        }  # fmt: skip
        return next((name for name, is_given in settings.items() if is_given), None)

    @property
    def regression(self) -> bool:
        """Tell whether labels are numbers."""
        return self.loss in REGRESSION

    @property
    def augmentation(self) -> float:
        """Return the constant feature of the bias in training: ρ; FREE times as much where the bias
        is not penalised, so that its penalty ½ (bias/ρ)² is next to nothing; 0 without a bias."""
        factor = {"penalised": 1.0, "free": FREE, "none": 0.0}[self.intercept or "penalised"]
        return factor * self.rho

    @property
    def free(self) -> bool:
        """Whether there is a bias that is not penalised."""
        return self.intercept == "free"

    @property
    def ratio(self) -> float:
        """Return r, the part of the penalty that is ‖w‖₁; 0 for L2."""
        ratio = 0.5 if self.l1_ratio is None else self.l1_ratio
        return {"l2": 0.0, "elasticnet": ratio, "l1": 1.0}[self.penalty]

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
        return tuple(kinds.stage_of(word.strip()) for word in self.stage.split(","))

    @property
    def random(self) -> bool:
        """Tell whether later readings permute the rows."""
        return self.order == "random" and not self.faithful

    @property
    def tolerance(self) -> float:
        """Return the gap at which the run ends: tol, or 0 if faithful."""
        return 0.0 if self.faithful else self.tol

    def to_dict(self) -> dict[str, Any]:
        """Return every setting as a JSON value; ``parts``, ``epsilon``, ``held_out`` and penalty
        only where they decide the model."""
        plain = {name: getattr(self, name) for name in SETTINGS}
        plain["active_set"], plain["mini_epochs"] = self.active_set_bytes, mini_epoch_limit(self)
        if self.l1_ratio is None and self.penalty == "elasticnet":
            plain["l1_ratio"] = self.ratio
        left_out = {
            "parts": self.parts in (None, 1), "epsilon": self.epsilon is None,
            "held_out": not self.held_out, "penalty": not self.ratio, "l1_ratio": not self.ratio,
        }  # fmt: skip
        return {
            name: [*value] if isinstance(value, tuple) else copy(value)
            for name, value in plain.items()
            if not left_out.get(name)
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Create settings from JSON values; an unknown name is a SettingsError. ``columns`` may be
        the name of a file, whose other settings hold too where they are not given."""
        if (file := _file_of(values.get("columns"))) is not None:
            known = read_toml(file, "columns")
            values = {**known, **values, "columns": known.get("columns")}
        check_names(values, SETTINGS)
        return cls(**values)

    @classmethod
    def from_toml(cls, path: str | Path) -> Settings:
        """Read settings from a TOML file of ``name = value`` lines."""
        return cls.from_dict(read_toml(path, "settings"))

    def but(self, **changes: Any) -> Settings:
        """Return the same settings with some changed."""
        if all(getattr(self, name, ...) is value for name, value in changes.items()):
            return self
        return replace(self, **changes)


def label_weights(settings: Settings) -> dict[float | str, float]:
    """Return the weights of all labels that the names may mean: 1 a string, a number, True."""
    named = settings.class_weight if isinstance(settings.class_weight, Mapping) else {}
    return {label_meant(name): weight for name, weight in named.items()} | dict(named)


def mini_epoch_limit(settings: Settings) -> int:
    """Return the largest number of mini-epochs after a reading."""
    default = 500 if settings.loss in _KINKED else 50
    return default if settings.mini_epochs is None else settings.mini_epochs


def epoch_limit(settings: Settings) -> float:
    """Return the largest number of full epochs."""
    return math.inf if settings.faithful else settings.max_epochs


def _file_of(columns: Any) -> str | None:
    """Return the name of a file of columns, if they are one."""
    name = columns[0] if isinstance(columns, list | tuple) and len(columns) == 1 else columns
    return name if isinstance(name, str) and name.endswith(".toml") else None


SETTINGS = {entry.name: entry.metadata for entry in fields(Settings)}
"""Setting → ``kind``, ``words`` and ``sklearn``: see ``kinds.setting``."""

SKLEARN_NAMES: dict[str, str] = {
    known["sklearn"]: name for name, known in SETTINGS.items() if known["sklearn"]
}
"""Maps scikit-learn's name of a setting to ours."""

Settings.__doc__ = str(Settings.__doc__).replace(
    "{parameters}",
    "\n    ".join(f"{name} : {known['words']}" for name, known in SETTINGS.items()),
)


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

    memory: int | str | None = setting(None, "size", kinds.BYTES)
    cache_dir: str | None = setting(None, "output", ANY)
    threads: int | None = setting(None, "whole", at_least(1))
    run_dir: str | None = setting(None, "output", ANY)
    checkpoint_every: float = setting(300.0, "number", at_least(0))

    def __post_init__(self) -> None:
        kinds.make_fields(self)  # paths are absolute: a listener may change the working directory

    @property
    def thread_count(self) -> int:
        """Return the number of threads that read and train."""
        return self.threads or available_processors()

    @property
    def memory_limit(self) -> int:
        """Return the bytes that a run may use."""
        return available_memory() // 2 if self.memory is None else int(self.memory)


def meets(settings: Mapping[str, Any], gap: float, stop_reason: str) -> bool:
    """Tell whether a fit did what was asked: proved a gap within ``tol``; converged where that is 0
    or the procedure ``faithful``."""
    tol = 0.0 if settings.get("faithful") else settings["tol"]
    return bool(gap <= tol) if tol > 0.0 else stop_reason == "converged"
