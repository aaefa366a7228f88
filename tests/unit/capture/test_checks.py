"""The checker: it accepts what jobs write, and refuses streams that break the protocol of progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.capture import InMemory, ProtocolError, check
from malstrom_py.capture.frames import MOVED, Header, SegmentWriter, advance
from malstrom_py.capture.merge import Merge
from malstrom_py.capture.progress import Held
from malstrom_py.capture.recording import COMMITTED, Commit, Recording, Segment, write_commit
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch
from malstrom_py.errors import CaptureError
from tests.unit.capture.streams import HEADER, written


def recording(*writes: Callable[[SegmentWriter], object], state: str = "capture") -> InMemory:
    """Return a recording of one stream with a segment per function."""
    kept = InMemory()
    for number, write in enumerate(writes):
        header = Header(**{**{name: getattr(HEADER, name) for name in Header.__dataclass_fields__}, "segment": number})
        name = Segment("step", 1, HEADER.stream, number, state).name
        kept.segments[name] = bytearray(written(write, header))
    return kept


def of_stream(stream: str) -> Header:
    return Header(**{**{name: getattr(HEADER, name) for name in Header.__dataclass_fields__}, "stream": stream})


def rows(*times: int) -> Batch:
    return Batch(list(times), keys=["k"] * len(times), timestamps=list(times))


def right(segment: SegmentWriter) -> None:
    segment.batch(rows(3, 9))
    segment.progress(*advance(MIN_EPOCH, 5))
    segment.batch(rows(6))
    segment.progress(*advance(5, MAX_EPOCH))
    segment.end(last=True)


def test_what_keeps_the_protocol_is_accepted() -> None:
    assert check(recording(right)) == []


class Moved(NamedTuple):
    """A move, and the epoch that the stream has passed after it."""

    version: int
    epoch: int


def _then(*parts: Any) -> Callable[[SegmentWriter], None]:
    """Write batches, changes of progress and moves, then the end."""

    def write(segment: SegmentWriter) -> None:
        for part in parts:
            if isinstance(part, Batch):
                segment.batch(part)
            elif isinstance(part, Moved):
                segment.moved(*part)
            else:
                segment.progress(*part)
        segment.end(last=True)

    return write


OTHER = "w000001-0123abcd"
END = ((6, -1),)
BEGIN = ((6, 1), (MIN_EPOCH, -1))


def test_a_stream_goes_back_in_a_move_to_a_time_that_another_stream_gave_up() -> None:
    kept = recording(_then(BEGIN, Moved(1, 8), rows(9), Moved(2, MAX_EPOCH)))
    back = _then(((MIN_EPOCH, -1),), Moved(1, 5), rows(6), Moved(2, MAX_EPOCH))
    kept.segments[Segment("step", 1, OTHER, 0, "capture").name] = bytearray(written(back, of_stream(OTHER)))
    assert check(kept) == []


def test_a_stream_that_ends_too_early_is_unfinished_though_another_worker_has_left() -> None:
    kept = recording(_then(BEGIN, Moved(1, 8), rows(9)))
    left = _then(((MIN_EPOCH, -1),), Moved(1, MAX_EPOCH))
    kept.segments[Segment("step", 1, OTHER, 0, "capture").name] = bytearray(written(left, of_stream(OTHER)))
    assert [fault.kind for fault in check(kept)] == ["unfinished"]


def test_moves_of_an_earlier_version_keep_the_event_time_and_its_joiners_hold_nothing_back() -> None:
    def moved(segment: SegmentWriter) -> None:
        segment._begin(None)
        segment._frame(MOVED, msgspec.msgpack.encode(1))

    def member(segment: SegmentWriter) -> None:
        segment.progress(*advance(MIN_EPOCH, 5))
        segment.batch(rows(6, 7))
        moved(segment)
        segment.progress(*advance(5, MAX_EPOCH))
        segment.end(last=True)

    def joiner(segment: SegmentWriter) -> None:
        moved(segment)
        segment.batch(rows(8))
        segment.progress(*advance(MIN_EPOCH, MAX_EPOCH))
        segment.end(last=True)

    kept = recording(member)
    kept.segments[Segment("step", 1, OTHER, 0, "capture").name] = bytearray(written(joiner, of_stream(OTHER)))
    assert check(kept) == []
    found = Recording(kept)
    merge = Merge(found, list(found.streams), Codec())
    taken = [merge.take() for _ in range(4)]
    assert [one.time if isinstance(one, Epoch) else one and one.values for one in taken] == [5, [6, 7], [8], MAX_EPOCH]


def test_what_is_committed_and_gone_is_a_fault_though_the_streams_that_are_there_are_whole() -> None:
    kept = recording(right, state=COMMITTED)
    name, other = (Segment("step", 1, stream, 0, COMMITTED).name for stream in (HEADER.stream, OTHER))
    commit = Commit([f"1/{HEADER.stream}", f"1/{OTHER}"], [name, other], final=True)
    write_commit(kept, "step", "s", commit)
    assert [(fault.segment, fault.kind) for fault in check(kept)] == [(other, "corrupt")]
    kept.segments[other] = bytearray(written(right, of_stream(OTHER)))
    assert check(kept) == []
    del kept.segments["step.s.commit"][-3:]
    assert [(fault.segment, fault.kind) for fault in check(kept)] == [("step.s.commit", "corrupt")]


WRONG = {
    "a time is added without a capability": (_then(BEGIN, ((3, 1),), ((3, -1), (6, -1))), "protocol"),
    "a time is given up twice": (_then(BEGIN, ((6, -2),)), "protocol"),
    "a record without a capability": (_then(BEGIN, rows(5), END), "protocol"),
    "a record after the end": (_then(BEGIN, END, rows(9)), "protocol"),
    "a move to a time that no stream holds": (_then(BEGIN, Moved(1, 4), rows(5), Moved(2, MAX_EPOCH)), "protocol"),
    "a record after a move that gave up its time": (_then(BEGIN, Moved(1, 8), rows(7)), "protocol"),
    "progress never ends": (_then(BEGIN, rows(7)), "unfinished"),
    "there is none": (_then(rows(7)), "unfinished"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_breaks_the_protocol_is_refused(name: str) -> None:
    write, kind = WRONG[name]
    faults = check(recording(write))
    assert [fault.kind for fault in faults] == [kind]
    assert faults[0].segment.startswith("step.g000001.")


def test_an_end_that_counts_other_rows_is_refused() -> None:
    def write(segment: SegmentWriter) -> None:
        segment.batch(rows(3))
        segment.rows = 7
        segment.progress((MIN_EPOCH, -1))
        segment.end(last=True)

    assert [fault.kind for fault in check(recording(write))] == ["protocol"]


def test_a_missing_segment_is_found() -> None:
    kept = recording(_then(BEGIN), _then(rows(7)), _then(END))
    del kept.segments[sorted(kept.segments)[1]]
    (fault,) = check(kept)
    assert (fault.kind, "segment 1" in fault.text) == ("protocol", True)


def test_an_open_segment_that_was_cut_is_truncated() -> None:
    kept = recording(lambda segment: segment.batch(rows(3)), state="open")
    (fault,) = check(kept)
    assert (fault.kind, "worker died" in fault.text) == ("truncated", True)


def test_where_there_is_no_recording_the_error_says_so() -> None:
    with pytest.raises(CaptureError, match="and there is none"):
        check(InMemory())


@given(changes=st.lists(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([-1, 1])), max_size=3), max_size=6))
def test_what_is_held_never_falls(changes: list[list[tuple[int, int]]]) -> None:
    """After each accepted update no earlier time can be sent at again."""
    held = Held()
    held.update([(0, 1), (MIN_EPOCH, -1)])
    for some in changes:
        before = held.epoch
        try:
            held.update(some)
        except ProtocolError:
            assert held.epoch == before
        assert held.epoch >= before
        assert Held.of_image(held.image()).epoch == held.epoch
