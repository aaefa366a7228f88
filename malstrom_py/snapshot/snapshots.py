"""The settings of a job's snapshots: the place, the interval and the number to keep."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from malstrom_py.errors import MalstromError, PlanError, SnapshotError
from malstrom_py.errors.text import describe_error
from malstrom_py.local_files import local_path
from malstrom_py.snapshot.checkpointer import Checkpointer, StoreCheckpointer
from malstrom_py.snapshot.local_store import LocalStore
from malstrom_py.snapshot.manifest import CHAIN_MAX
from malstrom_py.snapshot.object_store import ObjectStore
from malstrom_py.snapshot.store import Store, place_of
from malstrom_py.snapshot.user_checkpointer import CheckedCheckpointer

OBJECT_STORES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


MakeCheckpointer = Callable[[str], Checkpointer]
"""Makes the checkpointer of a job from the name of the job."""


@dataclass(frozen=True, init=False)
class Snapshots:
    """The argument ``snapshots=`` of a runtime.

    ``uri``: a folder (``"/data/snapshots"`` or ``"file:///data/snapshots"``), an object store
    (``"s3://bucket/folder"``, ``"gs://…"``, ``"az://…"``), or a `Store`. Each job has a folder with its name in it.
    ``interval_s``: the seconds between the starts of two snapshots; None: only on request. ``keep``: the number of
    snapshots to keep, besides savepoints. ``chain_max``: the number of deltas after which some of a chain are merged.
    ``options``: for an object store, such as ``{"region": "eu-central-1"}``; other options come from the environment.
    ``checkpointer``, instead of ``uri``: your `Checkpointer` for one job, or a function or class that makes one from
    the name of the job. Where workers are other processes, as on Ray, cloudpickle must be able to send it.

    >>> Snapshots("/data/snapshots", interval_s=10).keep
    3
    >>> from malstrom_py.snapshot.checkpointer import StoreCheckpointer
    >>> from malstrom_py.snapshot.store import MemoryStore
    >>> store = MemoryStore()
    >>> Snapshots(checkpointer=lambda job: StoreCheckpointer(store, job)).checkpointer("orders").list_checkpoints()
    []

    Raises:
        PlanError: an argument is invalid, or the kind of store is unknown.
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
                f"snapshots: interval_s must be a number of seconds above zero, or None, got {self.interval_s!r}"
            )
        if type(self.keep) is not int or self.keep < 1:
            raise PlanError(f"snapshots: keep must be a whole number of at least 1, got {self.keep!r}")
        if type(self.chain_max) is not int or not 1 <= self.chain_max < CHAIN_MAX:
            raise PlanError(
                f"snapshots: chain_max must be a whole number from 1 to {CHAIN_MAX - 1}, got {self.chain_max!r}"
            )
        if self._own is not None:
            self._check_own()
        elif not isinstance(self.store(), Store):
            raise PlanError(
                f"snapshots: uri must be a folder, the URL of an object store, or a Store, got {_shown(self.uri)}"
            )

    def _check_own(self) -> None:
        if self.uri is not None or self.options:
            raise PlanError("snapshots: give either checkpointer, or uri and options, not both")
        if not callable(self._own):
            assert self._own is not None
            CheckedCheckpointer(self._own, "")

    @property
    def is_in_store(self) -> bool:
        """Whether a store keeps the snapshots, and not a checkpointer of the user."""
        return self._own is None

    def store(self) -> Store:
        """Return the store, not yet opened. `PlanError`: a checkpointer of the user keeps the snapshots."""
        if self.uri is None:
            raise PlanError(
                "snapshots: give the place of the snapshots, mp.Snapshots(uri)"
                if self._own is None
                else f"snapshots: {self._own_name} keeps the snapshots, but this call needs a uri"
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
        """Return the settings of a savepoint at ``uri``; ``options`` apply there too if the kind of store is the same.

        >>> Snapshots("s3://here/snapshots", options={"region": "eu-central-1"}).elsewhere("s3://there/saved").options
        {'region': 'eu-central-1'}
        """
        return Snapshots(uri, options=self.options if _kind_of(uri) == _kind_of(self.uri) else {})

    @property
    def place(self) -> tuple[str | None, str]:
        """The uri for other processes, or else what keeps the snapshots, for messages.

        >>> Snapshots("s3://here/snapshots").place
        ('s3://here/snapshots', '')
        """
        if isinstance(self.uri, str | os.PathLike):
            is_folder = _kind_of(self.uri) == "file"
            return (str(local_path(self.uri, "snapshots").absolute()) if is_folder else str(self.uri)), ""
        return None, self._own_name if self.uri is None else place_of(self.uri)

    @property
    def _own_name(self) -> str:
        return getattr(self._own, "__qualname__", type(self._own).__qualname__)

    def in_store(self, job: str) -> StoreCheckpointer:
        """Return the checkpointer of ``job`` in the store."""
        return StoreCheckpointer(self.store(), job)

    def checkpointer(self, job: str) -> Checkpointer:
        """Return the checkpointer of ``job``.

        Raises:
            PlanError: the user's function does not return a checkpointer.
            SnapshotError: the user's function raised.
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
    """Return the scheme of ``uri``, "file" for a path; None for a `Store` or None."""
    if not isinstance(uri, str | os.PathLike):
        return None
    scheme = _SCHEME.match(os.fspath(uri))
    return scheme[1].lower() if scheme else "file"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
