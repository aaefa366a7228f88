"""The pictures of the dashboard: ``make pictures``, or ``python -m examples.dashboard_pictures``.

The job really runs: orders of a few shops arrive at a rate that rises and falls, revenue is summed per shop in windows
of five seconds, and orders are counted per customer, with snapshots, while the job goes from two workers to four and
then to three. Chromium opens its page in three windows, by playwright, before the first rescale, and draws what they
show after the second.

The last pictures look into another job: the records of a step, its output beside that of new code, and its state.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import cos, pi
from pathlib import Path
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any, Final, Literal

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

SHOPS: Final = ("Lisbon", "Oslo", "Prague", "Turin", "Ghent", "Riga", "Cork", "Graz")
CUSTOMERS: Final = 5_000
PARTS: Final = 6
ROWS_PER_S: Final = 9_000
WAVE_S: Final = 9.0
"""The period in which the rate rises and falls."""
BAD_EVERY: Final = 19_997
LATE_EVERY: Final = 6_007
RESCALES: Final = ((20.0, 4), (43.0, 3))
"""The second at which a rescale starts, and the new number of workers."""
END_S: Final = 62.0

ARGUMENTS: Final = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
"""Chromium draws a page of this machine, and asks nothing of others."""


@dataclass(frozen=True)
class Picture:
    """One picture: the name of its file, the size of the window, and its colours."""

    file: str
    width: int
    height: int
    colours: Literal["light", "dark"]


PICTURES: Final = (
    Picture("dashboard.png", 1280, 800, "light"),
    Picture("dashboard-dark.png", 1280, 800, "dark"),
    Picture("dashboard-phone.png", 390, 844, "light"),
)

INSIDE: Final = Picture("dashboard-inside.png", 1280, 1000, "light")

QUERY: Final = "dashboard-query.png"

REWARDS: Final = """
from time import monotonic

import malstrom_py as mp
from examples.dashboard_pictures import Orders
from malstrom_py import sinks


def rewarded(shop, order, state):
    state = {"orders": state["orders"] + 1}
    return {"id": order["customer"], "reward": state["orders"] % 100 == 0}, state


job = mp.Job("rewards")
by_shop = job.source("orders", Orders(monotonic())).key_by("shop", "shop")
rewards = by_shop.stateful_map("reward", rewarded, default=lambda: {"orders": 0})
rewards.sink("out", sinks.Callable(lambda rows: None, batch=True))
"""
NEW_CODE: Final = ("% 100", "% 90")

TOKEN: Final = "pictures"

Order = dict[str, Any]


@dataclass(frozen=True)
class Orders:
    """A source of orders that arrive since ``start_s`` of the monotonic clock."""

    start_s: float

    def list_parts(self) -> Sequence[sources.Part]:
        return [sources.Part(f"orders-{number}") for number in range(PARTS)]

    def build_part(self, part: sources.Part, state: Any) -> OrdersPart:
        return OrdersPart(self.start_s, int(part.removeprefix("orders-")), state or 0)


class OrdersPart:
    """One part: it knows how many orders it has not read yet (`lag_rows`), which the page shows."""

    def __init__(self, start_s: float, number: int, given: int) -> None:
        self._start_s = start_s
        self._number = number
        self._given = given

    def poll(self, rows_max: int) -> list[Order]:
        numbers = range(self._given, self._given + min(rows_max, self.lag_rows()))
        self._given += len(numbers)
        return [self._order(number * PARTS + self._number) for number in numbers]

    def lag_rows(self) -> int:
        passed_s = monotonic() - self._start_s
        wave = 0.35 * WAVE_S / (2 * pi) * (1 - cos(2 * pi * passed_s / WAVE_S))
        return max(0, int(ROWS_PER_S / PARTS * (passed_s + wave)) - self._given)

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> int:
        return self._given

    def close(self) -> None:
        """Nothing is open."""

    def _order(self, number: int) -> Order:
        at = time() - (600 if number % LATE_EVERY == 0 else 0.2 * (number % 7))
        shop = SHOPS[0] if number % 3 == 0 else SHOPS[number * 7 % len(SHOPS)]
        amount = "?" if number % BAD_EVERY == 0 else f"{number % 90 + 10}.50"
        return {"shop": shop, "customer": number * 31 % CUSTOMERS, "amount": amount, "at": int(at * 1_000)}


def shop_job(start_s: float) -> mp.Job:
    """Return the job of the pictures."""
    job = mp.Job("shop")
    read = job.source("orders", Orders(start_s))
    parsed = read.map("parse", lambda order: {**order, "amount": float(order["amount"])}, on_error="dead-letter")
    job.dead_letters("parse").sink("bad", sinks.Callable(lambda letters: None, batch=True))
    timed = parsed.assign_timestamps("ordered", lambda order: order["at"], unit="ms")
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(timedelta(seconds=2)))
    revenue = on_time.key_by("shop", lambda order: order["shop"]).window(
        "every-5-s", windows.tumbling(timedelta(seconds=5))
    )
    revenue.aggregate(orders=agg.count(), revenue=agg.sum("amount")).sink(
        "revenue", sinks.Callable(lambda rows: None, batch=True)
    )
    loyal = on_time.key_by("customer", lambda order: order["customer"]).count("visits")
    loyal.sink("loyalty", sinks.Callable(lambda rows: None, batch=True))
    return job


def find_chromium() -> str:
    """Return the path of Chromium, "" without one."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), "")


@contextmanager
def a_browser(chromium: str) -> Iterator[Browser]:
    """Start Chromium, and end it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def draw(out: Path, chromium: str, *, rescales: Sequence[tuple[float, int]] = RESCALES, end_s: float = END_S) -> None:
    """Run the job, and write `PICTURES` into folder ``out`` after ``end_s`` seconds."""
    port = free_port()
    shown = mp.Dashboard(port=port, token=TOKEN)
    with tempfile.TemporaryDirectory() as kept, a_browser(chromium) as browser:
        runtime = mp.InProcess(2, progress=False, dashboard=shown, snapshots=mp.Snapshots(Path(kept), interval_s=10))
        start_s = monotonic()
        handle = runtime.start(shop_job(start_s), control=False)
        try:
            pages = [opened(browser, f"http://127.0.0.1:{port}/jobs/shop?token={TOKEN}", each) for each in PICTURES]
            for at_s, workers in rescales:
                sleep(max(0.0, start_s + at_s - monotonic()))
                handle.rescale(workers)
            sleep(max(0.0, start_s + end_s - monotonic()))
            for page, picture in zip(pages, PICTURES, strict=True):
                page.screenshot(path=out / picture.file)
        finally:
            handle.stop(drain=True)


@contextmanager
def compared(folder: Path, shown: mp.Dashboard) -> Iterator[mp.JobHandle]:
    """Run the job `REWARDS`, whose module is written into ``folder``, with `NEW_CODE` beside a step of it."""
    module = folder / "rewards.py"
    module.write_text(REWARDS)
    sys.path.insert(0, str(folder))
    try:
        kept = mp.Snapshots(folder / "snapshots", interval_s=1)
        runtime = mp.InProcess(2, progress=False, dashboard=shown, snapshots=kept)
        handle = runtime.start(importlib.import_module("rewards").job, control=False)
        try:
            while handle.status().counts.written < 100:
                sleep(0.05)
            module.write_text(REWARDS.replace(*NEW_CODE))
            handle.reload("reward", shadow=True)
            yield handle
        finally:
            handle.stop(drain=True)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("rewards", None)


def draw_inside(out: Path, chromium: str) -> None:
    """Write the pictures `INSIDE` and `QUERY` into folder ``out``."""
    shown = mp.Dashboard(port=free_port(), token=TOKEN, values=True)
    with tempfile.TemporaryDirectory() as kept, a_browser(chromium) as browser, compared(Path(kept), shown):
        page = opened(browser, f"http://127.0.0.1:{shown.port}/jobs/rewards?token={TOKEN}", INSIDE)
        page.get_by_test_id("step-reward").click()
        page.get_by_test_id("shadow").get_by_text("new: ").wait_for()
        page.locator('[data-field="records-list"]:not(:empty)').wait_for()
        page.mouse.wheel(0, 120)  # past the figures
        sleep(1.5)
        page.screenshot(path=out / INSIDE.file)
        page.get_by_label("A query in SQL").fill("select shop, orders from reward order by orders desc")
        page.keyboard.press("Enter")
        state = page.locator('[data-field="query"]')
        state.locator("td").first.wait_for()
        state.screenshot(path=out / QUERY)


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def opened(browser: Browser, address: str, picture: Picture) -> Page:
    """Return the page of the job in a window as ``picture`` wants it."""
    size: ViewportSize = {"width": picture.width, "height": picture.height}
    page = browser.new_page(viewport=size, color_scheme=picture.colours, reduced_motion="reduce", timezone_id="UTC")
    page.goto(address)
    page.get_by_test_id("state").get_by_text("running").wait_for()
    return page


def main() -> None:
    """Read the arguments, run the job and draw."""
    parser = argparse.ArgumentParser(prog="python -m examples.dashboard_pictures", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="the folder to write to")
    out: Path = parser.parse_args().out
    chromium = find_chromium()
    if not chromium:
        sys.exit("Chromium is not found: install it (on Debian: apt install chromium), or set CHROMIUM to it")
    out.mkdir(parents=True, exist_ok=True)
    draw(out, chromium)
    draw_inside(out, chromium)
    for file in (*(picture.file for picture in (*PICTURES, INSIDE)), QUERY):
        print(f"{out / file}: {(out / file).stat().st_size / 1_000:,.0f} kB")


if __name__ == "__main__":
    main()
