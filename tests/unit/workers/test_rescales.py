"""The requests to one job: what each of them comes to, and when it is told (R9)."""

from __future__ import annotations

from functools import partial

from malstrom_py.rescale.placement import first_table, plan_moves
from malstrom_py.rescale.protocol import PartsPolled, Switched
from malstrom_py.workers import coordinator_machine as cm
from malstrom_py.workers.rescale_report import RescaleReport
from malstrom_py.workers.rescales import Rescales

SLOTS = 8


class Requests:
    """Requests to a coordinator of workers without exchanges, which report when they are told to."""

    def __init__(self, members: tuple[int, ...] = (0,)) -> None:
        topology = cm.Topology((), {}, {"in": ()})
        parts = {("in", str(part)): members[part % len(members)] for part in range(4)}
        self.machine = cm.CoordinatorMachine(
            topology,
            members=members,
            table=first_table(SLOTS, members),
            parts=parts,
            plan_moves=partial(plan_moves, slots_max=2),
        )
        self.rescales = Rescales(self.machine)
        self.reports: list[tuple[str, RescaleReport]] = []
        self.now_s = 100.0

    def ask(self, name: str, *members: int) -> Requests:
        self.rescales.asked(members, self.now_s, lambda report: self.reports.append((name, report)))
        return self._handle(cm.Requested(members))

    def go_on(self) -> Requests:
        """Until the rescale under way has ended, or another one joins."""
        ended = len(self.reports)
        while len(self.reports) == ended:
            for report in list(self.machine._missing):
                assert isinstance(report, Switched | PartsPolled)
                self._handle(cm.Reported(report))
        return self

    def _handle(self, event: cm.Event) -> Requests:
        for effect in self.machine.handle(event):
            if isinstance(effect, cm.StartWorkers):
                for worker in effect.workers:
                    self._handle(cm.Connected(worker))
            elif isinstance(effect, cm.Ended):
                self.rescales.ended(self.now_s)
        return self


def test_a_report_tells_what_has_moved_and_how_long_that_took() -> None:
    requests = Requests().ask("first", 0, 1)
    requests.now_s += 2.5
    requests.go_on()
    assert requests.reports == [
        ("first", RescaleReport(members=(0, 1), version=2, moves=2, slots=4, parts=2, duration_s=2.5))
    ]


def test_each_report_counts_from_where_its_own_rescale_began() -> None:
    requests = Requests().ask("up", 0, 1).go_on().ask("down", 0).go_on()
    (_, up), (_, down) = requests.reports
    assert (up.version, up.moves, down.version, down.moves) == (2, 2, 4, 2)
    assert (down.members, down.slots, down.parts) == ((0,), 4, 2)


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


def test_r9_who_is_told_may_ask_for_more() -> None:
    requests = Requests()

    def more(report: RescaleReport) -> None:
        requests.reports.append(("first", report))
        requests.ask("second", 0, 1, 2)

    requests.rescales.asked((0, 1), requests.now_s, more)
    requests._handle(cm.Requested((0, 1)))
    requests.go_on()
    assert [name for name, _ in requests.reports] == ["first"]
    requests.go_on()
    assert [(name, report.members) for name, report in requests.reports][1:] == [("second", (0, 1, 2))]
