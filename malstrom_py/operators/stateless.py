"""The steps that call a function per record and keep no state: ``map``, ``map_with_key``, ``filter``, ``filter_map``,
``flat_map``, ``flatten`` and ``inspect``; and ``inspect_frontier``, which calls one per epoch (watermark).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, repeat
from typing import Any, ClassVar, Final

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MIN_EPOCH, Epoch
from malstrom_py.data.row_form import SCALAR
from malstrom_py.errors import mark_safe
from malstrom_py.errors.text import refuse_no_items
from malstrom_py.operators.base import ColumnsRead, Operator, Outlet, StepContext, read_by
from malstrom_py.operators.failures import OWN, ErrorPolicy, call_each, kept_of, verdicts_of
from malstrom_py.operators.first_rows import NoneWatch
from malstrom_py.operators.keyed import keys_of


class FunctionStep(Operator):
    """Base of the steps that call a function of a value; on columns where these are proven to give the same.

    ``column``: the function looks up this column, which is read without a call.
    """

    option: ClassVar[str] = "fn"
    """The option of the step that is the function."""

    passes: ClassVar[bool] = True
    """Whether values are sent on."""

    with_key: ClassVar[bool] = False
    """Whether the function takes the key, too."""

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead | None:
        column = options.get("column")
        if column is not None:
            return ColumnsRead(frozenset((column,)), passes=True)
        return read_by(options[cls.option], int(cls.with_key), passes=cls.passes)

    @classmethod
    def compiled_functions(cls, **options: Any) -> Sequence[Callable[..., Any]]:
        return () if options.get("column") is not None else (options[cls.option],)

    def __init__(
        self, context: StepContext, function: Callable[..., Any], *, column: str | None = None, compiles: bool = True
    ) -> None:
        from malstrom_py.operators.compiled import CompiledFunction  # a job is defined without it

        super().__init__(context)
        self._fn = function
        self._column = column
        self._failures = ErrorPolicy(context)
        compiles = compiles and column is None
        self._compiled = CompiledFunction(context, function, compiles=compiles, with_key=self.with_key)
        self.takes_columns = column is not None or self._compiled.takes_columns


class Map(FunctionStep):
    """Replaces each value by ``fn(value)``; keys and timestamps stay.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> mp.collect(job.source("numbers", sources.Memory([1, 2, 3])).map("double", lambda n: n * 2))
    [2, 4, 6]
    """

    passes = False
    makes_tuples = True

    def __init__(self, context: StepContext, *, fn: Callable[..., Any], compiles: bool = True) -> None:
        super().__init__(context, fn, compiles=compiles)
        self.watch = self._none_watch = NoneWatch(context, fn, "the new value")

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        made = self._compiled.values(batch)
        self.takes_columns = made is not None  # whole batches are for columns only
        if made is None:
            batch, results = self._called(batch, out)
            self._none_watch.results(results)
            out.send(self._compiled.again(batch, results))
            return
        if self._none_watch.active:
            self._none_watch.counted(len(made), made.columns.column(0).null_count if made.form is SCALAR else 0)
        out.send(made)

    def _called(self, batch: Batch, out: Outlet) -> tuple[Batch, list[Any]]:
        return call_each(self._fn, batch, self._failures, out)


class MapWithKey(Map):
    """Replaces each value by ``fn(key, value)``; keys and timestamps stay.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> counts = job.source("words", sources.Memory(["bee", "ant", "bee"])).key_by("word", str).count("n").final()
    >>> sorted(mp.collect(counts.map_with_key("row", lambda word, n: {"word": word, "n": n})), key=str)
    [{'word': 'ant', 'n': 1}, {'word': 'bee', 'n': 2}]
    """

    with_key = True

    def _called(self, batch: Batch, out: Outlet) -> tuple[Batch, list[Any]]:
        keys = iter(keys_of(batch, self.context.step))

        def loop(fn: Callable[..., Any], values: Iterable[Any], results: list[Any]) -> None:
            for value, key in zip(values, keys, strict=False):
                results.append(fn(key, value))

        return call_each(self._fn, batch, self._failures, out, loop=loop)


class Filter(FunctionStep):
    """Keeps the records for whose value ``predicate`` is true; the others are counted as filtered."""

    makes_columns = False

    option = "predicate"

    def __init__(self, context: StepContext, *, predicate: Callable[[Any], Any], compiles: bool = True) -> None:
        super().__init__(context, predicate, compiles=compiles)
        self.watch = self._none_watch = NoneWatch(context, predicate, "True or False: None drops the record")

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        kept: Batch | None = self._compiled.kept(batch, is_watched=self._none_watch.active)
        self.takes_columns = kept is not None
        if kept is None:
            batch, kept = self._called(batch, out)
        else:
            self._none_watch.right()
        self.counters.filtered += len(batch) - len(kept)
        out.send(kept)

    def _called(self, batch: Batch, out: Outlet) -> tuple[Batch, Batch]:
        """Call the predicate for each row; return the rows on which it did not raise, and those that are kept."""
        is_bare = batch.keys is None and batch.timestamps is None
        are_columns = is_bare and self._compiled.has_made_columns and isinstance(batch, ColumnBatch)
        if is_bare and not are_columns and not self._none_watch.active:
            # Nothing else to filter along, so no mask: a fifth less time per record.
            batch, values = call_each(self._fn, batch, self._failures, out, loop=kept_of)
            return batch, Batch(values, part=batch.part)
        loop = self._watched if self._none_watch.active else verdicts_of
        batch, verdicts = call_each(self._fn, batch, self._failures, out, loop=loop)
        kept = batch.compress(verdicts)
        return batch, self._compiled.again(kept, kept.values) if are_columns else kept

    def _watched(self, predicate: Callable[[Any], Any], values: Iterator[Any], verdicts: list[Any]) -> None:
        """Do as `verdicts_of`, and count the results of None until there is another."""
        for value in values:
            verdict = predicate(value)
            verdicts.append(not not verdict)  # noqa: SIM208  as in verdicts_of
            self._none_watch.results((verdict,))
            if not self._none_watch.active:
                verdicts_of(predicate, values, verdicts)


class FilterMap(FunctionStep):
    """Replaces each value by ``fn(value)``, and drops the record (counted as filtered) where that is None."""

    passes = False
    makes_tuples = True

    def __init__(self, context: StepContext, *, fn: Callable[[Any], Any], compiles: bool = True) -> None:
        super().__init__(context, fn, compiles=compiles)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        kept: Batch | None = self._compiled.some(batch)
        self.takes_columns = kept is not None
        if kept is None:
            batch, results = call_each(self._fn, batch, self._failures, out)
            flags = [result is not None for result in results]
            kept = self._compiled.again(batch.compress(flags), list(compress(results, flags)))
        self.counters.filtered += len(batch) - len(kept)
        out.send(kept)


_SLICE_FIRST: Final = 16
_ROWS_OUT: Final = 4096
"""About how many records one slice of a batch becomes, once the number of records per record is known."""


class FlatMap(Operator):
    """Replaces each record by one record per item of ``fn(value)``, in order, each with its key and timestamp."""

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead | None:
        return read_by(options["fn"])

    def __init__(self, context: StepContext, *, fn: Callable[[Any], Iterable[Any]], blame: object = OWN) -> None:
        super().__init__(context)
        self._fn = fn
        self._blame = fn if blame is OWN else blame
        self._failures = ErrorPolicy(context)
        self._slice = _SLICE_FIRST

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        start = 0
        while start < len(batch):
            part = batch if start == 0 and self._slice >= len(batch) else batch.cut(start, start + self._slice)
            start += len(part)
            self._flatten(part, out)
            if start < len(batch):
                # One record may become thousands: later steps process them before the next slice.
                out.drain()

    def _flatten(self, batch: Batch, out: Outlet) -> None:
        taken = len(batch)
        # An iterable may be lazy and raise while it is read: call_each reads it.
        batch, lists = call_each(self._items, batch, self._failures, out, blame=self._blame)
        keys, timestamps = batch.keys, batch.timestamps
        counts = list(map(len, lists)) if keys is not None or timestamps is not None else []
        values = list(chain.from_iterable(lists))
        self._slice = max(1, _ROWS_OUT * taken // max(taken, len(values)))
        out.send(
            Batch(
                values,
                keys=None if keys is None else spread(keys, counts),
                timestamps=None if timestamps is None else spread(timestamps, counts),
                part=batch.part,
            )
        )

    def _items(self, value: Any) -> list[Any]:
        items = self._fn(value)
        try:
            return list(items)
        except TypeError:
            refuse_no_items(items, "something to iterate over")
            raise


def spread(column: list[Any], counts: list[int]) -> list[Any]:
    """Repeat each entry of ``column`` by its count."""
    return list(chain.from_iterable(map(repeat, column, counts)))


class Flatten(FlatMap):
    """Replaces each record by one record per item of its value, in order, each with its key and timestamp."""

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead | None:
        return None

    def __init__(self, context: StepContext) -> None:
        super().__init__(context, fn=iter, blame=None)

    def _items(self, value: Any) -> list[Any]:
        try:
            return list(value)
        except TypeError:
            if hasattr(type(value), "__iter__"):
                raise
            raise mark_safe(TypeError(f"the value is of type {type(value).__name__}, which has no items")) from None


class Inspect(Operator):
    """Calls ``fn(value)`` for its effect and forwards each record unchanged."""

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead | None:
        return read_by(options["fn"], passes=True)

    def __init__(self, context: StepContext, *, fn: Callable[[Any], object]) -> None:
        super().__init__(context)
        self._fn = fn
        self._failures = ErrorPolicy(context)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        batch, _ = call_each(self._fn, batch, self._failures, out)
        out.send(batch)


class InspectFrontier(Operator):
    """Calls ``fn(frontier)`` each time the step's own frontier advances, on each worker; records pass unchanged.

    The last call is with `MAX_EPOCH`, on untimed streams too.
    """

    takes_columns = True
    passes_all = True

    def __init__(self, context: StepContext, *, fn: Callable[[int], object]) -> None:
        super().__init__(context)
        self._fn = fn
        self._seen = MIN_EPOCH
        self._failures = ErrorPolicy(context)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        # T2: an epoch may be repeated, to change the idle flag of its sender.
        if epoch.time > self._seen:
            self._seen = epoch.time
            with self._failures.of_hook(self._fn):
                self._fn(epoch.time)
        out.forward(epoch)

    def continue_at(self, epoch: int) -> None:
        self._seen = epoch
