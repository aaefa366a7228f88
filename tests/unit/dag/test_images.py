"""Images of nodes as bytes: a node is restored completely, and other bytes are rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.codec import Codec
from malstrom_py.dag.checkpoint import NodeImage, _sealed, bundle, image_of_bytes, image_to_bytes, unbundle
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Control, Epoch, Interrogate, PartFinished, PartOpened
from malstrom_py.errors import CodecError, InternalError, RestoreFailed

CODEC = Codec()


def plain(messages: Sequence[Batch | Control]) -> list[Any]:
    return [(one.keys, one.values, one.timestamps, one.part) if isinstance(one, Batch) else one for one in messages]


VALUES = st.none() | st.integers(-(1 << 70), 1 << 70) | st.text() | st.tuples(st.booleans(), st.floats(allow_nan=False))
BATCHES = st.lists(st.tuples(VALUES, VALUES, st.integers(-(1 << 63) + 1, 1 << 62)), min_size=1).map(
    lambda rows: Batch([row[1] for row in rows], keys=[row[0] for row in rows], timestamps=[row[2] for row in rows])
)
QUEUED = (
    BATCHES | st.builds(Epoch, st.integers(), st.booleans()) | st.sampled_from([PartOpened("p"), PartFinished("q")])
)


@given(
    queue=st.lists(st.tuples(st.integers(0, 3), QUEUED)),
    kept=st.lists(BATCHES),
    state=st.none() | st.binary(),
    reached=st.lists(st.integers()),
)
def test_all_of_an_image_comes_back(queue: Any, kept: list[Batch], state: bytes | None, reached: list[int]) -> None:
    image = NodeImage("operator", ["a", "b:late"], "Count", reached, 7, state, queue, kept)
    back = image_of_bytes(image_to_bytes(image, CODEC, "n"), CODEC, "n")
    assert (back.type, back.inputs, back.label, back.reached, back.epoch, back.state) == (
        *("operator", ["a", "b:late"], "Count", reached, 7),
        state,
    )
    assert [index for index, _ in back.queue] == [index for index, _ in queue]
    assert plain([message for _, message in back.queue]) == plain([message for _, message in queue])
    assert plain(back.kept) == plain(kept)


def test_batches_without_timestamps_and_with_parts_come_back() -> None:
    image = NodeImage("sink", [], "", [], 0, None, [(0, Batch([1], keys=[None], part="p"))], [Batch([2], keys=["k"])])
    back = image_of_bytes(image_to_bytes(image, CODEC, "n"), CODEC, "n")
    assert plain([back.queue[0][1], *back.kept]) == [([None], [1], None, "p"), (["k"], [2], None, None)]


def test_a_value_that_cannot_be_stored_names_the_node() -> None:
    with pytest.raises(CodecError, match="step 'n'"):
        image_to_bytes(NodeImage("sink", [], "", [], 0, None, [], [Batch([object()], keys=[None])]), CODEC, "n")


def test_a_message_that_cannot_be_queued_in_a_dag_is_our_bug() -> None:
    image = NodeImage("sink", [], "", [], 0, None, [(0, Interrogate(bool))])
    with pytest.raises(InternalError, match="Interrogate"):
        image_to_bytes(image, CODEC, "n")


def test_a_bundle_gives_back_its_images_by_name_in_order() -> None:
    images = {"b": b"1", "a": b"", "ü": b"\x00"}
    assert list(unbundle(bundle(images, CODEC), CODEC).items()) == list(images.items())


@pytest.mark.parametrize("value", [7, [1, 2], {"a": 1}, ["operator", [], "", [], 0, None, [], [1]], [[1, 2, 3]]])
def test_what_was_sealed_and_is_no_image_is_told(value: Any) -> None:
    data = _sealed(CODEC.encode_at_rest(value, step="x"))
    with pytest.raises(RestoreFailed, match="node 'n' cannot be restored: these bytes were made by another version"):
        image_of_bytes(data, CODEC, "n")


def test_an_error_pickles_and_tells_node_and_reason() -> None:
    with pytest.raises(RestoreFailed) as caught:
        image_of_bytes(b"", CODEC, "n")
    assert (caught.value.node, caught.value.reason) == (
        "n",
        "these bytes are not a checkpoint of a DAG of this version",
    )
