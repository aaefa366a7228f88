"""Jobs and streams in a notebook: a picture of their steps, whose texts are a user's."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources

SVG = "{http://www.w3.org/2000/svg}"


def shown(thing: Any) -> ET.Element:
    """Return what a notebook shows, which is well-formed and loads nothing."""
    html = thing._repr_html_()
    assert not re.search(r"(src|href)=|url\(|<script|<style", html)
    return ET.fromstring(html)


def texts(thing: Any) -> list[str]:
    return [text.text or "" for text in shown(thing).iter(f"{SVG}text")]


def branched() -> tuple[mp.Job, Any]:
    job = mp.Job("orders")
    yes, no = job.source("in", sources.Memory([1, 2])).branch("sides", lambda n: n > 1)
    counts = yes.key_by("by", lambda n: n).count("n")
    counts.sink("out", sinks.Memory())
    no.sink("rest", sinks.Memory())
    return job, counts


def test_a_job_shows_each_step_and_the_streams_that_have_names() -> None:
    job, _ = branched()
    assert shown(job).findtext("div") == "job orders: 6 steps, 1,024 slots"
    assert {"in", "source", "sides", "branch", "by", "key_by", "out", "rest", "yes", "no"} <= set(texts(job))
    paths = list(shown(job).iter(f"{SVG}path"))
    assert len(paths) == 5
    assert sum("stroke-dasharray" in path.attrib for path in paths) == 1  # the exchange


def test_a_stream_shows_what_leads_to_it_and_is_marked() -> None:
    _, counts = branched()
    assert shown(counts).findtext("div") == "stream n of job orders"
    assert {"in", "sides", "by", "n"} <= set(texts(counts))
    assert not {"out", "rest"} & set(texts(counts))
    widths = [box.attrib["stroke-width"] for box in shown(counts).iter(f"{SVG}rect")]
    assert widths == ["1", "1", "1", "3"]


def test_no_two_boxes_are_in_the_same_place() -> None:
    job = mp.Job("wide")
    streams = job.source("in", sources.Memory([1])).cloned("copies", 5)
    for number, stream in enumerate(streams):
        stream.map(f"map-{number}", lambda n: n).sink(f"out-{number}", sinks.Memory())
    streams[0].union("all", *streams[1:]).sink("out", sinks.Memory())
    boxes = [(box.attrib["x"], box.attrib["y"]) for box in shown(job).iter(f"{SVG}rect")]
    assert len(set(boxes)) == len(boxes) == 14


def test_texts_of_a_user_are_escaped_and_long_ones_are_cut() -> None:
    class Loud(sources.Memory[int]):
        def __repr__(self) -> str:
            return "Loud(<script>&\"')"

    job = mp.Job("loud")
    job.source("a-name-that-is-longer-than-a-box-is-wide", Loud([1])).sink("out", sinks.Memory())
    titles = [title.text or "" for title in shown(job).iter(f"{SVG}title")]
    assert titles[0] == "a-name-that-is-longer-than-a-box-is-wide: source, Loud(<script>&\"')"
    assert "a-name-that-is-long…" in texts(job)


def test_a_job_without_steps_and_one_that_no_sink_ends_are_shown_too() -> None:
    job = mp.Job("new")
    assert shown(job).text == "job new: 0 steps, 1,024 slots"
    job.source("in", sources.Memory([1]))
    assert "in" in texts(job)
    assert repr(job) == "Job('new', 1 steps)"
