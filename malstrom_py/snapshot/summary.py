"""Summaries of the snapshots in a store, for people and tools; no state is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from malstrom_py.errors import SnapshotError
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.snapshot.ids import made_at_s
from malstrom_py.snapshot.log import LogEntry
from malstrom_py.snapshot.manifest import Artefact, Manifest, as_json
from malstrom_py.snapshot.store import Store, place_of


@dataclass(frozen=True, slots=True)
class StateSummary:
    """The size of the keyed state of one step in a snapshot: workers, artefacts and bytes.

    ``chain``: the length of its longest chain; ``full`` and ``delta``: bytes.
    """

    step: str
    workers: int
    artefacts: int
    chain: int
    full: int
    delta: int


def jobs_in(store: Store) -> list[str]:
    """Return the sorted names of the jobs that have a log in ``store``."""
    return sorted({path.split("/")[0] for path in store.list("") if path.split("/")[1:2] == ["log"]})


def find_job(store: Store, job: str | None) -> str:
    """Return ``job``, or by default the only job; `SnapshotError` if it has no snapshots, or there are several jobs."""
    jobs = jobs_in(store)
    if job is None and len(jobs) == 1:
        return jobs[0]
    if job is None and jobs:
        raise SnapshotError(f"{place_of(store)} has the snapshots of several jobs: name one of {', '.join(jobs)}")
    if job is None or job not in jobs:
        whose = "" if job is None else f" of job {job!r}"
        there = f"snapshots of {', '.join(jobs)}" if jobs else "no snapshots"
        raise SnapshotError(f"{place_of(store)} has no snapshot{whose}; it has {there}")
    return job


def manifests_of(checkpointer: Checkpointer) -> list[Manifest]:
    """Return the snapshots of a job that can be read, oldest first."""
    return [entry.manifest for entry in checkpointer.entries() if entry.manifest is not None]


def unreadable_entries(checkpointer: Checkpointer) -> list[LogEntry]:
    """Return the entries of a job's log that cannot be read."""
    return [entry for entry in checkpointer.entries() if entry.content is None]


def state_of(manifest: Manifest) -> list[StateSummary]:
    """Return the size of the keyed state of each step, in the order of the plan."""
    chains: dict[str, list[Sequence[Artefact]]] = {}
    for (step, _), chain in manifest.chains().items():
        chains.setdefault(step, []).append(chain)
    ranks = {step: rank for rank, step in enumerate(manifest.plan.steps)}
    return [
        StateSummary(
            step,
            workers=len(of_step),
            artefacts=sum(map(len, of_step)),
            chain=max(map(len, of_step)),
            full=_size(of_step, "full"),
            delta=_size(of_step, "delta"),
        )
        for step, of_step in sorted(chains.items(), key=lambda pair: ranks.get(pair[0], len(ranks)))
    ]


def positions_of(manifest: Manifest) -> Iterator[tuple[str, str, Any, bool]]:
    """Return (source, part, position in JSON, finished) of every part; a type that JSON lacks is encoded."""
    for step, parts in manifest.sources.items():
        for part, image in parts.items():
            yield step, part, as_json(image.position, step=step), image.finished


def size_of(manifest: Manifest) -> int:
    """Return the bytes of keyed state that a snapshot lists, including those shared with other snapshots."""
    return sum(artefact.size for artefact in manifest.artefacts)


def notes_on(manifest: Manifest) -> list[str]:
    """Return the marks of a snapshot: savepoint, end of the job."""
    return [
        *(["savepoint"] if manifest.savepoint else []),
        *(["the job has finished"] if manifest.result is not None else []),
    ]


def as_plain(manifest: Manifest) -> dict[str, Any]:
    """Return a snapshot in types of JSON, without state."""
    return {
        "job": manifest.job,
        "snapshot": manifest.id,
        "made_at_s": made_at_s(manifest.id),
        "sequence": manifest.sequence,
        "incarnation": manifest.incarnation,
        "parent": manifest.parent,
        "workers": manifest.workers,
        "slots": manifest.plan.slots,
        "artefacts": len(manifest.artefacts),
        "bytes": size_of(manifest),
        "savepoint": manifest.savepoint,
        "finished": manifest.result is not None,
    }


def _size(chains: Sequence[Sequence[Artefact]], kind: str) -> int:
    return sum(artefact.size for chain in chains for artefact in chain if artefact.kind == kind)
