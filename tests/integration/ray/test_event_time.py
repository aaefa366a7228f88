"""Event time through a rescale on Ray: no record is wrongly late, and each window fires once with all its records."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Final

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.data.messages import DataMessage
from tests.integration.ray.traffic import PARTS, Attendance, Paced, Sent, Tour

WIDTH: Final = 500
Windows = dict[int, list[tuple[int, int]]]


def time_of(record: Sent) -> int:
    """Return the event time: pairs are swapped, and every 97th record is late."""
    return record.number - 50 if record.number % 97 == 96 else record.number ^ 1


class Collecting(mp.KeyedLogic[int, Sent, Any, Windows]):
    """Collects the records of each window, and emits them by a timer at the end of the window."""

    def __init__(self, attendance: Attendance) -> None:
        self._attendance = attendance

    def on_data(self, message: DataMessage[int, Sent], key_state: Windows | None, output: Any) -> Windows:
        self._attendance.sign("first")
        self._attendance.sign("second")
        record, start = message.value, time_of(message.value) // WIDTH * WIDTH
        windows = dict(key_state or {})
        if start not in windows:
            output.set_timer(message.key, start + WIDTH - 1)
        windows[start] = [*windows.get(start, ()), (record.part, record.number)]
        return windows

    def on_timer(self, key: int, time: int, key_state: Windows | None, output: Any) -> Windows | None:
        windows = dict(key_state or {})
        start = time - WIDTH + 1
        output.emit(key, (key, start, windows.pop(start)), time)
        return windows or None


@pytest.mark.long
def test_p2_event_time_is_true_through_rescales(tidy: None, attendance: Attendance) -> None:
    job, out, behind = mp.Job("event-time"), sinks.Memory(), sinks.Memory()
    timed = job.source("numbers", Paced(attendance)).assign_timestamps("time", time_of)
    on_time, late = timed.generate_epochs("epochs", mp.limit_out_of_orderness(10))
    on_time.key_by("by-key", lambda record: record.key % 100).stateful_op("windows", Collecting(attendance)).sink(
        "out", out
    )
    late.sink("late", behind)
    handle = mp.RayRuntime(1, num_cpus=0.2).start(job)
    Tour(handle, attendance).go(3, 2, 4, 1)
    handle.stop()
    result = handle.wait()

    fired = Counter((key, start) for key, start, _ in out.items)
    assert max(fired.values()) == 1
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    for _, start, content in out.items:
        for part, number in content:
            assert start <= time_of(Sent(part, number, 0, 0, 0)) < start + WIDTH
            numbers[part].append(number)
    for record in behind.items:
        assert record.number % 97 == 96
        numbers[record.part].append(record.number)
    assert len(numbers) == PARTS
    for found in numbers.values():
        assert sorted(found) == list(range(len(found)))
    assert sum(map(len, numbers.values())) == result.read
    assert result.late == len(behind.items) == sum(n % 97 == 96 for found in numbers.values() for n in found)
