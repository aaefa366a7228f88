"""The dashboard in a real browser: what it shows is what the job does, and what is clicked is done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import malstrom_py as mp
from examples import dashboard_pictures
from malstrom_py import sinks, sources
from tests.integration.monitoring.conftest import PATIENCE_S, TOKEN, a_job, free_port, until
from tests.left_out import chromium
from tests.tree import ROOT

pytestmark = pytest.mark.needs_chromium

PICTURES = ROOT / "bench-out"
SWITCHES = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 800}
WIDER = "() => document.documentElement.scrollWidth > window.innerWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=list(SWITCHES))
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that logs nothing wrong, and asks nothing of other machines."""
    context = browser.new_context(viewport=DESK)  # type: ignore[arg-type]  # a mapping of these two
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_S * 1000)
    expect.set_options(timeout=PATIENCE_S * 1000)
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    opened.on("request", lambda request: wrong.append(request.url) if _is_elsewhere(request.url) else None)
    yield opened
    context.close()
    assert [text for text in wrong if "401" not in text and "409" not in text] == []


def _is_elsewhere(address: str) -> bool:
    return not address.startswith(("http://127.0.0.1:", "data:", "about:"))


def picture(page: Page, name: str) -> None:
    """Write what the page shows, for people to look at."""
    PICTURES.mkdir(exist_ok=True)
    page.screenshot(path=PICTURES / f"dashboard-{name}.png", full_page=True)


def rescale(page: Page, workers: int) -> None:
    page.get_by_test_id("rescale").click()
    page.get_by_test_id("rescale-input").fill(str(workers))
    page.get_by_test_id("rescale-confirm").click()


def test_a_job_is_rescaled_by_clicks_while_it_runs_and_the_counts_are_its_own(page: Page, tmp_path: Path) -> None:
    shown = mp.Dashboard(port=free_port(), token=TOKEN)
    runtime = mp.InProcess(2, dashboard=shown, snapshots=mp.Snapshots(tmp_path, interval_s=1.0))
    handle = runtime.start(a_job("docs-browser"))
    page.goto(f"http://127.0.0.1:{shown.port}/?token={TOKEN}")
    expect(page.get_by_test_id("job-name")).to_have_text("docs-browser")
    expect(page.get_by_test_id("state")).to_have_text("running")
    for workers in (4, 3):
        rescale(page, workers)
        expect(page.get_by_test_id(f"worker-{workers - 1}")).to_be_visible()
        expect(page.get_by_test_id(f"worker-{workers}")).to_have_count(0)
        until(lambda workers=workers: handle.status().workers == workers, "the job has as many workers")  # type: ignore[misc]
    expect(page.get_by_test_id("timeline")).to_contain_text("The job has 3 workers", ignore_case=True)
    page.get_by_test_id("snapshot").click()
    page.get_by_test_id("snapshot-confirm").click()
    expect(page.get_by_test_id("timeline")).to_contain_text("is complete")
    status = handle.status().snapshots
    assert status is not None
    expect(page.get_by_role("region", name="Snapshots, newest first")).to_contain_text(str(status.last)[:8])
    picture(page, "running")
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    assert not page.evaluate(WIDER), "a phone shows the page without a second bar"
    stop, *others = (page.get_by_test_id(name).bounding_box() for name in ("stop", "rescale", "rebalance", "snapshot"))
    assert stop is not None
    assert all(other is not None and stop["width"] < other["width"] for other in others), "it is not the easiest to hit"
    assert all(other is not None and stop["y"] == other["y"] for other in others)
    page.set_viewport_size({"width": 320, "height": 640})
    assert not page.evaluate(WIDER), "nor does a small one"
    smallest = page.get_by_test_id("stop").bounding_box()
    assert smallest is not None
    assert smallest["x"] + smallest["width"] <= 320
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    picture(page, "phone")
    page.set_viewport_size(DESK)  # type: ignore[arg-type]
    page.emulate_media(color_scheme="dark")
    picture(page, "dark")
    page.get_by_test_id("stop").click()
    page.get_by_test_id("stop-confirm").click()
    with suppress(mp.JobEnded):  # stopped with a last snapshot
        handle.wait(timeout_s=PATIENCE_S)
    expect(page.get_by_test_id("state")).to_have_text("stopped")
    expect(page.get_by_test_id("error")).to_be_hidden()
    expect(page.locator("body")).to_contain_text("It can resume from snapshot")
    expect(page.locator(".tone-bad")).to_have_count(0)
    final = handle.metrics()
    expect(page.get_by_test_id("total-read")).to_have_attribute("data-value", str(final.read))
    expect(page.get_by_test_id("total-written")).to_have_attribute("data-value", str(final.written))
    for name, step in final.steps.items():
        node = page.get_by_test_id(f"step-{name}")
        expect(node).to_have_attribute("data-rows-in", str(step.rows_in))
        expect(node).to_have_attribute("data-rows-out", str(step.rows_out))
    picture(page, "stopped")


def test_a_job_that_fails_says_why(page: Page) -> None:
    shown = mp.Dashboard(port=free_port(), token=TOKEN)
    released = sources.Generator(lambda part, start: iter(_until_opened(page)))
    job = mp.Job("docs-browser-fails")
    job.source("in", released).map("parse", _parse).sink("out", sinks.Memory())
    page.goto("about:blank")
    handle = mp.InProcess(dashboard=shown).start(job)
    page.goto(f"http://127.0.0.1:{shown.port}/jobs/docs-browser-fails?token={TOKEN}")
    expect(page.get_by_test_id("state")).to_have_text("running")
    OPENED.append(True)
    with pytest.raises(mp.OperatorError):
        handle.wait(timeout_s=PATIENCE_S)
    expect(page.get_by_test_id("state")).to_have_text("failed")
    expect(page.get_by_test_id("error")).to_contain_text("step 'parse'", ignore_case=True)
    expect(page.get_by_test_id("error")).to_contain_text("secret")
    expect(page.get_by_test_id("step-parse")).to_have_class(re.compile("failed"))
    expect(page.get_by_test_id("step-in")).not_to_have_class(re.compile("failed"))
    picture(page, "failed")
    page.reload()  # the server stays as long as this program
    expect(page.get_by_test_id("state")).to_have_text("failed")
    text = handle.status().error
    assert text is not None
    assert page.locator("body").inner_text().lower().count(text.lower()) == 1, "it is read once"
    assert page.locator("body").inner_text().count("return int(text)") == 1, "and so is its trace"


def test_a_page_that_is_opened_late_shows_what_was_before(page: Page) -> None:
    shown = mp.Dashboard(port=free_port(), token=TOKEN)
    handle = mp.InProcess(dashboard=shown).start(a_job("docs-browser-late"))
    until(lambda: len(handle.metrics(since=0.0).rates) > 2, "the job has kept some rates")
    page.goto(f"http://127.0.0.1:{shown.port}/jobs/docs-browser-late?token={TOKEN}")
    for curve in ("read", "busy", "lag"):
        expect(page.locator(f'[data-field="chart-{curve}"]')).to_contain_text(re.compile(r"\d"))
    expect(page.locator(".curve canvas")).to_have_count(3)
    picture(page, "late")
    handle.stop(timeout_s=PATIENCE_S)


def _parse(text: str) -> int:
    return int(text)


OPENED: list[bool] = []


def _until_opened(page: Page) -> Iterator[str]:
    until(lambda: OPENED, "the page shows the job")
    yield "secret"


def test_records_the_state_and_a_shadow_are_shown_where_values_are_allowed(page: Page, tmp_path: Path) -> None:
    shown = mp.Dashboard(port=free_port(), token=TOKEN, values=True)
    with dashboard_pictures.compared(tmp_path, shown) as handle:
        page.goto(f"http://127.0.0.1:{shown.port}/jobs/rewards?token={TOKEN}")
        expect(page.get_by_test_id("step-reward")).to_contain_text("differ")
        page.locator(".edge-rate").last.click()  # on the way to the sink
        records, shadow = page.locator('[data-field="records-list"]'), page.get_by_test_id("shadow")
        expect(records).to_contain_text(re.compile(r"worker [01]  key '\w+'  {'id': \d+, 'reward': (True|False)}"))
        assert len(records.inner_text().splitlines()) <= 20
        expect(page.locator('[data-field="records-title"]')).to_contain_text("have passed")
        expect(shadow).to_contain_text(re.compile(r"\d of [\d,]+ outputs of the new code differ"))
        pair = r"'\w+': {'id': (\d+), 'reward': False}, new: {'id': \1, 'reward': True}"
        expect(shadow).to_contain_text(re.compile(pair))
        picture(page, "inside")
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        assert not page.evaluate(WIDER)
        page.set_viewport_size(DESK)  # type: ignore[arg-type]
        page.keyboard.press("Escape")
        expect(records).to_be_hidden()
        sql, error = page.get_by_label("A query in SQL"), page.locator('[data-field="query-error"]')
        sql.fill("select shop, orders > 0, 1152921504606846976, null, [1], range from reward, range(300) order by 1, 6")
        sql.press("Enter")
        rows = page.locator('[data-field="query-rows"] td')
        expect(rows).to_have_count(200 * 6)
        expect(page.locator('[data-field="query-note"]')).to_contain_text("the first 200 of 2,400 rows as of snapshot")
        assert rows.all_inner_texts()[:7] == ["Cork", "true", "1152921504606846976", "", "[1]", "0", "Cork"]
        picture(page, "query")
        sql.fill("select nothing")
        sql.press("Enter")
        expect(error).to_contain_text("nothing")
        expect(rows).to_have_count(0)
        page.get_by_test_id("step-reward").click()
        page.get_by_test_id("promote").click()
        page.get_by_test_id("promote-confirm").click()
        expect(page.locator(".toast")).to_contain_text("has the new code of rewards since snapshot")
        expect(shadow).to_be_hidden()
        assert handle.metrics().shadows == {}
        (tmp_path / "rewards.py").write_text(dashboard_pictures.REWARDS.replace("% 100", "% 0"))
        handle.reload("reward", shadow=True)
        expect(shadow).to_contain_text(re.compile("The new code has stopped: .*ZeroDivisionError"))
        expect(page.get_by_test_id("promote")).to_be_hidden()
        page.goto("about:blank")  # it asks for records until then


def test_a_wrong_token_shows_what_to_do_and_no_job(page: Page) -> None:
    shown = mp.Dashboard(port=free_port(), token=TOKEN)
    handle = mp.InProcess(dashboard=shown).start(a_job("docs-browser-token"))
    page.goto(f"http://127.0.0.1:{shown.port}/jobs/docs-browser-token?token=wrong")
    expect(page.get_by_test_id("unauthorized")).to_be_visible()
    expect(page.get_by_test_id("unauthorized")).to_contain_text("address", ignore_case=True)
    expect(page.locator("body")).not_to_contain_text("numbers")
    handle.stop(timeout_s=PATIENCE_S)


def test_the_page_is_used_with_the_keyboard_alone(page: Page) -> None:
    shown = mp.Dashboard(port=free_port(), token=TOKEN)
    handle = mp.InProcess(dashboard=shown).start(a_job("docs-browser-keys"))
    page.goto(f"http://127.0.0.1:{shown.port}/jobs/docs-browser-keys?token={TOKEN}")
    expect(page.get_by_test_id("state")).to_have_text("running")
    page.get_by_test_id("rescale").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("rescale-input")).to_be_focused()
    page.get_by_test_id("rescale-input").fill("2")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("worker-1")).to_be_visible()
    page.get_by_test_id("step-odd").focus()
    page.keyboard.press("Enter")
    expect(page.locator("body")).to_contain_text("conftest.py")
    page.keyboard.press("Escape")
    handle.stop(timeout_s=PATIENCE_S)
