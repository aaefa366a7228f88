"""The artefacts of tests/vectors/columns-2 are read in all later versions, and are what the page of the format says."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py.codec import Codec
from malstrom_py.state.artefact import Opened, entries_in, merged
from malstrom_py.state.entries import NO_TIMES
from malstrom_py.testing.exact import same
from tests.vectors.golden_columns import BASE, FOLDER, NAMES, SHAPE, STATE
from tests.vectors.golden_snapshot import slots_of

CHAIN = [(FOLDER / name).read_bytes() for name in NAMES]


def in_order(state: dict[Any, Any]) -> list[tuple[Any, list[tuple[int, Any]]]]:
    return sorted(((key, sorted(panes.items())) for key, panes in state.items()), key=repr)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("chain", [CHAIN, [merged(CHAIN)]], ids=["chain", "compacted"])
def test_s5_columns_written_by_earlier_versions_are_restored_at_any_scale(chain: list[bytes], workers: int) -> None:
    found: dict[Any, Any] = {}
    for worker in range(workers):
        for slot, key, value, times in entries_in(chain, Codec(), slots=range(worker, 8, workers)):
            assert ([slot], times) == (slots_of([key]), NO_TIMES)
            found[key] = value
    assert same(in_order(found), in_order(STATE))
    assert Opened(chain[-1]).note == b"the last note"


def test_the_bytes_are_those_of_the_page_of_the_format() -> None:
    """Read the base with nothing of ours but the stored form of the note."""
    data = CHAIN[0]
    magic, version, kind, blocks, note_bytes, _ = struct.unpack_from("<7sBcIIQ", data)
    assert (magic, version, kind) == (b"mskeyed", 2, b"F")
    at = 25 + 28 * blocks
    note, (schema, shape) = Codec().decode_at_rest(data[at : at + note_bytes])
    assert (note, shape) == (b"a note", SHAPE)
    assert pa.ipc.read_schema(pa.py_buffer(schema)).names == ["key", "pane", "0", "1", "2", "3"]
    at += note_bytes
    found: dict[Any, dict[int, Any]] = {}
    for index in range(blocks):
        _, entries, size, _, form = struct.unpack_from("<IIQQI", data, 25 + 28 * index)
        rows, gone = struct.unpack_from("<II", data, at)
        assert (rows + gone, gone, form) == (entries, 0, 1)
        start, columns = at + 8, []
        for code in ("", "q", "q", "d", "?", ""):
            valid = [True] * rows
            if data[start]:
                valid = [byte == 1 for byte in data[start + 1 : start + 1 + rows]]
                start += rows
            start += 1
            values: list[Any]
            if code:
                values = list(struct.unpack_from(f"<{rows}{code}", data, start))
                start += struct.calcsize(f"<{rows}{code}")
            else:
                lengths = struct.unpack_from(f"<{rows}I", data, start)
                start += 4 * rows
                values = []
                for length in lengths:
                    values.append(data[start : start + length].decode())
                    start += length
            columns.append([value if there else None for value, there in zip(values, valid, strict=True)])
        for key, pane, count, total, has, last in zip(*columns, strict=True):
            found.setdefault(key, {})[pane] = [count, (total, (last,) if has is not None else ())]
        at += size
        assert start == at
    assert at == len(data)
    assert same(in_order(found), in_order(BASE))
