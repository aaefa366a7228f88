"""Converts CSV files to Parquet, with inferred column types and without malformed lines.

python -m examples.csv_to_parquet          or          malstrom run examples.csv_to_parquet
"""

from __future__ import annotations

from pathlib import Path

import malstrom_py as mp
from malstrom_py import sinks, sources

READINGS = Path(__file__).parent / "input" / "readings-*.csv"


def job(files: str = str(READINGS), out: str = "demo-out/csv_to_parquet") -> mp.Job:
    """CSV files -> Parquet files in ``out``. No file is visible there before all rows are written."""
    job = mp.Job("csv-to-parquet")
    rows = job.source("rows", sources.Files(files, null_values=["NA"]), on_error="skip")
    rows.sink("parquet", sinks.Files(out, format="parquet"))
    return job


if __name__ == "__main__":
    result = mp.run(job())
    print(f"{result.written} rows written, {result.skipped} lines left out")
