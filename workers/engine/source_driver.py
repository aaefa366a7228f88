"""The driver of a worker's sources: polls each source while its region has room.

Rule: a source is polled once per step, and not while its region is full, a barrier is being aligned, a move comes first
(`MoveTurns`), or the source is finished. A poll asks for as many rows as the region processes in its share of a round
(`TimeShare`), without overfilling the window of the exchange after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from malstrom_py.clock import Clock
from malstrom_py.errors import OperatorError
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.operators.columns import ColumnStep
from malstrom_py.operators.event_time import GenerateEpochs
from malstrom_py.operators.read_source import NO_RESTORED_PARTS, ReadSource, RestoredPart
from malstrom_py.sources.base import Part, acknowledges
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import WorkerGraph
from malstrom_py.workers.engine.source_notices import SourceNotices

_MIXED_ROWS: Final = 8
"""The factor on `rows_max` for a poll of columns if some steps take columns and others make rows."""


class SourceDriver:
    """The driver of the sources of ``graph`` on ``worker``."""

    def __init__(self, graph: WorkerGraph, *, batching: Batching, clock: Clock, worker: int) -> None:
        self._executor = graph.executor
        self._batching = batching
        self._clock = clock
        self._stopping = False
        self.notices = SourceNotices(worker, clock)
        """For the events of the job."""
        input_of = {node: region_input for region_input in graph.inputs for node in region_input.sources}
        operators, nodes = graph.operators, graph.nodes
        self._generators = [(nodes[name], op) for name, op in operators.items() if isinstance(op, GenerateEpochs)]
        self._sources = [(nodes[name], op) for name, op in operators.items() if isinstance(op, ReadSource)]
        self._turn = graph.turn
        self._polls = [(source, node, input_of[node], self._poll_of(node, source)) for node, source in self._sources]

    def open(self, parts: Mapping[str, Sequence[Part]], restored: Mapping[str, Mapping[Part, RestoredPart]]) -> None:
        """Open the sources, each with its ``parts`` on this worker, by step; ``restored``: the known positions."""
        for node, source in self._sources:
            step = source.context.step
            self._executor.call(
                node, partial(source.open, parts=parts[step], restored=restored.get(step, NO_RESTORED_PARTS))
            )
        self._executor.run()
        for node, generator in self._generators:
            self._executor.call(node, generator.advance)
        self._executor.run()
        for _, source in self._sources:
            self.notices.polled(source, 0)

    def read(self) -> int:
        """Poll each source once, if its region is open. Return the number of records."""
        done, executor, clock = 0, self._executor, self._clock
        waiting: list[ReadSource] = []
        for source, node, region_input, poll in self._polls:
            if source.finished:
                continue
            if not region_input.sources_open:
                waiting.append(source)
                if not region_input.outputs_open:
                    self.notices.held(source)
                continue
            if self._stopping:
                executor.call(node, source.stop)
                executor.run()
                self.notices.polled(source, 0)
                continue
            routed = region_input.routed_rows if region_input.exits else 0
            try:
                read = executor.call(node, poll)
                executor.run()
            except OperatorError as error:
                error.add_note(f"it was processing {source.last_read() or 'no rows yet'}")
                raise
            if read:
                took_s, load = (
                    clock.monotonic_s() - source.polled_s,
                    region_input.load() if region_input.limits else 0.0,
                )
                routed = region_input.routed_rows - routed if region_input.exits else 0
                source.made(read, routed, took_s=took_s, limit_s=self._turn.part_s, load=load)
            self.notices.polled(source, read)
            done += read
        if waiting:
            # Sources that waited for a full region come first in the next step, which prevents starvation.
            self._polls.sort(key=lambda polled: polled[0] not in waiting)
        return done

    def stop(self) -> None:
        """Stop reading: from the next `read` on all sources are finished at their current positions."""
        self._stopping = True
        for _, source in self._sources:
            source.will_stop()

    def ended(self) -> dict[str, dict[Part, Any]]:
        """Return the positions of the parts that have ended here, by step, of the sources that acknowledge."""
        sources = [source for _, source in self._sources if acknowledges(source.source)]
        return {
            source.context.step: {part: position for part, position in source.ended.items() if position is not None}
            for source in sources
        }

    @property
    def fixed(self) -> str:
        """The name of a source that reads here and cannot move; empty without any."""
        fixed = (source for _, source in self._sources if not source.moves_parts and source.parts_left)
        return next((source.context.step for source in fixed), "")

    @property
    def finished(self) -> bool:
        """Whether all sources are finished."""
        for _, source in self._sources:  # noqa: SIM110  per batch: a generator costs more
            if not source.finished:
                return False
        return True

    @property
    def is_due(self) -> bool:
        """Whether `read` has work now."""
        now_s = self._clock.monotonic_s()
        for source, _, region_input, _ in self._polls:
            if source.finished or not region_input.sources_open:
                continue
            due_s = source.next_poll_s()
            if self._stopping or (due_s is not None and due_s <= now_s):
                return True
        return False

    @property
    def has_caught_up(self) -> bool:
        """Whether no source has rows that it could give now, or could give if its region were not full."""
        now_s = self._clock.monotonic_s()
        due_s = [source.next_poll_s() for _, source in self._sources if not source.finished]
        return all(due is None or due > now_s for due in due_s)

    def due_s(self) -> float | None:
        """Return the time of the next poll, on the clock's monotonic time; None if no part may be polled."""
        due_s = [source.next_poll_s() for _, source in self._sources if not source.finished]
        return min((due for due in due_s if due is not None), default=None)

    def _poll_of(self, node: int, source: ReadSource) -> Callable[[Outlet], int]:
        operators, batching, clock = self._downstream(node), self._batching, self._clock
        rows_max, bytes_max, linger_s = batching.rows_max, batching.bytes_max, batching.linger_s
        columns_rows_max = self._columns_rows_max(operators)
        frames = any(operator.takes_frames for operator in operators)
        # A partial would build a dict of the options per poll.
        return lambda out: source.poll(
            out,
            rows_max=rows_max,
            columns_rows_max=columns_rows_max,
            frames=frames,
            bytes_max=bytes_max,
            linger_s=linger_s,
            clock=clock,
        )

    def _downstream(self, node: int) -> list[Operator]:
        """Return the steps downstream of ``node``, up to the exchanges."""
        executor = self._executor
        return [operator for other in executor.behind(node) - {node} if (operator := executor.operator(other))]

    def _columns_rows_max(self, operators: Sequence[Operator]) -> int:
        """Return the rows per poll of columns, from a source with these ``operators`` downstream."""
        batching = self._batching
        if all(operator.takes_columns for operator in operators):
            return batching.columns_rows_max
        is_mixed = any(isinstance(operator, ColumnStep) for operator in operators)
        return min(batching.columns_rows_max, batching.rows_max * (_MIXED_ROWS if is_mixed else 1))
