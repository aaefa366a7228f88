"""``map_batches``: a function of whole Arrow record batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from malstrom_py.batches import Batch, ColumnBatch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.column_step import ColumnStep
from malstrom_py.operators.failures import Failures, describe_function

if TYPE_CHECKING:
    import pyarrow as pa


class MapBatches(ColumnStep):
    """Replaces the values of a batch by the rows of the ``RecordBatch`` that ``fn(record_batch)`` returns.

    On a stream with keys or timestamps it returns as many rows as it got, in the same order; on others any number.
    How many rows come at once is not promised, so what ``fn`` makes of a row must not depend on the others. Values
    that are no dicts, dataclasses or namedtuples are the column ``value``.

    OperatorError: ``fn`` raised (``on_error`` has no say, for which record it was cannot be told), or returned
    something else.

    >>> import malstrom_py as mp, pyarrow as pa, pyarrow.compute as pc
    >>> from malstrom_py import sources
    >>> def upper(batch: pa.RecordBatch) -> pa.RecordBatch:
    ...     return pa.RecordBatch.from_pydict({"word": pc.utf8_upper(batch["value"])})
    >>> job = mp.Job("docs")
    >>> mp.collect(job.source("words", sources.Memory(["ant", "bee"])).map_batches("upper", upper))
    [{'word': 'ANT'}, {'word': 'BEE'}]
    """

    def __init__(self, context: StepContext, *, fn: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        super().__init__(context)
        self._fn = fn
        self._failures = Failures(context)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        columns = self.columns_of(batch)
        try:
            made = self._fn(columns.columns)
        except Exception as error:
            raise self._failures.error(error, self._fn, policy=False) from error
        out.send(columns.with_columns(self._checked(made, columns)))

    def _checked(self, made: Any, given: ColumnBatch) -> pa.RecordBatch:
        import pyarrow as pa

        if not isinstance(made, pa.RecordBatch):
            raise self._broken(f"returned a {type(made).__name__}: return a pyarrow.RecordBatch")
        names = made.schema.names
        if len(set(names)) < len(names):
            raise self._broken("returned two columns of the same name: rename one")
        aligned = given.is_keyed or given.is_timed
        if aligned and made.num_rows != len(given):
            raise self._broken(
                f"returned {made.num_rows} rows for {len(given)}: on a stream with keys or timestamps each row has its "
                f"own, so return one row per row, or use it before key_by and assign_timestamps"
            )
        return made

    def _broken(self, what: str) -> OperatorError:
        where = describe_function(self._fn)
        step = self.context.step
        return OperatorError(f"step {step!r}: {where} {what}.", step=step, function=where)
