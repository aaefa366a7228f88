"""The help of every command ends with examples, which the command itself can parse; every command has ``--json``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from malstrom_py.cli.app import app

ROOT: Any = typer.main.get_command(app)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands(ROOT))
LEAVES = {path: command for path, command in ALL.items() if not hasattr(command, "commands")}


def named(path: tuple[str, ...]) -> str:
    return " ".join(path) or "malstrom"


def examples_of(command: Any) -> list[list[str]]:
    lines = [line.strip() for line in (command.epilog or "").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("malstrom ")]


def parsed(words: list[str]) -> tuple[str, ...]:
    """Parse an example as the command line would, without running it, and return the path of its command."""
    name, *rest = words
    assert name == "malstrom"
    command, path = ROOT, list[str]()
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        path.append(rest.pop(0))
        command = command.commands[path[-1]]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in rest if word.startswith("-")} <= known | {"--help"}, words
    if path:
        with command.make_context(" ".join(path), rest):
            pass
    return tuple(path)


@pytest.mark.parametrize("path", ALL, ids=named)
def test_the_help_of_a_command_ends_with_examples_that_it_can_parse(path: tuple[str, ...]) -> None:
    found = examples_of(ALL[path])
    assert len(found) >= 2
    for words in found:
        of = parsed(words)
        assert of == path if path in LEAVES else of[: len(path)] == path


@pytest.mark.parametrize("path", ALL, ids=named)
def test_examples_are_printed_line_by_line(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], terminal_width=200).stdout
    lines = [line.strip() for line in shown.splitlines()]
    assert "Examples:" in lines
    assert lines[lines.index("Examples:") + 1 :] == [shlex.join(words) for words in examples_of(ALL[path])]


@pytest.mark.parametrize("path", LEAVES, ids=named)
def test_every_command_has_json(path: tuple[str, ...]) -> None:
    assert any("--json" in parameter.opts for parameter in LEAVES[path].params)
