"""Batches, messages, event time, and the types of columns."""
