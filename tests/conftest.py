"""Rules of every suite: nothing is skipped. A test that cannot run here is a failure, not a footnote."""

from __future__ import annotations

import pytest


def _skipped(config: pytest.Config) -> int:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return len(reporter.stats.get("skipped", [])) if reporter is not None else 0


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when a test was skipped: what is skipped is not checked, and nobody reads about it."""
    if _skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say why such a run failed."""
    if _skipped(config):
        terminalreporter.write_line("A skipped test fails the run: make it runnable here, or take it out.", red=True)
