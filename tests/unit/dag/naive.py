"""A simple model of a DAG: one record at a time, one list per node, plain loops.

It has five operators, and tests compare the real executor with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from malstrom_py.dag import DagBuilder, DagExecutor
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.operators.logic import KeyedLogic, Output

Row = tuple[Any, int, int | None]
"""Key, value, timestamp."""


@dataclass(frozen=True)
class Plan:
    """Sources, and operators with their function and their inputs; each operator also has a sink.

    Of "odd", odd values go to the side output "odd", which has a sink as well.
    """

    sources: tuple[str, ...]
    operators: tuple[tuple[str, str, tuple[str, ...]], ...]

    def build(self) -> DagBuilder:
        builder = DagBuilder()
        for name in self.sources:
            builder.source(name)
        for name, does, reads in self.operators:
            builder.operator(name)
            for upstream in reads:
                builder.connect(upstream, name)
            builder.sink_for(name, f"{name}-out")
            if does == "odd":
                builder.sink_for(name, f"{name}-odd", output="odd")
        for name in self.sources:
            builder.sink_for(f"{name}:late", f"{name}-late")
            if not any(name in reads for _, _, reads in self.operators):
                builder.sink_for(name, f"{name}-out")
        return builder

    def executor(self) -> DagExecutor:
        executor = DagExecutor.from_dag(self.build().build())
        for name, does, _ in self.operators:
            if does != "pass":
                executor.register_operator(name, OPERATORS[does])
        return executor


def odd(message: DataMessage[Any, int], output: Output[Any, int]) -> None:
    (output.side("odd") if message.value % 2 else output).send(message)


def total(message: DataMessage[Any, int], key_state: int | None, output: Output[Any, int]) -> int | None:
    """A running sum per key that restarts at a multiple of 7."""
    key_state = (key_state or 0) + message.value
    output.emit(message.key, key_state, message.timestamp)
    return key_state if key_state % 7 else None


class Wait(KeyedLogic[Any, int, int, int]):
    """Sums the timed records of a key, and sends the sum when 3 have passed since one of them; at epochs sends -1."""

    def on_data(self, message: DataMessage[Any, int], key_state: int | None, output: Output[Any, int]) -> int | None:
        if message.timestamp is None:
            return key_state
        output.set_timer(message.key, message.timestamp + 3)
        return (key_state or 0) + message.value

    def on_timer(self, key: Any, time: int, key_state: int | None, output: Output[Any, int]) -> int | None:
        output.emit(key, key_state or 0, time)
        return None if time % 2 else key_state

    def on_epoch(self, epoch: Epoch, state: Any, output: Output[Any, int]) -> None:
        for key in state:
            if epoch.time < MAX_EPOCH:
                output.emit(key, -1, epoch.time)


OPERATORS: dict[str, Any] = {"double": lambda n: n * 2, "odd": odd, "total": total, "wait": Wait()}


@dataclass
class Node:
    """A node: its queue, its watermarks, its state by key, its timers in the order in which they were set."""

    does: str
    reads: tuple[str, ...]
    readers: dict[str, list[str]] = field(default_factory=dict)
    queue: list[Any] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)
    mark: int | None = None
    state: dict[Any, int] = field(default_factory=dict)
    timers: list[tuple[int, Any]] = field(default_factory=list)


class Naive:
    """Runs a `Plan`."""

    def __init__(self, plan: Plan) -> None:
        dag = plan.build().build()
        does = {name: kind for name, kind, _ in plan.operators}
        self.nodes = {
            node.name: Node(does.get(node.name, str(node.type)), tuple(str(edge) for edge in node.inputs))
            for node in dag.nodes
        }
        for node in dag.nodes:
            for edge in node.inputs:
                self.nodes[edge.node].readers.setdefault(edge.output, []).append(node.name)
        self.sinks: dict[str, list[Row]] = {name: [] for name in dag.sinks}

    def inject(self, name: str, row: Row) -> None:
        node = self.nodes[name]
        if node.mark == MAX_EPOCH or (node.mark is not None and row[2] is not None and row[2] <= node.mark):
            self._send(node, row, name, "late")
        else:
            node.queue.append(row)

    def watermark(self, name: str, time: int) -> None:
        self.nodes[name].queue.append((name, time))

    def run(self) -> None:
        for name, node in self.nodes.items():
            waiting, node.queue = node.queue, []
            for entry in waiting:
                if len(entry) == 3:
                    self._take(name, node, entry)
                else:
                    self._pass(name, node, *entry)

    def taken(self) -> dict[str, list[Row]]:
        held = {name: rows for name, rows in self.sinks.items() if rows}
        self.sinks = {name: [] for name in self.sinks}
        return held

    def _send(self, node: Node, row: Row, name: str, output: str = "out") -> None:
        for reader in node.readers.get(output, []):
            self.nodes[reader].queue.append(row)

    def _take(self, name: str, node: Node, row: Row) -> None:
        key, value, time = row
        match node.does:
            case "sink":
                self.sinks[name].append(row)
            case "double":
                self._send(node, (key, value * 2, time), name)
            case "odd":
                self._send(node, row, name, "odd" if value % 2 else "out")
            case "total":
                node.state[key] = node.state.get(key, 0) + value
                self._send(node, (key, node.state[key], time), name)
                if node.state[key] % 7 == 0:
                    del node.state[key]
            case "wait":
                if time is not None:
                    node.state[key] = node.state.get(key, 0) + value
                    if (time + 3, key) not in node.timers:
                        node.timers.append((time + 3, key))
            case _:
                self._send(node, row, name)

    def _pass(self, name: str, node: Node, upstream: str, time: int) -> None:
        node.marks[upstream] = max(time, node.marks.get(upstream, time))
        if any(read not in node.marks for read in node.reads):
            return
        least = min(node.marks.values())
        if node.mark is not None and least <= node.mark:
            return
        node.mark = least
        if node.does == "wait":
            self._ring(name, node, least)
        for output, readers in node.readers.items():
            if output != "late" or least == MAX_EPOCH:
                for reader in readers:
                    self.nodes[reader].queue.append((name if output == "out" else f"{name}:{output}", least))

    def _ring(self, name: str, node: Node, mark: int) -> None:
        for due, key in sorted((timer for timer in node.timers if timer[0] <= mark), key=lambda timer: timer[0]):
            node.timers.remove((due, key))
            self._send(node, (key, node.state.get(key, 0), due), name)
            if due % 2:
                node.state.pop(key, None)
        if mark < MAX_EPOCH:
            for key in node.state:
                self._send(node, (key, -1, mark), name)
