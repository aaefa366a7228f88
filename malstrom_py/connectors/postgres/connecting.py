"""Connections to PostgreSQL, and its errors as errors of this package.

Rules:
- Every wait has a limit: for the connection, for locks, and for a server that does not answer.
- An error names what the server complains about, by class and by column or constraint. It never repeats a value or a
  password: the server's words are repeated only where they are about names, rights, resources and connections.
- All sessions use UTF-8, UTC and ISO dates, so that text means the same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import MalstromError, PlanError, SinkError, SourceError, imported
from malstrom_py.errors.text import redacts, text_of

if TYPE_CHECKING:
    import psycopg

CONNECT_S: Final = 10
"""The limit of a connection, unless the DSN has ``connect_timeout``."""

LOCK_S: Final = 60
"""The longest wait for a lock of another session."""

_CANCEL_S: Final = 2.0

_SESSION: Final = (
    "SET TimeZone = 'UTC'",
    "SET DateStyle = 'ISO, YMD'",
    "SET IntervalStyle = 'postgres'",
    "SET bytea_output = 'hex'",
    "SET extra_float_digits = 1",
    "SET statement_timeout = 0",
    f"SET lock_timeout = '{LOCK_S}s'",
)

_SAFE_CLASSES: Final = ("08", "25", "28", "3D", "3F", "42", "53", "54", "55", "57", "58", "XX", "0A")
"""Classes of SQLSTATE whose text is about names, rights and resources, not about values."""

_UNSAFE_STATES: Final = ("42804", "42846", "42P10")
_COPY_PLACE: Final = re.compile(r"COPY .*?, line \d+, column ([^:\n]+)")


def checked_dsn(dsn: object, owner: str) -> str:
    """Return ``dsn`` if it is a connection string that libpq can parse; `PlanError` without its text if not.

    A password with characters that a URI must quote moves into other fields: that is refused, because errors of the
    connection name those fields.
    """
    psycopg = imported("psycopg", f"{owner} needs psycopg", "postgres")
    if not isinstance(dsn, str):
        raise PlanError(f"{owner}: dsn must be a str such as 'postgresql://user@host/database'")
    try:
        fields = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        raise PlanError(f"{owner}: dsn is not a connection string of PostgreSQL, {_EXAMPLES}") from None
    port = str(fields.get("port", ""))
    is_mixed_up = any("@" in str(fields.get(name, "")) for name in ("host", "dbname", "port"))
    if is_mixed_up or not re.fullmatch(r"[\d, ]*", port):
        raise PlanError(f"{owner}: dsn has a part in the wrong place, {_EXAMPLES}")
    return dsn


_EXAMPLES: Final = (
    "such as 'postgresql://user:password@host:5432/database' or 'host=… dbname=… user=…'. In the first form write "
    "characters such as @ / ? # of a password as %40 %2F %3F %23"
)


@contextmanager
def connected(dsn: str, owner: str, kind: type[SinkError] | type[SourceError]) -> Iterator[psycopg.Connection[Any]]:
    """Open a session in autocommit mode, and close it; errors of the database become ``kind``."""
    with database_errors(owner, kind):
        connection = connect(dsn)
        try:
            yield connection
        finally:
            connection.close()


def connect(dsn: str) -> psycopg.Connection[Any]:
    """Return a new session in autocommit mode, with the settings of this package."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    options: dict[str, Any] = {
        "connect_timeout": CONNECT_S,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
        "application_name": "malstrom-py",
    }
    given = conninfo_to_dict(dsn)
    chosen = {name: value for name, value in options.items() if name not in given}
    connection: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True, client_encoding="utf8", **chosen)
    try:
        connection.execute("; ".join(_SESSION).encode())
    except BaseException:
        connection.close()
        raise
    return connection


def cancel(connection: psycopg.Connection[Any] | None) -> None:
    """End the statement of a session, in another thread than that of the session."""
    if connection is not None:
        with suppress(Exception):  # the session may be gone, or be opened right now
            connection.cancel_safe(timeout=_CANCEL_S)


@contextmanager
def database_errors(owner: str, kind: type[SinkError] | type[SourceError]) -> Iterator[None]:
    """Raise errors of psycopg as ``kind``, without values."""
    import psycopg

    try:
        yield
    except MalstromError:
        raise
    except psycopg.Error as error:
        raise kind(f"{owner}: {described(error)}") from None


def described(error: psycopg.Error) -> str:
    """Describe an error of the database without values: its class, where it is, and what to do."""
    state, diagnosed = error.sqlstate, error.diag
    if state is None:
        return _of_connection(error)
    words = [f"PostgreSQL refuses with {type(error).__name__} ({state})"]
    named = [(name, getattr(diagnosed, f"{name}_name")) for name in ("table", "column", "constraint")]
    words += [f"{name} {value!r}" for name, value in named if value]
    place = _COPY_PLACE.search(diagnosed.context or "")
    if place and not diagnosed.column_name:
        words.append(f"column {place[1]!r}")
    text = ", ".join(words)
    if state.startswith(_SAFE_CLASSES) and state not in _UNSAFE_STATES and diagnosed.message_primary and not redacts():
        text += f": {diagnosed.message_primary}"
    advice = _ADVICE.get(state) or _ADVICE.get(state[:2], "")
    return f"{text}. {advice}".rstrip()


def _of_connection(error: psycopg.Error) -> str:
    """Describe an error without SQLSTATE: of the connection, or of a value that psycopg cannot convert."""
    import psycopg

    if isinstance(error, psycopg.OperationalError):
        # The words of libpq: host, port and reason. `checked_dsn` keeps parts of a password out of them.
        text = " ".join((text_of(error) or type(error).__name__).split())
        return f"the connection to PostgreSQL failed: {text[:400]}. The next start resumes from the last snapshot"
    if isinstance(error, psycopg.DataError):
        return "a value cannot be converted: cast its column in the query, for instance to text"
    return f"psycopg raised {type(error).__name__}"


_ADVICE: Final = {
    "23502": "A column that must not be NULL was NULL or missing",
    "23505": "Remove the rows that are already there, or use mode='upsert' or on_conflict='ignore'",
    "23514": "Rows break a CHECK of the table",
    "22": "A value does not fit the type of its column: convert it in a step before",
    "23": "Rows break a constraint of the table",
    "28": "Check user and password of the DSN, and pg_hba.conf of the server",
    "42602": 'Write a name that has a space or another sign in double quotes, as in shop."my sales"',
    "42501": "Grant the right to the user of the DSN",
    "53": "Free or add resources on the server, then start the job again",
    "55P03": "Another session holds a lock for too long: end it, then start the job again",
}
