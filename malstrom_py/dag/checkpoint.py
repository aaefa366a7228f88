"""The checkpoint of a DAG: an image of each node, with its state, its watermarks, its queue and the records in a sink.

Rule: an image is sealed with a SHA-256 of its contents, which is verified first. It describes its node, so that it is
not restored into another one. Decoding restores the exact types; a value that cannot be stored is an error.

Rule: a restore builds a new `RunningDag`. If it fails, the new one is dropped and the old one is unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from malstrom_py.codec import Codec
from malstrom_py.dag.events import time_of
from malstrom_py.dag.graph import Dag, DagNode
from malstrom_py.dag.registration import NodeRegistration
from malstrom_py.dag.running import NodeServices, RunningDag, SinkCollector, keeps_parts
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, AbsBarrier, Control, Epoch, PartFinished, PartOpened
from malstrom_py.errors import CodecError, DagError, InternalError, MalstromError, OperatorError, RestoreFailed
from malstrom_py.errors.text import describe_error, public_text
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.operators.stateful_op import StatefulOp
from malstrom_py.operators.stateless_op import StatelessOp
from malstrom_py.rescale.channels.channel import Barrier
from malstrom_py.workers.engine.snapshot_capture import SnapshotCapture

_MAGIC: Final = b"malstrom-dag\x00\x01"
_DIGEST_BYTES: Final = 32


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
    queue: list[tuple[int, Batch | Control]] = field(default_factory=list)
    kept: list[Batch] = field(default_factory=list)


class _Muted:
    """An outlet that drops barriers, because each node gets the barrier by itself; without ``out`` it drops all."""

    def __init__(self, out: Outlet | None = None) -> None:
        self._out = out

    def send(self, message: Batch | Control, port: int = 0) -> None:
        if self._out is not None and not isinstance(message, AbsBarrier):
            self._out.send(message, port)

    def forward(self, message: Control) -> None:
        if self._out is not None and not isinstance(message, AbsBarrier):
            self._out.forward(message)

    def drain(self) -> None:
        """Do nothing: while images are taken no message is processed; the images contain the queues."""

    def passed(self) -> int:
        return MIN_EPOCH if self._out is None else self._out.passed()


def images_of(running: RunningDag, snapshot: str, codec: Codec) -> dict[str, bytes]:
    """Return the image of each node, upstream first; it contains what earlier nodes send at the barrier.

    Raises:
        CodecError: a key, value or state cannot be stored; names the node.
    """
    capture, executor = SnapshotCapture(Barrier(snapshot), regions=0), running.executor
    barrier, images = capture.abs_barrier(incarnation=1), dict[str, bytes]()
    for rank, node in enumerate(running.dag.nodes):
        operator = running.operators[rank]
        operator.on_control(barrier, _Muted(executor.outlet(rank)))
        image = NodeImage(
            str(node.type),
            [str(edge) for edge in node.inputs],
            _label(running, node.name),
            executor.merged(rank).inputs(),
            executor.epoch(rank),
            capture.persisted.get(node.name),
            executor.queued(rank),
            operator.batches if isinstance(operator, SinkCollector) else [],
        )
        images[node.name] = image_to_bytes(image, codec, node.name)
    return images


def image_to_bytes(image: NodeImage, codec: Codec, node: str) -> bytes:
    """Encode an image. `CodecError` naming the node for a value that cannot be stored."""
    queue = [[index, *_message(message)] for index, message in image.queue]
    kept = [_message(batch) for batch in image.kept]
    head = [image.type, image.inputs, image.label, image.reached, image.epoch, image.state]
    return _sealed(codec.encode_at_rest([*head, queue, kept], step=node))


def image_of_bytes(data: object, codec: Codec, node: str) -> NodeImage:
    """Decode an image. `RestoreFailed` naming the node if the bytes are not an image."""
    try:
        *head, queue, kept = codec.decode_at_rest(_opened(data, node), step=node)
        queued = [(index, _message_of(*message)) for index, *message in queue]
        kind, inputs, label, reached, epoch, state = head
        kept_batches = [_batch_of(*fields) for _, *fields in kept]
        return NodeImage(kind, inputs, label, reached, epoch, state, queued, kept_batches)
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


def restored(
    dag: Dag, registered: Mapping[str, NodeRegistration], services: NodeServices, images: Mapping[str, NodeImage]
) -> RunningDag:
    """Return a `RunningDag` that continues from ``images``. `RestoreFailed` names the node and the reason."""
    running = RunningDag(dag, registered, services)
    for name in dag.ranks:
        if name not in images:
            raise restore_failed(name, "the checkpoint has no such node: it is of another graph")
    for name, image in images.items():
        if name not in dag.ranks:
            raise restore_failed(name, "the checkpoint has this node, but the graph does not")
        _check(dag.nodes[dag.ranks[name]], image, _label(running, name))
    _open(running, images)
    for rank, node in enumerate(dag.nodes):
        _resume(running, rank, node, images[node.name])
    return running


def watermarks_of(dag: Dag, watermarks: object) -> dict[int, int]:
    """Convert ``watermarks``, node -> time, to rank -> time, sorted. `RestoreFailed` names an illegal one."""
    if not isinstance(watermarks, Mapping):
        raise restore_failed("", f"watermarks must be a mapping of node -> time, got {type(watermarks).__name__}")
    times = {}
    for name, time in watermarks.items():
        if not isinstance(name, str) or name not in dag.ranks:
            raise restore_failed(str(name), "the graph has no such node")
        try:
            times[dag.ranks[name]] = time_of(time, "a watermark", name)
        except DagError as error:
            raise restore_failed(name, str(error)) from error
    return dict(sorted(times.items()))


def _label(running: RunningDag, node: str) -> str:
    """Return the label of a node's registered operator, or an empty text."""
    return running.registered[node].label if node in running.registered else ""


def _check(node: DagNode, image: NodeImage, label: str) -> None:
    name, here = node.name, [str(edge) for edge in node.inputs]
    if image.type != node.type:
        raise restore_failed(name, f"it was of type {image.type} and is now of type {node.type}")
    if sorted(here) != sorted(image.inputs):
        raise restore_failed(name, f"it read {_named(image.inputs)} and now reads {_named(here)}")
    if image.state is not None and image.label != label:
        raise restore_failed(name, f"its state is of a {image.label}, but its operator is now {label or 'missing'}")


def _named(inputs: Iterable[str]) -> str:
    return ", ".join(map(repr, inputs)) or "nothing"


def _open(running: RunningDag, images: Mapping[str, NodeImage]) -> None:
    """Open the parts with the state that nodes kept for them, which restores that state."""
    parts: dict[str, Mapping[str, Any]] = {}
    for node, operator in zip(running.dag.nodes, running.operators, strict=True):
        state = images[node.name].state
        if state is not None and not hasattr(operator, "restore") and keeps_parts(operator):
            parts[node.name] = _guarded(node.name, operator.context.codec.decode_at_rest, state, step=node.name)
    finished = frozenset(name for name in running.dag.sources if images[name].reached == [MAX_EPOCH])
    try:
        running.open(parts, finished)
    except OperatorError as error:
        raise restore_failed(error.step, str(error)) from error


def _resume(running: RunningDag, rank: int, node: DagNode, image: NodeImage) -> None:
    operator, executor = running.operators[rank], running.executor
    # The inputs may have been connected in another order.
    labels = {str(edge): index for index, edge in enumerate(node.inputs)}
    order = [labels[label] for label in image.inputs] or [0]
    reached = [time for _, time in sorted(zip(order, image.reached, strict=True))]
    executor.resume(rank, reached, image.epoch)
    for batch in image.kept:
        operator.on_batch(batch, _Muted())
    if image.epoch != MIN_EPOCH:
        # Before the state is restored, so that no key sees the epoch twice. What is sent was sent before the image.
        if isinstance(operator, StatefulOp | StatelessOp):
            operator.continue_at(image.epoch)
        else:
            _guarded(node.name, operator.on_epoch, Epoch(image.epoch), _Muted())
    if image.state is not None:
        _restore_state(node.name, operator, image.state)
    for index, message in image.queue:
        executor.push(rank, message, index=order[index])
        running.interrupted = True


def _restore_state(name: str, operator: Operator, state: bytes) -> None:
    restore = getattr(operator, "restore", None)
    if callable(restore):
        _guarded(name, restore, state)
    elif not keeps_parts(operator):  # else its state was restored when the parts were opened
        kind = type(operator).__name__
        raise restore_failed(name, f"a {kind} has persisted a state, but it has no method restore(state: bytes)")


def _guarded(node: str, function: Any, *arguments: Any, **named: Any) -> Any:
    """Call ``function``; turn an exception into a `RestoreFailed` that names ``node``."""
    try:
        return function(*arguments, **named)
    except RestoreFailed:
        raise
    except Exception as error:
        ours = isinstance(error, MalstromError)
        reason = public_text(error) if ours else f"its operator raised {describe_error(error)}"
        raise restore_failed(node, reason) from error
