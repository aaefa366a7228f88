"""The staged files that payloads name. Nothing is touched before all of its names are checked.

A payload is JSON: ``files`` and ``folders`` (their names and their targets, relative to the place), ``schema`` (of all
the files, where the format has one), and ``details`` (of each file, for tables). Payloads of tables were a msgpack list
up to version 0.2. Manifests of snapshots hold payloads, so each form is read by all later versions.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

import msgpack

from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext

STAGING: Final = "_staging"
_ID: Final = "[A-Za-z0-9_-]{1,64}"
_RUN: Final = "[0-9a-f]{16}"
_IN_FOLDER: Final = rf"(?P<run>{_RUN})/(?P<snapshot>{_ID})-[0-9]+"
_IN_STORE: Final = rf"(?P<snapshot>{_ID})/(?P<run>{_RUN})-[0-9]{{6,}}"
_FORMS: Final = tuple(
    re.compile(rf"{STAGING}/(?P<job>{_ID})/(?P<step>{_ID})/{form}\.[a-z]+") for form in (_IN_FOLDER, _IN_STORE)
)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A pre-committed file ``name`` and its target ``folder``, both relative to the place.

    ``schema``: the packed schema of its rows, where a column of None alone has no type; None for formats without one,
    and in payloads of version 0.1. ``details``: what a table notes of the file. ``payload``: the position of its
    payload among those of the commit.
    """

    name: str
    folder: str
    schema: str | None = None
    details: Mapping[str, Any] | None = None
    payload: int = 0

    @property
    def suffix(self) -> str:
        """The end of its name, such as ``.csv``."""
        return PurePosixPath(self.name).suffix


def checked(name: str) -> str:
    """Return ``name`` if it can be part of a file name; raise `SinkError` if not."""
    if not re.fullmatch(_ID, name):
        raise SinkError(f"{name!r} cannot be part of a file name: use 1 to 64 letters, digits, '_' or '-'")
    return name


def pack(files: Sequence[StagedFile]) -> bytes:
    """Return the payload that names ``files``, all of one pre-commit of one writer."""
    named: dict[str, Any] = {"files": [file.name for file in files], "folders": [file.folder for file in files]}
    if files and files[0].schema is not None:
        named["schema"] = files[0].schema
    if files and files[0].details is not None:
        named["details"] = base64.b64encode(msgpack.packb([file.details for file in files]) or b"").decode()
    return json.dumps(named).encode()


def unpack(context: CommitContext, payloads: Sequence[bytes], *, together: bool = False) -> list[StagedFile]:
    """Return the files that ``payloads`` name, in an order that does not depend on that of the payloads.

    Files of one writer are in the order in which it wrote them. ``together``: files of earlier snapshots are published
    with those of ``context.snapshot``.

    Raises:
        SinkError: a payload is damaged, or names a file of another job, step or snapshot, or a folder elsewhere.
    """
    found: dict[str, tuple[str, str, StagedFile]] = {}
    for number, payload in enumerate(payloads):
        try:
            files = _of_json(payload, number) if payload[:1] == b"{" else _of_msgpack(payload)
        except (ValueError, KeyError, TypeError, msgpack.exceptions.UnpackException):
            raise SinkError(
                f"a pre-commit payload of step {context.step!r} is damaged: resume from an older snapshot"
            ) from None
        for file in files:
            found[file.name] = (*_owner(context, file, together=together), file)
    return [file for _, _, file in sorted(found.values(), key=lambda one: one[:2])]


def is_beneath(folder: object) -> bool:
    """Return whether ``folder`` consists of partition names: a ``=`` in each rules out ``..`` and empty names."""
    return isinstance(folder, str) and (
        not folder or all("=" in name and "\0" not in name for name in folder.split("/"))
    )


def packed_schemas(files: Sequence[StagedFile]) -> list[str]:
    """Return the different schemas of ``files``, in the order of their payloads, which is that of the workers."""
    found = dict.fromkeys(file.schema for file in sorted(files, key=lambda file: file.payload))
    return [schema for schema in found if schema is not None]


def _of_json(payload: bytes, number: int) -> list[StagedFile]:
    named = json.loads(payload)
    schema, details = named.get("schema"), [None] * len(named["files"])
    if not isinstance(schema, str | None):
        raise TypeError
    if "details" in named:
        details = msgpack.unpackb(base64.b64decode(named["details"], validate=True), strict_map_key=False)
    each = zip(named["files"], named["folders"], details, strict=True)
    return [StagedFile(name, folder, schema, detail, number) for name, folder, detail in each]


def _of_msgpack(payload: bytes) -> list[StagedFile]:
    """Return the files of a table up to version 0.2."""
    listed = msgpack.unpackb(payload, strict_map_key=False)
    return [StagedFile(one.pop("staged"), one.pop("folder"), details=one) for one in map(dict, listed)]


def _owner(context: CommitContext, file: StagedFile, *, together: bool) -> tuple[str, str]:
    """Return snapshot and writer of a file after a check of its names."""
    for form in _FORMS:
        match = form.fullmatch(file.name) if isinstance(file.name, str) else None
        if match is None or match["job"] != context.job or match["step"] != context.step:
            continue
        if (together or match["snapshot"] == context.snapshot) and is_beneath(file.folder):
            return match["snapshot"], match["run"]
    raise SinkError(f"a pre-commit payload of step {context.step!r} names a file of another job, step or snapshot")
