"""A worker in a separate process, driven by hand: what it is asked, what it sends, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeVar, get_args

import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.builder.plan import Plan
from malstrom_py.errors import InternalError, OperatorError, PeerError, SinkError
from malstrom_py.rescale.channels.channel import ChannelId, Frame, Grant
from malstrom_py.worker_context import WorkerInfo
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.engine.graph_builder import build_sinks
from malstrom_py.workers.remote.worker_server import WorkerServer
from malstrom_py.workers.reports.error_transfer import unpack_error
from malstrom_py.workers.runtime.worker_host import _EXECUTED_BY
from malstrom_py.workers.transport.messages import (
    COORDINATOR,
    Build,
    Built,
    Close,
    Content,
    Drain,
    Finish,
    Finished,
    OpenSources,
    OrderFailed,
    Reach,
    Reached,
    SourcesOpened,
    Start,
    WorkerCounts,
    WorkerOrder,
    WorkerStatus,
)
from tests.unit.polled import Polled
from tests.unit.workers.harness import Ledger, Streams

R = TypeVar("R")

TABLE = tuple(slot % 2 for slot in range(1024))


def plan_of(sink: Any, values: range = range(100), *, fails_at: int = -1) -> Plan:
    def checked(n: int) -> int:
        return n // (n != fails_at)

    job = mp.Job("hosted")
    numbers = job.source("in", sources.Memory(values)).map("check", checked)
    numbers.key_by("by", lambda n: n).sum("total").sink("out", sink)
    return job.plan()


class Driven:
    """A server with its streams. `go` lets it receive what has been ordered, then ``rounds`` times nothing."""

    def __init__(self, plan: Plan, linger_s: float = 0.005) -> None:
        self.streams = Streams()
        batching = mp.Batching(linger_s=linger_s)
        self.server = WorkerServer(plan, 0, self.streams, "coordinator", batching=batching, checks=False)
        self.commit = SinkCommits(plan.job, build_sinks(plan, mp.InProcess()._clock), 0.0)

    def order(self, *orders: Content) -> Driven:
        self.streams.coming.append(list(orders))
        return self

    def opened(self, *, members: tuple[int, ...] = (0,), parts: Sequence[str] = ("0",)) -> Driven:
        table = TABLE if len(members) > 1 else (0,) * 1024
        others = {worker: "there" for worker in members if worker}
        assigned = {"in": [sources.Part(part) for part in parts]}
        return self.order(Build(0, members, table), Reach(others), OpenSources(assigned), Start())

    def go(self, rounds: int) -> None:
        """Let the loop work, then break its streams: what it had sent by then is there to be looked at."""
        self.streams.coming.extend([[]] * rounds)
        self.streams.coming.append(PeerError("enough"))
        with pytest.raises(PeerError, match="enough"):
            self.server.run()

    def replies(self, kind: type[R]) -> list[R]:
        return [content for content in self.streams.sent.get(COORDINATOR, []) if isinstance(content, kind)]


def test_it_reads_to_the_end_and_says_how_it_stands() -> None:
    driven = Driven(plan_of(Ledger())).opened()
    driven.go(10)
    assert driven.streams.sent[COORDINATOR][:3] == [Built(0), Reached(0), SourcesOpened(0, "")]
    assert driven.replies(WorkerStatus)[-1] == WorkerStatus(0, 0, finished=True, suspended=False)
    assert driven.replies(WorkerCounts)
    assert driven.streams.closed


def test_what_is_for_one_receiver_goes_together_and_a_worker_at_rest_waits() -> None:
    driven = Driven(plan_of(Ledger())).opened(members=(0, 1))
    # The other one is fast, and reports it.
    driven.streams.coming.append([Grant(ChannelId("by", 0, 1), 1, 0, 0)])
    driven.go(10)
    frames = [content for content in driven.streams.sent[1] if isinstance(content, Frame)]
    assert sum(frame.rows for frame in frames) == sum(TABLE[slot] for slot in slots_of(range(100)))
    assert driven.streams.waits_s[0] == 0.0
    assert driven.streams.waits_s[-1] > 0.0


def test_a_part_that_is_due_does_not_wait_behind_one_that_has_nothing() -> None:
    job, polled = mp.Job("quiet"), list[str]()

    def nothing(part: str, at: int, rows_max: int) -> None:
        polled.append(part)

    job.source("in", Polled(nothing, parts=("a", "b"))).sink("out", Ledger())
    driven = Driven(job.plan(), linger_s=60).opened(parts=["a", "b"])
    driven.go(2)
    assert polled == ["a", "b"]
    assert driven.streams.waits_s[:2] == [0.0, 0.0]


def slots_of(keys: range) -> list[int]:
    from malstrom_py.rescale.slots import slot_of

    return [slot_of(key, 1024) for key in keys]


def test_finishing_pre_commits_and_closes_and_the_loop_ends_when_it_is_closed() -> None:
    ledger = Ledger()
    driven = Driven(plan_of(ledger)).opened()
    driven.streams.coming.extend([[]] * 5)
    driven.order(Finish(driven.commit.contexts)).order(Close()).server.run()
    (finished,) = driven.replies(Finished)
    assert (finished.error, [step for step, _ in finished.payloads]) == (None, ["out"])
    assert (finished.counts["in"].rows_in, finished.counts["out"].rows_in) == (100, 100)
    driven.commit.add(finished.payloads)
    driven.commit.commit()
    assert len(ledger.visible) == 100
    assert driven.streams.closed


def test_a_writer_that_cannot_pre_commit_is_told_as_an_answer() -> None:
    driven = Driven(plan_of(Ledger(failing={0: "pre_commit"}))).opened()
    driven.order(Finish(driven.commit.contexts)).order(Close()).server.run()
    (finished,) = driven.replies(Finished)
    assert isinstance(unpack_error(finished.error), SinkError)


def test_a_worker_that_has_finished_does_not_mind_that_others_end_first() -> None:
    driven = Driven(plan_of(Ledger())).opened(members=(0, 1)).order(Finish({}))
    driven.streams.coming.append(PeerError("worker 1 is gone", peer=1))
    driven.order(Close()).server.run()
    assert 1 not in driven.streams.connected


def test_a_function_that_raises_ends_the_loop_and_all_is_closed() -> None:
    ledger = Ledger()
    driven = Driven(plan_of(ledger, fails_at=7)).opened()
    driven.streams.coming.extend([[]] * 5)
    with pytest.raises(OperatorError, match="step 'check'") as caught:
        driven.server.run()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert driven.streams.closed
    assert (0, "close") in ledger.calls


def test_a_close_that_fails_ends_the_loop_with_its_error() -> None:
    driven = Driven(plan_of(Ledger(failing={0: "close"}))).opened().order(Close())
    with pytest.raises(SinkError):
        driven.server.run()
    assert driven.streams.closed


def test_an_order_that_fails_is_answered_and_the_loop_goes_on() -> None:
    driven = Driven(plan_of(Ledger(failing={0: "open"}))).order(Drain(), Build(0, (0,), (0,) * 1024), Drain())
    driven.go(5)
    before, build = driven.replies(OrderFailed)
    assert isinstance(unpack_error(before.error), InternalError)
    assert isinstance(unpack_error(build.error), SinkError)


class Leaving(Ledger):
    """A sink whose `open` ends the process."""

    def open(self, worker: WorkerInfo) -> Any:
        sys.exit(3)


def test_a_function_that_exits_ends_the_loop() -> None:
    driven = Driven(plan_of(Leaving())).order(Build(0, (0,), (0,) * 1024), Start())
    with pytest.raises(SystemExit):
        driven.server.run()
    assert driven.streams.closed


def test_every_order_has_what_executes_it() -> None:
    assert set(get_args(WorkerOrder)) == set(_EXECUTED_BY)
