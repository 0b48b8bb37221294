"""Tell layouts of features by types, and read them: a record batch in, offsets, columns and values
out.

A new layout is a function in ``LAYOUTS``; ``table_rows`` checks the columns for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.data.reader_config import Layout
from streamtron.data.row_batch import Offsets, Unknown, beyond_float32, offsets_of, row_of

if TYPE_CHECKING:
    from streamtron.data.transform import Made, Transformer

KEY_NAMES = ("index", "indices", "column", "key", "name", "feature", "term", "token", "i", "k")
VALUE_NAMES = ("value", "values", "val", "weight", "count", "v", "x")
"""The usual names of a pair's two fields."""


def layout_of(type_: pa.DataType) -> Layout | None:
    """Say how the features lie in a column of this type; None where there is no way."""
    types, kind = pa.types, None
    if types.is_map(type_):
        layout = "map"
        kind = _key_kind(type_.key_type) if is_number(plain(type_.item_type)) else None
    elif not is_list(type_):
        return "columns" if is_number(plain(type_)) or types.is_boolean(plain(type_)) else None
    elif types.is_floating(item := type_.value_type):
        return "dense"
    elif types.is_struct(item):
        layout, pair = "pairs", pair_fields(item)
        kind = _key_kind(item.field(pair[0]).type) if pair else None
    else:
        layout, kind = "lists", _key_kind(item)
    return None if kind is None else cast(Layout, layout + kind)


def _key_kind(type_: pa.DataType) -> str | None:
    if pa.types.is_integer(plain(type_)):
        return ""
    return " of names" if is_string(plain(type_)) else None


def pair_fields(struct: pa.DataType) -> tuple[int, int] | None:
    """Return the positions of a pair's column and value; None if the struct is no pair."""
    names = [field.name.lower() for field in struct]
    keys = [k for k, name in enumerate(names) if name in KEY_NAMES]
    values = [k for k, name in enumerate(names) if name in VALUE_NAMES]
    if len(keys) != 1 or len(values) != 1:
        return None
    fits = _key_kind(struct.field(keys[0]).type) is not None
    fits = fits and is_number(plain(struct.field(values[0]).type))
    return (keys[0], values[0]) if fits else None


def plain(type_: pa.DataType) -> pa.DataType:
    """Return the type of what is encoded, where it is a dictionary."""
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def is_list(type_: pa.DataType) -> bool:
    """Tell whether a type is one of the lists that are read."""
    types = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_type(type_) for is_type in types)


def is_string(type_: pa.DataType) -> bool:
    """Tell whether a type is text."""
    types = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_type(type_) for is_type in types)


def is_number(type_: pa.DataType) -> bool:
    """Tell whether a type is an integer or a float of any size."""
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


class Columns(NamedTuple):
    """The names of the columns to read; None where the table has none and needs none."""

    label: str | None
    layout: Layout
    features: tuple[str, ...]
    values: str | None = None
    weight: str | None = None
    transformer: Transformer | None = None
    """how columns become features, in the layout ``transformed``"""
    made: Callable[[pa.RecordBatch, Spot], Made] | None = None
    """makes them, in this process or in others"""
    lengths: list[int] | None = None
    """takes the length of the first list of numbers in the file, in the layout ``dense``"""

    @property
    def all(self) -> list[str]:
        """Every column to read, once."""
        names = (self.label, *self.features, self.values, self.weight)
        return list(dict.fromkeys(name for name in names if name is not None))

    @property
    def numbers(self) -> set[str]:
        """The columns whose numbers may be whole or not."""
        names = {self.label, self.weight, self.values}
        if self.transformer is not None:
            names |= {name for name, kind in self.transformer.inputs if kind == "number"}
        elif self.layout in ("columns", "dense"):
            names |= {*self.features}
        return {name for name in names if name is not None}

    @property
    def have_names(self) -> bool:
        """Whether features are named rather than numbered."""
        return self.layout.endswith("names")


class Spot(NamedTuple):
    """Where a batch begins: in ``part`` of the file, such as ``"row group 3"``, or at a line."""

    name: str
    part: str
    first_row: int

    def row(self, i: int) -> str:
        """Name row i of the batch."""
        rows = {"line": "line", "": "row"}.get(self.part, f"{self.part}, row")
        return f"{self.name}, {rows} {self.first_row + i}"

    def refuse(self, i: int, what: str) -> NoReturn:
        """Raise DataError about row i of the batch."""
        raise DataError(f"{self.row(i)}: {what}")


class Entries(NamedTuple):
    """A batch's features by row: ``columns`` are integers, or names; ``values`` None: all are 1.
    ``unknown`` : see ``RowBatch``."""

    indptr: Offsets
    columns: Any
    values: Any
    unknown: Unknown | None = None


def lists(batch: pa.RecordBatch, columns: Columns, spot: Spot) -> Entries:
    """Read a list of column numbers or names, and one of values where there is one."""
    [column] = columns.features
    indptr, keys = _items(batch.column(column), column, spot)
    if columns.values is None:
        return Entries(indptr, _keys(keys), None)
    values_indptr, values = _items(batch.column(columns.values), columns.values, spot)
    if not np.array_equal(indptr, values_indptr):
        lengths, value_lengths = np.diff(indptr), np.diff(values_indptr)
        row = first(lengths != value_lengths)
        what = f"{lengths[row]} features in {column!r} and {value_lengths[row]} values in "
        what += f"{columns.values!r}. A row needs as many of one as of the other."
        spot.refuse(row, what)
    return Entries(indptr, _keys(keys), float32(indptr, to_numpy(values), spot))


def pairs(batch: pa.RecordBatch, columns: Columns, spot: Spot) -> Entries:
    """Read a list of structs of a column and a value, or a map."""
    [column] = columns.features
    array = batch.column(column)
    indptr, structs = _items(array, column, spot)
    fields = None if pa.types.is_map(array.type) else pair_fields(structs.type)
    keys, values = (decoded(structs.field(k)) for k in fields or (0, 1))
    for items in (keys, values):
        _no_null_items(items, indptr, column, spot)
    return Entries(indptr, _keys(keys), float32(indptr, to_numpy(values), spot))


def dense(batch: pa.RecordBatch, columns: Columns, spot: Spot) -> Entries:
    """Read a list of numbers, as embeddings are: value j is column j; zeros are not stored."""
    [column] = columns.features
    indptr, items = _items(batch.column(column), column, spot)
    lengths = np.diff(indptr)
    assert columns.lengths is not None
    columns.lengths.extend(lengths[:1].tolist())
    width = columns.lengths[0] if columns.lengths else 0
    if (odd := lengths != width).any():
        row = first(odd)
        what = f"{lengths[row]} numbers in column {column!r}, and in the rows before {width}"
        spot.refuse(row, f"{what}. All lists of numbers need one length.")
    return stored(float32(indptr, to_numpy(items), spot).reshape(len(batch), width))


def stored(matrix: NDArray[Any]) -> Entries:
    """Return what is not 0 in a matrix."""
    is_stored = matrix != 0
    indptr = offsets_of(np.count_nonzero(is_stored, axis=1))
    columns = np.broadcast_to(np.arange(matrix.shape[1], dtype=np.uint32), matrix.shape)
    if indptr[-1] == matrix.size:
        return Entries(indptr, columns.ravel(), matrix.ravel())
    return Entries(indptr, columns[is_stored], matrix[is_stored])


def dense_columns(batch: pa.RecordBatch, columns: Columns, spot: Spot) -> Entries:
    """Read columns of numbers, one a feature in their order; zeros are not stored."""
    values = np.empty((len(batch), len(columns.features)), dtype=np.float32)
    for j, column in enumerate(columns.features):
        array = decoded(batch.column(column))
        ways = ", or say what the columns are: --columns auto"
        no_nulls(array, column, spot, ways)
        values[:, j] = float32(np.arange(len(batch) + 1), to_numpy(array), spot, column)
    return stored(values)


def transformed(batch: pa.RecordBatch, columns: Columns, spot: Spot) -> Entries:
    """Make rows of columns by a transformer; zeros are not stored."""
    assert columns.made is not None
    rows, unknown = columns.made(batch.select(columns.features), spot)
    rows.data = float32(rows.indptr, rows.data, spot)
    rows.eliminate_zeros()
    return Entries(rows.indptr.astype(np.int64), rows.indices, rows.data, unknown)


class LayoutKind(NamedTuple):
    """What messages call a layout, and the function that reads it."""

    words: str
    read: Callable[[pa.RecordBatch, Columns, Spot], Entries]


LAYOUTS: dict[Layout, LayoutKind] = {
    "lists": LayoutKind("lists of column numbers", lists),
    "lists of names": LayoutKind("lists of names", lists),
    "pairs": LayoutKind("lists of pairs of column number and value", pairs),
    "pairs of names": LayoutKind("lists of pairs of name and value", pairs),
    "map": LayoutKind("maps from column numbers to values", pairs),
    "map of names": LayoutKind("maps from names to values", pairs),
    "dense": LayoutKind("lists of a number for every column", dense),
    "columns": LayoutKind("columns of numbers", dense_columns),
    "transformed": LayoutKind("columns of a transformer", transformed),
}


def items_of(array: pa.Array, column: str, spot: Spot) -> tuple[Offsets, pa.Array]:
    """Return offsets from 0 and the items of a list column; a null has none."""
    if pa.types.is_map(array.type):  # Arrow has no such functions for maps
        places = to_numpy(array.offsets).astype(np.int64)
        offsets, items = places - places[0], array.values[places[0] : places[-1]]
    else:
        lengths = to_numpy(filled(pc.list_value_length(array), 0))
        offsets, items = offsets_of(lengths), decoded(array.flatten())
    _no_null_items(items, offsets, column, spot)
    return offsets, items


def _items(array: pa.Array, column: str, spot: Spot) -> tuple[Offsets, pa.Array]:
    no_nulls(array, column, spot)
    return items_of(array, column, spot)


def filled(array: pa.Array, value: float | str) -> pa.Array:
    """Return an array with ``value`` for its nulls; see ``to_numpy``."""
    return array.fill_null(value) if array.null_count else array


def to_numpy(array: pa.Array) -> NDArray[Any]:
    """Return a NumPy array. Of numbers without a null pyarrow is not asked for it: with its first
    conversion it imports pandas, .2 s and 36 MB."""
    types = pa.types
    if not array.null_count and (types.is_integer(array.type) or types.is_floating(array.type)):
        return np.from_dlpack(array)
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers


def to_arrow(array: NDArray[np.float64]) -> pa.Array:
    """Return an Arrow array of float64, NaN as null; see ``to_numpy``."""
    valid = np.packbits(~np.isnan(array), bitorder="little")
    return pa.Array.from_buffers(pa.float64(), len(array), [*map(pa.py_buffer, (valid, array))])


def decoded(array: pa.Array) -> pa.Array:
    """Return an array without a dictionary, in which a null may hide."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with large strings in place of the views that polars writes, which pyarrow hardly
    takes."""
    fields = [field.with_type(_without_views(field.type)) for field in batch.schema]
    schema = pa.schema(fields, batch.schema.metadata)
    return batch if schema == batch.schema else batch.cast(schema)


def _without_views(type_: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_string_view(type_):
        return pa.large_string()
    if types.is_dictionary(type_):
        return pa.dictionary(type_.index_type, _without_views(type_.value_type), type_.ordered)
    if types.is_map(type_):
        return pa.map_(_without_views(type_.key_type), _without_views(type_.item_type))
    if types.is_struct(type_):
        return pa.struct([field.with_type(_without_views(field.type)) for field in type_])
    if not is_list(type_):
        return type_
    item = type_.value_field.with_type(_without_views(type_.value_type))
    if types.is_fixed_size_list(type_):
        return pa.list_(item, type_.list_size)
    return pa.large_list(item) if types.is_large_list(type_) else pa.list_(item)


def _keys(array: pa.Array) -> Any:
    return to_numpy(array) if pa.types.is_integer(array.type) else array


def _no_null_items(items: pa.Array, indptr: Offsets, column: str, spot: Spot) -> None:
    """Refuse the first null within the lists of a column."""
    if items.null_count:
        row = row_of(indptr, first(items.is_null()))
        spot.refuse(row, f"a null in the list of column {column!r}. Remove it or fill it in.")


def no_nulls(array: pa.Array, column: str, spot: Spot, advice: str = "") -> None:
    """Refuse the first null of a column."""
    if array.null_count:
        row = first(array.is_null())
        spot.refuse(row, f"null in column {column!r}. Fill it in or remove the row{advice}.")


def float32(
    indptr: Offsets, numbers: NDArray[Any], spot: Spot, column: str | None = None
) -> NDArray[np.float32]:
    """Round values to float32; refuse what it cannot hold, with the ``column`` if given."""
    inside = "" if column is None else f" in column {column!r}"
    if numbers.dtype.kind in "iu" and (unfit := beyond_float32(numbers)).any():
        at = first(unfit)
        spot.refuse(
            row_of(indptr, at),
            f"value {numbers[at]}{inside} is an integer beyond 2²⁴ that float32 cannot hold. "
            "Rescale its column, or make identifiers columns of their own.",
        )
    with np.errstate(over="ignore"):  # judged below, by row
        values = numbers.astype(np.float32, copy=False)
    finite = np.isfinite(values)
    if not finite.all():
        at = first(~finite)
        row, number = row_of(indptr, at), float(numbers[at])
        if np.isfinite(number):
            spot.refuse(row, f"value {number!r}{inside} overflows float32. Rescale the column.")
        spot.refuse(row, f"value {number!r}{inside}. Values must be finite; remove it or the row.")
    return values


def first(mask: pa.Array | NDArray[np.bool_]) -> int:
    """Return the position of the first true entry."""
    return int(np.argmax(np.asarray(mask)))
