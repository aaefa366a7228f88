"""New code of a step beside the running code, on one worker: both get the same messages, and their output is compared.

Rule: a shadow never harms the job. It gets copies of rows, its output goes nowhere, and an error in it ends the
comparison only. A step without a shadow costs nothing: its operator and its node are others while it has one.
Both handle the same messages in the same order, so their outputs are compared message by message, in the order of each
key; and a count up to a barrier is exact, because it ends with the barrier on both sides.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial
from itertools import takewhile, zip_longest
from typing import Any, Final, NamedTuple

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock
from malstrom_py.codec.at_rest import OrderedEncoder
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import (
    MAX_EPOCH,
    AbsBarrier,
    Acquire,
    Collect,
    DeadLetter,
    Epoch,
    Interrogate,
    PartMessage,
    StateMessage,
)
from malstrom_py.data.unshared import PLAIN, unshared
from malstrom_py.errors import CodecError, shown
from malstrom_py.errors.text import public_text
from malstrom_py.operators.base import Operator, Outlet, weakly
from malstrom_py.workers.engine.executor import Executor
from malstrom_py.workers.reports.shadows import PAIRS_MAX, Compared, ShadowPair
from malstrom_py.workers.transport.messages import COORDINATOR, Outgoing

_EVERY_S: Final = 0.1
_ALIGNED_MAX: Final = 100
"""So many outputs of each side are put beside each other in one piece: to align long lists would take long."""

_TEXT_MAX: Final = 300

_DESCRIBED_DEEP: Final = 6
"""So many containers and attributes within each other are described; of what is deeper, the text without addresses."""

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+(?=>)")

_BITS: Final = {"halffloat": "int16", "float": "int32", "double": "int64"}
"""The type of a column of floats -> the type of its bits."""

OLD, NEW = 0, 1


class Output(NamedTuple):
    """What was sent: the stored forms of its key and its value, of sets in order."""

    key: bytes
    time: int | None
    value: bytes


class _Sent(NamedTuple):
    """A batch of ``rows`` that was sent by a port: columns, which never change, or the stored form of rows."""

    port: int
    rows: int
    what: ColumnBatch | bytes | list[Output]


class Shadow:
    """The comparison of a step and its shadow ``operators`` on a worker. ``messages``: those to the coordinator."""

    def __init__(
        self,
        worker: int,
        step: str,
        operators: tuple[Operator, Operator],
        outputs: Sequence[str],
        clock: Clock,
        messages: list[Outgoing],
    ) -> None:
        self.failure = ""
        self._worker, self._step = worker, step
        self._counters = [operator.counters for operator in operators]
        self._outputs = outputs
        self._codecs = [operator.context.codec for operator in operators]
        self._encoders = [OrderedEncoder(codec.types, codec.limits) for codec in self._codecs]
        self._clock = clock
        self._messages = messages
        self._handled = [0, 0]
        """How many messages other than batches each side has handled."""
        self._sent: dict[tuple[int, int], tuple[list[_Sent], list[_Sent]]] = {}
        """What is not compared yet: by message and side."""
        self._compared = self._different = 0
        self._pairs: list[ShadowPair] = []
        self._is_told = False
        self._next_s = 0.0

    def saw(self, side: int, batch: Batch, port: int) -> None:
        """Take a batch that a side sends, rows in their stored form: later steps may change them, but no columns."""
        if self.failure:
            return
        try:
            # A batch keeps the forms that it was read in, by which later steps decide: the copy has the same memory.
            sent = batch.with_form(batch.form) if isinstance(batch, ColumnBatch) else self._packed(side, batch)
            self._sent.setdefault(self._place(side), ([], []))[side].append(_Sent(port, len(batch), sent))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of the user's class
            self.fail(error)

    def run(self, call: Callable[..., object], *arguments: Any) -> bool:
        """Call a function of the new code, and return whether it has returned. After an error it is not called."""
        if self.failure:
            return False
        try:
            call(*arguments)
        except KeyboardInterrupt:  # of who runs the job
            raise
        except BaseException as error:  # also a task that was cancelled, or a library's panic
            self.fail(error)
        return not self.failure

    def fail(self, error: BaseException) -> None:
        """End the comparison because of ``error``."""
        self.failure = public_text(error) or type(error).__name__
        self._sent.clear()
        self.tell()

    def handled(self, side: int, message: Epoch | PartMessage | StateMessage) -> None:
        """Note that a side has handled a message other than a batch. What precedes it on both sides is compared."""
        # Moves may take the state of one side without these messages. They are sent between two runs of the executor.
        is_move = isinstance(message, Interrogate | Collect | Acquire)
        self._handled[side] += not is_move
        is_first = side == OLD if is_move else self._handled[side] > self._handled[1 - side]
        if is_first or self.failure:
            return
        self.compare(idle=is_move)
        if not isinstance(message, Epoch) or message.time == MAX_EPOCH:
            self.tell(message.snapshot if isinstance(message, AbsBarrier) else None)

    def compare(self, *, idle: bool = False) -> None:
        """Compare the outputs for the messages that both sides have handled; ``idle``: these are all messages."""
        upto = min(self._place(OLD), self._place(NEW))
        for place in sorted(self._sent):
            if place >= upto and not idle:
                break
            try:
                self._compare_batches(*self._sent.pop(place))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # of the user's class
                self.fail(error)
        if self._clock.monotonic_s() >= self._next_s:
            self.tell()

    @property
    def has_news(self) -> bool:
        """Whether something is to be compared or sent."""
        return bool(self._sent or self._compared)

    def tell(self, snapshot: str | None = None) -> None:
        """Send what was compared since the last message, if anything."""
        is_news = self._compared or snapshot is not None or (self.failure and not self._is_told)
        if not is_news:
            return
        self._is_told = bool(self.failure)
        counts = self._compared, self._different, self.failure, tuple(self._pairs[-PAIRS_MAX:]), snapshot
        self._messages.append((COORDINATOR, Compared(self._worker, self._step, *counts)))
        self._compared = self._different = 0
        self._pairs.clear()
        self._next_s = self._clock.monotonic_s() + _EVERY_S

    def _place(self, side: int) -> tuple[int, int]:
        """Return which message a side handles now, or has handled last."""
        return self._handled[side], self._counters[side].calls

    def _packed(self, side: int, batch: Batch) -> bytes | list[Output]:
        """Return the stored form of a batch, or of each row if there is none of all."""
        times = None if batch.timestamps is None else [*map(int, batch.timestamps)]
        try:
            return self._codecs[side].encode_at_rest([batch.values, batch.keys, times], step=self._step)
        except CodecError:
            return self._rows(side, batch)

    def _unpacked(self, side: int, sent: _Sent) -> list[Output]:
        if isinstance(sent.what, bytes):
            values, keys, times = self._codecs[side].decode_at_rest(sent.what)
            return self._rows(side, Batch(values, keys=keys, timestamps=times))
        return self._rows(side, sent.what) if isinstance(sent.what, ColumnBatch) else sent.what

    def _rows(self, side: int, batch: Batch) -> list[Output]:
        nothing = [None] * len(batch)
        return [
            Output(self._stored(side, key), None if time is None else int(time), self._stored(side, value))
            for key, value, time in zip(batch.keys or nothing, batch.values, batch.timestamps or nothing, strict=True)
        ]

    def _compare_batches(self, *sides: list[_Sent]) -> None:
        """Compare what both sides have sent for a message: batches that are the same as a whole, others row by row."""
        if len(sides[OLD]) == len(sides[NEW]) and all(map(_same, *sides)):
            self._compared += sum(sent.rows for sent in sides[OLD])
            return
        rows = defaultdict[tuple[int, bytes], tuple[list[Output], list[Output]]](lambda: ([], []))
        for side, batches in enumerate(sides):
            for sent in batches:
                for row in self._unpacked(side, sent):
                    rows[sent.port, row.key][side].append(row)
        for (port, _), (old, new) in rows.items():
            self._compare(port, old, new)

    def _stored(self, side: int, value: Any) -> bytes:
        if value is None:
            return b""
        if isinstance(value, DeadLetter):
            value = replace(value, step=self._step)
        try:
            return self._encoders[side].encode(value, step=self._step)
        except CodecError:
            return self._encoders[side].encode(_described(value), step=self._step)

    def _compare(self, port: int, old: list[Output], new: list[Output]) -> None:
        if old == new:
            self._compared += len(old)
            return
        for before, now in aligned(old, new):
            self._compared += 1
            if before != now:
                self._different += 1
                one = before or now
                assert one is not None, "each pair has one output at least"
                name = self._outputs[port] if len(self._outputs) > 1 else ""
                self._pairs.append(ShadowPair(self._shown(one.key), self._text(before), self._text(now), name))
                del self._pairs[:-PAIRS_MAX]

    def _text(self, output: Output | None) -> str:
        if output is None:
            return ""
        at = "" if output.time is None else f" at {output.time}"
        return f"{self._shown(output.value)}{at}"

    def _shown(self, stored: bytes) -> str:
        if not stored:
            return "None"
        with suppress(Exception):
            return shown(self._codecs[OLD].decode_at_rest(stored), characters_max=_TEXT_MAX)
        return f"<{len(stored)} bytes>"


def _same(one: _Sent, other: _Sent) -> bool:
    """Return whether two batches are the same; False where that is not certain."""
    old, new = one.what, other.what
    if one.port != other.port:
        return False
    if not (isinstance(old, ColumnBatch) and isinstance(new, ColumnBatch)):
        return not isinstance(old, ColumnBatch) and not isinstance(new, ColumnBatch) and old == new
    if old.form != new.form or old.columns.schema != new.columns.schema:
        return False
    return (
        all(map(_same_bits, old.columns.columns, new.columns.columns))
        and old.keys == new.keys
        and old.timestamps == new.timestamps
    )


def _same_bits(one: Any, other: Any) -> bool:
    """Return whether two columns are the same, where NaN is like itself, and 0.0 is not like -0.0."""
    kind = str(one.type)
    if (bits := _BITS.get(kind)) is not None:
        one, other = one.view(bits), other.view(bits)
    elif "float" in kind or "double" in kind:  # in lists or structs
        return bool(one.equals(other)) and one.buffers() == other.buffers()
    return bool(one.equals(other))


def _described(value: Any, deep: int = _DESCRIBED_DEEP) -> str:
    """Return the text of a value that cannot be stored: attributes in place of addresses, sets in order."""
    kind = type(value)
    if deep and kind is dict:
        return f"{{{', '.join(f'{_described(key, 0)}: {_described(one, deep - 1)}' for key, one in value.items())}}}"
    if deep and kind in {list, tuple, set, frozenset}:
        texts = [_described(one, deep - 1) for one in value]
        return f"{kind.__name__}({', '.join(texts if kind in {list, tuple} else sorted(texts))})"
    text = shown(value, characters_max=sys.maxsize)
    plain = text if kind in PLAIN else _ADDRESS.sub("", text)
    return plain if plain == text or not deep else f"{plain} {_described(object.__getstate__(value), deep - 1)}"


def aligned(old: list[Output], new: list[Output]) -> list[tuple[Output | None, Output | None]]:
    """Return the outputs of a key in pairs: one by one if there are as many, else equal ones beside each other."""
    if len(old) == len(new):
        return [*zip(old, new, strict=True)]
    at = to = _alike(old, new)
    last = _alike(reversed(old[at:]), reversed(new[to:]))
    pairs: list[tuple[Output | None, Output | None]] = [*zip(old[:at], new[:to], strict=True)]
    while at < len(old) - last or to < len(new) - last:
        before, now = (side[i : min(i + _ALIGNED_MAX, len(side) - last)] for side, i in ((old, at), (new, to)))
        found = SequenceMatcher(None, before, now, autojunk=False).get_opcodes()
        # What follows the last equal ones may have its like in the next piece.
        while found[-1][0] != "equal" and any(one[0] == "equal" for one in found):
            found.pop()
        for _, start, end, other, other_end in found:
            pairs += zip_longest(before[start:end], now[other:other_end])
        at, to = at + found[-1][2], to + found[-1][4]
    return [*pairs, *zip(old[at:], new[to:], strict=True)]


def _alike(one: Iterable[Output], other: Iterable[Output]) -> int:
    """Return how many outputs are the same before the first that differs."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class _ShadowOutlet:
    """The outlet of a shadow: no step reads its output, and the job's later steps must not run inside its guard."""

    def __init__(self, out: Outlet) -> None:
        self.send, self.forward, self.passed = out.send, out.forward, out.passed

    def drain(self) -> None:
        """Do nothing."""


class _Guarded(Operator):
    """What is added to the class of a shadow: its user's code gets copies, and its errors end the comparison.

    ``own``: the methods that the operator had set for itself alone, which would be called instead of these.
    """

    guard: Shadow
    was_scheduled: bool
    own: dict[str, Callable[..., object]]

    @property
    def dormant(self) -> bool:
        return not self.guard.has_news and (not self.was_scheduled or super().dormant)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        take = self.own.get("on_batch", super().on_batch)
        if self.guard.run(lambda: take(_copied(batch), _ShadowOutlet(out))):
            self.guard.compare()

    def on_side(self, side: int, batch: Batch, out: Outlet) -> None:
        take = self.own.get("on_side", super().on_side)
        if self.guard.run(lambda: take(side, _copied(batch), _ShadowOutlet(out))):
            self.guard.compare()

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        if not self.guard.run(super().on_epoch, epoch, _ShadowOutlet(out)):
            out.forward(epoch)
        self.guard.handled(NEW, epoch)

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        if not self.guard.run(super().on_part, message, _ShadowOutlet(out)):
            out.forward(message)
        self.guard.handled(NEW, message)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        if not self.guard.run(super().on_control, message, _ShadowOutlet(out)):
            out.forward(message)
        self.guard.handled(NEW, message)

    def on_schedule(self, out: Outlet, clock: Clock) -> None:
        if self.was_scheduled:
            self.guard.run(super().on_schedule, _ShadowOutlet(out), clock)
        self.guard.compare(idle=True)

    def on_event(self, event: Any) -> None:
        self.guard.run(super().on_event, event)

    def install(self, *arguments: Any, **options: Any) -> None:
        self.guard.run(partial(super().install, **options), *arguments)


def _copied(batch: Batch) -> Batch:
    """Return a batch whose rows the new code may change. Columns cannot be changed."""
    if isinstance(batch, ColumnBatch):
        return batch.with_form(batch.form)
    return batch.with_values(unshared(batch.values))


def _noting(call: Callable[[Any, Outlet], None], shadow: Shadow) -> Callable[[Any, Outlet], None]:
    def noted(message: Any, out: Outlet) -> None:
        call(message, out)
        shadow.handled(OLD, message)

    return noted


def attach_shadows(
    plan: Plan,
    worker: int,
    operators: dict[str, Operator],
    nodes: dict[str, int],
    executor: Executor,
    clock: Clock,
    messages: list[Outgoing],
) -> None:
    """Compare the steps of ``plan`` that have a shadow with it."""
    for step in plan.steps:
        if step.shadow_of is None:
            continue
        old, new = operators[step.shadow_of], operators[step.name]
        names = [port.name for port in step.ports]
        shadow = Shadow(worker, step.shadow_of, (old, new), names, clock, messages)
        guarded: Any = new
        guarded.own = {method: vars(new).pop(method) for method in ("on_batch", "on_side") if method in vars(new)}
        guarded.__class__ = type(f"Shadow{type(new).__name__}", (_Guarded, type(new)), {})
        guarded.guard, guarded.was_scheduled, guarded.scheduled = shadow, new.scheduled, True
        for name in ("on_epoch", "on_part", "on_control"):
            setattr(old, name, _noting(weakly(getattr(old, name)), shadow))
        for side, name in ((OLD, step.shadow_of), (NEW, step.name)):
            executor.tap(nodes[name], partial(shadow.saw, side))
