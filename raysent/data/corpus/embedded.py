"""The embedded corpus `docs`: English prose from the docstrings of raysent's own dependencies.

Docstrings are read from the source files with `ast` (nothing is imported), in a fixed order, filtered to sentences, and
cached as JSON lines. A document is a module, or a topic of Python's own help. The text and its key depend on the
installed versions.
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
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from raysent import storage
from raysent.data.corpus.cache import locked
from raysent.data.docstrings import paragraphs, prose_sentences
from raysent.data.sentences import SPLITTING_VERSION
from raysent.errors import DataError, did_you_mean
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


def docs_documents(
    *, cache: Path | None = None, libraries: Sequence[str] = tuple(LIBRARIES), progress: Progress | None = None
) -> Iterator[DocsDocument]:
    """Yield the documents of the corpus `docs`, in order; they are extracted on first use, then read from the cache.

    Args:
        cache: The cache; default `cache_folder()`.
        libraries: Which of `LIBRARIES` to read.
        progress: Called with ``docs``, the number of sentences so far, and None, during the extraction.

    Raises:
        DataError: If a library is not one of `LIBRARIES`.
    """
    with docs_file(cache or cache_folder(), libraries, progress).open(encoding="utf-8") as stream:
        for line in stream:
            yield DocsDocument(**parse_json(line))


def docs_file(cache: Path, libraries: Sequence[str] = tuple(LIBRARIES), progress: Progress | None = None) -> Path:
    """Return the corpus `docs` as a file of JSON lines; it is written if it does not exist.

    Raises:
        DataError: If a library is not one of `LIBRARIES`.
    """
    unknown = next((name for name in libraries if name not in LIBRARIES), None)
    if unknown is not None:
        raise DataError(f"docs: unknown library '{unknown}'{did_you_mean(unknown, LIBRARIES)}")
    versions = [[name, _version(name)] for name in libraries]
    key = storage.content_key(_EXTRACTION_VERSION, SPLITTING_VERSION, versions)
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
    seen: set[str] = set()

    def is_new(text: str) -> bool:
        if text in seen:
            return False
        seen.add(text)
        return True

    modules = chain.from_iterable(map(_modules, libraries))
    groups = iter(lambda: list(islice(modules, _GROUP_MODULES)), [])
    first = map(_read_modules, islice(groups, _NUM_FIRST_GROUPS))
    num_processes = num_processes_for(bytes_each=_PROCESS_BYTES)
    with closing(map_in_processes(_read_modules, groups, num_processes=num_processes)) as others:
        for module, texts in chain.from_iterable(chain(first, others)):
            new_paragraphs = (
                sentences
                for text, paragraphs_of_text in texts
                if is_new(text)
                for paragraph, sentences in paragraphs_of_text
                if is_new(paragraph)
            )
            sentences = list(chain.from_iterable(new_paragraphs))
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
    return [
        (
            module._replace(topic=None),
            [
                (text, [(paragraph, prose_sentences(paragraph)) for paragraph in paragraphs(inspect.cleandoc(text))])
                for text in (_docstrings(module.file) if module.topic is None else [module.topic])
            ],
        )
        for module in modules
    ]


def _modules(library: str) -> Iterator[_Module]:
    """Yield the modules of a library, sorted by path."""
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
            yield _Module(library, ".".join(path.with_suffix("").parts).removesuffix(".__init__"), file)


def _is_skipped(part: str) -> bool:
    return part in _SKIPPED_FOLDERS or (part.startswith("_") and part != "_core")


def _topics(file: Path) -> Iterator[_Module]:
    if not file.is_file():
        return
    for node in ast.walk(_parse(file)):
        if isinstance(node, ast.Dict):
            for name, text in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant) and isinstance(text, ast.Constant):
                    yield _Module("python", f"topics.{name.value!s}", file, str(text.value))


def _parse(file: Path) -> ast.Module:
    """Return the syntax tree of a file, empty if this version of Python cannot parse it."""
    try:
        source = file.read_bytes()
        if b'"""' not in source and b"'''" not in source:
            return _EMPTY
        with warnings.catch_warnings(), _no_garbage_collection():
            warnings.simplefilter("ignore")  # invalid escapes in a library do not concern the user
            return ast.parse(source)
    except (SyntaxError, ValueError, OSError):
        return _EMPTY


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, which would traverse each growing syntax tree repeatedly."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _docstrings(file: Path) -> Iterator[str]:
    """Yield the longer texts of a file in order: docstrings, and strings that are assigned or passed to a call."""
    for text in _texts(_parse(file).body):
        if len(text) >= _MIN_DOCUMENT_CHARACTERS and " " in text:
            yield text


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
