"""Shadows: new code beside that of a running step, on the same input; it is compared, promoted or dropped, and its
errors never reach the job.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py.workers.reports.shadows import ShadowReport
from tests.integration.job_module import JobModule, MakeModule

TOTALS = """
import time
from dataclasses import dataclass
from datetime import timedelta

import malstrom_py as mp
from malstrom_py import sinks, sources

out = sinks.Memory()
fails_at = []


def rows(part, start):
    for number in range(start, 10**9):
        yield {"n": number}
        if number % 50 == 49:
            time.sleep(0.002)


@dataclass
class Total:
    sum: int = 0


def total(key, row, state):
    n = row["n"]
    return {"key": key, "n": n, "sum": state.sum + n}, Total(state.sum + n)


def same(key, row, state):
    row["seen"] = row.get("seen", 0) + 1
    return row, state


def flat(row):
    return [row]


def mark(row):
    if fails_at and row["n"] >= fails_at[0]:
        fails_at.clear()
        raise OSError("it passes")
    return {**row, "by": 1}


def key_of(row):
    return row["n"] % 20


def make():
    job = mp.Job("totals")
    keyed = job.source("in", sources.Generator(rows)).key_by("key", key_of)
    keyed.stateful_map("total", total, default=Total).map("mark", mark).sink("out", out)
    return job


def make_ttl():
    job = mp.Job("totals")
    timed = job.source("in", sources.Generator(rows)).assign_timestamps("t", lambda row: row["n"], unit="ms")
    keyed = timed.generate_epochs("e", mp.limit_out_of_orderness(100))[0].key_by("key", key_of)
    keyed.stateful_map("same", same, default=Total, ttl=timedelta(hours=1)).sink("out", out)
    return job


def make_same():
    job = mp.Job("totals")
    keyed = job.source("in", sources.Generator(rows)).key_by("key", key_of)
    keyed.stateful_map("same", same, default=Total).sink("out", out)
    return job


def make_flat():
    job = mp.Job("totals")
    keyed = job.source("in", sources.Generator(rows)).key_by("key", key_of)
    keyed.flat_map("flat", flat).map("mark", mark).sink("out", out)
    return job
"""

OTHER = ('"sum": state.sum + n}', '"sum": state.sum + n + (n % 7 == 0)}')
DRIFTS = ("Total(state.sum + n)", "Total(state.sum + n + 1)")
FAILS = ("    n = row", "    if row['n'] % 5 == 0:\n        raise ValueError(f'no {row}')\n    n = row")
EXITS = ("    n = row", "    raise SystemExit(3)\n    n = row")
CANCELLED = ("    n = row", "    raise __import__('asyncio').CancelledError\n    n = row")
PANICS = ("    n = row", "    raise type('Panic', (BaseException,), {})('at row')\n    n = row")
MANY = ("return [row]", "return [row] * 1000")
DAMAGES = ("    return row, state", '    row["n"] = -7\n    return row, state')
SAME_FAILS = ("    return row, state", "    raise ValueError(f'no {row}')")
CANNOT_BE_STORED = ("Total(state.sum + n)", "lambda: state")
NEW_MARK = ('"by": 1', '"by": 2')


@pytest.fixture
def totals(job_module: MakeModule) -> JobModule:
    return job_module(TOTALS)


def check(totals: JobModule) -> list[dict[str, int]]:
    """Check that each row was processed once, in order, with the state before it."""
    by_key = defaultdict[int, list[dict[str, int]]](list)
    for row in totals.items:
        by_key[row["key"]].append(row)
    for key, rows in by_key.items():
        assert [row["n"] for row in rows] == list(range(key, rows[-1]["n"] + 1, 20))
        for before, row in zip([{"sum": 0}, *rows], rows, strict=False):
            assert row["sum"] == before["sum"] + row["n"]
    return totals.items


def started(totals: JobModule, tmp_path: Path, make: str = "make", **options: Any) -> mp.JobHandle:
    snapshots = mp.Snapshots(tmp_path / "kept", interval_s=0.1)
    job = getattr(totals.module, make)()
    handle = mp.InProcess(2, snapshots=snapshots, **options).start(job, control=False)
    while handle.status().counts.read < 200:  # all keys have state
        time.sleep(0.01)
    return handle


def compared(handle: mp.JobHandle, step: str, rows: int = 500) -> ShadowReport:
    """What has been found once so many rows are compared, or the shadow has stopped."""
    while not ((report := handle.shadow(step)).failure or report.compared >= rows):
        time.sleep(0.01)
    return report


def test_the_same_code_has_no_differences_through_a_rescale_and_a_snapshot(totals: JobModule, tmp_path: Path) -> None:
    handle = started(totals, tmp_path)
    report = handle.reload("total", shadow=True)
    assert str(report).startswith(f"step total has the new code of {totals.name} as its shadow since snapshot ")
    compared(handle, "total")
    handle.rescale(3)
    handle.snapshot()
    handle.rescale(1)
    found = compared(handle, "total", 2_000)
    assert (found.different, found.failure, found.pairs) == (0, "", ())
    handle.stop(drain=True, timeout_s=60)
    check(totals)


def test_other_code_has_exactly_its_differences(totals: JobModule, tmp_path: Path) -> None:
    handle = started(totals, tmp_path)
    totals.write(OTHER)
    handle.reload("total", shadow=True)
    found = compared(handle, "total")
    assert found.different
    assert abs(found.different - found.compared / 7) < 20
    assert len(found.pairs) == 20
    for pair in found.pairs:
        old, new = eval(pair.old), eval(pair.new)  # the texts of dicts of numbers
        assert (old["n"] % 7, new) == (0, {**old, "sum": old["sum"] + 1})
        assert int(pair.key) == old["key"]
    handle.stop(drain=True, timeout_s=60)
    check(totals)
    last = handle.shadow("total")
    assert last.compared <= len(totals.items)


@pytest.mark.parametrize("change", [OTHER, DRIFTS])
def test_a_promoted_shadow_goes_on_with_its_own_state(
    change: tuple[str, str], totals: JobModule, tmp_path: Path
) -> None:
    handle = started(totals, tmp_path)
    totals.write(change, NEW_MARK)
    handle.reload("total", shadow=True)
    compared(handle, "total")
    assert not any(row["by"] == 2 for row in totals.items), "the other steps of the module stay"
    report = handle.promote("total", probation_s=0.05)
    assert str(report).startswith(f"step total has the new code of {totals.name} since snapshot ")
    with pytest.raises(mp.PlanError, match="step 'total' has no shadow: begin one by"):
        handle.shadow("total")
    saved = handle.status().snapshots
    assert saved is not None
    assert (saved.last or "") > report.snapshot, "a new start has the state of the shadow"
    handle.rescale(1)
    handle.stop(drain=True, timeout_s=60)
    rows = totals.items
    assert {row["by"] for row in rows} == {1, 2}
    numbers = [row["n"] for row in rows]
    assert sorted(numbers) == list(range(len(numbers)))
    if change is DRIFTS:  # each record since the shadow began has added one more
        last = {row["key"]: row["sum"] for row in rows}
        assert sum(last.values()) - sum(numbers) > 500


def test_a_shadow_is_not_in_lists_of_steps(totals: JobModule, tmp_path: Path) -> None:
    handle = started(totals, tmp_path)
    handle.reload("total", shadow=True)
    assert not [edge for edge in handle.metrics().edges if "shadow" in f"{edge.source} {edge.target}"]
    for ask in (handle.tap, handle.state):
        with pytest.raises(mp.PlanError) as refused:
            next(iter(ask("other")))
        assert "total" in str(refused.value)
        assert "shadow" not in str(refused.value)
    handle.stop(drain=True, timeout_s=60)


def test_a_dropped_shadow_leaves_nothing(totals: JobModule, tmp_path: Path) -> None:
    handle = started(totals, tmp_path)
    totals.write(OTHER)
    handle.reload("total", shadow=True)
    compared(handle, "total", 10)
    with pytest.raises(mp.ReloadError, match="'total' has a shadow: promote or drop it first"):
        handle.reload("mark", shadow=True)
    assert "has no shadow since snapshot" in str(handle.drop("total"))
    with pytest.raises(mp.ReloadError, match="it has no shadow: begin one"):
        handle.promote("total")
    handle.snapshot()
    handle.reload("mark", shadow=True)  # and another one may begin
    assert compared(handle, "mark", 10).different == 0
    handle.stop(drain=True, timeout_s=60)
    check(totals)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (FAILS, "ValueError in total at"),
        (EXITS, "SystemExit"),
        (CANCELLED, "CancelledError"),
        (PANICS, "Panic: at row"),
        (CANNOT_BE_STORED, "function"),
    ],
)
def test_an_error_of_the_shadow_stops_it_and_not_the_job(
    change: tuple[str, str], why: str, totals: JobModule, tmp_path: Path
) -> None:
    handle = started(totals, tmp_path)
    totals.write(change)
    handle.reload("total", shadow=True)
    handle.snapshot()
    found = compared(handle, "total", 10**9)
    assert why in found.failure
    assert "the new code has stopped: " in str(found)
    handle.rescale(3)
    handle.snapshot()
    with pytest.raises(mp.ReloadError, match="its shadow has stopped by an error, and is dropped") as refused:
        handle.promote("total")
    assert str(refused.value).endswith(f"begin another shadow. The error: {found.failure}")
    assert handle.shadow("total").failure == found.failure, "it is shown until another one begins"
    handle.snapshot()
    totals.write(OTHER)
    handle.reload("total", shadow=True)
    found = compared(handle, "total")
    assert (bool(found.different), found.failure) == (True, "")
    handle.drop("total")
    assert handle.status().restarts == 0
    handle.stop(drain=True, timeout_s=60)
    check(totals)


@pytest.mark.parametrize(
    ("make", "options"), [("make_ttl", {}), ("make_same", {"state": mp.State("64MB")}), ("make_same", {})]
)
def test_a_shadow_cannot_change_the_rows_of_the_job_also_with_a_ttl_or_with_state_on_disk(
    make: str, options: dict[str, Any], totals: JobModule, tmp_path: Path
) -> None:
    handle = started(totals, tmp_path, make, **options)
    handle.reload("same", shadow=True)  # nor does the job change those of the shadow
    assert compared(handle, "same").different == 0
    handle.drop("same")
    totals.write(DAMAGES)
    handle.reload("same", shadow=True)
    assert compared(handle, "same").different
    handle.drop("same")
    totals.write(SAME_FAILS)
    handle.reload("same", shadow=True)
    assert "ValueError in same at" in compared(handle, "same", 10**9).failure
    handle.stop(drain=True, timeout_s=60)
    numbers = sorted(row["n"] for row in totals.items)
    assert numbers == list(range(len(numbers)))
    assert {row["seen"] for row in totals.items} == {1}


def test_an_error_of_a_later_step_is_not_one_of_the_shadow(totals: JobModule, tmp_path: Path) -> None:
    """A step that sends far more than it takes lets later steps run first; its shadow does not."""
    handle = started(totals, tmp_path, "make_flat", restart=mp.Restart(backoff_s=0.01))
    totals.write(MANY)
    handle.reload("flat", shadow=True)
    compared(handle, "flat")
    totals.module.fails_at.append(handle.status().counts.read + 20)
    while not (handle.status().restarts or handle.shadow("flat").failure):
        time.sleep(0.01)
    assert (handle.status().restarts, handle.shadow("flat").failure) == (1, "")
    handle.stop(drain=True, timeout_s=60)
    numbers = sorted(row["n"] for row in totals.items)
    assert numbers == list(range(len(numbers)))


def test_a_job_with_a_shadow_resumes_without_it(totals: JobModule, tmp_path: Path) -> None:
    handle = started(totals, tmp_path)
    totals.write(DRIFTS)
    handle.reload("total", shadow=True)
    compared(handle, "total")
    handle.snapshot()
    handle.stop(drain=False, timeout_s=60)
    totals.write()
    before = len(totals.items)
    again = mp.InProcess(1, snapshots=mp.Snapshots(tmp_path / "kept")).start(totals.module.make(), control=False)
    while again.status().counts.read < 200:
        time.sleep(0.01)
    again.stop(drain=True, timeout_s=60)
    assert len(check(totals)) > before


def test_what_acts_outside_of_the_job_has_no_shadow(totals: JobModule, tmp_path: Path) -> None:
    handle = started(totals, tmp_path)
    with pytest.raises(mp.ReloadError, match="step 'key' cannot have a shadow: key_by steps"):
        handle.reload("key", shadow=True)
    with pytest.raises(mp.PlanError, match="has no step 'other'"):
        handle.reload("other", shadow=True)
    handle.stop(drain=True, timeout_s=60)
    check(totals)
