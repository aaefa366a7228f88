"""The base classes of steps with one state per key: control messages, and the loop of one output per record.

Rule: a key's state changes by assignment only, after the user's function has returned; a record on which the function
raised leaves the state unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any

from malstrom_py.clock import Clock
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, Epoch, StateMessage
from malstrom_py.data.time import from_clock
from malstrom_py.errors import InternalError, OperatorError, lasting
from malstrom_py.errors.text import column_of
from malstrom_py.operators.base import Operator, Outlet, StepContext, weakly
from malstrom_py.operators.failures import ErrorPolicy, call_each
from malstrom_py.state.keyed_state import KeyedState, Migrate

if TYPE_CHECKING:
    from malstrom_py.state.memory import StateMemory, StepMemory

Rows = Iterator[tuple[Any, ...]]


def check_hashable(key: object, step: str) -> None:
    """Raise `OperatorError` if ``key`` cannot be hashed. Called after a loop has failed, to find the cause."""
    try:
        hash(key)
    except Exception as error:  # a TypeError, or an error of the user's own __hash__
        own = None if isinstance(error, TypeError) else error
        raised = f" (its __hash__ raised {type(own).__name__})" if own else ""
        raise OperatorError(
            f"step {step!r}: a key of type {type(key).__name__} cannot be hashed{raised}. "
            f"Return something immutable from key_by, for instance a tuple instead of a list.",
            step=step,
        ) from own


def keys_of(batch: Batch, step: str) -> list[Any]:
    """Return the keys of ``batch``; the builder guarantees them."""
    if batch.keys is None:
        raise InternalError(f"step {step!r} is keyed but was sent a batch without keys")
    return batch.keys


def distinct(keys: list[Any], step: str) -> set[Any]:
    """Return the set of ``keys``; `OperatorError` if one cannot be hashed."""
    try:
        return set(keys)
    except Exception:
        for key in keys:
            check_hashable(key, step)
        raise


class StatefulOperator(Operator):
    """A step with ``state``: values and timers of the keys that this worker owns. Handles all control messages."""

    advice = "Filter such values out before it"
    """What to do about a value that this step cannot process."""

    figures = False
    """Whether this step makes sums or the like, with ``skip_nulls=``."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.state = KeyedState(context.step, context.codec)
        self.failures = ErrorPolicy(context, advice=self.advice, figures=self.figures)
        self._expires_by_clock = False
        self.dropped_at: dict[Any, int] = {}
        """The keys whose state the batch has dropped -> the row that did, counted without the rows that failed."""

    keeps_on_disk = False
    """Whether states may be on disk while no batch needs them: the step looks only at those of the batch's keys."""

    def keep_within(self, memory: StateMemory) -> None:
        """Keep no more state in memory than ``memory`` has room for. Requires `keeps_on_disk`."""
        self.state.memory = memory.keep(self.state)
        self.installs_bytes = memory.installs_bytes
        self.state.untried = True  # one that cannot be stored is an error now, not when memory is full
        if self.two_sided:
            self.on_side = partial(weakly(self._side_within_memory), weakly(self.on_side))  # type: ignore[method-assign]
            return
        process = self.on_batch if isinstance(self.on_batch, partial) else weakly(self.on_batch)  # with a ttl one
        self.on_batch = partial(weakly(self._within_memory), process)  # type: ignore[method-assign]  # for this one alone

    def _within_memory(self, process: Callable[[Batch, Outlet], None], batch: Batch, out: Outlet) -> None:
        if self.state.cold is None:  # columns of keys remain columns
            self.state.expect(len(batch))
        else:
            with suppress(TypeError):  # of a key that cannot be hashed, which the step reports
                self.state.bring(keys_of(batch, self.context.step))
        assert self.state.memory is not None
        self.state.memory.during(partial(process, batch, out))
        self.state.settle()

    def _side_within_memory(
        self, process: Callable[[int, Batch, Outlet], None], side: int, batch: Batch, out: Outlet
    ) -> None:
        self._within_memory(partial(process, side), batch, out)

    def expire_after(self, ttl: int, *, by_clock: bool) -> None:
        """Drop a key's state at a record later than its last one + ``ttl``, or once the frontier passes that time.

        Called first. ``ttl`` is in the stream's unit. ``by_clock``: once the runtime's clock passes that time, in ms.
        """
        from malstrom_py.state.expiry import Expiry  # a job is defined without it

        self.state.expiry = Expiry(ttl, was_timer=isinstance(self, KeyedOperator))
        self._expires_by_clock = by_clock
        self.scheduled = self.scheduled or by_clock
        if not by_clock:
            self.failures.failed = None if self.context.on_error == "fail" else set()
            self.on_batch = partial(weakly(self._in_pieces), weakly(self.on_batch))  # type: ignore[method-assign]  # for this one alone

    def tracks(self) -> bool:
        """Return whether the state's changed keys are tracked."""
        return self.state.tracked

    def _in_pieces(self, process: Callable[[Batch, Outlet], None], batch: Batch, out: Outlet) -> None:
        """Process a batch in pieces, within which no key's state ends. Requires a ttl of event time.

        A record that fails ends no state: its key gets its former one back, for records that come late.
        """
        expiry, times = self.state.expiry, batch.timestamps
        assert expiry is not None
        keys = keys_of(batch, self.context.step)
        distinct(keys, self.context.step)  # an error of a key that cannot be hashed names it
        failed = self.failures.failed
        apart = failed is not None
        for start, end, ended in expiry.lives(keys, times, apart=apart) if times else ((0, len(batch), ()),):
            former = {key: (self.state.values.get(key), expiry.until[key]) for key in ended} if apart else {}
            if ended:
                self.state.end(ended)
                expiry.forget(ended)
            process(batch if end - start == len(batch) else batch.cut(start, end), out)
            for key in former.keys() & (failed or ()):
                self.state.values[key], until = former[key]
                expiry.put({key: until})
            if failed:
                failed.clear()

    @property
    def dormant(self) -> bool:
        return self._expires_by_clock and not self.state.count

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        if self.state.expiry is not None:
            self.expire(epoch)
        out.forward(epoch)

    def on_schedule(self, out: Outlet, clock: Clock) -> None:
        self.expire_now()

    def expire(self, epoch: Epoch) -> None:
        """Drop the states whose time ``epoch`` has passed: at exactly its time a key still has its state."""
        if not self._expires_by_clock or epoch.time == MAX_EPOCH:
            self.state.expire(epoch.time - 1)

    def expire_now(self) -> None:
        """Drop the states whose time the clock has passed, if they go by the clock."""
        if self._expires_by_clock:
            self.state.expire(from_clock(self.context.clock.now_s(), "ms") - 1)

    def touched(self, batch: Batch) -> None:
        """Let the states of the keys of ``batch``, of which no row has failed, last from now on. Requires a ttl."""
        keys, times = keys_of(batch, self.context.step), batch.timestamps or []
        if self._expires_by_clock:
            times = [from_clock(self.context.clock.now_s(), "ms")] * len(keys)
        if self.dropped_at and self.state.expiry is not None:  # a later record has begun another life
            self.state.expiry.forget(self.dropped_at)
            since = [row > self.dropped_at.get(key, -1) for row, key in enumerate(keys)]
            keys, times = list(compress(keys, since)), list(compress(times, since))
        self.state.touch(keys, times)

    def track(self, slots_of: Callable[[Sequence[Any]], Sequence[int]]) -> None:
        self.state.track(slots_of)

    def install(self, chain: Sequence[bytes], slots: Collection[int], *, migrate: Migrate | None = None) -> None:
        self.take_over(chain, slots, migrate)

    def restore(self, state: bytes, owned: Callable[[Any], bool] = lambda key: True) -> None:
        """Install what an untracked step has persisted, for the keys that are ``owned`` here."""
        self.state.restore(state, owned)

    def continue_chain(self, snapshot: str) -> None:
        self.state.continue_chain(snapshot)

    def start_with(self, states: Mapping[Any, Any]) -> None:
        """Set the initial ``states``, by key, before any message. `CodecError` if one cannot be stored in snapshots."""
        self.state.start_with(states)

    def take_over(
        self, chain: Sequence[bytes], slots: Collection[int], migrate: Migrate | None
    ) -> tuple[list[Any], bytes]:
        """Install ``chain``, and return its keys and the step's remark."""
        return self.state.install(chain, slots, migrate=None if migrate is None else self._guarded(migrate))

    def given(self, state: Any) -> Any:
        """Return a state of an image of columns as rows have it, for ``migrate``."""
        return state

    def changes(self, keys: Collection[Any]) -> None:
        """Track that the states of ``keys`` are about to change. `OperatorError` if one cannot be hashed."""
        try:
            self.state.note(keys)
        except Exception:
            for key in keys:
                check_hashable(key, self.context.step)
            raise

    def _guarded(self, migrate: Migrate) -> Migrate:
        def guarded(key: Any, state: Any) -> Any:
            try:
                return migrate(key, self.given(state))
            except Exception as error:
                raise lasting(self.failures.error(error, migrate, key=key, policy=False)) from error

        return guarded

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        self.state.handle(message)
        out.forward(message)

    @property
    def by_slot(self) -> bool:
        """Whether a move may take the state by slot, and need not send `Interrogate` and `Collect` to this step."""
        return type(self).on_control is StatefulOperator.on_control and self.state.by_slot

    @property
    def state_ahead(self) -> KeyedState | None:
        return self.state if type(self).on_control is StatefulOperator.on_control else None

    @property
    def memory(self) -> StepMemory | None:
        return self.state.memory

    @property
    def packs_ahead(self) -> KeyedState | None:
        """The state, if all that a barrier writes of it may be packed before (S2): it is what records have made it."""
        return self.state_ahead

    @property
    def keys(self) -> int | None:
        return self.state.count


def expiring(context: StepContext, *, factory: Callable[[StepContext], Operator], ttl: int, by_clock: bool) -> Operator:
    """Build a step with state by ``factory``, whose state expires: see `StatefulOperator.expire_after`."""
    operator = factory(context)
    if not isinstance(operator, StatefulOperator):
        raise InternalError(f"step {context.step!r} has a ttl, but keeps no keyed state")
    operator.expire_after(ttl, by_clock=by_clock)
    return operator


class KeyedOperator(StatefulOperator):
    """A keyed step with one output per record."""

    keeps_on_disk = True

    needs_values = True
    """Whether `update` reads values."""

    def __init__(
        self, context: StepContext, *, function: object = None, by: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(context)
        self.function = by if function is None else function  # the function that an error message names
        self._by = by
        self._column = column_of(by)
        self.takes_columns = self._column is not None or not self.needs_values

    @property
    def states(self) -> MutableMapping[Any, Any]:
        """The states by key."""
        return self.state.values

    def update(self, rows: Rows, results: list[Any]) -> None:
        """Process (key, value) rows until they end: per row set the state, then append exactly one result."""
        raise NotImplementedError

    def rows(self, keys: list[Any], values: list[Any]) -> Rows:
        """Return the rows for `update`."""
        return zip(keys, values, strict=True)

    def failed_function(self, index: int, keys: list[Any], values: list[Any]) -> object:
        """Return the user's function to name in the error about row ``index``; None if there is none."""
        return self.function

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        batch, values = self._taken(batch, out)
        keys = keys_of(batch, self.context.step)
        expiry = self.state.expiry
        if expiry is not None:
            self.expire_now()
        self.changes(keys)
        self.dropped_at.clear()
        results: list[Any] = []
        failed: list[int] = []
        rows = self.rows(keys, values)
        while True:
            try:
                self.update(rows, results)
                break
            except Exception as error:
                index = len(results) + len(failed)
                check_hashable(keys[index], self.context.step)
                self.failures.record(error, self.failed_function(index, keys, values), batch, index, out)
                failed.append(index)
        if failed:
            batch = batch.drop(failed)
        if expiry is not None:
            self.touched(batch)
        if self.state.untried:
            self.state.try_first()
        self.emit(batch, results, out)

    def _taken(self, batch: Batch, out: Outlet) -> tuple[Batch, list[Any]]:
        """Return the rows that did not fail, and the values for `update`. Columns are not converted to rows."""
        if isinstance(batch, ColumnBatch):
            if not self.needs_values:
                return batch, keys_of(batch, self.context.step)
            if self._column is not None and (column := batch.field(self._column)) is not None:
                return batch, column
        return (batch, batch.values) if self._by is None else call_each(self._by, batch, self.failures, out)

    def emit(self, batch: Batch, results: list[Any], out: Outlet) -> None:
        """Send the results of ``batch``, one per row."""
        out.send(batch.with_values(results))


class FoldingOperator(KeyedOperator):
    """A keyed step with a function of a state and a row, which is done on columns where all that it does is known.

    ``folds``: the function as `malstrom_py.operators.compiled_folds` calls it, with ``takes_key`` or not.
    """

    @classmethod
    def why_never(cls, function: Callable[..., Any]) -> str | None:
        from malstrom_py.traced.tracing import why_impure

        return why_impure(function)

    def __init__(
        self,
        context: StepContext,
        *,
        function: object,
        folds: Callable[..., Any],
        default: Callable[[], Any] | None = None,
        takes_key: bool = False,
        compiles: bool = True,
    ) -> None:
        from malstrom_py.operators.compiled_folds import CompiledFold  # a job is defined without it

        super().__init__(context, function=function)
        self._compiled = CompiledFold(context, self.state, folds, default, takes_key=takes_key, compiles=compiles)
        self.takes_columns = self._compiled.takes_columns

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        made: Batch | None = None
        if isinstance(batch, ColumnBatch):
            made = self._compiled.scan(batch)
        else:
            self.state.to_rows()
        self.takes_columns = made is not None  # whole batches are for columns only
        if made is None:
            super().on_batch(batch, out)
        elif len(made):
            out.send(made)
