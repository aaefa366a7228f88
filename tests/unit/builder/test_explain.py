"""Plans for people: every step, edge, policy and unread stream can be seen."""

from __future__ import annotations

import re

import malstrom_py as mp
from malstrom_py import sinks, sources


def flights() -> mp.Job:
    job = mp.Job("flights", slots=8)
    stream = job.source("flights", sources.Memory([(1, "UA")]), on_error="skip")
    timed = stream.assign_timestamps("departure", lambda flight: flight[0])
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(10))
    keyed = on_time.key_by("carrier", lambda flight: flight[1])
    keyed.map("end", lambda flight: flight[0], on_error="dead-letter").sum("sum").sink("out", sinks.Memory())
    job.dead_letters("end").sink("letters", sinks.Memory())
    return job


def test_the_text_has_a_line_per_step_with_inputs_details_and_policies() -> None:
    here = re.escape(__file__)
    lines = flights().explain().splitlines()
    expected = [
        r"job flights \(8 steps, 8 slots\)",
        r"   0  flights    source  \[Memory\(1 items in 1 parts\); on_error=skip\]",
        rf"   1  departure  assign_timestamps <- flights  \[flights\.<locals>\.<lambda> at {here}:\d+\]",
        r"   2  epochs     generate_epochs <- departure  \[limit_out_of_orderness\(10\)\]",
        rf"   3  carrier    key_by <- epochs\.on_time  \[.*{here}:\d+; exchange: a keyed region begins\]",
        rf"   4  end        map <- carrier  \[.*{here}:\d+; on_error=dead-letter\]",
        r"   5  sum        sum <- end",
        r"   6  out        sink <- sum  \[Memory\]",
        r"   7  letters    sink <- end\.dead_letters  \[Memory\]",
        r"  read by no step, counted only: epochs\.late",
    ]
    assert len(lines) == len(expected)
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern.replace("   ", " {3}", 1) if pattern.startswith("   ") else pattern, line), line


def test_a_column_name_is_shown_as_one() -> None:
    job = mp.Job("columns")
    job.source("rows", sources.Memory([{"shop": "a"}])).key_by("by-shop", "shop").sink("out", sinks.Memory())
    assert "key_by <- rows  [column 'shop'; exchange" in job.explain()


def test_the_chart_draws_every_step_and_edge_and_boxes_keyed_regions() -> None:
    assert flights().to_mermaid().splitlines() == [
        "flowchart LR",
        '  s0[("flights<br/><i>source</i>")]',
        '  s1["departure<br/><i>assign_timestamps</i>"]',
        '  s2["epochs<br/><i>generate_epochs</i>"]',
        '  s3{{"carrier<br/><i>key_by</i>"}}',
        '  subgraph region_s3["keyed by carrier"]',
        '    s4["end<br/><i>map</i>"]',
        '    s5["sum<br/><i>sum</i>"]',
        '    s6[("out<br/><i>sink</i>")]',
        '    s7[("letters<br/><i>sink</i>")]',
        "  end",
        "  s0 --> s1",
        "  s1 --> s2",
        "  s2 -->|on_time| s3",
        "  s3 --> s4",
        "  s4 --> s5",
        "  s5 --> s6",
        "  s4 -->|dead_letters| s7",
    ]


def test_no_value_of_a_source_is_shown() -> None:
    job = mp.Job("secrets")
    job.source("in", sources.Memory(["secret"])).sink("out", sinks.Memory())
    assert "secret'" not in job.explain() + job.to_mermaid()


def doubled(key: object, state: int) -> int:
    return state * 2


def test_what_a_step_was_is_told() -> None:
    job = mp.Job("a")
    numbers = job.source("in", sources.Memory([1]), renamed_from="numbers").key_by("key", lambda n: n)
    numbers.count("seen", renamed_from="count", migrate=doubled).sink("out", sinks.Memory())
    lines = job.explain().splitlines()
    assert lines[1].endswith("source  [Memory(1 items in 1 parts); renamed from numbers]")
    assert lines[3].endswith("count <- key  [renamed from count; migrate=test_explain:doubled]")
