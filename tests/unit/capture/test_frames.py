"""The bytes of captured streams: a cut and a changed bit are found as such, and what is before can be used."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.capture.frames import (
    MAGIC,
    Corrupt,
    Header,
    SegmentWriter,
    Truncated,
    contents,
    frame,
    frames,
)
from malstrom_py.codec import Codec, TypeTable
from malstrom_py.codec.in_flight import dump
from malstrom_py.data.batch import Batch
from malstrom_py.errors import CaptureError, CodecError
from tests.unit.capture.streams import HEADER, VALUES, prefix_of, read_until_damage, segments, written


@settings(max_examples=25, deadline=None)
@given(values=st.lists(VALUES, min_size=1, max_size=6), keyed=st.booleans(), timed=st.booleans())
def test_a_batch_is_read_as_it_was_written(values: list[Any], keyed: bool, timed: bool) -> None:
    keys: list[Any] | None = [f"k{number}" for number in range(len(values))] if keyed else None
    times = [number * 2 - 1 for number in range(len(values))] if timed else None
    data = written(lambda segment: segment.batch(Batch(values, keys=keys, timestamps=times)))
    (header, batch), error = read_until_damage(data)
    assert isinstance(header, Header)
    assert batch == (keys, times, repr(values))
    assert isinstance(error, Truncated)  # it has no end


@settings(max_examples=25, deadline=None)
@given(data=segments(), cut=st.data())
def test_any_truncation_is_found_as_truncated(data: bytes, cut: st.DataObject) -> None:
    whole, error = read_until_damage(data)
    assert error is None
    at = cut.draw(st.integers(0, len(data) - 1))
    found, error = read_until_damage(data[:at])
    assert type(error) is Truncated
    assert prefix_of(found, whole)


@settings(max_examples=50, deadline=None)
@given(data=segments(), choice=st.data())
def test_any_changed_bit_is_found_as_corrupt(data: bytes, choice: st.DataObject) -> None:
    whole, _ = read_until_damage(data)
    bit = choice.draw(st.integers(0, 8 * len(data) - 1))
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    found, error = read_until_damage(bytes(damaged))
    assert type(error) is Corrupt
    assert prefix_of(found, whole)


@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(st.tuples(st.text(max_size=2), st.integers(-3, 2**63), st.floats(allow_nan=False)), min_size=1)
    | st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1)
    | st.lists(st.tuples(), min_size=1)
)
def test_tuples_are_read_as_they_were_written(values: list[Any]) -> None:
    found, _ = read_until_damage(written(lambda segment: segment.batch(Batch(values))))
    assert found[1] == (None, None, repr(values))


def test_bytes_after_the_end_are_found() -> None:
    data = written(lambda segment: segment.end(last=True))
    _, error = read_until_damage(data + b"\0")
    assert type(error) is Corrupt


def test_another_file_is_not_taken_for_a_stream() -> None:
    _, error = read_until_damage(b"PAR1 and more")
    assert type(error) is Corrupt
    assert "another kind of file" in str(error)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff" * 9, b"\x03\x01\x00\x00\x00p" + (4).to_bytes(8, "little") + b"junk"],
    ids=["empty", "noise", "cut column"],
)
def test_a_payload_of_another_program_is_corrupt(payload: bytes) -> None:
    data = written(lambda segment: segment.progress((1, 1))) + frame(ord("B"), payload)
    found, error = read_until_damage(data)
    assert len(found) == 2
    assert isinstance(error, CaptureError | CodecError)


def test_pickle_is_never_read() -> None:
    """The tag of what would be pickled in flight is that of the stored form here."""
    column = dump(["would run"])
    head = (0).to_bytes(1, "little") + (1).to_bytes(4, "little")
    payload = head + b"p" + len(column).to_bytes(8, "little") + column
    data = written(lambda segment: segment.progress((1, 1))) + frame(ord("B"), payload)
    with pytest.raises((CaptureError, CodecError)):
        list(contents(BytesIO(data), Codec()))


def test_frames_of_unknown_kinds_are_left_out() -> None:
    data = written(lambda segment: segment.progress((1, 1)))
    later = data + frame(ord("?"), b"of a later version") + frame(ord("E"), b"\x93\x00\x03\xc2")
    found, error = read_until_damage(later)
    assert error is None
    assert [type(content).__name__ for content in found] == ["Header", "Progress", "End"]
    assert len(list(frames(BytesIO(later)))) == 4


def test_a_stream_of_another_format_is_refused() -> None:
    data = written(lambda segment: segment.progress((1, 1)), Header(**{**_fields(HEADER), "format": 2}))
    _, error = read_until_damage(data)
    assert "format 2" in str(error)


def _fields(header: Header) -> dict[str, Any]:
    return {name: getattr(header, name) for name in Header.__dataclass_fields__}


@dataclass
class Point:
    x: int


def test_classes_are_stored_if_they_are_registered() -> None:
    types = TypeTable()
    types.register(Point)
    file = BytesIO()
    SegmentWriter(file.write, HEADER, Codec(types)).batch(Batch([Point(3)], keys=["a"], timestamps=[1]))
    assert file.getvalue().startswith(MAGIC)
    found = contents(BytesIO(file.getvalue()), Codec(types))
    assert isinstance(next(found)[1], Header)
    batch = next(found)[1]
    assert isinstance(batch, Batch)
    assert batch.values == [Point(3)]
    with pytest.raises(CodecError, match="register_type"):
        written(lambda segment: segment.batch(Batch([Point(3)], keys=["a"], timestamps=[1])))
