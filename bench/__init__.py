"""Benchmarks. What they print are ratios against a baseline measured in the same run."""
