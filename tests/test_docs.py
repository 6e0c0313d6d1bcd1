"""The documentation: the generated pages describe every setting and every command, and pages link to what exists."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Return the generated pages by name."""
    sys.path.insert(0, str(DOCS))
    try:
        import generate
        import rooms
    finally:
        sys.path.remove(str(DOCS))
    return {
        "configuration": generate.configuration_reference(),
        "commands": generate.command_reference(),
        "entry points": generate.entry_point_reference(),
        "rooms": rooms.rooms_page(),
    }


@pytest.mark.parametrize("page", ["configuration", "commands"])
def test_reference_describes_every_entry(pages, page):
    """No setting and no option is without a description."""
    assert re.findall(r"^(.*)\n: —", pages[page], re.MULTILINE) == []


def test_configuration_reference_holds_settings_of_every_kind(pages):
    """Top level, section, component, and a field that a component inherits; types, bounds and defaults in words."""
    text = pages["configuration"]
    assert "### encoder: gru\n" in text
    assert "`learning_rate`: number > 0, default `0.0005`" in text
    assert "### limits.sampler\n" in text
    assert "## One task of a task file\n" in text
    assert len(re.findall(r"^### encoder: \w+$", text, re.MULTILINE)) >= 6


def test_configuration_reference_links_to_its_own_sections(pages):
    """Every link names an anchor of the page."""
    text = pages["configuration"]
    anchors = set(re.findall(r"^\((setting-[\w-]+)\)=$", text, re.MULTILINE))
    assert anchors
    assert set(re.findall(r"\]\(#(setting-[\w-]+)\)", text)) <= anchors


def test_command_reference_holds_commands_of_groups(pages):
    """A command of a group stands under its group's name, with its options."""
    assert "### raysent cluster up\n" in pages["commands"]
    assert "`--budget 40usd`\n: " in pages["commands"]


def without_code(page: str) -> str:
    """Return a page's prose: no code blocks and no code in a line."""
    blocks = re.compile(r"^(`{3,}|:{3,}).*?^\1", re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`]*`", "", blocks.sub("", page))


def test_options_are_code_that_can_be_copied(pages):
    """Also settings in the help of a command; pages that are written by hand have none in their prose either."""
    assert "With `--task` alone" in pages["commands"]
    assert "`labels=[32,100]` for scores" in pages["commands"]
    assert "`keep_cluster=true`." in pages["commands"]
    written = {str(path): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    for name, page in {**pages, **written}.items():
        found = re.findall(r"(?<![\w|-])--?[a-zA-Z][\w-]+", without_code(page))
        assert found == [], name


def test_site_leaves_dashes_and_quotes_as_they_are():
    """Sphinx makes `--set` of a docstring's prose an en dash and a word otherwise."""
    pytest.importorskip("sphinx", reason="pip install raysent[docs]")
    sys.path.insert(0, str(DOCS))
    try:
        import conf
    finally:
        sys.path.remove(str(DOCS))
    assert conf.smartquotes is False


def test_entry_point_reference_lists_components(pages):
    """Each kind has its group and what is installed."""
    assert "## raysent.encoders\n" in pages["entry points"]
    assert "| `gru` | " in pages["entry points"]


def test_install_page_names_every_extra():
    """An extra that is added to the package is added to the page."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (DOCS / "install.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE) == list(
        project["optional-dependencies"]
    )


def test_pages_are_in_the_table_of_contents():
    """Every page that is written by hand is named by the index."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    names = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")} - {
        "index"
    }
    assert sorted(name for name in names if not re.search(rf"^{name}$", index, re.MULTILINE)) == []
    # The site writes pages of these names itself, over ours.
    assert not names & {"search", "genindex", "py-modindex"}


def test_page_of_rooms_has_every_room_and_what_it_imports(pages):
    """The picture is well-formed, and has a box for each row's rooms."""
    [picture] = re.findall(r"<svg.*</svg>", pages["rooms"], re.DOTALL)
    root = ElementTree.fromstring(picture)
    titles = [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "models: imports config, data" in ", ".join(titles)
    assert len(titles) == len(re.findall(r"^\| `", pages["rooms"], re.MULTILINE)) > 20


def test_page_that_follows_a_sweep_names_what_there_is():
    """Each file exists, and has the function or class that the page says."""
    page = (DOCS / "follow_one_sweep.md").read_text(encoding="utf-8")
    package = DOCS.parent / "raysent"
    files = re.findall(r"`([\w/]+/(?:\w+\.py)?)`(?::\s+`(\w+)`)?", page)
    assert len(files) > 25
    for file, name in files:
        path = package / file
        assert path.exists(), file
        if name:
            assert re.search(rf"^(def|class) {name}\b", path.read_text("utf-8"), re.MULTILINE), name


def test_page_of_interruptions_names_the_file_of_rays_private_names():
    """It is the only one that has any, which a test of the layers holds."""
    page = (DOCS / "interruptions.md").read_text(encoding="utf-8")
    [named] = re.findall(r"no part of its stable interface are in `([^`]+)`", page)
    assert (
        (DOCS.parent / named)
        .read_text(encoding="utf-8")
        .startswith('"""The names of Ray that are no part')
    )


def test_benchmarks_that_pages_name_exist():
    """Finished studies are in history; only the pages of changes name what was removed."""
    pages = [page for page in DOCS.rglob("*.md") if page.parent.name != "changes"]
    folder = DOCS.parent / "benchmarks"
    for page in [*pages, DOCS.parent / "README.md"]:
        for name in re.findall(r"python -m benchmarks\.(\w+)", page.read_text("utf-8")):
            there = (folder / f"{name}.py", folder / name / "__main__.py")
            assert any(path.is_file() for path in there), f"{page.name}: benchmarks.{name}"
