"""Those who look into the job of `tests.integration.ray.chaos` while its workers are killed and it is rescaled.

Rule: an answer may be refused by an error of ours while the job recovers, and is never wrong. State is what the
positions of the sources at its snapshot make it; a record of a tap is a row of the output, unless a kill took it back;
a shadow of the same code has no differences. After each kill all of them get answers again within `PATIENCE_S`.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

import malstrom_py as mp
from malstrom_py.errors import InternalError, JobEnded, MalstromError, PlanError, ReloadError
from malstrom_py.sinks.base import SnapshotId
from tests.integration.ray.chaos_ends import Row

KEYS: Final = 97
STEP: Final = "count"
PATIENCE_S: Final = 120.0


def counts_at(positions: Mapping[int, int]) -> dict[int, int]:
    """Return the state of each key once each part was read up to its position."""
    counts = {key: sum(len(range(key, position, KEYS)) for position in positions.values()) for key in range(KEYS)}
    return {key: count for key, count in counts.items() if count}


class Watchers:
    """Threads that query, follow, tap and shadow the job of ``handle``, whose snapshots are ``kept``.

    They end with the job. Each answer counts in ``answers``, by who got it, and each refusal in ``refused``.
    """

    def __init__(self, handle: mp.JobHandle, kept: mp.Snapshots, seed: int) -> None:
        self.answers = defaultdict[str, int](int)
        self.refused = defaultdict[str, int](int)
        self.texts: dict[str, str] = {}
        self._handle, self._store, self._rng = handle, kept.in_store(handle.name), random.Random(seed)
        self._failures: list[BaseException] = []
        self._ended = threading.Event()
        self._tapped: list[Row] = []
        self._struck: list[tuple[int, Mapping[int, int]]] = []
        watching = (self._query, self._follow, self._tap, self._shadow)
        self._threads = [threading.Thread(target=self._run, args=(one,), daemon=True) for one in watching]
        for thread in self._threads:
            thread.start()

    def __str__(self) -> str:
        return f"{dict(self.answers)}, refused {dict(self.refused)} {self.texts}"

    def positions(self, snapshot: str | None) -> dict[int, int]:
        """Return how far each part was read at a snapshot."""
        images = {} if snapshot is None else self._store.load_manifest(SnapshotId(snapshot)).sources["in"]
        return {int(part): int(image.position) for part, image in images.items()}

    def struck(self, positions: Mapping[int, int]) -> None:
        """Wait until all have got an answer after a kill, which took back what was read after ``positions``."""
        before, until_s = dict(self.answers), time.monotonic() + PATIENCE_S
        waited = {"query", "change", "tap", "shadow"}
        while waited := {who for who in waited if self.answers[who] <= before.get(who, 0)}:
            self._check()
            assert time.monotonic() < until_s, f"no {waited} since a kill: {self}, {self.texts}"
            time.sleep(0.02)
        self._struck.append((len(self._tapped), positions))

    def end(self, rows: list[Row]) -> None:
        """Check what was seen against the ``rows`` that the job has written. The job has ended."""
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), thread
        self._check()
        written = {(row["part"], row["number"]): row for row in rows}
        for index, row in enumerate(self._tapped):
            if written.get((row["part"], row["number"])) != row:
                assert self._may_be_taken_back(index, row), (row, written.get((row["part"], row["number"])))
                self.answers["tapped and taken back"] += 1

    def _may_be_taken_back(self, index: int, row: Row) -> bool:
        """Return whether a kill after record ``index`` of the tap took back records like ``row``."""
        return any(index < end and row["number"] >= at.get(row["part"], 0) for end, at in self._struck)

    def _check(self) -> None:
        if self._failures:
            raise self._failures[0]

    def _run(self, watch: Callable[[], None]) -> None:
        try:
            watch()
        except BaseException as error:
            self._failures.append(error)

    def _refuse(self, who: str, error: MalstromError) -> None:
        """Note a refusal, and wait a little. One that says that the job lacks something is wrong."""
        if isinstance(error, PlanError | InternalError):
            raise error
        self.refused[f"{who}: {type(error).__name__}"] += 1
        self.texts[f"{who}: {type(error).__name__}"] = str(error)
        time.sleep(0.05)

    def _query(self) -> None:
        """Ask for the state of a key or of all, as of the last snapshot or a fresh one; here, or by the socket."""
        rng, handles = random.Random(self._rng.random()), (self._handle, mp.JobHandle.attach(self._handle.name))
        while not self._ended.is_set():
            try:
                key = rng.randrange(KEYS) if rng.random() < 0.3 else None
                snapshot, found = _asked(rng.choice(handles), key, rng, fresh=rng.random() < 0.1)
                truth = counts_at(self.positions(snapshot))
            except MalstromError as error:
                self._refuse("query", error)
                continue
            assert found == (truth if key is None else {key: truth.get(key)}), snapshot
            self.answers["query"] += 1
            time.sleep(0.02)

    def _follow(self) -> None:
        """Keep a copy of the state by its changes."""
        rng, since = random.Random(self._rng.random()), None
        known: dict[int, Any] = {}
        while not self._ended.is_set():
            try:
                if since is None:
                    since, known = _asked(self._handle, None, rng, fresh=False)
                for change in self._handle.changes(STEP, since=since):
                    if change.since is None:
                        known = {}
                    else:
                        assert change.since == since, (change.since, since)
                    known |= _counts(change.table)
                    since = change.snapshot
                    assert not change.gone
                    assert known == counts_at(self.positions(since)), since
                    self.answers["change"] += 1
                return
            except JobEnded:
                return
            except MalstromError as error:
                self._refuse("change", error)

    def _tap(self) -> None:
        """Follow a tap to the end of the job."""
        while not self._ended.is_set():
            try:
                for record in self._handle.tap(STEP):
                    row = record.value
                    assert (record.key, row["key"]) == (row["number"] % KEYS, row["number"] % KEYS), record
                    self._tapped.append(row)
                    self.answers["tap"] += 1
                return
            except JobEnded:
                return
            except MalstromError as error:
                self._refuse("tap", error)

    def _shadow(self) -> None:
        """Begin a shadow of the same code, look at it, and promote or drop it, again and again."""
        rng = random.Random(self._rng.random())
        while not self._ended.is_set():
            try:
                self._handle.reload(STEP, shadow=True)
                until_s = time.monotonic() + rng.uniform(0.0, 4.0)
                while time.monotonic() < until_s:
                    self._look()
                    time.sleep(0.1)
                if rng.random() < 0.5:
                    self._handle.promote(STEP, probation_s=0.2)
                    self.answers["promoted"] += 1
                else:
                    self._handle.drop(STEP)
                    self.answers["dropped"] += 1
            except JobEnded:
                return
            except MalstromError as error:
                self._refuse("shadow", error)
                self._drop()

    def _look(self) -> None:
        """Compare both codes; that there is no shadow is not true: one has begun."""
        try:
            report = self._handle.shadow(STEP)
        except PlanError as error:
            raise AssertionError(error) from error
        assert (report.different, report.failure, report.pairs) == (0, "", ()), report
        self.answers["shadow"] += bool(report.compared)

    def _drop(self) -> None:
        """Drop the shadow that a refusal may have left. There is one if the job reports one."""
        while not self._ended.is_set():
            try:
                has_shadow = self._has_shadow()
                self._handle.drop(STEP)
            except ReloadError as error:
                if "it has no shadow" in str(error):
                    assert not has_shadow, "a shadow is reported, and there is none"
                    return
                self._refuse("drop", error)
            except JobEnded:
                return
            except MalstromError as error:
                self._refuse("drop", error)
            else:
                assert has_shadow, "a shadow was dropped that was not reported"
                return

    def _has_shadow(self) -> bool:
        try:
            self._handle.shadow(STEP)
        except PlanError:
            return False
        return True


def _asked(
    handle: mp.JobHandle, key: int | None, rng: random.Random, *, fresh: bool
) -> tuple[SnapshotId, dict[int, Any]]:
    """Return a snapshot, and the counts of all keys or of ``key`` at it, by one of the ways to ask for them."""
    if key is None and rng.random() < 0.3:
        rows = handle.query(f"select key, value from {STEP}", fresh=fresh)
        return SnapshotId((rows.schema.metadata or {})[b"snapshot"].decode()), _counts(rows)
    state = handle.state(STEP, fresh=fresh)
    found = _counts(state.to_arrow()) if key is None else {key: _seen(state.get(key))}
    return state.snapshot, found


def _counts(rows: Any) -> dict[int, Any]:
    return {row["key"]: _seen(row["value"]) for row in rows.to_pylist()}


def _seen(state: Any) -> Any:
    """Return the count in the state of a key, if it has one. In a table, a state with a ballast is JSON."""
    state = json.loads(state) if isinstance(state, str) else state
    return state[0] if isinstance(state, list | tuple) else state
