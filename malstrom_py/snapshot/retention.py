"""Selection of the snapshots and files that pruning removes. Pure: works on lists of entries and paths.

Rule: a file that a kept manifest lists, or that a later one may list, is kept. While an entry of the log that is newer
than the oldest kept one cannot be read, everything is kept, because it is unknown what that entry lists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.ids import is_snapshot_id, made_at_s
from malstrom_py.snapshot.log import FOLDER, LogEntry, history, path_of
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.store import PART, is_below

ARTEFACTS: Final = "artefacts"
COMMITS: Final = "commits"


@dataclass(frozen=True, slots=True)
class Pruned:
    """The removed snapshots, and the removed files, relative to the folder of the job."""

    snapshots: tuple[SnapshotId, ...]
    files: tuple[str, ...]


class Pruning:
    """The selection from the log ``entries`` and the ``files`` of a job that keeps ``keep`` whole snapshots.

    ``is_whole`` verifies one snapshot; it is called as rarely as possible.
    """

    def __init__(
        self, entries: Sequence[LogEntry], files: Collection[str], is_whole: Callable[[Manifest], bool], *, keep: int
    ) -> None:
        self._entries = entries
        self._files = frozenset(files)
        self._is_whole = is_whole
        self._keep = keep

    def snapshots(self) -> list[Manifest]:
        """Return the snapshots to remove, oldest first. Savepoints are kept in addition to ``keep``."""
        by_number = self._newest_whole(reversed(self._entries))
        by_history = self._newest_whole(history(self._entries))
        if len(by_number) < self._keep or not by_history:
            return []
        oldest = min(manifest.sequence for manifest in by_number + by_history)
        if any(entry.content is None for entry in self._entries if entry.sequence > oldest):
            return []
        return [
            entry.manifest
            for entry in self._entries
            if entry.manifest is not None and entry.sequence < oldest and not entry.manifest.savepoint
        ]

    def files(self, dropped: Collection[Manifest], *, made_before_s: float) -> list[str]:
        """Return the files to remove: those of the ``dropped`` snapshots, and those of no snapshot that were made
        before ``made_before_s``, in seconds since 1970.
        """
        gone = {manifest.id for manifest in dropped}
        staying = [e.manifest for e in self._entries if e.manifest is not None and e.manifest.id not in gone]
        first = min((manifest.sequence for manifest in staying if not manifest.savepoint), default=0)
        if not staying or any(entry.content is None for entry in self._entries if entry.sequence > first):
            return []
        needed = {artefact.path for manifest in staying for artefact in manifest.artefacts}
        newest = max(manifest.id for manifest in staying)
        last = path_of(self._entries[-1].sequence)

        def can_go(path: str) -> bool:
            folder, _, rest = path.partition("/")
            snapshot = rest.partition("/")[0]
            if folder == FOLDER:
                return path.endswith(PART) and path < last
            if folder not in (ARTEFACTS, COMMITS) or not is_snapshot_id(snapshot) or path in needed:
                return False
            if folder == COMMITS:
                return snapshot < newest and snapshot not in {manifest.id for manifest in staying}
            # Snapshots are taken one by one: one that is older than the newest is not in progress.
            return snapshot in gone or (snapshot < newest and made_at_s(snapshot) < made_before_s)

        return sorted(filter(can_go, self._files))

    def _newest_whole(self, entries: Iterable[LogEntry]) -> list[Manifest]:
        found = (entry.manifest for entry in entries if entry.manifest is not None and not entry.manifest.savepoint)
        return list(islice(filter(self._whole_here, found), self._keep))

    def _whole_here(self, manifest: Manifest) -> bool:
        return all(artefact.path in self._files for artefact in manifest.artefacts) and self._is_whole(manifest)


def files_of(manifest: Manifest, others: Iterable[Manifest], files: Iterable[str]) -> list[str]:
    """Return the ``files`` that belong to the snapshot of ``manifest`` and that none of the ``others`` needs."""
    needed = {artefact.path for other in others for artefact in other.artefacts}
    listed = {artefact.path for artefact in manifest.artefacts}
    return [
        path
        for path in files
        if path not in needed
        and (path in listed or is_below(path, f"{ARTEFACTS}/{manifest.id}") or path == f"{COMMITS}/{manifest.id}")
    ]
