"""The control socket of a running job, and its clients."""
