"""The server of the dashboard: who may see what, what it shows, and what stays when a job has ended."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.workers.monitoring import dashboard, history, state_pages
from malstrom_py.workers.monitoring.dashboard import DashboardServer
from malstrom_py.workers.monitoring.history import Recording, pages_in
from malstrom_py.workers.runtime.job_handle import find_job
from tests.integration.monitoring.conftest import PATIENCE_S, TOKEN, Server, a_job, free_port, until


def test_the_page_shows_the_figures_of_the_job(server: Server, shown: mp.Dashboard, tmp_path: Path) -> None:
    runtime = mp.InProcess(2, dashboard=shown, snapshots=mp.Snapshots(tmp_path / "kept", interval_s=0.5))
    handle = runtime.start(a_job("docs-dashboard"))
    until(lambda: server.view("docs-dashboard")["totals"]["written"], "it writes")
    until(lambda: server.view("docs-dashboard")["snapshots"]["made"], "it makes a snapshot")
    view = server.view("docs-dashboard")
    assert (view["job"], view["can_command"], len(view["workers"])) == ("docs-dashboard", True, 2)
    assert [step["step"] for step in view["steps"]] == ["numbers", "at", "epochs", "odd", "key", "seen", "out"]
    exchange = next(edge for edge in view["edges"] if edge["exchange"])
    assert (exchange["source"], exchange["target"]) == ("key", "seen")
    assert exchange["waiting"] is not None
    assert view["watermark"] is not None

    def heavy_keys() -> list[str]:
        return [heavy["key"] for heavy in server.view("docs-dashboard")["heavy_keys"]]

    until(lambda: heavy_keys()[:1] == ["7"], "its heaviest key is found")
    handle.stop(timeout_s=PATIENCE_S)


def test_commands_of_the_page_reach_the_job(server: Server, shown: mp.Dashboard, tmp_path: Path) -> None:
    handle = mp.InProcess(2, dashboard=shown, snapshots=mp.Snapshots(tmp_path / "kept", interval_s=None)).start(
        a_job("docs-commands")
    )
    answer = server.post("/api/jobs/docs-commands/rescale", {"workers": 3})
    assert answer == {"ok": True, "text": "the job begins to rescale to 3 workers"}
    until(lambda: len(server.view("docs-commands")["workers"]) == 3, "it has three workers")
    assert server.post("/api/jobs/docs-commands/snapshot", {})["text"].endswith("is complete")
    kinds = [event["kind"] for event in server.get("/api/jobs/docs-commands")["events"]]
    until(lambda: "RescaleEnded" in kinds or server.get("/api/jobs/docs-commands"), "there are events")
    assert server.status("/api/jobs/docs-commands/rescale", body={"workers": 0}) == 409
    assert server.status("/api/jobs/docs-commands/rescale", body={"workers": "many"}) == 409
    assert server.status("/api/jobs/docs-commands/stop", body={"drain": "maybe"}) == 409
    assert server.status("/api/jobs/docs-commands/explode", body={}) == 404
    assert server.status("/api/jobs/other/stop", body={}) == 404
    assert server.status("/api/jobs/docs-commands/stop", body={"drain": []}) == 409
    assert server.status("/api/jobs/docs-commands/stop", body=[1]) == 400
    nested: list[Any] = []
    for _ in range(800):
        nested = [nested]
    assert server.status("/api/jobs/docs-commands/stop", body={"drain": nested}) in {400, 409}
    assert handle.status().workers == 3
    assert server.post("/api/jobs/docs-commands/stop", {"drain": True})["ok"]
    assert handle.wait(timeout_s=PATIENCE_S).written > 0


def test_without_the_token_nothing_is_shown_or_done(server: Server, shown: mp.Dashboard) -> None:
    handle = mp.InProcess(dashboard=shown).start(a_job("docs-token"))
    for path in ("/api/jobs", "/api/jobs/docs-token", "/api/jobs/docs-token/stream"):
        assert server.status(path, token=None) == 401
        assert server.status(path, token="another") == 401
        assert server.status(f"{path}?token=another", token=None) == 401
        assert server.status(f"{path}?token=a-töken".replace("ö", "%C3%B6"), token=None) == 401
    assert server.get(f"/api/jobs?token={TOKEN}", token=None)["jobs"][0]["job"] == "docs-token"
    # A page of another site can make a browser post to an address, but not with a header that it chooses.
    assert server.status(f"/api/jobs/docs-token/stop?token={TOKEN}", body={}, token=None) == 401
    assert handle.status().state == "running"
    handle.stop(timeout_s=PATIENCE_S)


def test_state_is_shown_only_where_values_are_allowed(server: Server, shown: mp.Dashboard, tmp_path: Path) -> None:
    kept = mp.Snapshots(tmp_path / "kept", interval_s=None)
    handle = mp.InProcess(2, dashboard=replace(shown, values=True), snapshots=kept).start(a_job("docs-values"))
    until(lambda: server.view("docs-values")["totals"]["written"] > 1_000, "it writes")
    here = "/api/jobs/docs-values"
    assert server.status(f"{here}/state/seen/7") == 409  # there is no snapshot
    handle.snapshot()
    state = handle.state("seen")
    of_key = server.get(f"{here}/state/seen/7")
    assert of_key == {"step": "seen", "key": 7, "snapshot": state.snapshot, "state": state[7]}
    assert server.status(f"{here}/state/seen/seven") == 404
    assert server.status(f"{here}/state/other/7") == 409
    found = server.get(f"{here}/query?sql={quote('select key, value from seen where key = 7')}")
    assert found == {"snapshot": state.snapshot, "rows": [{"key": 7, "value": state[7]}], "rows_all": 1}
    many = server.get(f"{here}/query?sql={quote('select * from range(20000) order by all')}")
    assert (len(many["rows"]), many["rows_all"]) == (10_000, 20_000)
    assert server.status(f"{here}/query?sql={quote('select * from missing')}") == 409
    assert server.status(f"{here}/query?sql=select%20timestamp%20'infinity'") == 409
    assert server.status(f"{here}/query") == 409
    for path in (f"{here}/state/seen/7", f"{here}/query?sql=select%201"):
        assert server.status(path, token=None) == 401
        assert server.status(path, token="another") == 401
        assert server.status(path.replace("docs-values", "another")) == 404
    handle.stop(timeout_s=PATIENCE_S)


def test_records_of_a_step_are_shown_only_where_values_are_allowed(server: Server, shown: mp.Dashboard) -> None:
    handle = mp.InProcess(2, dashboard=replace(shown, values=True)).start(a_job("docs-records"))
    path = "/api/jobs/docs-records/tap/seen"
    until(lambda: server.get(path)["log"], "the job has started")
    page = server.get(path)
    until(lambda: server.get(f"{path}?log={page['log']}&after=0")["passed"] > 100, "records pass")
    page = server.get(f"{path}?log={page['log']}&after={page['after']}")
    assert len(page["records"]) == 20
    assert all(re.fullmatch(r"worker [01]  time \d+  key \d+  \d+", line) for line in page["records"])
    assert server.get(f"{path}?log=another&after=x")["log"] == page["log"]
    assert server.status("/api/jobs/docs-records/tap/nope") == 409
    assert server.status("/api/jobs/docs-records/shadow/seen") == 409
    for step in ({}, {"step": 7}, {"step": "seen/../x"}, {"step": "seen"}):
        assert server.status("/api/jobs/docs-records/promote", body=step) == 409
        assert server.status("/api/jobs/docs-records/drop", body=step) == 409
    assert server.status(path, token=None) == 401
    assert b"<body data-values" in urllib.request.urlopen(f"http://127.0.0.1:{server.port}/jobs/docs-records").read()
    handle.stop(timeout_s=PATIENCE_S)


def test_values_are_off_unless_they_are_allowed(server: Server, shown: mp.Dashboard, tmp_path: Path) -> None:
    handle = mp.InProcess(dashboard=shown, snapshots=mp.Snapshots(tmp_path / "kept")).start(a_job("docs-off"))
    handle.snapshot()
    assert server.status("/api/jobs/docs-off/state/seen/7") == 403
    assert server.status("/api/jobs/docs-off/query?sql=select%201") == 403
    assert server.status("/api/jobs/docs-off/tap/seen") == 403
    assert server.status("/api/jobs/docs-off/shadow/seen") == 403
    assert b"data-values" not in urllib.request.urlopen(f"http://127.0.0.1:{server.port}/jobs/docs-off").read()
    handle.stop(timeout_s=PATIENCE_S)
    with pytest.raises(PlanError, match="values must be True or False"):
        mp.Dashboard(values=1)  # type: ignore[arg-type]


ENDLESS = "select sum(a.range * b.range) from range(1000000) a, range(1000000) b"


@pytest.fixture(scope="module")
def ended() -> mp.JobHandle:
    job = mp.Job("docs-ended-state")
    job.source("in", sources.Memory([1])).key_by("key", str).count("n").sink("out", sinks.Memory())
    handle = mp.InProcess(snapshots=mp.Snapshots(MemoryStore())).start(job, control=False)
    handle.wait(timeout_s=PATIENCE_S)
    return handle


def test_a_query_that_takes_too_long_ends(ended: mp.JobHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_pages, "SECONDS_MAX", 0.2)
    with pytest.raises(PlanError, match=r"took longer than 0.2 s"):
        state_pages.query_page(ended._job, ENDLESS, threading.Event())


def test_a_query_for_which_nobody_waits_ends(ended: mp.JobHandle) -> None:
    over = threading.Event()
    over.set()
    with pytest.raises(PlanError, match="the query fails"):
        state_pages.query_page(ended._job, ENDLESS, over)
    with pytest.raises(PlanError, match="the query fails"):  # the state is not read
        state_pages.query_page(ended._job, "select * from n", over)


def test_an_answer_has_the_first_rows_that_it_has_room_for_and_none_after(ended: mp.JobHandle) -> None:
    sql = "select range as n, repeat('x', 1 << 20) as x from range(20) union all select 20 + range, '' from range(100)"
    found = state_pages.query_page(ended._job, f"select n, x from ({sql})", threading.Event())
    assert found["rows_all"] == 120
    assert [row["n"] for row in found["rows"]] == list(range(len(found["rows"])))
    assert 2 <= len(found["rows"]) <= 8


def test_queries_that_wait_leave_the_pages_alone(
    server: Server, shown: mp.Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = mp.InProcess(dashboard=replace(shown, values=True)).start(a_job("docs-queue"))
    let_go = threading.Event()

    def slow(job: Any, sql: str, over: threading.Event) -> dict[str, Any]:
        assert let_go.wait(PATIENCE_S)
        return {}

    monkeypatch.setattr(dashboard, "query_page", slow)
    with ThreadPoolExecutor(40) as asking:
        asked = [asking.submit(server.get, "/api/jobs/docs-queue/query?sql=slow") for _ in range(40)]
        try:
            time.sleep(0.2)  # they arrive
            assert server.view("docs-queue")["job"] == "docs-queue"
        finally:
            let_go.set()
        assert [one.result(PATIENCE_S) for one in asked] == [{}] * 40
    handle.stop(timeout_s=PATIENCE_S)


def test_queries_end_with_their_clients_and_never_delay_the_end_of_the_job(
    server: Server, shown: mp.Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = set(threading.enumerate())  # the pages of jobs that have failed in other tests stay
    handle = mp.InProcess(dashboard=replace(shown, values=True)).start(a_job("docs-gone"))
    asked, let_go = list[tuple[str, threading.Event]](), threading.Event()

    def noted(job: Any, sql: str, over: threading.Event) -> dict[str, Any]:
        asked.append((sql, over))
        assert (let_go if sql == "stuck" else over).wait(PATIENCE_S)
        return {}

    def ask(sql: str) -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        connection.request("GET", f"/api/jobs/docs-gone/query?sql={sql}", headers={"X-Malstrom-Token": TOKEN})
        return connection

    monkeypatch.setattr(dashboard, "query_page", noted)
    running = ask("running")
    until(lambda: asked, "the first is asked")
    for queued in [ask(f"queued-{number}") for number in range(20)]:
        queued.close()
    stuck = ask("stuck")
    time.sleep(0.2)  # they have arrived
    running.close()
    until(lambda: len(asked) > 1, "the next is asked")
    assert asked[0][1].is_set()
    assert [sql for sql, _ in asked] == ["running", "stuck"]
    handle.stop(timeout_s=PATIENCE_S)  # though this one does not end
    assert asked[1][1].is_set()
    with closing(stuck), stuck.getresponse() as answer:
        assert (answer.status, json.load(answer)) == (409, {"error": "the job has ended"})
    assert "malstrom-dashboard" not in [thread.name for thread in threading.enumerate() if thread not in others]
    let_go.set()


FAILS = """
import sys, threading, urllib.request
import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.workers.monitoring import dashboard

asked = threading.Event()

def page(job, sql, over):
    asked.set()
    print(f"over: {over.wait(60)}", flush=True)

dashboard.query_page = page
job = mp.Job("docs-fails")
job.source("in", sources.Memory([0])).map("inverse", lambda number: 1 / number).sink("out", sinks.Memory())
shown = mp.Dashboard(int(sys.argv[1]), token="t", values=True)
try:
    mp.InProcess(dashboard=shown).start(job, control=False).wait()
except mp.OperatorError:
    address = f"http://127.0.0.1:{sys.argv[1]}/api/jobs/docs-fails/query?token=t"
    threading.Thread(target=urllib.request.urlopen, args=[address], daemon=True).start()
    asked.wait(60)
"""


def test_a_program_whose_job_has_failed_waits_for_the_end_of_its_queries() -> None:
    arguments = [sys.executable, "-c", FAILS, str(free_port())]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ran.returncode, ran.stdout) == (0, "over: True\n"), ran.stderr


def test_probes_need_no_token_and_say_whether_the_job_runs(server: Server, shown: mp.Dashboard) -> None:
    metrics = mp.Metrics(port=free_port())
    handle = mp.InProcess(2, dashboard=shown, metrics=metrics).start(a_job("docs-probes"))
    until(lambda: server.view("docs-probes")["phase"] == "steady", "it runs")
    for port in (server.port, metrics.port):
        for path, text in (("healthz", "alive"), ("readyz", "ready")):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=PATIENCE_S) as answer:
                assert (answer.status, answer.read().decode()) == (200, f"{text}\n")
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=PATIENCE_S) as answer:
        assert b"malstrom_job_state" in answer.read()
    handle.stop(timeout_s=PATIENCE_S)


def test_answers_forbid_scripts_and_frames_of_others(server: Server, shown: mp.Dashboard) -> None:
    handle = mp.InProcess(dashboard=shown).start(a_job("docs-headers"))
    for path in ("/", "/jobs/docs-headers"):
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=PATIENCE_S) as answer:
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            page = answer.read().decode()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    for path in ("/static/../dashboard.py", "/static/%2e%2e/dashboard.py"):
        assert server.status(path) == 404
    handle.stop(timeout_s=PATIENCE_S)


def _messages(server: Server, path: str, encoding: str = "identity") -> list[tuple[str, Any]]:
    """Read a stream to its end."""
    found: list[tuple[str, Any]] = []
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)) as connection:
        connection.request("GET", path, headers={"X-Malstrom-Token": TOKEN, "Accept-Encoding": encoding})
        answer = connection.getresponse()
        sent = answer.read()
        assert answer.getheader("Content-Encoding", "identity") == encoding
        for message in (gzip.decompress(sent) if encoding == "gzip" else sent).decode().split("\n\n"):
            kind, _, data = message.partition("\n")
            if kind.startswith("event: "):
                found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_an_open_page_gets_the_last_figures_of_a_job_and_its_end(
    server: Server, shown: mp.Dashboard, encoding: str
) -> None:
    job, out = mp.Job("docs-last"), sinks.Memory()
    job.source("in", sources.Memory(range(200))).map("wait", _slowly).sink("out", out)
    handle = mp.InProcess(dashboard=shown).start(job)
    messages = _messages(server, "/api/jobs/docs-last/stream", encoding)
    assert len(handle.wait(timeout_s=PATIENCE_S).steps) == 3
    views = [data for kind, data in messages if kind == "view"]
    assert views[0]["state"] == "running"
    assert (views[-1]["state"], views[-1]["can_command"]) == ("finished", False)
    assert views[-1]["totals"]["written"] == len(out.items) == 200
    seen = [event for kind, data in messages if kind == "events" for event in data]
    assert [event["number"] for event in seen] == list(range(1, len(seen) + 1)), "each event once, in order"
    assert (seen[0]["kind"], seen[-1]["kind"]) == ("WorkerJoined", "Ended")
    assert messages[-1][0] == "gone"


def _slowly(number: int) -> int:
    from malstrom_py.clock import SystemClock

    SystemClock().sleep_s(0.01)
    return number


def test_a_failed_job_says_why_with_step_line_and_text(server: Server, shown: mp.Dashboard) -> None:
    job = mp.Job("docs-fails")
    job.source("in", sources.Memory(["secret"])).map("parse", int).sink("out", sinks.Memory())
    with pytest.raises(mp.OperatorError):
        mp.InProcess(dashboard=shown).run(job)
    assert shown.folder is not None
    (page,) = pages_in(shown.folder)
    assert page.view["state"] == "failed"
    assert "step 'parse'" in page.view["error"]
    assert "secret" in page.view["error"]
    assert any("secret" in json.dumps(event) for event in page.events)
    assert page.view["failure"]["step"] == "parse"
    failed = next(event for event in page.events if event["kind"] == "NodeFailed")
    assert (failed["step"], failed["brief"]) == ("parse", "worker 0 failed in step 'parse'")
    assert page.view["error"] in failed["text"]


def test_the_page_of_a_failed_job_stays_while_its_program_runs(server: Server) -> None:
    runtime = mp.InProcess(dashboard=mp.Dashboard(port=server.port, token=TOKEN))
    job = mp.Job("docs-fails")
    job.source("in", sources.Memory(["x"])).map("parse", int).sink("out", sinks.Memory())
    with pytest.raises(mp.OperatorError):
        runtime.run(job)
    assert server.view("docs-fails")["state"] == "failed"
    (line,) = server.get("/api/jobs")["jobs"]
    assert (line["state"], line["has_ended"], line["read_per_s"]) == ("failed", True, 0.0)
    runtime.run(_short_job("docs-next"))
    assert server.view("docs-fails")["failure"]["step"] == "parse"
    other = mp.InProcess(dashboard=mp.Dashboard(port=server.port, token="another"))
    other.run(_short_job("docs-other"))  # it gets the address, which shows no running job
    with pytest.raises(OSError, match="refused"):
        server.view("docs-fails")


def test_a_planned_stop_is_not_an_error(server: Server, shown: mp.Dashboard, tmp_path: Path) -> None:
    runtime = mp.InProcess(dashboard=shown, snapshots=mp.Snapshots(tmp_path / "kept", interval_s=None))
    runtime.start(a_job("docs-stopped")).stop(timeout_s=PATIENCE_S)
    assert shown.folder is not None
    (page,) = pages_in(shown.folder)
    assert (page.view["state"], page.view["error"]) == ("stopped", None)
    assert page.view["note"].startswith("It can resume from snapshot")
    assert page.view["note"][1:] in page.events[-1]["text"]


def test_a_page_that_is_opened_late_has_the_rates_of_before(server: Server, shown: mp.Dashboard) -> None:
    handle = mp.InProcess(2).start(a_job("docs-rates"))
    until(lambda: len(handle.metrics(since=0.0).rates) > 2, "it has kept some rates")
    before = handle.metrics(since=0.0).rates
    assert handle.metrics().rates == []
    late = DashboardServer(mp.Dashboard(port=server.port, token=TOKEN, history=shown.history))
    try:
        late.add(find_job("docs-rates", None))
        until(lambda: server.get("/api/jobs/docs-rates")["rates"], "the page has rates")
        rates = server.get("/api/jobs/docs-rates")["rates"]
        assert [row[0] for row in rates[: len(before)]] == pytest.approx([one.at for one in before], abs=0.001)
        assert rates[-1][1] > 0, "rows that are read"
        assert 0 <= rates[-1][3] <= 1, "a share of the time of the workers"
        assert rates[-1][5] is not None, "the distance of event time"
        until(lambda: len(server.get("/api/jobs/docs-rates")["rates"]) > len(rates), "there are more")
    finally:
        late.close()
        handle.stop(timeout_s=PATIENCE_S)
    assert shown.folder is not None
    (page,) = pages_in(shown.folder)
    assert len(page.rates) > len(before)


def test_pages_of_ended_jobs_stay_readable(server: Server, shown: mp.Dashboard, tmp_path: Path) -> None:
    for name in ("docs-first", "docs-second"):
        job = mp.Job(name)
        job.source("in", sources.Memory(range(10))).sink("out", sinks.Memory())
        mp.InProcess(dashboard=shown).run(job)
    history = DashboardServer(mp.Dashboard(port=server.port, token=TOKEN, history=shown.history))
    try:
        listed = server.get("/api/jobs")["jobs"]
        assert [line["is_history"] for line in listed] == [True, True]
        assert {line["job"].rsplit("-", 2)[0] for line in listed} == {"docs-first", "docs-second"}
        page = server.get(f"/api/jobs/{listed[0]['job']}")
        assert (page["view"]["state"], page["view"]["totals"]["written"]) == ("finished", 10)
        assert page["events"][-1]["kind"] == "Ended"
        assert server.status(f"/api/jobs/{listed[0]['job']}/stop", body={}) == 404
        assert server.status("/api/jobs/..%2F..%2Fetc%2Fpasswd") == 404
    finally:
        history.close()


def test_damaged_files_of_a_history_are_passed_over(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "docs")
    recording.events([{"number": 1}])
    recording.view({"state": "running"}, [], last=True)
    with next(tmp_path.glob("*.events.jsonl")).open("a") as file:
        file.write('"no event"\n{"kind": "Stop"}\n{"number": 2, "te')
    (tmp_path / "docs-20260101T000000-abcd.view.json").write_text("{")
    for number, text in enumerate(('{"state": {}}', '{"workers": 5}', '{"at": "now"}', "[]", "[" * 100_000)):
        (tmp_path / f"docs-20260101T000000-{number:04x}.view.json").write_text(text)
    (tmp_path / "notes.view.json").write_text("{}")
    (page,) = pages_in(tmp_path)
    assert page.view["state"] == "gone", "its process ended without a last word"
    assert page.events == [{"number": 1}]


def test_a_page_of_a_history_shows_the_last_events(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "docs")
    recording.events([{"number": number, "text": "x" * 3000} for number in range(3000)])
    recording.view({"state": "finished"}, [], last=True)
    (page,) = pages_in(tmp_path)
    assert page.events[-1]["number"] == 2999
    assert sum(len(event["text"]) for event in page.events) < 1 << 22


def test_two_jobs_of_a_program_share_a_server(server: Server, shown: mp.Dashboard) -> None:
    runtime = mp.InProcess(dashboard=shown)
    first, second = runtime.start(a_job("docs-one")), runtime.start(a_job("docs-two"))
    running = [line["job"] for line in server.get("/api/jobs")["jobs"] if not line["is_history"]]
    assert running == ["docs-one", "docs-two"]
    first.stop(timeout_s=PATIENCE_S)
    assert server.view("docs-two")["state"] == "running"
    second.stop(timeout_s=PATIENCE_S)


def test_an_address_that_is_taken_is_refused_before_the_job_begins(server: Server, shown: mp.Dashboard) -> None:
    handle = mp.InProcess(dashboard=shown).start(a_job("docs-taken"))
    with pytest.raises(mp.PlanError, match=rf"cannot listen at 127\.0\.0\.1:{server.port}"):
        mp.InProcess(dashboard=mp.Dashboard(port=server.port)).start(a_job("docs-refused"))
    with pytest.raises(mp.PlanError, match="metrics cannot be served at"):
        mp.InProcess(metrics=mp.Metrics(port=server.port)).start(a_job("docs-refused"))
    with pytest.raises(mp.PlanError, match="cannot listen at"):
        mp.InProcess(dashboard=mp.Dashboard(port=server.port)).run(a_job("docs-refused"), control=True)
    handle.stop(timeout_s=PATIENCE_S)
    free = mp.InProcess().start(a_job("docs-refused"))  # the name is free
    free.stop(timeout_s=PATIENCE_S)


@pytest.mark.parametrize(
    ("module", "options", "package"),
    [
        ("uvicorn", {"dashboard": True}, "starlette"),
        ("prometheus_client", {"metrics": mp.Metrics(port=0)}, "prometheus-client"),
    ],
)
def test_a_missing_package_is_named_before_the_job_begins(
    module: str, options: dict[str, Any], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(mp.PlanError, match=f"pip install .*{package}"):
        mp.InProcess(**options)


def test_the_token_is_in_no_text_of_the_options(shown: mp.Dashboard) -> None:
    assert TOKEN not in repr(shown)
    with pytest.raises(mp.PlanError, match="token must be a text of ASCII characters"):
        mp.Dashboard(token="tökèn")
    with pytest.raises(mp.PlanError, match="history must be a folder"):
        mp.Dashboard(history=3)  # type: ignore[arg-type]


def test_a_failed_job_is_in_the_metrics_as_long_as_another_one_is() -> None:
    port = free_port()
    runtime = mp.InProcess(metrics=mp.Metrics(port=port))
    other = runtime.start(a_job("docs-one"))
    job = mp.Job("docs-fails")
    job.source("in", sources.Memory(["x"])).map("parse", int).sink("out", sinks.Memory())
    with pytest.raises(mp.OperatorError):
        runtime.run(job)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        assert 'malstrom_job_state{malstrom_job="docs-fails",state="failed"} 1.0' in answer.read().decode()
    other.stop(timeout_s=PATIENCE_S)


def test_a_long_history_keeps_its_later_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "FILE_BYTES_MAX", 1000)
    recording = Recording(tmp_path, "docs")
    recording.view({"state": "finished"}, [], last=True)
    for number in range(1, 101):
        recording.events([{"number": number}])
        assert next(tmp_path.glob("*.events.jsonl")).stat().st_size <= 1000 + 20
    (page,) = pages_in(tmp_path)
    numbers = [event["number"] for event in page.events]
    assert numbers == list(range(numbers[0], 101))
    assert len(numbers) > 20


def test_metrics_of_two_jobs_come_from_one_address() -> None:
    port = free_port()
    runtime = mp.InProcess(metrics=mp.Metrics(port=port))
    first, second = runtime.start(a_job("docs-one")), runtime.start(a_job("docs-two"))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    for job in ("docs-one", "docs-two"):
        assert f'malstrom_job_workers{{malstrom_job="{job}"}} 1.0' in text
    first.stop(timeout_s=PATIENCE_S)
    second.stop(timeout_s=PATIENCE_S)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S)


def test_a_history_that_cannot_be_kept_leaves_no_server_behind(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "history", None):
        options = mp.Dashboard(port=server.port, history=folder)
        runtime = mp.InProcess(dashboard=options)
        with pytest.raises(mp.PlanError, match="cannot be kept") if folder else nullcontext():
            runtime.run(_short_job("docs-kept"))


@pytest.mark.parametrize("kind", ["metrics", "dashboard"])
def test_a_job_can_begin_while_the_last_one_leaves_the_address(kind: str) -> None:
    port = free_port()
    options: dict[str, Any] = (
        {"metrics": mp.Metrics(port=port, opentelemetry=False)}
        if kind == "metrics"
        else {"dashboard": mp.Dashboard(port=port)}
    )
    handles = []
    for number in range(4):
        handles.append(mp.InProcess(**options).start(_short_job(f"docs-leaves-{number}"), control=False))
        until(lambda: handles[-1].metrics().written, "it has written")
    for handle in handles:
        assert handle.wait(timeout_s=PATIENCE_S).written == 1


def test_what_fails_at_the_end_of_watching_fails_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(server: DashboardServer, job: object) -> None:
        server.close()
        raise RuntimeError("no end")

    monkeypatch.setattr(DashboardServer, "leave", fail)
    for _ in range(2):
        runtime = mp.InProcess(dashboard=mp.Dashboard(port=free_port()))
        assert runtime.run(_short_job("docs-end")).written == 1


def _short_job(name: str) -> mp.Job:
    job = mp.Job(name)
    job.source("in", sources.Memory([1])).sink("out", sinks.Memory())
    return job


def test_the_address_of_a_page_has_any_token() -> None:
    server = DashboardServer(mp.Dashboard(port=0, token="a&b#c+d%20?"))
    try:
        with urllib.request.urlopen(server.address().replace("/?", "/api/jobs?"), timeout=PATIENCE_S) as answer:
            assert answer.status == 200
    finally:
        server.close()
    with pytest.raises(mp.PlanError, match="without spaces"):
        mp.Dashboard(token="a\nb")


def test_a_host_that_is_no_name_is_refused() -> None:
    with pytest.raises(mp.PlanError, match="host must be a name"):
        mp.Metrics(host="a..b")
