"""A job follows its load on a cluster that Ray's own autoscaler adds nodes to, and removes nodes from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.arriving import check_exact
from tests.integration.netns.nodes import PATIENCE_S, Driven
from tests.integration.netns.scaled import NODES, scaled_cluster

pytestmark = [pytest.mark.needs_netns, pytest.mark.timeout(600)]

ROOM = 1 + NODES
"""How many workers the cluster takes once it has all its nodes."""

FOR_ONE, FOR_ALL, FOR_MORE = 20.0, 420.0, 700.0
"""Rows a second that take one worker, all for which there can be room, and more."""


@pytest.fixture(scope="module")
def scaled(request: pytest.FixtureRequest, rays: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    """Return the program on a cluster with Ray's autoscaler of this version. No other Ray runs beside it."""
    rays.close()
    with scaled_cluster(tmp_path_factory.mktemp("scaled"), request.param) as made:
        yield made


def wait(holds: Callable[[], bool], seen: Callable[[], object]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, seen()
        time.sleep(0.1)


def await_workers(scaled: Driven, count: int) -> None:
    """Wait until the job has so many workers, and nothing moves."""
    scaled.until(lambda status: (status.state, status.workers) == ("running", count))


def await_nodes(scaled: Driven, count: int) -> None:
    """Wait until so many nodes are alive."""
    wait(lambda: len(scaled.ask("node_ids")) == count, lambda: (scaled.ask("node_ids"), scaled.ask("worker_nodes")))


def check_placed(scaled: Driven) -> None:
    """Check that each node has one worker, and that none waits for room."""
    workers = scaled.ask("worker_nodes")
    assert {state for state, _ in workers} == {"ALIVE"}
    assert sorted(node for _, node in workers) == sorted(scaled.ask("node_ids"))


@pytest.mark.long
@pytest.mark.parametrize("scaled", [1, 2], indirect=True)
def test_nodes_come_with_workers_and_leave_with_them(scaled: Driven, tmp_path: Path) -> None:
    scaled.ask("run", "follows", tmp_path, FOR_ONE, ROOM, PATIENCE_S)
    await_workers(scaled, 1)
    assert len(scaled.ask("node_ids")) == 1
    scaled.ask("load", FOR_ALL)
    await_workers(scaled, ROOM)
    assert len(scaled.ask("node_ids")) == ROOM
    check_placed(scaled)
    scaled.ask("load", FOR_ONE)
    await_workers(scaled, 1)
    await_nodes(scaled, 1)
    decisions = scaled.ask("decisions")
    check_exact(*scaled.ask("ended", PATIENCE_S))
    assert not [made for made in decisions if made.error]


@pytest.mark.long
@pytest.mark.parametrize("scaled", [2], indirect=True)
def test_more_than_the_cluster_can_get_is_refused_and_leaves_no_request(scaled: Driven, tmp_path: Path) -> None:
    scaled.ask("run", "wants", tmp_path, FOR_ONE, 8, 12.0)
    await_workers(scaled, 1)
    scaled.ask("load", FOR_MORE)
    wait(lambda: bool(scaled.ask("decisions")), lambda: scaled.ask("status"))
    scaled.ask("load", FOR_ALL)
    wait(lambda: any(made.error for made in scaled.ask("decisions")), lambda: scaled.ask("decisions"))
    refused = next(made for made in scaled.ask("decisions") if made.error)
    assert refused.target > ROOM > refused.workers
    assert "did not start within 12 s" in refused.error
    assert f"its nodes have room for {ROOM} of {refused.target} workers, and lack CPU" in refused.error
    await_workers(scaled, ROOM)
    check_placed(scaled)
    scaled.ask("load", FOR_ONE)
    await_workers(scaled, 1)
    await_nodes(scaled, 1)
    check_placed(scaled)
    check_exact(*scaled.ask("ended", PATIENCE_S))
