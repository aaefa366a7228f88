"""One step between nothing and recorders, run by the real executor: what goes in is pushed, what comes out is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from malstrom_py.clock import Clock, SystemClock
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Control, DeadLetter, Epoch, PartMessage
from malstrom_py.operators.base import Counters, OnError, Operator, OperatorFactory, Outlet, StepContext
from malstrom_py.workers.engine.executor import Executor, NodeSpec

Row = tuple[Any, Any, int | None]


class Recorder(Operator):
    """Keeps every message it is sent, in order."""

    def __init__(self) -> None:
        super().__init__(StepContext("test", "recorder"))
        self.messages: list[Batch | Control] = []

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self.messages.append(batch)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        self.messages.append(epoch)

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        self.messages.append(message)


def rows_of_batch(batch: Batch) -> list[Row]:
    nothing = [None] * len(batch)
    return list(zip(batch.keys or nothing, batch.values, batch.timestamps or nothing, strict=True))


class Stepped:
    """The step that ``factory`` builds, called ``"under-test"``, with ``ports`` outputs.

    Ports named in ``silent`` carry no epochs below the maximum; dead letters get one more port, as in a plan.
    """

    def __init__(
        self,
        factory: OperatorFactory,
        *,
        on_error: OnError = "fail",
        ports: int = 1,
        silent: Sequence[int] = (),
        timed: bool | None = False,
        keyed: bool | None = False,
        clock: Clock | None = None,
    ) -> None:
        dead_letter_port = ports if on_error == "dead-letter" else None
        context = StepContext(
            "test",
            "under-test",
            on_error=on_error,
            dead_letter_port=dead_letter_port,
            timed=timed,
            keyed=keyed,
            clock=clock or SystemClock(),
        )
        self.operator = factory(context)
        carries = [port not in silent for port in range(ports)] + [False] * (dead_letter_port is not None)
        self.recorders = [Recorder() for _ in carries]
        self._dead = self.recorders[-1] if dead_letter_port is not None else None
        self._executor = Executor(
            [
                NodeSpec("under-test", self.operator, (), tuple(carries)),
                *(NodeSpec(f"port-{n}", recorder, ((0, n),)) for n, recorder in enumerate(self.recorders)),
            ]
        )

    def push(self, *messages: Batch | Control) -> Stepped:
        for message in messages:
            self._executor.push(0, message)
            self._executor.run()
        return self

    def call(self, function: Callable[[Outlet], Any]) -> Any:
        result = self._executor.call(0, function)
        self._executor.run()
        return result

    def messages(self, port: int = 0) -> list[Batch | Control]:
        return self.recorders[port].messages

    def batches(self, port: int = 0) -> list[Batch]:
        return [message for message in self.messages(port) if isinstance(message, Batch)]

    def rows(self, port: int = 0) -> list[Row]:
        return [row for batch in self.batches(port) for row in rows_of_batch(batch)]

    def values(self, port: int = 0) -> list[Any]:
        return [value for _, value, _ in self.rows(port)]

    def epochs(self, port: int = 0) -> list[int]:
        return [message.time for message in self.messages(port) if isinstance(message, Epoch)]

    @property
    def dead_letters(self) -> list[DeadLetter]:
        assert self._dead is not None
        batches = [message for message in self._dead.messages if isinstance(message, Batch)]
        return [letter for batch in batches for letter in batch.values]

    @property
    def counters(self) -> Counters:
        return self.operator.counters


def cut(batch: Batch, sizes: Sequence[int]) -> list[Batch]:
    """``batch`` in consecutive pieces of ``sizes`` rows, the rest as the last piece; no piece is empty."""
    pieces, start = [], 0
    for size in [*sizes, len(batch)]:
        piece = batch.take(range(start, min(start + size, len(batch))))
        start += len(piece)
        if len(piece):
            pieces.append(piece)
    return pieces
