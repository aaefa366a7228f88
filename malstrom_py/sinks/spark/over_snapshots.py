"""What one step remembers from snapshot to snapshot, in ``_staging/<job>/``.

``<step>~waiting/<snapshot>.json``: payloads that are committed, and shown by the final commit alone, because that
replaces what is there. ``<step>~committed``: what has been published through Spark, which nobody could tell otherwise.

Rule: what is noted here belongs to snapshots whose manifests stand, or stood; the rest goes at a recovery.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.staging import checked, make_private, remove_empty, sink_errors, staging_folder, sync
from malstrom_py.sinks.output_record import write_durably

_NOTED_MAX: Final = 1000
"""More manifests than anybody keeps."""


class OverSnapshots:
    """The memory of ``context``'s step, below ``root``."""

    def __init__(self, root: Path, context: CommitContext) -> None:
        staging = staging_folder(root, context.job, context.step)
        self._root = root
        self._waiting = staging.with_name(f"{staging.name}~waiting")
        self._noted = staging.with_name(f"{staging.name}~committed")

    def wait(self, snapshot: str, payloads: Sequence[bytes]) -> None:
        """Keep ``payloads`` for the final commit; again at will."""
        with sink_errors("cannot write to", self._waiting):
            make_private(self._waiting, self._root)
            texts = json.dumps([payload.decode() for payload in payloads]).encode()
            write_durably(self._waiting / f"{checked(snapshot)}.json", texts)
            self._sync_above(self._waiting)

    def waiting(self) -> dict[str, list[bytes]]:
        """What waits for the final commit, by snapshot, the oldest first."""
        with sink_errors("cannot read", self._waiting):
            return {path.stem: _payloads(path) for path in sorted(self._waiting.glob("*.json"))}

    def shown(self) -> None:
        """The final commit is done: nothing waits any more."""
        self._forget([*self._waiting.glob("*.json")])

    def note(self, snapshot: str) -> None:
        """``snapshot`` has been published."""
        with sink_errors("cannot write", self._noted):
            make_private(self._noted.parent, self._root)
            write_durably(self._noted, "\n".join([*self.noted(), snapshot][-_NOTED_MAX:]).encode())
            self._sync_above(self._noted)

    def noted(self) -> list[str]:
        """The snapshots that have been published, as far as that is not known otherwise."""
        with sink_errors("cannot read", self._noted):
            try:
                return self._noted.read_text().split()
            except FileNotFoundError:
                return []

    def recover(self, committed: Sequence[str]) -> None:
        """Forget what belongs to none of the ``committed`` snapshots, or to an earlier one that has no manifest now."""
        newest = max(committed, default="")
        self._forget([path for path in self._waiting.glob("*.json") if path.stem > newest])
        kept = [snapshot for snapshot in self.noted() if snapshot in committed]
        with sink_errors("cannot clear", self._noted):
            if kept:
                write_durably(self._noted, "\n".join(kept).encode())
            elif self._noted.exists():
                self._noted.unlink()
                remove_empty(self._noted.parent, self._root)

    def _forget(self, paths: Sequence[Path]) -> None:
        with sink_errors("cannot clear", self._waiting):
            for path in paths:
                path.unlink(missing_ok=True)
            remove_empty(self._waiting, self._root)

    def _sync_above(self, path: Path) -> None:
        for folder in (*[parent for parent in path.parents if self._root in parent.parents], self._root):
            sync(folder)


def _payloads(path: Path) -> list[bytes]:
    try:
        return [text.encode() for text in json.loads(path.read_bytes())]
    except (ValueError, TypeError, AttributeError):
        raise SinkError(f"{path} is damaged: it says what of a snapshot is to be shown at the job's end") from None
