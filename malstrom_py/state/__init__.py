"""Keyed state: values and timers by key, the log of changed keys, and the stored form."""
