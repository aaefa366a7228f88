"""The dashboard: serves a page per job on this machine, over HTTP, with Starlette and uvicorn.

Rule: data and commands need the token of the server: in the address of the page, and then in a header; a command takes
the header only, which no other site can send. Probes (`health`) show no data and need none. The server asks nothing of
other machines, and jobs at most once a second, however many pages are open.
"""

from __future__ import annotations

import asyncio
import atexit
import hmac
import json
import secrets
import socket
import threading
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from malstrom_py.errors import DeadlineError, MalstromError, PlanError, pip_install
from malstrom_py.metrics import ENDED, LOOPBACK, check_address, url_of
from malstrom_py.validation import check_name, checked_flag
from malstrom_py.workers.monitoring.health import PROBES, probe
from malstrom_py.workers.monitoring.history import Page, Recording, page_in, pages_in
from malstrom_py.workers.monitoring.state_pages import begun, query_page, shadow_page, state_page, tap_page
from malstrom_py.workers.monitoring.watching import Watch
from malstrom_py.workers.reports.commands import (
    ReloadCommand,
    RescaleCommand,
    RunningJob,
    SnapshotCommand,
    StopCommand,
)
from malstrom_py.workers.reports.job_status import ReloadAction, check_size

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

PORT: Final = 9465
"""The port of the dashboard, if it is free."""

COMMAND_S: Final = 30.0
"""How long a command may take to be answered."""

PROBATION_S: Final = 2.0
"""For how long the code of a shadow that is promoted is on trial."""

_LOOK_S: Final = 0.2
_ALIVE_S: Final = 15.0
_START_S: Final = 10.0
_LAST_S: Final = 1.0
_GZIP: Final = 31
"""How zlib names the format of gzip, with the largest window."""

_NO_VALUES: Final = "values are not shown here: use mp.Dashboard(values=True), or malstrom dashboard JOB --values"
_OVER: Final = "the job has ended"
_BODY_MAX: Final = 4096
_TOKEN: Final = "x-malstrom-token"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Dashboard:
    """How a runtime shows its jobs in a browser. ``dashboard=True`` is ``dashboard=mp.Dashboard()``.

    ``port``: None for 9465, or any free one if that is taken. ``host``: only this machine can open the page by default.
    ``token``: who has it may see and command the jobs; a new one by default. ``history``: a folder in which the pages
    of jobs are kept; ``malstrom dashboard --history FOLDER`` shows them. The address is printed on standard error.
    ``values``: who has the token may also see records, the state of steps, and in what a shadow differs: values are
    data.

    Raises: PlanError: an option is wrong.
    """

    port: int | None = None
    host: str = LOOPBACK
    token: str = field(default="", repr=False)
    history: str | Path | None = None
    values: bool = False

    def __post_init__(self) -> None:
        check_address(self.host, 0 if self.port is None else self.port, "mp.Dashboard")
        if not isinstance(self.token, str) or not all("!" <= character <= "~" for character in self.token):
            raise PlanError("mp.Dashboard: token must be a text of ASCII characters that can be seen, without spaces")
        if self.history is not None and not isinstance(self.history, str | Path):
            raise PlanError(f"mp.Dashboard: history must be a folder, got {type(self.history).__name__}")
        checked_flag(self.values, "mp.Dashboard: values")

    @property
    def folder(self) -> Path | None:
        """The folder of the history."""
        return None if self.history is None else Path(self.history).expanduser()


_LOCK: Final = threading.Lock()
_OPEN: Final[dict[Dashboard, DashboardServer]] = {}


class DashboardServer:
    """The server of the pages of all jobs that are added, until `close`.

    Raises: PlanError: Starlette or uvicorn is missing, or the address cannot be used.
    """

    def __init__(self, options: Dashboard) -> None:
        app = _Pages(self).app()
        self.options = options
        self.token = options.token or secrets.token_urlsafe(16)
        self.closing = False
        self.streams = 0
        self.asking: set[threading.Thread] = set()
        self._watches: dict[str, Watch] = {}
        self._jobs = 0
        self._has_failures = False
        self._listener = _listener(options)
        self.port = int(self._listener.getsockname()[1])
        self._server = _uvicorn_server(app)
        self._thread = threading.Thread(target=self._serve, name="malstrom-dashboard", daemon=True)
        self._thread.start()
        until_s = monotonic() + _START_S
        while not self._server.started:
            if not self._thread.is_alive() or monotonic() > until_s:
                self._listener.close()
                raise DeadlineError(
                    f"the dashboard has not started within {_START_S:g} s", wait="the dashboard", deadline_s=_START_S
                )
            sleep(0.01)

    @classmethod
    def join(cls, job: RunningJob, options: Dashboard) -> DashboardServer:
        """Show ``job`` on the server of ``options`` in this process, which is made if there is none."""
        with _LOCK:
            server = _OPEN.get(options)
            if server is None:
                _free_address(options)
                server = _OPEN[options] = cls(options)
            try:
                server.add(job)
            except BaseException:
                if not (server._jobs or server._has_failures):
                    server._leave_address()
                raise
            server._jobs += 1
            return server

    def leave(self, job: RunningJob, failure: str | None = None) -> None:
        """Show the last figures of ``job``, which has ended. The server closes with the last job, unless one has
        failed: its page stays while this program runs, so that what failed can be read.
        """
        self._watches[job.name].finish()
        with _LOCK:
            self._jobs -= 1
            self._has_failures = self._has_failures or failure is not None
            if not (self._jobs or self._has_failures):
                self._leave_address()

    def _leave_address(self) -> None:
        """Close the server, with the lock, so that the next job that wants the address finds it free."""
        _OPEN.pop(self.options, None)
        self.close()

    def add(self, job: RunningJob) -> None:
        """Show ``job``."""
        folder = self.options.folder
        self._watches[job.name] = Watch(job, None if folder is None else Recording(folder, job.name))

    def shows(self, name: str) -> bool:
        """Return whether job ``name`` is shown and has not ended."""
        watch = self._watches.get(name)
        return watch is not None and not watch.is_over

    def address(self, job: str = "") -> str:
        """Return the address of the page of ``job``, or of all jobs, with the token."""
        page = f"/jobs/{job}" if job else "/"
        return f"{url_of(self.options.host, self.port)}{page}?token={quote(self.token, safe='')}"

    def close(self) -> None:
        """Close the pages, once they have got the last view, and stop the server."""
        self.closing = True
        until_s = monotonic() + _LAST_S
        while self.streams and monotonic() < until_s:
            sleep(0.02)
        for watch in self._watches.values():
            watch.finish()
        self._server.should_exit = True
        self._thread.join(_START_S)
        self._listener.close()
        until_s = monotonic() + _LAST_S
        for thread in list(self.asking):  # DuckDB, interrupted, aborts a program that exits before it ends
            thread.join(max(0.0, until_s - monotonic()))

    def lives(self) -> list[tuple[str, str, float]]:
        """Return the state and phase of each job that has not ended, and the age of what is known of it."""
        views = [watch.view for watch in self._watches.values() if not watch.is_over]
        return [(view["state"], view["phase"], view["age_s"]) for view in views if view["state"] not in ENDED]

    def page(self, name: str) -> Watch | Page | None:
        """Return the page ``name``: of a job, or of the history."""
        folder = self.options.folder
        return self._watches.get(name) or (None if folder is None else page_in(folder, name))

    def listed(self) -> list[dict[str, Any]]:
        """Return a line for each page: running jobs first."""
        live = [_line(name, watch.view, watch.started_at, history=False) for name, watch in self._watches.items()]
        folder = self.options.folder
        own = {watch.recorded_as for watch in self._watches.values()}
        pages = () if folder is None else (page for page in pages_in(folder) if page.name not in own)
        return [*live, *(_line(page.name, page.view, None, history=True) for page in pages)]

    def _serve(self) -> None:
        self._server.run(sockets=[self._listener])


@atexit.register  # before the modules of jobs do, so it is called once they have ended
def _close_all() -> None:
    """Close the pages that have stayed, and so end their queries."""
    for server in list(_OPEN.values()):
        server.close()


def _free_address(options: Dashboard) -> None:
    """Close a server of this process at the address of ``options`` that only shows jobs that have ended."""
    wanted = options.host, PORT if options.port is None else options.port
    for server in list(_OPEN.values()):
        if not server._jobs and (server.options.host, server.port) == wanted:
            server._leave_address()


def _listener(options: Dashboard) -> socket.socket:
    wanted = [PORT, 0] if options.port is None else [options.port]
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    for port in wanted:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((options.host, port))
            listener.listen()  # before that another process can bind the same port
        except OSError as error:
            listener.close()
            if port == wanted[-1]:
                raise PlanError(
                    f"the dashboard cannot listen at {options.host}:{port} ({error.strerror}): give another address, "
                    f"mp.Dashboard(port=, host=)"
                ) from error
        else:
            return listener
    raise AssertionError  # the loop returns or raises


def _line(name: str, view: Mapping[str, Any], started_at: float | None, *, history: bool) -> dict[str, Any]:
    totals = view.get("totals", {})
    has_ended = history or view.get("state") in {*ENDED, "gone"}
    return {
        "job": name,
        "state": view.get("state"),
        "workers": len(view.get("workers", ())),
        "read_per_s": 0.0 if has_ended else totals.get("read_per_s", 0.0),
        "duration_s": view.get("duration_s", 0.0),
        "error": view.get("error"),
        "is_history": history,
        "has_ended": has_ended,
        "started_at": started_at or max(0.0, view.get("at", 0.0) - view.get("duration_s", 0.0)),
    }


def remark_on(host: str) -> str:
    """Return what to know about a page at ``host``, for who gets its address; empty if only this machine opens it.

    >>> remark_on("127.0.0.1"), remark_on("0.0.0.0")
    ('', ' (other machines can open it, and the token is sent unencrypted: put it after a proxy with TLS)')
    """
    if host in {LOOPBACK, "localhost", "::1"}:
        return ""
    return " (other machines can open it, and the token is sent unencrypted: put it after a proxy with TLS)"


def check_installed() -> None:
    """Raise `PlanError` if what serves the dashboard is missing."""
    try:
        import starlette
        import uvicorn

        _ = starlette, uvicorn
    except ImportError as error:
        raise PlanError(f"the dashboard is served by Starlette and uvicorn: {pip_install('dashboard')}") from error


def _uvicorn_server(app: Starlette) -> Any:
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    )


Handler = Callable[["Request"], Awaitable["Response"]]
Ask = Callable[[RunningJob, threading.Event], dict[str, Any] | None]
"""A function that asks a job for values; the event is set once no client waits for them."""


class _Pages:
    """The answers of ``server`` to requests."""

    def __init__(self, server: DashboardServer) -> None:
        check_installed()
        from importlib.resources import files

        self._server = server
        self._one_at_a_time = asyncio.Lock()  # of the server: queries that wait in threads would leave none to pages
        self._static = Path(str(files("malstrom_py.workers.monitoring"))) / "static"

    def app(self) -> Starlette:
        """Return the application for uvicorn."""
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.gzip import GZipMiddleware
        from starlette.routing import Mount, Route
        from starlette.staticfiles import StaticFiles

        command = self._allowed(self._command, by_header=True)
        routes = [
            Route("/", self._index),
            Route("/jobs/{name}", self._index),
            *(Route(path, self._probe) for path in PROBES),
            Route("/api/jobs", self._allowed(self._jobs)),
            Route("/api/jobs/{name}", self._allowed(self._job)),
            Route("/api/jobs/{name}/stream", self._allowed(self._stream)),
            Route("/api/jobs/{name}/state/{step}/{key:path}", self._allowed(self._state)),
            Route("/api/jobs/{name}/query", self._allowed(self._query)),
            Route("/api/jobs/{name}/tap/{step}", self._allowed(self._tap)),
            Route("/api/jobs/{name}/shadow/{step}", self._allowed(self._shadow)),
            Route("/api/jobs/{name}/{command}", command, methods=["POST"]),
            Mount("/static", StaticFiles(directory=self._static)),
        ]
        return Starlette(routes=routes, middleware=[Middleware(GZipMiddleware, minimum_size=1024)])

    def _allowed(self, handler: Handler, *, by_header: bool = False) -> Handler:
        """Return ``handler`` for requests with the token; ``by_header``: not those that have it in their address."""

        async def checked(request: Request) -> Response:
            given = request.headers.get(_TOKEN, "") or ("" if by_header else request.query_params.get("token", ""))
            if not hmac.compare_digest(given.encode(), self._server.token.encode()):
                return _refused(401, "wrong or missing token: open the address that the job printed")
            return await handler(request)

        return checked

    async def _index(self, request: Request) -> Response:
        from starlette.responses import HTMLResponse

        page = (self._static / "index.html").read_text()
        if self._server.options.values:  # by this the page knows that it may ask for them
            page = page.replace("<body", "<body data-values", 1)
        return HTMLResponse(page, headers=_HEADERS)

    async def _probe(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse

        status, text = probe(request.url.path, self._server.lives())
        return PlainTextResponse(f"{text}\n", status, headers=_HEADERS)

    async def _jobs(self, request: Request) -> Response:
        from importlib.metadata import version

        listed = await asyncio.to_thread(self._server.listed)
        return _answer({"jobs": listed, "version": version("malstrom-py")})

    async def _job(self, request: Request) -> Response:
        found = await self._found(request)
        if found is None:
            return _refused(404, f"there is no job {request.path_params['name']!r} here")
        return _answer({"view": found.view, "events": found.events, "rates": found.rates})

    async def _stream(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        found = await self._found(request)
        if found is None:
            return _refused(404, f"there is no job {request.path_params['name']!r} here")
        messages, headers = _messages(self._server, found), dict(_HEADERS)
        if "gzip" in request.headers.get("accept-encoding", ""):  # what compresses other answers leaves streams out
            messages, headers["Content-Encoding"] = _compressed(messages), "gzip"
        return StreamingResponse(messages, media_type="text/event-stream", headers=headers)

    async def _command(self, request: Request) -> Response:
        found, execute = await self._found(request), _COMMANDS.get(request.path_params["command"])
        if not isinstance(found, Watch) or found.is_over or execute is None:
            return _refused(404, f"job {request.path_params['name']!r} does not run, or has no such command")
        body = await _body(request)
        if body is None:
            return _refused(400, "the command is not a JSON object")
        try:
            text = await asyncio.to_thread(execute, found.job, body)
        except MalstromError as error:
            return _refused(409, str(error))
        return _answer({"ok": True, "text": text})

    async def _state(self, request: Request) -> Response:
        given = request.path_params
        async with self._one_at_a_time:
            return await self._values(request, lambda job, _: state_page(job, given["step"], given["key"]))

    async def _query(self, request: Request) -> Response:
        sql = request.query_params.get("sql", "")
        async with self._one_at_a_time:
            return await self._values(request, lambda job, over: query_page(job, sql, over))

    async def _tap(self, request: Request) -> Response:
        step, given = request.path_params["step"], request.query_params
        return await self._values(
            request, lambda job, _: tap_page(job, step, given.get("log", ""), given.get("after", ""))
        )

    async def _shadow(self, request: Request) -> Response:
        return await self._values(request, lambda job, _: shadow_page(job, request.path_params["step"]))

    async def _values(self, request: Request, ask: Ask) -> Response:
        """Answer what is data, if that is allowed. ``ask`` is not called for a client that has gone while it queued."""
        found = await self._found(request)
        if not self._server.options.values:
            return _refused(403, _NO_VALUES)
        if not isinstance(found, Watch):
            return _refused(404, f"job {request.path_params['name']!r} does not run here")
        if self._server.closing or await request.is_disconnected():
            return _refused(409, _OVER)
        over, gone = threading.Event(), asyncio.ensure_future(_disconnected(request))
        answer = begun(lambda: ask(found.job, over), self._server.asking)
        try:
            while not (answer.done() or self._server.closing):
                waits: set[asyncio.Future[Any]] = {answer} if gone.done() else {answer, gone}
                await asyncio.wait(waits, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    over.set()
            if not answer.done():
                return _refused(409, _OVER)
            page = answer.result()
        except MalstromError as error:
            return _refused(409, str(error))
        finally:
            over.set()
            gone.cancel()
            answer.cancel()
        return _refused(404, "the key has no state") if page is None else _answer(page)

    async def _found(self, request: Request) -> Watch | Page | None:
        return await asyncio.to_thread(self._server.page, request.path_params["name"])


def _answer(content: object, status: int = 200) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(content, status, headers=_HEADERS)


def _refused(status: int, error: str) -> Response:
    return _answer({"error": error}, status)


async def _disconnected(request: Request) -> None:
    """Wait until the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        """The rest of its request."""


async def _body(request: Request) -> dict[str, Any] | None:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _BODY_MAX:
            return None
    try:
        found = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


async def _compressed(messages: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Return ``messages`` with gzip, each complete when it is sent."""
    packer = zlib.compressobj(wbits=_GZIP)
    async with aclosing(messages):
        async for message in messages:
            yield packer.compress(message) + packer.flush(zlib.Z_SYNC_FLUSH)
    yield packer.flush()


async def _messages(server: DashboardServer, page: Watch | Page) -> AsyncGenerator[bytes, None]:
    """Return the messages of a stream: the events, the rates and the view, whenever they change."""
    shown, number, rated, spoke_s, is_last = -1, 0, 0.0, monotonic(), False
    server.streams += 1
    try:
        while not is_last:
            is_last = isinstance(page, Watch) and page.is_over
            now = page.version if isinstance(page, Watch) else 0
            if now != shown:
                new = [event for event in page.events if event["number"] > number]
                if new or shown < 0:
                    number = new[-1]["number"] if new else 0
                    yield _message("events", new)
                rates = [row for row in page.rates if row[0] > rated]
                if rates:
                    rated = rates[-1][0]
                    yield _message("rates", rates)
                yield _message("view", page.view)
                shown, spoke_s = now, monotonic()
            elif monotonic() - spoke_s > _ALIVE_S:
                yield b": alive\n\n"
                spoke_s = monotonic()
            if server.closing and not isinstance(page, Watch):
                break
            await asyncio.sleep(_LOOK_S)
        yield _message("gone", {})
    finally:
        server.streams -= 1


def _message(kind: str, data: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _rescale(job: RunningJob, body: Mapping[str, Any]) -> str:
    workers = body.get("workers")
    check_size(workers)
    job.ask(RescaleCommand(int(workers or 0), wait=False, timeout_s=COMMAND_S))
    return f"the job begins to rescale to {workers} worker{'' if workers == 1 else 's'}"


def _rebalance(job: RunningJob, body: Mapping[str, Any]) -> str:
    job.ask(RescaleCommand(None, wait=False, timeout_s=COMMAND_S))
    return "slots move by load, if that pays: see what happened"


def _snapshot(job: RunningJob, body: Mapping[str, Any]) -> str:
    return f"snapshot {job.ask(SnapshotCommand(None, COMMAND_S))} is complete"


def _promote(job: RunningJob, body: Mapping[str, Any]) -> str:
    return _reload(job, body, "promote", PROBATION_S)


def _drop(job: RunningJob, body: Mapping[str, Any]) -> str:
    return _reload(job, body, "drop", 0.0)


def _reload(job: RunningJob, body: Mapping[str, Any], action: ReloadAction, probation_s: float) -> str:
    step = check_name(body.get("step"), "step")
    return str(job.ask(ReloadCommand(step, probation_s, COMMAND_S, action=action)))


def _stop(job: RunningJob, body: Mapping[str, Any]) -> str:
    drain = body.get("drain")
    if drain is not None and not isinstance(drain, bool):
        raise PlanError(f"drain must be true, false or null, got {drain!r}")
    job.ask(StopCommand(drain, wait=False, timeout_s=COMMAND_S))
    return "the job is being stopped"


_COMMANDS: Final[Mapping[str, Callable[[RunningJob, Mapping[str, Any]], str]]] = {
    "rescale": _rescale,
    "rebalance": _rebalance,
    "snapshot": _snapshot,
    "promote": _promote,
    "drop": _drop,
    "stop": _stop,
}
