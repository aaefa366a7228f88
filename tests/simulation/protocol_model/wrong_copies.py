"""Wrong copies of state that goes ahead of a move (R12)."""

from __future__ import annotations

import pickle

from malstrom_py.rescale.moves.protocol import StateChunk
from tests.simulation.protocol_model.counting import Counting
from tests.simulation.protocol_model.oracle import Oracle
from tests.simulation.protocol_model.world import World


class ChangesMissed(Counting):
    """R12: a key that has changed since it went ahead is confirmed."""

    def changed(self, key: int) -> None:
        """Nothing is noted."""


class EarlierCopyWins(Counting):
    """R12: a copy does not replace one that came before it."""

    def keep_aside(self, states: dict[str, bytes]) -> None:
        self.aside = {**states, **self.aside}


class UsedBeforeTheCut(Counting):
    """R12: what came ahead is the state of the key from then on."""

    def keep_aside(self, states: dict[str, bytes]) -> None:
        super().keep_aside(states)
        self.keys |= {int(slot): pickle.loads(state) for slot, state in states.items()}

    def put_confirmed(self, oracle: Oracle, confirmed: dict[str, bytes]) -> None:
        """It is there already."""

    def put_in(self, oracle: Oracle, states: dict[str, bytes]) -> None:
        self.keys |= {int(slot): pickle.loads(state) for slot, state in states.items()}


class StaleCopiesAccepted(World):
    """S6: state that went ahead of a move that was called off is kept for the next move of its version."""

    def _mail(self, sender: int, receiver: int) -> None:
        (_, message), *rest = self.letters[sender, receiver]
        if isinstance(message, StateChunk) and message.ahead:
            self.letters[sender, receiver] = ((self.incarnation, message), *rest)
        super()._mail(sender, receiver)
