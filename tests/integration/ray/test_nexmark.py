"""Queries of Nexmark on Ray, rescaled while they run, find what DuckDB finds."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from examples.nexmark.check import by_duckdb, in_order
from examples.nexmark.events import Events, EventSource
from examples.nexmark.queries import QUERIES, query_of
from malstrom_py import sinks, sources
from tests.integration.ray.traffic import PATIENCE_S

SHORT = [("q5", "columns"), ("q6", "rows")]
"""Windows of windows; and timers, a union and `top_n`. `make long` runs all others."""

OTHERS = [(query, form) for query in QUERIES for form in ("rows", "columns") if (query, form) not in SHORT]


class Gated(sources.PartitionedSource[Any]):
    """A source whose parts give no more than the share of their events that is in the file ``gate``."""

    def __init__(self, source: EventSource, gate: Path) -> None:
        self._source, self._gate = source, gate

    def list_parts(self) -> list[sources.Part]:
        return [sources.Part(part) for part in self._source.list_parts()]

    def build_part(self, part: sources.Part, state: Any) -> GatedPart:
        return GatedPart(self._source, self._gate, part, state)


class GatedPart:
    def __init__(self, source: EventSource, gate: Path, part: str, state: Any) -> None:
        self._part, self._gate = source.build_part(part, state), gate
        self.is_finished, self.snapshot, self.close = self._part.is_finished, self._part.snapshot, self._part.close

    def poll(self, rows_max: int) -> Any:
        left = round(self._part.length * float(self._gate.read_text())) - self._part.snapshot()
        return self._part.poll(min(left, rows_max)) if left > 0 else None


class Gate:
    """What of the sources has been let through."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.open(0.0)

    def open(self, share: float) -> None:
        """Let the sources give ``share`` of their events."""
        new = self.file.with_suffix(".new")
        new.write_text(str(share))
        new.rename(self.file)


@pytest.mark.long("q6-rows")
@pytest.mark.parametrize(("query", "form"), SHORT)
def test_p1_a_query_finds_the_same_through_rescales(query: str, form: str, out: sinks.Memory, tmp_path: Path) -> None:
    run_and_compare(query, form, out, Gate(tmp_path / "gate"))


@pytest.mark.long
@pytest.mark.parametrize(("query", "form"), OTHERS)
def test_p1_every_other_query_finds_the_same(query: str, form: str, out: sinks.Memory, tmp_path: Path) -> None:
    run_and_compare(query, form, out, Gate(tmp_path / "gate"))


def run_and_compare(query: str, form: str, out: sinks.Memory, gate: Gate) -> None:
    """Run a query on two workers, then three, then one, while it has events to read."""
    events = Events(6000, parts=4, per_second=30, disorder_ms=1000, columns=form == "columns")
    ask, job = query_of(query, events), mp.Job(f"nexmark-{query}")
    made = {name: getattr(events, name)() for name in signature(ask).parameters}
    gated = {name: Gated(of, gate.file) if isinstance(of, EventSource) else of for name, of in made.items()}
    ask(**{name: job.source(name, source) for name, source in gated.items()}).sink("out", out)
    handle = mp.RayRuntime(2, num_cpus=0.2).start(job)
    gate.open(0.3)
    handle.rescale(3, wait=False)
    gate.open(0.5)
    grown = handle.rescale(3)
    handle.rescale(1, wait=False)
    gate.open(1.0)
    result = handle.wait(timeout_s=PATIENCE_S)
    assert in_order(query, out.items) == in_order(query, by_duckdb(query, events))
    assert (len(grown.members), result.late) == (3, 0)
