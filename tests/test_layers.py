"""The layers: which module may import which, read from the sources themselves."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "raysent"

# From the ground up. A package (a module or a folder directly under raysent/) imports only from rows above its own;
# two packages of one row do not import each other.
ROWS: tuple[tuple[str, ...], ...] = (
    ("redaction",),
    ("docstrings", "errors", "platforms", "progress"),
    ("reading", "registry", "parallel", "ray_private", "screen"),
    ("config", "storage", "preemption"),
    ("cost", "kernels"),
    ("data",),
    ("models",),
    ("evaluation",),
    ("ensembles",),
    ("training",),
    ("sweeps",),
    ("live",),
    ("report",),
    ("pipeline",),
    ("cli",),
    ("__main__",),
    # Wings: found by entry points, and imported by nothing below, nor by each other.
    ("cluster", "exports", "integrations", "passages", "reproduction", "serving"),
)
# `kernels.compiled` is a wing inside a package of the core.
WINGS = (*(f"raysent.{name}" for name in ROWS[-1]), "raysent.kernels.compiled")
HEIGHT = {package: height for height, row in enumerate(ROWS) for package in row}

# A library on the left is imported only by the packages on the right.
LIBRARIES: dict[str, frozenset[str]] = {
    "ray": frozenset({"ray_private", "preemption", "training", "sweeps", "cluster"}),
    "optuna": frozenset({"sweeps", "pipeline"}),
    "boto3": frozenset({"cluster", "storage"}),
    "botocore": frozenset({"cluster", "storage"}),
    "sklearn": frozenset({"models", "evaluation", "ensembles", "reproduction"}),
    "typer": frozenset({"cli", "cluster", "exports", "passages", "reproduction", "serving"}),
    "rich": frozenset({"models", "cli", "live", "progress"}),
}

# Where own modules may be imported inside a function: asking for help, and predicting by words alone, must not import
# torch and Ray, and modules that need the libraries of an extra are imported once it is known that they are installed.
LATE = (
    "raysent.cli",
    "raysent.pipeline",
    "raysent.ensembles.task_predictor",
    "raysent.evaluation.baselines",
    "raysent.evaluation.members",
    "raysent.evaluation.refit",
    "raysent.evaluation.titles",
    "raysent.models.schemes",
    "raysent.models.sentence_encoder",
    "raysent.serving.server",
    "raysent.exports.formats.sentence_transformers",
    "raysent.models.hub",
    "raysent.models.static",
)

# What the command line imports of the package: the public API, packages' public names, the ground, and its own printing.
_GROUND = (
    "raysent.docstrings",
    "raysent.errors",
    "raysent.config",
    "raysent.platforms",
    "raysent.progress",
    "raysent.redaction",
    "raysent.registry",
    "raysent.screen",
    "raysent.live",
)
OPEN_MODULES = ("raysent", *_GROUND, "raysent.pipeline")


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


@cache
def sources() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def package_of(module: str) -> str:
    """Return the module's package: the name directly under the package; empty for the package's own file."""
    return module.split(".")[1] if "." in module else ""


def imports_in(
    module: str, tree: ast.AST, modules: set[str], *, is_late: bool = False
) -> Iterator[Import]:
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
            inside = is_late or isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
            )
            yield from imports_in(module, node, modules, is_late=inside)


@cache
def all_imports() -> list[Import]:
    """Return every import of every module."""
    modules = sources()
    trees = {
        module: ast.parse(path.read_text(encoding="utf-8")) for module, path in modules.items()
    }
    return [
        found for module, tree in trees.items() for found in imports_in(module, tree, set(modules))
    ]


def own_imports() -> list[Import]:
    """Return the imports from one module of the package to another."""
    return [found for found in all_imports() if found.target.split(".")[0] == "raysent"]


def wing_of(name: str) -> str:
    """Return the wing that a module is part of, or that a text names; empty for the core."""
    return next(
        (wing for wing in WINGS if name == wing or name.startswith((f"{wing}.", f"{wing}:"))), ""
    )


def test_layers_name_every_package_of() -> None:
    """Every module and folder of the package has its place in the table."""
    packages = {package_of(module) for module in sources()} - {""}
    assert packages <= set(HEIGHT), f"no row for {sorted(packages - set(HEIGHT))}"


def test_layers_no_import_upward_or_sideways() -> None:
    """A package imports only from rows above its own."""
    crossing = [
        str(found)
        for found in own_imports()
        if package_of(found.module)
        and package_of(found.target)
        and package_of(found.module) != package_of(found.target)
        and not (wing_of(found.module) and wing_of(found.target))
        and HEIGHT[package_of(found.target)] >= HEIGHT[package_of(found.module)]
    ]
    assert crossing == []


def test_layers_nothing_below_reads_the_packages_own_file_for_a_package_of() -> None:
    """From `raysent` itself only the version is taken, so that no package is reached through the front door."""
    names = [
        f"{module}: {alias.name}"
        for module, path in sources().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "raysent" and package_of(module)
        for alias in node.names
        if f"raysent.{alias.name}" not in sources() and alias.name != "__version__"
    ]
    assert names == []


def test_layers_the_core_imports_no_wing() -> None:
    """Wings are found by entry points; so the core is whole without each of them."""
    crossing = [
        str(found) for found in own_imports() if wing_of(found.target) and not wing_of(found.module)
    ]
    assert crossing == []


def test_layers_no_string_names_a_wing() -> None:
    """Neither does the core import one by its name; nor do its stubs, but for that of all names for type checkers."""
    naming = [
        f"{module}:{node.lineno} {node.value}"
        for module, path in sources().items()
        if not wing_of(module)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and wing_of(node.value)
    ]
    stubs = set(PACKAGE.rglob("*.pyi")) - {PACKAGE / "__init__.pyi"}
    for path in stubs:
        package = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
        targets = [
            f"{package}.{node.module}"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom)
        ]
        if not wing_of(package):
            naming += [f"{path.name} of {package}: {name}" for name in targets if wing_of(name)]
    assert naming == []


def test_layers_no_string_names_a_module() -> None:
    """What a package finds of one above it, it finds by the entry points of pyproject.toml."""
    naming = [
        f"{module}:{node.lineno} {node.value}"
        for module, path in sources().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and "." in node.value
        and node.value.partition(":")[0] in sources()
    ]
    assert naming == []


def test_layers_wings_import_each_other_for_types_alone() -> None:
    """Each can be left out without the others; what one needs of another it takes from `raysent` itself."""
    crossing = []
    for module, path in sources().items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        blocks = [
            node
            for node in tree.body
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ]
        tree.body = [node for node in tree.body if node not in blocks]
        crossing += [
            str(found)
            for found in imports_in(module, tree, set(sources()))
            if wing_of(module) and wing_of(found.target) not in ("", wing_of(module))
        ]
    assert crossing == []


def test_layers_no_cycle_between_modules() -> None:
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


def test_layers_libraries_stay_in_their_packages() -> None:
    """Ray, Optuna, boto3, scikit-learn and the terminal are each known to few packages."""
    strays = [
        str(found)
        for found in all_imports()
        if package_of(found.module)
        not in LIBRARIES.get(found.target.split(".")[0], {package_of(found.module)})
    ]
    assert strays == []


def test_layers_only_the_command_line_prints() -> None:
    """`print` and writing to the standard streams belong to the command line."""
    prints = [
        f"{module}:{node.lineno}"
        for module, path in sources().items()
        if package_of(module) != "cli"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write")
    ]
    assert prints == []


def test_layers_own_modules_are_imported_at_the_top() -> None:
    """No import of an own module is inside a function, except in commands, and of the cloud for sweeps that need it."""
    late = [found for found in own_imports() if found.is_late]
    strays = [str(found) for found in late if not found.module.startswith(LATE)]
    assert strays == []


def test_layers_the_command_line_uses_public_names_alone() -> None:
    """Commands import what `__all__` lists of the package and its packages, and nothing of their modules."""
    private = []
    for module, path in sources().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                package_of(module) != "cli"
                or not isinstance(node, ast.ImportFrom)
                or node.module is None
            ):
                continue
            if not node.module.startswith("raysent") or package_of(node.module) == "cli":
                continue
            is_open = node.module in OPEN_MODULES or sources()[node.module].name == "__init__.py"
            public = {
                *getattr(importlib.import_module(node.module), "__all__", ()),
                "pipeline",
                "cli",
            }
            names = [alias.name for alias in node.names]
            if not is_open or (node.module not in _GROUND and not public.issuperset(names)):
                private.append(f"{module}:{node.lineno} imports {names} of {node.module}")
    assert private == []


def test_names_of_ray_that_are_no_part_of_its_api_are_in_one_file() -> None:
    """A new version of Ray is looked at there; each name has its reason."""
    private = ("ray._private", "ray._raylet", "autoscaler._private", "train.v2._internal")
    using = {
        module: [name for name in private if name in path.read_text(encoding="utf-8")]
        for module, path in sources().items()
    }
    assert [module for module, names in using.items() if names] == ["raysent.ray_private"]
