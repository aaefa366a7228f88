"""The rescale requests of one job: the result of each, and when it is answered (R9)."""

from __future__ import annotations

from functools import partial
from typing import Any

from malstrom_py.errors import DeadlineError, MalstromError
from malstrom_py.rescale.moves.move_sizing import Pacing
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.rescale.moves.protocol import BarrierPassed, Moved, PartsPolled, Switched
from malstrom_py.workers.coordinator import machine as ce
from malstrom_py.workers.coordinator import machine as cm
from malstrom_py.workers.coordinator.machine import Topology
from malstrom_py.workers.coordinator.rescale_requests import RescaleRequests
from malstrom_py.workers.reports.event_log import EventLog
from malstrom_py.workers.reports.job_status import Moving, RescaleReport
from malstrom_py.workers.transport.messages import Connected

SLOTS = 8


class Requests:
    """Requests to a coordinator of fake workers without exchanges, which report when the test decides."""

    def __init__(self, members: tuple[int, ...] = (0,)) -> None:
        topology = Topology((), {}, {"in": ()})
        parts = {("in", str(part)): members[part % len(members)] for part in range(4)}
        self.machine = cm.CoordinatorMachine(
            topology,
            members=members,
            table=first_table(SLOTS, members),
            parts=parts,
            pacing=Pacing.fixed(2),
        )
        self.events: list[Any] = []
        self.rescales = RescaleRequests(self.machine, "rescaled", self.events.append)
        self.reports: list[tuple[str, RescaleReport]] = []
        self.errors: list[tuple[str, MalstromError]] = []
        self.joins = True
        self.now_s = 100.0

    def ask(self, name: str, *members: int) -> Requests:
        self.rescales.asked(members, self.now_s, partial(self._done, name))
        return self._handle(ce.RescaleRequested(members))

    def rebalance(self, name: str, weights: list[float] | None) -> Requests:
        members = self.rescales.next_members
        self.rescales.asked(members, self.now_s, partial(self._done, name))
        return self._handle(ce.RescaleRequested(members, weights, evens_out=True))

    def _done(self, name: str, ended: RescaleReport | MalstromError) -> None:
        if isinstance(ended, MalstromError):
            self.errors.append((name, ended))
        else:
            self.reports.append((name, ended))

    def call_off(self, error: MalstromError) -> Requests:
        return self._handle(ce.RescaleCalledOff(error))

    def go_on(self) -> Requests:
        """Until the rescale under way has ended, or another one joins."""
        ended = len(self.reports)
        while len(self.reports) == ended:
            self.report()
        return self

    def report(self) -> None:
        """All that the move under way waits for."""
        for report in list(self.machine._missing):
            assert isinstance(report, Switched | PartsPolled)
            self._handle(ce.ReportReceived(report))

    def snapshot(self, snapshot: str) -> Requests:
        """A barrier goes as soon as it may."""
        return self._handle(ce.SnapshotWanted(snapshot))

    def barrier_passed(self, snapshot: str) -> Requests:
        """Everywhere."""
        for worker in self.machine.members:
            self._handle(ce.ReportReceived(BarrierPassed(snapshot, worker)))
        return self

    def _handle(self, event: ce.Event) -> Requests:
        for effect in self.machine.handle(event):
            if isinstance(effect, ce.StartWorkers) and self.joins:
                for worker in effect.workers:
                    self._handle(Connected(worker))
            elif isinstance(effect, ce.Ended):
                self.rescales.ended(self.now_s, effect.error)
        return self


def test_a_report_tells_what_has_moved_and_how_long_that_took() -> None:
    requests = Requests().ask("first", 0, 1)
    requests.now_s += 2.5
    requests.go_on()
    assert requests.reports == [
        ("first", RescaleReport(members=(0, 1), version=2, moves=2, slots=4, parts=2, duration_s=2.5))
    ]


def test_r9_a_request_that_is_overtaken_ends_with_the_one_that_overtook_it() -> None:
    requests = Requests().ask("running", 0, 1)
    requests.now_s += 1.0
    requests.ask("overtaken", 0, 1, 2)
    requests.now_s += 1.0
    requests.ask("last", 0)
    assert requests.reports == []
    requests.go_on()
    assert [(name, report.superseded_by) for name, report in requests.reports] == [("running", None)]
    requests.now_s += 1.0
    requests.go_on()
    assert [(name, report.members, report.superseded_by, report.duration_s) for name, report in requests.reports] == [
        ("running", (0, 1), None, 2.0),
        ("overtaken", (0,), 1, 2.0),
        ("last", (0,), None, 1.0),
    ]


def test_a_rescale_that_waits_begins_where_the_one_before_has_ended() -> None:
    requests, log = Requests().ask("running", 0, 1).ask("overtaken", 0, 1, 2).ask("last", 0).go_on().go_on(), EventLog()
    assert [(type(event).__name__, event.workers) for event in requests.events] == [
        *(("RescaleBegun", 1), ("RescaleBegun", 1), ("RescaleBegun", 1)),
        *(("RescaleEnded", 2), ("RescaleBegun", 2), ("RescaleEnded", 1)),
    ]
    for event in requests.events:
        log.emit(event)
    assert (log.totals.rescales, log.totals.slots) == (2, 8)


def test_r9_a_request_for_what_is_reached_already_has_ended() -> None:
    requests = Requests((0, 1)).ask("same", 0, 1)
    assert requests.reports == [
        ("same", RescaleReport(members=(0, 1), version=0, moves=0, slots=0, parts=0, duration_s=0.0))
    ]


def test_r9_what_waits_ends_at_once_where_the_one_before_it_came_to_the_same() -> None:
    requests = Requests().ask("running", 0, 1).ask("again", 0, 1)
    requests.go_on()
    assert [(name, report.moves) for name, report in requests.reports] == [("running", 2), ("again", 0)]
    requests.ask("next", 0).go_on()
    assert requests.reports[-1][1].moves == 2


def test_r9_requests_that_come_while_a_barrier_passes_end_with_the_last_of_them() -> None:
    requests = Requests().snapshot("s1")
    requests.ask("first", 0, 1).ask("second", 0, 1, 2)
    requests.now_s += 1.0
    requests.barrier_passed("s1").go_on()
    assert [(name, report.members, report.superseded_by, report.duration_s) for name, report in requests.reports] == [
        ("first", (0, 1, 2), 3, 1.0),
        ("second", (0, 1, 2), None, 1.0),
    ]
    assert requests.reports[-1][1].version == requests.machine.version > 0
    requests.ask("next", 0).go_on()
    assert requests.reports[-1][0] == "next"


def test_r9_who_is_told_may_ask_for_more() -> None:
    requests = Requests()

    def more(report: RescaleReport | MalstromError) -> None:
        assert isinstance(report, RescaleReport)
        requests.reports.append(("first", report))
        requests.ask("second", 0, 1, 2)

    requests.rescales.asked((0, 1), requests.now_s, more)
    requests._handle(ce.RescaleRequested((0, 1)))
    requests.go_on()
    assert [name for name, _ in requests.reports] == ["first"]
    requests.go_on()
    assert [(name, report.members) for name, report in requests.reports][1:] == [("second", (0, 1, 2))]


def test_a_request_that_is_called_off_ends_with_the_error_and_what_it_overtook_with_it() -> None:
    requests = Requests().ask("running", 0, 1).ask("overtaken", 0, 1, 2).ask("last", 0, 1, 3)
    requests.joins = False
    requests.go_on()
    assert [(name, report.members) for name, report in requests.reports] == [("running", (0, 1))]
    requests.call_off(late := DeadlineError("worker 3 did not start"))
    assert requests.errors == [("overtaken", late), ("last", late)]
    assert len(requests.reports) == 1


def test_r9_what_waits_begins_afresh_behind_a_request_that_was_called_off() -> None:
    requests = Requests((0, 1))
    requests.joins = False
    requests.ask("late", 0, 1, 2).ask("waits", 0)
    requests.now_s += 1.0
    requests.call_off(late := DeadlineError("worker 2 did not start"))
    assert (requests.errors, requests.reports) == ([("late", late)], [])
    assert (requests.events[-2].workers, requests.events[-2].error) == (2, str(late))
    requests.go_on()
    assert [(name, report.members, report.duration_s) for name, report in requests.reports] == [("waits", (0,), 1.0)]


def test_how_far_a_rescale_has_come_can_be_seen_while_it_moves() -> None:
    requests = Requests()
    assert requests.rescales.moving is None
    requests.ask("up", 0, 1)
    assert requests.rescales.moving == Moving(1, slots=0, of_slots=4, keys=0, bytes=0)
    for report in list(requests.machine._missing):
        assert isinstance(report, Switched | PartsPolled)
        requests._handle(ce.ReportReceived(report))
    assert requests.rescales.moving == Moving(2, slots=2, of_slots=4, keys=0, bytes=0)
    requests.go_on()
    assert requests.rescales.moving is None


def test_what_joins_does_not_move_yet() -> None:
    requests = Requests()
    requests.joins = False
    requests.ask("up", 0, 1)
    assert requests.rescales.moving is None


def test_a_report_counts_the_keys_and_bytes_of_its_own_rescale() -> None:
    requests = Requests().ask("up", 0, 1)
    requests.machine.moved = Moved(keys=3, bytes=500)
    assert requests.rescales.moving == Moving(1, slots=0, of_slots=4, keys=3, bytes=500)
    requests.go_on().ask("down", 0)
    requests.machine.moved = Moved(keys=10, bytes=700)
    requests.go_on()
    assert [(report.keys, report.bytes) for _, report in requests.reports] == [(3, 500), (7, 200)]


SKEWED = [5.0, 1.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0]
"""Weights of the slots: those of worker 0 of two weigh 10 of 14."""


def test_r10_a_rebalance_moves_the_slot_that_pays_and_reports_why() -> None:
    requests = Requests((0, 1)).rebalance("even", SKEWED).go_on()
    ((_, report),) = requests.reports
    assert (report.members, report.slots, report.moves, report.superseded_by) == ((0, 1), 1, 1, None)
    assert (report.imbalance_before, report.imbalance_after) == (10 / 7, 1.0)
    assert requests.machine.table == (0, 1, 0, 1, 1, 1, 0, 1)
    requests.rebalance("again", SKEWED)
    assert [(name, report.slots, report.imbalance_before) for name, report in requests.reports[1:]] == [
        ("again", 0, 1.0)
    ]


def test_r10_a_rebalance_without_weights_or_within_a_tenth_has_ended() -> None:
    requests = Requests((0, 1)).rebalance("unknown", None).rebalance("near", [1.2, *[1.0] * 7])
    reports = dict(requests.reports)
    assert (reports["unknown"].slots, reports["unknown"].imbalance_before) == (0, None)
    assert (reports["near"].slots, reports["near"].moves) == (0, 0)
    assert reports["near"].imbalance_before == reports["near"].imbalance_after


def test_r10_a_rescale_places_by_the_weights_of_its_request_in_all_of_its_moves() -> None:
    requests = Requests((0, 1))
    members = (0, 1, 2)
    requests.rescales.asked(members, requests.now_s, partial(requests._done, "up"))
    weights = [9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    requests._handle(ce.RescaleRequested(members, weights)).go_on()
    ((_, report),) = requests.reports
    assert requests.machine.table == requests.machine.rescale.table
    assert sorted(requests.machine.table.count(worker) for worker in members) == [1, 3, 4]
    assert report.imbalance_after == 9.0 / (16.0 / 3)


def test_r9_a_rebalance_during_a_rescale_waits_and_keeps_the_size_that_is_asked_for() -> None:
    requests = Requests().ask("running", 0, 1).ask("waits", 0, 1, 2).rebalance("even", SKEWED)
    requests.go_on()
    assert [name for name, _ in requests.reports] == ["running"]
    requests.go_on()
    assert [(name, report.members) for name, report in requests.reports[1:]] == [
        ("waits", (0, 1, 2)),
        ("even", (0, 1, 2)),
    ]
    assert requests.reports[-1][1].imbalance_before is not None


def test_r9_a_rebalance_is_not_lost_by_a_later_request_for_the_size_that_is_there() -> None:
    requests = Requests((0, 1)).snapshot("s1").rebalance("even", SKEWED)
    requests.rescales.asked((0, 1), requests.now_s, partial(requests._done, "same"))
    requests._handle(ce.RescaleRequested((0, 1), SKEWED))
    requests.barrier_passed("s1").go_on()
    assert [(name, report.slots) for name, report in requests.reports] == [("even", 1), ("same", 1)]


def test_r9_a_rebalance_during_a_barrier_keeps_the_size_that_was_asked_for_there() -> None:
    requests = Requests().snapshot("s1").ask("grow", 0, 1).rebalance("even", SKEWED)
    requests.barrier_passed("s1")
    for _ in range(SLOTS):
        requests.report()
    assert [(name, report.members) for name, report in requests.reports] == [("grow", (0, 1)), ("even", (0, 1))]


def test_r9_a_rebalance_does_not_start_joiners_again_that_did_not_start() -> None:
    requests = Requests((0, 1))
    requests.joins = False
    requests.ask("grow", 0, 1, 2).rebalance("even", None)
    requests.call_off(DeadlineError("they did not start", wait="the start", deadline_s=1.0))
    assert [name for name, _ in requests.errors] == ["grow"]
    assert [(name, report.members) for name, report in requests.reports] == [("even", (0, 1))]
