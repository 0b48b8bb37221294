"""Settings, which decide the model, and Machine, which does not (threads, paths, memory).

One table of settings: a field has the default, the kind and the range, the docstring the words.
From it come the keywords of Python, TOML files, the options of the command line and their help.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from streamtron.core.errors import SettingsError
from streamtron.core.files import read_toml
from streamtron.core.kinds import BELOW_1, POSITIVE, Range, make_fields, setting, stage_of
from streamtron.core.limits import available_memory, available_processors
from streamtron.core.text import label_meant

PRICES = (1e-20, 1e20)
"""Range of C, and of C_k = C · weight of the row · weight of its class: dual variables are float32,
and up to 2 C_k times the size of a label."""

CLASSIFICATION = ("squared_hinge", "log_loss", "hinge", "softmax")
"""The losses whose labels are classes."""

PROBABILITIES = ("log_loss", "softmax")
"""Those of them whose decisions have probabilities."""

LOG_LINK = ("poisson",)
"""The losses whose models predict e^z, z = w·x + bias."""

REGRESSION = (
    *("squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive"),
    *LOG_LINK,
)
"""The losses whose labels are numbers to be predicted."""

DEFAULT_ACTIVE_SET = 10**9

EPSILONS = {"huber": 1.35, "epsilon_insensitive": 0.1, "squared_epsilon_insensitive": 0.1}
"""Losses that have an ε, and its default."""

_KINKED = ("hinge", "epsilon_insensitive")
"""The losses that are not smooth."""

FREE = 4096.0
"""See ``Settings.augmentation``: a bias of 10 then costs 3·10⁻⁶. The certificate is of the problem
without that penalty (``certificate._price``)."""


class UnknownSetting(SettingsError, TypeError):
    """A name that is not one of a setting."""


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise an UnknownSetting if a name is not that of a setting; it lists similar ones.

    >>> check_names(["max_epoch"], ["max_epochs", "tol"])
    Traceback (most recent call last):
    ...
    streamtron.core.config.UnknownSetting: unknown setting max_epoch: did you mean max_epochs?
    """
    known = [*known]
    for name in given:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(str(name), known)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}."
            raise UnknownSetting(f"unknown setting {name}: {hint}")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings that decide the model of given rows.

    The problem is that of LIBLINEAR, with an L2 penalty: minimise
    ½(‖w‖² + w_bias²) + Σ C_k φ(l_k(w·x_k + ρ w_bias)) (a sum, not a mean), where φ(m) is
    max(0, 1 − m)² (``squared_hinge``), ln(1 + e^−m) (``log_loss``) or max(0, 1 − m) (``hinge``).
    With ``softmax`` all classes are one problem: ½‖W‖² + Σ C_k (ln Σ_j exp z_kj − z_ky), where z_kj
    are the decisions of the classes and y is that of the row.
    With ``elasticnet`` r‖w‖₁ + ½(1 − r)‖w‖² takes the place of ½‖w‖², with ``l1`` ‖w‖₁.

    Where labels are numbers t_k, φ is of m = w·x_k + ρ w_bias − t_k: ½ m² (``squared_error``), the
    same for |m| ≤ ε and ε |m| − ½ ε² beyond (``huber``), max(0, |m| − ε) (``epsilon_insensitive``)
    or its square (``squared_epsilon_insensitive``). With ``poisson``, z = w·x_k + ρ w_bias is the
    logarithm of the mean of t_k ≥ 0, and φ is half the deviance, e^z − t_k z + t_k ln t_k − t_k.

    Parameters
    ----------
    C : Price of a slack, LIBLINEAR's -c; C = 1/(2 Δ²) [1].
    loss : squared_hinge, log_loss (logistic regression), hinge or softmax (multinomial logistic
        regression); of numbers squared_error (ridge regression), huber, epsilon_insensitive or its
        square; of counts and rates poisson.
    epsilon : ε of huber [1.35] or epsilon_insensitive [0.1].
    penalty : l2 (½‖w‖²), l1 (‖w‖₁) or elasticnet, a mean.
    l1_ratio : r of elasticnet, r‖w‖₁ + ½(1 − r)‖w‖² [0.5].
    delta : Δ ≥ 0 in place of C; 0 is the hard margin.
    rho : Constant feature carrying the bias; 0 = none.
    intercept : penalised, free, none [penalised; free of numbers].
    class_weight : Factors of C: balanced, or LABEL=W,LABEL=W.
    stage : The paper's stages, each 0 < ε < 2, as in 1,0.1.
    variant : length or steps: the ℓ- or the t-margitron.
    b : b/R^(1+ε) or b/R², one a stage [from the bounds].
    tol : Relative duality gap to prove; 0 = converge.
    max_epochs : Full epochs at most.
    mini_epochs : Mini-epochs after a reading at most [50; 500 for hinge, epsilon_insensitive and
        softmax].
    active_set : Memory for rows held at once, 8 bytes a nonzero and 24 a row; affects the model [1
        GB, or what --memory leaves].
    seed : Seed of the order of rows.
    faithful : Follow the paper exactly; needs many readings.
    held_out : Share of the rows held out of training, by a hash of the shard's name and the row's
        number.
    parts : Deal the shards into N parts that train together, on threads or workers; affects the
        model [1; with workers one a shard, up to 64].
    index_base : Number of the first column in text; auto: 1 if column 0 never occurs.
    multiclass : Take any number of labels, one a row.
    multilabel : Take several labels a row or none: 1,5,7 in text, numbers or names; in Parquet and
        Arrow a list.
    weights_in_label : Read text labels as label:weight.
    label : Tables: the column of labels [by the usual names].
    weight : Tables: the column of row weights, ≥ 0 [none].
    features : Tables: the list or map of features, or columns of numbers, NAME,NAME,… [by the usual
        names].
    values : Tables: the values beside a list of features.
    hash_bits : Hash named features into 2^N columns, N up to 31.
    null_values : CSV: words for null [NA, N/A, ?, null, nan and such].
    columns : Tables: NAME:KIND,… with the kind number, category, date, list, text, category:hash,
        text:hash; FILE.toml; auto; auto,-NAME without a column.
    text : Tables: the column of documents, NAME or NAME:hash.
    transformer : Tables: a transformer of scikit-learn, by skops.
    sample_rows : First rows, to which a transformer is fitted, or all.
    on_null_label : Rows without a label: error or skip.
    allow_duplicate : Accept two shards with the same content.

    Raises
    ------
    SettingsError : a value out of range, or two that contradict each other.
    """

    C: float | None = setting(None, "number", Range(*PRICES))
    loss: str = setting("squared_hinge", (*CLASSIFICATION, *REGRESSION))
    epsilon: float | None = setting(None, "number", Range(0.0, 1e30))
    penalty: Literal["l2", "elasticnet", "l1"] = setting("l2", ("l2", "elasticnet", "l1"))
    l1_ratio: float | None = setting(None, "number", Range(0.0, 1.0))
    delta: float | None = setting(None, "number", Range(1e-10, 1e9, or_zero=True))
    rho: float = setting(1.0, "number", POSITIVE._replace(or_zero=True))
    intercept: Literal["penalised", "free", "none"] | None = setting(
        None, ("penalised", "free", "none")
    )
    class_weight: Mapping[str, float] | Literal["balanced"] | None = setting(None, "weights")
    stage: str = setting("auto", "stage")
    variant: Literal["length", "steps"] = setting("length", ("length", "steps"))
    b: tuple[float, ...] | None = setting(None, "numbers")
    tol: float = setting(0.001, "number", BELOW_1)
    max_epochs: int = setting(100, "whole", Range(1))
    mini_epochs: int | None = setting(None, "whole", Range(0))
    active_set: int | str | None = setting(None, "size", Range(0))
    seed: int = setting(0, "whole", Range(0))
    faithful: bool = setting(False, "flag")
    held_out: float = setting(0.0, "number", BELOW_1)
    parts: int | None = setting(None, "whole", Range(1))
    index_base: Literal["auto", 0, 1] = setting("auto", ("auto", 0, 1))
    multiclass: bool = setting(False, "flag")
    multilabel: bool = setting(False, "flag")
    weights_in_label: bool = setting(False, "flag")
    label: str | None = setting(None, "name")
    weight: str | None = setting(None, "name")
    features: tuple[str, ...] | None = setting(None, "names")
    values: str | None = setting(None, "text")
    hash_bits: int | None = setting(None, "whole", Range(1, 31))
    null_values: tuple[str, ...] | None = setting(None, "words")
    columns: tuple[str, ...] | None = setting(None, "columns")
    text: str | None = setting(None, "name")
    transformer: object = setting(None, "transformer")
    sample_rows: int | Literal["all"] = setting(100_000, "rows")
    on_null_label: Literal["error", "skip"] = setting("error", ("error", "skip"))
    allow_duplicate: bool = setting(False, "flag")

    def __post_init__(self) -> None:
        make_fields(self)
        if self.C is None and self.delta is None:
            object.__setattr__(self, "C", 1.0)
        if self.intercept is None:
            moves = self.regression and self.rho > 0.0
            object.__setattr__(self, "intercept", "free" if moves else "penalised")
        for clash in self._clashes():
            raise SettingsError(clash)
        for value in self.b or ():
            POSITIVE.check(value, "b")

    def _clashes(self) -> Iterator[str]:
        """Yield a sentence for settings that contradict each other."""
        loss, penalty, given = self.loss, self.penalty, self._first_given
        if self.C is not None and self.delta is not None:
            yield "C and delta: give one."
        if self.multiclass and self.multilabel:
            yield "multiclass and multilabel: give one."
        features = given("features", "values", "hash_bits")
        if (table := given("columns", "text", "transformer")) and features:
            yield f"{table} makes the features, without {features}: leave one out."
        if self.transformer is not None and self.columns:
            yield "columns and transformer: give one."
        if self.weights_in_label and self.multilabel:
            yield "weights-in-label with multilabel: give the weights in a column, --weight."
        if self.stages is None and self.stage != "auto" and (self.faithful or self.b):
            yield f"stage {self.stage} is not the paper's: leave faithful and b out."
        elif self.b is not None and len(self.b) != len(self.paper):
            yield f"b has {len(self.b)} numbers for the stages {self.stage}: give one a stage."
        if self.hard and not self.paper:
            yield "delta 0, the hard margin, is for the paper's procedure: give --C or --stage."
        if self.intercept == "free" and (self.rho == 0.0 or self.paper):
            yield "intercept free: give --C and --rho above 0, and leave faithful and stage out."
        classes = given("multiclass", "multilabel", "class_weight")
        if self.regression and classes:
            yield f"{classes} is for classes, and the loss {loss} for numbers: leave one out."
        softmax = given("multilabel", "parts") if self.softmax and self.parts != 1 else None
        if softmax or (self.softmax and (self.ratio or self.free)):
            what = softmax or (f"penalty {penalty}" if self.ratio else "intercept free")
            yield f"{what} with the loss softmax: give --loss log_loss, a classifier a class."
        if self.epsilon is not None and loss not in EPSILONS:
            yield f"the loss {loss} has no epsilon: leave it out, or give --loss huber."
        if self.epsilon == 0.0 and loss == "huber":
            yield "epsilon of huber is 0: expected more."
        paper = self._of_the_paper()
        if loss != "squared_hinge" and paper:
            yield f"{paper} is for the squared hinge, and the loss is {loss}: leave one out."
        if self.l1_ratio is not None and penalty != "elasticnet":
            yield f"l1-ratio is for --penalty elasticnet, and the penalty is {penalty}."
        if self.ratio and (loss in _KINKED or paper):
            what = paper or loss
            yield f"{what} with --penalty {penalty}: expected a smooth loss, and --C above 0."

    def _first_given(self, *names: str) -> str | None:
        """Return the first of the settings that is given."""
        return next((name for name in names if getattr(self, name) not in (None, False)), None)

    def _of_the_paper(self) -> str | None:
        """Name a setting given that only the squared hinge has; None if there is none."""
        given = {"stage": self.stages, "variant": self.variant != "length"}
        return self._first_given("faithful", "b") or next((n for n in given if given[n]), None)

    @property
    def regression(self) -> bool:
        """Tell whether labels are numbers."""
        return self.loss in REGRESSION

    @property
    def softmax(self) -> bool:
        """Tell whether the weights of all classes are one problem."""
        return self.loss == "softmax"

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
    def price(self) -> float:
        """Return C = 1 / (2 Δ²) of a row of weight 1; ∞ where Δ = 0."""
        if self.C is not None:
            return self.C
        return 0.5 / self.delta**2 if self.delta else math.inf

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
        return self.many_labels and not self.softmax

    @property
    def many_labels(self) -> bool:
        """Return whether labels may be more than two."""
        return self.multiclass or self.multilabel

    @property
    def stages(self) -> tuple[float, ...] | None:
        """Return the ε of the stages given; None for auto and ascent."""
        if self.stage in ("auto", "ascent"):
            return None
        return tuple(stage_of(word.strip()) for word in self.stage.split(","))

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files that settings name."""
        return (self.transformer,) if isinstance(self.transformer, str) else ()

    @property
    def paper(self) -> tuple[float, ...]:
        """Return the ε of the stages of the paper's procedure; none where that does not train."""
        return self.stages or ((1.0, 0.1) if self.faithful or self.b else ())

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
            "parts": self.parts in (None, 1),
            "epsilon": self.epsilon is None,
            "held_out": not self.held_out,
            "penalty": not self.ratio,
            "l1_ratio": not self.ratio,
            "transformer": True,  # it is in the model, with what it was fitted to
            "null_values": self.null_values is None,
            "sample_rows": not self._first_given("columns", "text", "transformer"),
            "on_null_label": self.on_null_label == "error",
        }
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

    def but(self, **changes: Any) -> Settings:
        """Return the same settings with some changed; C replaces delta, and delta C."""
        for name, rival in (("C", "delta"), ("delta", "C")):
            if changes.get(name) is not None:
                changes.setdefault(rival, None)
        if all(getattr(self, name, ...) is value for name, value in changes.items()):
            return self
        return replace(self, **changes)


def label_weights(settings: Settings) -> dict[float | str, float]:
    """Return the weights of all labels that the names may mean: 1 a string, a number, True."""
    named = settings.class_weight if isinstance(settings.class_weight, Mapping) else {}
    return {label_meant(name): weight for name, weight in named.items()} | dict(named)


def mini_epoch_limit(settings: Settings) -> int:
    """Return the largest number of mini-epochs after a reading."""
    default = 500 if settings.softmax or settings.loss in _KINKED else 50
    return default if settings.mini_epochs is None else settings.mini_epochs


def epoch_limit(settings: Settings) -> float:
    """Return the largest number of full epochs."""
    return math.inf if settings.faithful else settings.max_epochs


def _file_of(columns: Any) -> str | None:
    """Return the name of a file of columns, if they are one."""
    name = columns[0] if isinstance(columns, list | tuple) and len(columns) == 1 else columns
    return name if isinstance(name, str) and name.endswith(".toml") else None


SETTINGS = {entry.name: entry for entry in fields(Settings)}

_NAMES = tuple(SETTINGS)

PROBLEM = _NAMES[: _NAMES.index("stage")]
"""The settings that are the problem to solve."""

READING = _NAMES[_NAMES.index("index_base") :]
"""The settings that say how shards are read."""

PLACES = _NAMES[_NAMES.index("weights_in_label") : _NAMES.index("columns")]
"""Those of them that say where things are in a shard."""

PAPER = ("delta", "stage", "variant", "b", "mini_epochs", "faithful")
"""The settings of the paper's procedure."""

SKLEARN_NAMES = {name: name for name in (*PROBLEM, "tol") if name not in ("delta", "rho")}
SKLEARN_NAMES |= {"intercept_scaling": "rho", "max_iter": "max_epochs", "random_state": "seed"}
"""Maps scikit-learn's name of a setting to ours."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory, threads and directories, which never change a bit of the model.

    Parameters
    ----------
    memory : A run that needs more is refused [half of all].
    cache_dir : Directory for prepared shards [MODEL.run/cache].
    threads : Threads of this process [all processors].
    run_dir : Directory for states and cache [MODEL.run].
    """

    memory: int | str | None = setting(None, "size", Range(0))
    cache_dir: str | None = setting(None, "output")
    threads: int | None = setting(None, "whole", Range(1))
    run_dir: str | None = setting(None, "output")

    def __post_init__(self) -> None:
        make_fields(self)  # paths are absolute: a listener may change the working directory

    @property
    def thread_count(self) -> int:
        """Return the number of threads that read and train."""
        return self.threads or available_processors()

    @property
    def memory_limit(self) -> int:
        """Return the bytes that a run may use."""
        return available_memory() // 2 if self.memory is None else int(self.memory)


MACHINE = {entry.name: entry for entry in fields(Machine)}

WORDS: dict[str, str] = {
    name: " ".join(words.split())
    for table in (Settings, Machine)
    for name, words in re.findall(r"^    (\w+) : (.*(?:\n {8}.*)*)", table.__doc__ or "", re.M)
}
"""Setting → what it is, for help; [in brackets] what holds if it is not given."""


def meets(settings: Mapping[str, Any], gap: float, stop_reason: str) -> bool:
    """Tell whether a fit did what was asked: proved a gap within ``tol``; converged where that is 0
    or the procedure ``faithful``."""
    tol = 0.0 if settings.get("faithful") else settings["tol"]
    return bool(gap <= tol) if tol > 0.0 else stop_reason == "converged"


def prices(C: float | None, delta: float | None) -> dict[str, float | None]:
    """Return C and Δ, given one of them or none, where C is 1: C = 1/(2 Δ²), None if Δ is 0."""
    if delta is None:
        C = 1.0 if C is None else C
        return {"C": C, "delta": (1.0 / (2.0 * C)) ** 0.5}
    return {"C": 0.5 / delta**2 if delta else None, "delta": delta}


def problem_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return loss, penalty and price of kept settings."""
    names = ("loss", "epsilon", "penalty", "l1_ratio", "C", "delta")
    known = {"penalty": "l2", **settings}
    return {name: known[name] for name in names if known.get(name) is not None}
