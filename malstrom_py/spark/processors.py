"""``stateful``: a `StatefulProcessor` of PySpark as a keyed step, without Spark and without Java.

Rules. The rows of a key in one batch are one call of ``handleInputRows``, as in a micro-batch of Spark. What a call
sends has the time of the last row that it had taken by then, so that a processor which sends one row for each sends the
same however rows are cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.errors import PlanError, shown
from malstrom_py.errors.text import describe_error
from malstrom_py.events import AnyEvent, Stop
from malstrom_py.spark.sent_rows import SentRows
from malstrom_py.spark.state_variables import ENDS, TIMERS, Handle

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

TIME_MODES: Final = ("none", "processingTime", "eventTime")
OUTPUT_MODES: Final = ("append", "update", "complete")


def stateful(
    stream: Any,
    name: str,
    processor: StatefulProcessor,
    output: Any,
    *,
    time_mode: str = "none",
    output_mode: str = "append",
    in_pandas: bool = False,
    initial_rows: Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None = None,
    initial_state: Mapping[Any, Any] | Iterable[tuple[Any, Any]] | Callable[[], Any] | None = None,
    **options: Any,
) -> Any:
    """Add a step to a keyed ``stream`` that runs a `StatefulProcessor` of PySpark, and return the stream of its rows.

    As ``df.groupBy(…).transformWithState(processor, output, output_mode, time_mode)`` does, or with ``in_pandas`` as
    ``transformWithStateInPandas``. The values of ``stream`` are dicts, column -> value, and so are those that come
    out: ``output`` is their schema, a StructType or text in Spark's DDL, to which values are converted as in Spark.
    The processor gets the key as a tuple. ``initial_rows``: what ``handleInitialState`` gets, a Row or DataFrame for
    each key, as a dict or pairs. ``initial_state``: instead, name -> state of the variables of each key, such as
    `SparkCheckpoint` gives them, or a function that returns these. ``options``: those of every step with state.

    ``time_mode="eventTime"`` needs a stream with watermarks whose times are in ms; timers fire when the watermark
    reaches them, and at the end of the stream all do. ``output_mode`` changes nothing, as in Spark. Variables and
    timers move with their keys when the job is rescaled; no worker needs Java. Each worker has a copy of the processor
    and calls its ``init`` before the first row, and its ``close`` at the end of the stream.

    Raises:
        PlanError: an argument is wrong, ``init`` fails, or asks for what Spark would refuse.
        OperatorError: the processor fails, or sends what does not fit ``output``.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources, spark
    >>> from pyspark.sql import Row
    >>> from pyspark.sql.streaming import StatefulProcessor
    >>> class Count(StatefulProcessor):
    ...     def init(self, handle):
    ...         self.count = handle.getValueState("count", "n long")
    ...     def handleInputRows(self, key, rows, timerValues):
    ...         for row in rows:
    ...             n = (self.count.get() or (0,))[0] + row.amount
    ...             self.count.update((n,))
    ...             yield Row(id=key[0], total=n)
    >>> rows = [{"id": "a", "amount": 2}, {"id": "a", "amount": 5}, {"id": "b", "amount": 3}]
    >>> keyed = mp.Job("docs").source("in", sources.Memory(rows)).key_by("id", "id")
    >>> mp.collect(spark.stateful(keyed, "count", Count(), "id string, total long"))
    [{'id': 'a', 'total': 2}, {'id': 'a', 'total': 7}, {'id': 'b', 'total': 3}]
    """
    check_keyed(stream, "stateful")
    mode = one_of(time_mode, TIME_MODES, "spark.stateful: time_mode").lower()
    one_of(output_mode, OUTPUT_MODES, "spark.stateful: output_mode")
    if mode == "eventtime":
        check_watermarks(stream, name, 'time_mode="eventTime"')
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    if not isinstance(processor, StatefulProcessor):
        raise PlanError(f"step {name!r}: processor must be a StatefulProcessor, got {shown(processor)}")
    closes = type(processor).close is not StatefulProcessor.close
    logic = (_Closing if closes else _Logic)(processor, SentRows(output), mode, in_pandas=in_pandas)
    if initial_rows is not None and initial_state is not None:
        raise PlanError(f"step {name!r}: give initial_rows= or initial_state=, not both")
    try:
        tried = _Running(deepcopy(processor), mode)
        states: Any = None if initial_rows is None else dict(tried.initial_states(initial_rows))
        if callable(initial_state):
            states = partial(_states_later, processor, mode, initial_state)
        elif initial_state is not None:
            states = tried.held(initial_state)
        tried.processor.close()
    except PlanError as error:
        raise PlanError(f"step {name!r}: {error}") from error
    except Exception as error:
        raise PlanError(f"step {name!r}: the processor cannot be prepared: {describe_error(error)}") from error
    if states is not None:
        options["initial_state"] = states
    return stream.stateful_op(name, logic, **options)


def one_of(given: object, known: Sequence[str], what: str) -> str:
    """Return the one of ``known`` that is ``given``, in any case; `PlanError` if none is."""
    found = next((one for one in known if isinstance(given, str) and one.lower() == given.lower()), None)
    if found is None:
        raise PlanError(f"{what} must be one of {', '.join(known)}, got {shown(given)}")
    return found


class _Running:
    """A processor that has been opened, with its handle."""

    def __init__(self, processor: StatefulProcessor, mode: str) -> None:
        self.processor = processor
        self.handle = Handle(mode)
        processor.init(self.handle)  # type: ignore[arg-type]  # without Spark
        self.handle.close()
        self.note_times()

    def initial_states(self, rows: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Yield the states that ``handleInitialState`` makes of rows."""
        states: dict[Any, dict[str, Any]] = {}
        for key, row in _pairs(rows):
            self.handle.of_key(states.setdefault(key, {}), -1, -1, _not_yet)
            self.processor.handleInitialState(_as_tuple(key), row, self.times)
        return ((key, state) for key, state in states.items() if state)

    def held(self, given: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        """Return key -> state of ``given`` states of variables."""
        return {key: self.handle.held(state) for key, state in _pairs(given)}

    def note_times(self) -> None:
        """Let ``times`` be those of the handle, as a processor gets them."""
        from pyspark.sql.streaming.stateful_processor import TimerValues

        self.times = TimerValues(self.handle.now_ms, self.handle.watermark_ms)


def _pairs(given: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    return given.items() if isinstance(given, Mapping) else given


def _states_later(processor: Any, mode: str, states: Callable[[], Any]) -> dict[Any, Any]:
    return _Running(deepcopy(processor), mode).held(states())


def _not_yet(time: int, by_clock: bool) -> None:
    raise PlanError("handleInitialState cannot set timers or state with ttlDurationMs here: set them at the first row")


def _as_tuple(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


_Made = tuple[Any, Any, int | None]
"""Key, row or frame, and time of what a processor sends."""


class _Logic:
    """Runs a processor: a logic of ``stateful_op``. The state of a key is that of `Handle`."""

    def __init__(self, processor: Any, output: SentRows, mode: str, *, in_pandas: bool) -> None:
        self._processor = processor
        self._output = output
        self._mode = mode
        self._in_pandas = in_pandas
        self._opened: _Running | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def _running(self) -> _Running:
        if self._opened is None:
            self._opened = _Running(deepcopy(self._processor), self._mode)
        return self._opened

    def on_batch(
        self,
        keys: Sequence[Any],
        values: Sequence[Any],
        timestamps: Sequence[int] | None,
        state: MutableMapping[Any, Any],
        output: Any,
    ) -> None:
        """Call ``handleInputRows`` for each key of the batch."""
        self._emit(self._made(keys, values, timestamps, state, output), output)

    def _made(
        self,
        keys: Sequence[Any],
        values: Sequence[Any],
        timestamps: Sequence[int] | None,
        state: MutableMapping[Any, Any],
        output: Any,
    ) -> Iterator[_Made]:
        running = self._running()
        handle, process = running.handle, running.processor.handleInputRows
        rows_of = rows_by_key(keys)
        taking = (Frames if self._in_pandas else _Rows)(values, rows_of)
        for key, rows in rows_of.items():
            taken = taking.of(rows)
            self._prepare(running, key, state.get(key) or {}, output)
            for one in process(_as_tuple(key), iter(taken), running.times):
                yield key, one, None if timestamps is None else timestamps[taken.last]
            left = _without_empty(handle.state)
            if left:
                state[key] = left
            else:
                state.pop(key, None)

    def on_timer(self, key: Any, time: int, key_state: Any, output: Any) -> Any:
        """Call ``handleExpiredTimer`` unless the timer has been deleted; remove what has ended."""
        running = self._running()
        handle, state = running.handle, key_state or {}
        self._prepare(running, key, state, output, time)
        if state.get(ENDS) == time:
            handle.remove_ended()
        for due in sorted(one for one in state.get(TIMERS, ()) if one <= time):
            from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo

            at = min(max(time, output.watermark + 1), MAX_EPOCH - 1) if self._mode == "eventtime" else None
            made = running.processor.handleExpiredTimer(_as_tuple(key), running.times, ExpiredTimerInfo(due))
            self._emit(((key, one, at) for one in made), output)
            handle.deleteTimer(due)
        return _without_empty(handle.state) or None

    def _prepare(self, running: _Running, key: Any, state: dict[str, Any], output: Any, fired: int = 0) -> None:
        """Let the handle be that of ``key``; ``fired``: the timer that has come."""
        handle = running.handle
        if self._mode == "none":
            handle.state = state
            return
        by_clock = self._mode == "processingtime"
        now_ms = max(output.now_ms(), fired if by_clock else 0)

        def set_timer(time: int, by_clock: bool) -> None:
            # One that has passed fires immediately; in a timer, which must not set itself again, right after it.
            output.set_timer(key, max(time, fired + 1), clock="processing" if by_clock else "event")

        handle.of_key(state, now_ms, -1 if by_clock else max(output.watermark, fired, 0), set_timer)
        running.note_times()

    def _emit(self, made: Iterable[_Made], output: Any) -> None:
        if self._in_pandas:
            for key, frame, time in made:
                for row in self._output.in_frame(frame):
                    output.emit(key, row, time)
            return
        take = self._output.take
        taken = [(key, take(row), time) for key, row, time in made]
        rows = self._output.of_taken([row for _, row, _ in taken])  # together, which is faster
        for (key, _, time), row in zip(taken, rows, strict=True):
            output.emit(key, row, time)


class _Closing(_Logic):
    """A logic whose processor is closed at the end of the stream."""

    def on_event(self, event: AnyEvent) -> None:
        """Close the processor."""
        if isinstance(event, Stop) and self._opened is not None:
            self._opened.processor.close()
            self._opened = None


class _Rows:
    """The rows of a batch, as rows of Spark. ``last``: the last one of a key that was taken."""

    def __init__(self, values: Sequence[Any], rows_of: Mapping[Any, list[int]]) -> None:
        from pyspark.sql.types import Row

        self._values = values
        self._row = Row
        self._rows: list[int] = []
        self.last = 0

    def of(self, rows: list[int]) -> Self:
        """Let the rows be those of one key from now on."""
        self._rows = rows
        self.last = rows[0]
        return self

    def __iter__(self) -> Iterator[Any]:
        kind, values = self._row, self._values
        for row in self._rows:
            self.last = row
            value = values[row]
            made = tuple.__new__(kind, value.values())
            made.__dict__["__fields__"] = list(value)  # to set the attribute calls a function of Spark
            yield made


class Frames(_Rows):
    """The rows of a batch, as one frame of pandas for each key: slices of one whose rows are ordered by key."""

    def __init__(self, values: Sequence[Any], rows_of: Mapping[Any, list[int]]) -> None:
        import pandas as pd  # type: ignore[import-untyped]

        super().__init__(values, rows_of)
        self._index = pd.RangeIndex
        self._frame = pd.DataFrame([values[row] for rows in rows_of.values() for row in rows], dtype=object)
        self._start = self._end = 0

    def of(self, rows: list[int]) -> Self:
        """Let the frame be that of the next key."""
        self._start, self._end = self._end, self._end + len(rows)
        return super().of(rows)

    def __iter__(self) -> Iterator[Any]:
        frame = self._frame.iloc[self._start : self._end].infer_objects()
        for name in frame.select_dtypes(object).columns:
            if _are_floats(frame[name]):
                frame[name] = frame[name].astype(float)
        frame.index = self._index(len(frame))
        self.last = self._rows[-1]
        yield frame


def rows_by_key(keys: Sequence[Any]) -> dict[Any, list[int]]:
    """Return which rows each key has, keys in the order in which they come."""
    rows_of: dict[Any, list[int]] = {}
    for row, key in enumerate(keys):
        rows_of.setdefault(key, []).append(row)
    return rows_of


def check_keyed(stream: Any, name: str) -> None:
    """Raise `PlanError` unless ``stream`` is a keyed one, for ``name`` of this package."""
    if not hasattr(stream, "stateful_op"):
        raise PlanError(
            f"spark.{name} needs a keyed stream, job.source(…).key_by(…), not {type(stream).__name__}; "
            f"a DataFrame is read by sources.Spark"
        )


def check_watermarks(stream: Any, step: str, what: str) -> None:
    """Raise `PlanError` unless ``stream`` has watermarks and times in ms, as ``what`` needs."""
    if not (stream.traits.epochs and stream.traits.unit == "ms"):
        raise PlanError(
            f"step {step!r}: {what} needs watermarks, with times in ms: call assign_timestamps(…, "
            f'unit="ms") and generate_epochs first'
        )


def _are_floats(column: Iterable[Any]) -> bool:
    """Return whether the numbers of a column with None are floats in a frame, as in Spark: if none loses digits."""
    kinds = set(map(type, column))
    return kinds <= {int, float, type(None)} and all(one is None or float(one) == one for one in column)


def _without_empty(state: dict[str, Any]) -> dict[str, Any]:
    return state if all(state.values()) else {name: held for name, held in state.items() if held}
