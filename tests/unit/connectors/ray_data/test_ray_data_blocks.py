"""The blocks of a dataset without Ray: their types, their staged files, and the part that reads one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py import sources
from malstrom_py.connectors.ray_data.blocks import (
    Block,
    StagedBlocks,
    StoredBlocks,
    as_schema,
    inspect_all,
    inspected,
    joined_schema,
    name_of,
    plain_table,
)
from malstrom_py.connectors.ray_data.source import BlockPart, Pin
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.errors.text import redacting
from malstrom_py.sources.files.options import pack_schema, unpack_schema


def staged(folder: Path, table: pa.Table) -> tuple[Block, bytes]:
    found = inspected(table, str(folder / name_of(0)))
    assert not isinstance(found, str)
    return found


def schema_of(**types: pa.DataType) -> bytes:
    return pack_schema(pa.schema(types.items()))


def test_a_staged_block_is_read_from_any_row_on_in_its_plain_types(tmp_path: Path) -> None:
    table = pa.table({"n": range(10), "kind": pa.array(["a", "b"] * 5).dictionary_encode()})
    block, packed = staged(tmp_path, table)
    assert block.rows == 10
    schema = unpack_schema(packed)
    assert schema.types == [pa.int64(), pa.string()]
    for row in range(10):
        part = BlockPart(block.rows, schema, lambda: StagedBlocks(tmp_path).fetch(0, block), row)
        assert part.lag_rows() == 10 - row
        read = []
        while not part.is_finished():
            read += part.poll(3).to_pylist()
        assert read == table.to_pylist()[row:]
        assert (part.snapshot(), part.poll(3)) == (10, None)
        part.close()


def test_a_part_waits_for_rows_that_are_on_their_way() -> None:
    answers = iter([None, None, pa.table({"n": [1]})])
    part = BlockPart(1, pa.schema([("n", pa.int64())]), lambda: lambda: next(answers), 0)
    assert [part.poll(5), part.poll(5)] == [None, None]
    assert part.poll(5).to_pylist() == [{"n": 1}]


@pytest.mark.parametrize("damage", ["shorter", "other", "gone"])
def test_a_staged_block_that_has_changed_is_an_error(damage: str, tmp_path: Path) -> None:
    block, _ = staged(tmp_path, pa.table({"n": range(10)}))
    file = tmp_path / name_of(0)
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-50] if damage == "shorter" else content.replace(b"\7", b"\6"))
    with pytest.raises(SourceError, match=r"rows of the dataset are lost: .*block-00000"):
        StagedBlocks(tmp_path).fetch(0, block)()
    assert damage != "gone" or not StagedBlocks(tmp_path)._folder.joinpath(name_of(0)).exists()


def test_files_that_only_another_machine_has_are_an_error(tmp_path: Path) -> None:
    staged(tmp_path, pa.table({"n": [1]}))
    with pytest.raises(SourceError, match=r"1 of 2 blocks are not in .*share"):
        StagedBlocks(tmp_path).check(2)


def test_columns_that_are_empty_in_a_block_take_their_type_from_others() -> None:
    joined = joined_schema([schema_of(a=pa.null(), b=pa.null()), schema_of(b=pa.null(), a=pa.int64())])
    assert unpack_schema(joined) == pa.schema([("a", pa.int64()), ("b", pa.string())])
    read = as_schema(pa.table({"b": pa.nulls(1), "a": [1]}), unpack_schema(joined))
    assert read.to_pylist() == [{"a": 1, "b": None}]
    assert unpack_schema(joined_schema([])).names == []


@pytest.mark.parametrize("other", [{"a": pa.string()}, {"a": pa.int64(), "b": pa.int64()}, {"b": pa.int64()}], ids=str)
def test_blocks_of_other_columns_are_an_error(other: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match=r"blocks of the dataset differ: .*map_batches"):
        joined_schema([schema_of(a=pa.int64()), schema_of(**other)])


def test_columns_of_one_name_are_an_error() -> None:
    twice = pack_schema(pa.schema([("a", pa.int64()), ("a", pa.int64())]))
    with pytest.raises(SourceError, match="more than one column named 'a'"):
        joined_schema([twice])


def test_types_that_cannot_be_read_name_their_column(tmp_path: Path) -> None:
    tensors = pa.FixedShapeTensorArray.from_storage(
        pa.fixed_shape_tensor(pa.int8(), [1, 2]), pa.array([[1, 2]], pa.list_(pa.int8(), 2))
    )
    with pytest.raises(SourceError, match="column 'image' of the dataset has the type"):
        plain_table(pa.table({"image": tensors}))
    with pytest.raises(SourceError, match="column 'view' of the dataset has the type"):
        plain_table(pa.table({"view": pa.array([[1], [2]], pa.list_view(pa.int8()))}))
    structs = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([{"x": 1}]))
    with pytest.raises(SourceError, match=r"column 'd' of the dataset .*map_batches"):
        plain_table(pa.table({"d": structs}))
    digits = pa.table({"time": pa.array([4711], pa.timestamp("ns"))})
    said = str(inspected(digits, None))
    assert "'time' of the dataset has values of timestamp[ns] that do not fit" in said
    assert "4711" in said
    with redacting(True):
        assert "4711" not in str(inspected(digits, None))
    assert "give staging= a folder" in str(inspected(pa.table({"n": [1]}), str(tmp_path / "none" / "file")))


def test_a_pin_is_the_same_after_its_record() -> None:
    pin = Pin("id", schema_of(a=pa.int64()), (Block(3, "d"), Block(0, "e")), None)
    source = sources.RayDataset.__new__(sources.RayDataset)
    assert source._pin_of(pin.record()) == pin


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(PlanError, match=r"takes a ray\.data\.Dataset, got list"):
        sources.RayDataset([1])  # type: ignore[arg-type]


def test_blocks_of_another_ray_are_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first driver of each cluster has the same worker id; the ids of nodes are random."""
    context = SimpleNamespace(get_worker_id=lambda: "01", get_node_id=lambda: "first")
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    blocks = StoredBlocks([])
    assert blocks.is_alive
    context.get_node_id = lambda: "second"
    assert not blocks.is_alive


def test_blocks_that_are_not_inspected_in_time_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[str] = []
    task = SimpleNamespace(remote=lambda ref, path: f"task of {ref}")
    ray = SimpleNamespace(
        remote=lambda **options: lambda function: task,
        wait=lambda tasks, num_returns, timeout: ([], tasks),
        cancel=cancelled.append,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(SourceError, match=r"none of the last 1 tasks .* within 300 s: each needs 0.5 of a CPU"):
        inspect_all(["a"], None)
    assert cancelled == ["task of a"]
