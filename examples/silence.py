"""Reports sensors without a reading for twelve minutes, by timers in event time, on two workers.

python -m examples.silence          or          malstrom run examples.silence
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources

READINGS = Path(__file__).parent / "input" / "readings-*.csv"
SILENCE_S = 12 * 60
Reading = dict[str, Any]


class Silence(mp.KeyedLogic[str, Reading, str, list[int]]):
    """Each reading sets a timer; when it is due, either another reading has come since, or the sensor was silent."""

    def on_data(
        self, message: mp.DataMessage[str, Reading], key_state: list[int] | None, output: mp.Output[str, str]
    ) -> list[int]:
        second = message.timestamp or 0
        output.set_timer(message.key, second + SILENCE_S)
        return [*(key_state or []), second]

    def on_timer(
        self, key: str, time: int, key_state: list[int] | None, output: mp.Output[str, str]
    ) -> list[int] | None:
        since = time - SILENCE_S
        later = [
            second for second in key_state or [] if second > since
        ]  # read before this timer, maybe with a later timestamp
        if not any(second <= time for second in later):
            output.emit(
                key,
                f"{key}: silent for {SILENCE_S // 60} minutes since {since // 3600 % 24:02}:{since // 60 % 60:02}",
                time,
            )
        return later or None


def job(readings: str = str(READINGS)) -> mp.Job:
    """Readings -> one line on standard output per silence."""
    job = mp.Job("silence")
    rows = job.source("readings", sources.Files(readings, null_values=["NA"]))
    timed = rows.assign_timestamps("time", lambda reading: reading["time"], unit="s")
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(15 * 60))
    on_time.key_by("sensor", "sensor").stateful_op("silence", Silence()).sink("out", sinks.Stdout())
    return job


if __name__ == "__main__":
    print(mp.run(job(), workers=2))
