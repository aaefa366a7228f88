"""Artefacts that are read, merged and written a part at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from malstrom_py.codec import Codec
from malstrom_py.state.ahead_of_barrier import merged_deltas
from malstrom_py.state.artefact import Opened, StoredArtefact, artefact, contents, merged, opened_chain, runs_in
from malstrom_py.state.artefact_parts import BlockFile, all_or_none, in_parts, merged_in_parts

SLOTS = 40


def chain_of(rng: random.Random) -> list[bytes]:
    """A full artefact and three deltas, of which some slots have nothing."""
    codec = Codec()
    keys = [codec.encode_at_rest(number, step="s") for number in range(300)]
    made: list[bytes] = []
    for number in range(4):
        rows: dict[int, tuple[list[bytes], list[bytes]]] = {}
        for place in rng.sample(range(300), rng.randrange(1, 300)):
            names, entries = rows.setdefault(place % SLOTS, ([], []))
            names.append(keys[place])
            is_gone = number > 0 and rng.random() < 0.3
            entries.append(b"" if is_gone else codec.encode_at_rest("x" * rng.randrange(60), step="s"))
        made.append(artefact(rows, delta=number > 0, note=b"%d" % number))
    return made


class Reads:
    """Reads ``data``, and keeps how much each call has read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sizes: list[int] = []

    def __call__(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = [self.data[start:end] for start, end in ranges]
        self.sizes.append(sum(map(len, found)))
        return found


def stored(chain: Sequence[bytes]) -> list[StoredArtefact]:
    return [StoredArtefact(Reads(data), len(data)) for data in chain]


@pytest.mark.parametrize("bytes_max", [0, 700, 1 << 20])
@pytest.mark.parametrize("seed", range(10))
def test_what_is_merged_in_parts_is_what_is_merged_at_once(seed: int, bytes_max: int) -> None:
    chain = chain_of(random.Random(f"parts {seed}"))
    for merge, some in ((merged, chain), (merged_deltas, chain[1:])):
        made = merged_in_parts(merge, stored(some), bytes_max=bytes_max)
        assert b"".join(made.pieces()) == b"".join(made.pieces()) == merge(some)


@pytest.mark.parametrize("seed", range(10))
def test_parts_have_all_of_the_slots_and_no_more_bytes_than_asked(seed: int) -> None:
    rng = random.Random(f"parts {seed}")
    chain, slots = chain_of(rng), set(rng.sample(range(SLOTS), 25))
    parts = list(in_parts(stored(chain), slots, 900))
    found = [image for part in parts for _, image in runs_in(part, Codec())]
    whole = [image for _, image in runs_in(chain, Codec(), slots=slots)]
    assert [key for image in found for key in image.keys] == [key for image in whole for key in image.keys]
    assert [value for image in found for value in image.values] == [value for image in whole for value in image.values]
    for part in map(opened_chain, parts):
        sizes = [block.end - block.start for one in part for block in one.blocks.values()]
        assert sum(sizes) <= 900 or len({slot for one in part for slot in one.blocks}) == 1
        assert [one.note for one in part] == [b"0", b"1", b"2", b"3"]


def test_a_chain_without_the_slots_is_one_part_with_its_note() -> None:
    chain = [artefact({1: ([b"a"], [b"1"])}, delta=False, note=b"note")]
    (part,) = in_parts(stored(chain), {2}, 10)
    assert (Opened(part[0]).note, list(contents(part[0]))) == (b"note", [])
    assert all_or_none(stored(chain), {2}, owned=False)
    assert not all_or_none(stored(chain), {2}, owned=True)


def test_only_a_part_is_read_at_once() -> None:
    rows = {slot: ([b"k%d" % slot], [b"v" * 1000]) for slot in range(50)}
    reads = Reads(artefact(rows, delta=False))
    made = merged_in_parts(merged, [StoredArtefact(reads, len(reads.data))], bytes_max=4000)
    assert max(reads.sizes[2:]) < 4000
    assert sum(reads.sizes[2:]) < 1.1 * len(reads.data)
    assert b"".join(made.pieces()) == reads.data


def test_a_file_of_blocks_gives_them_in_pieces() -> None:
    blocks = BlockFile(delta=False)
    data = b"v" * (1 << 20)
    for slot in range(5):
        blocks.add([(slot, 1, data, None)])
    sizes = list(map(len, blocks.pieces()))
    assert max(sizes) <= 1 << 20
    assert sum(sizes) > 5 << 20
