"""Reloads the code of a step: imports its module again, and makes the plan of the job with what the module has now.

Rule: nothing is changed before the new plan is complete, and `roll_back` restores everything. The new plan is the job
that the module makes again, where it holds that job; else the present plan with the module's functions and classes of
the same names, and with the migrations that its text gives to the steps. Sources and sinks stay the objects that they
are.
"""

from __future__ import annotations

import ast
import copy
import functools
import importlib.util
import linecache
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

from malstrom_py.builder.columns_read import narrow_sources
from malstrom_py.builder.job import Job
from malstrom_py.builder.plan import Plan, Step
from malstrom_py.builder.state_migration import Migration, migration_of
from malstrom_py.errors import MalstromError, PlanError, ReloadError
from malstrom_py.errors.text import LIBRARIES, PACKAGE_FOLDERS, describe_error, text_of
from malstrom_py.workers.reports.job_status import ReloadAction
from malstrom_py.workers.runtime.shadow_plan import promoted, shadowed, with_shadow, without_shadow

_DEPTH_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Reloaded:
    """A plan with the code of ``modules`` as imported again, which `HotReload.install` puts into use."""

    step: str
    plan: Plan
    modules: Mapping[str, types.ModuleType]
    action: ReloadAction = "reload"
    beside: Reloaded | None = None
    """Of a plan with a shadow: the plan where the new code is that of the step."""

    @property
    def imported(self) -> Mapping[str, types.ModuleType]:
        """The modules of the new code."""
        return self.modules if self.beside is None else self.beside.modules


class HotReload:
    """The plan of a running job, and its replacement. ``pack`` packs plans that are sent to other processes. They go
    with the code of reloaded modules, because a process that imports them may find other files. ``files``:
    module -> path, for functions that have come by value themselves.
    """

    def __init__(
        self, plan: Plan, *, pack: Callable[[Plan], bytes] | None = None, files: Mapping[str, str] | None = None
    ) -> None:
        self.plan = plan
        self._files = files or {}
        self._pack = pack
        self._before: tuple[Plan, dict[str, types.ModuleType | None]] | None = None
        self._beside: Reloaded | None = None

    def prepare(self, step: str, texts: Mapping[str, str], action: ReloadAction = "reload") -> Reloaded:
        """Return the plan that the job continues with after ``action``: see `_imported_again` and `with_shadow`.

        Raises:
            PlanError: there is no such step.
            ReloadError: the code cannot be imported or sent to other processes, or a shadow is, or is not, there.
        """
        if action in {"promote", "drop"}:
            if step not in shadowed(self.plan):
                raise _refused(step, "it has no shadow: begin one with shadow=True (--shadow)")
            if action == "drop":
                return Reloaded(step, without_shadow(self.plan, step), {}, action)
            if self._beside is None or self._beside.step != step:
                raise _refused(
                    step, "its new code is lost with the coordinator that had it: drop it, and begin another"
                )
            return replace(self._beside, plan=promoted(self._beside.plan, step), action=action)
        if there := shadowed(self.plan):
            raise _refused(step, f"step {there[0]!r} has a shadow: promote or drop it first")
        new = self._to_be_sent(self._imported_again(step, texts))
        if action == "reload":
            return new
        plan = replace(with_shadow(self.plan, new.plan, step), by_value=new.plan.by_value)
        return Reloaded(step, plan, {}, action, new)

    def drop_shadow(self, step: str) -> None:
        """Use a plan without the shadow of ``step``, which has failed, from the next run on."""
        self.plan = without_shadow(self.plan, step)

    def _imported_again(self, step: str, texts: Mapping[str, str]) -> Reloaded:
        """Import the module of ``step`` again, and return the plan with its code. ``texts``: the content of files, by
        path; other files are read.

        Raises:
            PlanError: there is no such step.
            ReloadError: its functions are of no module, or the module cannot be imported, or has another graph.
        """
        files = files_of(self.plan, step, self._files)
        new: dict[str, types.ModuleType] = {}
        former = {name: sys.modules.get(name) for name in files}
        try:
            sources: dict[str, str] = {}
            for name, path in files.items():
                sources[name] = _source_of(step, name, path, texts.get(path))
                new[name] = sys.modules[name] = _imported(step, name, path, sources[name])
            plan = _made_again(self.plan, new, step)
            if plan is None:
                plan = _with_migrations(_with_functions(self.plan, new, step), new, sources)
        except MalstromError:
            raise
        except Exception as error:  # of the user's class, as an object of it is copied
            raise _refused(step, f"an object of its plan cannot have its new class: {describe_error(error)}") from error
        finally:
            _restore(former)
        return Reloaded(step, plan, new)

    def _to_be_sent(self, new: Reloaded) -> Reloaded:
        """Return ``new`` with its modules by value. `ReloadError` if the new code, or the code to which a failure would
        go back, cannot be sent like that: both are needed once the workers have stopped.
        """
        if self._pack is None:
            return new
        new = replace(new, plan=replace(new.plan, by_value=self.plan.by_value | new.modules.keys()))
        former = {name: module for name in new.modules if (module := sys.modules.get(name)) is not None}
        tried = (("new", new.plan, new.modules), ("present", replace(self.plan, by_value=new.plan.by_value), former))
        for which, plan, modules in tried:
            try:
                self._pack(plan)
            except PlanError as error:
                raise _not_sent(new, which, modules, error) from error
        return new

    def install(self, reloaded: Reloaded) -> None:
        """Use the new plan, and the new modules in this process."""
        # The files of the former code may have changed as well.
        before = replace(self.plan, by_value=reloaded.plan.by_value)
        self._before = before, {name: sys.modules.get(name) for name in reloaded.modules}
        self.plan = reloaded.plan
        self._beside = reloaded.beside or self._beside
        sys.modules.update(reloaded.modules)

    def confirm(self) -> None:
        """Keep the new plan."""
        self._before = None

    def roll_back(self) -> None:
        """Use the former plan and the former modules again."""
        assert self._before is not None
        (self.plan, former), self._before = self._before, None
        _restore(former)


def files_of(plan: Plan, step: str, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the modules of the functions and classes of ``step``: name -> path of the file. ``known``: more of these.

    Raises: PlanError: there is no such step. ReloadError: it has none that can be imported again.
    """
    found = next((one for one in plan.steps if one.name == step), None)
    if found is None:
        names = ", ".join(repr(one.name) for one in plan.steps)
        raise PlanError(f"job {plan.job!r} has no step {step!r}: its steps are {names}")
    files = {name: path for _, name, path in _places([found], known or {})}
    if "__main__" in files:
        raise ReloadError(
            f"step {step!r} cannot be reloaded: its functions are in the program itself ({files['__main__']}), which "
            f"cannot be imported again while it runs. Move them to a module, or start the job by `malstrom run`",
            step=step,
        )
    if not files:
        raise ReloadError(
            f"step {step!r} cannot be reloaded: it has no function or class of a module of yours",
            step=step,
        )
    return files


def watched_files(plan: Plan) -> dict[str, str]:
    """Return the files of the functions of ``plan`` that can be reloaded: path -> one of its steps."""
    files: dict[str, str] = {}
    for step, name, path in _places(plan.steps, {}):
        if name != "__main__":
            files.setdefault(path, step)
    return files


def modules_of(plan: Plan) -> dict[str, str]:
    """Return the modules of the functions of ``plan``: name -> path of the file."""
    return {name: path for _, name, path in _places(plan.steps, {})}


def texts_of(plan: Plan, step: str) -> dict[str, str]:
    """Return the files of ``step`` as this process reads them, by path; without those that it cannot read."""
    texts: dict[str, str] = {}
    for path in files_of(plan, step).values():
        if Path(path).is_file():
            texts[path] = Path(path).read_text()
    return texts


def _source_of(step: str, name: str, path: str, text: str | None) -> str:
    """Return ``text``, or that of the file at ``path``."""
    try:
        return Path(path).read_text() if text is None else text
    except (OSError, ValueError) as error:
        raise _not_imported(step, name, path, error) from error


def _imported(step: str, name: str, path: str, source: str) -> types.ModuleType:
    """Execute ``source``, of the file at ``path``, as module ``name``."""
    try:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        linecache.checkcache(path)
        exec(compile(source, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise _not_imported(step, name, path, error) from error
    return module


def _not_imported(step: str, name: str, path: str, error: BaseException) -> ReloadError:
    what = text_of(error) if isinstance(error, MalstromError) else describe_error(error)
    return _refused(step, f"importing {name} ({path}) again failed: {what}")


def _not_sent(new: Reloaded, which: str, modules: Mapping[str, types.ModuleType], error: PlanError) -> ReloadError:
    names = ", ".join(_unpicklable_globals(modules))
    return _refused(
        new.step,
        f"workers in other processes get a copy of {', '.join(new.modules)}, because files may have changed, and the "
        f"{which} code cannot be copied{f', because of {names}' if names else ''}. {error}. Or stop the job and start "
        f"it again",
    )


def _unpicklable_globals(modules: Mapping[str, types.ModuleType]) -> Iterator[str]:
    import cloudpickle

    for module in modules.values():
        for name, value in vars(module).items():
            is_code = callable(value) or isinstance(value, types.ModuleType)
            if is_code or name.startswith("__") or type(value).__module__.startswith("malstrom_py."):
                continue
            try:
                cloudpickle.dumps(value)
            except Exception:
                yield f"{module.__name__}.{name}"


def _made_again(plan: Plan, modules: Mapping[str, types.ModuleType], step: str) -> Plan | None:
    """Return the plan of the job that a module makes again; None if no module holds the job."""
    job = _job_in(plan, modules, step)
    if job is None:
        return None
    try:
        new = job.plan()
    except PlanError as error:
        raise _refused(step, str(error)) from error
    former = {one.name: one for one in plan.steps}
    _check_graph(plan, new, step)
    return replace(new, made_by=plan.made_by, steps=tuple(_with_ends(one, former[one.name]) for one in new.steps))


def _job_in(plan: Plan, modules: Mapping[str, types.ModuleType], step: str) -> Job | None:
    module, _, name = plan.made_by.rpartition(":")
    found = getattr(modules.get(module), name, None) if name else None
    if callable(found):
        try:
            found = found()
        except (Exception, SystemExit) as error:
            what = text_of(error) if isinstance(error, MalstromError) else describe_error(error)
            raise _refused(step, f"{plan.made_by} failed: {what}") from error
    given = [found, *(value for one in modules.values() for value in vars(one).values())]
    return next((job for job in given if isinstance(job, Job) and job.name == plan.job), None)


def _check_graph(plan: Plan, new: Plan, step: str) -> None:
    def graph(of: Plan) -> dict[str, Any]:
        return {one.name: (one.kind, one.inputs, one.ports, one.traits.unit, one.traits.region) for one in of.steps}

    before, now = graph(plan), graph(new)
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if changed or plan.slots != new.slots:
        raise _refused(
            step,
            f"the graph of the job has changed ({', '.join(changed) or 'slots'}). Stop the job and start it again: it "
            f"resumes from its snapshot",
        )


def _refused(step: str, why: str) -> ReloadError:
    return ReloadError(f"step {step!r} was not reloaded: {why}. The job continues unchanged", step=step)


def _with_ends(new: Step, former: Step) -> Step:
    """Return ``new`` with the source or sink of ``former``."""
    if not isinstance(new.factory, functools.partial) or not isinstance(former.factory, functools.partial):
        return new
    ends = {name: value for name, value in former.factory.keywords.items() if name in {"source", "sink"}}
    if not ends:
        return new
    return replace(new, factory=functools.partial(new.factory.func, *new.factory.args, **new.factory.keywords | ends))


def _with_functions(plan: Plan, modules: Mapping[str, types.ModuleType], step: str) -> Plan:
    """Return ``plan`` with the functions and classes of ``modules``, by their names."""
    steps = []
    for one in plan.steps:
        exchange = _Exchange(modules, step, keeps=one.name != step)
        factory = one.factory if one.kind in {"source", "sink"} else exchange.of(one.factory)
        # A migration that has been applied may be gone from the module.
        migration = _Exchange(modules, step, keeps=True).of(one.migration)
        initial = exchange.of(one.initial)
        steps.append(replace(one, factory=factory, migration=migration, initial=initial))
    exchange = _Exchange(modules, step, keeps=True)
    # A new function may read other columns than the former one.
    return replace(plan, steps=tuple(narrow_sources(steps)), types=plan.types.exchanged(exchange.of))


def _with_migrations(plan: Plan, modules: Mapping[str, types.ModuleType], sources: Mapping[str, str]) -> Plan:
    """Return ``plan`` with the migrations that the text of a module gives to its steps, in a call such as
    ``.stateful_map("total", total, migrate=in_cents)``. A function that makes the job cannot be called to see them: it
    may as well start the job.
    """
    given = {
        one.name: migration
        for one in plan.steps
        for name, source in sources.items()
        for migration in _migrations(one.name, modules[name], source)
    }
    return replace(plan, steps=tuple(replace(one, migration=given.get(one.name, one.migration)) for one in plan.steps))


def _migrations(step: str, module: types.ModuleType, source: str) -> Iterator[Migration | None]:
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and any(
            isinstance(one, ast.Constant) and one.value == step for one in call.args[:1]
        ):
            for keyword in call.keywords:
                if keyword.arg == "migrate":
                    yield _migration(step, module, ast.unparse(keyword.value))


def _migration(step: str, module: types.ModuleType, text: str) -> Migration | None:
    found: Any = module
    for part in text.split("."):
        found = getattr(found, part, None)
    if text == "None" or callable(found):
        return migration_of(found, step)
    raise _refused(
        step,
        f"{module.__name__} gives it migrate={text}, which is not at its top level. Define it there with "
        f"def, or keep the job in a variable of that module",
    )


class _Exchange:
    """Exchanges functions, classes and objects of ``modules`` inside the values of steps.

    ``keeps``: what a module does not have at its top level stays unchanged; else that is an error.
    """

    def __init__(self, modules: Mapping[str, types.ModuleType], step: str, *, keeps: bool) -> None:
        self._modules = modules
        self._step = step
        self._keeps = keeps

    def of(self, value: Any, depth: int = _DEPTH_MAX) -> Any:
        """Return ``value`` with the new functions and classes."""
        if depth == 0:
            return value
        if (parts := _parts_of(value)) is not None:
            given, made_of = parts
            new = [self.of(one, depth - 1) for one in given]
            if any(one is not former for one, former in zip(new, given, strict=True)):
                value = made_of(new)
        return self._part(value)  # an object of the user's class gets the new one, also if it is a list or a tuple

    def _part(self, value: Any) -> Any:
        """Return the new function or class, or a copy of an object with its new class."""
        if isinstance(value, types.FunctionType | type):
            return self._new(value) if value.__module__ in self._modules else value
        if type(value).__module__ not in self._modules:
            return value
        copied = copy.copy(value)
        copied.__class__ = self._new(type(value))
        return copied

    def _new(self, former: Any) -> Any:
        found: Any = self._modules[former.__module__]
        for part in former.__qualname__.split("."):
            found = None if part == "<locals>" else getattr(found, part, None)
        if not callable(found):
            if self._keeps:
                return former
            raise _refused(
                self._step,
                f"{former.__module__} has no {former.__qualname__} at its top level. Define it there with def or "
                f"class, or keep the job in a variable of that module",
            )
        return found


def _places(steps: Iterable[Step], known: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Iterate over the functions, classes and objects of the user in ``steps``: step, module, path of its file."""
    for step in steps:
        for part in _parts(_given(step)):
            for name, path in _place(part, known):
                yield step.name, name, path


def _given(step: Step) -> Sequence[Any]:
    """Return what the user gave for ``step``."""
    keywords = step.factory.keywords if isinstance(step.factory, functools.partial) else {}
    given = [value for name, value in keywords.items() if name not in {"source", "sink"}]
    return [*given, step.migration, step.initial]


def _parts(value: Any, depth: int = _DEPTH_MAX) -> Iterator[Any]:
    """Iterate over the functions, classes and objects inside ``value``."""
    if depth == 0:
        return
    parts, is_sequence = _parts_of(value), isinstance(value, list | tuple)
    if parts is None or (is_sequence and type(value) not in {list, tuple}):
        yield value
    for one in () if parts is None else parts[0]:
        yield from _parts(one, depth - 1)


def _parts_of(value: Any) -> tuple[Sequence[Any], Callable[[Sequence[Any]], Any]] | None:
    """Return what ``value`` consists of, and what makes one like it of others; None of what has no parts for us."""
    if isinstance(value, functools.partial):
        names, first = list(value.keywords), len(value.args) + 1
        return [value.func, *value.args, *value.keywords.values()], lambda new: functools.partial(
            *new[:first], **dict(zip(names, new[first:], strict=True))
        )
    if isinstance(value, types.MethodType):
        return [value.__self__], lambda new: getattr(new[0], value.__name__)
    if isinstance(value, list | tuple):
        kind = type(value)  # another class of lists or tuples may be made in any way, so its object stays
        return value, kind if kind in {list, tuple} else getattr(kind, "_make", lambda new: value)
    if type(value) is dict:
        return list(value.values()), lambda new: dict(zip(value, new, strict=True))
    if is_dataclass(value) and not isinstance(value, type) and type(value).__module__.startswith("malstrom_py."):
        given = {field.name: getattr(value, field.name, None) for field in fields(value) if field.init}
        return list(given.values()), lambda new: replace(value, **dict(zip(given, new, strict=True)))
    return None


def _place(part: Any, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return the module of a user's function, class or object, and its file."""
    kind = part if isinstance(part, types.FunctionType | type) else type(part)
    name = str(getattr(kind, "__module__", None) or "")
    if isinstance(kind, types.FunctionType):
        path = kind.__code__.co_filename
    else:
        module = sys.modules.get(name)
        methods = [one for one in vars(kind).values() if isinstance(one, types.FunctionType)]
        path = str(getattr(module, "__file__", None) or (methods[0].__code__.co_filename if methods else ""))
    if not path.endswith(".py"):
        path = known.get(name, "")
    if path.endswith(".py") and not path.startswith(PACKAGE_FOLDERS + LIBRARIES):
        yield name, path


def _restore(modules: Mapping[str, types.ModuleType | None]) -> None:
    for name, module in modules.items():
        if module is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = module
