"""Streams as a job captures them, made by hand; and what is in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from malstrom_py.capture.frames import Content, Header, SegmentWriter, advance, contents
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.errors import CaptureError, CodecError

HEADER = Header("job", "step", "w000000-00000000", worker=0, keyed=True, unit="ms", epochs=True)

VALUES = st.one_of(
    st.integers(),
    st.text(max_size=3),
    st.floats(allow_nan=False),
    st.none(),
    st.tuples(st.booleans(), st.binary(max_size=2)),
    st.dictionaries(st.text(max_size=2), st.integers(-3, 3), max_size=2),
)


def written(write: Callable[[SegmentWriter], object], header: Header = HEADER) -> bytes:
    """Return the bytes of a segment that ``write`` fills."""
    file = BytesIO()
    segment = SegmentWriter(file.write, header, Codec())
    write(segment)
    return file.getvalue()


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    """A segment of some batches and epochs, which it may end."""
    kind = draw(st.sampled_from(["ints", "texts", "mixed", "columns"]))
    steps = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=5))
    last = draw(st.booleans())

    def write(segment: SegmentWriter) -> None:
        epoch = MIN_EPOCH
        base = 0
        for rows, ahead in steps:
            if rows:
                segment.batch(_batch(draw, kind, rows, base))
            segment.progress(*advance(epoch, base))
            epoch, base = base, base + ahead
        if last:
            segment.progress(*advance(epoch, MAX_EPOCH))
        segment.end(last=last)

    return written(write)


def _batch(draw: st.DrawFn, kind: str, rows: int, base: int) -> Batch:
    keys: list[Any] = draw(st.lists(st.sampled_from(["a", "", "\0", "ü", None]), min_size=rows, max_size=rows))
    times = [base + 1 + number for number in range(rows)]
    if kind == "columns":
        columns = pa.RecordBatch.from_pydict({"n": list(range(rows)), "t": ["x"] * rows})
        return ColumnBatch(columns, key_column=pa.array(keys, pa.string()), time_column=pa.array(times))
    of = {"ints": st.integers(-5, 5), "texts": st.text(max_size=2), "mixed": VALUES}[kind]
    return Batch(draw(st.lists(of, min_size=rows, max_size=rows)), keys=keys, timestamps=times)


def read_until_damage(data: bytes) -> tuple[list[Any], Exception | None]:
    """Return what is in a segment, in a form that can be compared, and the error that ends it."""
    found: list[Any] = []
    try:
        found.extend(shown(content) for _, content in contents(BytesIO(data), Codec()))
    except (CaptureError, CodecError) as error:
        return found, error
    return found, None


def shown(content: Content) -> Any:
    """A content in a form that can be compared, with the types of values."""
    if isinstance(content, Batch):
        return (content.keys, content.timestamps, repr(content.values))
    return content


def prefix_of(some: Sequence[Any], whole: Sequence[Any]) -> bool:
    """Return whether ``whole`` begins with ``some``."""
    return list(some) == list(whole[: len(some)])
