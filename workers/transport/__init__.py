"""The streams between the workers of one job and their coordinator: the `Transport` interface and its implementation.

Rule: a transport does not interpret the contents that it carries. Only `zeromq` imports ZeroMQ.
"""
