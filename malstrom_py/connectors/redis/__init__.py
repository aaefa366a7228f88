"""Streams of Redis: `source` reads them, `sink` appends to one. Users reach both as ``RedisStream``."""
