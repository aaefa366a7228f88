"""Manifests: sealed, restored exactly with users' values, and rejected field by field; ids, and summaries."""

from __future__ import annotations

import copy
import datetime as dt
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.errors import CodecError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot import manifest as sealed
from malstrom_py.snapshot.ids import fresh_snapshot_id, is_snapshot_id, made_at_s, next_snapshot_id
from malstrom_py.snapshot.log import JobStart, entry_of
from malstrom_py.snapshot.manifest import (
    CHAIN_MAX,
    DEPTH_MAX,
    Artefact,
    Manifest,
    PartImage,
    PlanImage,
    StepImage,
    as_json,
    from_json,
    manifest_bytes,
    manifest_of,
    open_seal,
    seal,
)
from malstrom_py.testing.exact import same
from tests.unit.snapshot.taken import artefact, manifest

OLDER = SnapshotId("20261122T042142123456Z-5e6f7a8b")
ID = SnapshotId("20261122T042242123456Z-1a2b3c4d")
PLAIN = manifest(ID, JobStart(3, 11), 12, [artefact(OLDER, b"base"), artefact(ID, b"more", kind="delta")])
FULL = replace(
    PLAIN,
    parent=OLDER,
    plan=PlanImage(8, {"read": StepImage("source"), "by": StepImage("key_by", True, False, "index", "jobs:grow")}),
    sources={"read": {"days/1.csv": PartImage(("days/1.csv", 12)), "ä/\ud800": PartImage(None, finished=True)}},
    parts={"epochs": {"read/days/1.csv": {"epoch": MIN_EPOCH, "seen": (1, b"x")}}},
    frontiers={"by": MAX_EPOCH, "by-2": MIN_EPOCH},
    sinks={"out": (b"", b"\x00\xff" * 40), "none": ()},
    pins={"spark": {"files": ["a.parquet"], "$": 1}},
    result={"job": "orders", "steps": {"read": {"rows_in": 3}}, "duration_s": 0.5},
    savepoint=True,
)


@pytest.mark.parametrize("made", [PLAIN, FULL], ids=["plain", "full"])
def test_s3_a_manifest_comes_back_as_it_was(made: Manifest) -> None:
    back = manifest_of(open_seal(manifest_bytes(made)))
    assert back == made
    assert repr(back) == repr(made)  # compares the types too


def test_a_manifest_is_one_line_and_its_digest() -> None:
    line, digest, rest = manifest_bytes(FULL).split(b"\n")
    assert rest == b""
    assert list(json.loads(digest)) == ["sha256"]
    assert json.loads(line)["id"] == ID


def test_chains_are_by_operator_and_worker_in_their_order() -> None:
    other = artefact(ID, b"x", operator="means", worker=1)
    made = replace(PLAIN, artefacts=(other, *PLAIN.artefacts))
    assert made.chains() == {("means", 1): [other], ("totals", 0): list(PLAIN.artefacts)}


def base() -> Artefact:
    return artefact(OLDER, b"base")


WRONG: dict[str, Callable[[Manifest], Manifest]] = {
    "a newer format": lambda m: replace(m, format=2),
    "no id": lambda m: replace(m, id=SnapshotId("latest")),
    "no number": lambda m: replace(m, sequence=0),
    "no incarnation": lambda m: replace(m, incarnation=0),
    "no worker": lambda m: replace(m, workers=0),
    "no slots": lambda m: replace(m, plan=PlanImage(0)),
    "a parent after it": lambda m: replace(m, parent=SnapshotId("20271122T042242123456Z-1a2b3c4d")),
    "itself as parent": lambda m: replace(m, parent=m.id),
    "no such parent": lambda m: replace(m, parent=SnapshotId("..")),
    "only a delta": lambda m: replace(m, artefacts=(artefact(ID, b"more", kind="delta"),)),
    "two that are full": lambda m: replace(m, artefacts=(base(), artefact(ID, b"all"))),
    "a delta before the full one": lambda m: replace(
        m, artefacts=(artefact(OLDER, b"more", kind="delta"), artefact(ID, b"all"))
    ),
    "deltas not in order": lambda m: replace(m, artefacts=(artefact(ID, b"all"), artefact(OLDER, b"d", kind="delta"))),
    "one of a later snapshot": lambda m: replace(
        m, artefacts=(artefact(SnapshotId("20271122T042242123456Z-1a2b3c4d"), b"all"),)
    ),
    "one twice": lambda m: replace(m, artefacts=(base(), base())),
    "another folder": lambda m: replace(m, artefacts=(replace(base(), path=f"artefacts/{ID}/totals-0.full"),)),
    "a way out": lambda m: replace(m, artefacts=(replace(base(), path="artefacts/../../passwd"),)),
    "a step with a way out": lambda m: replace(m, artefacts=(artefact(OLDER, b"", operator="../x"),)),
    "a worker below zero": lambda m: replace(m, artefacts=(artefact(OLDER, b"", worker=-1),)),
    "a size below zero": lambda m: replace(m, artefacts=(replace(base(), size=-1),)),
    "no digest": lambda m: replace(m, artefacts=(replace(base(), sha256="0" * 63),)),
    "a frontier too large": lambda m: replace(m, frontiers={"by": MAX_EPOCH + 1}),
    "a chain without end": lambda m: replace(
        m,
        artefacts=(
            artefact(SnapshotId("20251122T042242000000Z-00000000"), b"all"),
            *(artefact(SnapshotId(f"20261121T042242{n:06}Z-00000000"), b"", kind="delta") for n in range(CHAIN_MAX)),
        ),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_no_snapshot_can_be_is_neither_written_nor_read(what: str) -> None:
    wrong = WRONG[what](PLAIN)
    with pytest.raises(ValueError, match=r".+"):
        manifest_bytes(wrong)
    right = Manifest.check
    try:
        Manifest.check = lambda self: None  # type: ignore[method-assign]
        data = manifest_bytes(wrong)
    finally:
        Manifest.check = right  # type: ignore[method-assign]
    assert entry_of(data, job="orders", sequence=wrong.sequence).fault


def paths_in(stored: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each field."""
    inner = stored.items() if isinstance(stored, dict) else enumerate(stored) if isinstance(stored, list) else ()
    return [path, *(found for key, item in inner for found in paths_in(item, (*path, key)))]


STORED = open_seal(manifest_bytes(replace(PLAIN, parts={"epochs": {"read/a": (1, 2)}}, parent=OLDER)))
FREE = {("sources", "read", "a", "position"), ("sources", "read", "b", "position"), ("result",)}
FIELDS = [path for path in paths_in(STORED) if path and not any(path[: len(free)] == free for free in FREE)]


def changed(path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Mapping[str, Any]:
    stored = copy.deepcopy(STORED)
    place = stored
    for key in path[:-1]:
        place = place[key]
    change(place, path[-1])
    return stored


@pytest.mark.parametrize("wrong", [7.5, [[]], {"a": {"b": 7.5}}, True], ids=["float", "list", "object", "bool"])
def test_a_field_of_another_type_is_refused(wrong: Any) -> None:
    for path in FIELDS:
        stored = changed(path, lambda place, key: place.__setitem__(key, copy.deepcopy(wrong)))
        kept = STORED
        for key in path:
            kept = kept[key]
        if type(kept) is type(wrong) or path[:2] == ("parts", "epochs"):
            continue
        with pytest.raises(ValueError, match=r".+"):
            manifest_of(stored)


def test_a_field_that_is_missing_or_unknown_is_refused_by_its_name() -> None:
    tables = {(), ("plan",), ("plan", "steps", "read"), ("artefacts", 0), ("sources", "read", "a")}
    for path in FIELDS:
        if path[:-1] in tables:
            with pytest.raises(ValueError, match=f"missing required field `{path[-1]}`|'{path[-1]}' is missing"):
                manifest_of(changed(path, lambda place, key: place.pop(key)))
    for path in tables:
        with pytest.raises(ValueError, match="unknown field `colour`"):
            manifest_of(changed((*path, "colour"), lambda place, key: place.__setitem__(key, "red")))


def test_a_newer_format_is_named_whatever_else_it_has() -> None:
    entry = entry_of(seal({"format": 7, "kind": "manifest", "job": "orders"}), job="orders", sequence=1)
    assert "its format is 7, and this version of malstrom-py knows 1" in entry.fault


@pytest.mark.parametrize(
    ("job", "sequence", "fault"), [("others", 12, "it is of job 'orders'"), ("orders", 13, "it is entry 12 of the log")]
)
def test_a_manifest_in_the_place_of_another_is_refused(job: str, sequence: int, fault: str) -> None:
    assert fault in entry_of(manifest_bytes(PLAIN), job=job, sequence=sequence).fault


def test_deep_json_is_refused_and_no_harm() -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    stored = {**STORED, "sources": {"read": {"a": {"position": deep, "finished": False}}}}
    assert "nested too deep" in entry_of(seal(stored), job="orders", sequence=12).fault
    text = b"[" * 200_000
    with pytest.raises(ValueError, match=r"nested too deep|no JSON"):
        open_seal(sealed_by_hand(text))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["$", "kind", "a"]), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from(paths_in(STORED)[1:]), JSON)
def test_p6_whatever_stands_in_a_forged_manifest_it_is_refused_or_legal(path: tuple[Any, ...], forged: Any) -> None:
    entry = entry_of(seal(changed(path, lambda place, key: place.__setitem__(key, forged))), job="orders", sequence=12)
    if entry.content is None:
        assert entry.fault
    else:
        assert isinstance(entry.content, Manifest)
        entry.content.check()
        assert entry_of(manifest_bytes(entry.content), job="orders", sequence=12) == entry


def sealed_by_hand(line: bytes) -> bytes:
    return line + b'\n{"sha256": "' + hashlib.sha256(line).hexdigest().encode() + b'"}\n'


def test_what_was_sealed_comes_back() -> None:
    fields = {"format": 1, "ä\ud800\n": [None, True, -0.5, {"a": "\u2028"}]}
    assert open_seal(seal(fields)) == fields
    assert seal(fields) == sealed_by_hand(seal(fields).partition(b"\n")[0])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": -Infinity}', "-Infinity is not a number"),
        (b"{", "Expecting"),
        (b"", "Expecting"),
        (b'{"a": ' + b"9" * 5000 + b"}", "."),
        (b"\xff", "."),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_seal_never_writes_is_refused(line: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        open_seal(sealed_by_hand(line))


def test_what_is_too_long_is_neither_written_nor_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    long = seal({"a": "x" * 3000})
    monkeypatch.setattr(sealed, "BYTES_MAX", 1000)
    for tried in (lambda: seal({"a": "x" * 3000}), lambda: open_seal(long)):
        with pytest.raises(ValueError, match="and the limit is 1000"):
            tried()


def test_what_is_no_json_is_not_sealed() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        seal({"a": float("nan")})


class Level(IntEnum):
    LOW = 1


def back(value: Any) -> Any:
    return from_json(json.loads(json.dumps(as_json(value, step="s"))), step="s")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


PLAIN_VALUES = [
    None,
    True,
    0,
    -(2**63),
    2**63 - 1,
    -0.0,
    1.5,
    1e300,
    "",
    "\ud800 ä",
    [],
    {},
    {"a": [1, {"b": None}]},
    nested(30),
]
PACKED = [
    2**63, math.inf, (1, 2), {1: 2}, {"$": 1}, {"a": {"$": "x"}}, b"x", {1, 2}, Decimal("1.50"), [(1,)],
    dt.datetime(2013, 1, 1, tzinfo=dt.UTC), nested(DEPTH_MAX + 1), -(2**80),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN_VALUES, ids=repr)
def test_what_json_can_tell_is_plain(value: Any) -> None:
    assert as_json(value, step="s") is value
    assert same(back(value), value)


@pytest.mark.parametrize("value", PACKED, ids=repr)
def test_what_json_cannot_tell_is_packed(value: Any) -> None:
    assert list(as_json(value, step="s")) == ["$"]
    assert same(back(value), value)


PARTS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    PARTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.just("$") | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_any_value_comes_back_as_it_was(value: Any) -> None:
    assert same(back(value), value)


@pytest.mark.parametrize(
    "value", [object(), lambda: None, Level.LOW, {"a": object()}], ids=lambda value: type(value).__name__
)
def test_what_cannot_be_stored_names_the_step(value: Any) -> None:
    with pytest.raises(CodecError, match="step 'orders'"):
        as_json(value, step="orders")


@pytest.mark.parametrize(
    "stored",
    [
        {"$": 1},
        {"$": "?"},
        {"$": "ä"},
        {"$": ""},
        {"$": "AAAA"},
        {"$": "x", "b": 1},
        nested(40),
        2**70,
        {"a": {"$": "x"}},
    ],
    ids=repr,
)
def test_what_as_json_never_gives_is_refused(stored: Any) -> None:
    with pytest.raises((CodecError, ValueError)):
        from_json(stored, step="s")


NEWEST = "20261122T042242999999Z-ffffffff"


def test_ids_sort_by_time_are_never_the_same_and_fit_file_names() -> None:
    ids = [fresh_snapshot_id(second) for second in (0.0, 0.5, 1e9, 1e9 + 0.000_001, 2e9)]
    assert sorted(ids) == ids
    assert fresh_snapshot_id(7.0) != fresh_snapshot_id(7.0)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", one) for one in ids)


@pytest.mark.parametrize("now_s", [0.0, made_at_s(NEWEST), made_at_s(NEWEST) + 1e-6, made_at_s(NEWEST) + 60])
def test_s3_the_next_id_is_larger_whatever_the_clock_says(now_s: float) -> None:
    following = next_snapshot_id(now_s, NEWEST)
    assert following > NEWEST
    assert following[:22] > NEWEST[:22]
    assert is_snapshot_id(following)


def test_a_clock_that_goes_on_is_what_an_id_tells() -> None:
    assert made_at_s(next_snapshot_id(2e9, NEWEST)) == 2e9
    assert made_at_s(next_snapshot_id(1e9, None)) == 1e9


@pytest.mark.parametrize(
    "text",
    ["", "latest", "20261122T042242123456Z", "20261322T042242123456Z-1a2b3c4d", f"{NEWEST}\n", f"../{NEWEST}", 7, None],
)
def test_what_is_no_id_is_not_taken_for_one(text: object) -> None:
    assert not is_snapshot_id(text)
