"""Sessions of users: the clicks of a user between two silences of at least a minute.

python -m examples.sessions          or          malstrom run examples.sessions
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources

CLICKS = Path(__file__).parent / "input" / "clicks.jsonl"
GAP_S = 60
Clicks = list[tuple[int, str]]  # (second, page), in the order of time


class Sessions(mp.KeyedLogic[str, dict[str, Any], dict[str, Any], Clicks]):
    """Holds the clicks of a user until event time has passed the silence after them."""

    def on_data(
        self, message: mp.DataMessage[str, dict[str, Any]], key_state: Clicks | None, output: mp.Output[str, Any]
    ) -> Clicks:
        return sorted([*(key_state or []), (message.value["second"], message.value["page"])])

    def on_epoch(self, epoch: mp.Epoch, state: MutableMapping[str, Clicks], output: mp.Output[str, Any]) -> None:
        for user, clicks in sorted(state.items()):
            start = 0
            for end in range(1, len(clicks) + 1):
                last = clicks[end - 1][0] + GAP_S - 1  # a click at this second would still belong to the session
                if end < len(clicks) and clicks[end][0] <= last:
                    continue
                if last > epoch.time:
                    break
                pages = " ".join(page for _, page in clicks[start:end])
                output.emit(user, {"start": clicks[start][0], "pages": pages}, last)
                start = end
            if start == len(clicks):
                del state[user]
            elif start:
                state[user] = clicks[start:]


def job(clicks: str = str(CLICKS), out: str = "demo-out/sessions") -> mp.Job:
    """Clicks -> CSV files ``key,start,pages`` in ``out``."""
    job = mp.Job("sessions")
    rows = job.source("clicks", sources.Files(clicks))
    on_time, _ = rows.assign_timestamps("second", lambda click: click["second"], unit="s").generate_epochs(
        "epochs", mp.limit_out_of_orderness(15)
    )
    on_time.key_by("user", "user").stateful_op("sessions", Sessions()).sink("out", sinks.Files(out, format="csv"))
    return job


if __name__ == "__main__":
    print(mp.run(job()))
