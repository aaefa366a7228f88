"""A recording in another process: `Receiver` keeps it there, and `Socket` is the place of the workers that capture.

Both ends have one secret. ZeroMQ over TCP encrypts and authenticates with it, as between the workers of a job: no byte
reaches Python before its sender has passed CURVE. Rule: each write is answered once it is kept. A writer has a bounded
number of bytes without an answer; where the receiver is slower, the writer waits, or drops the rest of its segment.
Rule: who has the secret can read and write the recording, and nothing that it sends ends the receiver.
"""

from __future__ import annotations

import hashlib
import io
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, Final, Literal

import msgspec

from malstrom_py.capture.places import Place, SegmentFile
from malstrom_py.clock import SystemClock
from malstrom_py.errors import CaptureError, DeadlineError, PlanError, pip_install
from malstrom_py.events import BackPressureBegun, BackPressureEnded
from malstrom_py.worker_context import notice

WINDOW_BYTES: Final = 4 << 20
"""How many bytes may be written without an answer."""

PIECE_BYTES: Final = 1 << 20
"""How many bytes are written or read with one request. A larger one is refused, also before its sender is known."""

TIMEOUT_S: Final = 30.0
"""How long an answer may take."""

_HANDSHAKE_MS: Final = 5000
_LOOK_MS: Final = 50
_SEGMENT: Final = re.compile(r"\w[\w.-]{0,255}")
"""What a segment may be called: no name leads out of a folder."""

_FIRST_WAIT_S: Final = 1.0
"""A writer that waits longer for the receiver reports back-pressure. One that drops waits no longer in all of
`_RENEWED_S`: a receiver that answers each write late, but within that time, must not make the job as slow as itself."""

_RENEWED_S: Final = 10.0
_PROMPT_S: Final = 0.05
"""An answer within this time is not counted as a wait, and is always waited for."""

Slow = Literal["wait", "drop"]


class Receiver:
    """Keeps in ``place`` what jobs capture into its `socket`, until it is closed. A context manager.

    ``address``: where it listens; port 0 is any that is free. ``secret``: a text that both sides know; None: a new one.

    >>> from malstrom_py import capture
    >>> kept = capture.InMemory()
    >>> with capture.Receiver(kept) as receiver:
    ...     receiver.socket().names()
    []
    """

    def __init__(self, place: Place, *, address: str = "tcp://127.0.0.1:0", secret: str | None = None) -> None:
        zmq = _zmq()
        self.place = place
        self.secret = secrets.token_hex(32) if secret is None else secret
        self._files: dict[tuple[bytes, str], SegmentFile] = {}
        server, _ = _keys(self.secret)
        self._context = zmq.Context()
        try:
            self._socket = self._context.socket(zmq.ROUTER)
            for option, value in {
                zmq.LINGER: 0,
                zmq.CURVE_SERVER: 1,
                zmq.CURVE_SECRETKEY: server,
                zmq.HANDSHAKE_IVL: _HANDSHAKE_MS,
                zmq.MAXMSGSIZE: PIECE_BYTES + 1024,
                zmq.RCVHWM: 16,
            }.items():
                self._socket.setsockopt(option, value)
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise PlanError(f"a capture cannot be received at {address!r} ({error}): give tcp://host:port") from error
        self.address: str = self._socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="malstrom-capture-receiver", daemon=True)
        self._thread.start()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Receiver({self.place!r}, {self.address!r})"

    def socket(self, *, slow: Slow = "wait") -> Socket:
        """Return the place for jobs, of any process. ``slow``: as of `Socket`."""
        return Socket(self.address, self.secret, slow=slow)

    def close(self) -> None:
        """Stop receiving. Segments that are being written end where they are."""
        self._closed.set()
        self._thread.join()
        for file in self._files.values():
            with suppress(Exception):
                file.close()
        self._context.destroy(linger=0)

    def _serve(self) -> None:
        while not self._closed.is_set():
            if self._socket.poll(_LOOK_MS):
                sender, *request = self._socket.recv_multipart()
                self._socket.send_multipart([sender, self._answer(sender, request)])

    def _answer(self, sender: bytes, request: Sequence[bytes]) -> bytes:
        number = 0
        try:
            number, what, arguments = _read(request)
            return msgspec.msgpack.encode(self._result(number, what, sender, arguments))
        except Exception as error:
            return msgspec.msgpack.encode((number, "failed", _sendable(f"{type(error).__name__}: {error}")))

    def _result(self, number: int, what: str, sender: bytes, arguments: Sequence[Any]) -> tuple[int, str, Any]:
        if what not in self._operations:
            raise ValueError(f"the operation {what[:80]!r} is unknown: one of {', '.join(self._operations)}")
        try:
            for name in arguments[: _NAMES.get(what, 0)]:
                if not _SEGMENT.fullmatch(name):
                    raise ValueError("that is not the name of a segment")
            return number, "", self._operations[what](self, sender, *arguments)
        except (FileNotFoundError, FileExistsError) as error:
            return number, type(error).__name__, _sendable(str(error.args[0] if error.args else ""))

    def _names(self, sender: bytes) -> list[str]:
        return self.place.names()

    def _create(self, sender: bytes, name: str) -> None:
        self._files[sender, name] = self.place.create(name)

    def _write(self, sender: bytes, name: str, data: bytes) -> None:
        self._files[sender, name].write(data)

    def _sync(self, sender: bytes, name: str) -> None:
        self._files[sender, name].sync()

    def _close(self, sender: bytes, name: str) -> None:
        self._files.pop((sender, name)).close()

    def _read(self, sender: bytes, name: str, start: int, size: int) -> bytes:
        with self.place.read(name) as file:
            file.seek(start)
            return file.read(min(size, PIECE_BYTES))

    def _rename(self, sender: bytes, old: str, new: str) -> None:
        self.place.rename(old, new)

    def _delete(self, sender: bytes, name: str) -> None:
        self.place.delete(name)

    _operations: Final[dict[str, Callable[..., Any]]] = {
        "names": _names,
        "create": _create,
        "write": _write,
        "sync": _sync,
        "close": _close,
        "read": _read,
        "rename": _rename,
        "delete": _delete,
    }


def _read(request: Sequence[bytes]) -> tuple[int, str, list[Any]]:
    """Return the number, the operation and the arguments of a request; ValueError if it is not one."""
    if len(request) != 1:
        raise ValueError(f"a request is a message of one part, and this one has {len(request)}")
    read = msgspec.msgpack.decode(request[0])
    if type(read) is not list or len(read) < 2 or (type(read[0]), type(read[1])) != (int, str):
        raise ValueError("a request is [number, operation, arguments...], and this one is not")
    number, what, *arguments = read
    return number, what, arguments


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


_NAMES: Final = {"create": 1, "write": 1, "sync": 1, "close": 1, "read": 1, "rename": 2, "delete": 1}
"""How many of the arguments of an operation are names of segments: the first ones."""


class Socket:
    """The recording that a `Receiver` keeps at ``address``, with its ``secret``: for capturing and for replaying.

    ``slow``: what a writer does whose receiver is slower. "wait": it waits, and with it the step, so that the job is as
    slow as the receiver; "drop": it waits at most a second in ten, then drops the rest of the segment, and continues
    with the next one, so that no receiver, slow or gone, holds up or fails the job. In both cases a `BackPressureBegun`
    is emitted for the step.
    """

    def __init__(self, address: str, secret: str, *, slow: Slow = "wait", timeout_s: float = TIMEOUT_S) -> None:
        if slow not in {"wait", "drop"}:
            raise PlanError(f'a capture socket: slow must be "wait" or "drop", got {slow!r}')
        if not address.startswith("tcp://"):
            raise PlanError(f"a capture socket: address must be tcp://host:port, got {address!r}")
        self._address = address
        self._secret = secret
        self.slow: Slow = slow
        self._timeout_s = timeout_s
        self._patience = _Patience() if slow == "drop" else None

    def __repr__(self) -> str:
        return f"Socket({self._address!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _socket, (self._address, self._secret, self.slow, self._timeout_s)

    def names(self) -> list[str]:
        found: list[str] = self._ask("names")
        return found

    def create(self, name: str) -> SegmentFile:
        patience = None if name.endswith(".begun") else self._patience
        client = self._connected(patience)
        file = _RemoteFile(client, name, drops=patience is not None)
        try:
            file.create()
        except BaseException:
            client.close()
            raise
        return file

    def read(self, name: str) -> BinaryIO:
        client = self._connected()
        try:
            client.ask("read", name, 0, 0)
        except BaseException:
            client.close()
            raise
        return io.BufferedReader(_RemoteReader(client, name), PIECE_BYTES)

    def rename(self, old: str, new: str) -> None:
        if self._patience is None:
            self._ask("rename", old, new)
            return
        client = self._connected(self._patience)
        try:
            client.ask("rename", old, new)
        except (DeadlineError, FileNotFoundError):
            notice(partial(BackPressureBegun, _step_of(old)))
        finally:
            client.close()

    def delete(self, name: str) -> None:
        self._ask("delete", name)

    def _ask(self, what: str, *arguments: Any) -> Any:
        client = self._connected()
        try:
            return client.ask(what, *arguments)
        finally:
            client.close()

    def _connected(self, patience: _Patience | None = None) -> _Client:
        return _Client(self._address, self._secret, self._timeout_s, patience)


def _socket(address: str, secret: str, slow: Slow, timeout_s: float) -> Socket:
    return Socket(address, secret, slow=slow, timeout_s=timeout_s)


class _Patience:
    """How long writers of one process that drop may still wait: `_FIRST_WAIT_S` in `_RENEWED_S`."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._left_s = _FIRST_WAIT_S
        self._renewed_at_s = self._clock.monotonic_s()

    def left_s(self) -> float:
        """Return how long may be waited now."""
        now_s = self._clock.monotonic_s()
        if now_s - self._renewed_at_s >= _RENEWED_S:
            self._left_s, self._renewed_at_s = _FIRST_WAIT_S, now_s
        return max(0.0, self._left_s)

    def waited(self, seconds: float) -> None:
        """Note a wait."""
        self._left_s -= max(0.0, seconds)


class _Client:
    """A connection to a receiver, for one operation or for one segment. One thread uses it, and closes it: the garbage
    collector must not, because the end of a context of ZeroMQ may wait. ``patience``: it limits all waits.
    """

    def __init__(self, address: str, secret: str, timeout_s: float, patience: _Patience | None) -> None:
        zmq = _zmq()
        self._address = address
        self._timeout_s = timeout_s
        self._patience = patience
        self._clock = SystemClock()
        self._number = 0
        self._answers: dict[int, Any] = {}
        self._written: dict[int, int] = {}
        self._failed = ""
        server, client = _keys(secret)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        for option, value in {
            zmq.LINGER: 0,
            zmq.SNDHWM: 0,  # the window bounds what is in flight
            zmq.CURVE_SERVERKEY: zmq.curve_public(server),
            zmq.CURVE_SECRETKEY: client,
            zmq.CURVE_PUBLICKEY: zmq.curve_public(client),
        }.items():
            self._socket.setsockopt(option, value)
        self._socket.connect(address)

    def close(self) -> None:
        """Close the connection. What was written without an answer may be lost."""
        self._socket.close(linger=0)
        self._context.term()

    def ask(self, what: str, *arguments: Any) -> Any:
        """Execute an operation after all earlier ones, and return its result."""
        number = self._send(what, *arguments)
        wait_s = self._timeout_s if self._patience is None else max(self._patience.left_s(), _PROMPT_S)
        if not self._receive_until(lambda: number in self._answers, wait_s, free_s=_PROMPT_S):
            raise self.late()
        kind, value = self._answers.pop(number)
        self._raise_failed()
        if kind == "FileNotFoundError":
            raise FileNotFoundError(value)
        if kind == "FileExistsError":
            raise FileExistsError(value)
        if kind:
            raise CaptureError(f"the receiver at {self._address} could not {what}: {value}")
        return value

    def write(self, name: str, data: bytes) -> None:
        """Write ``data``, without waiting for the answer."""
        self._raise_failed()
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            self._written[self._send("write", name, piece)] = len(piece)

    def has_room(self, wait_s: float | None = None) -> bool:
        """Return whether more may be written, after waiting at most ``wait_s``, or its time, for answers."""
        if self._patience is not None:
            wait_s = self._patience.left_s()
        return self._receive_until(
            lambda: sum(self._written.values()) <= WINDOW_BYTES, self._timeout_s if wait_s is None else wait_s
        )

    def late(self) -> DeadlineError:
        """Return the error of an answer that takes too long."""
        return DeadlineError(
            f"the receiver of a capture at {self._address} did not answer within {self._timeout_s:g} s: it is not "
            f"there, has another secret, or is stuck",
            wait="an answer of the receiver of a capture",
            deadline_s=self._timeout_s,
        )

    def _send(self, *request: Any) -> int:
        self._number += 1
        self._socket.send(msgspec.msgpack.encode([self._number, *request]))
        return self._number

    def _receive_until(self, done: Callable[[], bool], wait_s: float, *, free_s: float = 0.0) -> bool:
        """Take answers until ``done``, for at most ``wait_s``, of which ``free_s`` tries no patience."""
        began_s = self._clock.monotonic_s()
        try:
            while not done():
                if not self._receive(began_s + wait_s - self._clock.monotonic_s()):
                    return False
            return True
        finally:
            if self._patience is not None:
                self._patience.waited(self._clock.monotonic_s() - began_s - free_s)

    def _receive(self, wait_s: float) -> bool:
        """Take an answer that arrives within ``wait_s``."""
        if not self._socket.poll(max(0, int(wait_s * 1000))):
            return False
        number, kind, value = msgspec.msgpack.decode(self._socket.recv())
        if self._written.pop(number, None) is None:
            self._answers[number] = kind, value
        elif kind:
            self._failed = value
        return True

    def _raise_failed(self) -> None:
        if self._failed:
            raise CaptureError(f"the receiver at {self._address} could not write: {self._failed}")


class _RemoteFile:
    """A segment that is being written to a receiver. ``drops``: what the receiver does not take in time is left out."""

    def __init__(self, client: _Client, name: str, *, drops: bool) -> None:
        self._client = client
        self._name = name
        self._drops = drops
        self._is_dropped = False

    def create(self) -> None:
        """Create the segment."""
        self._ask("create")

    def write(self, data: bytes, /) -> None:
        if not self._is_dropped and not self._client.has_room(_FIRST_WAIT_S):
            self._wait()
        if not self._is_dropped:
            self._client.write(self._name, data)

    def sync(self) -> None:
        self._ask("sync")

    def close(self) -> None:
        try:
            self._ask("close")
        finally:
            self._client.close()

    def _ask(self, what: str) -> None:
        if self._is_dropped:
            return
        try:
            self._client.ask(what, self._name)
        except DeadlineError:
            if not self._drops:
                raise
            self._wait()

    def _wait(self) -> None:
        """Wait for the receiver, or drop the rest of the segment."""
        step = _step_of(self._name)
        notice(partial(BackPressureBegun, step))
        self._is_dropped = self._drops
        if not self._drops:
            if not self._client.has_room():
                raise self._client.late()
            notice(partial(BackPressureEnded, step))


def _step_of(segment: str) -> str:
    return segment.partition(".")[0]


class _RemoteReader(io.RawIOBase):
    def __init__(self, client: _Client, name: str) -> None:
        self._client = client
        self._name = name
        self._at = 0

    def close(self) -> None:
        if not self.closed:
            self._client.close()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("the end of a segment is not known")
        self._at = offset if whence == io.SEEK_SET else self._at + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        data: bytes = self._client.ask("read", self._name, self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _keys(secret: str) -> tuple[bytes, bytes]:
    """Return the secret keys of the receiver and of its clients."""
    if not isinstance(secret, str) or len(secret) < 16:
        raise PlanError("a capture socket: secret must be a text of at least 16 characters")
    from zmq.utils import z85

    def derived(purpose: str) -> bytes:
        key = hashlib.blake2b(secret.encode(), digest_size=32, person=purpose.encode()).digest()
        return z85.encode(key)

    return derived("capture server"), derived("capture client")


def _zmq() -> Any:
    try:
        import zmq
    except ImportError:
        raise PlanError(f"a capture over a socket needs pyzmq: {pip_install('ray')}") from None
    return zmq
