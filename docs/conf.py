"""Sphinx: the documentation site. `make docs` builds it into build/docs, without a network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import raysent

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

from generate import command_reference, configuration_reference, entry_point_reference  # noqa: E402
from rooms import rooms_page  # noqa: E402

project = "raysent"
author = "the raysent authors"
release = version = raysent.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["README.md"]
html_theme = "furo"
html_title = f"raysent {release}"
html_show_sphinx = False
html_copy_source = False
# Furo takes the fonts of the reader's system, and nothing from the network.
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# A reader copies `--set` from prose too, which must not become a dash there.
smartquotes = False

# Docstrings are Google style; a name in single backticks is code.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Source", "returns_style"), ("Differs", "returns_style")]
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "model_config, model_post_init"}
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
napoleon_use_ivar = True
napoleon_use_rtype = False
python_use_unqualified_type_names = True
copybutton_prompt_text = "$ "

GENERATED = {
    "commands.md": command_reference,
    "configuration.md": configuration_reference,
    "entry_points.md": entry_point_reference,
    "rooms.md": rooms_page,
}
# How Sphinx writes `npt.NDArray` and `npt.ArrayLike`.
_ARRAY = r"~numpy\.ndarray\[tuple\[~typing\.Any, \.\.\.\], ~numpy\.dtype\[~\w+\.(\w+)\]\]"
_ARRAY_LIKE = (
    r"~numpy\._typing\._array_like\._Buffer \|.*?_NestedSequence\[complex \| bytes \| str\]"
)


def write_generated_pages(_: Sphinx) -> None:
    """Write the pages that are made from the code; a page that is already so stays untouched."""
    folder = FOLDER / "reference"
    for name, make in GENERATED.items():
        page, text = folder / name, make()
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def shorten_arrays(*given: Any) -> tuple[str | None, str | None]:
    """Return a signature, the last two of what autodoc gives, with NumPy's types as they are written in the code."""
    signature, returned = (None if text is None else _shortened(text) for text in given[-2:])
    return signature, returned


def _shortened(text: str) -> str:
    return re.sub(_ARRAY, r"NDArray[\1]", re.sub(_ARRAY_LIKE, "ArrayLike", text))


def setup(app: Sphinx) -> None:
    """Have the generated pages written before Sphinx looks for pages."""
    app.connect("builder-inited", write_generated_pages)
    app.connect("autodoc-process-signature", shorten_arrays)
