"""``flat``: results of windows as flat rows or columns, and the same in front of a sink that writes a table.

Rule: rows and columns give the same names, order and types. So moments are whole microseconds in both: Python's
datetimes have no finer ones, and neither have the tables of Spark, Delta, Iceberg and PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.row_form import fields_of
from malstrom_py.data.time import PER_SECOND, Unit, from_time
from malstrom_py.errors import OperatorError
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.keyed import keys_of
from malstrom_py.windows import WINDOW_END, WINDOW_RESULT, WINDOW_START, WindowResult

if TYPE_CHECKING:
    import pyarrow as pa

UPDATE: Final = "update"


@dataclass(frozen=True, slots=True)
class FlatResults:
    """Makes flat rows of `WindowResult` values: the key, start and end as moments in UTC, then the value's fields.

    A value without fields is the field ``value``; a field with the name of another column takes its place.

    ``keys``: the names of the key; of several, the key is a tuple. ``unit``: of start and end; None if they are not
    moments, so that they are left out. ``early``: whether `UPDATE` is the last field.

    >>> rows = Batch([WindowResult(0, 60, {"n": 2})], keys=["tea"])
    >>> FlatResults(("article",), None, early=False).flat(rows, "docs").values
    [{'article': 'tea', 'n': 2}]
    """

    keys: tuple[str, ...]
    unit: Unit | None
    early: bool

    def pieces(self, batch: Batch, step: str) -> Iterator[Batch]:
        """Yield ``batch`` with flat results; other values and their keys stay, all in their order."""
        if isinstance(batch, ColumnBatch):
            yield self.flat(batch, step) if batch.form is WINDOW_RESULT else batch
            return
        if WindowResult not in set(map(type, batch.values)):
            yield batch
            return
        start = 0
        for is_result, run in groupby(batch.values, lambda value: type(value) is WindowResult):
            end = start + sum(1 for _ in run)
            piece = batch if end - start == len(batch) else batch.cut(start, end)
            yield self.flat(piece, step) if is_result else piece
            start = end

    def flat(self, batch: Batch, step: str) -> Batch:
        """Return results of windows as flat rows, or as columns if they and their keys are columns; without keys."""
        columns = batch.columns if isinstance(batch, ColumnBatch) else None
        keys = batch.key_column
        if columns is not None and keys is not None and len(self.keys) == 1:
            made = self._columns(columns, keys, step)
            times = batch.time_column
            return ColumnBatch(made, timestamps=batch.timestamps if times is None else None, time_column=times)
        return Batch(self._rows(batch, step), timestamps=batch.timestamps)

    def _rows(self, batch: Batch, step: str) -> list[dict[str, Any]]:
        fields = fields_of([result.value for result in batch.values])
        keys = keys_of(batch, step)
        named = [{self.keys[0]: key} for key in keys] if len(self.keys) == 1 else self._named(keys)
        if self.unit is not None:
            starts = self._moments([result.start for result in batch.values], WINDOW_START, step)
            ends = self._moments([result.end for result in batch.values], WINDOW_END, step)
            for row, start, end in zip(named, starts, ends, strict=True):
                row[WINDOW_START], row[WINDOW_END] = start, end
        for row, values, result in zip(named, fields, batch.values, strict=True):
            row.update(values)
            if self.early:
                row.setdefault(UPDATE, result.update)
        return named

    def _columns(self, columns: pa.RecordBatch, keys: pa.Array, step: str) -> pa.RecordBatch:
        import pyarrow as pa

        value = columns.column("value")
        if pa.types.is_struct(value.type):
            fields = dict(zip((field.name for field in value.type), value.flatten(), strict=True))
        else:
            fields = {"value": value}
        made = {self.keys[0]: keys}
        if self.unit is not None:
            made[WINDOW_START] = self._moment_column(columns.column("start"), WINDOW_START, step)
            made[WINDOW_END] = self._moment_column(columns.column("end"), WINDOW_END, step)
        made.update(fields)
        if self.early:
            made.setdefault(UPDATE, columns.column("update"))
        return pa.RecordBatch.from_pydict(made)

    def _named(self, keys: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
        return [dict(zip(self.keys, key, strict=True)) for key in keys]

    def _moments(self, times: Sequence[int], name: str, step: str) -> list[datetime]:
        known = {time: self._moment(time, name, step) for time in set(times)}
        return [known[time] for time in times]

    def _moment_column(self, times: pa.Array, name: str, step: str) -> pa.Array:
        """Return int64 ``times`` as timestamps in UTC, rounded down to microseconds."""
        import pyarrow as pa

        numbers = times.to_numpy()
        if len(numbers):
            for time in (numbers.min(), numbers.max()):
                self._moment(int(time), name, step)
        per_second = PER_SECOND[self.unit or "ms"]
        # Arrow's own division rounds towards zero, which is up before 1970.
        micros = numbers // 1_000 if per_second > 1_000_000 else numbers * (1_000_000 // per_second)
        return pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC"))

    def _moment(self, time: int, name: str, step: str) -> datetime:
        try:
            return from_time(time, self.unit or "ms")
        except OverflowError:
            raise OperatorError(
                f"step {step!r}: {name} of a result is not in the years 1 to 9999, taken in {self.unit!r}: give "
                f"assign_timestamps the unit= that the timestamps have",
                step=step,
            ) from None


def key_names(key: object) -> tuple[str, ...]:
    """Return the names of the columns that ``key`` looks up: a name, or an ``itemgetter`` of names; else ``key``.

    >>> from operator import itemgetter
    >>> key_names("carrier"), key_names(itemgetter("origin", "dest")), key_names(len)
    (('carrier',), ('origin', 'dest'), ('key',))
    """
    names: Any = (key,)
    if isinstance(key, itemgetter):
        reduced: Any = key.__reduce__()
        names = reduced[1]
    return names if all(isinstance(name, str) for name in names) and len(set(names)) == len(names) else ("key",)


class Flat(Operator):
    """Each result of a window becomes a flat row without a key.

    >>> import malstrom_py as mp
    >>> from malstrom_py import agg, sources, windows
    >>> sales = sources.Memory([{"article": "tea", "at": 5}, {"article": "tea", "at": 9}])
    >>> timed = mp.Job("docs").source("sales", sales).assign_timestamps("time", "at", unit="s")
    >>> on_time, late = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    >>> minutes = on_time.key_by("article", "article").window("minutes", windows.tumbling(60))
    >>> (row,) = mp.collect(minutes.aggregate(n=agg.count()).flat("rows"))
    >>> row["article"], str(row["window_start"]), str(row["window_end"]), row["n"]
    ('tea', '1970-01-01 00:00:00+00:00', '1970-01-01 00:01:00+00:00', 2)
    """

    takes_columns = True

    def __init__(self, context: StepContext, *, flat: FlatResults) -> None:
        super().__init__(context)
        self._flat = flat

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        step = self.context.step
        is_results = isinstance(batch, ColumnBatch) and batch.form is WINDOW_RESULT
        if not is_results and (other := set(map(type, batch.values)) - {WindowResult}):
            raise OperatorError(
                f"step {step!r}: flat takes results of windows, got {other.pop().__name__}: put it right after the "
                f"window, before steps that replace values",
                step=step,
            )
        out.send(self._flat.flat(batch, step))
