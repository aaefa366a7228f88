"""SQL over the state of steps: DuckDB, whose tables are the steps that a query names, all as of one snapshot.

Rule: a query reads these tables and nothing else: no file, no network, no variable of the program, no setting.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import PlanError, imported
from malstrom_py.errors.text import text_of
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.workers.control.step_state import SnapshotReader

if TYPE_CHECKING:
    import pyarrow as pa

SNAPSHOT: Final = b"snapshot"
"""The name of the snapshot's id in the metadata of a result."""

ROWS: Final = b"rows"
"""The name of the number of all rows in the metadata of a result that has only the first."""

_AGAIN_S: Final = 0.05

_CLOSED: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "memory_limit": "2GB",
    "threads": "1",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest answer of a query: its seconds, and the rows and bytes of which it has only the first. ``over``: set
    once no client waits for it.
    """

    seconds: float
    rows: int
    bytes: int
    over: threading.Event = field(default_factory=threading.Event)


def query(reader: SnapshotReader, sql: str, limits: Limits | None = None) -> pa.Table:
    """Return the result of a query, with the id of its snapshot in the metadata of the schema. Columns of one name get
    numbers.

    Raises:
        PlanError: DuckDB is missing, the query is not one ``select``, is wrong, fails, or takes longer than
            its limit.
    """
    duckdb, is_late = imported("duckdb", "queries are made by DuckDB", "sql"), threading.Event()
    connection = duckdb.connect(":memory:", config=_CLOSED)
    try:
        names = set(_tables_in(_parsed(connection, sql)))
        by_name = {step.casefold(): step for step in reader.job.shapes}
        steps = [by_name[name.casefold()] for name in names if name.casefold() in by_name]

        def read(manifest: Manifest) -> dict[str, pa.Table]:
            wanted = (step for step in steps if limits is None or not limits.over.is_set())
            return {step: reader.step(step, manifest).table(None, None) for step in wanted}

        for step, table in reader.read(read).items():
            connection.register(step, table)
        for setting in ("SET TimeZone = 'UTC'", "SET lock_configuration = true"):
            connection.execute(setting).fetchall()
        with _interrupted_after(limits, connection, is_late):
            found = _result(connection.sql(sql), limits)
    except (duckdb.Error, _NotRead) as error:
        if limits is not None and is_late.is_set():
            raise PlanError(f"the query took longer than {limits.seconds:g} s: ask for less") from None
        shown = ", ".join(reader.job.shown) or "none"
        raise PlanError(
            f"the query fails: {text_of(error.__cause__ or error).strip()}\nsteps with state, by name: {shown}"
        ) from None
    finally:
        connection.close()
    metadata = {**(found.schema.metadata or {}), SNAPSHOT: reader.manifest.id.encode()}
    return _with_integers(found).replace_schema_metadata(metadata)


def rows_in(found: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a result. `PlanError`: it has a time before the year 1, or after 9999, or an infinite one."""
    try:
        rows: list[dict[str, Any]] = found.to_pylist()
    except (OverflowError, ValueError) as error:
        raise PlanError(f"a value of the query cannot be shown: {text_of(error)}. Cast it to varchar") from error
    return rows


class _NotRead(Exception):
    """The rows of a result cannot be read."""


def _result(computed: Any, limits: Limits | None) -> pa.Table:
    """Return the rows of a result, or the first of them: DuckDB's limit of memory does not hold for rows of Arrow."""
    import pyarrow as pa

    if limits is None:
        found = computed.to_arrow_table()
        return found.rename_columns(_numbered(found.schema.names))
    kept, rows, room = [], 0, limits.bytes
    try:
        with pa.RecordBatchReader.from_stream(computed) as batches:
            schema = batches.schema
            for batch in batches:
                first = batch.slice(0, max(0, limits.rows - rows))
                while first.num_rows and first.nbytes > room:
                    first = first.slice(0, first.num_rows // 2)
                room = room - first.nbytes if first.num_rows == batch.num_rows else 0
                if first.num_rows:  # an empty one would keep the memory of its batch
                    kept.append(first)
                rows += batch.num_rows
    except (OSError, pa.ArrowException) as error:
        raise _NotRead from error
    found = pa.Table.from_batches(kept, schema).rename_columns(_numbered(schema.names))
    return found.replace_schema_metadata({ROWS: str(rows).encode()})


def _numbered(names: list[str]) -> list[str]:
    """Return names of which none is there twice: rows as dicts would lack a column.

    >>> _numbered(["key", "n", "key", "key_1"])
    ['key', 'n', 'key_2', 'key_1']
    """
    unlike: list[str] = []
    for name in names:
        one, number = name, 0
        while one in unlike or (number and one in names):
            number += 1
            one = f"{name}_{number}"
        unlike.append(one)
    return unlike


@contextmanager
def _interrupted_after(limits: Limits | None, connection: Any, is_late: threading.Event) -> Iterator[None]:
    """Interrupt what ``connection`` computes after its limit, and set ``is_late``, or once no client waits for it."""
    if limits is None:
        yield
        return
    over, seconds, is_done = limits.over, limits.seconds, threading.Event()

    def interrupt() -> None:
        if not over.wait(seconds):
            is_late.set()
        while not is_done.is_set():  # what has not begun yet cannot be interrupted
            connection.interrupt()
            is_done.wait(_AGAIN_S)

    thread = threading.Thread(target=interrupt, name="malstrom-query-limit", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        over.set()
        thread.join()


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
    try:
        tree = json.loads(text)
    except RecursionError:
        raise PlanError("the query is wrong: it nests too deeply") from None
    if tree["error"] and tree.get("error_type") == "parser":
        raise PlanError(f"the query is wrong: {tree['error_message']}")
    if tree["error"] or len(tree["statements"]) != 1:
        raise PlanError("a query is one SELECT, for instance: select key, value from STEP order by value desc limit 10")
    return tree


def _tables_in(tree: Any) -> Iterator[str]:
    """Yield the names of tables in a syntax tree, and of those that the query itself makes."""
    left = [tree]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if part.get("type") == "BASE_TABLE":
                yield part["table_name"]
            left += part.values()
        elif isinstance(part, list):
            left += part
