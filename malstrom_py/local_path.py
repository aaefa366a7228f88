"""The folder that a path or a ``file:`` URI means, wherever a user may name one.

Rule: what begins like a URI is one. ``file:///path``, and ``file:/path`` as Spark writes it, are local; others are not.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from malstrom_py.errors import PlanError

_URI: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*:/")

NO_OBJECT_STORES: Final = " (files in object stores are not there yet, see docs/not-yet.md#files-in-object-stores)"
"""What a message about a URI of another place ends with."""


def local_path(uri: object, asked_by: str) -> Path:
    """The path that ``uri`` means, absolute. ``asked_by`` is named in errors.

    >>> local_path("file:/data/a%20b", "sinks.Files"), local_path("/data", "sinks.Files")
    (PosixPath('/data/a b'), PosixPath('/data'))

    Raises:
        PlanError: it is no path and no URI of a file on this machine.
    """
    if not isinstance(uri, str | os.PathLike) or not isinstance(os.fspath(uri), str):
        raise PlanError(f"{asked_by} takes a path or a file:// URI, got {type(uri).__name__}")
    if not os.fspath(uri):
        raise PlanError(f"{asked_by} takes a path or a file:// URI, got an empty text")
    text = os.fspath(uri)
    if _URI.match(text):
        parts = urlsplit(text)
        is_local = parts.scheme == "file" and parts.netloc in {"", "localhost"} and parts.path.strip("/")
        if not is_local or parts.query or parts.fragment:
            raise PlanError(
                f"{asked_by} takes a local folder, which all who need it see under one path: give a path or "
                f"file:///path, not {text!r}{'' if parts.scheme == 'file' else NO_OBJECT_STORES}"
            )
        text = unquote(parts.path)
    if "\0" in text:
        raise PlanError(f"{asked_by} got a path with a NUL character")
    return Path(text).expanduser().absolute()
