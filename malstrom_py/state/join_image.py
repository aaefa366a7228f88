"""The state of a join in columns as a `ColumnImage`: the records of both streams, a row each, numbered in their order.

As Python values the state of a key is then a dict, number of the row -> (moment, side, left value, right value), of
which only the value of its side counts. ``moment``: the start of a pane, or the time of a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from malstrom_py.data.row_form import DICTS, SCALAR, RowForm
from malstrom_py.state.change_log import SlotsOf
from malstrom_py.state.column_image import ColumnImage, Shape, is_state, widened
from malstrom_py.state.group_index import NotColumnar

if TYPE_CHECKING:
    import pyarrow as pa


class Kind(NamedTuple):
    """What the values of one stream are."""

    schema: pa.Schema
    form: RowForm


class Rows(NamedTuple):
    """Records of one stream: a key, a moment and a value per row. Keys are int64, large_string or large_binary."""

    keys: pa.Array
    moments: pa.Array
    values: pa.RecordBatch

    def filter(self, mask: pa.Array) -> Rows:
        """Return some of the rows."""
        return Rows(self.keys.filter(mask), self.moments.filter(mask), self.values.filter(mask))


def image_of(sides: Sequence[Rows | None], kinds: Sequence[Kind | None], slots_of: SlotsOf | None) -> ColumnImage:
    """Return the image of the rows of two streams, of these kinds; None: of a stream that has not sent anything."""
    import numpy as np
    import pyarrow as pa

    if not all(is_state(field.type) for kind in kinds if kind for field in as_stored(kind.schema)):
        raise NotColumnar("values of types that no column stores")
    counts = [0 if rows is None else len(rows.keys) for rows in sides]
    keys = one_key_column([rows.keys for rows in sides if rows is not None])
    moments = pa.concat_arrays([pa.array([], pa.int64()), *(rows.moments for rows in sides if rows is not None)])
    columns = [moments, pa.array(np.repeat(np.arange(2, dtype=np.int8), counts))]
    shapes: list[Shape] = [0, 1]
    for number, (rows, kind) in enumerate(zip(sides, kinds, strict=True)):
        if rows is None or kind is None:
            shapes.append(())
            continue
        before, after = (0, counts[1]) if number == 0 else (counts[0], 0)
        places = range(len(columns), len(columns) + rows.values.num_columns)
        columns += [
            pa.concat_arrays([pa.nulls(before, column.type), column, pa.nulls(after, column.type)])
            for column in rows.values.columns
        ]
        names = kind.schema.names
        if len(set(names)) < len(names):
            raise NotColumnar("columns of one name")
        shapes.append(places[0] if kind.form is SCALAR else {"record": dict(zip(names, places, strict=True))})
    numbers = pa.array(np.arange(sum(counts), dtype=np.int64))
    return ColumnImage(keys, slots_of_keys(keys, slots_of), columns, tuple(shapes), numbers)


def with_gone(image: ColumnImage, keys: pa.Array, slots_of: SlotsOf | None) -> ColumnImage:
    """Return ``image`` with those of ``keys`` that it lacks as gone."""
    gone = keys.filter(are_in(keys, image.keys, inverted=True))
    return image._replace(gone=gone, gone_slots=slots_of_keys(gone, slots_of)) if len(gone) else image


def slots_of_keys(keys: pa.Array, slots_of: SlotsOf | None) -> Any:
    """Return a vector of the slots of ``keys``; 0 without ``slots_of``."""
    import numpy as np

    if slots_of is None or not len(keys):
        return np.zeros(len(keys), np.int64)
    encoded = keys.dictionary_encode("encode")
    return np.array(slots_of(encoded.dictionary.to_pylist()), np.int64)[encoded.indices.to_numpy()]


def rows_in(image: ColumnImage) -> tuple[list[Rows], list[Kind | None]]:
    """Return the rows of each stream, and what their values are. `NotColumnar` if the image is of another step."""
    import pyarrow as pa

    shape, states = image.shape, image.states
    if image.panes is None or type(shape) is not tuple or len(shape) != 4 or shape[:2] != (0, 1):
        raise NotColumnar("states of another shape")
    rows, kinds = list[Rows](), list[Kind | None]()
    for side, of_side in enumerate(shape[2:]):
        if type(of_side) is int:
            fields, form = {"value": of_side}, SCALAR
        elif type(of_side) is dict and "record" in of_side:
            fields, form = of_side["record"], DICTS
        elif of_side == ():
            fields, form = {}, DICTS
        else:
            raise NotColumnar("states of another shape")
        if not all(type(place) is int for place in fields.values()):
            raise NotColumnar("states of another shape")
        values = pa.RecordBatch.from_arrays([states[place] for place in fields.values()], list(fields))
        mask = pa.array(states[1].to_numpy() == side)
        if not fields:
            rows.append(Rows(image.keys[:0], states[0][:0], values))
            kinds.append(None)
            continue
        rows.append(Rows(image.keys, states[0], values).filter(mask))
        kinds.append(Kind(values.schema, form))
    return rows, kinds


def records_of(state: Mapping[int, Any]) -> Iterator[tuple[Any, int, Any]]:
    """Yield (moment, side, value) of each record of a key, in order, of the Python values of an image."""
    for _, (moment, side, left, right) in sorted(state.items()):
        yield moment, side, right if side else left


def are_in(keys: pa.Array, known: pa.Array, *, inverted: bool = False) -> pa.Array:
    """Return which of ``keys`` are ``known`` or, ``inverted``, are not. `NotColumnar` if they are of other types."""
    import pyarrow.compute as pc

    if keys.null_count == len(keys):
        keys = _typed(keys, known.type)
    found = pc.call_function("is_in", [keys], pc.SetLookupOptions(_typed(known, keys.type), skip_nulls=False))
    return pc.call_function("invert", [found]) if inverted else found


def _typed(keys: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return ``keys`` as ``kind``, which is another one only if all are None."""
    import pyarrow as pa

    if keys.type == kind:
        return keys
    if keys.null_count < len(keys):
        raise NotColumnar("keys of several types")
    return pa.nulls(len(keys), kind)


def one_key_column(keys: Iterable[pa.Array]) -> pa.Array:
    """Return columns of keys as one; `NotColumnar` if they are of several types."""
    import pyarrow as pa

    some = [column for column in keys if len(column)]
    kind = next((column.type for column in some if column.null_count < len(column)), pa.large_string())
    return pa.concat_arrays([pa.array([], kind), *(_typed(column, kind) for column in some)])


def kept_keys(keys: Sequence[Any]) -> pa.Array:
    """Return columns of keys of one kind as one, in their type if it is the same."""
    import pyarrow as pa

    alike = all(one.type == other.type for one, other in pairwise(keys))
    return pa.concat_arrays(keys) if alike and keys else one_key_column(map(plain_key, keys))


def as_stored(schema: pa.Schema) -> pa.Schema:
    """Return the schema in which an image has columns of ``schema``."""
    import pyarrow as pa

    wide = {"string": pa.large_string(), "string_view": pa.large_string(), "binary": pa.large_binary()}
    wide |= {"binary_view": pa.large_binary(), "null": pa.large_binary()}
    types = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
    return pa.schema([(name, wide.get(str(kind), kind)) for name, kind in zip(schema.names, types, strict=True)])


def fitted(values: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch | None:
    """Return ``values`` in the columns of ``schema``; None unless they are stored alike."""
    import pyarrow as pa

    if values.schema.equals(schema):
        return values
    if not as_stored(values.schema).equals(as_stored(schema)):
        return None
    try:
        cast = [column.cast(field.type) for column, field in zip(values.columns, schema, strict=True)]
    except pa.ArrowException:  # too long for the offsets, or no such cast
        return None
    return pa.RecordBatch.from_arrays(cast, schema=schema)


def plain_key(keys: Any) -> pa.Array:
    """Return keys in the one type of their kind."""
    import pyarrow as pa

    column = widened(keys)
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    return column if pa.types.is_large_string(column.type) else column.cast(pa.large_binary())
