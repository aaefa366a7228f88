"""What workers and their coordinator send each other: frames and credit on channels, letters outside them."""

from __future__ import annotations

from typing import Final

from malstrom_py.rescale.channel import Frame, Grant
from malstrom_py.rescale.protocol import Order, Parcel, PartHandedOver, Report
from malstrom_py.workers.coordinator_events import Connected
from malstrom_py.workers.cut import Saved
from malstrom_py.workers.standing import News

COORDINATOR: Final = -1
"""The coordinator, as a receiver."""

Letter = Parcel | PartHandedOver
"""From worker to worker, outside the channels."""

Outgoing = tuple[int, Frame | Grant | Letter | Report]
"""What is meant for another worker or the coordinator, and for which."""

Content = Frame | Grant | Letter | Order | Report | Connected | News | Saved
"""All that is carried."""

Message = tuple[int, Content]
"""The same with its receiver."""

Incoming = Frame | Grant | Letter | Order
"""What a worker takes."""
