"""Panes of windows in arrays: what reports a delta of their changes."""

from __future__ import annotations

import pyarrow as pa

from malstrom_py import agg
from malstrom_py.operators.panes import Panes


def test_changed_keys_of_arrays_that_become_a_dict_are_noted_once() -> None:
    noted: list[list[str]] = []
    panes = Panes([agg.count()], note=lambda keys: noted.append(keys.to_pylist()))
    panes.fold(0, panes.symbols.of(pa.array(["ant", "bee"])), [None])
    assert sorted(panes.changed_keys()) == ["ant", "bee"]
    panes.fold(0, panes.symbols.of(pa.array(["bee", "cat"])), [None])
    assert panes.rows_at(0) == {"ant": 1, "bee": 2, "cat": 1}
    assert noted == [["bee", "cat"]]
    assert list(panes.changed_keys()) == []
