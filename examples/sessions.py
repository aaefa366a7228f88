"""Sessions of users: one row per visit, that is the clicks of a user with less than a minute between them.

python -m examples.sessions          or          malstrom run examples.sessions
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows

CLICKS = Path(__file__).parent / "input" / "clicks.csv"


def job(clicks: str = str(CLICKS), out: str = "demo-out/sessions") -> mp.Job:
    """Clicks -> Parquet files ``user, window_start, window_end, clicks, landed, left`` in ``out``."""
    job = mp.Job("sessions")
    timed = job.source("clicks", sources.Files(clicks)).assign_timestamps("time", "at")
    on_time, _ = timed.generate_epochs("watermark", mp.limit_out_of_orderness(timedelta(seconds=15)))
    visits = on_time.key_by("by-user", "user").window("visits", windows.session(timedelta(minutes=1)))
    sessions = visits.aggregate(clicks=agg.count(), landed=agg.earliest("page"), left=agg.latest("page"))
    sessions.sink("out", sinks.Files(out))
    return job


if __name__ == "__main__":
    print(mp.run(job()))
