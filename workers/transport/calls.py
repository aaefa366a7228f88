"""The transport over Ray, for clusters without open ports: a message is a call of `deliver` of the peer's actor.

It costs at least ten times as much as the direct stream (docs/design/0010-transport.md). Calls are not waited for;
their failures are checked later, and an idle peer is called periodically as a heartbeat. Rule: Ray orders the calls of
one caller, but that order is not trusted: each message has a number.
"""

from __future__ import annotations

import hmac
import select
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from malstrom_py.errors import InternalError
from malstrom_py.errors.text import describe_error
from malstrom_py.workers.transport.base import JobSecret, peer_name
from malstrom_py.workers.transport.messages import Content
from malstrom_py.workers.transport.peers import Peers, Waker
from malstrom_py.workers.transport.wire import InStreams, OutStream

_MESSAGES_MAX: Final = 256
_LOOK_S: Final = 0.1
"""The interval at which calls are checked for failures."""
_ASK_S: Final = 1.0
"""The heartbeat interval: a peer without a call in flight is called after this time."""


class RayCallTransport:
    """One end of the streams of a job over calls of Ray actors. A `Transport`. Made inside the actor that it serves.

    ``me``: the number of this worker, or ``COORDINATOR``. ``incarnation``: the incarnation of the job; messages of an
    older one are dropped. ``secret``: the secret of this start of the job, the same at all ends. ``handle``: the handle
    of this actor. The actor's method ``deliver(data: bytes) -> None`` calls `deliver`. That method needs a separate
    concurrency group with one thread, so that it runs beside the thread that uses this transport. The actor has
    ``max_restarts=0`` and no ``max_concurrency``, so that calls arrive in order and once::

        @ray.remote(max_restarts=0, concurrency_groups={"deliver": 1})
        class Worker:
            def __init__(self, worker: int, secret: JobSecret) -> None:
                handle = ray.get_runtime_context().current_actor
                self.transport = RayCallTransport(worker, incarnation=1, secret=secret, handle=handle)

            @ray.method(concurrency_group="deliver")
            def deliver(self, data: bytes) -> None:
                self.transport.deliver(data)
    """

    def __init__(self, me: int, *, incarnation: int, secret: JobSecret, handle: Any) -> None:
        self._me = me
        self._incarnation = incarnation
        self._handle = handle
        self._token = secret.derive("call")
        self._peers = Peers[_Calls](me)
        self._in = InStreams(me, incarnation)
        self._arrived = deque[bytes]()
        self._waker = Waker()
        self._woken = False
        self._look_at = 0.0
        self._closed = False
        self.refused = 0
        """The number of calls without the secret, which were ignored."""

    @property
    def address(self) -> Any:
        return self._handle

    @property
    def stale(self) -> int:
        return self._in.stale

    def deliver(self, data: bytes) -> None:
        """Queue ``data`` that a peer has sent. Called by the actor's method of the same name, in its thread."""
        token_bytes = len(self._token)
        if not hmac.compare_digest(data[:token_bytes], self._token):
            self.refused += 1
        elif len(data) > token_bytes and not self._closed:
            self._arrived.append(data)
            self._waker.wake()

    def connect(self, peer: int, address: Any) -> None:
        self._check_open()
        self._peers.connect(peer, lambda: _Calls(self._me, peer, self._incarnation, address, self._token))

    def disconnect(self, peer: int) -> None:
        self._check_open()
        self._peers.disconnect(peer)

    def send(self, receiver: int, contents: Sequence[Content]) -> None:
        self._check_open()
        if peer := self._peers.of(receiver):
            peer.send(contents)

    def receive(self, timeout_s: float) -> list[Content]:
        self._check_open()
        deadline = monotonic() + timeout_s
        while True:
            contents = self._take()
            now = monotonic()
            if now >= self._look_at:
                self._look(now)
            self._peers.losses.check(now, quiet=not contents)
            if contents or now >= deadline:
                return contents
            self._wait(min(deadline, self._look_at, self._peers.losses.due(now)) - now)
            if self._woken:
                self._woken = False
                return contents

    def wake(self) -> None:
        self._woken = True
        self._waker.wake()

    def close(self, *, linger_s: float) -> None:
        if self._closed:
            return
        self._closed = True
        import ray

        under_way = [call for peer in (*self._peers.connected.values(), *self._peers.leaving) for call in peer.calls]
        if under_way and linger_s > 0:
            ray.wait(under_way, num_returns=len(under_way), timeout=linger_s, fetch_local=False)
        self._peers.clear()
        self._arrived.clear()
        self._waker.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InternalError(f"the transport of {peer_name(self._me)} is closed")

    def _take(self) -> list[Content]:
        contents: list[Content] = []
        for _ in range(_MESSAGES_MAX):
            if not self._arrived:
                break
            contents += self._in.open([memoryview(self._arrived.popleft())[len(self._token) :]])
        return contents

    def _wait(self, seconds: float) -> None:
        if select.select([self._waker], [], [], max(0.0, seconds))[0]:
            self._waker.taken()

    def _look(self, now: float) -> None:
        """Check the calls in flight for failures, and call idle peers."""
        self._look_at = now + _LOOK_S
        for peer, calls in list(self._peers.connected.items()):
            if why := calls.failed():
                self._peers.lose(peer, now, why)
            elif now - calls.called_at >= _ASK_S and not calls.calls:
                calls.ask()
        self._peers.leaving = [calls for calls in self._peers.leaving if not calls.failed() and calls.calls]


class _Calls(OutStream):
    """The stream of the end ``me`` to ``peer``, by calls."""

    def __init__(self, me: int, peer: int, incarnation: int, handle: Any, token: bytes) -> None:
        super().__init__(me, peer, incarnation)
        self.calls: list[Any] = []
        self.called_at = monotonic()
        self._deliver = handle.deliver
        self._token = token

    def send(self, contents: Sequence[Content]) -> None:
        """Call the peer once for each message of ``contents``."""
        for message in self.messages(contents):
            self._call(b"".join((self._token, *message)))

    def ask(self) -> None:
        """Call the peer without contents, as a heartbeat."""
        self._call(self._token)

    def failed(self) -> str:
        """Return why a call has failed; empty if none has. Forget the calls that have succeeded."""
        if not self.calls:
            return ""
        import ray

        done, self.calls = ray.wait(self.calls, num_returns=len(self.calls), timeout=0, fetch_local=False)
        try:
            ray.get(done)
        except Exception as error:  # any error of Ray: the peer has not taken the message
            return f"a call to its actor failed ({describe_error(error)})"
        return ""

    def _call(self, data: bytes) -> None:
        self.called_at = monotonic()
        self.calls.append(self._deliver.remote(data))
