"""What is fixed when a job starts stays the same: the contract of pinned sources, for every kind of them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from malstrom_py import sources
from malstrom_py.connectors.ray_data import source as ray_source
from malstrom_py.connectors.ray_data.blocks import Block, inspected, name_of
from malstrom_py.errors import SourceError
from malstrom_py.object_stores import Bucket
from malstrom_py.sources.files.footers import read_footer
from malstrom_py.sources.pinned.folder import new_folder
from malstrom_py.sources.pinned.row_groups import PinnedFile, new_pin
from malstrom_py.testing.contracts import check_source
from tests.integration.connectors.lakes import Lake
from tests.integration.connectors.postgres_tools import Patient, Waiting
from tests.integration.small_s3 import SmallS3, small_s3

ROWS = [{"n": number, "text": f"row {number}", "part": "ab"[number % 2]} for number in range(24)]
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("part", pa.string())])
KEEP = (pc.field("n") > 3) & (pc.field("part") == "a")
ALL = frozenset(("grown", "changed", "cut", "gone"))
REMEDY = r"[Rr]estore|[Ss]tart|[Rr]eplace it|Do not change|Keep versions|Check the path"


@dataclass
class Input:
    """The input of one kind of source, of `ROWS`. ``source`` makes what a program makes, the same each time.

    ``record``: that of an earlier run, for a kind which only another program can find. ``alter`` changes a file.
    ``sees``: the changes of a file that are an error. ``takes``: the options that it has. ``needs_pin``: whether it
    lists nothing without a pin.
    """

    source: Callable[..., Any]
    alter: Callable[[str], None]
    record: Any = None
    sees: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()
    staged: Path | None = None
    needs_pin: bool = True

    def started(self, **options: Any) -> Any:
        """Return a source that a job has begun to read."""
        source = self.source(**options)
        source.pin("job", self.record)
        return source


def altered(content: bytes, change: str) -> bytes | None:
    """Return what a change makes of the ``content`` of a file; None if it has gone."""
    changed = {"grown": content + b"more", "changed": content[:-20] + bytes(20), "cut": content[: len(content) // 8]}
    return changed.get(change)


def first_of(files: Iterable[Path]) -> Callable[[str], None]:
    """Return what changes the first of ``files``."""
    path = min(files)

    def alter(change: str) -> None:
        content = altered(path.read_bytes(), change)
        path.unlink()
        if content is not None:
            path.write_bytes(content)

    return alter


def of_files(folder: Path, form: str) -> Input:
    """Two files of two sections each, by a pattern that is relative to the working directory."""
    table = pa.Table.from_pylist(ROWS, SCHEMA)
    for number, half in enumerate((table.slice(0, 12), table.slice(12))):
        if form == "parquet":
            pq.write_table(half, folder / f"{number}.parquet", row_group_size=6)
        else:
            lines = [f"{row['n']},{row['text']},{row['part']}\n" for row in half.to_pylist()]
            (folder / f"{number}.csv").write_text("n,text,part\n" + "".join(lines))

    def source(**options: Any) -> Any:
        small = {"split_bytes": 100} if form == "parquet" else {"split_bytes": 100, "newlines_in_values": False}
        return sources.Files(f"*.{form}", format=form, **small, **options)  # type: ignore[call-overload]  # any options

    return Input(source, first_of(folder.glob(f"*.{form}")), sees=ALL, takes=frozenset(("columns",)), needs_pin=False)


def of_objects(store: SmallS3) -> Input:
    """Two Parquet objects."""
    bucket = Bucket("s3://pins", store.options)
    for number in range(2):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(ROWS[12 * number : 12 * number + 12], SCHEMA), sink, row_group_size=6)
        bucket.put(f"{number}.parquet", sink.getvalue().to_pybytes())

    def source(**options: Any) -> Any:
        return sources.Files("s3://pins/*.parquet", split_bytes=100, store_options=store.options, **options)

    def alter(change: str) -> None:
        changed = altered(bucket.get("0.parquet"), change)
        bucket.delete(["0.parquet"])
        if changed is not None:
            bucket.put("0.parquet", changed)

    return Input(source, alter, sees=ALL, takes=frozenset(("columns",)), needs_pin=False)


def of_table(folder: Path, form: str) -> Input:
    """A table of two snapshots, partitioned by a text."""
    lake = Lake(form, folder / "lake")
    lake.write(ROWS[:12], 1, partition_by="part")
    lake.write(ROWS[12:], 2)
    files = [path for path in lake.root.rglob("*.parquet") if "_staging" not in path.parts]
    return Input(
        lake.source, first_of(files), sees=frozenset(("grown", "cut", "gone")), takes=frozenset(("columns", "filter"))
    )


def of_spark(folder: Path) -> Input:
    """What a run of a job that was killed has staged."""
    made = new_folder(folder / "staging", "job", keep=False)
    made.rows.mkdir()
    path = made.rows / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS, SCHEMA), path, row_group_size=6)
    footer = read_footer(path, SCHEMA)
    pinned = [PinnedFile(str(path), footer.size, footer.mtime_ns, footer.groups, {})]
    pin = new_pin(made.path.name, SCHEMA, SCHEMA.names, pinned, made.path)
    made.note({"job": "job", "keep": False})
    made.leave(keep=True)
    record = {**pin.record(), "source": "Spark(table='t')"}
    return Input(lambda: sources.Spark(table="t"), first_of([path]), record, sees=ALL, staged=made.path)


def of_ray(folder: Path) -> Input:
    """What a run of a job that was killed has staged."""
    made = new_folder(folder / "staging", "job", keep=False)
    made.rows.mkdir()
    blocks: list[Block] = []
    packed = b""
    for number in range(2):
        table = pa.Table.from_pylist(ROWS[12 * number : 12 * number + 12], SCHEMA)
        found = inspected(table, str(made.rows / name_of(number)))
        assert not isinstance(found, str)
        block, packed = found
        blocks.append(block)
    made.note({"job": "job", "keep": False})
    made.leave(keep=True)
    record = {**ray_source.Pin("id", packed, tuple(blocks), str(made.path)).record(), "source": "RayDataset"}

    def source() -> Any:
        return sources.RayDataset(object(), staging=folder / "staging")  # type: ignore[arg-type]  # see `inputs`

    return Input(source, first_of(made.rows.iterdir()), record, sees=ALL, staged=made.path)


KINDS = ["csv", "parquet", "objects", "delta", "iceberg", "spark", "ray"]


@pytest.fixture
def given(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Input]:
    """Yield the input of the kind that is asked for."""
    kind: str = request.param
    folder = tmp_path / "in"
    folder.mkdir()
    monkeypatch.chdir(folder)
    if kind in {"csv", "parquet"}:
        yield of_files(folder, kind)
    elif kind == "objects":
        with small_s3() as store:
            yield of_objects(store)
    elif kind in {"delta", "iceberg"}:
        yield of_table(folder, kind)
    else:
        monkeypatch.setattr(ray_source, "is_dataset", lambda ds: True)
        yield of_spark(folder) if kind == "spark" else of_ray(folder)


over_every_kind = pytest.mark.parametrize("given", KINDS, indirect=True)


def copy_of(source: Any) -> Any:
    """Return ``source`` as a worker has it."""
    return pickle.loads(pickle.dumps(source))


def read(part: Any, count: int | None = None, *, rows_max: int = 5) -> list[dict[str, Any]]:
    """Return ``count`` rows of an open partition, by default all of them, and close it in that case."""
    rows: list[dict[str, Any]] = []
    patient = Waiting(part, 60)  # objects are read in a thread
    try:
        while not part.is_finished() and (count is None or len(rows) < count):
            polled = patient.poll(rows_max if count is None else min(rows_max, count - len(rows)))
            rows += [] if polled is None else polled.to_pylist()
        return rows
    finally:
        if count is None:
            part.close()


def read_all(source: Any) -> list[dict[str, Any]]:
    """Return the rows of all partitions, sorted."""
    rows = [row for part in source.list_parts() for row in read(source.build_part(part, None))]
    return sorted(rows, key=lambda row: row["n"])


READS = """
import pickle, sys, time
source, states = pickle.load(sys.stdin.buffer)
rows = []
for part, state in states.items():
    opened = source.build_part(part, state)
    while not opened.is_finished():
        polled = opened.poll(5)
        rows += [] if polled is None else polled.to_pylist()
        time.sleep(0 if polled else 0.001)
    opened.close()
sys.stdout.buffer.write(pickle.dumps(rows))
"""


@over_every_kind
def test_another_process_in_another_folder_reads_the_rest(given: Input, tmp_path: Path) -> None:
    source = given.started()
    parts = source.list_parts()
    assert len(parts) > 1
    read_here, states = [], {}
    for number, part in enumerate(parts):
        opened = source.build_part(part, None)
        read_here += read(opened, 1 + number % 4)
        states[part] = msgpack.unpackb(msgpack.packb(opened.snapshot()))  # as snapshots hold it
        opened.close()
    (tmp_path / "elsewhere").mkdir()
    there = subprocess.run(
        [sys.executable, "-c", READS],
        input=pickle.dumps((source, states)),
        cwd=tmp_path / "elsewhere",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        check=True,
    )
    rest: list[dict[str, Any]] = pickle.loads(there.stdout)
    assert sorted([*read_here, *rest], key=lambda row: row["n"]) == ROWS


@over_every_kind
def test_a_resumed_job_has_the_same_rows_and_splits(given: Input) -> None:
    first = given.started()
    record = json.loads(json.dumps(first.pin_record()))
    assert record == first.pin_record()
    parts = list(first.list_parts())
    first.unpin(keep=True)
    again = given.source()
    again.pin("job", record)
    assert (list(again.list_parts()), again.pin_record()) == (parts, record)
    assert read_all(copy_of(again)) == ROWS
    again.unpin(keep=True)
    for wrong in ({}, {**record, "source": "Other()"}, None if not isinstance(record, dict) else [record]):
        with pytest.raises(SourceError, match=r"to resume from reads .*former source, or start from the beginning"):
            given.source().pin("job", wrong)
    for name in set(record) - {"source", "staged", "since"}:
        damaged = {key: value for key, value in record.items() if key != name}
        with pytest.raises(SourceError, match=r"record of what was pinned is damaged"):
            given.source().pin("job", damaged)


@over_every_kind
def test_a_split_moves_at_any_row(given: Input) -> None:
    source = given.started()
    check_source(Patient(copy_of(source)), cuts_max=4)
    part = source.list_parts()[0]
    whole = read(source.build_part(part, None))
    for count in range(len(whole) + 1):
        here, there = copy_of(source), copy_of(source)
        opened = here.build_part(part, None)
        before = read(opened, count)
        state = opened.snapshot()
        opened.close()
        assert before + read(there.build_part(part, state)) == whole


@pytest.mark.parametrize("change", ["grown", "changed", "cut", "gone"])
@over_every_kind
def test_a_file_that_is_another_one_is_an_error_with_a_remedy(given: Input, change: str) -> None:
    if change not in given.sees:
        return  # the kind compares other things: see the design note of pins
    source = given.started()
    record = json.loads(json.dumps(source.pin_record()))
    part = source.list_parts()[0]
    opened = source.build_part(part, None)
    read(opened, 5)
    state = opened.snapshot()
    opened.close()
    given.alter(change)
    for position in (None, state):
        with pytest.raises(SourceError, match=REMEDY):
            read(copy_of(source).build_part(part, position))
    again = given.source()
    with pytest.raises(SourceError, match=REMEDY):
        resume_and_read(again, record)


def resume_and_read(source: Any, record: Any) -> None:
    source.pin("job", record)
    read_all(source)


@over_every_kind
def test_columns_and_filters_that_are_pushed_down_give_the_same_rows(given: Input) -> None:
    options: dict[str, Any] = {"columns": ["part", "n"], "filter": KEEP}
    options = {name: value for name, value in options.items() if name in given.takes}
    expected = pa.Table.from_pylist(ROWS)
    if "filter" in options:
        expected = expected.filter(KEEP)
    if "columns" in options:
        expected = expected.select(options["columns"])
    source = copy_of(given.started(**options))
    rows = read_all(source)
    assert rows == expected.to_pylist()
    assert all(list(row) == expected.schema.names for row in rows)
    if getattr(source, "is_narrowing", False):
        narrow = [row for part in source.list_parts() for row in read(source.build_narrow_part(part, None, {"n"}))]
        assert sorted(row["n"] for row in narrow) == expected["n"].to_pylist()
        assert all(list(row) == ["n"] for row in narrow)


@over_every_kind
def test_jobs_share_a_pin_which_is_released_once_and_kept_when_asked(given: Input) -> None:
    source = given.started()
    source.pin("other", source.pin_record())
    with pytest.raises(SourceError, match="give each job a separate source"):
        source.pin("third", {**source.pin_record(), **({"id": "another"} if given.needs_pin else {"parts": []})})
    source.unpin(keep=True)
    assert read_all(source) == ROWS
    source.unpin()
    if given.needs_pin:
        with pytest.raises(SourceError, match="is not pinned"):
            source.list_parts()
    if given.staged is not None:
        assert given.staged.exists()
        source.pin("job", given.record)
        worker = copy_of(source)
        worker.pin("job", given.record)  # a coordinator's copy is pinned and unpinned too
        source.unpin()
        assert given.staged.exists()
        worker.unpin()
        assert not given.staged.exists()
