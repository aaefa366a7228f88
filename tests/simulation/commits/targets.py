"""What the seeds write to: each target makes its sink, as each life does, and reads back the visible rows."""

from __future__ import annotations

import atexit
import io
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, cast
from unittest import mock

from malstrom_py import sinks
from malstrom_py.sinks.base import TransactionalSink
from malstrom_py.sinks.staged.folder import FolderPlace
from malstrom_py.sinks.staged.objects import ObjectPlace
from tests.kafka_broker import Broker, running
from tests.simulation.commits.clients import watched_kafka
from tests.simulation.commits.hooks import Row, row_of
from tests.simulation.commits.ledger import Entries, Ledger
from tests.simulation.commits.lives import on_disk
from tests.simulation.commits.model_table import Catalog, ModelSink


@dataclass(frozen=True, slots=True)
class Place:
    """A target of one seed. ``sink``: makes a sink on it, as in another process; ``rows``: the visible rows.

    ``at_end``: rows are visible after the last commit of the job, and not before. ``around``: what surrounds the lives,
    such as points at the requests of a client; ``job``: the name of the job.
    """

    sink: Callable[[], TransactionalSink]
    rows: Callable[[], list[Row]]
    at_end: bool = False
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    job: str = "commits"


def files_in(folder: Path) -> list[Path]:
    """Return the visible files of a folder, at any depth."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(
        path for path in found if not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts)
    )


def _values(folder: Path, path: Path) -> list[dict[str, Any]]:
    """Return the rows of one file, with the columns that are in the names of its folders."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    named = dict(part.split("=", 1) for part in path.relative_to(folder).parts[:-1])
    return [{**named, **row} for row in rows]


def rows_in(folder: Path) -> list[Row]:
    """Return the visible rows of a folder of files."""
    return [row_of(value) for path in files_in(folder) for value in _values(folder, path)]


def ledger(folder: Path, kind: type[Entries] = Entries) -> Place:
    """A ledger in memory."""
    book = Ledger()
    return Place(lambda: kind(book), book.rows)


def files(folder: Path) -> Place:
    """Files of JSON."""
    return Place(lambda: sinks.Files(folder / "out", format="json"), lambda: rows_in(folder / "out"))


def partitioned(folder: Path) -> Place:
    """Files of JSON, in a folder for each key."""
    out = folder / "out"
    return Place(lambda: sinks.Files(out, format="json", partition_by="key"), lambda: rows_in(out))


def objects(folder: Path) -> Place:
    """Files of JSON in an object store in memory."""
    from malstrom_py.object_stores import Bucket

    bucket = Bucket("memory://commits")
    prefix = f"{folder.name}/"

    def rows() -> list[Row]:
        keys = (key for key, _ in bucket.list(prefix) if not key.removeprefix(prefix).startswith("_"))
        return [row_of(json.loads(line)) for key in keys for line in bucket.get(key).splitlines()]

    return Place(lambda: sinks.Files(f"memory://commits/{folder.name}", format="json"), rows)


def _table(place: Any) -> Place:
    catalog = Catalog(place, ask=lambda request, *arguments: on_disk(request)(*arguments))
    return Place(lambda: ModelSink(catalog), lambda: [row_of(value) for value in catalog.rows()])


def table(folder: Path) -> Place:
    """A table of the model catalog, whose files are in a folder."""
    return _table(FolderPlace(folder / "table"))


def table_in_objects(folder: Path) -> Place:
    """A table of the model catalog, whose files are in an object store in memory."""
    return _table(ObjectPlace(f"memory://commits/{folder.name}", {}))


def objects_of_columns(folder: Path) -> Place:
    """Files of Parquet in an object store in memory."""
    from malstrom_py.object_stores import Bucket

    bucket = Bucket("memory://commits")
    prefix = f"{folder.name}/"

    def rows() -> list[Row]:
        import pyarrow.parquet as pq

        keys = (key for key, _ in bucket.list(prefix) if not key.removeprefix(prefix).startswith("_"))
        found = [pq.read_table(io.BytesIO(bucket.get(key))).to_pylist() for key in keys]
        return [row_of(value) for values in found for value in values]

    return Place(lambda: sinks.Files(f"memory://commits/{folder.name}"), rows)


def ray_data(folder: Path) -> Place:
    """A folder of files for Ray Data."""
    return Place(lambda: sinks.RayDataset(folder / "out"), lambda: rows_in(folder / "out"))


def spark_append(folder: Path) -> Place:
    """A Parquet folder to which the sink of Spark adds."""
    return Place(lambda: sinks.Spark(folder / "out"), lambda: rows_in(folder / "out"))


def spark_error(folder: Path) -> Place:
    """A Parquet folder that the sink of Spark makes at the end."""
    out = folder / "parent" / "out"
    return Place(lambda: sinks.Spark(out, mode="error"), lambda: rows_in(out), at_end=True)


def _lake(folder: Path, form: str, **options: Any) -> Place:
    from tests.integration.connectors.lakes import TABLE, Lake

    lake = Lake(form, folder / "lake")

    def rows() -> list[Row]:
        if form == "delta":
            return [row_of(value) for value in lake.frame().to_dicts()]
        if not (lake.folder / "catalog.db").exists():
            return []
        with lake.opened() as catalog:
            found = catalog.load_table(TABLE).scan().to_arrow().to_pylist() if catalog.table_exists(TABLE) else []
        return [row_of(value) for value in found]

    return Place(lambda: lake.sink(**options), rows)


def delta(folder: Path) -> Place:
    """A Delta table."""
    return _lake(folder, "delta")


def iceberg(folder: Path) -> Place:
    """An Iceberg table in a catalog in SQLite."""
    return _lake(folder, "iceberg")


def delta_upserts(folder: Path) -> Place:
    """A Delta table into which rows are merged. Each has another key: one that is lost, or comes too early, is seen."""
    return _lake(folder, "delta", mode="upsert", keys="n")


_OPTIONS: Final = {"log_level": 0, "enable.sparse.connections": False}
"""With sparse connections, librdkafka finds the coordinator of a transaction a quarter of a second later."""


KAFKA: Final = "KAFKA_BOOTSTRAP"
"""The variable with the address of a broker that several processes share."""


@cache
def _broker() -> Broker:
    """Return the broker that the environment names, or one of this process, which ends with it."""
    if named := os.environ.get(KAFKA):
        return Broker(named)
    stack = ExitStack()
    atexit.register(stack.close)
    with mock.patch.object(tempfile, "tempdir", None):  # that of a seed ends with the seed
        return stack.enter_context(running())


def kafka(folder: Path) -> Place:
    """A topic of Kafka; the job has another name for each seed, and with it another transactional id."""
    broker = _broker()
    topic = broker.new_topic(partitions=2)

    def sink() -> TransactionalSink:
        return cast(TransactionalSink, sinks.Kafka(broker.bootstrap, topic, exactly_once=True, options=_OPTIONS))

    rows = lambda: [row_of(value) for value in broker.visible(topic)]  # noqa: E731
    return Place(sink, rows, around=watched_kafka, job=topic)


TARGETS: Final[dict[str, Callable[[Path], Place]]] = {
    "ledger": ledger,
    "files": files,
    "files by key": partitioned,
    "objects": objects,
    "objects of columns": objects_of_columns,
    "table": table,
    "table in objects": table_in_objects,
    "ray data": ray_data,
    "spark append": spark_append,
    "spark error": spark_error,
    "delta": delta,
    "iceberg": iceberg,
    "kafka": kafka,
    "delta upserts": delta_upserts,
}

DRAWN: Final = (*TARGETS, *(name for name in TARGETS if name not in {"ledger", "iceberg", "kafka", "delta upserts"}))
"""The targets that seeds draw, by turns. PostgreSQL needs a server: see `on_postgres`."""
