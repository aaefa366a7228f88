"""A job with skewed keys in one process: slots move by load, and a key that is too heavy for one worker is named."""

from __future__ import annotations

import threading
import time
from itertools import count
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import events, sinks, sources
from malstrom_py.errors import JobEnded
from tests.integration.commands import malstrom
from tests.integration.monitoring.conftest import PATIENCE_S, TOKEN, Server, free_port, until
from tests.integration.skew import skewed


def is_skewed(handle: mp.JobHandle) -> bool:
    """Whether the skew has been measured."""
    return (handle.metrics().imbalance or 0.0) > 1.3


def test_r10_a_rebalance_moves_one_of_two_heavy_slots_and_loses_nothing() -> None:
    out = sinks.Memory()
    handle = mp.InProcess(2).start(skewed("docs-skewed", out), control=False)
    assert handle.rebalance(timeout_s=PATIENCE_S).imbalance_before is None, "nothing is measured yet"
    until(lambda: is_skewed(handle), "the loads of slots are known")
    report = handle.rebalance(timeout_s=PATIENCE_S)
    assert report.members == (0, 1)
    assert 1 <= report.slots <= 8, "few of 1,024"
    assert report.imbalance_before is not None
    assert report.imbalance_after is not None
    assert report.imbalance_after < 1.1 < 1.3 < report.imbalance_before
    assert (handle.metrics().imbalance or 9.0) < 1.2
    grown = handle.rescale(3, timeout_s=PATIENCE_S)
    assert grown.imbalance_after is not None, "a rescale places by load too"
    assert grown.imbalance_after < 1.28, "by number a heavy slot would have a third of the others beside it, and 1.35"
    assert grown.slots < 1_024 / 2, "the fewer rows were sampled, the more slots count as light ones"
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    seen = list(handle.events())
    assert events.RescaleBegun(2, 2) in seen
    (ended,) = (event for event in seen if isinstance(event, events.RescaleEnded) and event.slots == report.slots)
    assert (ended.imbalance_before, ended.imbalance_after) == (report.imbalance_before, report.imbalance_after)
    assert handle.wait().written == len(out.items)
    assert all(values == list(range(1, len(values) + 1)) for values in out.by_key.values())


@pytest.mark.long
def test_a_terminal_and_the_page_ask_for_a_rebalance(tmp_path: Path) -> None:
    page = Server(free_port())
    runtime = mp.InProcess(2, dashboard=mp.Dashboard(port=page.port, token=TOKEN))
    handle = runtime.start(skewed("docs-skewed-seen", sinks.Memory()))
    until(lambda: is_skewed(handle), "the loads of slots are known")
    moved = malstrom(tmp_path, "rebalance", "docs-skewed-seen")
    assert (moved.returncode, moved.stderr) == (0, "")
    assert moved.stdout.startswith("job docs-skewed-seen: ")
    assert "; the most loaded worker had 1." in moved.stdout
    assert page.post("/api/jobs/docs-skewed-seen/rebalance", {})["ok"]
    until(lambda: handle.metrics().rescales >= 2, "the page has asked too")
    handle.stop(drain=True, timeout_s=PATIENCE_S)


@pytest.mark.long
def test_a_key_that_is_too_heavy_for_one_worker_is_named_until_it_is_not() -> None:
    is_heavy = threading.Event()
    is_heavy.set()

    def slow(value: int) -> int:
        if is_heavy.is_set():
            time.sleep(0.001)
        return value

    job = mp.Job("docs-hot")
    numbers = job.source("in", sources.Generator(lambda part, start: count(start), parts=1))
    keyed = numbers.key_by("key", lambda n: "hot" if is_heavy.is_set() or n % 20 == 0 else f"cool {n % 20}")
    keyed.map("slow", slow).count("n").sink("out", sinks.Memory())
    handle = mp.InProcess(2, batch=mp.Batching(rows_max=50)).start(job, control=False)
    until(lambda: handle.metrics().hot_keys, "the key is hot")
    (hot,) = handle.metrics().hot_keys
    assert (hot.step, hot.key) == ("key", "'hot'")
    assert hot.share > 0.5
    assert hot.busy >= 0.7
    assert any(isinstance(event, events.HotKeyBegun) for event in handle.events(follow=False))
    is_heavy.clear()
    until(lambda: not handle.metrics().hot_keys, "the key has cooled")
    handle.stop(drain=False, timeout_s=PATIENCE_S)
    try:
        handle.wait(timeout_s=PATIENCE_S)
    except JobEnded:
        """It was stopped."""
    told = [event for event in handle.events() if isinstance(event, events.HotKeyBegun | events.HotKeyEnded)]
    assert [type(event).__name__ for event in told] == ["HotKeyBegun", "HotKeyEnded"]
