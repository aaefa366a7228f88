"""A worker in a separate process, driven by hand: what it is asked, what it sends, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.builder.plan import Plan
from malstrom_py.errors import InternalError, OperatorError, PeerError, SinkError
from malstrom_py.rescale.channels.channel import ChannelId, Frame, Grant
from malstrom_py.worker_context import WorkerInfo
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.engine.graph_builder import Membership, build_sinks
from malstrom_py.workers.ray.worker_server import ORDERS, WorkerServer
from malstrom_py.workers.reports.error_transfer import unpack_error
from malstrom_py.workers.transport.messages import COORDINATOR, WorkerCounts, WorkerStatus
from tests.unit.polled import Polled
from tests.unit.workers.harness import Ledger, Streams

TABLE = tuple(slot % 2 for slot in range(1024))


def plan_of(sink: Any, values: range = range(100), *, fails_at: int = -1) -> Plan:
    def checked(n: int) -> int:
        return n // (n != fails_at)

    job = mp.Job("hosted")
    numbers = job.source("in", sources.Memory(values)).map("check", checked)
    numbers.key_by("by", lambda n: n).sum("total").sink("out", sink)
    return job.plan()


class Driven:
    """A host with its streams. `ask` leaves a question, `go` runs the loop until ``rounds`` receives have been made."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.streams = Streams()
        self.host = WorkerServer(plan, self.streams, batching=mp.Batching(), checks=False)
        self.commit = SinkCommits(plan.job, build_sinks(plan, mp.InProcess()._clock), 0.0)

    def opened(self, *, members: tuple[int, ...] = (0,), parts: Sequence[str] = ("0",)) -> Driven:
        member = Membership(0, members, TABLE if len(members) > 1 else (0,) * 1024)
        others = {worker: "there" for worker in (COORDINATOR, *members) if worker}
        self.answers = [
            self.host.do("build", member, (), False),
            self.host.do("reach", others),
            self.host.do("open_sources", {"in": list(parts)}),
            self.host.do("start"),
        ]
        return self

    def go(self, rounds: int) -> None:
        """Let the loop work, then break its streams: what it had sent by then is there to be looked at."""
        self.streams.coming.extend([[]] * rounds)
        self.streams.coming.append(PeerError("enough"))
        with pytest.raises(PeerError, match="enough"):
            self.host.run()


def test_it_reads_to_the_end_and_says_how_it_stands() -> None:
    driven = Driven(plan_of(Ledger())).opened()
    driven.go(10)
    assert [answer.exception() for answer in driven.answers] == [None] * 4
    told = driven.streams.sent[COORDINATOR]
    assert [news for news in told if isinstance(news, WorkerStatus)][-1] == WorkerStatus(
        0, 0, finished=True, suspended=False
    )
    tallies = [news for news in told if isinstance(news, WorkerCounts)]
    assert tallies
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
    driven = Driven(job.plan()).opened(parts=["a", "b"])
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
    seen: list[Any] = []

    def look(_: float) -> list[Any]:
        if driven.streams.coming:
            return driven.streams.coming.popleft()  # type: ignore[return-value]
        if not seen:
            seen.append(driven.host.do("finish", driven.commit.contexts))
            seen.append(driven.host.do("close"))
        return []

    driven.streams.receive = look  # type: ignore[method-assign,assignment]
    driven.host.run()
    finished = seen[0].result()
    assert (finished.error, [step for step, _ in finished.payloads]) == (None, ["out"])
    assert (finished.counts["in"].rows_in, finished.counts["out"].rows_in) == (100, 100)
    driven.commit.add(finished.payloads)
    driven.commit.commit()
    assert len(ledger.visible) == 100
    with pytest.raises(InternalError, match="has ended"):
        driven.host.do("start")


def test_a_writer_that_cannot_pre_commit_is_told_as_an_answer() -> None:
    driven = Driven(plan_of(Ledger(failing={0: "pre_commit"}))).opened()
    asked = driven.host.do("finish", driven.commit.contexts)
    driven.host.do("close")
    driven.host.run()
    assert isinstance(unpack_error(asked.result().error), SinkError)


def test_a_function_that_raises_ends_the_loop_and_all_is_closed() -> None:
    ledger = Ledger()
    driven = Driven(plan_of(ledger, fails_at=7)).opened()
    driven.streams.coming.extend([[]] * 5)
    with pytest.raises(OperatorError, match="step 'check'") as caught:
        driven.host.run()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert driven.streams.closed
    assert (0, "close") in ledger.calls


def test_who_asks_a_loop_that_fails_is_answered_with_the_failure() -> None:
    driven = Driven(plan_of(Ledger())).opened()
    driven.streams.coming.append(PeerError("worker 1 is gone"))
    late: list[Any] = []
    receive = driven.streams.receive

    def ask_and_receive(timeout_s: float) -> Any:
        late.append(driven.host.do("drain"))
        return receive(timeout_s)

    driven.streams.receive = ask_and_receive  # type: ignore[method-assign]
    with pytest.raises(PeerError):
        driven.host.run()
    assert isinstance(late[0].exception(), PeerError)


def test_a_question_that_fails_is_answered_and_the_loop_goes_on() -> None:
    driven = Driven(plan_of(Ledger())).opened()
    unknown = driven.host.do("no such order")
    driven.go(5)
    assert isinstance(unknown.exception(), KeyError)
    assert driven.streams.sent[COORDINATOR]


class Leaving(Ledger):
    """A sink whose `open` ends the process."""

    def open(self, worker: WorkerInfo) -> Any:
        sys.exit(3)


def test_a_function_that_exits_ends_the_loop_and_who_asked_is_answered() -> None:
    driven = Driven(plan_of(Leaving()))
    asked = [driven.host.do("build", Membership(0, (0,), (0,) * 1024), (), False), driven.host.do("start")]
    with pytest.raises(SystemExit):
        driven.host.run()
    assert [type(answer.exception(timeout=0)) for answer in asked] == [SystemExit, SystemExit]
    assert driven.streams.closed


def test_every_order_is_a_method_that_says_what_it_does() -> None:
    assert all(order.__doc__ and getattr(WorkerServer, name) is order for name, order in ORDERS.items())
