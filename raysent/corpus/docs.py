"""The embedded corpus `docs`: English prose from the documentation that comes with raysent's own dependencies.

It is read from the source files with `ast` (nothing is imported), in a fixed order, filtered to sentences, and kept
in the cache as JSON lines. Every document is a module, or a topic of Python's own help, so that a sentence is known by
its library. The text depends on the versions that are installed, and so does its key.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import inspect
import json
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from raysent import artifacts
from raysent.artifacts import cache_folder
from raysent.corpus.cache import locked
from raysent.corpus.prose import paragraphs, prose_sentences
from raysent.corpus.sources import Source
from raysent.corpus.splitting import SPLITTING_VERSION
from raysent.corpus.text_store import Progress
from raysent.errors import DataError, did_you_mean

# Distribution -> package, in the order of the corpus. All of them come with raysent or with what it needs.
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
# Changes whenever the same sources may give other sentences.
_EXTRACTION_VERSION = 1
# Folders of tests, generated or borrowed code; those whose name begins with an underscore go too, but for NumPy's core.
_SKIPPED_FOLDERS = frozenset(
    {"tests", "test", "testing", "site-packages", "dist-packages", "idlelib", "lib2to3", "turtledemo", "encodings",
     "benchmarks", "pydoc_data", "thirdparty_files", "third_party", "externals", "generated", "validators",
     "package_data"}
)  # fmt: skip
_MIN_CHARACTERS = 40
_EMPTY = ast.Module(body=[], type_ignores=[])


class DocsDocument(NamedTuple):
    """The prose of one module.

    Attributes:
        library: The library that it documents.
        module: The module's dotted name, or the name of a topic of Python's help.
        sentences: Its sentences in order.
    """

    library: str
    module: str
    sentences: list[str]


def docs_documents(
    *, cache: Path | None = None, libraries: Sequence[str] = tuple(LIBRARIES), progress: Progress | None = None
) -> Iterator[DocsDocument]:
    """Yield the documents of the corpus `docs`, in order; extracted the first time, read from the cache after it.

    Args:
        cache: Where it is kept; default `cache_folder()`.
        libraries: Which of `LIBRARIES` to read.
        progress: Told ``"docs"`` and the sentences so far, while they are extracted.

    Raises:
        DataError: If a library is none of `LIBRARIES`.
    """
    with _docs_file(cache or cache_folder(), libraries, progress).open(encoding="utf-8") as stream:
        for line in stream:
            yield DocsDocument(**json.loads(line))


def docs_source(cache: Path, progress: Progress | None) -> Source:
    """Return the corpus `docs` as a file like any other."""
    return Source(str(_docs_file(cache, tuple(LIBRARIES), progress)))


def _docs_file(cache: Path, libraries: Sequence[str], progress: Progress | None) -> Path:
    """Return the file of documents, written if it is not there yet."""
    unknown = next((name for name in libraries if name not in LIBRARIES), None)
    if unknown is not None:
        raise DataError(f"docs: unknown library '{unknown}'{did_you_mean(unknown, LIBRARIES)}")
    versions = [[name, _version(name)] for name in libraries]
    key = artifacts.content_key(_EXTRACTION_VERSION, SPLITTING_VERSION, versions)
    file = cache / "docs" / f"{key}.jsonl"
    if not file.is_file():
        with locked(cache, f"docs/{key}"):
            if not file.is_file():
                _write(file, extract(libraries), progress)
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
    with artifacts.written_whole(file) as temporary, temporary.open("w", encoding="utf-8") as stream:
        for document in documents:
            stream.write(json.dumps(document._asdict(), ensure_ascii=False) + "\n")
            num_sentences += len(document.sentences)
            if progress:
                progress("docs", num_sentences, None)


def extract(libraries: Iterable[str]) -> Iterator[DocsDocument]:
    """Yield the documents of libraries straight from their sources; a paragraph that comes again is left out."""
    seen: set[str] = set()

    def is_new(text: str) -> bool:
        if text in seen:
            return False
        seen.add(text)
        return True

    for library in libraries:
        for module, texts in _modules(library):
            fresh = (
                paragraph
                for text in texts
                if is_new(text)
                for paragraph in paragraphs(inspect.cleandoc(text))
                if is_new(paragraph)
            )
            sentences = [sentence for paragraph in fresh for sentence in prose_sentences(paragraph)]
            if sentences:
                yield DocsDocument(library, module, sentences)


def _modules(library: str) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield each module's name and its texts, by path."""
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
        if not any(_is_skipped(part) for part in path.parts[:-1]):
            yield ".".join(path.with_suffix("").parts).removesuffix(".__init__"), _docstrings(file)


def _is_skipped(part: str) -> bool:
    return part in _SKIPPED_FOLDERS or (part.startswith("_") and part != "_core")


def _topics(file: Path) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the topics of Python's own help."""
    if not file.is_file():
        return
    for node in ast.walk(_parse(file)):
        if isinstance(node, ast.Dict):
            for name, text in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant) and isinstance(text, ast.Constant):
                    yield f"topics.{name.value!s}", iter([str(text.value)])


def _parse(file: Path) -> ast.Module:
    """Return a file's syntax tree, empty where it is not Python of this version."""
    try:
        source = file.read_bytes()
        if b'"""' not in source and b"'''" not in source:
            return _EMPTY
        with warnings.catch_warnings(), _no_garbage_collection():
            warnings.simplefilter("ignore")  # A library's odd escape is no concern of the user's.
            return ast.parse(source)
    except (SyntaxError, ValueError, OSError):
        return _EMPTY


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Hold the collector back: it would go through each growing syntax tree again and again, for nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _docstrings(file: Path) -> Iterator[str]:
    """Yield the longer texts of a file in order: docstrings, and those that are assigned or handed to a call."""
    for text in _texts(_parse(file).body):
        if len(text) >= _MIN_CHARACTERS and " " in text:
            yield text


def _texts(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Expr | ast.Assign):
            yield from _constants(node.value)
        for name in ("body", "orelse", "finalbody"):
            yield from _texts(getattr(node, name, ()))


def _constants(value: ast.expr) -> Iterator[str]:
    """Yield the texts of an expression: itself, or the arguments of a call, which is how C functions get theirs."""
    match value:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Call(args=arguments):
            for argument in arguments:
                yield from _constants(argument)
        case ast.Tuple(elts=elements):
            for element in elements:
                yield from _constants(element)
        case (
            ast.Attribute(value=ast.Constant(value=str(text)))
            | ast.Attribute(value=ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)))))
        ):
            yield text
        case ast.BinOp(left=left):
            yield from _constants(left)
