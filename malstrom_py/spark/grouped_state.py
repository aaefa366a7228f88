"""``apply_in_pandas_with_state``: a function of PySpark's `applyInPandasWithState` as a keyed step, without Spark.

Rules. The rows of a key in one batch are one call, in one frame. A timeout belongs to the last call that changed the
state or set a timeout, as in Spark, so timers of earlier ones do nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, Final

from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.errors import PlanError, shown
from malstrom_py.errors.text import describe_error
from malstrom_py.spark.processors import Frames, check_keyed, check_watermarks, one_of, rows_by_key
from malstrom_py.spark.sent_rows import SentRows
from malstrom_py.spark.stored_values import StoredRow

TIMEOUTS: Final = ("NoTimeout", "ProcessingTimeTimeout", "EventTimeTimeout")

_VALUE: Final = "value"
_AT: Final = "at"
_COLUMNS: Final = "columns"
"""What the state of a key holds: the tuple of the user; the time of its timeout, and the columns of its rows."""

_NONE: Final = -1


def apply_in_pandas_with_state(
    stream: Any,
    name: str,
    function: Callable[[Any, Any, Any], Iterable[Any]],
    output: Any,
    state: Any,
    *,
    timeout: str = "NoTimeout",
    initial_state: Mapping[Any, Any] | Iterable[tuple[Any, Any]] | Callable[[], Any] | None = None,
    **options: Any,
) -> Any:
    """Add a step to a keyed ``stream`` that runs a function of `applyInPandasWithState`, and return the stream of rows.

    As ``df.groupBy(…).applyInPandasWithState(function, output, state, output_mode, timeout)`` does. The values of
    ``stream`` are dicts, column -> value, and so are those that come out. ``function`` gets the key as a tuple, frames
    of pandas, and a `GroupState`; after a timeout an empty frame. ``output``, ``state``: schemas, a StructType or text
    in Spark's DDL; rows are converted to ``output`` as in Spark, and state must fit ``state``. ``timeout``:
    "NoTimeout", "ProcessingTimeTimeout" or "EventTimeTimeout", which needs a stream with watermarks whose times are in
    ms; at its end all timeouts come. ``initial_state``: key -> the fields of its state, as a dict, or pairs such as
    `SparkCheckpoint` has, or a function that returns these. ``options``: those of every step with state.

    Raises:
        PlanError: an argument is wrong.
        OperatorError: the function fails, or sends what does not fit ``output``.

    >>> import malstrom_py as mp
    >>> import pandas as pd
    >>> from malstrom_py import sources, spark
    >>> def total(key, frames, state):
    ...     (n,) = state.getOption or (0,)
    ...     n += sum(int(frame.amount.sum()) for frame in frames)
    ...     state.update((n,))
    ...     yield pd.DataFrame({"id": [key[0]], "total": [n]})
    >>> rows = [{"id": "a", "amount": 2}, {"id": "b", "amount": 3}, {"id": "a", "amount": 5}]
    >>> keyed = mp.Job("docs").source("in", sources.Memory(rows)).key_by("id", "id")
    >>> mp.collect(spark.apply_in_pandas_with_state(keyed, "total", total, "id string, total long", "n long"))
    [{'id': 'a', 'total': 7}, {'id': 'b', 'total': 3}]
    """
    check_keyed(stream, "apply_in_pandas_with_state")
    if not callable(function):
        raise PlanError(f"step {name!r}: function must be a function of key, frames and state, got {shown(function)}")
    kind = one_of(timeout, TIMEOUTS, f"step {name!r}: timeout")
    if kind == "EventTimeTimeout":
        check_watermarks(stream, name, 'timeout="EventTimeTimeout"')
    stored = StoredRow(state, "the state")
    if initial_state is not None:
        states = partial(_states, initial_state, stored, name)
        options["initial_state"] = states if callable(initial_state) else states()
    logic = _Logic(function, SentRows(output), stored, kind, has_watermarks=stream.traits.epochs)
    return stream.stateful_op(name, logic, **options)


def _states(given: Any, stored: StoredRow, step: str) -> dict[Any, dict[str, Any]]:
    pairs: Any = given() if callable(given) else given
    try:
        return {key: {_VALUE: stored.of([held[field] for field in stored.names])} for key, held in dict(pairs).items()}
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(
            f"step {step!r}: initial_state must map keys to dicts with the fields {', '.join(stored.names)}: "
            f"{describe_error(error)}"
        ) from error


class _Logic:
    """Calls the function: a logic of ``stateful_op``."""

    def __init__(
        self, function: Any, output: SentRows, stored: StoredRow, timeout: str, *, has_watermarks: bool
    ) -> None:
        self._function = function
        self._output = output
        self._stored = stored
        self._timeout = timeout
        self._has_watermarks = has_watermarks

    def on_batch(
        self,
        keys: Sequence[Any],
        values: Sequence[Any],
        timestamps: Sequence[int] | None,
        state: MutableMapping[Any, Any],
        output: Any,
    ) -> None:
        """Call the function for each key of the batch."""
        rows_of = rows_by_key(keys)
        frames = Frames(values, rows_of)
        for key, rows in rows_of.items():
            time = None if timestamps is None else timestamps[rows[-1]]
            left = self._call(key, frames.of(rows), state.get(key) or {}, output, time, list(values[rows[-1]]))
            if left:
                state[key] = left
            else:
                state.pop(key, None)

    def on_timer(self, key: Any, time: int, key_state: Any, output: Any) -> Any:
        """Call the function if this is the timeout of the key: it has passed by then, as in Spark."""
        state = key_state or {}
        if state.get(_AT, time) >= time:
            return state or None
        import pandas as pd  # type: ignore[import-untyped]

        is_timed = self._timeout == "EventTimeTimeout"
        at = min(max(time, output.watermark + 1), MAX_EPOCH - 1) if is_timed else None
        columns = state[_COLUMNS]
        held = {_VALUE: state[_VALUE]} if _VALUE in state else {}
        return self._call(key, [pd.DataFrame(columns=columns)], held, output, at, columns, fired=time) or None

    def _call(
        self,
        key: Any,
        frames: Iterable[Any],
        held: dict[str, Any],
        output: Any,
        time: int | None,
        columns: list[str],
        fired: int = 0,
    ) -> dict[str, Any]:
        """Call the function, send its rows with ``time``, and return the new state. ``fired``: the timer that came."""
        from pyspark.sql.streaming.state import GroupState
        from pyspark.sql.types import Row

        by_clock = self._timeout == "ProcessingTimeTimeout"
        now_ms = max(output.now_ms(), fired if by_clock else 0)
        watermark_ms = _NONE if by_clock or not self._has_watermarks else max(output.watermark, fired, 0)
        has_value, value = _VALUE in held, Row(*self._stored.seen(held.get(_VALUE, ())))
        group = GroupState(
            value,
            now_ms,
            watermark_ms,
            self._timeout,
            bool(fired),
            self._has_watermarks,
            has_value,
            False,
            False,
            _NONE,
            b"",
            None,  # type: ignore[arg-type]  # the types of the state are not checked
        )
        for frame in self._function(key if isinstance(key, tuple) else (key,), iter(frames), group):
            for row in self._output.in_frame(frame):
                output.emit(key, row, time)
        told = json.loads(group.json())
        at = told["timeoutTimestamp"]
        if not (told["updated"] or told["removed"] or at != _NONE):
            return held
        left: dict[str, Any] = {_VALUE: self._stored.of(group.get)} if group.exists else {}
        if at != _NONE:
            left |= {_AT: int(at), _COLUMNS: columns}
            output.set_timer(key, max(int(at), fired) + 1, clock="processing" if by_clock else "event")
        return left
