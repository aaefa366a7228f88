"""Numbers of entries show which were removed unread, and which stream is another one: checked against a model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.connectors.redis.positions import (
    ZERO,
    Position,
    StreamState,
    before,
    count_before,
    is_another,
    parse_id,
    show_id,
)


class Model:
    """A stream as Redis keeps it."""

    def __init__(self) -> None:
        self.ids: list[tuple[int, int]] = []
        self.added = 0
        self.removed = ZERO

    def add(self) -> None:
        self.added += 1
        self.ids.append((self.added, 0))

    def trim(self, kept: int) -> None:
        self.ids = self.ids[len(self.ids) - min(kept, len(self.ids)) :]

    def delete(self, index: int) -> None:
        if index < len(self.ids):
            self.removed = max(self.removed, self.ids.pop(index))

    def state(self) -> StreamState:
        last = (self.added, 0) if self.added else ZERO
        return StreamState(self.ids[0] if self.ids else ZERO, last, self.added, len(self.ids), self.removed)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 6)),
        st.tuples(st.just("trim"), st.integers(0, 6)),
        st.tuples(st.just("delete"), st.integers(0, 4)),
        st.tuples(st.just("read"), st.integers(1, 4)),
    ),
    max_size=25,
)


@given(steps=STEPS)
def test_what_is_missing_is_exactly_what_was_removed_unread(steps: list[tuple[str, int]]) -> None:
    """Once the end is reached, all entries are accounted for; before, none is reported that was not removed."""
    stream, position, read, missing = Model(), Position(added=0), 0, 0
    for what, size in [*steps, ("read", 1_000)]:
        if what == "read":
            found = [id for id in stream.ids if id > position.id]
            taken = found[:size]
            number = count_before(position, stream.state(), len(taken), is_end=len(taken) < size)
            assert number is not None
            assert position.added is not None
            assert number >= position.added
            assert not is_another(position, stream.state())
            missing += number - position.added
            read += len(taken)
            position = Position(taken[-1] if taken else position.id, number + len(taken))
            assert read + missing <= stream.added
        elif what == "add":
            for _ in range(size):
                stream.add()
        elif what == "trim":
            stream.trim(size)
        else:
            stream.delete(size)
    assert read + missing == stream.added


@given(read=st.integers(1, 20), added=st.integers(0, 60), kept=st.integers(0, 60), size=st.integers(1, 100))
def test_a_stream_that_was_made_again_is_another_one(read: int, added: int, kept: int, size: int) -> None:
    """Its ids are larger than those before: they are times."""
    stream = Model()
    for _ in range(added):
        stream.add()
    stream.trim(kept)
    state = stream.state()
    later = [(id[0] + 100, 0) for id in stream.ids]
    state = StreamState(later[0] if later else ZERO, (100 + added, 0), added, len(later))
    position = Position((read, 0), read)
    taken = later[:size]
    number = count_before(position, state, len(taken), is_end=len(taken) < size)
    assert number is not None
    trimmed_as_many = added - len(later) >= read
    assert is_another(position, state) or number < read or trimmed_as_many


@given(ms=st.integers(0, 1 << 40), sequence=st.integers(0, 1 << 40))
def test_ids_keep_their_form_and_order(ms: int, sequence: int) -> None:
    id = (ms, sequence)
    assert parse_id(show_id(id)) == parse_id(show_id(id).encode()) == id
    assert before(id) < id or id == ZERO
    assert parse_id("1-2-3") is parse_id("") is parse_id("-1") is parse_id(f"{1 << 64}") is None
