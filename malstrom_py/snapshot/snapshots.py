"""Where the snapshots of a job are kept, how often they are made, and how many stay."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from malstrom_py.errors import PlanError
from malstrom_py.local_path import local_path
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.local_store import LocalStore
from malstrom_py.snapshot.manifest import CHAIN_MAX
from malstrom_py.snapshot.object_store import ObjectStore
from malstrom_py.snapshot.store import Store

OBJECT_STORES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True)
class Snapshots:
    """What a runtime takes as ``snapshots=``.

    ``uri``: a folder (``"/data/snapshots"`` or ``"file:///data/snapshots"``), an object store
    (``"s3://bucket/folder"``, ``"gs://…"``, ``"az://…"``), or a `Store`. Each job has a folder of its own name in it.
    ``interval_s``: a snapshot is begun so many seconds after the one before; None: only when asked for. ``keep``: how
    many stay, savepoints apart. ``chain_max``: after how many deltas a chain is made into one. ``options``: for an
    object store, such as ``{"region": "eu-central-1"}``; what is not given comes from the environment.

    >>> Snapshots("/data/snapshots", interval_s=10).keep
    3

    Raises:
        PlanError: an argument makes no sense, or there is no such kind of store.
    """

    uri: str | os.PathLike[str] | Store
    interval_s: float | None = field(default=60.0, kw_only=True)
    keep: int = field(default=3, kw_only=True)
    chain_max: int = field(default=8, kw_only=True)
    options: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.interval_s is not None and not _is_number(self.interval_s):
            raise PlanError(
                f"snapshots: interval_s is a number of seconds above zero, or None, got {self.interval_s!r}"
            )
        if type(self.keep) is not int or self.keep < 1:
            raise PlanError(f"snapshots: keep is a whole number of at least 1, got {self.keep!r}")
        if type(self.chain_max) is not int or not 1 <= self.chain_max < CHAIN_MAX:
            raise PlanError(f"snapshots: chain_max is a whole number from 1 to {CHAIN_MAX - 1}, got {self.chain_max!r}")
        if not isinstance(self.store(), Store):
            raise PlanError(f"snapshots: uri is a folder, the address of an object store, or a Store, got {self.uri!r}")

    def store(self) -> Store:
        """The store, not yet opened."""
        if not isinstance(self.uri, str | os.PathLike):
            return self.uri
        kind = _kind_of(self.uri)
        if kind in OBJECT_STORES:
            if not str(self.uri).partition("://")[2].strip("/"):
                raise PlanError(f"snapshots: {self.uri!r} names no bucket: write {kind}://bucket/folder")
            return ObjectStore(str(self.uri), options=self.options)
        if kind != "file":
            raise PlanError(
                f"snapshots: {self.uri!r} is neither a folder nor an object store: write a path, file:///…, s3://…, "
                f"gs://… or az://…"
            )
        if self.options:
            raise PlanError(f"snapshots: options are for object stores, and {self.uri!r} is a folder")
        return LocalStore(local_path(self.uri, "snapshots"))

    def elsewhere(self, uri: str) -> Snapshots:
        """Where a savepoint at ``uri`` goes: ``options`` count there too if it is a store of the same kind.

        >>> Snapshots("s3://here/snapshots", options={"region": "eu-central-1"}).elsewhere("s3://there/saved").options
        {'region': 'eu-central-1'}
        """
        return Snapshots(uri, options=self.options if _kind_of(uri) == _kind_of(self.uri) else {})

    def checkpointer(self, job: str) -> StoreCheckpointer:
        """What writes and reads the snapshots of the job of that name."""
        return StoreCheckpointer(self.store(), job)


def _kind_of(uri: str | os.PathLike[str] | Store) -> str | None:
    """Its scheme, "file" for a path; None for a `Store`."""
    if not isinstance(uri, str | os.PathLike):
        return None
    scheme = _SCHEME.match(os.fspath(uri))
    return scheme[1].lower() if scheme else "file"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
