"""Plain functions of a row, evaluated on whole columns with the same results.

`purity` finds out whether a function may be called with proxies for values, `tracing` calls it with them and returns
what it computes on each path, and `evaluation` computes that for all rows of a batch by the operations of `vectors`,
or says that rows must do it.
`in_python` gives columns the types that their values have in Python.
"""
