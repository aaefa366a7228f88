"""Keep a Delta table equal to a table of PostgreSQL, also while the job is killed, rescaled and restarted.

    export MIRROR_FROM=postgresql://app@db.example.com/shop MIRROR_TO=s3://lake/sales
    psql -c 'ALTER TABLE sales REPLICA IDENTITY FULL; CREATE PUBLICATION sales_pub FOR TABLE sales' "$MIRROR_FROM"
    psql -c "SELECT pg_create_logical_replication_slot('sales_slot', 'pgoutput')" "$MIRROR_FROM"
    malstrom run examples.mirror:job --snapshots s3://lake/snapshots --interval 60

The table has rows that were written after the slot was made. ``MIRROR_UNTIL=now`` ends the job at the present end of
the changes; a later run continues there.
"""

from __future__ import annotations

import os
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources


def rows_of(change: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what becomes of the rows in a change: one that is written, one that is deleted, or both for a new id."""
    if change["op"] == "truncate":
        raise ValueError("the table was truncated: delete the copy too, and start the job from the beginning")
    old, new = change["old"], change["new"]
    rows: list[dict[str, Any]] = []
    if old is not None and (new is None or new["id"] != old["id"]):
        rows.append({"id": old["id"], "gone": True})
    if new is not None:
        # Large values that an update leaves alone are in the old row only: the table has REPLICA IDENTITY FULL.
        rows.append({**(old or {}), **new, "gone": False})
    return rows


def job() -> mp.Job:
    """Return a job that reads changes of the publication ``sales_pub``."""
    follow = os.environ.get("MIRROR_UNTIL") != "now"
    changes = sources.PostgresChanges(os.environ["MIRROR_FROM"], "sales_pub", "sales_slot", follow=follow)
    made = mp.Job("mirror")
    rows = made.source("changes", changes).flat_map("rows", rows_of).key_by("id", lambda row: row["id"])
    rows.sink("table", sinks.Delta(os.environ["MIRROR_TO"], mode="upsert", keys="id", delete_field="gone"))
    return made
