"""The description of the data files of a sink in payloads. `places` says where the files are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgpack

from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.objects import STAGED_OBJECT
from malstrom_py.sinks.files.publishing import is_beneath
from malstrom_py.sinks.files.staging import STAGED


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A pre-committed file. ``staged``: its path, and ``folder`` its target, relative to the folder of the table's
    files. ``values``: those of the partition columns, as texts. ``stats`` and ``spec``: see the table.
    """

    staged: str
    folder: str
    size: int
    rows: int
    values: Sequence[str | None]
    stats: Any
    spec: int

    @property
    def path(self) -> str:
        """The path of the file in the table. It depends on the staged path alone, so each process finds the same."""
        _, _, *names = self.staged.split("/")
        return f"{self.folder}/{'-'.join(names)}".lstrip("/")


def pack_files(files: Iterable[LakeFile]) -> bytes:
    """Return the payload that names ``files``."""
    return bytes(msgpack.packb([asdict(file) for file in files]) or b"")


def unpack_files(context: CommitContext, payloads: Sequence[bytes]) -> list[LakeFile]:
    """Return the files that ``payloads`` name; `SinkError` if one is damaged or names files of another step."""
    files = []
    for payload in payloads:
        try:
            files += [LakeFile(**named) for named in msgpack.unpackb(payload, strict_map_key=False)]
        except (ValueError, TypeError, msgpack.exceptions.UnpackException):
            raise SinkError(
                f"a pre-commit payload of step {context.step!r} is damaged: resume from an older snapshot"
            ) from None
    for file in files:
        match = STAGED.fullmatch(file.staged) or STAGED_OBJECT.fullmatch(file.staged)
        if match is None or match.groups()[:2] != (context.job, context.step):
            raise SinkError(f"a pre-commit payload of step {context.step!r} names a file of another job or step")
        if not is_beneath(file.folder):
            raise SinkError(f"a pre-commit payload of step {context.step!r} names a folder of no partition")
    return sorted(files, key=lambda file: file.staged)
