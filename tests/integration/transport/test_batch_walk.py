"""How far a batch walks from a source to a sink of another worker: its hops are few, and the architecture names them.

A hop is a call that takes or returns the rows, as values, a batch, a frame or its bytes, from one object or module to
another. Helpers of the same module or object are not hops, nor are the methods of the batch itself.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.plan import Plan
from malstrom_py.clock import SystemClock
from malstrom_py.data.batch import Batch
from malstrom_py.rescale.channels.channel import Frame
from malstrom_py.workers.engine.graph_builder import deal_parts
from malstrom_py.workers.engine.worker_loop import Wake, WorkerLoop
from malstrom_py.workers.runtime.worker_host import WorkerHost
from malstrom_py.workers.transport.base import JobSecret
from malstrom_py.workers.transport.messages import COORDINATOR, Build, OpenSources, Start
from malstrom_py.workers.transport.zeromq import ZeroMQTransport
from tests.tree import ROOT

HOPS_MAX, MODULES_MAX, TURNS_MAX = 24, 15, 10_000
MARK = "needle"
MEASURING = {"malstrom_py.workers.engine.measuring", "malstrom_py.workers.engine.rough_sizes"}
SINK = ("malstrom_py.sinks.memory", "_MemoryWriter.write")


def counting() -> Plan:
    job = mp.Job("walk")
    words = job.source("in", sources.Memory([f"{MARK}-{n}" for n in range(4)])).key_by(
        "key", lambda word: int(word[-1])
    )
    words.stateful_map("last", lambda key, word, state: (word, word)).sink("out", sinks.Memory())
    return job.plan()


def carries(thing: Any, depth: int = 3) -> bool:
    """Whether ``thing`` is or holds the rows of the batch."""
    match thing:
        case Batch():
            return len(thing) > 0
        case Frame():
            return thing.payload is not None
        case str():
            return thing.startswith(MARK)
        case bytes() | memoryview():
            return MARK.encode() in bytes(thing)
        case list() | tuple():
            return depth > 0 and any(carries(item, depth - 1) for item in thing)
    return False


class Walk:
    """A profiler that notes the hops, as (module, function), and the modules between the source and the sink."""

    def __init__(self) -> None:
        self.hops: list[tuple[str, str]] = []
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        code, caller = frame.f_code, frame.f_back
        if event not in ("call", "return") or caller is None or code.co_name.startswith(("<", "__")):
            return
        module, me = frame.f_globals["__name__"], frame.f_locals.get("self")
        if not module.startswith("malstrom_py") or isinstance(me, Batch):
            return
        # What measures looks at some batches, and hands none on; the walk ends in the sink.
        if module in MEASURING or self.hops[-1:] == [SINK]:
            return
        names = [name for name in inspect.getargs(code).args if name != "self"]
        found = carries(result) if event == "return" else any(carries(frame.f_locals.get(name)) for name in names)
        if not found:
            return
        self.modules.add(module)
        is_same = caller.f_globals["__name__"] == module if me is None else caller.f_locals.get("self") is me
        if not is_same and (event == "call" or not any(carries(frame.f_locals.get(name)) for name in names)):
            self.hops.append((module, code.co_qualname))


def walk() -> Walk:
    """One batch, from worker 0 to worker 1, which owns all slots."""
    plan, secret, clock = counting(), JobSecret.new(), SystemClock()
    ends = {end: ZeroMQTransport(end, incarnation=1, secret=secret) for end in (0, 1, COORDINATOR)}
    hosts = [
        WorkerHost(plan, batching=mp.Batching(), clock=clock, wake=Wake(ends[number]), streams=ends[number])
        for number in (0, 1)
    ]
    loops = [WorkerLoop(number, hosts[number], ends[number], clock, mp.Batching()) for number in (0, 1)]
    for number, host in enumerate(hosts):
        for end in ends.keys() - {number}:
            ends[number].connect(end, ends[end].address)
        host.obey(Build(number, (0, 1), (1,) * plan.slots, 0, 1, (), None, ()))
    dealt = deal_parts(plan, (0, 1), clock).parts
    for number, loop in enumerate(loops):
        loop.send(hosts[number].obey(OpenSources(dealt[number], {})))
        loop.send(hosts[number].obey(Start()))
    seen = Walk()
    sys.setprofile(seen)
    try:
        for _ in range(TURNS_MAX):
            for loop in loops:
                loop._turn(0.001)
            if hosts[1].worker.rows_in("out"):
                break
    finally:
        sys.setprofile(None)
        for host in hosts:
            host.close()
        for transport in ends.values():
            transport.close(linger_s=0.0)
    return seen


def test_a_batch_passes_few_objects_and_modules_and_the_architecture_names_them() -> None:
    seen = walk()
    assert seen.hops[0] == ("malstrom_py.sources.memory", "_MemoryPart.poll")
    assert seen.hops[-1] == SINK
    assert len(seen.hops) <= HOPS_MAX, seen.hops
    between = seen.modules - {"malstrom_py.sources.memory", "malstrom_py.sinks.memory"}
    assert len(between) <= MODULES_MAX, sorted(between)
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page[page.index("## Walk 1") : page.index("## Walk 2")]
    assert sorted(module for module in between if f"`{module}`" not in section) == []
