"""The walls of the house: which module may import which, read from the sources themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "raysent"

# Rows from the ground up. A room (a module or a folder directly under raysent/) imports only from rows above its
# own; two rooms of one row do not know each other. Rows of one layer follow the order in which data flows.
LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "GROUND": (("errors",), ("config", "artifacts", "processes", "registry"), ("compiled",)),
    "DATA": (("vocabulary",), ("corpus", "pairs"), ("batches",)),
    "MODEL": (
        ("devices",),
        ("packing", "matmul", "row_adam", "components", "anchors", "layers", "word_loss"),
        ("packed_gru", "packed_lstm", "pooling"),
        ("embeddings",),
        ("codes", "packed_codes"),
        ("encoders", "objectives"),
        ("sentence_encoder", "vector_codes"),
        ("model",),
    ),
    # What work costs is arithmetic that the sweep decides by, so it stands below the sweep; what asks a cloud, or
    # plays a sweep through on made-up prices, stands above it, in MONEY.
    "COST": (("cost",),),
    # What a run is asked may be tasks: they know vectors only, and stand before the training that asks them.
    "TASKS": (("tasks",), ("probes",)),
    "LEARN": (
        ("validation",),
        ("run", "preemption", "autoscaling"),
        ("material",),
        ("trainer",),
        ("train", "search_space"),
        ("spread",),
        ("sweep",),
    ),
    # Analyses judge models and read what runs wrote; the report only shows what they kept.
    "JUDGE": (("evaluate",), ("ensemble",), ("neighbours", "image_ranking", "analyses"), ("report",)),
    "MONEY": (("cloud",),),
    "HANDOVER": (("export",), ("cli",), ("__main__",)),
}
ROWS = tuple(row for rows in LAYERS.values() for row in rows)
HEIGHT = {room: height for height, row in enumerate(ROWS) for room in row}

# A library on the left is imported only by the rooms on the right.
LIBRARIES: dict[str, frozenset[str]] = {
    "ray": frozenset({"preemption", "autoscaling", "train", "spread", "sweep", "cloud"}),
    "optuna": frozenset({"sweep"}),
    "boto3": frozenset({"cloud", "artifacts"}),
    "botocore": frozenset({"cloud", "artifacts"}),
    "sklearn": frozenset({"codes", "probes", *(room for row in LAYERS["JUDGE"] for room in row)}),
    "typer": frozenset({"cli"}),
    "rich": frozenset({"cli"}),
}

# Where own modules may be imported inside a function, and why; each such line says so in a comment.
LATE = {
    "raysent": "importing raysent for its version must not import torch",
    "raysent.cli.analyse_app": "asking for help must not import torch and Ray",
    "raysent.cli.options": "asking for help must not import torch and Ray",
    "raysent.cli.cluster_app": "asking for help must not import torch and Ray",
    "raysent.cli.cost_app": "asking for help must not import torch and Ray",
    "raysent.cli.judge_app": "asking for help must not import torch and Ray",
    "raysent.cli.model_app": "asking for help must not import torch and Ray",
    "raysent.cli.retrieval_app": "asking for help must not import torch and Ray",
    "raysent.cli.sweep_app": "asking for help must not import torch and Ray",
}


@dataclass(frozen=True)
class Import:
    """One import statement's target, by dotted name, and whether it stands inside a function."""

    module: str
    target: str
    line: int
    is_late: bool

    def __str__(self) -> str:
        """Return it as `module:line imports target`."""
        return f"{self.module}:{self.line} imports {self.target}"


def sources() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room(module: str) -> str:
    """Return the module's room: the name directly under the package; empty for the package's own file."""
    return module.split(".")[1] if "." in module else ""


def imports_in(module: str, tree: ast.AST, modules: set[str], *, is_late: bool = False) -> Iterator[Import]:
    """Yield the imports below a node; `from package import module` counts as importing the module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(module, alias.name, node.lineno, is_late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute"
            names = {f"{source}.{alias.name}" for alias in node.names}
            targets = {name if name in modules else source for name in names}
            yield from (Import(module, target, node.lineno, is_late) for target in sorted(targets))
        else:
            inside = is_late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_in(module, node, modules, is_late=inside)


def all_imports() -> list[Import]:
    """Return every import of every module."""
    modules = sources()
    trees = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in modules.items()}
    return [found for module, tree in trees.items() for found in imports_in(module, tree, set(modules))]


def own_imports() -> list[Import]:
    """Return the imports from one module of the package to another."""
    return [found for found in all_imports() if found.target.split(".")[0] == "raysent"]


def test_walls_name_every_room() -> None:
    """Every module and folder of the package has its place in the table."""
    rooms = {room(module) for module in sources()} - {""}
    assert rooms <= set(HEIGHT), f"no row for {sorted(rooms - set(HEIGHT))}"


def test_walls_no_import_upward_or_sideways() -> None:
    """A room imports only from rows above its own."""
    crossing = [
        str(found)
        for found in own_imports()
        if room(found.module)
        and room(found.target)
        and room(found.module) != room(found.target)
        and HEIGHT[room(found.target)] >= HEIGHT[room(found.module)]
    ]
    assert crossing == []


def test_walls_nothing_below_reads_the_packages_own_file_for_a_room() -> None:
    """From `raysent` itself only the version is taken, so that no room is reached through the front door."""
    names = [
        f"{module}: {alias.name}"
        for module, path in sources().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "raysent" and room(module)
        for alias in node.names
        if f"raysent.{alias.name}" not in sources() and alias.name != "__version__"
    ]
    assert names == []


def test_walls_no_cycle_between_modules() -> None:
    """Modules can be put in an order in which each needs only those before it."""
    graph: dict[str, set[str]] = {module: set() for module in sources()}
    for found in own_imports():
        # A module of a folder may name its folder's public names only through the modules that hold them.
        if found.target not in ("raysent", found.module):
            graph[found.module].add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"cycle: {' -> '.join(error.args[1])}") from None


def test_walls_libraries_stay_in_their_rooms() -> None:
    """Ray, Optuna, boto3, scikit-learn and the terminal are each known to few rooms."""
    strays = [
        str(found)
        for found in all_imports()
        if room(found.module) not in LIBRARIES.get(found.target.split(".")[0], {room(found.module)})
    ]
    assert strays == []


def test_walls_only_the_command_line_prints() -> None:
    """`print` and writing to the standard streams belong to the command line."""
    prints = [
        f"{module}:{node.lineno}"
        for module, path in sources().items()
        if room(module) != "cli"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write")
    ]
    assert prints == []


def test_walls_own_modules_are_imported_at_the_top() -> None:
    """No import of an own module hides inside a function, but where the table says why and the line does too."""
    modules = sources()
    lines = {module: path.read_text(encoding="utf-8").splitlines() for module, path in modules.items()}
    late = [found for found in own_imports() if found.is_late]
    assert [str(found) for found in late if found.module not in LATE] == []
    assert [str(found) for found in late if "  # " not in lines[found.module][found.line - 1]] == []
