"""Capture and replay: record a stream with its event time, check the recording, and read it again.

`StreamBuilder.capture_into` records, `Job.replay_from` and `sources.Replay` read. `check` examines a recording, `read`
gives its contents. A recording is in a `Folder`, `InMemory` or an `ObjectStore`; a `Writer` sends streams to any file
object, such as that of a socket, and a `Reader` receives them.
"""

from typing import TYPE_CHECKING

from malstrom_py.lazy_names import lazy_names

if TYPE_CHECKING:
    from malstrom_py.capture.checks import Fault, Stats, check, read, stats
    from malstrom_py.capture.frames import Clock, Corrupt, End, Header, Moved, Progress, Snapshotted, Truncated
    from malstrom_py.capture.places import Folder, InMemory, ObjectStore, Place
    from malstrom_py.capture.progress import ProtocolError
    from malstrom_py.capture.recording import Recording
    from malstrom_py.capture.streams import Reader, Writer
    from malstrom_py.data.batch import Batch
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "malstrom_py.capture.checks": "Fault Stats check read stats",
            "malstrom_py.capture.frames": "Clock Corrupt End Header Moved Progress Snapshotted Truncated",
            "malstrom_py.capture.places": "Folder InMemory ObjectStore Place",
            "malstrom_py.capture.progress": "ProtocolError",
            "malstrom_py.capture.recording": "Recording",
            "malstrom_py.capture.streams": "Reader Writer",
            "malstrom_py.data.batch": "Batch",
        },
    )

__all__ = [
    "Batch",
    "Clock",
    "Corrupt",
    "End",
    "Fault",
    "Folder",
    "Header",
    "InMemory",
    "Moved",
    "ObjectStore",
    "Place",
    "Progress",
    "ProtocolError",
    "Reader",
    "Recording",
    "Snapshotted",
    "Stats",
    "Truncated",
    "Writer",
    "check",
    "read",
    "stats",
]
