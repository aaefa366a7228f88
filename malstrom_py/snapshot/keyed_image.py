"""What a chain of keyed artefacts says, decoded: slot by slot for steps that are restored, entry by entry for tools.

Rule: only what is the newest of a key is decoded, and only of the slots that are asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from malstrom_py.codec import Codec
from malstrom_py.codec.refusal import cannot_decode
from malstrom_py.snapshot.entries import decoded_entries
from malstrom_py.snapshot.keyed import newest, opened_chain


class SlotImage(NamedTuple):
    """The keys of a slot, their values, one each (None: it has timers only), and the times of those with timers."""

    slot: int
    keys: list[Any]
    values: list[Any]
    times: dict[Any, list[int]]


class KeyedEntry(NamedTuple):
    """One key with its state: ``value`` is None where it has timers only, ``times`` are those of its timers."""

    slot: int
    key: Any
    value: Any
    times: Sequence[int]


def slots_in(
    chain: Sequence[bytes], codec: Codec, *, slots: Collection[int] | None = None, step: str = ""
) -> Iterator[SlotImage]:
    """The slots of what one worker wrote, a full artefact and deltas behind it, ascending; only ``slots``, if given.

    Raises:
        SnapshotError, CodecError: it is no such chain, is damaged, or holds a class that is not registered; ``step`` is
            named by the latter.
    """
    opened = opened_chain(chain)
    wanted = {slot for one in opened for slot in one.blocks}
    for slot in sorted(wanted if slots is None else wanted.intersection(slots)):
        found = newest(opened, slot)
        keys = codec.decode_each_at_rest(list(found), step=step)
        try:
            set(keys)
        except TypeError as error:
            raise cannot_decode("a key in it is none, for it cannot be hashed", step=step) from error
        values, times = decoded_entries(codec, keys, list(found.values()), step=step)
        yield SlotImage(slot, keys, values, times)


def entries_in(
    chain: Sequence[bytes], codec: Codec, *, slots: Collection[int] | None = None, step: str = ""
) -> Iterator[KeyedEntry]:
    """The same, key by key, in no order within a slot.

    >>> from malstrom_py.messages import AbsBarrier
    >>> from malstrom_py.state import KeyedState
    >>> state = KeyedState("count", Codec())
    >>> state.track(lambda keys: [0] * len(keys))
    >>> state.values["ant"] = 3
    >>> list(entries_in([state.artefact(AbsBarrier("s1", None))], Codec()))
    [KeyedEntry(slot=0, key='ant', value=3, times=[])]
    """
    for slot, keys, values, times in slots_in(chain, codec, slots=slots, step=step):
        for key, value in zip(keys, values, strict=True):
            yield KeyedEntry(slot, key, value, times.get(key, []))
