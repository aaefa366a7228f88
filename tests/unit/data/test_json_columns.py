"""Objects of JSON as columns are the dicts that a decoder makes, or no columns: values, types and errors."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.json_columns import JsonColumns
from malstrom_py.testing.exact import same

KNOWN = [b'{"n": 1, "x": 0.5, "s": "a", "b": true, "more": [1]}'] * 2


def known() -> JsonColumns:
    columns = JsonColumns(["n", "x", "s", "b"])
    assert columns.decode(KNOWN) is not None
    return columns


def taken(texts: list[bytes], names: list[str]) -> list[dict[str, Any]]:
    rows = list(map(msgspec.json.decode, texts))
    return [{name: row[name] for name in names} for row in rows]


SAME = {
    "spaces": b' {"n" : 2, "x":1e3,"s":"","b":false , "more":{} }\n',
    "another order": b'{"more": 0, "b": true, "s": "\\u00e9\\n\\"", "x": -0.0, "n": -0}',
    "twice": b'{"n": 2, "x": 1.0, "s": "a", "b": true, "more": 0, "n": 3}',
    "null": b'{"n": null, "x": null, "s": null, "b": null, "more": null}',
    "the largest": b'{"n": 9223372036854775807, "x": 1.7976931348623157e308, "s": "a", "b": true, "more": 0}',
    "like a time": b'{"n": 2, "x": 1.0, "s": "2024-01-01T00:00:00Z", "b": true, "more": 0}',
}
OTHER = {
    "a float among integers": b'{"n": 2.0, "x": 1.0, "s": "a", "b": true, "more": 0}',
    "an integer among floats": b'{"n": 2, "x": 1, "s": "a", "b": true, "more": 0}',
    "a number as text": b'{"n": "2", "x": 1.0, "s": "a", "b": true, "more": 0}',
    "a truth as number": b'{"n": true, "x": 1.0, "s": "a", "b": true, "more": 0}',
    "a number as truth": b'{"n": 1, "x": 1.0, "s": "a", "b": 1, "more": 0}',
    "beyond 64 bits": b'{"n": 9223372036854775808, "x": 1.0, "s": "a", "b": true, "more": 0}',
    "a list": b'{"n": [2], "x": 1.0, "s": "a", "b": true, "more": 0}',
    "a field that is missing": b'{"x": 1.0, "s": "a", "b": true, "more": 0}',
    "one that is not read": b'{"n": 2, "x": 1.0, "s": "a", "b": true}',
    "one more": b'{"n": 2, "x": 1.0, "s": "a", "b": true, "more": 0, "new": 0}',
    "no object": b"3",
    "two": b'{"n": 2, "x": 1.0, "s": "a", "b": true, "more": 0} {}',
    "malformed": b'{"n": 2, "x": 1.0, "s": "a", "b": true, "more": [}',
    "malformed in what is not read": b'{"n": 2, "x": 1.0, "s": "a", "b": true, "more": 1e999}',
    "not UTF-8": b'{"n": 2, "x": 1.0, "s": "\xff", "b": true, "more": 0}',
    "not UTF-8 in what is not read": b'{"n": 2, "x": 1.0, "s": "a", "b": true, "more": "\xff"}',
    "half a character": b'{"n": 2, "x": 1.0, "s": "\\ud800", "b": true, "more": 0}',
    "nothing": b"",
}


@pytest.mark.parametrize("name", SAME)
def test_objects_are_columns(name: str) -> None:
    texts = [*KNOWN, SAME[name]]
    columns = known().decode(texts)
    assert columns is not None
    assert same(columns.to_pylist(), taken(texts, ["n", "x", "s", "b"]))


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("first", [True, False])
def test_what_columns_do_not_hold_is_decoded_otherwise(name: str, first: bool) -> None:
    columns = JsonColumns(["n", "x", "s", "b"]) if first else known()
    assert columns.decode([OTHER[name], *KNOWN]) is None


def test_a_record_without_a_value_is_decoded_otherwise() -> None:
    assert known().decode([*KNOWN, None]) is None


def test_fields_that_no_object_has_are_no_columns() -> None:
    assert JsonColumns(["n", "other"]).decode(KNOWN) is None


def test_after_many_batches_that_columns_do_not_hold_all_are_decoded_otherwise() -> None:
    columns = known()
    for _ in range(3):
        assert columns.decode([OTHER["no object"]]) is None
    assert columns.decode(KNOWN) is None


def test_names_may_be_any_text() -> None:
    texts = [json.dumps({"f0": 1, "a b": 2, "é": 3, "": 4, "class": 5}).encode()]
    columns = JsonColumns(["a b", "é", "", "class", "f0"]).decode(texts)
    assert columns is not None
    assert columns.to_pylist() == [{"a b": 2, "é": 3, "": 4, "class": 5, "f0": 1}]
    assert JsonColumns(['"']).decode([b'{"\\"": 1}']) is None


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.integers(-(2**70), 2**70) | st.integers(-3, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
    st.booleans(),
    st.none(),
    st.lists(st.integers(0, 3), max_size=2),
)


@st.composite
def batches(draw: st.DrawFn) -> list[list[bytes]]:
    """Batches whose fields have mostly one type each."""
    kinds: list[st.SearchStrategy[Any]] = [st.integers(-3, 3), st.floats(-3, 3), st.text(max_size=2), st.booleans()]
    of = {name: draw(st.sampled_from(kinds)) for name in "abc"}
    few = st.sets(st.sampled_from("abc"), max_size=1)
    made = []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.lists(st.fixed_dictionaries(of), min_size=1, max_size=4))
        for name in draw(few):
            rows[0][name] = draw(VALUES)
        for name in draw(few) if draw(st.integers(0, 9)) == 0 else ():
            del rows[-1][name]
        made.append([json.dumps(row, sort_keys=draw(st.booleans())).encode() for row in rows])
    return made


@given(batches())
def test_columns_are_the_dicts_that_a_decoder_makes(made: list[list[bytes]]) -> None:
    decoder = JsonColumns(["c", "a"])
    for texts in made:
        columns = decoder.decode(texts)
        if columns is not None:
            assert same(columns.to_pylist(), taken(texts, ["c", "a"]))
            assert all(type_ in (pa.int64(), pa.float64(), pa.bool_(), pa.string()) for type_ in columns.schema.types)
