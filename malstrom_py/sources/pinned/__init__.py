"""Sources whose input is fixed when a job starts: found once, recorded, checked, split, resumed and released.

`source` has what all of them do, and `shared` counts the jobs that read one of them. `row_groups` is the pin of Parquet
files, read by `sources.Spark`, `sources.Delta` and `sources.Iceberg`; `folder` keeps rows that were staged for a job.
"""
