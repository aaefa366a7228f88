"""``key_by`` and ``key_local``: give each record a key.

``key_by`` distributes records by key: the exchange between workers follows it. ``key_local`` does not, so that no
stateful step may follow (R11).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, compress
from typing import TYPE_CHECKING, Any

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.equality import settled_keys
from malstrom_py.data.messages import PartMessage
from malstrom_py.data.row_form import SCALAR, python_values
from malstrom_py.errors import CodecError
from malstrom_py.errors.text import describe_function
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import ErrorPolicy, call_each
from malstrom_py.operators.first_rows import NoneWatch
from malstrom_py.operators.stateless import FunctionStep

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


class KeyBy(FunctionStep):
    """Keys each record by ``fn(value)``. With one worker nothing is hashed (F3).

    F4: a key that is not legal (NaN, a list, …) is a `CodecError`, or handled by ``on_error``. The source region ends
    here: later steps do not know parts.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> words = job.source("words", sources.Memory(["ant", "bee", "asp"]))
    >>> mp.collect(words.key_by("letter", lambda word: word[0]).count("seen"))
    [1, 1, 2]
    """

    makes_tuples = True

    def __init__(
        self, context: StepContext, *, fn: Callable[[Any], Any], column: str | None = None, compiles: bool = True
    ) -> None:
        super().__init__(context, fn, column=column, compiles=compiles)
        self.watch = self._none_watch = NoneWatch(
            context, fn, "the key: records whose key is None all have the same one", keys=True
        )

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        if isinstance(batch, ColumnBatch) and self._send_columns(batch, out):
            return
        batch, keys = call_each(self._fn, batch, self._failures, out)
        if self._none_watch.active:
            self._none_watch.results(keys)
        batch, keys = legal_keys(self.context, self._failures, self._fn, batch, keys, out)
        keyed: Batch | None = None
        if isinstance(batch, ColumnBatch):
            made = self._compiled.again(batch, keys)
            if isinstance(made, ColumnBatch):
                keyed = batch.with_key_column(made.columns.column(0) if made.form is SCALAR else made.columns)
        self.send(batch, batch.with_keys(keys) if keyed is None else keyed, out)

    def send(self, batch: Batch, keyed: Batch, out: Outlet) -> None:
        """Send ``batch`` with its keys."""
        out.send(keyed)

    def _send_columns(self, batch: ColumnBatch, out: Outlet) -> bool:
        """Key ``batch`` by a column; False if there is none, or it has a key that is not legal."""
        series = None if self._column is None else batch.series(self._column)
        if series is not None and is_always_legal(series):
            if self._none_watch.active:
                self._none_watch.counted(len(series), series.null_count())
            self.send(batch, batch.with_key_column(series), out)
            return True
        column = self._compiled.keys(batch) if self._column is None else batch.column(self._column)
        self.takes_columns = self._column is not None or column is not None
        if column is None:
            return False
        try:
            self.context.check_keys(keys_to_check(column))
        except CodecError:
            return False  # row by row, to find the illegal keys
        if self._none_watch.active:
            self._none_watch.counted(len(column), getattr(column, "null_count", 0))  # tuples have none
        self.send(batch, batch.with_key_column(column), out)
        return True

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        """Send messages about parts to dead letters only: the source region ends here, but they remain in it."""
        if self.context.dead_letter_port is not None:
            out.send(message, self.context.dead_letter_port)


class KeyLocal(KeyBy):
    """Keys each record by ``fn(value)`` on its current worker: records of one key may be on several workers.

    F4: a key that is not legal (NaN, a list, …) is a `CodecError`, or handled by ``on_error``. The batch keeps its
    part, so generate_epochs may still follow.
    """

    def __init__(self, context: StepContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._none_watch.active = False  # that many records have no key may be meant: no state is shared

    def send(self, batch: Batch, keyed: Batch, out: Outlet) -> None:
        out.send(keyed.of_part(batch.part, named=getattr(batch, "named", False)))

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        out.forward(message)


class KeepKeys(Operator):
    """Distributes records by the keys that they have: those that a source has restored."""

    takes_columns = True

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        if not isinstance(batch, ColumnBatch) and batch.keys is not None:  # those of columns are settled when made
            keys = settled_keys(batch.keys)
            batch = batch if keys is batch.keys else batch.with_keys(keys)
        out.send(batch)

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        """The source region ends here."""


def legal_keys(
    context: StepContext, failures: ErrorPolicy, function: object, batch: Batch, keys: list[Any], out: Outlet
) -> tuple[Batch, list[Any]]:
    """Return the rows of ``batch`` with legal ``keys`` (F4), and these, settled; ``on_error`` decides on the others."""
    try:
        return batch, settled_keys(keys, context.check_keys(keys))
    except CodecError as error:
        if context.on_error == "fail":
            raise CodecError(
                f"{str(error).rstrip('.')} (in {describe_function(function)}), or give the step on_error='skip' or "
                f"on_error='dead-letter'.",
                step=error.step,
                type_name=error.type_name,
            ) from None
    legal: list[bool] = []
    for index, key in enumerate(keys):
        try:
            context.check_keys([key])
            legal.append(True)
        except CodecError as error:
            failures.record(error, function, batch, index, out)
            legal.append(False)
    return batch.compress(legal), settled_keys(list(compress(keys, legal)))


def is_always_legal(keys: pl.Series) -> bool:
    """Whether every value of a Polars column's type is a legal key."""
    import polars as pl

    return keys.dtype.is_integer() or keys.dtype == pl.String


def keys_to_check(column: pa.Array | pa.RecordBatch) -> list[Any]:
    """Return the distinct values of a column of keys that must be checked: none, if all of its type are legal.

    Of columns of the values of tuples return these.
    """
    import pyarrow as pa

    if isinstance(column, pa.RecordBatch):
        return list(chain.from_iterable(map(keys_to_check, column.columns)))
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return []
    try:
        column = column.unique()
    except pa.ArrowNotImplementedError:
        """Arrow has no distinct values of nested types: check all."""
    return python_values(column, "the key")
