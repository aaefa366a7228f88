"""Snapshots as a data source of Spark: a list of snapshots, the positions of sources, and keyed state.

Rules:
- A column of keys or state has an Arrow type if all its values have that one type and survive the conversion unchanged;
  any other column is JSON text. The schema therefore depends on the values, not on their order.
- A task reads all artefacts that one worker wrote, and verifies their digests first. The job's classes are not needed:
  the artefacts name the fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from malstrom_py.codec.job_codec import without_classes
from malstrom_py.errors import SourceError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot import summary
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.ids import is_snapshot_id, made_at_s
from malstrom_py.snapshot.manifest import Artefact, Manifest
from malstrom_py.snapshot.snapshots import OBJECT_STORES, Snapshots
from malstrom_py.snapshot.typed_columns import JSON, add_kind, arrow_batch, arrow_schema, column_kind
from malstrom_py.snapshot.verification import load_verified
from malstrom_py.spark.types import check_requested, spark_schema
from malstrom_py.state.artefact import entries_in

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

KEY: Final = "key"
STATE: Final = "state"


@dataclass(frozen=True, slots=True)
class StateColumns:
    """The columns of a step's state. ``fields``: field -> kind, if every state is a dict; else one column ``state``."""

    key: str
    fields: Mapping[str, str] | None
    state: str = JSON

    @property
    def kinds(self) -> dict[str, str]:
        """Column -> kind."""
        return {KEY: self.key, **({STATE: self.state} if self.fields is None else self.fields)}


def columns_of(entries: Iterable[tuple[Any, Any]]) -> StateColumns:
    """Infer the columns from all ``entries`` of key and state."""
    key, state, fields, are_dicts = set[str](), set[str](), dict[str, set[str]](), True
    for one, value in entries:
        add_kind(key, one)
        add_kind(state, value)
        if value is None or not are_dicts:
            continue
        are_dicts = isinstance(value, Mapping) and all(type(name) is str and name != KEY for name in value)
        for name, part in value.items() if are_dicts else ():
            add_kind(fields.setdefault(name, set()), part)
    if are_dicts and fields:
        return StateColumns(column_kind(key), {name: column_kind(kinds) for name, kinds in fields.items()})
    return StateColumns(column_kind(key), None, column_kind(state))


def batch_of(entries: Sequence[tuple[Any, Any]], columns: StateColumns) -> pa.RecordBatch:
    """Convert ``entries`` of key and state into ``columns``."""
    found: dict[str, list[Any]] = {KEY: [key for key, _ in entries]}
    if columns.fields is None:
        found[STATE] = [state for _, state in entries]
    else:
        for name in columns.fields:
            found[name] = [None if state is None else state.get(name) for _, state in entries]
    return arrow_batch(found, columns.kinds)


OPTIONS: Final = ("snapshots", "path", "job", "read", "step", "snapshot")
STORE_OPTION: Final = "store."

SNAPSHOTS_SCHEMA: Final = (
    "job string, snapshot string, made_at timestamp, sequence bigint, incarnation bigint, parent string, "
    "workers int, slots int, artefacts int, bytes bigint, savepoint boolean, finished boolean"
)
POSITIONS_SCHEMA: Final = "job string, snapshot string, step string, part string, position string, finished boolean"

_BATCH_ROWS: Final = 1 << 14


def asks_for_snapshots(options: Mapping[str, str]) -> bool:
    """Return whether the options ask for snapshots instead of the output of sinks."""
    if "snapshots" in options or "read" in options:
        return True
    path = options.get("path", "")
    if "://" in path and not path.lower().startswith("file:"):
        return path.partition("://")[0].lower() in OBJECT_STORES
    folder = Path(path.removeprefix("file://").removeprefix("file:")) if path else Path()
    return bool(path) and not (folder / "_malstrom").exists() and any(folder.glob("*/log/*.json"))


@dataclass(frozen=True)
class StateChain:
    """The artefacts of a step that one worker wrote, the oldest first; one task reads them."""

    checkpointer: StoreCheckpointer
    step: str
    artefacts: Sequence[Artefact]

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Read keys and their state; the state is None if a key has only timers."""
        data = [load_verified(self.checkpointer, artefact) for artefact in self.artefacts]
        for entry in entries_in(data, without_classes(), step=self.step):
            yield entry.key, entry.value


class SnapshotQuery:
    """The options of a query for snapshots, checked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        known = {name for name in options if name in OPTIONS or name.startswith(STORE_OPTION)}
        if unknown := sorted(set(options) - known):
            raise SourceError(
                f"unknown option {', '.join(unknown)}: the options are {', '.join(OPTIONS)} and {STORE_OPTION}<option>"
            )
        self.read = options.get("read", "snapshots")
        if self.read not in ("snapshots", "positions", "state"):
            raise SourceError(f"option read must be 'snapshots', 'positions' or 'state', not {self.read!r}")
        uri = options.get("snapshots", options.get("path"))
        if uri is None:
            raise SourceError("no location of snapshots: give option('snapshots', uri), or load(uri)")
        store_options = {
            name.removeprefix(STORE_OPTION): value for name, value in options.items() if name.startswith(STORE_OPTION)
        }
        store = Snapshots(uri, options=store_options).store()
        self._checkpointer = StoreCheckpointer(store, summary.find_job(store, options.get("job")))
        self._step = options.get("step")
        if self._step is not None and self.read != "state":
            raise SourceError(f"option step selects state: use it with option('read', 'state'), not {self.read!r}")
        self._snapshot = options.get("snapshot")

    def manifests(self) -> list[Manifest]:
        """Return the selected snapshots, oldest first: all, or the one that is named."""
        manifests = summary.manifests_of(self._checkpointer)
        return manifests if self._snapshot is None else [self.manifest()]

    def manifest(self) -> Manifest:
        """Return the snapshot to read: the one that is named, else the newest."""
        if self._snapshot is not None:
            if not is_snapshot_id(self._snapshot):
                raise SourceError(f"option snapshot must be a snapshot's id, not {self._snapshot!r}")
            return self._checkpointer.load_manifest(SnapshotId(self._snapshot))
        manifests = summary.manifests_of(self._checkpointer)
        if not manifests:
            raise SourceError(f"job {self._checkpointer.job!r} has no snapshot yet in {self._checkpointer.store!r}")
        return manifests[-1]

    def chains(self) -> list[StateChain]:
        """Return the artefacts of the selected step: the one that is named, else the only one that has state."""
        manifest = self.manifest()
        stateful = [name for name, image in manifest.plan.steps.items() if image.stateful]
        step = stateful[0] if self._step is None and len(stateful) == 1 else self._step
        if step is None or step not in stateful:
            problem = "several steps keep state" if step is None else f"no step {step!r} keeps state"
            raise SourceError(
                f"snapshot {manifest.id} of job {manifest.job!r}: {problem}; choose one with option step: "
                f"{', '.join(stateful) or 'there is none'}"
            )
        return [
            StateChain(self._checkpointer, step, chain)
            for (operator, _), chain in manifest.chains().items()
            if operator == step
        ]

    def columns(self) -> StateColumns:
        """Infer the columns from all of the state."""
        return columns_of(entry for chain in self.chains() for entry in chain.entries())

    def schema(self) -> StructType | str:
        """Return the schema of the rows."""
        if self.read == "state":
            return spark_schema(arrow_schema(self.columns().kinds))
        return SNAPSHOTS_SCHEMA if self.read == "snapshots" else POSITIONS_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the rows."""
        if self.read == "state":
            return _StateReader(self.chains(), self.columns(), schema)
        manifests = self.manifests() if self.read == "snapshots" else [self.manifest()]
        rows = map(_snapshot_row, manifests) if self.read == "snapshots" else _position_rows(manifests[0])
        return RowsReader(list(rows), schema)


class RowsReader(DataSourceReader):
    """Reads a few rows that are known when the query is planned."""

    def __init__(self, rows: list[dict[str, Any]], schema: StructType) -> None:
        self._rows = rows
        self._names = schema.names
        if rows and (unknown := [name for name in self._names if name not in rows[0]]):
            raise SourceError(f"unknown column {', '.join(unknown)}: the columns are {', '.join(rows[0])}")

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return (tuple(row[name] for name in self._names) for row in self._rows)


class _StateReader(DataSourceReader):
    """Reads the keyed state of a step: the artefacts of one worker per task."""

    def __init__(self, chains: Sequence[StateChain], columns: StateColumns, schema: StructType) -> None:
        self._chains = chains
        self._columns = columns
        self._names = schema.names
        check_requested(schema, spark_schema(arrow_schema(columns.kinds)), "the state")

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(chain) for chain in self._chains] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        chain: StateChain | None = partition.value
        batch: list[tuple[Any, Any]] = []
        for entry in chain.entries() if chain is not None else ():
            batch.append(entry)
            if len(batch) == _BATCH_ROWS:
                yield batch_of(batch, self._columns).select(self._names)
                batch = []
        if batch:
            yield batch_of(batch, self._columns).select(self._names)


def _snapshot_row(manifest: Manifest) -> dict[str, Any]:
    row = summary.as_plain(manifest)
    return row | {"made_at": datetime.fromtimestamp(made_at_s(manifest.id), UTC)}


def _position_rows(manifest: Manifest) -> Iterator[dict[str, Any]]:
    for step, part, position, finished in summary.positions_of(manifest):
        yield {
            "job": manifest.job,
            "snapshot": manifest.id,
            "step": step,
            "part": part,
            "position": json.dumps(position),
            "finished": finished,
        }
