"""Where the state of a step under test goes at a barrier, and where it comes from when it is restored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from malstrom_py.messages import MIN_EPOCH


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
