"""The streams between the workers of one job and their coordinator: the `Transport` interface and its implementations.

Rule: a transport does not interpret the contents that it carries. `zeromq` connects directly; `calls` uses Ray's actor
calls where no ports may be opened. Only `calls` imports Ray, only `zeromq` imports ZeroMQ.
"""
