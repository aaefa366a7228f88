"""Events from another process: over the control socket, and by ``malstrom events``."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import events, sinks, sources
from tests.endless import endless_numbers
from tests.integration.commands import malstrom


def a_job(name: str) -> mp.Job:
    job = mp.Job(name)
    numbers = job.source("in", sources.Generator(endless_numbers))
    numbers.key_by("key", lambda n: n % 5).count("n").sink("out", sinks.Memory())
    return job


def test_events_follow_a_job_while_it_runs_also_from_another_process(tmp_path: Path) -> None:
    job = a_job("docs-events-live")
    handle = mp.InProcess(snapshots=mp.Snapshots(tmp_path, interval_s=None)).start(job)
    here, other = handle.events(), mp.JobHandle.attach("docs-events-live").events()
    snapshot = handle.snapshot()
    handle.rescale(2)
    for reader in (here, other):
        began = list(_until(reader, events.RescaleEnded))
        made = [event for event in began if isinstance(event, events.SnapshotCompleted)]
        assert [event.id for event in made] == [snapshot]
        assert made[0].bytes > 0
        *begun, ended = began[-3:]
        assert begun == [events.RescaleBegun(1, 2), events.WorkerJoined(1)]
        assert isinstance(ended, events.RescaleEnded)
        assert (ended.workers, ended.slots, ended.error) == (2, 512, "")
        assert ended.bytes > 0
        assert ended.duration_s > 0
    handle.rescale(1)
    *_, left, last = _until(here, events.RescaleEnded)
    assert left == events.WorkerLeft(1)
    assert isinstance(last, events.RescaleEnded)
    assert last.workers == 1
    stopping = threading.Thread(target=handle.stop)
    stopping.start()
    assert list(other)[-2:] == [events.Stop(events.StopCause.MANUAL, 0), events.Ended("stopped", _stopped(handle))]
    stopping.join(60)


def test_a_request_that_waits_for_a_rescale_is_a_rescale_with_a_beginning_and_an_end(tmp_path: Path) -> None:
    handle = mp.InProcess(2).start(a_job("docs-events-waiting"))
    seen = handle.events()
    handle.rescale(4, wait=False)
    while handle.status().moving is None:
        """The first slots have not moved."""
    handle.rescale(3)
    found = list(_until(seen, events.RescaleEnded))
    last = found[-1]
    while isinstance(last, events.RescaleEnded) and last.workers != 3:
        found += _until(seen, events.RescaleEnded)
        last = found[-1]
    kinds = [event for event in found if isinstance(event, events.RescaleBegun | events.RescaleEnded)]
    assert kinds[0] == events.RescaleBegun(2, 4)
    for before, after in pairwise(kinds):
        ended = isinstance(before, events.RescaleEnded), isinstance(after, events.RescaleEnded)
        assert ended != (True, True), "each end has its beginning"
    handle.stop()


def _stopped(handle: mp.JobHandle) -> str:
    with pytest.raises(mp.JobEnded) as stopped:
        handle.wait(timeout_s=60)
    return str(stopped.value)


def _until(reader: Iterator[events.AnyEvent], kind: type) -> Iterator[events.AnyEvent]:
    for event in reader:
        yield event
        if isinstance(event, kind):
            return


def test_the_command_prints_the_events_so_far_or_follows_them(tmp_path: Path) -> None:
    handle = mp.InProcess(2).start(a_job("docs-events-command"))
    list(_until(handle.events(), events.Input))
    so_far = malstrom(tmp_path, "events", "docs-events-command")
    times, said = zip(*(line.split("  ", 1) for line in so_far.stdout.splitlines()), strict=True)
    assert said[:2] == ("worker 0 has joined", "worker 1 has joined")
    assert sorted(times) == [f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M:%S}" for time in times]
    ended = threading.Timer(1.0, handle.stop)
    ended.start()
    followed = malstrom(tmp_path, "events", "docs-events-command", "--json", "--follow")
    ended.join(60)
    lines = [json.loads(line) for line in followed.stdout.splitlines()]
    written = [datetime.fromisoformat(line.pop("time")) for line in lines]
    assert sorted(written) == written
    assert written[0].tzinfo is not None
    assert (lines[0], lines[-1]) == ({"type": "WorkerJoined", "worker": 0}, {"type": "Ended", "how": "finished"})
    assert {"type": "Stop", "cause": "manual", "worker": 1} in lines
    assert malstrom(tmp_path, "events", "docs-events-command").returncode == 2
