"""Fake remote workers: the other ends of the channels of a step under test, with real frames, numbers and credit.

Rule: a fake only holds channels. What comes to it stays until it is asked for, and only then gives credit back.
"""

from __future__ import annotations

from collections.abc import Sequence

from malstrom_py.batches import Batch
from malstrom_py.codec import Codec
from malstrom_py.messages import Epoch
from malstrom_py.rescale.channel import (
    ChannelId,
    ChannelIn,
    ChannelOut,
    Credit,
    Frame,
    Grant,
    Item,
    PlacedEpoch,
)
from malstrom_py.workers.exchange import Lane


class RemoteWorker:
    """Worker ``remote`` as worker ``local`` sees it over the channels of ``exchanges``."""

    def __init__(
        self, remote: int, local: int, exchanges: Sequence[str], codec: Codec, credit: Credit, incarnation: int
    ) -> None:
        self._codec = codec
        self._out = {name: ChannelOut(ChannelId(name, remote, local), incarnation, credit) for name in exchanges}
        self._lanes: dict[str, Lane] = {}
        for name in exchanges:

            def decode(data: bytes, name: str = name) -> Batch:
                return codec.decode_batch(data, step=name)

            self._lanes[name] = Lane(ChannelIn(ChannelId(name, local, remote), incarnation), decode)

    def put(self, exchange: str, item: Item) -> None:
        """Send one item to the worker under test."""
        channel = self._out[exchange]
        match item:
            case Batch():
                payload = self._codec.encode_batch(item, step=exchange)
                channel.put(payload, rows=len(item), size=len(payload))
            case Epoch():
                channel.put(epochs=(PlacedEpoch(0, item.time, item.idle),))
            case _:
                channel.put(control=item)

    def sent(self) -> list[Frame]:
        """The frames for the worker under test that have credit."""
        return [frame for channel in self._out.values() for frame in channel.take()]

    def receive(self, message: Frame | Grant) -> None:
        """Take what the worker under test has sent. `PeerError` if a number is missing or repeated (F1)."""
        if isinstance(message, Frame):
            self._lanes[message.channel.exchange].channel.receive(message)
        else:
            self._out[message.channel.exchange].grant(message)

    def take(self, exchange: str) -> tuple[list[Item], list[Grant]]:
        """All that has come over ``exchange``, decoded, and the credit that goes back for it."""
        items, grants = list[Item](), list[Grant]()
        lane = self._lanes[exchange]
        while True:
            item = lane.take()
            if item is None:
                return items, grants
            items.append(item)
            grant = lane.freed()
            if grant is not None:
                grants.append(grant)
