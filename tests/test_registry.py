"""The registry: components of a folder, and of other installed packages' entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest

from raysent.errors import ConfigError
from raysent.registry import AnyOf, Registry, by_table, by_type

MODULE = '''"""{summary}"""
from typing import Literal
from raysent.config import StrictModel

class Config(StrictModel):
    type: Literal["{name}"] = "{name}"
    size: int = 1
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of one component, `round`, on the path, and forgotten afterwards."""
    package = tmp_path / "shapes"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "round_one.py").write_text(MODULE.format(summary="A round shape.", name="round"))
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.split(".")[0] in {"shapes", "squares"}]:
        del sys.modules[name]


def install(folder: Path, source: str, entry_points: str, *, name: str = "squares") -> None:
    """Write a distribution that is found like an installed one: a module, and metadata with entry points."""
    place = folder.parent
    (place / f"{name}.py").write_text(source)
    metadata = place / f"{name}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(f"[raysent.shapes]\n{entry_points}\n")


def shapes(folder: Path) -> Registry:
    """The registry of the folder, and of the group `raysent.shapes`."""
    return Registry("shape", package="shapes", folders=[str(folder)], read=by_type)


def test_registry_finds_the_modules_of_its_folder(folder: Path) -> None:
    """By the name that their `type` gives, not by that of the file."""
    registry = shapes(folder)
    assert list(registry) == ["round"]
    assert registry["round"].Config().size == 1
    [component] = registry.components()
    assert (component.package, component.module) == ("raysent", "shapes.round_one")
    assert component.summary == "A round shape."


def test_registry_imports_nothing_before_it_is_read(folder: Path) -> None:
    """A module that fails does so when a component is asked for."""
    (folder / "broken.py").write_text("raise RuntimeError('read')")
    registry = shapes(folder)
    with pytest.raises(RuntimeError, match="read"):
        list(registry)


def test_registry_by_file_imports_only_the_file_that_is_looked_up(folder: Path) -> None:
    """A name without a file is unknown at once; one of an entry point is found; a list has all."""
    (folder / "flat.py").write_text(MODULE.format(summary="A flat shape.", name="flat"))
    (folder / "slow.py").write_text(MODULE.format(summary="A slow shape.", name="slow"))

    def by_file() -> Registry:
        return Registry(
            "shape", package="shapes", folders=[str(folder)], read=by_type, is_by_file=True
        )

    registry = by_file()
    assert registry["flat"].Config().size == 1
    assert "round" not in registry
    assert not {"shapes.slow", "shapes.round_one"} & sys.modules.keys()
    install(folder, MODULE.format(summary="A square.", name="square"), "square = squares")
    assert by_file()["square"].Config().size == 1
    assert list(by_file()) == ["flat", "round", "slow", "square"]


def test_registry_finds_entry_points_of_other_distributions(folder: Path) -> None:
    """After those of the folder, with the package and version that they come from."""
    install(folder, MODULE.format(summary="A square.", name="square"), "square = squares")
    registry = shapes(folder)
    assert list(registry) == ["round", "square"]
    component = registry.components()[1]
    assert (component.name, component.package, component.module) == (
        "square",
        "squares 1.2",
        "squares",
    )
    assert registry.find("square") is registry["square"]
    assert not registry.broken


def test_registry_keeps_what_it_has_where_an_entry_point_has_the_same_name(folder: Path) -> None:
    """The clash is recorded with both packages."""
    install(folder, MODULE.format(summary="Another.", name="round"), "round = squares")
    registry = shapes(folder)
    assert registry["round"].__name__ == "shapes.round_one"
    assert registry.broken == {"round": "is defined by raysent already, and again by squares 1.2"}


@pytest.mark.parametrize(
    ("source", "entry", "reason"),
    [
        (
            "import nowhere_to_be_found",
            "square = squares",
            "ModuleNotFoundError: No module named 'nowhere_to_be_found'",
        ),
        ("raise RuntimeError('no\\nGPU')", "square = squares", "RuntimeError: no GPU"),
        ("raise SystemExit('no license')", "square = squares", "SystemExit: no license"),
        (
            "",
            "square = squares:Missing",
            "AttributeError: module 'squares' has no attribute 'Missing'",
        ),
        (
            "",
            "square = squares",
            "ConfigError: squares: must define class Config with type: Literal[",
        ),
    ],
)
def test_registry_tells_why_an_entry_point_is_broken(
    folder: Path, source: str, entry: str, reason: str
) -> None:
    """Others still work; who asks for the broken one gets one line."""
    install(folder, source, entry)
    registry = shapes(folder)
    assert list(registry) == ["round"]
    with pytest.raises(ConfigError) as caught:
        registry.find("square")
    message = str(caught.value)
    assert message.startswith(f"shape square: cannot be loaded from squares 1.2: {reason}")
    assert "\n" not in message


def test_an_unknown_name_may_be_that_of_an_entry_point_that_fails(folder: Path) -> None:
    """Entry points have names of their own, so what fails is named where a name is looked up or selects a `Config`."""
    install(folder, "import nowhere_to_be_found", "mine = squares")
    registry = shapes(folder)
    failure = (
        "entry point mine cannot be loaded from squares 1.2: ModuleNotFoundError: No module named"
    )
    with pytest.raises(
        ConfigError, match=rf"^shape square: unknown shape; known: round; {failure}"
    ):
        registry.find("square")
    adapter = pydantic.TypeAdapter(Annotated[Any, AnyOf(registry)])
    with pytest.raises(
        pydantic.ValidationError, match=rf"type square is unknown; known: round; {failure}"
    ):
        adapter.validate_python({"type": "square"})


def test_registry_names_the_nearest_of_an_unknown_name(folder: Path) -> None:
    """Also names that stand for something else; the place of the mistake may be given."""
    with pytest.raises(ConfigError, match=r"^shape rund: unknown shape; did you mean 'round'\?"):
        shapes(folder).find("rund")
    with pytest.raises(ConfigError, match=r"^--shape al: unknown shape; did you mean 'all'\?"):
        shapes(folder).find("al", where="--shape al", others=["all"])


def test_registry_looks_again_after_a_refresh(folder: Path) -> None:
    """A package that is installed while a program runs is found then."""
    registry = shapes(folder)
    assert list(registry) == ["round"]
    install(folder, MODULE.format(summary="A square.", name="square"), "square = squares")
    assert list(registry) == ["round"]
    registry.refresh()
    assert list(registry) == ["round", "square"]


def test_by_table_reads_a_mapping_of_components() -> None:
    """What a module holds under the attribute, or one line that says that it holds none."""
    read = by_table("METHODS")

    class Module:
        METHODS = {"mean": 1}  # noqa: RUF012 - as a module has it

    assert read(Module) == {"mean": 1}
    with pytest.raises(ConfigError, match="must define METHODS, a mapping by name"):
        read(object())


def test_any_of_tells_configurations_apart_by_type(folder: Path) -> None:
    """Whether there are several or one."""
    one = pydantic.TypeAdapter(Annotated[Any, AnyOf(shapes(folder))])
    assert one.validate_python({"type": "round", "size": 3}).size == 3
    install(folder, MODULE.format(summary="A square.", name="square"), "square = squares")
    both = pydantic.TypeAdapter(Annotated[Any, AnyOf(shapes(folder))])
    assert both.validate_python({"type": "square"}).type == "square"


def test_any_of_tells_why_a_type_cannot_be_loaded(folder: Path) -> None:
    """A configuration that names an encoder of a broken package says so, not that the type is unknown."""
    install(folder, "import nowhere_to_be_found", "square = squares")
    with pytest.raises(
        pydantic.ValidationError,
        match=r"type square cannot be loaded from squares 1\.2: ModuleNotFound",
    ):
        pydantic.TypeAdapter(Annotated[Any, AnyOf(shapes(folder))]).validate_python(
            {"type": "square"}
        )
