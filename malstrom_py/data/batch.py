"""The batch: the unit that moves on every edge of a job. Immutable once it has been sent.

Row layout, `Batch`: parallel Python lists, because one list per column costs a third of one object per record.
Column layout, `ColumnBatch`: an Arrow ``RecordBatch``, which steps that take columns pass on unchanged. Its row form
says what the values are (`malstrom_py.data.row_form`); they are made when they are first read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import compress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, final

from malstrom_py.data.equality import settled_keys, settled_of_column
from malstrom_py.data.row_form import DICTS, TUPLES, RowForm, python_values
from malstrom_py.data.schema import for_polars
from malstrom_py.errors import CodecError

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


def picker(indices: Sequence[Any]) -> Callable[[Any], Sequence[Any]]:
    """Return a function of a list or dict that returns its entries at ``indices``, in half the time of a loop.

    >>> picker([1, 0, 1])(["a", "b"]), picker(["x"])({"x": 5})
    (('b', 'a', 'b'), (5,))
    """
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda table: tuple(table[index] for index in indices)


class Batch:
    """Rows as parallel columns of equal length.

    ``values`` is always there; ``keys`` is None on an unkeyed stream and ``timestamps`` (int64 in the
    stream's unit) None on one without timestamps. ``part`` names the source partition all rows come from, as long
    as they have not been exchanged (T1: lateness belongs to the partition). A batch and its lists are shared between
    branches of the graph: never change them. Test mode finds what was changed.

    >>> batch = Batch([10, 20, 30], keys=["a", "b", "a"])
    >>> len(batch), batch.compress([1, 0, 1]).values
    (3, [10, 30])
    """

    __slots__ = ("_span", "keys", "part", "timestamps", "values")

    columns: pa.RecordBatch | None = None
    """The values as columns; None if the batch has rows only."""

    key_column: pa.Array | None = None
    """The keys as a column; None if they are a list."""

    time_column: pa.Array | None = None
    """The timestamps as an int64 column; None if they are a list."""

    def __init__(
        self,
        values: list[Any],
        *,
        keys: list[Any] | None = None,
        timestamps: list[int] | None = None,
        part: str | None = None,
        span: tuple[int, int] | None = None,
    ) -> None:
        self.values = values
        self.keys = keys
        self.timestamps = timestamps
        self.part = part
        self._span = span

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        columns = [name for name in ("keys", "values", "timestamps") if getattr(self, name) is not None]
        return f"Batch({len(self)} rows of {', '.join(columns)})"

    @property
    def span(self) -> tuple[int, int]:
        """The smallest and the largest timestamp of a batch that has rows and timestamps; known once it was asked."""
        if self._span is None:
            timestamps = self.timestamps or [0]
            self._span = min(timestamps), max(timestamps)
        return self._span

    def with_values(self, values: list[Any]) -> Batch:
        """Return the same rows with other values, one for one."""
        return Batch(values, keys=self.keys, timestamps=self.timestamps, part=self.part, span=self._span)

    def with_keys(self, keys: list[Any]) -> Batch:
        """Return the same rows under other keys, for an exchange: the batch has no partition any more."""
        return Batch(self.values, keys=keys, timestamps=self.timestamps, span=self._span)

    def with_timestamps(self, timestamps: list[int], span: tuple[int, int] | None = None) -> Batch:
        """Return the same rows at other times. ``span``: the smallest and the largest, if they are known."""
        return Batch(self.values, keys=self.keys, timestamps=timestamps, part=self.part, span=span)

    def of_part(self, part: str | None, *, named: bool) -> Batch:
        """Return the same rows as read from ``part``. ``named``: the names of columns come from a source's schema."""
        return Batch(self.values, keys=self.keys, timestamps=self.timestamps, part=part, span=self._span)

    def compress(self, mask: Sequence[Any]) -> Batch:
        """Return the rows whose entry in ``mask`` is true, in order."""
        return self._each(lambda column: list(compress(column, mask)))

    def cut(self, start: int, end: int) -> Batch:
        """Return the rows from ``start`` up to ``end``."""
        return self._each(lambda column: column[start:end])

    def take(self, indices: Sequence[int]) -> Batch:
        """Return the rows at ``indices``, in that order; an index may repeat."""
        pick = picker(indices)
        return self._each(lambda column: list(pick(column)))

    def drop(self, indices: Iterable[int]) -> Batch:
        """Return all rows but those at ``indices``."""
        mask = bytearray(b"\x01") * len(self)
        for index in indices:
            mask[index] = 0
        return self.compress(mask)

    def _each(self, pick: Any) -> Batch:
        keys, timestamps = self.keys, self.timestamps
        return Batch(
            pick(self.values),
            keys=None if keys is None else pick(keys),
            timestamps=None if timestamps is None else pick(timestamps),
            part=self.part,
        )


@final
class ColumnBatch(Batch):
    """Rows as columns: ``columns`` holds the values, one field each; keys and timestamps are columns or lists.

    ``frame`` may be given instead of ``columns``, with the ``schema`` of its Arrow form. ``values``, ``keys`` and
    ``timestamps`` are lists here too, made when they are first read and then kept; ``form`` says what the values are,
    by default one dict per row. ``rows_made``: whether the values have been made. Steps that take columns use
    ``columns`` (Arrow) or `frame` (Polars), which share memory, or one column by name: `series`, `column` or `field`.
    ``named``: the column names come from a source's schema, so errors may list them; names of columns made from dicts
    may be data. ``computed``: a function of the user's would have returned the values, so errors speak of these and not
    of columns.

    >>> import pyarrow as pa
    >>> batch = ColumnBatch(pa.RecordBatch.from_pydict({"n": [1, 2, 3]}), keys=["a", "b", "a"])
    >>> kept = batch.compress([True, False, True])
    >>> kept.rows_made, len(kept), kept.keys, kept.values, kept.rows_made
    (False, 2, ['a', 'a'], [{'n': 1}, {'n': 3}], True)
    """

    __slots__ = (
        *("_columns", "_frame", "_key_data", "_keys", "_pieces", "_places", "_rows", "_schema", "_timestamps"),
        *("computed", "form", "named", "part", "time_column"),
    )

    def __init__(
        self,
        columns: pa.RecordBatch | None,
        *,
        frame: pl.DataFrame | None = None,
        schema: pa.Schema | None = None,
        keys: list[Any] | None = None,
        key_column: pa.Array | pa.RecordBatch | pl.Series | None = None,
        timestamps: list[int] | None = None,
        time_column: pa.Array | None = None,
        part: str | None = None,
        named: bool = False,
        form: RowForm = DICTS,
        computed: bool = False,
    ) -> None:
        self._columns = columns
        self.form = form
        self.computed = computed
        self._frame = frame
        self._schema = schema
        self._rows: list[Any] | None = None
        self._pieces: list[ColumnBatch] | None = None
        self._places: tuple[int | None, int | None] | None = None
        self._keys = keys
        self._key_data = key_column
        self._timestamps = timestamps
        self._span = None
        self.time_column = time_column
        self.part = part
        self.named = named

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the columns, without the rows that may have been made of them."""
        kept: dict[str, Any] = {"keys": self._keys, "key_column": self._key_data, "timestamps": self._timestamps}
        kept |= {"time_column": self.time_column, "part": self.part, "form": self.form, "computed": self.computed}
        same = partial(ColumnBatch, **kept)
        return same, (self.columns,)

    @property
    def columns(self) -> pa.RecordBatch:  # type: ignore[override]  # optional in Batch, never None here
        """The values as an Arrow record batch."""
        if self._columns is None:
            self._columns = _arrow_of(self.frame, self._schema)
        return self._columns

    @property
    def frame(self) -> pl.DataFrame:
        """The values as a Polars frame."""
        if self._frame is None:
            import polars as pl

            self._frame = pl.DataFrame(for_polars(self._columns))
        return self._frame

    @property
    def arrow(self) -> pa.RecordBatch | None:
        """The columns, if they exist in Arrow form only."""
        return self._columns if self._frame is None else None

    @property
    def has_arrow(self) -> bool:
        """Whether the columns exist in Arrow form."""
        return self._columns is not None

    def frame_of(self, names: Sequence[str]) -> pl.DataFrame:
        """Return the columns called ``names`` as a Polars frame; the others are not converted."""
        import polars as pl

        if self._columns is None or self._frame is not None:
            return self.frame.select(names)
        return pl.DataFrame(for_polars(self._columns.select(list(names))))

    @property
    def size(self) -> int:
        """The approximate size of the values in bytes."""
        return int(self._columns.nbytes) if self._columns is not None else int(self.frame.estimated_size())

    @property
    def rows_made(self) -> bool:
        """Whether the rows have been made."""
        return self._rows is not None

    @property
    def values(self) -> list[Any]:  # type: ignore[override]  # made on demand
        """One value per row, of the batch's form."""
        if self._rows is None:
            self._rows = self.form.rows(self.columns)
        return self._rows

    @property
    def key_column(self) -> pa.Array | None:  # type: ignore[override]
        """The keys as an Arrow column; None if they are a list, or tuples."""
        if self._key_data is not None and hasattr(self._key_data, "to_arrow"):  # a Polars series
            self._key_data = self._key_data.to_arrow()
        return None if hasattr(self._key_data, "schema") else self._key_data

    @property
    def key_columns(self) -> pa.RecordBatch | None:
        """The keys as a column for each place of the tuples that they are; None if they are a list, or no tuples."""
        return self._key_data if hasattr(self._key_data, "schema") else None

    @property
    def only_key(self) -> pa.Array | None:
        """The key of all rows, as a column of one; None if there are several, or only a look at each would show it.

        Polars knows of a column of a literal that it is in order.
        """
        keys: Any = self._key_data
        if not hasattr(keys, "flags") or not len(keys) or not keys.flags["SORTED_ASC"]:
            return None
        return keys.head(1).to_arrow() if keys[0] is not None and keys[0] == keys[-1] else None

    @property
    def keys(self) -> list[Any] | None:  # type: ignore[override]  # made on demand
        """The keys, None on an unkeyed stream."""
        if self._keys is None and self.key_columns is not None:
            self._keys = settled_keys(TUPLES.rows(self.key_columns))
        elif self._keys is None and self.key_column is not None:
            column = self.key_column
            self._keys = settled_of_column(python_values(column, "the key"), str(column.type))
        return self._keys

    @property
    def timestamps(self) -> list[int] | None:  # type: ignore[override]  # made on demand
        """The timestamps, None on an untimed stream."""
        if self._timestamps is None and self.time_column is not None:
            self._timestamps = self.time_column.to_pylist()
        return self._timestamps

    @property
    def is_keyed(self) -> bool:
        """Whether there are keys; makes no list of them."""
        return self._keys is not None or self._key_data is not None

    @property
    def is_timed(self) -> bool:
        """Whether there are timestamps; makes no list of them."""
        return self._timestamps is not None or self.time_column is not None

    def __len__(self) -> int:
        if self._columns is not None:
            return int(self._columns.num_rows)
        return 0 if self._frame is None else self._frame.height

    def __repr__(self) -> str:
        names = self.frame.columns if self._columns is None else self._columns.schema.names
        return f"ColumnBatch({len(self)} rows of {', '.join(names)})"

    def with_values(self, values: list[Any]) -> Batch:
        return Batch(values, keys=self.keys, timestamps=self.timestamps, part=self.part)

    def with_frame(self, frame: pl.DataFrame, *, form: RowForm = DICTS) -> ColumnBatch:
        """Return the same rows with other values, one for one."""
        return self._with(None, frame, form=form, computed=False)

    def with_columns(self, columns: pa.RecordBatch, *, form: RowForm = DICTS, computed: bool = False) -> ColumnBatch:
        """Return the same rows with other values, one for one."""
        return self._with(columns, None, form=form, computed=computed)

    def with_form(self, form: RowForm) -> ColumnBatch:
        """Return the same columns with values of ``form``."""
        return self._with(self._columns, self._frame, form=form, schema=self._schema)

    def narrowed(self, names: Collection[str]) -> ColumnBatch:
        """Return the same rows, dicts, with the fields ``names`` only, but one at least.

        Rows that lack one of them stay unchanged: an error about it lists all that there are.
        """
        has = self.frame.columns if self._columns is None else self._columns.schema.names
        kept = [name for name in has if name in names]
        if self.form is not DICTS or len({*kept}) < len(names) or len(kept) > len(names) or len(kept) == len(has):
            return self
        kept = kept or has[:1]
        if self._columns is not None:
            return self._with(self._columns.select(kept), None)
        schema = self._schema
        if schema is not None:
            import pyarrow as pa

            schema = pa.schema([schema.field(name) for name in kept])
        return self._with(None, self.frame.select(kept), schema=schema)

    def as_dicts(self) -> ColumnBatch | None:
        """Return the same rows with a dict of the fields of each value as value, as `fields_of` does; no row is made.

        None if the columns are not these fields.
        """
        if self.form is DICTS:
            return self
        return self._with(self._columns, self._frame, form=DICTS) if self.form.has_fields else None

    def with_keys(self, keys: list[Any]) -> ColumnBatch:
        return self._keyed(keys, None)

    def with_key_column(self, keys: pa.Array | pa.RecordBatch | pl.Series) -> ColumnBatch:
        """Return the batch `with_keys` that are an Arrow or Polars column, or tuples of the values of columns."""
        return self._keyed(None, keys)

    def with_timestamps(self, timestamps: list[int], span: tuple[int, int] | None = None) -> ColumnBatch:
        return self._timed(timestamps, None)

    def with_time_column(self, timestamps: pa.Array) -> ColumnBatch:
        """Return the batch `with_timestamps` that are an int64 column without nulls."""
        return self._timed(None, timestamps)

    def compress(self, mask: Sequence[Any]) -> ColumnBatch:
        import pyarrow as pa

        chosen = pa.array(map(bool, mask), pa.bool_())
        return self._pick(lambda column: column.filter(chosen), lambda column: list(compress(column, mask)))

    def cut(self, start: int, end: int) -> ColumnBatch:
        if self._columns is None and self._rows is None and not self.is_keyed and not self.is_timed:
            frame = self.frame.slice(start, max(0, end - start))
            return self._with(None, frame, schema=self._schema)
        return self._pick(lambda column: column.slice(start, max(0, end - start)), lambda column: column[start:end])

    def take(self, indices: Sequence[int] | pa.Array) -> ColumnBatch:
        import pyarrow as pa

        if not isinstance(indices, pa.Array):
            indices = pa.array(indices, pa.int64())
        positions: Any = indices
        return self._pick(
            lambda column: column.take(positions), lambda column: [column[i] for i in positions.to_pylist()]
        )

    def series(self, name: str | None) -> pl.Series | None:
        """Return one column as a Polars series without a copy; None if it does not exist, or only in Arrow.

        None too if ``name`` does not address a column in the rows, which are numbers, say.
        """
        if self._frame is None or not self.form.by_name or name not in self._frame.columns:
            return None
        return self._frame.get_column(name)

    def column(self, name: str | None) -> pa.Array | None:
        """Return one column as an Arrow array; None if there is no such column, or the rows have no names."""
        if not self.form.by_name:
            return None
        if self._columns is not None:
            return self._columns.column(name) if name in self._columns.schema.names else None
        series = self.series(name)
        return None if series is None else series.to_arrow()

    def field(self, name: str) -> list[Any] | None:
        """Return the values of one column without making rows; None if there is no such column."""
        column = self.column(name)
        return None if column is None else python_values(column, f"column {name!r}")

    def pieces(self, rows_max: int) -> list[ColumnBatch]:
        """Return pieces of at most ``rows_max`` rows; each call returns the same ones, so branches share their rows."""
        if len(self) <= rows_max:
            return [self]
        if self._pieces is None:
            self._pieces = [self.cut(start, start + rows_max) for start in range(0, len(self), rows_max)]
        return self._pieces

    def where(self, mask: pl.Series) -> ColumnBatch:
        """Return the rows for which ``mask``, a boolean column, is true; null is false."""
        chosen = mask.fill_null(False)
        array, keys = chosen.to_arrow(), self.key_column if self.key_columns is None else self.key_columns
        return ColumnBatch(
            None,
            frame=self.frame.filter(chosen),
            keys=None if self._keys is None else list(compress(self._keys, chosen)),
            key_column=None if keys is None else keys.filter(array),
            timestamps=None if self._timestamps is None else list(compress(self._timestamps, chosen)),
            time_column=None if self.time_column is None else self.time_column.filter(array),
            part=self.part,
            named=self.named,
            form=self.form,
            computed=self.computed,
        )

    def of_part(self, part: str | None, *, named: bool) -> ColumnBatch:
        return self._same(part=part, named=named, schema=self._schema)

    def _keyed(self, keys: list[Any] | None, column: pa.Array | pa.RecordBatch | pl.Series | None) -> ColumnBatch:
        return self._same(keys=keys, key_column=column, part=None)

    def _timed(self, timestamps: list[int] | None, column: pa.Array | None) -> ColumnBatch:
        return self._same(timestamps=timestamps, time_column=column)

    def _same(self, **changed: Any) -> ColumnBatch:
        """Return the same values, also as rows if these have been made."""
        same = self._with(self._columns, self._frame, **changed)
        same._rows = self._rows
        return same

    def _with(self, columns: pa.RecordBatch | None, frame: pl.DataFrame | None, **changed: Any) -> ColumnBatch:
        kept: dict[str, Any] = {
            "keys": self._keys,
            "key_column": self._key_data,
            "timestamps": self._timestamps,
            "time_column": self.time_column,
            "part": self.part,
            "named": self.named,
            "form": self.form,
            "computed": self.computed,
        }
        return ColumnBatch(columns, frame=frame, **{**kept, **changed})

    def _shared_places(self) -> tuple[int | None, int | None]:
        """Return which columns of the values the keys and the timestamps are; None for those that are none."""
        if self._places is None:
            keys, times = self.key_column, self.time_column
            self._places = (
                None if keys is None else place_of(keys, self.columns),
                None if times is None else place_of(times, self.columns),
            )
        return self._places

    def _pick(self, of_array: Callable[[Any], Any], of_list: Callable[[list[Any]], list[Any]]) -> ColumnBatch:
        columns, places = of_array(self.columns), self._shared_places()

        def picked_of(column: pa.Array | pa.RecordBatch | None, place: int | None) -> pa.Array | None:
            if column is None:
                return None
            return of_array(column) if place is None else columns.column(place)

        picked = ColumnBatch(
            columns,
            keys=None if self._keys is None else of_list(self._keys),
            key_column=picked_of(self.key_column if self.key_columns is None else self.key_columns, places[0]),
            timestamps=None if self._timestamps is None else of_list(self._timestamps),
            time_column=picked_of(self.time_column, places[1]),
            part=self.part,
            named=self.named,
            form=self.form,
            computed=self.computed,
        )
        picked._places = places
        # Rows that were made are kept.
        picked._rows = None if self._rows is None else of_list(self._rows)
        return picked


def place_of(column: pa.Array, columns: pa.RecordBatch) -> int | None:
    """Return which of ``columns`` has the memory of ``column``; None if none has. Keys and times are often one of them.

    >>> import pyarrow as pa
    >>> columns = pa.record_batch({"n": [1, 2], "m": [1, 2]})
    >>> place_of(columns.column("m"), columns), place_of(pa.array([1, 2]), columns)
    (1, None)
    """
    wanted = _memory_of(column)
    if wanted is None:
        return None
    return next((place for place, other in enumerate(columns.columns) if _memory_of(other) == wanted), None)


def _memory_of(column: pa.Array) -> object:
    """Return what is equal for arrays of the same memory only; None for types that are made of others."""
    import pyarrow as pa

    if column.type.num_fields or isinstance(column.type, pa.BaseExtensionType | pa.DictionaryType):
        return None
    buffers = [None if buffer is None else buffer.address for buffer in column.buffers()]
    return column.type, len(column), column.offset, buffers


def _arrow_of(frame: pl.DataFrame, schema: pa.Schema | None) -> pa.RecordBatch:
    """Return ``frame`` as one record batch, in the types of ``schema`` if it is given."""
    import pyarrow as pa

    table = frame.to_arrow()
    table = table if schema is None else table.cast(schema)
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:  # text beyond the offsets of one Arrow column
        raise CodecError(f"{frame.height} rows are too large for one batch of columns: send fewer rows per batch")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
