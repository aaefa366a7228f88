"""State as Arrow columns in keyed artefacts: the same content as rows, in every mix of forms in a chain."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.codec import Codec
from malstrom_py.errors import SnapshotError
from malstrom_py.state.artefact import (
    Opened,
    StoredArtefact,
    artefact,
    assembled,
    by_slot,
    column_artefact,
    columns_in,
    contents,
    entries_in,
    is_delta,
    merged,
    opened_chain,
)
from malstrom_py.state.column_image import ColumnImage, Form, Shape, merge_images, states_of, storable
from malstrom_py.state.entries import encoded_entries
from malstrom_py.testing.exact import same

SLOTS = 5
CODEC = Codec()

State = dict[Any, Any]


def slot_of(key: Any) -> int:
    return sum(CODEC.encode_at_rest(key, step="")) % SLOTS


def slots_of(keys: Sequence[Any]) -> Any:
    return np.array(list(map(slot_of, keys)), np.int64)


def of_rows(state: State, *, delta: bool, gone: Sequence[Any] = ()) -> bytes:
    keys = [*state, *gone]
    entries = encoded_entries(CODEC, list(state), list(state.values()), {}, step="s") + [b""] * len(gone)
    forms = CODEC.encode_each_at_rest(keys, step="s", keys=keys)
    return artefact(by_slot(slots_of(keys).tolist(), forms, entries), delta=delta)


def image_of(state: State, kind: pa.DataType, *, gone: Sequence[Any] = (), by_pane: bool = False) -> ColumnImage:
    """Return ``state`` as columns: values are (number, text or None), by pane or not."""
    rows = [
        (key, pane, value) for key, held in state.items() for pane, value in (held.items() if by_pane else [(0, held)])
    ]
    keys = [key for key, _, _ in rows]
    found = storable(
        ColumnImage(
            pa.array(keys, kind),
            slots_of(keys),
            [
                pa.array([value[0] for _, _, value in rows], pa.float64()),
                pa.array([value[1] for _, _, value in rows], pa.string()),
            ],
            (0, 1),
            pa.array([pane for _, pane, _ in rows], pa.int64()) if by_pane else None,
            pa.array(list(gone), kind),
            slots_of(gone),
        )
    )
    assert found is not None
    return found


def read(chain: Sequence[bytes], slots: Any = None) -> State:
    return {key: value for _, key, value, _ in entries_in(chain, CODEC, slots=slots)}


def alike(found: State, expected: State) -> bool:
    """Whether two states are the same, in any order of keys and panes."""

    def ordered(state: State) -> State:
        return {
            key: dict(sorted(value.items())) if isinstance(value, dict) else value
            for key, value in sorted(state.items(), key=repr)
        }

    return same(ordered(found), ordered(expected))


KINDS = {
    "int": (pa.int64(), st.integers(-3, 3)),
    "text": (pa.string(), st.text("aé\0", max_size=2)),
    "bytes": (pa.binary(), st.binary(max_size=1)),
}
VALUES = st.tuples(st.floats(width=32), st.none() | st.text("xÿ", max_size=3))


@st.composite
def chains(draw: st.DrawFn) -> tuple[pa.DataType, bool, list[tuple[State, list[Any], bool]]]:
    """Draw the changes of a chain: what is set, which keys are dropped, whether it is written as columns."""
    kind, keys = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    keys = st.none() | keys
    by_pane = draw(st.booleans())
    values = st.dictionaries(st.integers(-2, 2), VALUES, min_size=1, max_size=3) if by_pane else VALUES
    links = draw(
        st.lists(st.tuples(st.dictionaries(keys, values, max_size=6), st.sets(keys, max_size=3), st.booleans()))
    )
    links.insert(0, (draw(st.dictionaries(keys, values, max_size=8)), set(), draw(st.booleans())))
    return kind, by_pane, [(to, sorted(gone - set(to), key=repr), columns) for to, gone, columns in links]


@given(chains(), st.sets(st.integers(0, SLOTS - 1)))
def test_s2_chains_of_rows_and_columns_say_the_same(
    drawn: tuple[pa.DataType, bool, list[tuple[State, list[Any], bool]]], slots: set[int]
) -> None:
    kind, by_pane, links = drawn
    expected: State = {}
    rows: list[bytes] = []
    mixed: list[bytes] = []
    for number, (to, gone, as_columns) in enumerate(links):
        expected = {key: value for key, value in {**expected, **to}.items() if key not in gone}
        rows.append(of_rows(to, delta=number > 0, gone=gone))
        image = image_of(to, kind, gone=gone, by_pane=by_pane)
        mixed.append(column_artefact(image, delta=number > 0) if as_columns else rows[-1])
    some = {key: value for key, value in expected.items() if slot_of(key) in slots}
    for chain in (rows, mixed, [merged(mixed)], [merged(mixed[:2]), *mixed[2:]]):
        assert alike(read(chain), expected)
        assert alike(read(chain, slots), some)
    one, other = (sorted((of.slot, repr(of.key)) for of in entries_in(chain, CODEC)) for chain in (mixed, rows))
    assert one == other
    if all(as_columns for _, _, as_columns in links):
        columns = columns_in(opened_chain(mixed), slots)
        keys, states = ([], []) if columns is None else states_of(columns)
        assert alike(dict(zip(keys, states, strict=True)), some)
        assert columns is None or slots_of(columns.keys.to_pylist()).tolist() == columns.slots.tolist()
        assert contents_of(merged(mixed)) == contents_of(merged(rows))


def contents_of(data: bytes) -> list[tuple[int, list[tuple[bytes, bytes]]]]:
    return [(slot, sorted(zip(*rows, strict=True))) for slot, rows in contents(data) if rows[0]]


SMALL = column_artefact(
    image_of({"a": (1.5, None), "bé": (-0.0, "x"), "c": (2.0, "")}, pa.string(), gone=["d", None]), delta=True
)
BASE = column_artefact(image_of({"a": (0.0, "y"), "d": (4.0, "z")}, pa.string()), delta=False)


def test_a_selection_has_the_blocks_of_its_slots_and_their_forms() -> None:
    for slots in ({slot_of("a")}, {slot_of("d")}, set(), set(range(SLOTS))):
        part = StoredArtefact(lambda ranges: [BASE[start:end] for start, end in ranges], len(BASE)).part(slots)
        assert alike(read([part]), read([BASE], slots))


def test_the_note_of_a_step_is_kept_beside_the_forms() -> None:
    image = image_of({"a": (1.5, None)}, pa.string())
    base = column_artefact(image, delta=False, note=b"old")
    delta = column_artefact(image_of({}, pa.string(), gone=["a"]), delta=True, note=b"new")
    assert [Opened(data).note for data in (base, delta, merged([base, delta]))] == [b"old", b"new", b"new"]
    assert is_delta(delta)
    assert read([base, delta]) == {}


def test_artefacts_of_rows_are_written_in_the_version_before() -> None:
    rows = of_rows({"a": (1.0, "x")}, delta=False)
    assert rows[:8] == b"mskeyed\x01"
    assert BASE[:8] == b"mskeyed\x02"
    assert merged([BASE, of_rows({"a": (1.0, "x")}, delta=True)])[:8] == b"mskeyed\x02"  # slot of d is copied
    assert merged([rows, SMALL])[:8] == b"mskeyed\x02"


def test_s4_every_flipped_byte_is_found() -> None:
    for data in (SMALL, BASE):
        for place in range(len(data)):
            for mask in (0x01, 0x80, 0xFF):
                damaged = bytearray(data)
                damaged[place] ^= mask
                with pytest.raises(SnapshotError, match="cannot be read"):
                    list(contents(bytes(damaged)))


def test_s4_every_truncation_and_what_stands_behind_the_end_is_found() -> None:
    for length in range(len(SMALL)):
        with pytest.raises(SnapshotError, match="cannot be read"):
            list(contents(SMALL[:length]))
    with pytest.raises(SnapshotError, match="another length"):
        list(contents(SMALL + b"\0"))


@given(st.data())
def test_s8_blocks_that_were_not_written_by_us_are_refused_or_legal_though_their_checksums_are_right(
    data: st.DataObject,
) -> None:
    opened = Opened(SMALL)
    blocks = []
    for slot, block in opened.blocks.items():
        hurt = bytearray(opened.checked(block))
        for _ in range(data.draw(st.integers(0, 3))):
            hurt[data.draw(st.integers(0, len(hurt) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(hurt)) | st.just(len(hurt)))
        entries = data.draw(st.just(block.entries) | st.integers(1, 2**32 - 1))
        blocks.append((slot, entries, bytes(hurt[:cut]), block.form))
    hostile = assembled(blocks, delta=True, note=b"")
    with contextlib.suppress(SnapshotError):
        for keys, states in dict(contents(hostile)).values():
            assert len(keys) == len(set(keys)) == len(states)


FORM = Form(pa.int64(), (pa.float64(),), (0,))


@pytest.mark.parametrize(
    "stored",
    [
        None,
        b"",
        (b"", 0),
        (b"\xff" * 40, (0,)),
        FORM.stored()[:1],
        (FORM.stored()[0], 1),
        (FORM.stored()[0], (True,)),
        (FORM.stored()[0], {"where": 0, "is": 0, "else": 5}),
        (FORM.stored()[0], {"where": 0, "is": 0}),
        (FORM.stored()[0], {"listed": {"where": 0, "is": 0, "else": None}}),
        (FORM.stored()[0], {"listed": [0]}),
        (FORM.stored()[0], {"listed": [{"where": 99, "is": 0, "else": None}]}),
        (FORM.stored()[0], "x"),
        (pa.schema([("key", pa.float64()), ("0", pa.int64())]).serialize().to_pybytes(), 0),
        (pa.schema([("key", pa.int64()), ("0", pa.list_(pa.int64()))]).serialize().to_pybytes(), 0),
        (pa.schema([("key", pa.int64()), ("1", pa.int64())]).serialize().to_pybytes(), 0),
        (pa.schema([("key", pa.int64()), ("pane", pa.int32()), ("0", pa.int64())]).serialize().to_pybytes(), 0),
        (pa.schema([]).serialize().to_pybytes(), 0),
    ],
)
def test_s8_forms_that_nothing_writes_are_refused(stored: Any) -> None:
    with pytest.raises(SnapshotError, match="form of its columns is invalid"):
        Form.read(stored)


def test_a_form_nested_too_deep_is_refused() -> None:
    shape: Shape = 0
    for _ in range(20):
        shape = (shape,)
    with pytest.raises(SnapshotError, match="form of its columns is invalid"):
        Form.read((FORM.stored()[0], shape))
    assert Form.read(FORM.stored()) == FORM


@pytest.mark.parametrize(
    ("keys", "gone", "panes"),
    [
        (["a", "a"], [], None),
        (["a", "b"], ["a"], None),
        (["a"], ["b", "b"], None),
        (["a", "a"], [], [3, 3]),
        (["a", "a"], ["a"], [3, 4]),
        (["a", "a"], [], [3, None]),
    ],
)
def test_a_key_that_is_there_twice_is_refused(keys: list[str], gone: list[str], panes: list[int | None] | None) -> None:
    image = ColumnImage(
        pa.array(keys, pa.large_string()),
        np.zeros(len(keys), np.int64),
        [pa.array([1.0] * len(keys))],
        0,
        None if panes is None else pa.array(panes, pa.int64()),
        pa.array(gone, pa.large_string()) if gone else None,
        np.zeros(len(gone), np.int64) if gone else None,
    )
    with pytest.raises(SnapshotError, match=r"holds a key twice|has no pane"):
        list(contents(column_artefact(image, delta=True)))


def test_a_full_artefact_with_keys_without_state_is_refused() -> None:
    with pytest.raises(SnapshotError, match="holds a key without state"):
        list(contents(column_artefact(image_of({}, pa.string(), gone=["a"]), delta=False)))


COLUMNS = [
    pa.array([1, None, -(2**31)], pa.int32()),
    pa.array([2**64 - 1, None, 0], pa.uint64()),
    pa.array([True, None, False]),
    pa.array([1.5, None, float("nan")], pa.float32()),
    pa.array(["é", None, ""]),
    pa.array(["é", None, ""], pa.string_view()),
    pa.array(["é", None, "é"]).dictionary_encode(),
    pa.array([b"\0", None, b""]),
    pa.array([date(2026, 1, 1), None, date(1, 1, 1)]),
    pa.array([datetime(2026, 1, 1), None, datetime(1, 1, 1)], pa.timestamp("us")),  # noqa: DTZ001
    pa.array([Decimal("1.50"), None, Decimal("-2.00")], pa.decimal128(10, 2)),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_columns_of_each_type_come_back(column: pa.Array) -> None:
    image = storable(ColumnImage(pa.array([1, 2, 3]), np.array([1, 0, 1]), [column.slice(0), column], [0, (1,)]))
    assert image is not None
    found = dict(zip(*states_of(ColumnImage(image.keys, image.slots, [column, column], [0, (1,)])), strict=True))
    data = column_artefact(image, delta=False)
    assert alike(read([data]), found)
    sliced = image._replace(keys=image.keys[1:], slots=image.slots[1:], states=[one[1:] for one in image.states])
    del found[1]
    assert alike(read([column_artefact(sliced, delta=False)]), found)


@pytest.mark.parametrize(
    "image",
    [
        ColumnImage(pa.array([1.5]), np.zeros(1, int), [pa.array([1])], 0),
        ColumnImage(pa.array([True]), np.zeros(1, int), [pa.array([1])], 0),
        ColumnImage(pa.array([1]), np.zeros(1, int), [pa.array([[1]])], 0),
        ColumnImage(pa.array([1]), np.zeros(1, int), [pa.array([1], pa.timestamp("ns"))], 0),
    ],
)
def test_types_whose_values_rows_would_store_in_another_way_are_not_stored_as_columns(image: ColumnImage) -> None:
    assert storable(image) is None


def test_values_that_may_be_absent() -> None:
    has = pa.array([True, None, True])
    value = pa.array([5, 6, None])
    image = ColumnImage(
        pa.array([1, 2, 3]),
        np.zeros(3, int),
        [value, has],
        ({"where": 1, "is": (0,), "else": ()}, {"where": 1, "is": 0, "else": None}, []),
    )
    assert states_of(image) == ([1, 2, 3], [((5,), 5, []), ((), None, []), ((None,), None, [])])
    assert alike(read([column_artefact(image, delta=False)]), dict(zip(*states_of(image), strict=True)))


def test_images_of_other_forms_are_merged_as_rows() -> None:
    base = ColumnImage(pa.array([1, 2]), np.zeros(2, int), [pa.array([3, 4])], 0)
    delta = ColumnImage(pa.array([2]), np.zeros(1, int), [pa.array([4.5])], 0)
    chain = [column_artefact(base, delta=False), column_artefact(delta, delta=True)]
    assert columns_in(opened_chain(chain)) is None
    assert alike(read(chain), {1: 3, 2: 4.5})
    assert alike(read([merged(chain)]), {1: 3, 2: 4.5})
    assert merge_images([base]) is base


def test_values_in_a_list_are_those_that_are_there() -> None:
    """The shape of the n largest of a key: a register that is empty is null."""
    first, second = pa.array([7, 5, 3]), pa.array([6, None, None], pa.int64())
    registers: list[Shape] = [{"where": place, "is": place, "else": None} for place in (1, 0)]
    image = ColumnImage(pa.array(["a", "b", "c"]), np.zeros(3, np.int64), [first, second], {"listed": registers})
    assert states_of(image) == (["a", "b", "c"], [[6, 7], [5], [3]])
    stored = storable(image)
    assert stored is not None
    assert alike(read([column_artefact(stored, delta=False)]), {"a": [6, 7], "b": [5], "c": [3]})
