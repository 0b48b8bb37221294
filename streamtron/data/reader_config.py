"""Define how shards are read: the settings of readers, and what a model keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from streamtron.core.errors import DataError
from streamtron.core.feature_names import Hashing, Vocabulary

if TYPE_CHECKING:
    from streamtron.data.transform import Transformer

IndexBase = Literal["auto", 0, 1]

ALL = (0.0, 1.0)
"""The share of all rows."""

Layout = Literal[
    "lists",
    "lists of names",
    "pairs",
    "pairs of names",
    "map",
    "map of names",
    "dense",
    "columns",
    "transformed",
]
"""How a row's features lie in a table, Parquet or Arrow.

``lists``, a list of column numbers or names and one of values beside it; ``pairs``, a list of
structs with a column and a value; ``map``, a map from columns to values; ``dense``, a list of a
number for every column, as embeddings are; ``columns``, every feature a column of numbers of its
own; ``transformed``, columns of any kinds that a transformer turns into features.
"""


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """How shards are to be read: one decision for the data set, kept in the model.

    Parameters
    ----------
    index_base : the number of the first column. ``"auto"`` takes text columns as numbered and
        settles on 1 after the first reading if column 0 never occurred; elsewhere it is 0.
    labels : ``"required"``, or ``"optional"`` (prediction: a row may come without one).
    weights_in_label : text only, a label is written ``label:weight``, and is a number.
    multiclass : labels may be more than two.
    multilabel : a row has any number of labels: ``1,5,7`` in text, a list, or one, in tables.
    numbers : labels are numbers to be predicted, and no classes.
    label_column, weight_column : names in tables; None = found by the usual names.
    features : names of the columns that hold the features; None = found by the usual names, or all
        columns if all are numbers.
    values_column : where the features are a list, the name of the list of their values; None =
        found by the usual names, ``""`` = there is none and all values are 1.
    weights : ``"ignored"`` (prediction): a shard may come without the column of weights.
    layout : of tables; None = layout and names are told by the first shard. Then all names are
        those found.
    asked : whether the features were named: if not, a later shard that has more is refused.
    settled_by : the first shard, or the model, that has decided the layout.
    unused : name and type of the other columns of the first shard.
    transformer : of scikit-learn, which turns columns into features.
    null_values : words that stand for a null in CSV beside the empty field; None = the usual ones.
    null_labels : in tables, rows without a label are ``"refused"`` or ``"left_out"``.
    names : features that have names get their columns by this hash, or from this vocabulary.
    of_text : whether the columns are those of a model that was made from text. Tables count columns
        from 0 whatever the text did, and are numbered as it was.
    unknown_features : a name that is not in the vocabulary, or a column of numbers that the first
        shard did not have, is ``"refused"``; or the name gets a number that is ``"out_of_range"``,
        which prediction counts, and both weigh 0.
    share : of the rows that are read, see ``deletions.in_share``; the others are held out.
    """

    index_base: IndexBase = "auto"
    labels: Literal["required", "optional"] = "required"
    weights_in_label: bool = False
    multiclass: bool = False
    multilabel: bool = False
    numbers: bool = False
    label_column: str | None = None
    weight_column: str | None = None
    features: tuple[str, ...] | None = None
    values_column: str | None = None
    weights: Literal["read", "ignored"] = "read"
    layout: Layout | None = None
    asked: bool = False
    settled_by: str = field(default="the first shard", compare=False)
    unused: tuple[tuple[str, str], ...] | None = field(default=None, compare=False)
    names: Hashing | Vocabulary | None = None
    transformer: Transformer | None = None
    null_values: tuple[str, ...] | None = None
    null_labels: Literal["refused", "left_out"] = "refused"
    of_text: bool = False
    unknown_features: Literal["refused", "out_of_range"] = "refused"
    share: tuple[float, float] = ALL

    def contract(self) -> dict[str, Any]:
        """Return what a model keeps of it, as plain JSON values."""
        plain = {name: getattr(self, field_) for name, (field_, _) in _CONTRACT.items() if field_}
        plain["hash_bits"] = getattr(self.names, "bits", None)
        plain["vocabulary"] = getattr(self.names, "names", None)
        if self.transformer is not None:
            plain["transformer"] = self.transformer.to_contract()
        said = {name: x for name, x in plain.items() if name not in _UNSAID or x != _UNSAID[name]}
        return {name: list(x) if isinstance(x, tuple) else x for name, x in said.items()}

    @classmethod
    def from_contract(cls, contract: Mapping[str, Any]) -> ReaderConfig:
        """Make the reading of a contract, without a transformer; what is absent there has its
        default."""
        values = dict[str, Any]()
        for name in filter(contract.__contains__, _CONTRACT):
            value = contract[name]
            if not _CONTRACT[name][1](value):
                entry = f"{name} = {value!r:.60}"
                raise DataError(f"the model's reader contract has {entry}. Fit again.")
            values[name] = tuple(value) if isinstance(value, list) else value
        known = ((field, name) for name, (field, _) in _CONTRACT.items() if field)
        fields = {field: values[name] for field, name in known if name in values}
        if fields.get("layout") is not None:
            fields = {"asked": True, "settled_by": "the model", **fields}
        if values.get("vocabulary") is not None:
            fields["names"] = Vocabulary(values["vocabulary"])
        elif values.get("hash_bits") is not None:
            fields["names"] = Hashing(values["hash_bits"])
        return cls(**fields)

    @property
    def table_base(self) -> int:
        """The number of the first column in tables."""
        return 1 if self.index_base == 1 and not self.of_text else 0

    @property
    def table_shift(self) -> int:
        """What the column numbers of tables are raised by."""
        return 1 if self.of_text and self.index_base == 1 else 0

    def key(self) -> dict[str, Any]:
        """Return plain values that are equal where the same file gives the same batches."""
        key = self.contract() | {"labels": self.labels, "weights": self.weights}
        del key["multiclass"]  # labels are stored as they are
        key["unknown_features"] = self.unknown_features
        if isinstance(self.names, Vocabulary):
            key["vocabulary"] = self.names.digest
        return key | ({"table_shift": self.table_shift} if self.table_shift else {})


def _are_names(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(x, str) for x in value))


_CONTRACT: dict[str, tuple[str | None, Callable[[Any], bool]]] = {
    "index_base": ("index_base", lambda x: type(x) in (int, str) and x in ("auto", 0, 1)),
    "weights_in_label": ("weights_in_label", lambda x: type(x) is bool),
    "multiclass": ("multiclass", lambda x: type(x) is bool),
    "multilabel": ("multilabel", lambda x: type(x) is bool),
    "numbers": ("numbers", lambda x: type(x) is bool),
    "label": ("label_column", lambda x: x is None or type(x) is str),
    "weight": ("weight_column", lambda x: x is None or type(x) is str),
    "layout": ("layout", lambda x: x is None or x in get_args(Layout)),
    "features": ("features", _are_names),
    "values": ("values_column", lambda x: x is None or type(x) is str),
    "asked": ("asked", lambda x: type(x) is bool),
    "hash_bits": (None, lambda x: x is None or (type(x) is int and 1 <= x <= 31)),
    "vocabulary": (None, _are_names),
    "null_values": ("null_values", _are_names),
    "null_labels": ("null_labels", lambda x: x in ("refused", "left_out")),
    "share": ("share", lambda x: isinstance(x, list) and [*map(type, x)] == [float, float]),
}
"""Name in the contract (and of the setting, where there is one) → field, if it has one of its own,
and whether a value is valid: a model may come from anywhere."""

_UNSAID = {"null_labels": "refused", "null_values": None, "share": ALL, "numbers": False}
"""What a contract does not say."""
