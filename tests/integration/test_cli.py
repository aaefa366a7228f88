"""The command line from outside: what it prints where, and its exit codes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py.cli.output import UserCodeFailed, WrongCommand
from malstrom_py.cli.running import load_job
from tests.integration.commands import malstrom
from tests.tree import ROOT

JOBS = """
import malstrom_py as mp
from malstrom_py import sinks, sources


def ratio(number):
    return inverse(number)


def inverse(number):
    return 10 / number


def make(name, numbers):
    made = mp.Job(name)
    made.source("numbers", sources.Memory(numbers)).map("ratio", ratio).sink("out", sinks.Stdout())
    return made


job = make("good", [1, 2, 5])
bad = make("bad", [1, 0, 5])
empty = mp.Job("empty")
number = 3


def maker():
    return job


def raiser():
    return {}["missing"]


def nothing():
    return None


async def later():
    return mp.Job("later")


def in_memory():
    made = mp.Job("memory")
    made.source("numbers", sources.Memory([1])).sink("kept", sinks.Memory())
    return made


def secretive():
    made = mp.Job("secretive")
    made.source("texts", sources.Memory(["secret-4711"])).map("number", int).sink("out", sinks.Stdout())
    return made


class HTTPError(OSError):
    pass


def unauthorized(text):
    raise HTTPError(f"401 for https://example.org?token={text}")


def kept(text):
    return open("/no/such/folder/" + text)


def leave_with(text):
    raise SystemExit(f"bye {text}")


def failing_with(function):
    made = mp.Job("failing")
    made.source("texts", sources.Memory(["secret-4711"])).map("call", function).sink("out", sinks.Stdout())
    return made


def calling():
    return failing_with(unauthorized)


def keeping():
    return failing_with(kept)


def leaving_with():
    return failing_with(leave_with)


def evaluating():
    return failing_with(lambda text: eval(text.partition("-")[0]))


def leaving():
    raise SystemExit


def left_while_running():
    made = mp.Job("left")
    made.source("numbers", sources.Memory([0])).map("leave", exit).sink("out", sinks.Stdout())
    return made


def delay_of(row):
    return row["dep_delay"]


def misread():
    made = mp.Job("misread")
    made.source("rows", sources.Memory([{"delay": "secret-4711"}])).map("delay", delay_of).sink("out", sinks.Stdout())
    return made


def mistimed():
    made = mp.Job("mistimed")
    rows = made.source("rows", sources.Memory([{"at": "secret-4711"}]))
    rows.assign_timestamps("at", lambda row: row["at"]).sink("out", sinks.Stdout())
    return made


def circle():
    error = ValueError("its own cause")
    raise error from error
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "importing.py").write_text("import math\n\nimport no_such_package\n")
    (tmp_path / "wrong_syntax.py").write_text("job = (\n")
    (tmp_path / "illegal.py").write_text("import malstrom_py as mp\n\njob = mp.Job('two words')\n")
    return tmp_path


def test_run_prints_the_output_of_the_job_and_beside_it_the_counts(folder: Path) -> None:
    done = malstrom(folder, "run", "jobs:job")
    assert (done.returncode, done.stdout) == (0, "10.0\n5.0\n2.0\n")
    assert done.stderr.startswith("job good: 3 read, 3 written, ")


def test_run_takes_the_name_job_if_none_is_given_and_is_quiet_if_told_so(folder: Path) -> None:
    done = malstrom(folder, "run", "jobs", "--quiet", "--batch-rows", "1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "10.0\n5.0\n2.0\n", "")


def test_run_says_that_rows_in_memory_end_with_it(folder: Path) -> None:
    said = "rows written to 'kept' (sinks.Memory) are lost when this program ends: to see them, write to sinks.Stdout()"
    assert said in malstrom(folder, "run", "jobs:in_memory").stderr
    assert malstrom(folder, "run", "jobs:in_memory", "--quiet").stderr == ""
    assert "are lost when" not in malstrom(folder, "run", "jobs:job").stderr


def test_run_finds_an_example_of_the_repository() -> None:
    done = malstrom(ROOT, "run", "examples.silence:job")
    assert done.returncode == 0
    assert "s1: silent for 12 minutes since 06:02" in done.stdout


def test_run_takes_a_number_of_workers() -> None:
    counts = [malstrom(ROOT, "run", "examples.word_count", *workers).stderr for workers in ((), ("-w", "3"))]
    assert [line.split(" in ")[0] for line in counts] == [counts[0].split(" in ")[0]] * 2
    assert malstrom(ROOT, "run", "examples.word_count", "-w", "0").returncode == 2


def test_run_takes_a_file_from_elsewhere(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (folder / "beside.py").write_text("from jobs import maker as job\n")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert malstrom(elsewhere, "run", str(folder / "beside.py")).stdout == "10.0\n5.0\n2.0\n"
    assert malstrom(elsewhere, "run", f"{folder / 'jobs.py'}:maker").stdout == "10.0\n5.0\n2.0\n"


def test_a_failed_job_is_told_with_the_users_own_line_and_without_a_traceback(folder: Path) -> None:
    done = malstrom(folder, "run", "jobs:bad")
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: step 'ratio' failed: ZeroDivisionError")
    assert ": division by zero. Correct the function" in lines[0]
    assert "caused by" not in done.stderr
    assert lines[-3:] == [
        "  raised at jobs.py:11, in inverse",
        "  it was processing a batch of partition '0' of source 'numbers', which ended at position 3",
        "  run again with --traceback to see the full error",
    ]


OF_FILES = """
import sys
import malstrom_py as mp
import polars as pl
from malstrom_py import sinks, sources

frame = pl.DataFrame({"n": [4, 0, 2]})
frame.write_csv("n.csv"), frame.write_ndjson("n.jsonl"), frame.write_parquet("n.parquet")

def job_of(name, *, follow=False):
    job = mp.Job("files")
    numbers = job.source("numbers", sources.Files(name, follow=follow))
    numbers.map("ratio", lambda row: 1 / row["n"]).sink("out", sinks.Memory())
    return job

jsonl, parquet, followed = job_of("n.jsonl"), job_of("n.parquet"), job_of("*.csv", follow=True)
"""


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "followed"])
def test_an_error_names_the_row_of_a_file_and_shows_no_schema(kind: str, tmp_path: Path) -> None:
    (tmp_path / "files.py").write_text(OF_FILES)
    done = malstrom(tmp_path, "run", f"files:{kind}")
    assert done.returncode == 1
    assert re.search(r"processing a batch of partition '.*' of source 'numbers', which ended at row 3", done.stderr), (
        done.stderr
    )
    assert not re.search(r"\bb'|\{'|schema", done.stderr), done.stderr


def test_the_traceback_is_there_for_who_asks(folder: Path) -> None:
    done = malstrom(folder, "run", "jobs:bad", "--traceback")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert "return 10 / number" in done.stderr
    assert "--traceback" not in done.stderr


def test_an_error_tells_the_fields_of_the_row_and_what_to_do(folder: Path) -> None:
    first = malstrom(folder, "run", "jobs:misread").stderr.splitlines()[0]
    assert re.fullmatch(
        r"error: step 'delay' failed: KeyError in delay_of at .*: 'dep_delay' \(the row has 'delay'\)\. Correct .*",
        first,
    )
    first = malstrom(folder, "run", "jobs:mistimed").stderr.splitlines()[0]
    assert (
        "a timestamp must be an int in the step's unit or an aware datetime, got str: parse it, with "
        "datetime.fromisoformat" in first
    )


@pytest.mark.parametrize(
    ("job", "code", "said"),
    [
        ("jobs:jop", 2, "error: jobs has no 'jop': did you mean jobs:job?"),
        ("jobs:number", 2, "error: jobs:number is a value of type int instead of a job: "),
        ("jobs:nothing", 2, "error: jobs:nothing returns None instead of a job: "),
        ("jobs:later", 2, "error: jobs:later is an asynchronous function: name an ordinary one that returns a job"),
        ("jobs:make", 2, "error: jobs:make cannot be called without arguments: "),
        ("jobs:raiser", 1, "error: calling jobs:raiser failed: KeyError: 'missing'\n  raised at jobs.py:31, in raiser"),
        ("jobs:circle", 1, "error: calling jobs:circle failed: ValueError: its own cause\n  raised at jobs.py:"),
        ("jobs:empty", 1, "error: job 'empty' is empty: "),
        ("jbos", 2, "error: module 'jbos' was not found (looked in "),
        ("jobs.job", 2, "error: 'jobs' is a module with 'job' in it: write jobs:job"),
        ("no-name", 2, "error: 'no-name' is not a module name: "),
        ("jobs:", 2, "error: 'jobs:' does not name a job: "),
        ("nowhere/jobs.py:job", 2, "error: file "),
        ("importing", 1, "error: importing importing failed: ModuleNotFoundError: No module named 'no_such_package'"),
        ("wrong_syntax", 1, "error: importing wrong_syntax failed: SyntaxError: "),
        ("illegal", 1, "error: job name 'two words' is not legal: "),
    ],
)
def test_what_is_no_job_is_told_in_lines(job: str, code: int, said: str, folder: Path) -> None:
    done = malstrom(folder, "run", job)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


def test_an_import_that_fails_inside_the_users_module_names_its_line(folder: Path) -> None:
    assert "\n  raised at importing.py:3\n" in malstrom(folder, "explain", "importing").stderr
    assert "\n  raised at wrong_syntax.py:1\n" in malstrom(folder, "explain", "wrong_syntax").stderr
    assert "\n  at illegal.py:3\n" in malstrom(folder, "explain", "illegal").stderr


def test_a_misspelt_module_is_answered_with_the_one_that_is_there(folder: Path) -> None:
    assert "did you mean 'jobs'?" in malstrom(folder, "run", "jobz:job").stderr


@pytest.mark.parametrize("arguments", [["run"], ["run", "jobs", "--rows"], ["run", "jobs", "--batch-rows", "0"], ["x"]])
def test_a_wrong_command_ends_with_2(arguments: list[str], folder: Path) -> None:
    assert malstrom(folder, *arguments).returncode == 2


def test_explain_prints_the_plan_as_text_or_as_mermaid_without_running_it(folder: Path) -> None:
    text = malstrom(folder, "explain", "jobs:bad")
    assert (text.returncode, text.stdout.splitlines()[0]) == (0, "job bad (3 steps, 1024 slots)")
    chart = malstrom(folder, "explain", "jobs:bad", "--mermaid")
    assert (chart.returncode, chart.stdout.splitlines()[0]) == (0, "flowchart LR")
    why = malstrom(folder, "explain", "jobs:bad", "--why", "ratio")
    assert why.stdout.startswith("step 'ratio' (map) is compiled: ratio at ")
    unknown = malstrom(folder, "explain", "jobs:bad", "--why", "ration")
    assert (unknown.returncode, unknown.stderr) == (
        2,
        "error: job 'bad' has no step 'ration'; its steps: numbers, ratio, out\n",
    )


def test_version_and_help(folder: Path) -> None:
    assert malstrom(folder, "--version").stdout == f"malstrom {mp.__version__}\n"
    shown = malstrom(folder, "--help").stdout
    assert all(command in shown for command in ("run", "explain", "doctor"))


@pytest.fixture
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What loading adds to sys.path is taken back: other tests, and the processes they start, must not see it."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.usefixtures("own_path")
def test_a_job_is_loaded_from_a_file_under_a_name_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("import malstrom_py as mp\n\njob = mp.Job('mine')\n")
    assert load_job(f"{tmp_path}/json.py").name == "mine"
    assert sys.modules["json"].__name__ == "json"
    assert hasattr(sys.modules["json"], "loads")


@pytest.mark.usefixtures("own_path")
def test_a_file_that_raises_is_not_left_half_loaded(tmp_path: Path) -> None:
    (tmp_path / "half_loaded.py").write_text("1 / 0\n")
    with pytest.raises(UserCodeFailed, match="ZeroDivisionError"):
        load_job(f"{tmp_path}/half_loaded.py")
    assert "half_loaded" not in sys.modules


@pytest.mark.usefixtures("own_path")
def test_a_name_is_looked_for_in_the_module_it_was_asked_of() -> None:
    with pytest.raises(WrongCommand, match="there is no job in it"):
        load_job("json:job")


def test_the_text_of_a_foreign_error_is_shown_unless_it_is_hidden(folder: Path) -> None:
    assert "secret-4711" in malstrom(folder, "run", "jobs:secretive").stderr
    assert "secret-4711" not in malstrom(folder, "run", "jobs:secretive", "--traceback", "--redact-errors").stderr


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("calling", "failed: HTTPError in unauthorized at "),
        ("keeping", ": [Errno 2] No such file or directory. Correct the function"),
        ("leaving_with", "a function of the job ended the program (sys.exit(…))"),
        ("evaluating", "failed: NameError in "),
    ],
)
def test_what_a_function_made_of_a_record_can_be_hidden(spec: str, said: str, folder: Path) -> None:
    assert "secret" in malstrom(folder, "run", f"jobs:{spec}").stderr
    stderr = malstrom(folder, "run", f"jobs:{spec}", "--redact-errors").stderr
    assert said in stderr
    assert "secret" not in stderr


def test_code_that_ends_the_program_is_an_error_and_not_a_job_done(folder: Path) -> None:
    (folder / "ends.py").write_text("import sys\n\nsys.exit(0)\n")
    for spec, message in [
        ("ends", "importing ends ended the program (sys.exit(0))"),
        ("jobs:leaving", "calling jobs:leaving ended the program (sys.exit())"),
        ("jobs:left_while_running", "a function of the job ended the program (sys.exit(0))"),
    ]:
        done = malstrom(folder, "run", spec)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"error: {message}")


@pytest.mark.parametrize(
    "arguments", [["explain", "jobs"], ["explain", "jobs", "--mermaid"], ["doctor"], ["--version"]]
)
def test_a_full_standard_output_is_told_in_one_line(folder: Path, arguments: list[str]) -> None:
    done = malstrom(folder, *arguments, stdout="/dev/full")
    assert done.returncode == 1
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (("--address", "auto"), "error: --address is for jobs on Ray: add --runtime ray"),
        (("--num-cpus", "2"), "error: --num-cpus is for jobs on Ray: add --runtime ray"),
        (("--runtime", "ray", "--detached", "--stop-timeout", "5"), "error: --stop-timeout is for a job that this"),
        (("--log-format", "xml"), "'--log-format'"),
        (
            ("--snapshots", "kept", "--interval", "0"),
            "for '--interval': it must be a number of seconds above 0, got 0",
        ),
        (("--snapshots", "kept", "--interval", "-1"), "it must be a number of seconds above 0, got -1"),
        (("--snapshots", "kept", "--interval", "inf"), "it must be a number of seconds above 0, got inf"),
    ],
    ids=lambda options: "-".join(options) if isinstance(options, tuple) else "",
)
def test_options_that_would_be_ignored_or_make_no_sense_are_refused(
    options: tuple[str, ...], reported: str, folder: Path
) -> None:
    done = malstrom(folder, "run", "jobs:job", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert reported in done.stderr


def test_help_says_of_the_interval_what_is_checked(folder: Path) -> None:
    (line,) = [
        line for line in malstrom(folder, "run", "--help").stdout.splitlines() if line.startswith("  --interval")
    ]
    assert "above 0" in line
    assert ">=0" not in line
