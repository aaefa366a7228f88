"""How far event time has come at the exchanges of one worker, and how it goes on from there.

Rule: where a barrier has passed, an exchange has let in the same epochs on every worker (T3). So one frontier of each
exchange is enough to go on with any number of workers (S5).
"""

from __future__ import annotations

from collections.abc import Mapping

from malstrom_py.workers.graph import Graph


def continue_at(graph: Graph, frontiers: Mapping[str, int]) -> None:
    """Let each exchange go on at its frontier, with all that is behind it. What feeds it has said so much already."""
    known = {name: time for name, time in frontiers.items() if name in graph.entries}
    for region, feed in zip(graph.regions, graph.feeds, strict=True):
        for name in region.entries:
            if name in known:
                feed.machine.continue_at(name, known[name])
    graph.executor.continue_at(
        {graph.entries[name]: time for name, time in known.items()},
        # The node that sends into an exchange stands right behind the key_by.
        {graph.nodes[name] + 1: time for name, time in known.items()},
    )
