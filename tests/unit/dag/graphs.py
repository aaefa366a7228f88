"""Graphs and operators that the tests of a DAG share."""

from __future__ import annotations

from typing import Any

from malstrom_py.dag import DagBuilder, DagExecutor
from malstrom_py.data.messages import DataMessage
from malstrom_py.operators.logic import KeyedLogic, Output


def line(*operators: Any, names: str = "abcdefg", **options: Any) -> DagExecutor:
    """Return the graph in -> a -> b … -> out, with ``operators`` at a, b, …; None: no operator."""
    builder, previous = DagBuilder().source("in"), "in"
    for name, _ in zip(names, operators, strict=False):
        builder.operator(name).connect(previous, name)
        previous = name
    executor = DagExecutor.from_dag(builder.sink_for(previous, "out").build(), **options)
    for name, operator in zip(names, operators, strict=False):
        if operator is not None:
            executor.register_operator(name, operator)
    return executor


def joined(operator: Any = None) -> DagExecutor:
    """Return the graph left and right -> join -> out, with ``operator`` at join."""
    builder = DagBuilder().source("left").source("right").operator("join")
    builder.connect("left", "join").connect("right", "join").sink_for("join", "out")
    executor = DagExecutor.from_dag(builder.build())
    if operator is not None:
        executor.register_operator("join", operator)
    return executor


def at(value: Any, time: int | None = None, key: Any = None) -> DataMessage[Any, Any]:
    return DataMessage(key, value, time)


def total(message: DataMessage[Any, int], key_state: int | None, output: Output[Any, int]) -> int:
    """A running sum per key, as a plain function."""
    key_state = (key_state or 0) + message.value
    output.emit(message.key, key_state, message.timestamp)
    return key_state


class Alarm(KeyedLogic[Any, Any, Any, Any]):
    """Sends a value ``after`` its timestamp, with that time; raises on the value "bad" when its timer fires."""

    def __init__(self, after: int = 10) -> None:
        self._after = after

    def on_data(self, message: DataMessage[Any, Any], key_state: Any, output: Output[Any, Any]) -> Any:
        assert message.timestamp is not None
        output.set_timer(message.key, message.timestamp + self._after)
        return [*(key_state or ()), (message.timestamp + self._after, message.value)]

    def on_timer(self, key: Any, time: int, key_state: Any, output: Output[Any, Any]) -> Any:
        for due, value in key_state:
            if due <= time and value == "bad":
                raise ValueError
            if due <= time:
                output.emit(key, value, time)
        return [entry for entry in key_state if entry[0] > time] or None
