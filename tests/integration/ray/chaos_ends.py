"""The sinks of `tests.integration.ray.chaos`: each end starts its server, makes a sink, and reads back its rows.

Rows have the fields of `FIELDS`, all of them whole numbers. Each end imports what it needs when it is opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from malstrom_py import sinks

Row = dict[str, int]

FIELDS: Final = ("part", "number", "key", "seen")


@dataclass(frozen=True, slots=True)
class End:
    """A sink, and what has become visible in its target."""

    sink: Any
    rows: Callable[[], list[Row]]


def row_of(value: Mapping[Any, Any]) -> Row:
    """Return a row of a target with plain numbers."""
    return {name: int(value[name]) for name in FIELDS}


def rows_in(folder: Path) -> list[Row]:
    """Return the rows that a job has committed into a folder of files."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith(("_", ".")))
    if files and files[0].suffix == ".parquet":
        import pyarrow.parquet as pq

        return [row_of(value) for file in files for value in pq.ParquetFile(file).read().to_pylist()]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@contextmanager
def files(folder: Path) -> Iterator[End]:
    """Files of JSON in a folder."""
    yield End(sinks.Files(folder / "out", format="json"), lambda: rows_in(folder / "out"))


@contextmanager
def spark(folder: Path) -> Iterator[End]:
    """A Parquet folder of the sink of Spark, which needs no Spark."""
    yield End(sinks.Spark(folder / "out"), lambda: rows_in(folder / "out"))


@contextmanager
def s3(folder: Path) -> Iterator[End]:
    """Files of JSON in an S3 on this machine."""
    from tests.integration.connectors.buckets import new_bucket
    from tests.servers import s3_server

    with s3_server() as address:
        bucket = new_bucket(address)

        def rows() -> list[Row]:
            keys = [key for key in bucket.keys("out/") if not key.removeprefix("out/").startswith("_")]
            return [json.loads(line) for key in keys for line in bucket.objects.get(key).splitlines()]

        yield End(sinks.Files(f"{bucket.url}/out", format="json", store_options=bucket.options), rows)


@contextmanager
def delta(folder: Path) -> Iterator[End]:
    """A Delta table."""
    yield _lake(folder, "delta")


@contextmanager
def iceberg(folder: Path) -> Iterator[End]:
    """An Iceberg table in a catalog in SQLite."""
    yield _lake(folder, "iceberg")


def _lake(folder: Path, form: str) -> End:
    from tests.integration.connectors.lakes import Lake

    lake = Lake(form, folder / "lake")
    return End(lake.sink(), lambda: [row_of(value) for value in lake.frame().to_dicts()])


@contextmanager
def postgres(folder: Path) -> Iterator[End]:
    """A table of PostgreSQL."""
    import psycopg

    from tests.servers import postgres_server

    with postgres_server() as server:
        dsn = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"

        def run(statement: str) -> Iterable[Any]:
            with psycopg.connect(dsn, autocommit=True) as connection:
                cursor = connection.execute(statement.encode())
                return cursor.fetchall() if cursor.description else []

        run(f"CREATE TABLE chaos ({', '.join(f'{name} bigint' for name in FIELDS)})")

        def rows() -> list[Row]:
            found = run(f"SELECT {', '.join(FIELDS)} FROM chaos")
            return [row_of(dict(zip(FIELDS, row, strict=True))) for row in found]

        yield End(_named("Postgres")(dsn, "chaos"), rows)


@contextmanager
def kafka(folder: Path) -> Iterator[End]:
    """A topic of Kafka, read as a reader of committed transactions does."""
    from tests.kafka_broker import running

    with running() as broker:
        topic = broker.new_topic(3)
        sink = _named("Kafka")(broker.bootstrap, topic, exactly_once=True)
        yield End(sink, lambda: [row_of(value) for value in broker.visible(topic)])


@contextmanager
def redis(folder: Path) -> Iterator[End]:
    """A stream of Redis."""
    import redis as client_of_redis

    from tests.servers import redis_server

    with redis_server() as server:

        def rows() -> list[Row]:
            with closing(client_of_redis.Redis(port=server.port, protocol=2)) as client:
                found: Any = client.xrange("chaos")
            return [row_of({name.decode(): number for name, number in fields.items()}) for _, fields in found]

        yield End(_named("RedisStream")(f"redis://127.0.0.1:{server.port}/0", "chaos"), rows)


def _named(name: str) -> Any:
    """Return a sink by its name: the module of some loads heavy libraries."""
    return getattr(sinks, name)


ENDS: Final[dict[str, Callable[[Path], AbstractContextManager[End]]]] = {
    "files": files,
    "spark": spark,
    "s3": s3,
    "delta": delta,
    "iceberg": iceberg,
    "postgres": postgres,
    "kafka": kafka,
    "redis": redis,
}
