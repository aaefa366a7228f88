"""``window``: gathers the records of a key into windows, and sends one result per window and key when it closes.

Rule: what is gathered is state of its key: it moves with the key and is persisted. Nothing else is: which early results
are due is known to a worker only, so after a rescale or a recovery an update may come later, or twice; the final result
of a window comes once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain, repeat
from operator import iadd, itemgetter, length_hint
from typing import Any, Final, NamedTuple, cast

from malstrom_py.agg import Aggregation, Run
from malstrom_py.clock import Clock
from malstrom_py.data.batch import Batch
from malstrom_py.data.figures import unchanged
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch
from malstrom_py.data.time import from_clock
from malstrom_py.data.unshared import unshared
from malstrom_py.errors import InternalError
from malstrom_py.operators.aggregate import FieldValues
from malstrom_py.operators.base import ColumnsRead, Outlet, StepContext
from malstrom_py.operators.keyed import StatefulOperator, check_hashable, keys_of
from malstrom_py.operators.run_panes import UNNUMBERED
from malstrom_py.operators.stateless import spread
from malstrom_py.state.many_values import SETTLES
from malstrom_py.windows import WindowResult

_ABSENT: Final[Any] = object()

_WHOLE: Final[Aggregation[Any, Any]] = Aggregation("value", list, iadd, iadd, unchanged)
"""The whole value of a record, where no aggregation reads a field."""

Loop = Callable[[Iterable[tuple[Any, ...]], dict[Any, Any]], None]
"""Takes rows (key, values …) until they end; per row sets the state of the key."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """How the records of a window become its value: as of an `Aggregation`, but over one or more values of a record.

    ``aggregations``: whose fields are the values; ``loop``: adds rows; ``merge``: None if two parts of a window cannot
    be merged. ``function``: the user's, which an error message names. ``spreads``: ``finish`` returns a list, of which
    each item is a record. ``names``: of several aggregations, whose results are a dict. ``in_order``: ``merge`` is
    called with what records have gathered that arrived one after the other. ``own`` copies what has been gathered
    before ``merge`` or ``finish`` may change it while others hold it too.
    """

    aggregations: Sequence[Aggregation[Any, Any]]
    loop: Loop
    merge: Callable[[Any, Any], Any] | None
    finish: Callable[[Any], Any]
    function: object = None
    spreads: bool = False
    names: Sequence[str] | None = None
    in_order: bool = False
    own: Callable[[Any], Any] = unchanged


def gather_one(one: Aggregation[Any, Any]) -> Gathering:
    """Gather by one aggregation, whose result is the value."""
    init, add, check = one.init, one.add, one.check

    def loop(rows: Iterable[Any], states: dict[Any, Any]) -> None:
        get = states.get
        for key, value in rows:
            state = get(key, _ABSENT)
            if state is _ABSENT:
                state = init()
            if check is not None:
                check(state, value)
            states[key] = add(state, value)

    quick = loop if one.fast is None else partial(_without_results, one.fast)
    return Gathering((one,), quick, one.merge, one.finish, in_order=one.in_order, own=_own_of(one))


def _own_of(one: Aggregation[Any, Any]) -> Callable[[Any], Any]:
    """Return how a state of ``one`` is copied: only a user's functions may change it."""
    return unshared if one.name == "custom" else unchanged


def _without_results(run: Run, rows: Iterable[Any], states: dict[Any, Any]) -> None:
    """Add ``rows`` by the loop of the running figure, which is much faster than two calls per record."""
    run(rows, cast("list[Any]", deque(maxlen=0)), states)


def gather_fold(
    fn: Callable[[Any, Any], Any], default: Callable[[], Any], merge: Callable[[Any, Any], Any] | None
) -> Gathering:
    """Gather by a user's fold."""
    return _gather_by(fn, lambda value: fn(default(), value), merge)


def gather_reduce(fn: Callable[[Any, Any], Any]) -> Gathering:
    """Gather by a user's function of two values."""
    return _gather_by(fn, unchanged, fn)


def _gather_by(
    fn: Callable[[Any, Any], Any], first: Callable[[Any], Any], merge: Callable[[Any, Any], Any] | None
) -> Gathering:
    """Gather by ``fn`` of a state and a value; ``first`` returns the state after the first value."""

    def loop(rows: Iterable[Any], states: dict[Any, Any]) -> None:
        get = states.get
        for key, value in rows:
            state = get(key, _ABSENT)
            made = first(value) if state is _ABSENT else fn(state, value)
            # The next call may change what this one has returned, but not the value of a record.
            states[key] = unshared(value) if made is value else made

    return Gathering((_WHOLE,), loop, merge, unchanged, fn, in_order=True, own=unshared)


def gather_list() -> Gathering:
    """Gather values into a list."""

    def loop(rows: Iterable[Any], states: dict[Any, Any]) -> None:
        get = states.get
        for key, value in rows:
            values = get(key)
            if values is None:
                states[key] = [value]
            else:
                values.append(value)

    return Gathering((_WHOLE,), loop, iadd, list, in_order=True, own=list)


def gather_all(aggregations: Mapping[str, Aggregation[Any, Any]]) -> Gathering:
    """Gather by several aggregations: the value is a dict of their results."""
    ones = list(aggregations.values())
    inits, adds = [one.init for one in ones], [one.add for one in ones]
    checks = [(place, one.check) for place, one in enumerate(ones) if one.check is not None]
    # An `add` that changes the state it is given comes last, when nothing can fail any more.
    order = sorted(range(len(ones)), key=lambda place: ones[place].check is not None)

    def loop(rows: Iterable[Any], states: dict[Any, Any]) -> None:
        get = states.get
        for key, *values in rows:
            known = get(key) or [init() for init in inits]
            for place, check in checks:
                check(known[place], values[place])
            changed = [*known]
            for place in order:
                changed[place] = adds[place](known[place], values[place])
            states[key] = changed

    def merge(left: Any, right: Any) -> Any:
        return [one.merge(before, after) for one, before, after in zip(ones, left, right, strict=True)]

    names, finishes = list(aggregations), [one.finish for one in ones]

    def finish(state: Any) -> dict[str, Any]:
        return {name: finish(of) for name, finish, of in zip(names, finishes, state, strict=True)}

    owns = [_own_of(one) for one in ones]

    def own(state: Any) -> Any:
        return [copied(of) for copied, of in zip(owns, state, strict=True)]

    finished = _named(names) if all(one.finish is unchanged for one in ones) else finish
    if len(ones) == 2 and all(one.name in ("count", "sum") and one.fast is not None for one in ones):
        return Gathering(ones, _two_sums, merge, finished, names=names)
    in_order = any(one.in_order for one in ones)
    copies = unchanged if all(one is unchanged for one in owns) else own
    return Gathering(ones, loop, merge, finished, names=names, in_order=in_order, own=copies)


def _named(names: Sequence[str]) -> Callable[[Any], dict[str, Any]]:
    """Return what makes a dict of states that are results. With two names it costs a quarter."""
    if len(names) != 2:
        return lambda state: dict(zip(names, state, strict=True))
    one, other = names
    return lambda state: {one: state[0], other: state[1]}


def _two_sums(rows: Iterable[Any], states: dict[Any, Any]) -> None:
    """Add two values to two sums. Each value of a count is 1."""
    get = states.get
    for key, value0, value1 in rows:
        known = get(key)
        if known is None:
            states[key] = [0 + value0, 0 + value1]
        else:
            # The state changes after everything that can fail; assigning a slice would cost more.
            first = known[0] + value0
            known[1] = known[1] + value1
            known[0] = first


class Emit(NamedTuple):
    """When early results are sent: every ``every`` of time, in the unit of the stream or, ``by_clock``, in ms of the
    runtime's clock; and after ``rows`` records. 0: never.
    """

    every: int = 0
    rows: int = 0
    by_clock: bool = False


CLOSE: Final = Emit()
"""No early results."""

_result: Final[Callable[[tuple[Any, ...]], WindowResult[Any]]] = partial(tuple.__new__, WindowResult)
"""Make a result of its fields, without a Python call."""


class WindowOperator(StatefulOperator):
    """The base of the window steps. ``by_clock``: windows go by the runtime's clock, in ms."""

    figures = True
    keeps_on_disk = True

    @classmethod
    def columns_read(cls, **options: Any) -> ColumnsRead | None:
        gather = options.get("gather")  # a join has none
        return None if gather is None else FieldValues(gather().aggregations).read

    def __init__(
        self, context: StepContext, *, gather: Callable[[], Gathering], emit: Emit = CLOSE, by_clock: bool = False
    ) -> None:
        super().__init__(context)
        self._gathering = gather()
        self._fields = FieldValues(self._gathering.aggregations)
        self.takes_columns = self._fields.names is not None
        self._emit = emit
        self._by_clock = by_clock
        self.scheduled = by_clock or (emit.every > 0 and emit.by_clock)
        self._updated_at = MIN_EPOCH

    def add(self, batch: Batch, keys: list[Any], values: list[list[Any]], times: list[int], out: Outlet) -> None:
        """Add the rows of ``batch``, which is not empty. ``values``: a list per aggregation."""
        raise NotImplementedError

    def close(self, reached: int, out: Outlet) -> None:
        """Send the results of all windows whose last moment is at most ``reached``, and drop their state."""
        raise NotImplementedError

    def update(self, out: Outlet, *, rows_min: int = 1) -> None:
        """Send early results of the windows that have got ``rows_min`` records since the last one."""
        raise NotImplementedError

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        batch, values = self._fields.of(batch, self.failures, out)
        if not len(batch):
            return
        keys = keys_of(batch, self.context.step)
        self.changes(keys)
        times = [self._now()] * len(keys) if self._by_clock else (batch.timestamps or [0] * len(keys))
        self.add(batch, keys, values, times, out)
        if self.state.untried:
            self.state.try_first()
        if self._emit.rows:
            self.update(out, rows_min=self._emit.rows)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        if not self._by_clock or epoch.time == MAX_EPOCH:
            self.close(epoch.time, out)
            if self._emit.every and not self._emit.by_clock:
                self._update_at(epoch.time, out)
        out.forward(epoch)

    def on_schedule(self, out: Outlet, clock: Clock) -> None:
        if self._by_clock:
            self.close(self._now() - 1, out)
        if self._emit.every and self._emit.by_clock:
            self._update_at(self._now(), out)

    def _update_at(self, time: int, out: Outlet) -> None:
        due = time // self._emit.every
        if due > self._updated_at:
            self._updated_at = due
            self.update(out)

    def _now(self) -> int:
        return from_clock(self.context.clock.now_s(), "ms")

    def _gather(
        self,
        batch: Callable[[], Batch],
        keys: Sequence[Any],
        values: Iterable[Iterable[Any]],
        states: dict[Any, Any],
        out: Outlet,
    ) -> int:
        """Add rows to ``states``, by key. A row that fails changes nothing; ``on_error`` decides about it.

        ``batch`` returns the rows, for an error. Returns the number of rows that failed.
        """
        left = iter(keys)
        rows = zip(left, *values, strict=False)
        failed = 0
        while True:
            try:
                self._gathering.loop(rows, states)
                return failed
            except Exception as error:
                index = len(keys) - length_hint(left) - 1
                check_hashable(keys[index], self.context.step)
                self.failures.record(error, self._gathering.function, batch(), index, out)
                failed += 1

    def _send_window(
        self,
        start: int,
        end: int,
        states: Mapping[Any, Any],
        out: Outlet,
        *,
        update: bool = False,
        time: int | None = None,
    ) -> None:
        """Send the results of one window, one per key, at ``time``, by default the last moment of the window."""
        if states:
            finish = self._gathering.finish
            with self.failures.of_hook(self._gathering.function or finish):
                values = list(states.values())
                if update:  # records to come may change what has been gathered so far
                    values = list(map(self._gathering.own, values))
                if finish is not unchanged:
                    values = list(map(finish, values))
            timed = self.context.timed and not self._by_clock
            times = [min(end, MAX_EPOCH) - 1 if time is None else time]
            keys = list(states)
            if self._gathering.spreads:
                keys = spread(keys, list(map(len, values)))
                records = list(chain.from_iterable(values))
                out.send(Batch(records, keys=keys, timestamps=times * len(records) if timed else None))
                return
            results = list(map(_result, zip(repeat(start), repeat(end), values, repeat(update), strict=False)))
            out.send(Batch(results, keys=keys, timestamps=times * len(results) if timed else None))


class SessionWindows(WindowOperator):
    """Windows of records that are less than ``gap`` apart.

    The state of a key is its open sessions, ascending: the time of the first record, that of the last, and what was
    gathered. Where the order of arrival makes a difference, that is runs, as in `RunPanes`: state, number, state,
    number … A session has a timer at a moment at which it may end; if more records have come, it is set again.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources, windows
    >>> times = mp.Job("docs").source("times", sources.Memory([1, 12, 6, 30])).assign_timestamps("time", int)
    >>> on_time, _ = times.generate_epochs("epochs", mp.limit_out_of_orderness(10))
    >>> visits = on_time.key_by("all", lambda time: "all").window("visits", windows.session(7)).collect()
    >>> [tuple(visit) for visit in mp.collect(visits)]
    [(1, 19, [1, 12, 6], False), (30, 37, [30], False)]
    """

    def __init__(
        self,
        context: StepContext,
        *,
        gather: Callable[[], Gathering],
        gap: int,
        emit: Emit = CLOSE,
        by_clock: bool = False,
    ) -> None:
        super().__init__(context, gather=gather, emit=emit, by_clock=by_clock)
        self._gap = gap
        self._changed: dict[Any, int] = {}

    def add(self, batch: Batch, keys: list[Any], values: list[list[Any]], times: list[int], out: Outlet) -> None:
        sessions, gap, timers = self.state.values, self._gap, self.state.timers
        for index, (key, time) in enumerate(zip(keys, times, strict=True)):
            there = sessions.get(key, ())
            near = [one for one in there if one[0] - gap < time < one[1] + gap]
            if self._gathering.in_order:
                earlier, known, number = self._runs_before(there, near)
            else:
                earlier, known, number = [], [self._joined(near)] if near else [], None
            gathered = {key: known[0]} if known else {}
            row = [column[index : index + 1] for column in values]
            if self._gather(partial(batch.take, [index]), [key], row, gathered, out):
                continue
            first, last = min([time, *(one[0] for one in near)]), max([time, *(one[1] for one in near)])
            session = [first, last, *earlier, gathered[key], *(() if number is None else (number,))]
            sessions[key] = sorted([*(one for one in there if one not in near), session], key=itemgetter(0))
            if not near:
                timers.set(key, min(time + gap - 1, MAX_EPOCH))
            if self._emit != CLOSE:
                self._changed[key] = self._changed.get(key, 0) + 1

    def _runs_before(self, there: Sequence[list[Any]], near: Sequence[list[Any]]) -> tuple[list[Any], list[Any], int]:
        """Return the runs of ``near`` that have ended, the state of the one that the next record continues, in a
        list that is empty if it starts one, and the number of its run. ``there``: all sessions of its key.
        """
        newest = max([_number_of(one) for one in there], default=UNNUMBERED)
        if not near:
            return [], [], newest + 1
        if len(near) == 1 and len(near[0]) > 3:
            *ended, state, number = near[0][2:]
        else:
            *runs, (state, number) = sorted((run for one in near for run in _runs_of(one)), key=itemgetter(1))
            ended = list(chain.from_iterable(runs))
        if number == newest:
            return ended, [state], number
        return [*ended, state, number], [], newest + 1

    def _joined(self, near: list[list[Any]]) -> Any:
        """Return what sessions have gathered together, in the order of time."""
        merge = self._gathering.merge
        joined = near[0][2]
        for _, _, state in near[1:]:
            if merge is None:
                raise InternalError(f"step {self.context.step!r}: two sessions join, and cannot be merged")
            joined = merge(joined, state)
        return joined

    def _value_of(self, session: list[Any]) -> Any:
        """Return what a session has gathered."""
        runs, merge = _runs_of(session), self._gathering.merge
        if len(runs) == 1 or merge is None:
            return session[2]
        own = self._gathering.own
        with self.failures.of_hook(self._gathering.function or merge):
            return reduce(merge, [own(state) for state, _ in runs])

    def close(self, reached: int, out: Outlet) -> None:
        sessions, gap, timers = self.state.values, self._gap, self.state.timers
        ended: dict[tuple[int, int], dict[Any, Any]] = {}
        changed: set[Any] = set()
        for key, _ in self.state.fired(timers, reached):
            if len(changed) >= SETTLES and self.state.cold is not None:
                self._send_ended(ended, changed, out)
            changed.add(key)
            there = sessions.pop(key, ())
            left = [one for one in there if min(one[1] + gap - 1, MAX_EPOCH) > reached]
            for one in there[: len(there) - len(left)]:
                ended.setdefault((one[1] + gap, one[0]), {})[key] = self._value_of(one)
            if left:
                sessions[key] = left
                timers.set(key, min(left[0][1] + gap - 1, MAX_EPOCH))
            else:
                self._changed.pop(key, None)
        self._send_ended(ended, changed, out)

    def _send_ended(self, ended: dict[tuple[int, int], dict[Any, Any]], changed: set[Any], out: Outlet) -> None:
        """Send the results of sessions by their end, then start, and forget them; note the ``changed`` keys."""
        self.state.note(changed)
        for end, start in sorted(ended):
            self._send_window(start, end, ended[end, start], out)
        ended.clear()
        changed.clear()

    def update(self, out: Outlet, *, rows_min: int = 1) -> None:
        due = [key for key, rows in self._changed.items() if rows >= rows_min]
        for key in chain.from_iterable(self.state.brought(due)):
            del self._changed[key]
            for one in self.state.values.get(key, ()):
                self._send_window(one[0], one[1] + self._gap, {key: self._value_of(one)}, out, update=True)


def _number_of(session: list[Any]) -> int:
    """Return the number of the last run of a session."""
    number: int = UNNUMBERED if len(session) == 3 else session[-1]
    return number


def _runs_of(session: list[Any]) -> list[tuple[Any, int]]:
    """Return what a session has gathered, with the number of each run; one from a snapshot without numbers has one."""
    return [(session[2], UNNUMBERED)] if len(session) == 3 else list(zip(session[2::2], session[3::2], strict=True))


class CountWindows(WindowOperator):
    """Windows of ``n`` records of a key, in the order of arrival; incomplete ones close at the end of the stream.

    The state of a key is the number of records, their smallest and largest time, and what was gathered.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources, windows
    >>> words = mp.Job("docs").source("words", sources.Memory(["ant", "bee", "ape", "asp"])).key_by("all", lambda w: "")
    >>> mp.collect(words.window("threes", windows.count(3)).collect().map("lists", lambda window: window.value))
    [['ant', 'bee', 'ape'], ['asp']]
    """

    def __init__(self, context: StepContext, *, gather: Callable[[], Gathering], n: int) -> None:
        super().__init__(context, gather=gather)
        self._n = n

    def add(self, batch: Batch, keys: list[Any], values: list[list[Any]], times: list[int], out: Outlet) -> None:
        states = self.state.values
        for index, (key, time) in enumerate(zip(keys, times, strict=True)):
            count, first, last, *state = states.get(key, (0, time, time))
            gathered = dict.fromkeys((key,), *state) if state else {}
            row = [column[index : index + 1] for column in values]
            if self._gather(partial(batch.take, [index]), [key], row, gathered, out):
                continue
            window = [count + 1, min(first, time), max(last, time), gathered[key]]
            if window[0] < self._n:
                states[key] = window
            else:
                states.pop(key, None)
                self._send_full(key, window, out)

    def close(self, reached: int, out: Outlet) -> None:
        if reached == MAX_EPOCH:
            self._send_rest(out)
            for _ in self.state.bring_all():
                self._send_rest(out)

    def _send_rest(self, out: Outlet) -> None:
        """Send the windows in memory, and forget them."""
        states = self.state.values
        self.state.note(states)
        for key, window in states.items():
            # The epochs sent since may have passed its records; this time has not been passed anywhere.
            self._send_full(key, window, out, time=MAX_EPOCH - 1)
        states.clear()

    def _send_full(self, key: Any, window: list[Any], out: Outlet, *, time: int | None = None) -> None:
        count, first, last, state = window
        start, end = (first, last + 1) if self.context.timed else (0, count)
        self._send_window(start, end, {key: state}, out, time=time)
