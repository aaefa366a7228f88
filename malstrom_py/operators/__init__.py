"""One file per step. A step's file holds the operator that runs it, with an example in its docstring.

`base`, `failures` and `keyed` are what all of them stand on.
"""
