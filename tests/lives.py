"""The grammar of a job's events: what every ordering of failure, closing, stop, rescale and restart must keep to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from malstrom_py import events


def check_lives(seen: Sequence[events.AnyEvent], *, sources: Sequence[str], run_failures: int | None = None) -> None:
    """Check the events of a whole job. ``run_failures``: how many of its runs failed."""
    assert [type(event) for event in seen].count(events.Ended) == 1, "the job ends once"
    end = seen[-1]
    assert isinstance(end, events.Ended), "nothing follows the end"
    _check_workers(seen)
    _check_rescales(seen)
    _check_inputs(seen)
    closed = Counter(event.id for event in seen if isinstance(event, events.InputClosed))
    assert not closed or max(closed.values()) == 1, "an input is closed once"
    assert set(closed) <= set(sources)
    if end.how == "finished":
        assert set(closed) == set(sources), "all inputs of a finished job are closed"
        all_closed = max(index for index, event in enumerate(seen) if isinstance(event, events.InputClosed))
        for event in seen[:all_closed]:
            assert not (isinstance(event, events.Stop) and event.cause is events.StopCause.ALL_INPUTS_CLOSED)
    made = [event.id for event in seen if isinstance(event, events.SnapshotCompleted)]
    assert made == sorted(set(made)), "snapshots complete in order, each once"
    if run_failures is not None:
        failed = sum(isinstance(event, events.NodeFailed | events.Error) for event in seen)
        assert failed == run_failures, "each failure is reported once"


def _check_workers(seen: Sequence[events.AnyEvent]) -> None:
    """Each worker that joins has exactly one last event, and runs do not overlap."""
    here: set[str] = set()
    for event in seen:
        match event:
            case events.WorkerJoined():
                assert str(event.worker) not in here, f"worker {event.worker} joins twice"
                here.add(str(event.worker))
            case events.Stop() | events.WorkerLeft():
                assert str(event.worker) in here, f"{event} without a worker"
                here.remove(str(event.worker))
            case events.NodeFailed() if event.source_node_id.startswith("worker "):
                assert event.source_node_id.removeprefix("worker ") in here, f"{event} without a worker"
                here.remove(event.source_node_id.removeprefix("worker "))
            case events.RescaleEnded() if not event.error:
                assert len(here) == event.workers, f"{len(here)} workers at {event}"
            case events.Restarting() | events.Ended():
                assert not here, f"workers {here} have no last event at {event}"


def _check_inputs(seen: Sequence[events.AnyEvent]) -> None:
    silent: set[str] = set()
    for event in seen:
        match event:
            case events.InputSilent():
                assert event.id not in silent, "an input falls silent twice"
                silent.add(event.id)
            case events.InputRecovered():
                silent.remove(event.id)
            case events.InputClosed():
                silent.discard(event.id)


def _check_rescales(seen: Sequence[events.AnyEvent]) -> None:
    is_open = False
    held: set[tuple[str, int]] = set()
    hot: set[tuple[str, str]] = set()
    for event in seen:
        match event:
            case events.RescaleBegun():
                is_open = True
            case events.RescaleEnded():
                assert is_open, "a rescale ends that has not begun"
                is_open = False
            case events.BackPressureBegun():
                assert (event.id, event.worker) not in held
                held.add((event.id, event.worker))
            case events.BackPressureEnded():
                held.remove((event.id, event.worker))
            case events.HotKeyBegun():
                assert (event.id, event.key) not in hot
                hot.add((event.id, event.key))
            case events.HotKeyEnded():
                hot.remove((event.id, event.key))
            case events.Restarting() | events.Ended():
                assert not is_open, "a rescale has no end"
                assert not held, "back-pressure has no end"
                assert not hot, "a hot key has no end"
