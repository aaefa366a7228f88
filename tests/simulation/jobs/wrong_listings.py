"""What can be done wrong with parts that appear while a job runs (R13), and with what is acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from malstrom_py.data.messages import MIN_EPOCH
from malstrom_py.rescale.moves.protocol import AddParts
from malstrom_py.workers.coordinator.machine import Send
from malstrom_py.workers.coordinator.snapshot_coordinator import positions_in

Right = Callable[..., Any]


def last_dropped(right: Right) -> Right:
    """One of the new parts is given to no worker."""
    return lambda machine: right(machine)[:-1]


def given_twice(right: Right) -> Right:
    """New parts are given to two workers."""

    def add_parts(machine: Any) -> list[Any]:
        effects = right(machine)
        others = [
            replace(effect, worker=other)
            for effect in effects
            for other in machine.members
            if isinstance(effect, Send) and isinstance(effect.order, AddParts) and other != effect.worker
        ]
        return [*effects, *others[:1]]

    return add_parts


def from_the_start(right: Right) -> Right:
    """A new part is read from its start, wherever it should begin."""
    return lambda source, out, *, parts: right(source, out, parts=[(part, None) for part, _ in parts])


def listed_only(right: Right) -> Right:
    """A recovery forgets the parts that are listed no more."""
    return lambda listed, known: list(listed)


def in_no_snapshot(right: Right) -> Right:
    """A snapshot does not contain the new parts, so that a recovery reads them again."""

    def add(source: Any, out: Any, *, parts: Any) -> None:
        source.unsaved = {*getattr(source, "unsaved", ()), *(part for part, _ in parts)}
        right(source, out, parts=parts)

    return add


def without_unsaved(right: Right) -> Right:
    """See `in_no_snapshot`."""

    def on_control(source: Any, message: Any, out: Any) -> None:
        unsaved: set[str] = getattr(source, "unsaved", set())
        ended, waiting, readers = source.ended, source._waiting, source._readers
        source.ended = {part: position for part, position in ended.items() if part not in unsaved}
        source._waiting = type(waiting)(pair for pair in waiting if pair[0] not in unsaved)
        source._readers = type(readers)(reader for reader in readers if reader.part not in unsaved)
        right(source, message, out)
        source.ended, source._waiting, source._readers = ended, waiting, readers

    return on_control


def acknowledged_early(right: Right) -> Right:
    """What a snapshot will contain is acknowledged before its manifest is written."""

    def store(coordinator: Any, manifest: Any) -> None:
        coordinator._committed(positions_in(manifest))
        right(coordinator, manifest)

    return store


def never_late(right: Right) -> Right:
    """A new part begins below the epochs that its worker has broadcast."""

    def new(step: Any, state: Any, out: Any, *, is_empty: bool) -> Any:
        with patch.object(type(out), "passed", lambda outlet: MIN_EPOCH):
            return right(step, state, out, is_empty=is_empty)

    return new
