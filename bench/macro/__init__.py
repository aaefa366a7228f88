"""Benchmarks of whole jobs, against the same done by others in the same run."""
