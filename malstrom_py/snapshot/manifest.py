"""What a manifest says: all that is needed to go on from one snapshot, at any number of workers (S5).

Rule: it lists every artefact that restoring needs, whole chains, so one manifest is enough, and what no manifest lists
is needed by nobody. `Manifest.check` holds of all that are written and of all that are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal

from malstrom_py.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.ids import is_snapshot_id

FORMAT: Final = 1
"""The format of the manifests that this version writes. It reads this one and all before it."""

CHAIN_MAX: Final = 1024
"""No chain of artefacts is longer, whatever `Snapshots` says."""

Kind = Literal["full", "delta"]

_OPERATOR = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def artefact_path(snapshot: str, operator: str, partition: int, kind: Kind, *, compacted: bool = False) -> str:
    """Where an artefact lies, relative to the folder of the job.

    >>> artefact_path("20261122T042242123456Z-1a2b3c4d", "totals", 0, "delta")
    'artefacts/20261122T042242123456Z-1a2b3c4d/totals-0.delta'
    """
    return f"artefacts/{snapshot}/{operator}-{partition}{'.compacted' if compacted else ''}.{kind}"


@dataclass(frozen=True, slots=True)
class Artefact:
    """One file of keyed state: what ``operator`` held on worker ``partition``, or what changed of it.

    ``snapshot``: the id under which it was written; ``path``: relative to the folder of the job; ``size`` in bytes.
    """

    operator: str
    partition: int
    kind: Kind
    snapshot: SnapshotId
    path: str
    size: int
    sha256: str

    def check(self) -> None:
        """ValueError unless it lies where such an artefact does, and nowhere else."""
        _demand(_OPERATOR.fullmatch(self.operator) is not None, "an artefact is of no step that there can be")
        _demand(self.partition >= 0, "a worker's number is below zero")
        _demand(is_snapshot_id(self.snapshot), "an artefact is of no snapshot")
        of_it = (self.snapshot, self.operator, self.partition, self.kind)
        places = {artefact_path(*of_it), artefact_path(*of_it, compacted=self.kind == "full")}
        _demand(self.path in places, f"the artefact of {self.operator!r} lies where none is")
        _demand(self.size >= 0 and _SHA256.fullmatch(self.sha256) is not None, f"{self.path} has no size or digest")


@dataclass(frozen=True, slots=True)
class PartImage:
    """How far a part of a source had been read: what `SourcePart.snapshot` gave, and whether nothing follows."""

    position: Any
    finished: bool = False


@dataclass(frozen=True, slots=True)
class StepImage:
    """One step of the job as it was: by this it is seen whether the state fits the job that is to go on from it.

    ``partitioner``: the name of what spreads its keys; ``migrate``: the name of the function that its state has been
    through, if any.
    """

    kind: str
    keyed: bool = False
    stateful: bool = False
    partitioner: str | None = None
    migrate: str | None = None


@dataclass(frozen=True, slots=True)
class PlanImage:
    """The job as it was: into how many slots its keys fall, and its steps by name, in their order."""

    slots: int
    steps: Mapping[str, StepImage] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One committed snapshot. ``sequence``: its place in the log of the job; ``created``: ISO 8601, UTC.

    ``sources``: step -> part -> `PartImage`; ``parts``: step -> part, as ``"source/part"`` -> what the step keeps for
    it; ``frontiers``: exchange -> epoch; ``sinks``: step -> what its writers have pre-committed; ``pins``: step -> what
    a source has pinned; ``result``: the `RunResult` in plain types, once the job has finished.
    """

    job: str
    id: SnapshotId
    sequence: int
    incarnation: int
    created: str
    workers: int
    plan: PlanImage
    parent: SnapshotId | None = None
    artefacts: Sequence[Artefact] = ()
    sources: Mapping[str, Mapping[str, PartImage]] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    frontiers: Mapping[str, int] = field(default_factory=dict)
    sinks: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    pins: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None
    savepoint: bool = False
    format: int = FORMAT

    def chains(self) -> dict[tuple[str, int], list[Artefact]]:
        """(operator, worker) -> its artefacts, the full one first."""
        chains: dict[tuple[str, int], list[Artefact]] = {}
        for artefact in self.artefacts:
            chains.setdefault((artefact.operator, artefact.partition), []).append(artefact)
        return chains

    def check(self) -> None:
        """ValueError, saying what is wrong, if no snapshot can be like this."""
        _demand(self.format == FORMAT, f"its format is {self.format}, where {FORMAT} is known")
        _demand(is_snapshot_id(self.id), "it has no id")
        _demand(self.sequence >= 1 and self.incarnation >= 1, "its number or incarnation is below one")
        _demand(self.workers >= 1 and self.plan.slots >= 1, "it is of no worker, or of no slot")
        if self.parent is not None:
            _demand(is_snapshot_id(self.parent) and self.parent < self.id, "its parent is not before it")
        for artefact in self.artefacts:
            artefact.check()
            _demand(artefact.snapshot <= self.id, f"{artefact.path} is of a later snapshot")
        for (operator, worker), chain in self.chains().items():
            _check_chain(f"step {operator!r} of worker {worker}", chain)
        _demand(
            len({artefact.path for artefact in self.artefacts}) == len(self.artefacts), "an artefact is there twice"
        )
        for epoch in self.frontiers.values():
            _demand(MIN_EPOCH <= epoch <= MAX_EPOCH, "a frontier is no epoch")


def _check_chain(what: str, chain: Sequence[Artefact]) -> None:
    kinds = [artefact.kind for artefact in chain]
    _demand(kinds[0] == "full" and kinds.count("full") == 1, f"{what}: a chain is one full artefact and then deltas")
    _demand(len(chain) <= CHAIN_MAX, f"{what}: a chain has {len(chain)} artefacts, where {CHAIN_MAX} are the most")
    for earlier, later in pairwise(chain):
        _demand(earlier.snapshot < later.snapshot, f"{what}: a chain is not in the order of its snapshots")


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
