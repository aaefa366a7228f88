"""A job captures a stream, and another job replays it on other numbers of workers: the same by key and epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import malstrom_py as mp
from malstrom_py import agg, capture, sinks, sources, windows
from malstrom_py.capture.merge import Merge
from malstrom_py.errors import CaptureError, SinkError
from malstrom_py.sinks.capture import Capture, _CaptureWriter
from malstrom_py.snapshot.store import MemoryStore

ROWS = [(f"k{number % 7}", number * 10 - number * 37 % 90, number) for number in range(400)]
EXPECTED = {key: [row for row in ROWS if row[0] == key] for key, *_ in ROWS}


def captured(kept: Any, *, columns: bool = False, rows: Any = ROWS, **options: Any) -> mp.Job:
    """A job that captures a keyed stream and counts it by window."""
    job = mp.Job("original")
    if columns:
        items = [dict(zip(("key", "at", "number"), row, strict=True)) for row in rows]
        read = job.source("in", sources.Memory(items, parts=3)).select("columns", "key", "at", "number")
        timed = read.assign_timestamps("time", "at")
    else:
        timed = job.source("in", sources.Memory(rows, parts=3)).assign_timestamps("time", lambda row: row[1])
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(400))
    keyed = on_time.key_by("key", "key" if columns else lambda row: row[0])
    keyed.capture_into("seen", kept, **options)
    return job


def counted(stream: Any) -> tuple[sinks.Memory, sinks.Memory]:
    """Count ``stream`` by window, and keep it."""
    counts, values = sinks.Memory(), sinks.Memory()
    stream.window("window", windows.tumbling(100)).aggregate(n=agg.count()).sink("counts", counts)
    stream.sink("values", values)
    return counts, values


def replayed(kept: Any, workers: int, seed: int, **options: Any) -> tuple[Any, Any, mp.RunResult]:
    job = mp.Job("again")
    counts, values = counted(job.replay_from("back", kept, **options))
    result = mp.Simulation(workers=workers, seed=seed, rescales=seed % 2).run(job)
    return counts.by_key, values.by_key, result


def expected_counts() -> dict[str, list[Any]]:
    job = mp.Job("plain")
    timed = job.source("in", sources.Memory(ROWS)).assign_timestamps("time", lambda row: row[1])
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(400))
    counts, _ = counted(on_time.key_by("key", lambda row: row[0]))
    mp.run(job, progress=False)
    return counts.by_key


def as_tuples(values: dict[str, list[Any]]) -> dict[str, list[tuple[Any, ...]]]:
    return {
        key: [tuple(row.values()) if isinstance(row, dict) else row for row in rows] for key, rows in values.items()
    }


def wrong_by_key(values: dict[str, list[Any]]) -> bool:
    """Whether a key lacks a record, or has one twice. Records of three parts have no order between parts."""
    found = {key: sorted(rows) for key, rows in as_tuples(values).items()}
    return found != {key: sorted(rows) for key, rows in EXPECTED.items()}


@pytest.mark.long("3-True", "5-False")
@pytest.mark.parametrize(("captured_by", "columns"), [*((number, False) for number in range(1, 6)), (3, True)], ids=str)
def test_k_streams_are_replayed_on_j_workers(captured_by: int, columns: bool) -> None:
    kept, want = capture.InMemory(), expected_counts()
    mp.run(captured(kept, columns=columns), captured_by, progress=False)
    assert capture.check(kept) == []
    assert len(capture.Recording(kept).streams) <= captured_by
    for workers in (2, 5) if columns else range(1, 6):
        counts, values, result = replayed(kept, workers, seed=captured_by)
        assert counts == want
        assert not wrong_by_key(values)
        assert result.late == 0


def by_part(values: dict[str, list[Any]]) -> dict[tuple[str, int], list[Any]]:
    """The records of each key and part, which have an order."""
    return {
        (key, part): [row for row in rows if row[2] % 3 == part] for key, rows in values.items() for part in range(3)
    }


def seen_through(seed: int) -> bool:
    """Return whether a recording made through rescales and losses is replayed wrongly."""
    kept = capture.InMemory()
    snapshots = mp.Snapshots(MemoryStore(), interval_s=0.01) if seed % 2 else None
    mp.Simulation(workers=2, seed=seed, rescales=2, crashes=seed % 2, snapshots=snapshots).run(captured(kept))
    if capture.check(kept) != []:
        return True
    counts, values, result = replayed(kept, 1 + seed % 3, seed)
    return counts != expected_counts() or by_part(values) != by_part(EXPECTED) or result.late > 0


def test_a_recording_through_rescales_and_losses_has_each_record_once_and_in_order() -> None:
    for seed in range(12):
        assert not seen_through(seed), seed


def moved_is_lost(right: Callable[..., Any]) -> Callable[..., Any]:
    """No stream says when keys moved."""
    return lambda writer, version: None


def nothing_is_deleted(right: Callable[..., Any]) -> Callable[..., Any]:
    """A start keeps what earlier ones captured after the last snapshot."""
    return lambda sink, context, committed: right(sink, context, [*committed, *_all_of(sink)])


def _all_of(sink: Any) -> list[str]:
    for name in sink.place.names():
        if name.endswith(".open"):
            sink.place.rename(name, name.replace(".open", ".capture"))
    return [name.rpartition("closed-")[2] for name in sink.place.names() if "closed-" in name]


def eras_are_mixed(right: Callable[..., Any]) -> Callable[..., Any]:
    """The stream with the lowest event time is read next, no matter what moved."""

    def lowest(merge: Any) -> Any:
        left = [cursor for cursor in merge._cursors if not cursor.is_over]
        return min(left, key=lambda cursor: cursor.held.epoch, default=None)

    return lowest


def the_first_stream_is_the_epoch(right: Callable[..., Any]) -> Callable[..., Any]:
    """Event time is that of the stream that is furthest."""
    return lambda merge: max((cursor.held.epoch for cursor in merge._cursors), default=merge.epoch)


@pytest.mark.long(but=("_CaptureWriter-moved-moved_is_lost",))
@pytest.mark.parametrize(
    ("place", "method", "of"),
    [
        (_CaptureWriter, "moved", moved_is_lost),
        (Capture, "recover", nothing_is_deleted),
        (Merge, "_lowest", eras_are_mixed),
        (Merge, "_reached", the_first_stream_is_the_epoch),
    ],
)
def test_a_wrong_recording_or_replay_is_seen(place: Any, method: str, of: Callable[..., Any]) -> None:
    def is_seen(seed: int) -> bool:
        try:
            return seen_through(seed)
        except Exception:
            return True

    with patch.object(place, method, of(getattr(place, method))):
        assert any(map(is_seen, range(40)))


def test_a_recording_of_a_job_that_failed_has_what_it_saw(tmp_path: Path) -> None:
    def fails(value: int) -> int:
        if value == 70:
            raise ValueError("bad")
        return value

    job = mp.Job("fails")
    numbers = job.source("in", sources.Memory(range(100)))
    numbers.capture_into("seen", tmp_path)
    numbers.map("step", fails).sink("out", sinks.Memory())
    with pytest.raises(mp.OperatorError):
        mp.run(job, batch=mp.Batching(rows_max=10), progress=False)
    faults = capture.check(tmp_path)
    assert [fault.kind for fault in faults] == ["unfinished"]
    found = mp.collect(mp.Job("again").replay_from("back", tmp_path))
    assert found[:70] == list(range(70))
    job.plan()
    with pytest.raises(mp.OperatorError):  # it is deleted and captured again, since none of its segments was committed
        mp.run(job, batch=mp.Batching(rows_max=10), progress=False)
    assert mp.collect(mp.Job("again").replay_from("back", tmp_path)) == found


def test_two_runs_are_not_mixed(tmp_path: Path) -> None:
    mp.run(captured(tmp_path), progress=False)
    with pytest.raises(SinkError, match="replace=True"):
        mp.run(captured(tmp_path), progress=False)
    mp.run(captured(tmp_path, replace=True), progress=False)
    assert not wrong_by_key(replayed(tmp_path, 1, 0)[1])


def test_streams_of_some_workers_are_replayed(tmp_path: Path) -> None:
    mp.run(captured(tmp_path), 3, progress=False)
    parts = [replayed(tmp_path, 2, 0, streams=[worker])[1] for worker in range(3)]
    whole: dict[str, list[Any]] = {key: rows for part in parts for key, rows in part.items()}
    assert sum(map(len, parts)) == len(whole)
    assert not wrong_by_key(whole)
    with pytest.raises(CaptureError, match="no stream of the workers \\[7\\]"):
        replayed(tmp_path, 1, 0, streams=[7])


def test_a_replay_resumes_where_it_was() -> None:
    kept = capture.InMemory()
    mp.run(captured(kept), 3, progress=False)
    job = mp.Job("again")
    counts, values = counted(job.replay_from("back", kept))
    snapshots = mp.Snapshots(MemoryStore(), interval_s=0.01)
    result = mp.Simulation(workers=2, seed=3, crashes=2, snapshots=snapshots).run(job)
    assert result.incarnations > 1
    assert counts.by_key == expected_counts()
    assert not wrong_by_key(values.by_key)


def test_a_stream_without_keys_and_times_is_replayed_as_it_was() -> None:
    kept = capture.InMemory()
    job = mp.Job("plain")
    job.source("in", sources.Memory(["a", "b", "c"])).capture_into("seen", kept)
    mp.run(job, progress=False)
    assert mp.collect(mp.Job("again").replay_from("back", kept)) == ["a", "b", "c"]
    assert capture.check(kept) == []


def test_two_recordings_in_one_place_are_named() -> None:
    kept = capture.InMemory()
    job = mp.Job("two")
    stream = job.source("in", sources.Memory([1, 2]))
    stream.capture_into("first", kept)
    stream.map("more", lambda value: value + 5).capture_into("second", kept)
    mp.run(job, progress=False)
    with pytest.raises(CaptureError, match="'first', 'second'"):
        mp.Job("again").replay_from("back", kept)
    assert mp.collect(mp.Job("again").replay_from("back", kept, "second")) == [6, 7]


def test_a_capture_in_memory_is_for_one_process() -> None:
    import cloudpickle

    with pytest.raises(CaptureError, match="folder that all workers share"):
        cloudpickle.dumps(capture.InMemory())


def test_what_is_no_place_is_refused() -> None:
    with pytest.raises(mp.PlanError, match="int has no names"):
        mp.Job("plain").source("in", sources.Memory([1])).capture_into("seen", 7)


def test_a_committed_segment_that_was_cut_is_not_replayed_as_whole(tmp_path: Path) -> None:
    mp.run(captured(tmp_path), progress=False)
    (segment,) = tmp_path.glob("*.capture")
    segment.write_bytes(segment.read_bytes()[:-5])
    with pytest.raises(CaptureError, match=f"segment '{segment.name}': it ends at byte .* within a frame"):
        replayed(tmp_path, 1, 0)


def test_a_recording_without_one_of_its_segments_is_not_replayed(tmp_path: Path) -> None:
    mp.Simulation(workers=1, seed=1, snapshots=mp.Snapshots(MemoryStore(), interval_s=0.01)).run(captured(tmp_path))
    segments = sorted(tmp_path.glob("*.capture"))
    assert len(segments) > 2
    segments[1].unlink()
    with pytest.raises(CaptureError, match="lacks a segment"):
        replayed(tmp_path, 1, 0)


def test_two_jobs_do_not_write_into_one_recording(tmp_path: Path) -> None:
    mp.run(captured(tmp_path), progress=False)
    other = mp.Job("other")
    other.source("in", sources.Memory([1])).capture_into("seen", tmp_path, replace=True)
    with pytest.raises(SinkError, match="of job 'original'"):
        mp.run(other, progress=False)
