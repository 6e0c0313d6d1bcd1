"""Docstrings -> sentences of English prose.

A docstring is split into paragraphs, then into sentences, without the markup of reStructuredText, numpydoc and Google
style. Doctests, code, tables, signatures, references, formulas, headings, and any line that is not an English sentence
(`is_prose`) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from raysent.data.sentences import split_sentences

_UNDERLINE = re.compile(r"([-=~^\"'*+#`_.])\1{2,}\s*$")
_TABLE = re.compile(r"\s*(?:[=+|-]{2,}(?:\s+[=+|-]{2,})+\s*$|\+[-=+]+\+|\|)")
_DIRECTIVE = re.compile(r"\s*\.\.(?:\s|$)")
_KEPT_DIRECTIVE = re.compile(r"\s*\.\. (?:note|warning|tip|important|attention|caution|hint)::\s*")
_BULLET = re.compile(r"^\s*(?:[-*+•]|\(?(?:\d{1,2}|[a-z])[.)])\s+")
_FIELD = re.compile(r"^\s*:(?:param|return|raise|type|rtype|arg|keyword|key|ivar|var|yield)s?\b[^:]*:\s*")
# "name (type): ", "name : type", "*args:" and similar, up to the description.
_ENTRY = re.compile(r"[*`\w.\[\]'\"]+(?:, [*`\w.]+)*(?:\s*\([^()]*(?:\([^()]*\)[^()]*)*\))?:\s+(?=[A-Z`])")
_SKIPPED_SECTIONS = frozenset({"see also", "references", "reference", "methods", "signature", "usage", "copyright"})

_MARKUP = (
    (re.compile(r"\\ "), ""),
    (re.compile(r":math:`[^`]*`|\$[^$]+\$"), "\\\\"),  # a formula: `is_prose` rejects the backslash
    (re.compile(r"\s?\[[\w.#*-]+\]_"), ""),
    (re.compile(r"(?::[\w+:-]+:)?`([^`<]+?)\s*<[^`>]*>`_{0,2}"), r"\1"),
    (re.compile(r":[\w+:-]+:`(?:~(?:[\w.]*\.)?|_\w+\.|[!.])?([^`]+)`"), r"\1"),
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),
    (re.compile(r"``(.+?)``"), r"\1"),
    (re.compile(r"`([^`]+)`_{0,2}"), r"\1"),
    (re.compile(r"\*\*(\S(?:[^*]*\S)?)\*\*"), r"\1"),
    (re.compile(r"(?<![\w*])\*(\S(?:[^*]*\S)?)\*(?![\w*])"), r"\1"),
    (re.compile(r"::(?=\s|$)"), ":"),
)  # fmt: skip

_MARKED = re.compile(r"[`*$\[\\]|::")
_END = re.compile(r"[.!?][\"')\]]*$")
_START = re.compile(r"[\"'(]?[A-Z]")
_WORD = re.compile(r"[A-Za-z]+(?:[-'][A-Za-z]+)*[,;:.!?)\"']*$")
_NOT_PROSE = re.compile(
    r"https?:|www\.|[\\{}<>|=@~^]|>>>|\.\.\.|--\w|\w\(\w|::|%\w|%\(|`|\[[^\]]*[,:][^\]]*\]|[^\x00-\x7f‘’“”–—é]|Copyright"
)
# An English sentence contains some of these words; a list of names does not.
_FUNCTION_WORDS = """
the a an of to in on at for from by with as is are was were be been has have had do does can may must should will would
and or but not if when that which this these it its you we they there so than then into all any each no only such where
while because
"""
_IS_FUNCTION_WORD = frozenset(_FUNCTION_WORDS.split()).__contains__
_MIN_CHARACTERS = 20
_MIN_WORDS, _MAX_WORDS = 5, 60


def paragraphs(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring that may be prose, each as one line with its markup."""
    if len(docstring) < _MIN_CHARACTERS:
        return
    yield from (block for block in _blocks(docstring.expandtabs().split("\n")) if len(block) >= _MIN_CHARACTERS)


def prose_sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph that are prose, in order, without markup."""
    if _MARKED.search(paragraph):
        for pattern, replacement in _MARKUP:
            paragraph = pattern.sub(replacement, paragraph)
    return [sentence for sentence in split_sentences(" ".join(paragraph.split())) if is_prose(sentence)]


def is_prose(sentence: str) -> bool:
    """Return whether a line is an English sentence rather than code, a heading or a list of names."""
    words = sentence.split()
    if not _MIN_WORDS <= len(words) <= _MAX_WORDS or not _END.search(sentence) or not _START.match(sentence):
        return False
    if _NOT_PROSE.search(sentence):
        return False
    num_function_words = sum(_IS_FUNCTION_WORD(word.strip("(,;:").lower()) for word in words)
    num_plain = sum(bool(_WORD.match(word.lstrip("(\"'"))) for word in words)
    return num_function_words >= max(2, 0.15 * len(words)) and num_plain >= 0.8 * len(words)


def _blocks(lines: list[str]) -> Iterator[str]:
    block: list[str] = []
    for line in [*_text_lines(lines), ""]:
        starts_item = bool(_BULLET.match(line) or _FIELD.match(line) or _ENTRY.match(line.strip()))
        # The description of an entry is indented below its name, so another indentation starts another paragraph.
        is_reindented = bool(block) and _indent(line) != _indent(block[-1]) and not _BULLET.match(block[0])
        if block and (not line.strip() or starts_item or is_reindented):
            yield _joined(block)
            block = []
        if line.strip():
            block.append(line)


def _joined(block: list[str]) -> str:
    first = _FIELD.sub("", _BULLET.sub("", block[0], count=1), count=1).strip()
    first = _ENTRY.sub("", first, count=1) if _ENTRY.match(first) else first
    return " ".join([first, *(line.strip() for line in block[1:])])


def _text_lines(lines: list[str]) -> Iterator[str]:
    """Yield the lines outside of code, tables, directives, headings and sections without prose."""
    skip_deeper: int | None = None  # lines indented deeper than this belong to a block that is left out
    in_doctest = in_skipped_section = False
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if not line.strip():
            in_doctest = False
            yield ""
            continue
        if skip_deeper is not None and _indent(line) > skip_deeper:
            continue
        skip_deeper = None
        if _is_heading(line, following):
            in_skipped_section = line.strip().rstrip(":").lower() in _SKIPPED_SECTIONS
            yield ""
            continue
        in_doctest = in_doctest or line.lstrip().startswith((">>>", "In [", "$ "))
        if in_doctest or in_skipped_section or _UNDERLINE.match(line.strip()) or _TABLE.match(line):
            continue
        if _DIRECTIVE.match(line):
            kept = _KEPT_DIRECTIVE.match(line)
            if not kept:
                skip_deeper = _indent(line)
                continue
            yield line[kept.end() :]
            continue
        if line.rstrip().endswith("::"):
            skip_deeper = _indent(line)
        yield line


def _is_heading(line: str, following: str) -> bool:
    """Return whether a line is underlined, or is a Google-style heading such as ``Args:``."""
    text = line.strip()
    is_underlined = bool(_UNDERLINE.match(following.strip())) and len(following.strip()) >= min(len(text), 4)
    return is_underlined or (text.endswith(":") and text[:-1].replace(" ", "").isalpha() and len(text.split()) <= 2)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
