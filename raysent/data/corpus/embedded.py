"""The embedded corpus `docs`: English prose from the docstrings of raysent's own dependencies.

Docstrings are read from the source files with `ast` (nothing is imported), in a fixed order, and cached as JSON lines.
A document is a module, or a topic of Python's own help. The text and its key depend on the installed versions.

A docstring is split into paragraphs, then into sentences, without the markup of reStructuredText, numpydoc and Google
style. Doctests, code, tables, signatures, references, formulas, headings, and any line that is not an English sentence
(`is_prose`) are left out.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from raysent import storage
from raysent.data.corpus.cache import locked
from raysent.data.sentences import SPLITTING_VERSION, split_sentences
from raysent.parallel import Progress, map_in_processes, num_processes_for
from raysent.reading import parse_json
from raysent.storage import cache_folder

# Distribution -> package, in the order of the corpus. All are dependencies of raysent, direct or indirect.
LIBRARIES = {
    "python": "",
    "numpy": "numpy",
    "scipy": "scipy",
    "pandas": "pandas",
    "scikit-learn": "sklearn",
    "networkx": "networkx",
    "torch": "torch",
    "ray": "ray",
    "optuna": "optuna",
    "sqlalchemy": "sqlalchemy",
    "pydantic": "pydantic",
    "plotly": "plotly",
}
# Must change whenever the same sources give different sentences.
_EXTRACTION_VERSION = 1
# Folders of tests and of generated or vendored code. Folders whose names begin with an underscore are skipped as well,
# except NumPy's `_core`.
_SKIPPED_FOLDERS = frozenset(
    {"tests", "test", "testing", "site-packages", "dist-packages", "idlelib", "lib2to3", "turtledemo", "encodings",
     "benchmarks", "pydoc_data", "thirdparty_files", "third_party", "externals", "generated", "validators",
     "package_data"}
)  # fmt: skip
_MIN_DOCUMENT_CHARACTERS = 40
_GROUP_MODULES = 50  # modules that a process reads at a time
_NUM_FIRST_GROUPS = 2  # are read by this process: a small library needs no other
_PROCESS_BYTES = 300 << 20
_EMPTY = ast.Module(body=[], type_ignores=[])

# Lines of docstrings.
_UNDERLINE = re.compile(r"([-=~^\"'*+#`_.])\1{2,}\s*$")
_TABLE = re.compile(r"\s*(?:[=+|-]{2,}(?:\s+[=+|-]{2,})+\s*$|\+[-=+]+\+|\|)")
_DIRECTIVE = re.compile(r"\s*\.\.(?:\s|$)")
_KEPT_DIRECTIVE = re.compile(r"\s*\.\. (?:note|warning|tip|important|attention|caution|hint)::\s*")
_BULLET = re.compile(r"^\s*(?:[-*+•]|\(?(?:\d{1,2}|[a-z])[.)])\s+")
_FIELD = re.compile(
    r"^\s*:(?:param|return|raise|type|rtype|arg|keyword|key|ivar|var|yield)s?\b[^:]*:\s*"
)
# "name (type): ", "name : type", "*args:" and similar, up to the description.
_ENTRY = re.compile(
    r"[*`\w.\[\]'\"]+(?:, [*`\w.]+)*(?:\s*\([^()]*(?:\([^()]*\)[^()]*)*\))?:\s+(?=[A-Z`])"
)
_SKIPPED_SECTIONS = frozenset(
    {"see also", "references", "reference", "methods", "signature", "usage", "copyright"}
)

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
_MIN_WORDS = 5
_MAX_WORDS = 60


class DocsDocument(NamedTuple):
    """The prose of one module.

    Attributes:
        library: Name of the library.
        module: Dotted name of the module, or name of a topic of Python's help.
        sentences: The sentences in order.
    """

    library: str
    module: str
    sentences: list[str]


def docs_documents() -> Iterator[DocsDocument]:
    """Yield the documents of the corpus `docs`, in order; they are extracted on first use, then read from the cache."""
    with docs_file().open(encoding="utf-8") as stream:
        for line in stream:
            yield DocsDocument(**parse_json(line))


def docs_file(progress: Progress | None = None) -> Path:
    """Return the corpus `docs` as a file of JSON lines in the cache; it is written if it does not exist.

    Args:
        progress: Called with ``docs``, the number of sentences so far, and None, during the extraction.
    """
    cache = cache_folder()
    versions = [[name, _version(name)] for name in LIBRARIES]
    key = storage.content_key(_EXTRACTION_VERSION, SPLITTING_VERSION, versions)
    file = cache / "docs" / f"{key}.jsonl"
    if not file.is_file():
        with locked(cache, f"docs/{key}"):
            if not file.is_file():
                _write(file, extract(LIBRARIES), progress)
    return file


def _version(library: str) -> str:
    if library == "python":
        return sysconfig.get_python_version()
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def _write(file: Path, documents: Iterable[DocsDocument], progress: Progress | None) -> None:
    num_sentences = 0
    with storage.atomic_write(file) as temporary, temporary.open("w", encoding="utf-8") as stream:
        for document in documents:
            stream.write(json.dumps(document._asdict(), ensure_ascii=False) + "\n")
            num_sentences += len(document.sentences)
            if progress:
                progress("docs", num_sentences, None)


def extract(libraries: Iterable[str]) -> Iterator[DocsDocument]:
    """Yield the documents of libraries from their source files, read by several processes.

    A text or paragraph that an earlier module has is left out.
    """
    seen_texts: set[str] = set()

    def is_new(text: str) -> bool:
        if text in seen_texts:
            return False
        seen_texts.add(text)
        return True

    modules = chain.from_iterable(map(_modules, libraries))
    groups = iter(lambda: list(islice(modules, _GROUP_MODULES)), [])
    first = map(_read_modules, islice(groups, _NUM_FIRST_GROUPS))
    num_processes = num_processes_for(bytes_each=_PROCESS_BYTES)
    with closing(
        map_in_processes(_read_modules, groups, num_processes=num_processes)
    ) as later_groups:
        for module, texts in chain.from_iterable(chain(first, later_groups)):
            sentences: list[str] = []
            for text, paragraphs in texts:
                # A text that was read before has no paragraph that was not.
                if not is_new(text):
                    continue
                for paragraph, paragraph_sentences in paragraphs:
                    if is_new(paragraph):
                        sentences += paragraph_sentences
            if sentences:
                yield DocsDocument(module.library, module.name, sentences)


class _Module(NamedTuple):
    """A Python file, or a topic of Python's own help, which has its text here."""

    library: str
    name: str
    file: Path
    topic: str | None = None


# A text, and each of its paragraphs with its sentences.
_Text = tuple[str, list[tuple[str, list[str]]]]


def _read_modules(modules: Sequence[_Module]) -> list[tuple[_Module, list[_Text]]]:
    """Return the texts of modules; this takes nearly all of the time, and any process can do it."""
    read = []
    for module in modules:
        texts: Iterable[str]
        if module.topic is not None:
            texts = [module.topic]
        else:
            texts = _docstrings(module.file)
        read.append((module._replace(topic=None), [(text, _prose(text)) for text in texts]))
    return read


def _prose(text: str) -> list[tuple[str, list[str]]]:
    """Return the paragraphs of a docstring, each with its sentences."""
    return [
        (paragraph, prose_sentences(paragraph)) for paragraph in paragraphs(inspect.cleandoc(text))
    ]


def _modules(library: str) -> Iterator[_Module]:
    if library == "python":
        folder = Path(sysconfig.get_paths()["stdlib"])
        yield from _topics(folder / "pydoc_data" / "topics.py")
        parent = folder
    else:
        spec = find_spec(LIBRARIES[library])
        if spec is None or not spec.submodule_search_locations:
            return
        folder = Path(spec.submodule_search_locations[0])
        parent = folder.parent
    for file in sorted(folder.rglob("*.py")):
        path = file.relative_to(parent)
        private = {part for part in path.parts[:-1] if part.startswith("_")} - {"_core"}
        if not private and _SKIPPED_FOLDERS.isdisjoint(path.parts[:-1]):
            yield _Module(
                library, ".".join(path.with_suffix("").parts).removesuffix(".__init__"), file
            )


def _topics(file: Path) -> Iterator[_Module]:
    if not file.is_file():
        return
    for node in ast.walk(_parse(file)):
        if isinstance(node, ast.Dict):
            for name, text in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant) and isinstance(text, ast.Constant):
                    yield _Module("python", f"topics.{name.value!s}", file, str(text.value))


def _parse(file: Path) -> ast.Module:
    try:
        source = file.read_bytes()
        if b'"""' not in source and b"'''" not in source:
            return _EMPTY
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in a library do not concern the user
            return ast.parse(source)
    except (SyntaxError, ValueError, OSError):
        return _EMPTY


def _docstrings(file: Path) -> Iterator[str]:
    return (
        text
        for text in _texts(_parse(file).body)
        if len(text) >= _MIN_DOCUMENT_CHARACTERS and " " in text
    )


def _texts(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Expr | ast.Assign):
            yield from _constants(node.value)
        for name in ("body", "orelse", "finalbody"):
            yield from _texts(getattr(node, name, ()))


def _constants(value: ast.expr) -> Iterator[str]:
    """Yield the strings of an expression: itself, or the arguments of a call, as docstrings of C functions are set."""
    match value:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Call(args=arguments):
            for argument in arguments:
                yield from _constants(argument)
        case ast.Tuple(elts=expressions):
            for expression in expressions:
                yield from _constants(expression)
        case (
            ast.Attribute(value=ast.Constant(value=str(text)))
            | ast.Attribute(value=ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)))))
        ):
            yield text
        case ast.BinOp(left=left):
            yield from _constants(left)


def paragraphs(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring that may be prose, each as one line with its markup."""
    if len(docstring) < _MIN_CHARACTERS:
        return
    yield from (
        block
        for block in _blocks(docstring.expandtabs().split("\n"))
        if len(block) >= _MIN_CHARACTERS
    )


def prose_sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph that are prose, in order, without markup."""
    if _MARKED.search(paragraph):
        for pattern, replacement in _MARKUP:
            paragraph = pattern.sub(replacement, paragraph)
    return [
        sentence for sentence in split_sentences(" ".join(paragraph.split())) if is_prose(sentence)
    ]


def is_prose(sentence: str) -> bool:
    """Return whether a line is an English sentence rather than code, a heading or a list of names."""
    words = sentence.split()
    if (
        not _MIN_WORDS <= len(words) <= _MAX_WORDS
        or not _END.search(sentence)
        or not _START.match(sentence)
    ):
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
        is_reindented = (
            bool(block) and _indent(line) != _indent(block[-1]) and not _BULLET.match(block[0])
        )
        if block and (not line.strip() or starts_item or is_reindented):
            yield _joined(block)
            block = []
        if line.strip():
            block.append(line)


def _joined(block: list[str]) -> str:
    first = _FIELD.sub("", _BULLET.sub("", block[0], count=1), count=1).strip()
    if _ENTRY.match(first):
        first = _ENTRY.sub("", first, count=1)
    return " ".join([first, *(line.strip() for line in block[1:])])


def _text_lines(lines: list[str]) -> Iterator[str]:
    """Yield the lines outside of code, tables, directives, headings and sections without prose."""
    # Lines indented deeper than this belong to a block that is left out.
    skip_deeper: int | None = None
    in_doctest = False
    in_skipped_section = False
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
            directive = _KEPT_DIRECTIVE.match(line)
            if not directive:
                skip_deeper = _indent(line)
                continue
            yield line[directive.end() :]
            continue
        if line.rstrip().endswith("::"):
            skip_deeper = _indent(line)
        yield line


def _is_heading(line: str, following: str) -> bool:
    text = line.strip()
    underline = following.strip()
    if _UNDERLINE.match(underline) and len(underline) >= min(len(text), 4):
        return True
    # A label of one or two words, such as "Returns:", as docstrings of Google's form have it.
    return text.endswith(":") and text[:-1].replace(" ", "").isalpha() and len(text.split()) <= 2


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
