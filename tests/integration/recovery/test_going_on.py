"""Jobs with snapshots in one process: stopped, failed, rescaled, resumed from copies and from older snapshots."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import FencedError, JobEnded, OperatorError, SnapshotError, SourceError
from malstrom_py.rescale.channels.channel import Credit
from tests.integration.recovery.jobs import Numbered, Row, check_written, key_of, nth, numbered


class Failing:
    """Raises at some records, each ``times`` times."""

    def __init__(self, *numbers: int, times: int = 1) -> None:
        self._left = dict.fromkeys(numbers, times)
        self.failed = 0

    def __call__(self, row: Row) -> Row:
        if row[0] == "part-1" and self._left.get(row[1], 0) > 0:
            self._left[row[1]] -= 1
            self.failed += 1
            raise RuntimeError("as the test wants it")
        return row


class Slow:
    """Delays some records, so that the job is still running when the test stops it."""

    def __init__(self, every: int) -> None:
        self._every = every

    def __call__(self, row: Row) -> Row:
        if row[1] % self._every == 0:
            sleep(0.02)
        return row


def endless(part: int, start: int) -> Iterator[int]:
    """A source of numbers at a fixed rate."""
    for number in count(start):
        sleep(0.00001)
        yield number


def often(path: Path, **options: float) -> mp.Snapshots:
    return mp.Snapshots(str(path), interval_s=options.get("interval_s", 0.02), chain_max=2)


def small() -> mp.Batching:
    return mp.Batching(rows_max=50)


def until_read(handle: mp.JobHandle, rows: int) -> None:
    """Wait until this many records have been read, for at most a minute."""
    until_s = monotonic() + 60.0
    while handle.status().counts.read < rows:
        assert monotonic() < until_s, "nothing is read"
        sleep(0.01)


def until_written(written: list[Any], rows: int) -> None:
    """Wait until a sink has this many records, for at most a minute."""
    until_s = monotonic() + 60.0
    while len(written) < rows:
        assert monotonic() < until_s, "nothing is written"
        sleep(0.002)


QUICK = mp.Restart(max_restarts=5, backoff_s=0.0)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_s6_a_function_that_fails_now_and_then_leaves_every_record_once(workers: int, tmp_path: Path) -> None:
    failing, out = Failing(300, 900, 1_500), tmp_path / "out"
    job = numbered(str(out), each=failing)
    result = mp.run(job, workers, batch=small(), snapshots=often(tmp_path / "kept"), restart=QUICK, progress=False)
    assert failing.failed == 3
    assert result.snapshots >= 1
    check_written(out)


@pytest.mark.long("1-3", "4-2")
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 5), (4, 2)])
def test_s5_a_job_that_was_stopped_goes_on_at_another_scale(
    before: int, after: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out, kept = tmp_path / "out", mp.Snapshots(tmp_path / "kept", interval_s=None)
    job = numbered(str(out), rows=20_000, each=Slow(1_000))
    handle = mp.InProcess(before, batch=small(), snapshots=kept).start(job, control=False)
    handle.snapshot()
    handle.stop(drain=False)
    with pytest.raises(JobEnded, match="can resume from snapshot"):
        handle.wait()
    assert handle.status().restarts == 0
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
    last = kept.checkpointer("numbered").list_checkpoints()[-1]
    assert kept.checkpointer("numbered").sinks_committed(last), "sinks would be asked to commit it again"
    mp.run(numbered(str(out), rows=20_000), after, snapshots=kept, progress=False)
    check_written(out, rows=20_000)


@pytest.mark.long("sizes1")
@pytest.mark.parametrize("sizes", [(1, 2, 1), (3, 1, 4)])
def test_s3_a_sink_that_is_not_transactional_sees_nothing_twice_by_a_stop(
    sizes: tuple[int, ...], tmp_path: Path
) -> None:
    written: list[dict[str, Any]] = []

    async def looked_up(part: str) -> str:
        await asyncio.sleep(0.002)
        return part

    def enriched() -> mp.Job:
        job = mp.Job("enriched")
        keyed = job.source("in", Numbered(4, 5_000)).key_by("key", key_of)
        enriched = keyed.enrich("enriched", looked_up, by=lambda row: row[0], combine=lambda row, part: (part, row[1]))
        enriched.stateful_map("count", nth, default=int).sink("out", sinks.Callable(written.append))
        return job

    kept, tight = often(tmp_path / "kept"), mp.Batching(rows_max=50, credit=Credit(rows=200))
    for rounds, workers in enumerate(sizes, 1):
        handle = mp.InProcess(workers, batch=tight, snapshots=kept).start(enriched(), control=False)
        until_written(written, rounds * 2_000)
        handle.stop(drain=False)
        assert handle.status().state == "stopped"
    before = len(written)
    assert before < 20_000
    mp.run(enriched(), 2, snapshots=kept, progress=False)
    came = [(row["part"], row["number"]) for row in written]
    assert len(came) == len(set(came)) == 20_000
    assert sorted(row["nth"] for row in written if row["key"] == 0) == list(range(1, 4 * 218 + 1))


def test_a_job_that_has_finished_returns_its_stored_result_and_runs_nothing(tmp_path: Path) -> None:
    out, kept = tmp_path / "out", often(tmp_path / "kept")
    first = mp.run(numbered(str(out)), snapshots=kept, progress=False)

    def never(row: Row) -> Row:
        raise AssertionError

    again = mp.run(numbered(str(out), each=never), 3, snapshots=kept, progress=False)
    assert again == first
    check_written(out)


def test_resume_none_warns_of_output_that_stays_and_comes_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, out = often(tmp_path / "kept"), tmp_path / "out"
    mp.run(numbered(str(out), rows=10), snapshots=kept, resume="none", progress=False)
    mp.run(numbered(str(tmp_path / "other"), rows=10), snapshots=kept, resume="none", progress=False)
    assert caplog.messages == []
    mp.run(numbered(str(out), rows=10), snapshots=kept, resume="none", progress=False)
    (warned,) = caplog.messages
    assert "job numbered starts over" in warned
    assert "the committed output of sinks ('out') stays visible, and is written again" in warned


def test_a_start_from_an_older_snapshot_warns_of_output_that_comes_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, out = mp.Snapshots(str(tmp_path / "kept"), interval_s=None), str(tmp_path / "out")
    for _ in range(2):
        mp.run(numbered(out), snapshots=kept, resume="none", progress=False)
    older, newest = kept.checkpointer("numbered").list_checkpoints()
    caplog.clear()
    mp.run(numbered(out), snapshots=kept, resume=older, progress=False)
    warned = caplog.messages[0]
    assert f"resumes from snapshot {older}, which is not the newest" in warned
    assert warned.endswith(f"since then, up to {newest}, stays visible and is written again")


def test_a_savepoint_is_not_put_where_the_snapshots_are(tmp_path: Path) -> None:
    kept = often(tmp_path / "kept")
    handle = mp.InProcess(snapshots=kept).start(numbered(str(tmp_path / "out"), rows=200_000), control=False)
    with pytest.raises(SnapshotError, match="a savepoint needs a separate place"):
        handle.savepoint(str(tmp_path / "kept"))
    handle.stop(drain=False)


def test_s6_what_fails_each_time_ends_after_the_limit_and_says_so(tmp_path: Path) -> None:
    failing = Failing(700, times=100)
    job = numbered(str(tmp_path / "out"), each=failing)
    restart = mp.Restart(max_restarts=2, backoff_s=0.0)
    with pytest.raises(OperatorError, match="step 'each' failed") as raised:
        mp.run(job, 2, batch=small(), snapshots=often(tmp_path / "kept"), restart=restart, progress=False)
    assert failing.failed == 3
    notes = raised.value.__notes__
    assert any("of partition 'part-1' of source 'in', which ended at position 7" in note for note in notes), notes
    assert any("restarted 2 times" in note for note in notes)


def test_s3_a_start_that_another_one_has_overtaken_is_fenced_off(tmp_path: Path) -> None:
    kept = mp.Snapshots(str(tmp_path / "kept"), interval_s=None)
    stale = mp.InProcess(snapshots=kept).start(numbered(str(tmp_path / "out"), rows=500_000), control=False)
    stale.snapshot()
    # In one process the name is taken, so the claim is made by hand.
    kept.checkpointer("numbered").claim(now_s=2e9)
    with pytest.raises((FencedError, JobEnded), match=r"has taken over|failed"):
        stale.snapshot()
    with pytest.raises(FencedError, match="has taken over"):
        stale.wait()


def test_s5_a_part_that_is_gone_is_told_at_once(tmp_path: Path) -> None:
    kept = often(tmp_path / "kept")
    handle = mp.InProcess(snapshots=kept).start(numbered(str(tmp_path / "out"), each=Slow(10)), control=False)
    handle.snapshot()
    handle.stop(drain=False)
    handle = mp.InProcess(snapshots=kept).start(numbered(str(tmp_path / "out"), parts=3), control=False)
    with pytest.raises(
        SourceError, match="source 'in' no longer has partition 'part-3', which was not read to its end"
    ):
        handle.wait(timeout_s=60)
    assert handle.status().restarts == 0


def test_s8_a_migration_that_fails_is_told_at_once(tmp_path: Path) -> None:
    def counting(**upgrade: Any) -> mp.Job:
        job = mp.Job("counting")
        keyed = job.source("in", sources.Generator(endless)).key_by("rest", lambda number: number % 5)
        keyed.count("n", **upgrade).sink("out", sinks.Callable(lambda row: None))
        return job

    def broken(key: int, count: int) -> int:
        raise LookupError("as the test wants it")

    kept = often(tmp_path / "kept")
    handle = mp.InProcess(snapshots=kept).start(counting(), control=False)
    until_read(handle, 100)
    handle.stop(drain=False)
    handle = mp.InProcess(2, snapshots=kept).start(counting(migrate=broken), control=False)
    with pytest.raises(OperatorError, match="step 'n' failed for key"):
        handle.wait(timeout_s=60)
    assert handle.status().restarts == 0


def test_s4_a_job_whose_snapshots_are_removed_while_it_runs_does_not_begin_from_nothing(tmp_path: Path) -> None:
    job = mp.Job("robbed")
    job.source("in", sources.Generator(endless)).sink("out", sinks.Files(tmp_path / "out", format="json"))
    kept = mp.Snapshots(tmp_path / "kept", interval_s=None)
    handle = mp.InProcess(snapshots=kept, restart=QUICK).start(job, control=False)
    until_read(handle, 200)
    last = handle.snapshot()
    (tmp_path / "kept" / "robbed").rename(tmp_path / "taken-away")
    with pytest.raises(JobEnded, match="was removed while the job ran"):
        handle.snapshot()
    with pytest.raises(SnapshotError, match=f"snapshot {last} is no longer in"):
        handle.wait(timeout_s=60)
    lines = [line for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    numbers = [json.loads(line)["value"] for line in lines]
    assert numbers
    assert sorted(numbers) == list(range(len(numbers)))
