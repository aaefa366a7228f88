"""Snapshots and recovery done wrong, one way at a time: each must be seen in what comes out of some seeds.

Each takes the place of one function of the runtime. Rule: it must be such that a job without crashes does not notice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import malstrom_py as mp
from malstrom_py.operators.collect import CollectStep
from malstrom_py.operators.enrich.enrich import Enrich
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.log import JobStart, next_incarnation
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.state import ahead_of_barrier
from malstrom_py.state.ahead_of_barrier import AheadOfBarrier, PackedPart
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.workers.coordinator import recovery as beginning
from malstrom_py.workers.coordinator import snapshot_coordinator
from malstrom_py.workers.coordinator.coordinator import Coordinator
from malstrom_py.workers.coordinator.job_machine import SUSPENDS
from malstrom_py.workers.coordinator.recovery import RestorePoint
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.coordinator.snapshot_coordinator import SnapshotCoordinator
from malstrom_py.workers.engine import snapshot_capture
from malstrom_py.workers.engine.region_input import RegionInput
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.runtime import worker_host
from malstrom_py.workers.simulator import simulated_coordinator
from malstrom_py.workers.simulator.random_schedule import RandomSchedule
from tests.simulation.jobs.chain_watch import chains_watched
from tests.simulation.jobs.jobs import draw
from tests.simulation.jobs.protocol_watch import protocol_watched
from tests.simulation.jobs.stepped_calls import calls_stepped


class Wrong(NamedTuple):
    """``right`` is the function ``name`` of ``place``; ``wrong(right)`` takes its place. Seen in jobs of ``shape``."""

    place: Any
    name: str
    wrong: Callable[[Callable[..., Any]], Callable[..., Any]]
    seed: int
    shape: str = "two-stages"

    @contextmanager
    def done(self) -> Iterator[None]:
        """As long as this lasts it is done wrong."""
        with patch.object(self.place, self.name, self.wrong(getattr(self.place, self.name))):
            yield

    def seen(self, seed: int) -> str:
        """How a run shows it; nothing if it does not."""
        with self.done():
            return shown(self.shape, seed)


def shown(shape: str, seed: int) -> str:
    """What is wrong with a run that often saves and is lost; nothing if it is as it must be."""
    case = draw(random.Random(f"{shape} {seed}"), shape=shape)
    rng = random.Random(f"saving {seed}")
    saves = mp.Snapshots(MemoryStore(), interval_s=0.001, keep=rng.choice([1, 3]), chain_max=2)
    job = case.job(kept=True)
    try:
        workers, clock = rng.randint(1, 3), case.clock
        simulation = mp.Simulation(workers, seed=seed, crashes=6, clock=clock, snapshots=saves)
        broken = case.seen.broken
        # The tick is such that a snapshot is always in progress. Crashes do not wait for state that goes ahead.
        stays = patch.object(RandomSchedule, "ahead_least", lambda schedule: None)
        with (
            stays,
            calls_stepped(),
            patch.object(simulated_coordinator, "_TICK", 0.15),
            # Deltas of such small states are large; of every other run all state is large beside them.
            patch.object(snapshot_coordinator, "_TIMES", 2 * (seed % 2)),
            protocol_watched(broken),
            chains_watched(broken),
        ):
            simulation.run(job)
        case.check(case.seen.outcome())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def barrier_of_one_channel(right: Callable[..., Any]) -> Callable[..., Any]:
    """A barrier is let in with the first channel on which it comes."""

    def arrived(region_input: Any, message: Any, came_by: Any = None) -> None:
        let_in = region_input.__dict__.setdefault("let_in", set())
        if region_input._waiting is None and message not in let_in:
            let_in.add(message)
            region_input._waiting = message
            region_input._maybe_pass()
        for entry in region_input._entries.values():
            for lane in entry.exchange.inbound.values():
                lane.blocked = False

    return arrived


def epochs_held(right: Callable[..., Any]) -> Callable[..., Any]:
    """A barrier is let in though a step holds epochs, which are then in no image."""

    def maybe_pass(region_input: Any) -> None:
        holding, region_input._holding = region_input._holding, ()
        right(region_input)
        region_input._holding = holding

    return maybe_pass


def without_timers(right: Callable[..., Any]) -> Callable[..., Any]:
    """Timers are not restored."""

    def take_in(state: Any, keys: Any, values: Any, times: Any, how: str) -> None:
        right(state, keys, values, {} if "restored" in how else times, how)

    return take_in


def change_missed(right: Callable[..., Any]) -> Callable[..., Any]:
    """Of several keys that change together the last is not recorded."""
    return lambda state, keys: right(state, list(keys)[:-1])


def leaving_missed(right: Callable[..., Any]) -> Callable[..., Any]:
    """That a key has moved to another worker is not noted: what this one has written of it stays."""

    def collect(state: Any, keys: Any) -> Any:
        changes = state._changes
        if changes is None or changes.noted is None:
            return right(state, keys)
        noted = set(changes.noted)
        taken = right(state, keys)
        state.timers.noted = changes.noted = noted
        return taken

    return collect


def committed_early(right: Callable[..., Any]) -> Callable[..., Any]:
    """Sinks commit before the manifest is durable."""

    def store(snapshotting: Any, manifest: Any) -> None:
        snapshotting._commits.commit(snapshot=manifest.id, final=snapshotting._is_final)
        right(snapshotting, manifest)

    return store


def leaver_forgotten(right: Callable[..., Any]) -> Callable[..., Any]:
    """What a leaver had pre-committed is in no snapshot."""

    def pre_committed(sinks: Any, contexts: Any) -> list[Any]:
        list(right(sinks, contexts))
        return []

    return pre_committed


def nothing(right: Callable[..., Any]) -> Callable[..., Any]:
    """It is not done at all."""
    return lambda *given, **named: None


def no_state(right: Callable[..., Any]) -> Callable[..., Any]:
    """What steps keep for a part is lost."""
    return lambda resumption, part: {}


def frontiers_of_the_end(right: Callable[..., Any]) -> Callable[..., Any]:
    """Frontiers are those of the moment at which the image is complete, not of the barrier."""

    def maybe_cut(worker: Any, cutting: Any) -> None:
        if cutting.is_complete:
            for region_input in worker.inputs:
                cutting._frontiers.update({name: region_input.machine.frontier(name) for name in region_input._entries})
        right(worker, cutting)

    return maybe_cut


def claim_omitted(right: Callable[..., Any]) -> Callable[..., Any]:
    """A run takes no number of the log, so a dead run is not fenced off."""

    def claim(checkpointer: StoreCheckpointer, now_s: float, *, resume: str = "latest") -> JobStart:
        entries = checkpointer.entries()
        last = entries[-1].sequence if entries else 0
        return JobStart(next_incarnation(entries), last, resume, "1970-01-01T00:00:00+00:00", "0" * 16)

    return claim


def all_discarded(right: Callable[..., Any]) -> Callable[..., Any]:
    """Sinks do not learn which snapshots are durable."""
    return lambda commits, committed=(): right(commits, ())


def commit_forgotten(right: Callable[..., Any]) -> Callable[..., Any]:
    """A durable snapshot is not committed when the job restarts."""

    def make_ready(checkpointer: Any, commits: Any, found: Any) -> None:
        if found is not None:
            checkpointer.note_sinks_committed(found.manifest.id)
        right(checkpointer, commits, found)

    return make_ready


def none_in_flight(right: Callable[..., Any]) -> Callable[..., Any]:
    """What an enriching step has not had an answer to is lost."""
    return lambda step, chain, slots, **named: None


def last_forgotten(right: Callable[..., Any]) -> Callable[..., Any]:
    """Workers continue after the last barrier."""
    return lambda region_input, message, last=False: right(region_input, message)


def stopped_early(right: Any) -> Any:
    """The job stops before its last snapshot is durable."""

    def suspended(coordinator: Any) -> bool:
        return coordinator._machine.stop in SUSPENDS

    return property(suspended)


def always_continued(right: Callable[..., Any]) -> Callable[..., Any]:
    """A chain is continued also where a worker owns another part of it than before."""
    return lambda *given, **named: True


def noted_late(right: Callable[..., Any]) -> Callable[..., Any]:
    """What changes while state is packed ahead is noted from the end of the round on, not from its beginning."""

    def packed(ahead: Any) -> Iterator[None]:
        yield from right(ahead)
        if ahead.parts:
            ahead._state.round_begun(ahead._parent)

    return packed


def timers_noted_before(right: Callable[..., Any]) -> Callable[..., Any]:
    """Timers that change while state is packed ahead are noted among the changes before."""
    return lambda state, name: state.changes.written(name, None, None)


def packed_on(right: Callable[..., Any]) -> Callable[..., Any]:
    """A worker continues to pack a state whose barrier has passed, while the barrier passes other steps."""

    def finish(ahead: Any) -> Any:
        parent = right(ahead)
        ahead._has_passed = False
        later = PackedPart(True, lambda: ahead_of_barrier._delta_of(ahead._later, ahead._replaced))
        ahead._parts = [*ahead.parts, later]
        return parent

    return finish


def only_packed(right: Callable[..., Any]) -> Callable[..., Any]:
    """What has changed since state was packed ahead is not written."""
    return lambda parts, state: right(parts[:-1], parts[-1].made()) if parts else right(parts, state)


def packed_last(right: Callable[..., Any]) -> Callable[..., Any]:
    """Of what was packed in several rounds the oldest counts."""
    return lambda deltas: right(deltas[::-1])


def merged_last(right: Callable[..., Any]) -> Callable[..., Any]:
    """Of the deltas that are merged the oldest counts."""
    return lambda deltas: right(deltas[::-1])


WRONG: Final = {
    "a barrier is aligned on one channel only": Wrong(RegionInput, "_arrived", barrier_of_one_channel, 0, "two-inputs"),
    "a barrier is let in while a step holds epochs": Wrong(RegionInput, "_maybe_pass", epochs_held, 1, "enriched"),
    "timers are left out": Wrong(KeyedState, "_take_in", without_timers, 17, "windows-of-windows"),
    "a dirty key is missed": Wrong(KeyedState, "note", change_missed, 0),
    "a key that has left is missed": Wrong(KeyedState, "collect", leaving_missed, 76),
    "sinks commit before the manifest": Wrong(SnapshotCoordinator, "_store", committed_early, 43),
    "payloads of a leaver are lost": Wrong(worker_host, "pre_committed", leaver_forgotten, 292),
    "frontiers are not restored": Wrong(Worker, "continue_at", nothing, 5, "ttl"),
    "frontiers are those of the end": Wrong(Worker, "_maybe_cut", frontiers_of_the_end, 2, "windows-of-windows"),
    "states of parts are not restored": Wrong(RestorePoint, "_kept", no_state, 90, "linear"),
    "the claim is omitted": Wrong(StoreCheckpointer, "claim", claim_omitted, 0),
    "sinks discard what is valid": Wrong(SinkCommits, "recover", all_discarded, 4),
    "what is valid is not committed": Wrong(beginning, "_make_ready", commit_forgotten, 0),
    "a chain with slots of others is continued": Wrong(beginning, "all_or_none", always_continued, 17),
    "enrich in flight is left out": Wrong(Enrich, "install", none_in_flight, 1, "enriched"),
    "collect buffers are left out": Wrong(CollectStep, "install", none_in_flight, 2, "collect"),
    "changes while state is packed ahead are missed": Wrong(AheadOfBarrier, "_packed", noted_late, 31),
    "timers that change while state is packed are missed": Wrong(
        KeyedState, "round_begun", timers_noted_before, 3, "windows-of-windows"
    ),
    "changes after state was packed ahead are missed": Wrong(snapshot_capture, "split", only_packed, 0),
    "state is packed after its barrier": Wrong(AheadOfBarrier, "finish", packed_on, 19),
    "the oldest of what was packed counts": Wrong(ahead_of_barrier, "merged_deltas", packed_last, 38),
    "the oldest of merged deltas counts": Wrong(snapshot_coordinator, "merged_deltas", merged_last, 0),
    "workers continue after the last barrier": Wrong(RegionInput, "at_sources", last_forgotten, 51),
    "a job stops before its last snapshot is durable": Wrong(Coordinator, "suspended", stopped_early, 6),
}
"""The error, its place, and the first seed that shows it: another seed soon after must show it too."""
