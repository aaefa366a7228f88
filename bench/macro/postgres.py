"""``python -m bench.macro.postgres``: rows into a table of PostgreSQL and out of it, beside psycopg's own ways.

The sink stages the rows and commits them, so PostgreSQL writes each row twice; psycopg writes the same rows with
``COPY`` and ``write_row``. The source reads them as dicts, beside a cursor of the server with rows as dicts.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg.rows import dict_row

from bench.micro import machine
from bench.micro.timing import check_equal, interleave, ratios, spread
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.sinks import CommitContext, SnapshotId, WorkerId, WorkerInfo
from tests.servers import postgres_server

BUDGET: Final = 0.5
BATCH_ROWS: Final = 4_096
COLUMNS: Final = "carrier text, price double precision, at timestamp, n bigint"
NAMES: Final = ("carrier", "price", "at", "n")
_SNAPSHOTS = itertools.count()


def columns_of(rows: int) -> pa.RecordBatch:
    """Return bids: a carrier of a hundred, a price, a time, a number."""
    numbers = range(rows)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([f"carrier-{number * 7919 % 100}" for number in numbers]),
            pa.array([number * 31 % 1000 / 7 for number in numbers]),
            pa.array([number * 1000 for number in numbers], pa.timestamp("us")),
            pa.array([number % 977 for number in numbers]),
        ],
        names=list(NAMES),
    )


class Tables:
    """The rows in three forms, and a server to write them to. Each way empties the table and returns its sum."""

    def __init__(self, dsn: str, rows: int) -> None:
        self.dsn = dsn
        self.columns = columns_of(rows)
        self.dicts = self.columns.to_pylist()
        self.tuples = [tuple(row.values()) for row in self.dicts]
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE bids ({COLUMNS})".encode())
            connection.execute(f"CREATE TABLE numbered (id bigserial PRIMARY KEY, {COLUMNS})".encode())

    def emptied(self) -> Tables:
        """Empty the table that is written to."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("TRUNCATE bids")
        return self

    def number(self) -> None:
        """Copy the rows into the table that is read, which has a primary key."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("INSERT INTO numbered (carrier, price, at, n) SELECT * FROM bids")
            connection.execute("ANALYZE numbered")

    def check(self) -> tuple[Any, ...] | None:
        """Return the number of rows and sums of the table."""
        with psycopg.connect(self.dsn) as connection:
            return connection.execute("SELECT count(*), sum(n), max(at), count(DISTINCT carrier) FROM bids").fetchone()


def copy_rows(tables: Tables) -> None:
    """Write the tuples with COPY and write_row."""
    statement = "COPY bids (carrier, price, at, n) FROM STDIN"
    with psycopg.connect(tables.dsn) as connection, connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in tables.tuples:
            copy.write_row(row)


def sink_rows(tables: Tables) -> None:
    """Write dicts through the sink, in batches."""
    rows = tables.dicts
    through_sink(tables, (Batch(rows[start : start + BATCH_ROWS]) for start in range(0, len(rows), BATCH_ROWS)))


def sink_columns(tables: Tables) -> None:
    """Write columns through the sink, in batches."""
    whole = tables.columns
    starts = range(0, whole.num_rows, 4 * BATCH_ROWS)
    through_sink(tables, (ColumnBatch(whole.slice(start, 4 * BATCH_ROWS)) for start in starts))


def through_sink(tables: Tables, batches: Any) -> None:
    """Write, stage and commit ``batches``."""
    sink = sinks.Postgres(tables.dsn, "bids")
    context = CommitContext("bench", "out", SnapshotId(f"{next(_SNAPSHOTS):08}"), 1)
    writer = sink.open(WorkerInfo("bench", "out", WorkerId(0)))
    for batch in batches:
        writer.write(batch)
    payload = writer.pre_commit(context)
    sink.commit(context, [payload])
    writer.close()


def cursor_rows(tables: Tables) -> int:
    """Read the rows as dicts with a cursor of the server."""
    with psycopg.connect(tables.dsn) as connection, connection.cursor("bench", row_factory=dict_row) as cursor:
        cursor.itersize = 5_000
        cursor.execute("SELECT * FROM numbered ORDER BY id", binary=True)
        return sum(row["n"] for row in cursor)


def source_rows(tables: Tables) -> int:
    """Read the rows as dicts through the source."""
    source = sources.Postgres(tables.dsn, "numbered", parts=1)
    source.pin("bench")
    total = 0
    try:
        for name in source.list_parts():
            part = source.build_part(name, None)
            while not part.is_finished():
                rows: Any = part.poll(BATCH_ROWS)
                if rows is None:
                    time.sleep(0.001)  # as a job does, so that the thread that reads ahead has a turn
                    continue
                total += sum(row["n"] for row in rows)
            part.close()
    finally:
        source.unpin()
    return total


def show(tables: Tables, rows: int, base: Callable[..., Any], ways: Sequence[Callable[..., Any]], reps: int) -> None:
    """Print one line per way."""
    variants = {way.__name__: way for way in (base, *ways)}
    fresh: Any = Tables.emptied if base is copy_rows else None
    seconds = interleave(variants, tables, reps=reps, fresh=fresh)
    for way in ways:
        ratio = ratios(seconds[base.__name__], seconds[way.__name__])
        rate = spread([rows / each / 1e3 for each in seconds[way.__name__]])
        verdict = "hit" if ratio.median >= BUDGET else "MISS"
        print(
            f"{way.__name__:13} {rate.show(0):>18} k rows/s  {ratio.show():>18} of {base.__name__}, "
            f">= {BUDGET}: {verdict}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.postgres", description=__doc__)
    parser.add_argument("--n", type=int, default=300_000, help="rows")
    parser.add_argument("--reps", type=int, default=5, help="rounds, interleaved; medians are printed")
    given = parser.parse_args(arguments)
    print(machine.describe())
    with postgres_server(fsync="on", shared_buffers="256MB", max_wal_size="2GB") as server:
        tables = Tables(f"postgresql://postgres@127.0.0.1:{server.port}/postgres", given.n)
        checks = {}
        for way in (copy_rows, sink_rows, sink_columns):
            way(tables.emptied())
            checks[way.__name__] = tables.check()
        check_equal(checks)
        show(tables, given.n, copy_rows, (sink_rows, sink_columns), given.reps)
        copy_rows(tables.emptied())
        tables.number()
        show(tables, given.n, cursor_rows, (source_rows,), given.reps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
