"""The coordinator of a job: rescales, snapshots, commits and recovery."""
