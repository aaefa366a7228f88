"""Workers as Ray actors. Rule: nothing outside this package and `workers.transport.calls` imports ray, and both only
when they are used.
"""
