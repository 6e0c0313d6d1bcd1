"""Markdown and HTML -> paragraphs of plain text.

Markdown is rendered to HTML by `markdown-it-py` (CommonMark with tables), and HTML is parsed by `selectolax`,
which repairs it as browsers do.
Headings, paragraphs, list items, quotations and cells of tables without a header are paragraphs. Left out: the head,
scripts, styles, navigation, controls, code blocks, tables with a header (numbers and names, not sentences), and the
front matter of Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from raysent.errors import ConfigError

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from selectolax.lexbor import LexborNode

_LEFT_OUT = frozenset({
    "head", "script", "style", "template", "noscript", "nav", "pre", "svg", "math", "iframe", "object", "canvas",
    "audio", "video", "button", "select", "textarea", "datalist", "dialog",
})  # fmt: skip
# Elements whose text is part of the paragraph around them; any other one begins and ends a paragraph.
_INLINE = frozenset({
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "img",
    "ins", "kbd", "label", "mark", "q", "ruby", "rb", "s", "samp", "small", "span", "strike", "strong", "sub", "sup",
    "time", "tt", "u", "var", "wbr",
})  # fmt: skip
_BREAK = "\n\n"
_EMPTY_LINE = re.compile(r"\n\s*\n")
_WHITE_SPACE = re.compile(r"\s+")
_FRONT_MATTER = re.compile(
    r"\A---[ \t]*\r?\n.*?^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)


def markup_version() -> str:
    """Return a part of every cache key of such a file, which changes whenever the same file gives other paragraphs.

    Raises:
        ConfigError: If the packages that read markup are not installed.
    """
    try:
        return f"1-selectolax-{version('selectolax')}-markdown-it-py-{version('markdown-it-py')}"
    except PackageNotFoundError as error:
        raise ConfigError(
            f"Markdown and HTML: need the package {error.name}; install raysent[markup]"
        ) from None


def markdown_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a Markdown document, each as one line."""
    return html_paragraphs(_markdown().render(_FRONT_MATTER.sub("", text, count=1)))


def html_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of an HTML document, each as one line."""
    from selectolax.lexbor import LexborHTMLParser  # noqa: PLC0415 - only such files need it

    root = LexborHTMLParser(text).root
    # Two line breaks in a row end a paragraph, as old pages write it.
    paragraphs = _EMPTY_LINE.split("" if root is None else "".join(_texts(root)))
    return [line for line in (" ".join(paragraph.split()) for paragraph in paragraphs) if line]


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - only such files need it

    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def _texts(root: LexborNode) -> Iterator[str]:
    """Yield the text of a document in order, with an empty line wherever a paragraph begins or ends."""
    # A stack instead of recursion: a page may be nested deeper than Python recurses.
    waiting: list[LexborNode | str] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            yield node
        elif node.is_text_node:
            # Line breaks of the file are white space.
            yield _WHITE_SPACE.sub(" ", node.text_content or "")
        elif node.tag == "br":
            yield "\n"
        elif node.is_element_node:
            edge = "" if node.tag in _INLINE else _BREAK
            yield edge
            if not (
                node.tag in _LEFT_OUT or (node.tag == "table" and node.css_first("th") is not None)
            ):
                waiting.append(edge)
                waiting += reversed(list(node.iter(include_text=True)))
