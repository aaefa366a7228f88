"""Metrics of a DAG, counted by the executor: of the whole graph, and of each node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from malstrom_py.operators.base import Counters


@dataclass(frozen=True, slots=True)
class DagMetrics:
    """Metrics of the whole graph, since it was built, restored, or since ``reset_metrics``.

    Attributes:
        processed: records received, summed over the nodes: one through a source, two operators and a sink counts 4.
        routed: records sent to an output that has a reader; counted once for any number of readers.
        fanned_out: the routed records whose output has more than one reader.
        stalls: watermarks that reached a node without moving its watermark, because another input is lower.
        skipped: nodes not visited, summed over the runs: each call that processes events, watermarks or timers is one
            run, and its cost depends on the nodes that it visits. (A node that is visited twice counts as two.)
        epochs: watermarks given to ``process_watermark`` that moved that of their source; others are ignored.
    """

    processed: int = 0
    routed: int = 0
    fanned_out: int = 0
    stalls: int = 0
    skipped: int = 0
    epochs: int = 0


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """Metrics of one node, over the same time.

    Attributes:
        rows_in: records received, including late ones.
        rows_out: records sent, on all outputs, with or without readers.
        calls: batches received: an event is a batch, and events that are passed together are one batch.
        time_ns: nanoseconds spent in the node, with events, watermarks and timers; 0 if not measured. Includes the time
            of nodes that an operator runs before it continues, as ``flat_map`` does.
        late: records at or below its watermark.
        skipped: records on which its operator failed, dropped by ``on_error="skip"``.
        dead_letters: records on which its operator failed, sent to its output ``dead_letters``.
    """

    rows_in: int = 0
    rows_out: int = 0
    calls: int = 0
    time_ns: int = 0
    late: int = 0
    skipped: int = 0
    dead_letters: int = 0


def node_metrics(counters: Counters) -> NodeMetrics:
    """Return the metrics of a node from its counters."""
    return NodeMetrics(
        counters.rows_in,
        sum(counters.rows_out),
        counters.calls,
        counters.time_ns,
        counters.late,
        counters.skipped,
        counters.dead_letters,
    )


def dag_metrics(nodes: Iterable[tuple[Counters, list[int]]], *, skipped: int, epochs: int) -> DagMetrics:
    """Return the metrics of the graph from each node's counters and its number of readers per port."""
    processed = routed = fanned_out = stalls = 0
    for counters, readers in nodes:
        processed += counters.rows_in
        stalls += counters.held
        for rows, read_by in zip(counters.rows_out, readers, strict=True):
            routed += rows if read_by else 0
            fanned_out += rows if read_by > 1 else 0
    return DagMetrics(processed, routed, fanned_out, stalls, skipped, epochs)


def reset(counters: Counters) -> None:
    """Set all counters to 0, in place: the node and its operator share them."""
    for field in fields(counters):
        value = getattr(counters, field.name)
        setattr(counters, field.name, [0] * len(value) if isinstance(value, list) else 0)
