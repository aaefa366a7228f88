"""A replay from a time on, and at the pace of the original; segments of a bounded size; interleaved streams."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from io import BytesIO
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import capture, sinks, sources
from malstrom_py.capture import merge
from malstrom_py.capture.frames import BATCH, content_of, contents, frames, latest
from malstrom_py.capture.progress import Held
from malstrom_py.clock import VirtualClock
from malstrom_py.codec import Codec
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.sinks import capture as sink
from malstrom_py.sources.replay import Pacing
from tests.unit.capture.test_replay import ROWS, captured, counted, expected_counts


def rows_of(kept: Any, **options: Any) -> list[Any]:
    values = sinks.Memory()
    job = mp.Job("again")
    job.replay_from("back", kept, **options).sink("values", values)
    mp.run(job, progress=False)
    return values.items


def recorded(kept: capture.InMemory) -> list[bytearray]:
    """The bytes of the segments that have some."""
    return [data for name, data in kept.segments.items() if name.endswith(".capture") and data]


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("since", [-1_000, 0, 1_001, 2_500, 10_000])
def test_a_replay_since_a_time_has_all_records_from_then_on(since: int, columns: bool) -> None:
    kept = capture.InMemory()
    mp.run(captured(kept, columns=columns), 2, progress=False)
    found = [tuple(row.values()) if columns else row for row in rows_of(kept, since=since)]
    assert sorted(found) == sorted(row for row in ROWS if row[1] >= since)
    if since == 2_500:
        job = mp.Job("windows")
        counts, _ = counted(job.replay_from("back", kept, since=since))
        mp.run(job, progress=False)
        wanted = {key: [row for row in rows if row.start >= since] for key, rows in expected_counts().items()}
        assert counts.by_key == wanted


def test_batches_before_the_time_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = capture.InMemory()
    mp.run(captured(kept), progress=False, batch=mp.Batching(rows_max=10))
    read: list[int] = []

    def noted(frame: Any, codec: Codec) -> Any:
        read.append(frame.kind)
        return content_of(frame, codec)

    monkeypatch.setattr(merge, "content_of", noted)
    rows_of(kept, since=3_900)
    assert 0 < read.count(BATCH) < 20


def test_the_latest_time_of_a_batch_is_read_alone() -> None:
    for columns in (False, True):
        kept = capture.InMemory()
        mp.run(captured(kept, columns=columns), progress=False)
        for data in recorded(kept):
            for frame, content in contents(BytesIO(data), Codec()) if data else ():
                if isinstance(content, capture.Batch):
                    assert latest(frame.payload) == max(content.timestamps or [])


def test_a_time_is_checked() -> None:
    kept = capture.InMemory()
    mp.run(captured(kept), progress=False)
    assert rows_of(kept, since=datetime.fromtimestamp(2.5, UTC)) == rows_of(kept, since=2_500)
    with pytest.raises(mp.PlanError, match="since must be an int in ms or an aware datetime"):
        rows_of(kept, since="noon")
    job, plain = mp.Job("plain"), capture.InMemory()
    job.source("in", sources.Memory([1])).capture_into("seen", plain)
    mp.run(job, progress=False)
    with pytest.raises(mp.PlanError, match="has no timestamps"):
        rows_of(plain, since=1)
    for pace in (0, -1.0, "fast", float("inf"), True):
        with pytest.raises(mp.PlanError, match="pace must be a number above 0"):
            sources.Replay(kept, pace=pace)  # type: ignore[arg-type]


class Ticking:
    """A clock that every look advances by 40 ms."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def now_s(self) -> float:
        self.now += 0.04
        return self.now


def test_the_pace_of_the_original_is_kept_also_after_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = capture.InMemory()
    monkeypatch.setattr(sink, "SystemClock", Ticking)
    job = mp.Job("original")
    job.source("in", sources.Memory(range(10))).capture_into("seen", kept)
    mp.run(job, progress=False, batch=mp.Batching(rows_max=1))
    clock = VirtualClock()
    monkeypatch.setattr("malstrom_py.sources.replay.SystemClock", lambda: clock)

    def read(part: Any, until_s: float) -> list[tuple[float, Any]]:
        seen = []
        while not part.is_finished() and clock.monotonic_s() < until_s:
            if values := part.poll(100):
                seen += [(round(clock.monotonic_s(), 2), value) for value in values]
            else:
                clock.sleep_s(0.01)
        return seen

    source = sources.Replay(kept, pace=2.0)
    (part,) = source.list_parts()
    first = source.build_part(part, None)
    began = clock.monotonic_s()
    seen = read(first, began + 0.1)
    assert [round(at - began, 2) for at, _ in seen] == [0.0, 0.02, 0.04, 0.06, 0.08, 0.1][: len(seen)]
    second = source.build_part(part, first.snapshot())
    rest = read(second, clock.monotonic_s() + 10)
    assert [value for _, value in (*seen, *rest)] == list(range(10))  # what was held back is not lost
    gaps = [round(after - before, 2) for (before, _), (after, _) in pairwise(rest)]
    assert set(gaps) <= {0.01, 0.02, 0.03}  # the clock is looked at every 10 ms


def test_what_is_skipped_takes_no_time_at_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, clock = capture.InMemory(), VirtualClock()
    monkeypatch.setattr(sink, "SystemClock", Ticking)
    mp.run(captured(kept), progress=False, batch=mp.Batching(rows_max=10))
    monkeypatch.setattr("malstrom_py.sources.replay.SystemClock", lambda: clock)
    source = sources.Replay(kept, pace=1.0, since=3_000)
    part = source.build_part(source.list_parts()[0], None)
    began = clock.monotonic_s()
    assert part.poll(100)
    assert clock.monotonic_s() == began


def test_pacing_counts_from_where_it_resumes() -> None:
    clock = VirtualClock()
    pacing = Pacing(0, 1.0, clock)
    pacing.begin_at(5_000_000_000)
    assert pacing.is_due(5_000_000_000)
    assert not pacing.is_due(5_500_000_000)


def test_the_number_of_workers_is_in_the_header() -> None:
    kept = capture.InMemory()
    mp.run(captured(kept), 3, progress=False)
    headers = [content for _, content in capture.read(kept) if isinstance(content, capture.Header)]
    assert {header.workers for header in headers} == {3}


def test_large_segments_end_and_are_committed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "SEGMENT_BYTES", 500)
    for seed in range(6):
        kept = capture.InMemory()
        job = captured(kept)
        mp.Simulation(workers=2, seed=seed, batch=mp.Batching(rows_max=7)).run(job)
        assert capture.check(kept) == [], seed
        assert len(kept.segments) > 8
        assert sorted(rows_of(kept)) == sorted(ROWS)
        assert not [name for name in kept.names() if name.endswith((".open", ".closed"))]


@st.composite
def valid_streams(draw: st.DrawFn) -> list[list[list[tuple[int, int]]]]:
    """Streams that keep the protocol: each a list of updates, from one capability at the least time to none."""
    streams = []
    for _ in range(draw(st.integers(1, 4))):
        held, updates, at = [MIN_EPOCH], [], MIN_EPOCH
        for step in draw(st.lists(st.integers(1, 9), max_size=6)):
            at = step if at == MIN_EPOCH else at + step
            updates.append([(at, 1), (held.pop(), -1)])
            held.append(at)
        streams.append([*updates, [(held.pop(), -1)]])
    return streams


@given(valid_streams(), st.randoms(use_true_random=False))
def test_every_interleaving_of_valid_streams_is_valid(streams: Sequence[Any], chance: Any) -> None:
    left = [list(stream) for stream in streams]
    together, epoch = Held.of_image([[MIN_EPOCH, len(streams)]]), MIN_EPOCH
    while any(left):
        stream = chance.choice([one for one in left if one])
        together.update(stream.pop(0))
        assert together.epoch >= epoch
        epoch = together.epoch
    assert together.is_complete
    assert epoch == MAX_EPOCH


def test_frames_are_read_from_any_frame_on() -> None:
    kept = capture.InMemory()
    mp.run(captured(kept), progress=False)
    data = next(map(bytes, recorded(kept)))
    found = list(frames(BytesIO(data)))
    assert [one.at for one in frames(BytesIO(data), found[2].at)] == [one.at for one in found[2:]]
