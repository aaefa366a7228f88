"""Seeds that write to a PostgreSQL, which needs a server: ``python -m tests.simulation.commits.on_postgres SEED``.

The program starts a server and runs one seed again. `make soak` runs many on one server, and the tests of connectors a
few on theirs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from malstrom_py import sinks
from tests.servers import postgres_server
from tests.simulation.commits.clients import watched_postgres
from tests.simulation.commits.hooks import Row
from tests.simulation.commits.runs import Ran, run
from tests.simulation.commits.targets import Place

REPLAY = "tests.simulation.commits.on_postgres"


@contextmanager
def served() -> Iterator[str]:
    """Run a server; yield the DSN of it."""
    with postgres_server() as server:
        yield f"postgresql://postgres@127.0.0.1:{server.port}/postgres"


def run_on(dsn: str, seed: int) -> Ran:
    """Run one seed, in a schema that has only this seed's tables."""
    schema = f"seed_{os.getpid()}_{seed}"
    own = f"{dsn}?options=-csearch_path%3D{schema}"

    def rows() -> list[Row]:
        with psycopg.connect(own, autocommit=True) as connection:
            return [(n, key, seen) for n, key, seen in connection.execute("SELECT n, key, seen FROM rows")]

    place = Place(lambda: sinks.Postgres(own, "rows"), rows, around=watched_postgres)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        connection.execute(f"CREATE TABLE {schema}.rows (n int, key int, seen int)".encode())
        try:
            return run(seed, target="postgres", make=lambda folder: place)
        finally:
            connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


def main() -> None:
    """The program."""
    seed = int(sys.argv[1])
    with served() as dsn:
        ran = run_on(dsn, seed)
    print("\n".join(f"{count:>4}  {hit}" for hit, count in sorted(ran.hits.items()) if count))
    print(f"seed {seed}: {ran.lives} lives, no violation, trace {ran.trace}")


if __name__ == "__main__":
    main()
