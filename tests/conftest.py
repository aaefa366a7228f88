"""Rules of every suite: nothing is skipped or expected to fail, for a test that cannot run is a failure, not a
footnote; and no generated case fails for having taken long."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import settings

from tests.tree import ROOT

# CI draws the same cases each time: a failure there is one of the change that is tested.
settings.register_profile(
    "unhurried", deadline=None, print_blob=True, max_examples=25, derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("unhurried")


# Who starts the tests in the background of a shell without job control has them ignore Ctrl-C, which is tested here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The names of running jobs, the sessions of Ray and Spark, and temporary files are this run's own, also in the
# processes it starts: two runs of the tests at the same time, or a job or a Ray that a developer runs, do not disturb
# each other. Only what pytest keeps of failed tests stays where it is. The name is short, for sockets are below it.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
_RUNTIME = tempfile.mkdtemp(prefix="mt-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"])
os.environ |= dict.fromkeys(("XDG_RUNTIME_DIR", "TMPDIR", "RAY_TMPDIR"), _RUNTIME)
os.environ.pop("RAY_ADDRESS", None)
tempfile.tempdir = None

# Ray gives its workers a low priority: beside another test that computes, they would hardly run.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - as Ray reads it

# The tests end before what Java compiles best of Spark has paid for itself: half of a Spark's work was that.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make long`."""
    parser.addoption("--long", action="store_true", help="run the tests of `make long`, and no others")


def is_whole(config: pytest.Config) -> bool:
    """Return whether no test was named on the command line: a run of named tests includes their long ones."""
    if hasattr(config, "workerinput"):
        return bool(config.workerinput["whole"])
    return config.args_source is not pytest.Config.ArgsSource.ARGS


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send each process of tests what it cannot see itself."""
    node.workerinput["whole"] = is_whole(node.config)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a checkout without links, of which a part would be left out; leave out what cannot run here."""
    if missing := [room for room in ("rescale", "workers") if not (ROOT / "malstrom_py" / room).is_dir()]:
        raise pytest.UsageError(
            f"malstrom_py/{missing[0]} is not a folder, so its examples would not be run: this checkout has lost its "
            f"links. Make them: ln -sfn ../rescale malstrom_py/rescale; ln -sfn ../workers malstrom_py/workers"
        )
    from tests.left_out import LeftOut  # it imports the package, which such a checkout cannot

    config.pluginmanager.register(LeftOut())
    config.pluginmanager.register(Examples())


class Examples:
    """A plugin of pytest: only a file with an example is imported for its examples, which four of five do not have."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        found = yield
        if any(isinstance(one, DoctestModule) for one in found) and b">>>" not in file_path.read_bytes():
            return [one for one in found if not isinstance(one, DoctestModule)]
        # pytest would run a module again that its package has imported: its names would be there twice.
        name = file_path.relative_to(ROOT).with_suffix("").parts if file_path.is_relative_to(ROOT) else ()
        if found and name[:1] == ("malstrom_py",):
            import_module(".".join(name).removesuffix(".__init__"))
        return found


def pytest_unconfigure() -> None:
    """Remove the folder of running jobs."""
    shutil.rmtree(_RUNTIME, ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests, those that take longest come first, and each has longer.

    For that, names are the same in each process.
    """
    from tests.groups import idle_patterns, is_long

    os.environ.pop("PYTEST_ADDOPTS", None)  # it is meant for this run, not for those of pytest that tests start
    chosen = config.getoption("long")
    if is_whole(config) and (idle := idle_patterns(items)):
        raise pytest.UsageError(f"a mark long names an unknown case: {idle[0]}")
    if others := [item for item in items if is_long(item) is not chosen] if chosen or is_whole(config) else []:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if is_long(item) is chosen]
    if named := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"the name of a case has an address in it: give it ids=shown of tests.ids: {named[0]}")
    if hasattr(config, "workerinput"):
        from tests.groups import PATIENCE_S, place_of

        for item in items:
            item.add_marker(pytest.mark.timeout(PATIENCE_S))
        items.sort(key=lambda item: place_of(item.nodeid))


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what is there for the whole run: the tests, and all that they import."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What may not run at the same time, does not."""
    from tests.groups import Groups

    return Groups(config, log)


def _excused(config: pytest.Config) -> int:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return sum(len(reporter.stats.get(kind, ())) for kind in ("skipped", "xfailed")) if reporter is not None else 0


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when a test was excused: what is skipped is not checked, and no reader notices."""
    if _excused(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say why such a run failed."""
    if _excused(config):
        terminalreporter.write_line(
            "What is skipped or expected to fail is not checked here: make it run, or take it out.", red=True
        )
