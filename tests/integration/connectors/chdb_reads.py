"""``make test-lake``: chdb, the engine of ClickHouse, reads the tables that the sinks of Delta and Iceberg write.

chdb takes half a gigabyte, so it is in an environment that only this check makes. Its Python is the argument.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from tests.integration.connectors.lakes import Lake

PARTS: Final = ["a/b", "a b", "50%", "ü€", None, "x=y", "#1?"]
QUERY: Final = "import sys, chdb; print(chdb.query(sys.argv[1], 'JSONEachRow'))"


def rows_of(first: int, count: int, **more: Any) -> list[dict[str, Any]]:
    """Return rows of several types; ``more``: further columns."""
    return [
        {
            "value": number,
            "part": PARTS[number % len(PARTS)],
            "x": number / 4,
            "day": date(2013, 1, 1 + number % 28),
            "at": datetime(2013, 1, 1, 12, 0, number % 60, 250_000, tzinfo=UTC),
            **more,
        }
        for number in range(first, first + count)
    ]


def read(python: str, lake: Lake) -> list[dict[str, Any]]:
    """Return the rows that chdb reads."""
    table = f"deltaLakeLocal('{lake.root}')" if lake.form == "delta" else f"icebergLocal('{lake.root.parent}')"
    query = f"SELECT value, part, x, toString(day) AS day, toUnixTimestamp64Milli(at) AS at, more FROM {table}"
    # It reads files below its working directory only.
    done = subprocess.run(
        [python, "-c", QUERY, query], cwd="/", capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        raise SystemExit(f"{lake.form}: chdb failed: {done.stderr[-2_000:]}")
    return sorted((json.loads(line) for line in done.stdout.splitlines() if line), key=lambda row: int(row["value"]))


def main(python: str) -> None:
    """Write both tables, and compare what chdb reads."""
    for form in ("delta", "iceberg"):
        with tempfile.TemporaryDirectory() as folder:
            lake = Lake(form, Path(folder).resolve() / "lake")
            lake.write(rows_of(0, 100), 1, partition_by="part")
            lake.write(rows_of(100, 20, more="new"), 2, new_columns="add")
            lake.write(rows_of(100, 20, more="new"), 3)
            found = read(python, lake)
        written = [*rows_of(0, 100, more=None), *rows_of(100, 20, more="new"), *rows_of(100, 20, more="new")]
        expected = [
            {**row, "day": row["day"].isoformat(), "at": int(row["at"].timestamp() * 1000)}
            for row in sorted(written, key=lambda row: int(row["value"]))
        ]
        read_back = [{**row, "value": int(row["value"]), "at": int(row["at"])} for row in found]
        if read_back != expected:
            differing = sum(one != other for one, other in zip(read_back, expected, strict=False))
            raise SystemExit(
                f"{form}: chdb reads {len(read_back)} rows of {len(expected)}, {differing} of them different"
            )
        print(f"{form}: chdb reads {len(read_back)} rows as they were written")


if __name__ == "__main__":
    main(sys.argv[1])
