"""Docstrings, which help and settings are made from: of objects, or of their sources where Python has dropped them.

``python -OO`` and ``PYTHONOPTIMIZE=2`` leave no docstring in memory.
"""

from __future__ import annotations

import ast
import inspect
import textwrap


def docstring_of(documented: object) -> str:
    """Return the docstring of a class, a function or a module, without indentation; empty if it has none."""
    if __doc__ is not None:
        return inspect.getdoc(documented) or ""
    # What is in memory now was written by Python, as a data class's docstring is where it has none.
    if not (
        inspect.isclass(documented) or inspect.isroutine(documented) or inspect.ismodule(documented)
    ):
        documented = type(documented)
    try:
        source = textwrap.dedent(inspect.getsource(documented))
    except (OSError, TypeError):
        # Compiled modules have no source, and keep their docstrings.
        return inspect.getdoc(documented) or ""
    tree = ast.parse(source)
    node = tree if inspect.ismodule(documented) else tree.body[0]
    is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    return ast.get_docstring(node) or "" if is_documented else ""
