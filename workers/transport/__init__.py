"""The streams between the workers of one job and their coordinator: one seam, `Transport`, and what stands behind it.

Rule: a transport carries contents and knows nothing of what they mean. `zeromq` is the direct stream, `calls` the way
through Ray's actor calls where no ports may be opened; only `calls` knows Ray, only `zeromq` ZeroMQ.
"""
