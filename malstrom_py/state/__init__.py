"""Keyed state: values and timers by key, what of it has changed, and its stored form."""
