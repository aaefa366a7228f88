"""Capture and replay: record a stream with its event time, check the recording, and read it again.

`StreamBuilder.capture_into` records, `Job.replay_from` and `sources.Replay` read. `check` examines a recording, `read`
gives its contents, and `InMemory` keeps one in this process.
"""

from malstrom_py.capture.check import Fault, Stats, check, read, stats
from malstrom_py.capture.frames import Corrupt, End, Header, Moved, Progress, Snapshotted, Truncated
from malstrom_py.capture.progress import ProtocolError
from malstrom_py.capture.recording import Folder, InMemory, Place, Recording
from malstrom_py.data.batch import Batch

__all__ = [
    "Batch",
    "Corrupt",
    "End",
    "Fault",
    "Folder",
    "Header",
    "InMemory",
    "Moved",
    "Place",
    "Progress",
    "ProtocolError",
    "Recording",
    "Snapshotted",
    "Stats",
    "Truncated",
    "check",
    "read",
    "stats",
]
