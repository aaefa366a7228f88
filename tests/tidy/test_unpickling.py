"""S8: what a store or a peer can write is never unpickled. Every call that unpickles is listed, with who reaches it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.tree import modules, tree_of

PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle"}
READING = {"load", "loads", "Unpickler", "open"}

UNPICKLE = {
    # The streams between workers, which have proved that they have the secret of this start of the job.
    ("malstrom_py.codec.in_flight", "load"),
    ("malstrom_py.workers.transport.wire", "open"),
    ("malstrom_py.rescale.moves.protocol", "_unpacked"),
    # What Ray, or the socket between a program and its worker, has brought from a process of the same job.
    ("malstrom_py.workers.processes.fork_server", "_fork"),
    ("malstrom_py.workers.processes.fork_server", "serve"),
    ("malstrom_py.workers.processes.worker_process", "_connected"),
    ("malstrom_py.workers.processes.worker_process", "_work"),
    ("malstrom_py.workers.remote.packed_plan", "unpack_plan"),
    ("malstrom_py.workers.reports.error_transfer", "unpack_error"),
    ("malstrom_py.workers.reports.error_transfer", "_pickled"),
    ("malstrom_py.workers.reports.error_transfer", "_loaded"),
    ("malstrom_py.sinks.memory", "_unpickled"),  # of a job without a store only: test_memory.py
    # What the same program has pickled.
    ("malstrom_py.testing.contracts.clauses", "copied"),
}
"""Every function that unpickles, by module."""

REACHES = {
    "load": {"malstrom_py.workers.transport.wire"},
    "decode_column": {"malstrom_py.codec.in_flight"},
    "decode_fields": {"malstrom_py.codec.in_flight"},
    "decode_batch": {
        "malstrom_py.codec.in_flight",
        "malstrom_py.codec.job_codec",
        "malstrom_py.workers.engine.exchange",
        "malstrom_py.testing.single_step",
    },
    "decode_in_flight": {
        "malstrom_py.codec.in_flight",
        "malstrom_py.codec.job_codec",
        "malstrom_py.state.keyed_state",  # parcels of moving state
        "malstrom_py.state.memory",
        "malstrom_py.testing.laws.state_laws",
    },
    "unpack_error": {
        "malstrom_py.workers.reports.error_transfer",
        "malstrom_py.workers.ray.driver_commits",
        "malstrom_py.workers.ray.ray_job",
    },
}
"""A function that leads to one that unpickles -> the modules that may use it. None reads a store, a recording, a socket
of control, or records of a source."""


def names_of_pickle(tree: ast.Module) -> set[str]:
    """Return the names by which a module knows pickle and what is like it, and their functions that read."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.asname or each.name for each in node.names if each.name in PICKLES}
        elif isinstance(node, ast.ImportFrom) and node.module in PICKLES:
            found |= {each.asname or each.name for each in node.names if each.name in READING}
    return found


def functions_with(tree: ast.Module, wanted: object) -> Iterator[str]:
    """Yield the name of each function, "" for the module, that has a node for which ``wanted`` is true."""

    def walk(node: ast.AST, inside: str) -> Iterator[str]:
        name = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not inside else inside
        if wanted(node):  # type: ignore[operator]
            yield name
        for child in ast.iter_child_nodes(node):
            yield from walk(child, name)

    return walk(tree, "")


def unpickling(tree: ast.Module) -> set[str]:
    known = names_of_pickle(tree)

    def wanted(node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return node.value.id in known and node.attr in READING
        return isinstance(node, ast.Name) and node.id in known & READING

    return set(functions_with(tree, wanted))


def uses(tree: ast.Module, name: str) -> bool:
    """Return whether a module uses ``name`` of the codec or of error_transfer, by import or as a method."""
    imported = {
        each.asname or each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("malstrom_py.")
        for each in node.names
        if each.name == name or (name == "load" and each.name == "in_flight" and node.module == "malstrom_py.codec")
    }
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == name]
    if name == "load":  # a frequent name: only that of the codec in flight
        return any(isinstance(node.value, ast.Name) and node.value.id in imported for node in attributes)
    defined = any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)
    return bool(name in imported or defined or attributes)


def test_s8_only_listed_functions_unpickle() -> None:
    found = {
        (module, function)
        for module, file in modules().items()
        if any(name in file.read_text() for name in PICKLES)
        for function in unpickling(tree_of(file))
    }
    assert found == UNPICKLE


def test_s8_what_unpickles_is_reached_from_other_workers_and_ray_only() -> None:
    found: dict[str, set[str]] = {name: set() for name in REACHES}
    for module, file in modules().items():
        text = file.read_text()
        wanted = {name for name in REACHES if ("in_flight" if name == "load" else name) in text}
        tree = tree_of(file) if wanted else ast.Module([], [])
        for name in wanted:
            if uses(tree, name):
                found[name].add(module)
    assert found == REACHES


def test_the_walk_sees_each_way_to_unpickle() -> None:
    for code in (
        "import pickle\ndef f(x): return pickle.loads(x)",
        "import pickle as p\nclass A:\n    def f(self, x): return p.Unpickler(x).load()",
        "from cloudpickle import loads\ndef f(x): return loads(x)",
        "def f(x):\n    import cloudpickle\n    return cloudpickle.load(x)",
        "import pickle\ndef f(x): return map(pickle.loads, x)",
    ):
        assert unpickling(ast.parse(code)) == {"f"}
    assert not unpickling(ast.parse("import pickle, json\ndef f(x): return pickle.dumps(json.loads(x))"))
