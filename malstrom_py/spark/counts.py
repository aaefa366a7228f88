"""The counts of a finished job as rows, one for each step."""

from __future__ import annotations

from typing import Any, Final

from malstrom_py.errors import SourceError
from malstrom_py.sinks.output_record import JobOutput

COUNTS: Final = (
    "job string, snapshot string, duration_s double, step string, kind string, rows_in bigint, "
    "ports map<string, bigint>, filtered bigint, late bigint, ahead bigint, skipped bigint, dead_letters bigint, "
    "rows_made bigint, columns_made bigint, keys bigint, epoch bigint"
)
"""The columns, as Spark writes them."""


def counts_of(output: JobOutput) -> list[dict[str, Any]]:
    """Column -> value for each step, in the order of the plan.

    >>> steps = {"in": {"kind": "source", "rows_in": 3, "ports": {"out": 3}, "late": 0}}
    >>> [row] = counts_of(JobOutput("docs", "s1", {"job": "docs", "duration_s": 0.5, "steps": steps}, {}))
    >>> row["step"], row["rows_in"], row["late"], row["keys"]
    ('in', 3, 0, None)
    """
    if output.result is None:
        raise SourceError(f"job {output.job!r} has left no counts with its output: what='output' is there to be read")
    names = [column.split()[0] for column in COUNTS.replace("map<string, bigint>", "map").split(", ")]
    known = {"job": output.job, "snapshot": output.snapshot, "duration_s": output.result["duration_s"]}
    return [
        {name: {**counts, **known, "step": step}.get(name) for name in names}
        for step, counts in output.result["steps"].items()
    ]
