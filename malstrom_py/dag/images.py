"""The image of a node in a checkpoint: its state, its watermarks, its queue, and the records that wait in a sink.

Rule: an image is sealed with a SHA-256 of its contents, which is verified first. It describes its node, so that it is
not restored into another one. Decoding restores the exact types; a value that cannot be stored is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Control, Epoch, PartFinished, PartOpened
from malstrom_py.errors import CodecError, InternalError, RestoreFailed

_MAGIC: Final = b"malstrom-dag\x00\x01"
_DIGEST_BYTES: Final = 32

Queued = tuple[int, "Batch | Control"]


@dataclass(frozen=True, slots=True)
class NodeImage:
    """The image of one node. ``inputs``: their names; ``reached``: their epochs; ``epoch``: the last epoch sent.

    ``label``: the name of its operator; ``state``: the persisted state of the operator, or None; ``kept``: the batches
    in a sink.
    """

    type: str
    inputs: list[str]
    label: str
    reached: list[int]
    epoch: int
    state: bytes | None = None
    queue: list[Queued] = field(default_factory=list)
    kept: list[Batch] = field(default_factory=list)


def image_to_bytes(image: NodeImage, codec: Codec, node: str) -> bytes:
    """Encode an image. `CodecError` naming the node for a value that cannot be stored."""
    queue = [[index, *_message(message)] for index, message in image.queue]
    kept = [_message(batch) for batch in image.kept]
    head = [image.type, image.inputs, image.label, image.reached, image.epoch, image.state]
    return _sealed(codec.encode_at_rest([*head, queue, kept], step=node))


def image_of_bytes(data: object, codec: Codec, node: str) -> NodeImage:
    """Decode an image. `RestoreFailed` naming the node if the bytes are not an image."""
    try:
        kind, inputs, label, reached, epoch, state, queue, kept = codec.decode_at_rest(_opened(data, node), step=node)
        queued = [(index, _message_of(*message)) for index, *message in queue]
        return NodeImage(
            kind, inputs, label, reached, epoch, state, queued, [_batch_of(*fields) for _, *fields in kept]
        )
    except CodecError as error:
        raise restore_failed(node, str(error)) from error
    except (TypeError, ValueError) as error:
        raise restore_failed(node, "these bytes were made by another version") from error


def bundle(images: dict[str, bytes], codec: Codec) -> bytes:
    """Encode the images of all nodes as one checkpoint."""
    return _sealed(codec.encode_at_rest([[name, image] for name, image in images.items()], step="checkpoint"))


def unbundle(data: object, codec: Codec) -> dict[str, bytes]:
    """Decode a checkpoint: return node -> image. `RestoreFailed` if it is not one."""
    try:
        return dict(codec.decode_at_rest(_opened(data, "")))
    except (CodecError, TypeError, ValueError) as error:
        raise restore_failed("", "these bytes are not a checkpoint") from error


def restore_failed(node: str, reason: str) -> RestoreFailed:
    """Return the error of a failed restore; ``node`` is empty if the error concerns the whole graph."""
    where = f"node {node!r} cannot be restored" if node else "the graph cannot be restored"
    return RestoreFailed(f"{where}: {reason.rstrip('.')}. The executor is unchanged.", node=node, reason=reason)


def _sealed(body: bytes) -> bytes:
    return b"".join((_MAGIC, sha256(body).digest(), body))


def _opened(data: object, node: str) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise restore_failed(node, f"a checkpoint must be bytes, got {type(data).__name__}")
    raw = bytes(data)
    start = len(_MAGIC) + _DIGEST_BYTES
    if len(raw) < start or not raw.startswith(_MAGIC):
        raise restore_failed(node, "these bytes are not a checkpoint of a DAG of this version")
    if sha256(raw[start:]).digest() != raw[len(_MAGIC) : start]:
        raise restore_failed(node, "the checkpoint is damaged (its SHA-256 is wrong). Use another checkpoint")
    return raw[start:]


def _message(message: Batch | Control) -> list[Any]:
    match message:
        case Batch():
            return ["batch", message.keys, message.values, message.timestamps, message.part]
        case Epoch():
            return ["epoch", message.time, message.idle]
        case PartOpened(state=None) | PartFinished():
            return ["opened" if isinstance(message, PartOpened) else "finished", message.part]
    raise InternalError(f"a {type(message).__name__} is queued in a DAG, which cannot happen")


def _message_of(kind: str, *fields: Any) -> Batch | Control:
    if kind == "batch":
        return _batch_of(*fields)
    if kind == "epoch":
        return Epoch(*fields)
    return PartOpened(*fields) if kind == "opened" else PartFinished(*fields)


def _batch_of(keys: list[Any], values: list[Any], timestamps: list[int] | None, part: str | None) -> Batch:
    return Batch(values, keys=keys, timestamps=timestamps, part=part)
