"""Tables that must not be there before: made with a property that tells, after a crash, whose they are.

Rule: a table without that property is somebody else's, and is never touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext

PROPERTY: Final = "malstrom.commit"


def create_table(
    frame: Any,
    table: str,
    context: CommitContext,
    *,
    format: str,
    partition_by: Sequence[str],
    options: Mapping[str, str],
) -> None:
    """Make ``table`` of ``frame``, as ``context``'s; Spark refuses that if it is there."""
    from pyspark.sql.functions import col

    writer = frame.writeTo(table).using(format).options(**options).tableProperty(PROPERTY, _named(context))
    if partition_by:
        writer = writer.partitionedBy(*(col(f"`{name.replace('`', '``')}`") for name in partition_by))
    writer.create()


def is_created(session: Any, frame: Any, table: str, context: CommitContext) -> bool:
    """Whether ``context`` has made ``table`` of ``frame`` already. One that Spark made and never filled is dropped.

    Raises:
        SinkError: it is there, and not by ``context``.
    """
    if not session.catalog.tableExists(table):
        return False
    found = {row.key: row.value for row in session.sql(f"show tblproperties {table}").collect()}
    if found.get(PROPERTY) == _named(context):
        if frame.isEmpty() or not session.table(table).isEmpty():
            return True
        session.sql(f"drop table {table}")
        return False
    raise SinkError(
        f"table {table!r} is there, and another program made it (its property {PROPERTY!r} is not "
        f"{_named(context)!r}), so mode 'error' leaves it as it is: rename or drop it, to have this "
        f"job's rows in a table of that name"
    )


def _named(context: CommitContext) -> str:
    return f"{context.job}/{context.step}/{context.snapshot}"
