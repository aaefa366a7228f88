"""Sources that are asked again and again: message brokers, databases that report changes, and what users poll.

A connector names partitions and opens a `PolledReader` for each, which returns `PolledChunk` after `PolledChunk`. The
thread, the buffer, positions, errors, lag and the end of a bounded run are here. See docs/design/0050-one-poll.md.
"""

from malstrom_py.sources.polled.part import PolledPart
from malstrom_py.sources.polled.reading import PolledChunk, PolledReader
from malstrom_py.sources.polled.source import PolledSource

__all__ = ["PolledChunk", "PolledPart", "PolledReader", "PolledSource"]
