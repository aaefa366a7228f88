"""Where the snapshots of a job are kept, how often they are made, and how many stay."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from malstrom_py.errors import MalstromError, PlanError, SnapshotError
from malstrom_py.local_files import local_path
from malstrom_py.snapshot.checkpointer import Checkpointer, StoreCheckpointer
from malstrom_py.snapshot.local_store import LocalStore
from malstrom_py.snapshot.manifest import CHAIN_MAX
from malstrom_py.snapshot.object_store import ObjectStore
from malstrom_py.snapshot.store import Store
from malstrom_py.snapshot.user_checkpointer import CheckedCheckpointer, describe_error

OBJECT_STORES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


MakeCheckpointer = Callable[[str], Checkpointer]
"""What makes the checkpointer of the job of that name."""


@dataclass(frozen=True, init=False)
class Snapshots:
    """What a runtime takes as ``snapshots=``.

    ``uri``: a folder (``"/data/snapshots"`` or ``"file:///data/snapshots"``), an object store
    (``"s3://bucket/folder"``, ``"gs://…"``, ``"az://…"``), or a `Store`. Each job has a folder of its own name in it.
    ``interval_s``: a snapshot is begun so many seconds after the one before; None: only when asked for. ``keep``: how
    many stay, savepoints apart. ``chain_max``: after how many deltas a chain is made into one. ``options``: for an
    object store, such as ``{"region": "eu-central-1"}``; what is not given comes from the environment.
    ``checkpointer``, instead of ``uri``: a `Checkpointer` of your own, for one job, or a function (also a class) that
    makes one of a job's name. It must be one that cloudpickle can send where workers are other processes, as on Ray.

    >>> Snapshots("/data/snapshots", interval_s=10).keep
    3
    >>> from malstrom_py.snapshot.checkpointer import StoreCheckpointer
    >>> from malstrom_py.snapshot.store import MemoryStore
    >>> store = MemoryStore()
    >>> Snapshots(checkpointer=lambda job: StoreCheckpointer(store, job)).checkpointer("orders").list_checkpoints()
    []

    Raises:
        PlanError: an argument makes no sense, or there is no such kind of store.
    """

    uri: str | os.PathLike[str] | Store | None
    interval_s: float | None
    keep: int
    chain_max: int
    options: Mapping[str, str] = field(repr=False)
    _own: Checkpointer | MakeCheckpointer | None = field(init=False, repr=False)

    def __init__(
        self,
        uri: str | os.PathLike[str] | Store | None = None,
        *,
        interval_s: float | None = 60.0,
        keep: int = 3,
        chain_max: int = 8,
        options: Mapping[str, str] | None = None,
        checkpointer: Checkpointer | MakeCheckpointer | None = None,
    ) -> None:
        given = {"uri": uri, "interval_s": interval_s, "keep": keep, "chain_max": chain_max, "_own": checkpointer}
        for name, value in {**given, "options": options if options is not None else {}}.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        if self.interval_s is not None and not _is_number(self.interval_s):
            raise PlanError(
                f"snapshots: interval_s is a number of seconds above zero, or None, got {self.interval_s!r}"
            )
        if type(self.keep) is not int or self.keep < 1:
            raise PlanError(f"snapshots: keep is a whole number of at least 1, got {self.keep!r}")
        if type(self.chain_max) is not int or not 1 <= self.chain_max < CHAIN_MAX:
            raise PlanError(f"snapshots: chain_max is a whole number from 1 to {CHAIN_MAX - 1}, got {self.chain_max!r}")
        if self._own is not None:
            self._check_own()
        elif not isinstance(self.store(), Store):
            raise PlanError(
                f"snapshots: uri is a folder, the address of an object store, or a Store, got {_shown(self.uri)}"
            )

    def _check_own(self) -> None:
        if self.uri is not None or self.options:
            raise PlanError("snapshots: uri and options say where snapshots are kept, so does checkpointer: give one")
        if not callable(self._own):
            assert self._own is not None
            CheckedCheckpointer(self._own, "")

    @property
    def is_in_store(self) -> bool:
        """Whether they are kept in a store, and not by a checkpointer of the user's own."""
        return self._own is None

    def store(self) -> Store:
        """The store, not yet opened. `PlanError`: a checkpointer of the user's own keeps them, and has none."""
        if self.uri is None:
            raise PlanError(
                "snapshots: say where they are kept, mp.Snapshots(uri)"
                if self._own is None
                else f"snapshots: they are kept by {self._own_name}, and here a uri is needed"
            )
        if not isinstance(self.uri, str | os.PathLike):
            return self.uri
        kind = _kind_of(self.uri)
        if kind in OBJECT_STORES:
            if not str(self.uri).partition("://")[2].strip("/"):
                raise PlanError(f"snapshots: {_shown(self.uri)} names no bucket: write {kind}://bucket/folder")
            return ObjectStore(str(self.uri), options=self.options)
        if kind != "file":
            raise PlanError(
                f"snapshots: {_shown(self.uri)} is neither a folder nor an object store: write a path, file:///…, "
                f"s3://…, gs://… or az://…"
            )
        if self.options:
            raise PlanError(f"snapshots: options are for object stores, and {_shown(self.uri)} is a folder")
        return LocalStore(local_path(self.uri, "snapshots"))

    def elsewhere(self, uri: str) -> Snapshots:
        """Where a savepoint at ``uri`` goes: ``options`` count there too if it is a store of the same kind.

        >>> Snapshots("s3://here/snapshots", options={"region": "eu-central-1"}).elsewhere("s3://there/saved").options
        {'region': 'eu-central-1'}
        """
        return Snapshots(uri, options=self.options if _kind_of(uri) == _kind_of(self.uri) else {})

    @property
    def _own_name(self) -> str:
        return getattr(self._own, "__qualname__", type(self._own).__qualname__)

    def in_store(self, job: str) -> StoreCheckpointer:
        """What writes and reads the snapshots of the job of that name in the store."""
        return StoreCheckpointer(self.store(), job)

    def checkpointer(self, job: str) -> Checkpointer:
        """What writes and reads the snapshots of the job of that name.

        Raises:
            PlanError: the user's function makes none.
            SnapshotError: it raised.
        """
        if self._own is None:
            return self.in_store(job)
        if isinstance(self._own, Checkpointer) and not isinstance(self._own, type):
            return CheckedCheckpointer(self._own, job)
        try:
            made = self._own(job)
        except MalstromError:
            raise
        except Exception as error:
            raise SnapshotError(
                f"job {job!r}: {self._own_name} failed to make a checkpointer: it raised {describe_error(error)}"
            ) from error
        return CheckedCheckpointer(made, job)


def _shown(uri: object) -> str:
    return repr(os.fspath(uri) if isinstance(uri, os.PathLike) else uri)


def _kind_of(uri: str | os.PathLike[str] | Store | None) -> str | None:
    """Its scheme, "file" for a path; None for a `Store`, and for none."""
    if not isinstance(uri, str | os.PathLike):
        return None
    scheme = _SCHEME.match(os.fspath(uri))
    return scheme[1].lower() if scheme else "file"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
