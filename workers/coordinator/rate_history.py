"""The rates of a job in the last ten minutes, which outlast a restart: for who begins to watch it later."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future

from msgspec.structs import replace

from malstrom_py.metrics import RATES_S, JobMetrics, RateMetrics


class RateHistory:
    """The rates of a job. Any thread may call the methods.

    >>> history = RateHistory()
    >>> for at in (0.0, 1.0, 601.0):
    ...     history.add(RateMetrics(at, read_per_s=5.0, written_per_s=5.0, busy=0.5, waiting=0.0))
    >>> [rates.at for rates in history.put_into(JobMetrics("docs", "running", "steady"), since=0.0).rates]
    [1.0, 601.0]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rates: deque[RateMetrics] = deque()

    def add(self, rates: RateMetrics) -> None:
        """Keep ``rates``, and drop those of more than ten minutes before."""
        with self._lock:
            self._rates.append(rates)
            while self._rates[0].at < rates.at - RATES_S:
                self._rates.popleft()

    def put_into(self, metrics: JobMetrics, since: float | None) -> JobMetrics:
        """Return ``metrics`` with the rates after ``since``; None: without any."""
        if since is None:
            return metrics
        with self._lock:
            return replace(metrics, rates=[rates for rates in self._rates if rates.at > since])

    def put_into_answer(self, asked: Future[JobMetrics], since: float | None) -> Future[JobMetrics]:
        """Do the same with metrics that come later."""
        if since is None:
            return asked
        answer: Future[JobMetrics] = Future()
        answer.set_running_or_notify_cancel()  # threads that wait for it cannot cancel it
        asked.add_done_callback(lambda done: answer.set_result(self.put_into(done.result(), since)))
        return answer
