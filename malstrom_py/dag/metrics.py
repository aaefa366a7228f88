"""What a DAG has done, counted by the executor as it goes: of the whole graph, and of each node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from malstrom_py.operators.base import Counters


@dataclass(frozen=True, slots=True)
class DagMetrics:
    """Figures of the whole graph, since it was built, restored, or since ``reset_metrics``.

    Attributes:
        processed: records taken, added up over the nodes: one that passes a source, two operators and a sink counts 4.
        routed: records sent by a node, on outputs that something reads; once, however many nodes read the output.
        fanned_out: those of them that more than one node reads.
        stalls: watermarks that came to a node and moved nothing there, for another of its inputs is behind.
        skipped: nodes left alone, added up over the runs: each call that has events, watermarks or timers processed is
            one run, and costs by the nodes that it does not skip. (One that is visited twice counts as two.)
        epochs: watermarks given to ``process_watermark`` that moved their source's; others are ignored.
    """

    processed: int = 0
    routed: int = 0
    fanned_out: int = 0
    stalls: int = 0
    skipped: int = 0
    epochs: int = 0


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """Figures of one node, over the same time.

    Attributes:
        rows_in: records taken, the late among them.
        rows_out: records sent, on all outputs, whether or not something reads them.
        calls: batches taken: an event is a batch, and so are events that are handed in together.
        time_ns: nanoseconds spent in the node, with events, watermarks and timers; 0 if that is not measured. What an
            operator has processed before it goes on (``flat_map`` does that) counts for it as well.
        late: records that came at or below its watermark.
        skipped: records it could not take, dropped by ``on_error="skip"``.
        dead_letters: records it could not take, sent to its output ``dead_letters``.
    """

    rows_in: int = 0
    rows_out: int = 0
    calls: int = 0
    time_ns: int = 0
    late: int = 0
    skipped: int = 0
    dead_letters: int = 0


def node_metrics(counters: Counters) -> NodeMetrics:
    """The figures of a node, of what it has counted."""
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
    """The figures of the graph, of each node's counters and of how many nodes read each of its ports."""
    processed = routed = fanned_out = stalls = 0
    for counters, readers in nodes:
        processed += counters.rows_in
        stalls += counters.held
        for rows, read_by in zip(counters.rows_out, readers, strict=True):
            routed += rows if read_by else 0
            fanned_out += rows if read_by > 1 else 0
    return DagMetrics(processed, routed, fanned_out, stalls, skipped, epochs)


def reset(counters: Counters) -> None:
    """Set all figures to 0, in place: the node and its operator share them."""
    for field in fields(counters):
        value = getattr(counters, field.name)
        setattr(counters, field.name, [0] * len(value) if isinstance(value, list) else 0)
