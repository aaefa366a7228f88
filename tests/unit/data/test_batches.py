"""Batches: rows as parallel lists that no operation changes."""

from __future__ import annotations

import ast
import copy
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.columns_to_rows import rows_of
from tests.ids import shown
from tests.tree import modules, tree_of

Columns = tuple[list[Any], list[Any] | None, list[int] | None, str | None]


def columns_of(batch: Batch) -> Columns:
    return batch.values, batch.keys, batch.timestamps, batch.part


def full() -> Batch:
    return Batch([1, 2, 3], keys=["a", "b", "c"], timestamps=[10, 20, 30], part="p")


def test_a_batch_has_the_length_of_its_values() -> None:
    assert (len(Batch([])), len(full())) == (0, 3)


def test_columns_that_are_not_there_stay_away() -> None:
    bare = Batch([1, 2])
    for other in (bare.compress([1, 0]), bare.take([1]), bare.drop([0]), bare.with_values([3, 4])):
        assert (other.keys, other.timestamps, other.part) == (None, None, None)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (full().with_values([7, 8, 9]), ([7, 8, 9], ["a", "b", "c"], [10, 20, 30], "p")),
        (full().with_keys([7, 8, 9]), ([1, 2, 3], [7, 8, 9], [10, 20, 30], None)),
        (full().with_timestamps([7, 8, 9]), ([1, 2, 3], ["a", "b", "c"], [7, 8, 9], "p")),
        (full().compress([True, 0, "yes"]), ([1, 3], ["a", "c"], [10, 30], "p")),
        (full().take([2, 0, 2]), ([3, 1, 3], ["c", "a", "c"], [30, 10, 30], "p")),
        (full().drop([0, 2, 2]), ([2], ["b"], [20], "p")),
        (full().drop([]), ([1, 2, 3], ["a", "b", "c"], [10, 20, 30], "p")),
        (full().take([]), ([], [], [], "p")),
    ],
)
def test_operations_keep_columns_in_step(changed: Batch, expected: Columns) -> None:
    assert columns_of(changed) == expected


ROWS = st.lists(st.tuples(st.integers(), st.text(max_size=2), st.integers(-9, 9)), max_size=10)


@given(rows=ROWS, data=st.data())
def test_no_operation_changes_the_batch_it_is_called_on(rows: list[tuple[int, str, int]], data: st.DataObject) -> None:
    values, keys, times = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    batch = Batch(values, keys=keys, timestamps=times, part="p")
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1))) if rows else []
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    for changed in (batch.compress(mask), batch.take(indices), batch.drop(indices)):
        for column in columns_of(changed)[:3]:
            assert column is not None
            column.append(0)
    for changed in (batch.with_values([]), batch.with_keys([]), batch.with_timestamps([])):
        assert changed is not batch
    assert [tuple(row) for row in zip(batch.values, batch.keys or (), batch.timestamps or (), strict=True)] == rows


@given(rows=ROWS, data=st.data())
def test_drop_is_what_take_leaves(rows: list[tuple[int, str, int]], data: st.DataObject) -> None:
    batch = Batch([row[0] for row in rows], keys=[row[1] for row in rows])
    dropped = data.draw(st.sets(st.integers(0, len(rows) - 1))) if rows else set()
    kept = [index for index in range(len(rows)) if index not in dropped]
    assert columns_of(batch.drop(dropped)) == columns_of(batch.take(kept))


def test_no_module_sets_an_attribute_of_a_batch() -> None:
    """What another branch of the graph sees must not change; test mode finds what steps change in the lists."""
    found: list[str] = []
    for path in modules().values():
        for node in ast.walk(tree_of(path)):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found += [
                f"{path}:{target.lineno}: {ast.unparse(target)}"
                for outer in targets
                for target in (outer.elts if isinstance(outer, ast.Tuple) else [outer])
                if isinstance(target, ast.Attribute)
                and target.attr in ("values", "keys", "timestamps", "part", "named", "time_column")
                and ast.unparse(target.value) not in ("self", "self.state")
            ]
    assert found == []


def test_a_batch_has_no_room_for_other_attributes() -> None:
    with pytest.raises(AttributeError):
        full().extra = 1  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "made", [Batch([1], keys=["a"]), ColumnBatch(pa.RecordBatch.from_pydict({"n": [1]}))], ids=shown
)
def test_a_batch_can_be_copied_and_pickled(made: Batch) -> None:
    for other in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert columns_of(other) == columns_of(made)


def test_the_text_of_a_batch_tells_columns_and_no_values() -> None:
    assert repr(Batch(["secret"], keys=["hidden"])) == "Batch(1 rows of keys, values)"
    assert repr(Batch([])) == "Batch(0 rows of values)"


def test_arrow_columns_become_dicts_with_none_for_null() -> None:
    columns = pa.RecordBatch.from_pydict({"n": [1, None], "list": [[1, None], []]})
    assert rows_of(columns) == [{"n": 1, "list": [1, None]}, {"n": None, "list": []}]


def test_arrow_columns_without_rows_become_no_dicts() -> None:
    assert rows_of(pa.RecordBatch.from_pydict({"n": pa.array([], pa.int64())})) == []


def test_a_batch_of_columns_goes_to_another_process_and_back() -> None:
    batch = ColumnBatch(
        pa.RecordBatch.from_pydict({"n": [1, 2]}), key_column=pa.array(["a", None]), timestamps=[5, 6], part="p"
    )
    assert batch.values  # rows that were made are kept
    copy = pickle.loads(pickle.dumps(batch))
    assert (copy.rows_made, copy.columns, copy.keys, copy.timestamps, copy.part) == (
        *(False, batch.columns, ["a", None], [5, 6], "p"),
    )
    assert copy.values == batch.values
