"""Where the state of a step under test goes at a barrier, and where it comes from when it is restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from malstrom_py.messages import MIN_EPOCH
from malstrom_py.snapshot.keyed import is_delta


class CapturingPersistenceBackend:
    """Keeps what operators persist, in memory: ``states``, operator -> its encoded state.

    >>> backend = CapturingPersistenceBackend()
    >>> backend.persist("count", b"state")
    >>> backend.states, backend.calls
    ({'count': b'state'}, ['count'])
    """

    def __init__(self) -> None:
        self.states: dict[str, bytes] = {}
        self.calls: list[str] = []

    def persist(self, operator: str, state: bytes) -> None:
        """Keep the state of one operator; ``calls`` lists who asked, in order."""
        self.calls.append(operator)
        self.states[operator] = state


@dataclass(frozen=True, slots=True)
class Persisted:
    """What `OperatorTester.barrier` gives: the states of the steps by name, and the epoch the input had reached."""

    states: Mapping[str, bytes] = field(default_factory=dict)
    epoch: int = MIN_EPOCH


def chain_of(persisted: Sequence[Persisted], step: str) -> list[bytes]:
    """What it takes to restore ``step`` where the last of ``persisted`` was: a full artefact, and deltas behind it.

    >>> from malstrom_py.snapshot.keyed import artefact
    >>> full, delta = ({"count": artefact({}, delta=kind)} for kind in (False, True))
    >>> len(chain_of([Persisted(full), Persisted(full), Persisted(delta)], "count"))
    2
    """
    chain: list[bytes] = []
    for one in persisted:
        state = one.states.get(step)
        if state is not None:
            chain = [*chain, state] if is_delta(state) else [state]
    return chain
