"""Connections to Redis, and its errors in the words of this package.

Rules:
- Each call is repeated for about ten seconds while Redis does not answer. So each call must do no harm if it is made
  twice.
- A message names host and port, never a user, a password or a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from malstrom_py.errors import MalstromError, PlanError, imported

if TYPE_CHECKING:
    import redis

_SCHEMES: Final = ("redis", "rediss", "unix")
_FIXED: Final = frozenset({"decode_responses", "protocol", "encoding", "encoding_errors"})
"""Options of the client that change what its answers are made of."""
_TRIES: Final = 13
_PAUSE_MAX_S: Final = 1.0
_TIMEOUT_S: Final = 30.0

_REASONS: Final = {
    "WRONGTYPE": "a key of that name is not a stream: use another name",
    "NOPERM": "the user lacks a permission: see the permissions on the page docs/connectors/redis.md",
    "NOAUTH": "Redis asks for a password: add it to the URL",
    "WRONGPASS": "user or password are wrong: correct the URL",
    "OOM": "Redis has no memory left: raise maxmemory, or trim what is no longer needed",
    "READONLY": "this is a replica, which takes no writes: give the URL of the primary",
    "MISCONF": "Redis cannot write its files: see its log",
    "MOVED": "the stream is on another node of a cluster: give the URL of that node",
    "CROSSSLOT": "the keys are not on one node",
}
"""The code of an answer of Redis -> what it means and what to do."""


_CODES: Final = {"NoPermissionError": "NOPERM", "ReadOnlyError": "READONLY", "OutOfMemoryError": "OOM"}


def check_url(url: object, what: str) -> str:
    """Return ``url`` if it is one of Redis, and its client is installed; else raise `PlanError`."""
    if not isinstance(url, str) or _scheme_of(url) not in _SCHEMES:
        raise PlanError(
            f"{what}: the first argument is a URL such as redis://user:password@localhost:6379/0, rediss:// or "
            f"unix://. Write characters such as @ / ? # of a password as %40 %2F %3F %23"
        )
    fixed = _FIXED.intersection(parse_qs(urlsplit(url).query))
    if fixed:
        raise PlanError(f"{what}: the URL has the option {min(fixed)}, which is fixed here: leave it out")
    imported("redis", f"{what} needs the client of Redis", "redis")
    return url


def _scheme_of(url: str) -> str | None:
    """Return the scheme of ``url``; None if it has no host and port. A part of a password may then be in their place,
    so the text of the error is not for messages.
    """
    try:
        parts = urlsplit(url)
        return parts.scheme if parts.port != 0 else None
    except ValueError:
        return None


def place_of(url: str) -> str:
    """Return the part of ``url`` that a message may contain.

    >>> place_of("redis://user:secret@cache:6380/2"), place_of("unix:///run/redis.sock")
    ('cache:6380', '/run/redis.sock')
    """
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    host = parts.hostname or "localhost"
    return f"{host}:{parts.port or 6379}"


def connect(url: str) -> redis.Redis:
    """Return a client, which connects at its first call. Close it."""
    import redis
    from redis.backoff import ExponentialBackoff
    from redis.retry import Retry

    client: redis.Redis = redis.Redis.from_url(
        url,
        protocol=2,
        retry=Retry(ExponentialBackoff(cap=_PAUSE_MAX_S, base=0.02), _TRIES),
        socket_timeout=_TIMEOUT_S,
        socket_connect_timeout=_TIMEOUT_S,
    )
    return client


@contextmanager
def connected(kind: type[MalstromError], what: str, url: str) -> Iterator[redis.Redis]:
    """Yield a client, whose errors are raised as by `redis_errors`, and close it."""
    client = connect(url)
    try:
        with redis_errors(kind, what, url):
            yield client
    finally:
        client.close()


@contextmanager
def redis_errors(kind: type[MalstromError], what: str, url: str) -> Iterator[None]:
    """Raise errors of Redis as ``kind``, which names ``what`` was done and where."""
    import redis

    try:
        yield
    except redis.RedisError as error:
        raise kind(f"{what} in the Redis at {place_of(url)} failed: {_reason(error)}.") from error


def _reason(error: Any) -> str:
    import redis

    if isinstance(error, redis.AuthenticationError):
        return _REASONS["WRONGPASS"]
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        return "it does not answer: check that it runs and that the URL is right, then run the job again"
    code = code_of(error)
    return _REASONS.get(code, f"Redis answered {code or type(error).__name__}")


def code_of(error: Exception) -> str:
    """Return the code with which an answer of Redis begins, such as ``WRONGTYPE``; "" if there is none.

    The client removes some codes from the text; its class of error then has the name.
    """
    word = str(error).partition(" ")[0].rstrip(":")
    if word.isupper() and word.isalpha():
        return word
    return _CODES.get(type(error).__name__, "")
