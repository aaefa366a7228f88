"""SQL over the state of steps: DuckDB, whose tables are the steps that a query names, all as of one snapshot.

Rule: a query reads these tables and nothing else: no file, no network, no variable of the program, no setting.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import PlanError, imported
from malstrom_py.errors.text import text_of
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.workers.control.step_state import SnapshotReader

if TYPE_CHECKING:
    import pyarrow as pa

SNAPSHOT: Final = b"snapshot"
"""The name of the snapshot's id in the metadata of a result."""

_CLOSED: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "memory_limit": "2GB",
    "threads": "1",
}


def query(reader: SnapshotReader, sql: str, *, limit_s: float | None = None) -> pa.Table:
    """Return the result of a query, with the id of its snapshot in the metadata of the schema.

    Raises:
        PlanError: DuckDB is missing, the query is not one ``select``, is wrong, fails, or takes longer than
            ``limit_s``.
    """
    duckdb = imported("duckdb", "queries are made by DuckDB", "sql")
    connection = duckdb.connect(":memory:", config=_CLOSED)
    try:
        names = set(_tables_in(_parsed(connection, sql)))
        by_name = {step.casefold(): step for step in reader.job.shapes}
        steps = [by_name[name.casefold()] for name in names if name.casefold() in by_name]

        def read(manifest: Manifest) -> dict[str, pa.Table]:
            return {step: reader.step(step, manifest).table(None, None) for step in steps}

        for step, table in reader.read(read).items():
            connection.register(step, table)
        for setting in ("SET TimeZone = 'UTC'", "SET lock_configuration = true"):
            connection.execute(setting).fetchall()
        with _interrupted_after(limit_s, connection):
            found: pa.Table = connection.sql(sql).to_arrow_table()
    except duckdb.InterruptException:
        raise PlanError(f"the query took longer than {limit_s:g} s: ask for less") from None
    except duckdb.Error as error:
        shown = ", ".join(reader.job.shown) or "none"
        raise PlanError(f"the query fails: {text_of(error).strip()}\nsteps with state, by name: {shown}") from None
    finally:
        connection.close()
    return _with_integers(found).replace_schema_metadata({SNAPSHOT: reader.manifest.id.encode()})


@contextmanager
def _interrupted_after(limit_s: float | None, connection: Any) -> Iterator[None]:
    """Interrupt what ``connection`` computes after ``limit_s``."""
    timer = None if limit_s is None else threading.Timer(limit_s, connection.interrupt)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def _with_integers(found: pa.Table) -> pa.Table:
    """Return a result in which sums of integers are integers: of DuckDB they are decimals, which hold larger ones."""
    import pyarrow as pa

    for place, column in enumerate(found.schema):
        if column.type == pa.decimal128(38, 0):
            with suppress(pa.ArrowInvalid):
                found = found.set_column(place, column.name, found.column(place).cast(pa.int64()))
    return found


def _parsed(connection: Any, sql: str) -> Any:
    """Return the syntax tree of ``sql``. `PlanError` unless it is one ``select``."""
    ((text,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    tree = json.loads(text)
    if tree["error"] and tree.get("error_type") == "parser":
        raise PlanError(f"the query is wrong: {tree['error_message']}")
    if tree["error"] or len(tree["statements"]) != 1:
        raise PlanError("a query is one SELECT, for instance: select key, value from STEP order by value desc limit 10")
    return tree


def _tables_in(tree: Any) -> Iterator[str]:
    """Yield the names of tables in a syntax tree, and of those that the query itself makes."""
    if isinstance(tree, dict):
        if tree.get("type") == "BASE_TABLE":
            yield tree["table_name"]
        for part in tree.values():
            yield from _tables_in(part)
    elif isinstance(tree, list):
        for part in tree:
            yield from _tables_in(part)
