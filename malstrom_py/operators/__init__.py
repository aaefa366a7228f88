"""The operators that run a job's steps, one module per step or family, each with an example.

All of them build on `base`, `failures` and `keyed`.
"""
