"""The sentence for people that says what an event is: on the page of a job, in the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from malstrom_py.errors import shown
from malstrom_py.events import (
    AnyEvent,
    Autoscaled,
    BackPressureBegun,
    BackPressureEnded,
    Ended,
    Error,
    EventsMissed,
    HotKeyBegun,
    HotKeyEnded,
    Input,
    InputClosed,
    InputRecovered,
    InputSilent,
    NodeFailed,
    ParameterChanged,
    Reload,
    RescaleBegun,
    RescaleEnded,
    Restarting,
    SnapshotCompleted,
    Stop,
    StopCause,
    WorkerJoined,
    WorkerLeft,
)
from malstrom_py.workers.reports.figures import format_size


def sentence(event: AnyEvent) -> str:
    """Return what ``event`` says.

    >>> sentence(RescaleBegun(2, 4))
    'the job begins to go from 2 to 4 workers'
    """
    return _SENTENCES[type(event)](event)


def brief(event: AnyEvent) -> str:
    """Return what ``event`` says without the text of its error, which may have many lines; with the step that failed.

    >>> brief(NodeFailed("worker 1", "step 'parse' failed: ValueError at jobs.py:7"))
    "worker 1 failed in step 'parse'"
    """
    if isinstance(event, NodeFailed | Restarting) or (isinstance(event, Ended) and event.how == "failed"):
        step = "" if isinstance(event, Restarting) else step_in(event.error)
        return sentence(replace(event, error="")) + (f" in step {step!r}" if step else "")
    return sentence(event)


def step_in(error: str) -> str:
    """Return the step that the text of an error names; empty without one."""
    found = _STEP.search(error)
    return found[1] if found else ""


def place_in(error: str) -> str:
    """Return the file and line that the text of an error names; empty without them."""
    found = _PLACE.search(error)
    return found[1] if found else ""


def _rescaled(event: RescaleEnded) -> str:
    if event.error:
        return f"the rescale was called off, with {event.workers} workers: {event.error}"
    moved = f"{_many(event.slots, 'key group')} and {_many(event.parts, 'partition')} moved"
    state = f"{_many(event.keys, 'key')} and {format_size(event.bytes)} of state, in {event.duration_s:.2f} s"
    text = f"the job has {_many(event.workers, 'worker')}: {moved}, with {state}"
    if event.imbalance_before is None or event.imbalance_after is None:
        return text
    before, after = event.imbalance_before, event.imbalance_after
    return f"{text}; the most loaded worker had {before:.2f} times the mean load, and has {after:.2f} times"


def _ended(event: Ended) -> str:
    if event.how == "stopped":  # its text says that, and what the job resumes from
        return event.error or "the job was stopped"
    return f"the job has {event.how}{f': {event.error}' if event.error else ''}"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_STEP: Final = re.compile(r"\bstep '([A-Za-z0-9_-]+)'")
_PLACE: Final = re.compile(r"\bat (\S+:\d+)")

_CAUSES: Final = {
    StopCause.MANUAL: "the job is being stopped",
    StopCause.ALL_INPUTS_CLOSED: "all its inputs have ended",
    StopCause.FAILED: "the run has failed",
    StopCause.RELOAD: "a step gets new code",
    StopCause.PARAMETER: "a parameter gets another value",
}

_SENTENCES: Final[dict[type, Callable[[Any], str]]] = {
    Input: lambda event: f"source {event.id} has data on worker {event.metadata.get('worker')}",
    InputClosed: lambda event: f"source {event.id} has ended",
    InputSilent: lambda event: f"source {event.id} has had no record for {event.seconds:.0f} s",
    InputRecovered: lambda event: f"source {event.id} has records again",
    NodeFailed: lambda event: f"{event.source_node_id} failed{f': {event.error}' if event.error else ''}",
    Stop: lambda event: f"worker {event.worker} has stopped: {_CAUSES[event.cause]}",
    Reload: lambda event: f"step {event.operator_id} has new code since snapshot {event.snapshot}",
    ParameterChanged: lambda event: f"parameter {event.name} is now {shown(event.value)}",
    Error: lambda event: event.text,
    Autoscaled: lambda event: (
        f"the autoscaler goes from {event.workers} to {_many(event.target, 'worker')}: {event.reason}"
        + (f". It could not: {event.error}" if event.error else "")
    ),
    RescaleBegun: lambda event: (
        "key groups begin to move by load"
        if event.workers == event.target
        else f"the job begins to go from {event.workers} to {event.target} workers"
    ),
    RescaleEnded: _rescaled,
    SnapshotCompleted: lambda event: (
        f"snapshot {event.id} is complete: {format_size(event.bytes)} in {event.duration_s:.2f} s, workers paused for "
        f"at most {event.pause_s:.3f} s"
    ),
    WorkerJoined: lambda event: f"worker {event.worker} has joined",
    WorkerLeft: lambda event: f"worker {event.worker} has left",
    BackPressureBegun: lambda event: (
        f"back-pressure: source {event.id} waits on worker {event.worker}, because a step after it is slower"
    ),
    BackPressureEnded: lambda event: (
        f"the back-pressure is over: source {event.id} no longer waits on worker {event.worker}"
    ),
    HotKeyBegun: lambda event: (
        f"key {event.key} is too heavy for one worker: {event.share:.0%} of the rows of {event.id}, and worker "
        f"{event.worker} is busy with it for {event.busy:.0%} of its time"
    ),
    HotKeyEnded: lambda event: f"key {event.key} of {event.id} is no longer too heavy for one worker",
    Restarting: lambda event: f"the job restarts in {event.pause_s:g} s{f': {event.error}' if event.error else ''}",
    Ended: _ended,
    EventsMissed: lambda event: f"{event.count:,} events were dropped",
}
