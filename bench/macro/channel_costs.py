"""What an all-to-all of channels costs a worker: objects, descriptors and memory. For `thousand_workers`."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from malstrom_py.rescale.channels.channel import ChannelId, RemoteInbound, RemoteOutbound
from malstrom_py.workers.transport.base import JobSecret
from malstrom_py.workers.transport.messages import Connected
from malstrom_py.workers.transport.zeromq import ZeroMQTransport

CHANNELS: Final = 2_000
ANSWER_S: Final = 60.0


class ChannelCosts(NamedTuple):
    """``channel_bytes``: both ends of a channel, empty. The others: of the stream of one worker to another, with both
    of its ends.
    """

    channel_bytes: float
    stream_bytes: float
    stream_descriptors: float


def channel_costs(ends: int = 16) -> ChannelCosts:
    """Measure with ``ends`` ends of streams in this process, each connected to all others."""
    secret, streams = JobSecret.new(), ends * (ends - 1)
    there = [ZeroMQTransport(worker, incarnation=1, secret=secret) for worker in range(ends)]
    try:
        # What each end has without any peer is not of a stream.
        descriptors, resident = _open_descriptors(), _resident_bytes()
        for me, end in enumerate(there):
            for peer, other in enumerate(there):
                if peer != me:
                    end.connect(peer, other.address)
                    end.send(peer, [Connected(me)])
        until_s, came = monotonic() + ANSWER_S, 0
        while came < streams and monotonic() < until_s:
            came += sum(len(end.receive(0.001)) for end in there)
        if came < streams:
            raise AssertionError(f"{streams - came} of {streams} streams are silent")
        descriptors, resident = _open_descriptors() - descriptors, _resident_bytes() - resident
    finally:
        for end in there:
            end.close(linger_s=0.0)
    return ChannelCosts(_channel_bytes(), resident / streams, descriptors / streams)


def _channel_bytes() -> float:
    tracemalloc.start()
    kept = []
    for peer in range(CHANNELS):
        channel = ChannelId("by-user", 0, peer)
        kept.append((RemoteOutbound(channel, lambda batch: b""), RemoteInbound(channel, lambda data: data)))  # type: ignore[arg-type,return-value]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / len(kept)


def _open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
