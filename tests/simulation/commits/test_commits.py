"""Exactly once wherever a job dies or pauses: a few seeds for each target; and each wrong sink is seen.

`test_chosen_seeds.py` runs more of them, and `make soak` any number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from malstrom_py.connectors.kafka import publishing
from malstrom_py.connectors.kafka.staging import Segment
from malstrom_py.errors import FencedError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.snapshot.ids import number_of
from tests.simulation.commits.hooks import WatchedSink, watched_disk
from tests.simulation.commits.ledger import (
    WRONG,
    AbortDeletesOthers,
    CommitsTwice,
    Entries,
    ForgetsAPayload,
    MarksFirst,
    MarksLast,
    PublishesEarly,
    RecoverDeletesCommitted,
    RecoverDeletesNewer,
    TakesBack,
)
from tests.simulation.commits.lives import Fault, Life, life_here
from tests.simulation.commits.runs import Scene, Violation, run
from tests.simulation.commits.targets import TARGETS, ledger

SEEN_BY = {
    CommitsTwice: 1,
    PublishesEarly: 1,
    RecoverDeletesCommitted: 1,
    RecoverDeletesNewer: 36,
    AbortDeletesOthers: 14,
    MarksFirst: 2,
    ForgetsAPayload: 0,
    MarksLast: 2,
    TakesBack: 6,
}
"""The first seed that sees each wrong sink. Where what seeds draw has changed, the test of `SEEDS_MAX` finds others."""

SEEDS_MAX = 60
"""In so many seeds each wrong sink has been seen."""


def run_wrong(kind: type[Entries], *seeds: int) -> None:
    for seed in seeds:
        run(seed, target="ledger", make=partial(ledger, kind=kind))


@pytest.mark.long("iceberg")
@pytest.mark.parametrize("target", TARGETS)
def test_s7_each_row_is_visible_once_wherever_the_job_dies_or_pauses(target: str) -> None:
    for seed in range(2):
        run(seed, target=target)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_s7_more_seeds_of_each_row_once(target: str) -> None:
    for seed in range(100, 160):
        run(seed, target=target)


def test_s7_a_new_folder_whose_commit_fails_while_it_is_filled_is_filled_again() -> None:
    run(1513, target="spark error")


@pytest.mark.parametrize("place", ["manifest", "commit"])
def test_s7_a_life_that_was_replaced_commits_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: list[Life] = []
    commit = WatchedSink.commit

    def noted(sink: WatchedSink, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if (life := life_here()) is not None:
            committed.append(life)
        commit(sink, context, payloads)

    monkeypatch.setattr(WatchedSink, "commit", noted)
    with watched_disk():
        scene = Scene(random.Random(1), TARGETS["files"](tmp_path))
        stopped = scene.live([Fault("pause", place, "after", 0)])
        assert stopped.is_zombie
        before = committed.count(stopped)
        assert scene.live([]).error is None
        scene.check_end()
        scene.let_go_on(stopped)
        scene.check_end()
    assert isinstance(stopped.error, FencedError)
    assert committed.count(stopped) == before


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_sink_is_seen(kind: type[Entries]) -> None:
    run_wrong(Entries, SEEN_BY[kind])
    with pytest.raises(Violation):
        run_wrong(kind, SEEN_BY[kind])


@pytest.mark.long
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_sink_is_seen_by_any_seeds(kind: type[Entries]) -> None:
    for first in (0, 1000):
        with pytest.raises(Violation):
            run_wrong(kind, *range(first, first + SEEDS_MAX))


def test_a_kafka_sink_that_ignores_its_marker_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def publish(publisher: Any, snapshot: str, segments: Sequence[Segment], *, needs_marker: bool) -> None:
        def act(sending: Any, consumer: Any) -> None:
            publisher._marker(consumer)
            publisher._publish(sending, consumer, number_of(snapshot), segments)

        publisher._in_turn(act)

    monkeypatch.setattr(publishing.Publisher, "publish", publish)
    with pytest.raises(Violation, match="more than once"):
        run(1, target="kafka")


@pytest.mark.parametrize("target", ["files by key", "spark append", "objects"])
def test_the_same_seed_has_the_same_trace(target: str) -> None:
    assert run(1, target=target).trace == run(1, target=target).trace


def test_a_violation_names_the_command_that_has_it_again() -> None:
    with pytest.raises(Violation) as caught:
        run_wrong(WRONG[0], SEEN_BY[WRONG[0]])
    assert "tests.simulation.commits.replay" in "".join(caught.value.__notes__)
