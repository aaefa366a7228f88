"""Snapshots: the stores, the format, the log of a job, verification and pruning (rules S1 to S8)."""
