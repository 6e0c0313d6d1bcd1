"""Files -> documents -> sentences, in bounded memory.

A file is split into passages, in order; then any process can read a passage.

The format `auto` is decided by the first 1,000 non-blank lines of a plain file:

1. hard-wrapped text (``text``, lines joined up to a blank line): at least half of the lines have at least 0.8 times the
   length of the long ones, and most do not end in closing punctuation;
2. one paragraph per line (``text``): a line has more than 1.2 sentences on average;
3. one sentence per line (``sentences``): everything else.

The rows of a table are running text, each row or each identified document a document of its own, or one sentence each
by the same rule as lines. Rows of one document must follow one another. Markdown and HTML are running text, one
document per file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from raysent.data.corpus.sources import CorpusConfig, Source, SourceKind
from raysent.data.languages import TextLanguage, main_language
from raysent.data.markup import html_paragraphs, markdown_paragraphs, markup_version
from raysent.data.sentences import PARAGRAPH_BREAK
from raysent.data.tables import check_texts, find_text_column, open_table
from raysent.data.text_files import grouped, parse_object
from raysent.errors import DataError, did_you_mean
from raysent.parallel import map_in_processes, num_processes_for

Layout = Literal["sentences", "paragraphs", "wrapped"]

_NUM_SAMPLE_LINES = 1_000
_MAX_SAMPLE_CHARACTERS = 10_000
# Of which the language of a corpus is found.
_NUM_SAMPLE_FILES = 16
_NUM_SAMPLE_PASSAGES = 100
# Lines that are split at once, until they have enough sentences.
_SAMPLE_BLOCK = 200
_CLOSED = re.compile(r"[.!?:;][\"'”’)\]]*$|''$")
# A paragraph of wrapped lines is split after this many lines without a blank line, so that memory stays bounded.
_MAX_PARAGRAPH_LINES = 10_000

Result = TypeVar("Result")
_MAX_SHOWN = 40

# Passages are sent to processes in groups of at least this many characters: a file may have a single line.
_GROUP_CHARACTERS = 1 << 19
# This many groups are read in one or two seconds, less than the start of other processes takes.
_NUM_FIRST_GROUPS = 8
# Larger files are sent in passages, so that memory stays bounded.
_MAX_FILE_BYTES = 1 << 22
# Rows or JSON lines of one document are sent in passages of at least this many characters.
_PASSAGE_CHARACTERS = 1 << 18
# Memory of a process: libraries, the distinct words of a large text, and a few passages.
_PROCESS_BYTES = 600 << 20


_ENGLISH_BY_DEFAULT = TextLanguage()


class Passage(NamedTuple):
    """A part of a file with whole sentences, which can be read independently.

    Attributes:
        kind: How to read it: a key of `_READERS`.
        text: One sentence, one paragraph or one JSON object per line; or a file of Markdown or HTML.
        ends_document: Whether the file ends with it.
        where: The file and the number of the first line, for error messages.
        text_field: Field of a JSON object that contains running text.
        language: What its text is in.
    """

    kind: str
    text: str
    ends_document: bool
    where: tuple[str, int] = ("", 1)
    text_field: str = ""
    language: TextLanguage = _ENGLISH_BY_DEFAULT


class Piece(NamedTuple):
    """Consecutive sentences of one document, and whether the document ends with them."""

    sentences: list[str]
    ends_document: bool


def passages(
    source: Source,
    *,
    format: str,
    text_field: str,
    document_field: str | None = None,
    language: TextLanguage = _ENGLISH_BY_DEFAULT,
) -> Generator[Passage]:
    """Yield a file in passages of about a megabyte; this is fast and must be done in order.

    Args:
        source: The file.
        format: ``auto``, ``sentences`` or ``text``; ignored for ``.jsonl``, Markdown and HTML.
        text_field: Field of a JSON object, or column of a table, that contains the text.
        document_field: Field or column that identifies documents.
        language: What the text is in.

    Raises:
        DataError: If the file cannot be read.
    """
    if document_field is not None and source.kind not in ("table", "json"):
        raise DataError(
            f"corpus.document_field: {source.path}: must be left out for a file without columns; "
            f"given '{document_field}'"
        )
    for passage in _PASSAGES[source.kind](source, format, text_field, document_field, language):
        yield passage._replace(language=language)


def _markup_passages(source: Source, *_: Any) -> Iterator[Passage]:
    # Only a whole file has its structure.
    yield Passage(source.kind, "\n".join(chain.from_iterable(source.blocks())), ends_document=True)


def _line_passages(
    source: Source, format: str, text_field: str, document_field: str | None, language: TextLanguage
) -> Iterator[Passage]:
    del text_field, document_field
    blocks = source.blocks()
    first = next(blocks, [])
    layout = _layout(first, format, language)
    blocks = chain([first], blocks)
    if layout == "sentences":
        yield from (Passage("sentences", "\n".join(lines), ends_document=False) for lines in blocks)
        yield Passage("sentences", "", ends_document=True)
    else:
        yield from _text_passages(blocks, wrapped=layout == "wrapped")


def _json_passages(
    source: Source, _: str, text_field: str, document_field: str | None, __: TextLanguage
) -> Iterator[Passage]:
    number = 1
    if document_field is None:
        for lines in source.blocks():
            yield Passage("json", "\n".join(lines), False, (source.path, number), text_field)
            number += len(lines)
        return
    documents = _DocumentOrder(document_field)
    unfinished = list[str]()
    first = 1
    num_characters = 0
    for number, line in enumerate(chain.from_iterable(source.blocks()), start=1):
        if line.strip():
            where = f"{source.path}:{number}"
            record = parse_object(where, line)
            begins = documents.begins(record.get(document_field), where)
            if begins or num_characters >= _PASSAGE_CHARACTERS:
                yield Passage(
                    "json_document", "\n".join(unfinished), begins, (source.path, first), text_field
                )
                unfinished = []
                first = number
                num_characters = 0
        unfinished.append(line)
        num_characters += len(line)
    yield Passage("json_document", "\n".join(unfinished), True, (source.path, first), text_field)


class _Rows:
    """The rows of a table: a column of text, and one of documents if one is named."""

    def __init__(self, source: Source, text_field: str, document_field: str | None) -> None:
        self._path = source.path
        self._table = open_table(source.path)
        self.document_field = document_field
        names = self._table.names
        self.text_field = find_text_column(
            names, wanted=text_field, where=f"corpus.text_field: {self._path}"
        )
        if document_field is not None and document_field not in names:
            raise DataError(
                f"corpus.document_field: {self._path}: must name a column; given "
                f"'{document_field}'{did_you_mean(document_field, names)}"
            )
        self.columns = [self.text_field]
        if document_field is not None:
            self.columns.append(document_field)

    def blocks(self) -> Generator[list[tuple[str, bool]]]:
        """Yield the text of rows, and whether the column of documents has another value than in the row before."""
        documents = None
        if self.document_field is not None:
            documents = _DocumentOrder(self.document_field)
        number = 1
        for texts, *identifiers in self._table.blocks(self.columns):
            check_texts(texts, source=self._path, column=f"'{self.text_field}'", first_row=number)
            begins = [False] * len(texts)
            if documents is not None:
                row_names = (
                    f"{self._path}: row {row}" for row in range(number, number + len(texts))
                )
                begins = list(map(documents.begins, identifiers[0], row_names))
            yield list(zip(texts, begins, strict=True))
            number += len(texts)


class _DocumentOrder:
    """Finds where documents begin, by the values of a column."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._current: Any = None
        self._seen: set[Any] = set()

    def begins(self, value: Any, row_name: str) -> bool:
        """Return whether a row begins a document; refuse a missing value, and a document that has ended before."""
        if self._current is not None and value == self._current:
            return False
        if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
            raise DataError(f"{row_name}: '{self._field}' must identify a document; given nothing")
        if not isinstance(value, (str, int, float)):
            raise DataError(
                f"{row_name}: '{self._field}' must be text or a number; given {type(value).__name__}"
            )
        if value in self._seen:
            raise DataError(
                f"{row_name}: rows of one document must follow one another; '{value}' was before; "
                f"sort the rows by '{self._field}'"
            )
        self._seen.add(value)
        self._current = value
        return True


def _row_passages(
    source: Source, format: str, text_field: str, document_field: str | None, language: TextLanguage
) -> Iterator[Passage]:
    """Yield the rows of a table; without a column of documents, each row of running text is one."""
    rows = _Rows(source, text_field, document_field)
    is_running = _is_running_text(rows, format, language)
    if is_running:
        kind = "paragraphs"
        separator = PARAGRAPH_BREAK
    else:
        kind = "sentences"
        separator = "\n"
    is_document_each = is_running and rows.document_field is None
    lines: list[str] = []
    num_characters = 0
    for text, is_first in chain.from_iterable(rows.blocks()):
        begins_document = is_first or is_document_each
        if begins_document or num_characters >= _PASSAGE_CHARACTERS:
            yield Passage(kind, separator.join(lines), ends_document=begins_document)
            lines = []
            num_characters = 0
        if is_running:
            lines += _paragraphs(text)
        else:
            sentence = _one_line(text)
            if sentence:
                lines.append(sentence)
        num_characters += len(text)
    yield Passage(kind, separator.join(lines), ends_document=True)


def _is_running_text(rows: _Rows, format: str, language: TextLanguage) -> bool:
    if format != "auto":
        return format == "text"
    with closing(rows.blocks()) as blocks:
        first = next(filter(None, blocks), [])
    texts = [text for text, _ in first if text.strip()][:_NUM_SAMPLE_LINES]
    return _has_running_text(
        [_paragraphs(text[:_MAX_SAMPLE_CHARACTERS]) for text in texts], language
    )


def table_notes(sources: Sequence[Source], config: CorpusConfig) -> list[str]:
    """Return how the tables of a corpus are read, one line for all that are read alike.

    Raises:
        DataError: If a table cannot be read.
    """
    paths: dict[str, list[str]] = {}
    for source in sources:
        if source.kind == "table":
            rows = _Rows(source, config.text_field, config.document_field)
            is_running = _is_running_text(rows, config.format, text_language(sources, config))
            unit = "running text" if is_running else "one sentence"
            if rows.document_field is not None:
                documents = f"a document for each '{rows.document_field}'"
            elif is_running:
                documents = "a document each"
            else:
                documents = "the table is one document"
            note = f"text = '{rows.text_field}', {unit} a row, {documents}"
            paths.setdefault(note, []).append(source.path)
    notes = []
    for note, paths_alike in paths.items():
        more = ""
        if len(paths_alike) > 1:
            more = f" and {len(paths_alike) - 1} more"
        notes.append(f"{paths_alike[0]}{more}: {note}")
    return notes


def describe_reading(
    sources: Sequence[Source], config: CorpusConfig
) -> tuple[list[Any], dict[str, Any]]:
    """Return what the sentences of a corpus depend on, beside `SPLITTING_VERSION`, as plain values for a cache key.

    Returns:
        The content of each file and how its kind is read, independent of the paths; and the settings.

    Raises:
        DataError: If a file cannot be read.
    """
    settings = config.model_dump(include={"format", "text_field", "max_sentences"})
    if config.document_field is not None:
        settings["document_field"] = config.document_field
    return [_describe_file(source, config) for source in sources], settings


def _describe_file(source: Source, config: CorpusConfig) -> list[Any]:
    if source.kind == "table":
        rows = _Rows(source, config.text_field, config.document_field)
        return ["table", source.suffix, *rows.columns, source.fingerprint()]
    if source.kind in ("markdown", "html"):
        return [source.kind, markup_version(), source.fingerprint()]
    # The keys of version 0.1, which knows no other files.
    return [source.kind == "json", source.fingerprint()]


def text_language(sources: Sequence[Source], config: CorpusConfig) -> TextLanguage:
    """Return the language of a corpus: that of its settings, or what most of a sample of its files is in.

    Raises:
        DataError: If a file cannot be read.
    """
    if config.language != "auto":
        return TextLanguage(config.language, is_given=True)
    sampled = sources[:: max(1, len(sources) // _NUM_SAMPLE_FILES)]
    reading = _reading(config, TextLanguage(is_given=True))
    return _sampled_language(
        tuple((source, source.version()) for source in sampled), tuple(reading.items())
    )


@lru_cache(maxsize=16)
def _sampled_language(
    sources: tuple[tuple[Source, str], ...], reading: tuple[tuple[str, Any], ...]
) -> TextLanguage:
    texts = []
    for source, _ in sources:
        with closing(passages(source, **dict(reading))) as source_passages:
            first = [
                _shortened(passage) for passage in islice(source_passages, _NUM_SAMPLE_PASSAGES)
            ]
        sentences = (
            sentence
            for passage in first
            for piece in read_passage(passage)
            for sentence in piece.sentences
        )
        texts.append(" ".join(sentences)[:_MAX_SAMPLE_CHARACTERS])
    return TextLanguage(main_language(texts))


def _shortened(passage: Passage) -> Passage:
    end = passage.text.find("\n", _MAX_SAMPLE_CHARACTERS)
    # A part of a file of markup may be of another structure.
    if end < 0 or passage.kind in ("html", "markdown"):
        return passage
    return passage._replace(text=passage.text[:end])


def _reading(config: CorpusConfig, language: TextLanguage) -> dict[str, Any]:
    return {
        **config.model_dump(include={"format", "text_field", "document_field"}),
        "language": language,
    }


def read_passage(passage: Passage) -> Iterator[Piece]:
    """Yield the pieces of a passage; this takes most of the time, and any process can do it.

    Raises:
        DataError: If a line does not have the format.
    """
    return _READERS[passage.kind](passage)


def read_passages(passages: Sequence[Passage]) -> tuple[list[str], list[int]]:
    """Return the sentences of passages, and how many are before each end of a document."""
    sentences: list[str] = []
    ends = []
    for piece in chain.from_iterable(map(read_passage, passages)):
        sentences += piece.sentences
        if piece.ends_document:
            ends.append(len(sentences))
    return sentences, ends


def map_passages(
    function: Callable[[Sequence[Passage]], Result], sources: Sequence[Source], config: CorpusConfig
) -> Generator[Result]:
    """Yield the results of a function of groups of passages of all sources, in order, computed by several processes.

    If the number of processes is not configured, this process computes the first results, and starts others only for
    larger texts.

    Raises:
        DataError: If the text cannot be read.
    """
    reading = _reading(config, text_language(sources, config))
    groups: Iterator[list[Passage | Source]] = grouped(
        _parts(sources, reading), _size, at_least=_GROUP_CHARACTERS
    )
    read_group = partial(_read_group, function, reading)
    if config.num_processes is None:
        yield from map(read_group, islice(groups, _NUM_FIRST_GROUPS))
        first = list(islice(groups, 1))
        if not first:
            return
        groups = chain(first, groups)
    num_processes = config.num_processes or num_processes_for(bytes_each=_PROCESS_BYTES)
    with closing(map_in_processes(read_group, groups, num_processes=num_processes)) as read_groups:
        yield from read_groups


def _read_group(
    function: Callable[[Sequence[Passage]], Result],
    reading: dict[str, Any],
    group: Sequence[Passage | Source],
) -> Result:
    """Return the function's value of all passages of a group, of which some parts are whole files."""
    all_passages: list[Passage] = []
    for part in group:
        if isinstance(part, Source):
            all_passages += passages(part, **reading)
        else:
            all_passages.append(part)
    return function(all_passages)


def _parts(sources: Sequence[Source], reading: dict[str, Any]) -> Iterator[Passage | Source]:
    """Yield small files, which the process that reads their sentences reads as a whole, and the passages of others."""
    for source in sources:
        if source.kind != "table" and not source.etag and source.num_bytes <= _MAX_FILE_BYTES:
            yield source
        else:
            yield from passages(source, **reading)


def _size(part: Passage | Source) -> int:
    if isinstance(part, Source):
        return part.num_bytes
    return len(part.text)


def _layout(first: list[str], format: str, language: TextLanguage) -> Layout:
    """Return how to read the lines; the module docstring has the rule."""
    if format == "sentences":
        return "sentences"
    lines = list(islice(filter(None, map(str.strip, first)), _NUM_SAMPLE_LINES))
    if not lines:
        return "sentences"
    if _is_wrapped(lines):
        return "wrapped"
    if format == "text":
        return "paragraphs"
    if _has_running_text([[line] for line in lines], language):
        return "paragraphs"
    return "sentences"


def _has_running_text(samples: list[list[str]], language: TextLanguage) -> bool:
    """Return whether lines or rows, each in paragraphs, have more than 1.2 sentences on average."""
    num_sentences = 0
    for first in range(0, len(samples), _SAMPLE_BLOCK):
        block = samples[first : first + _SAMPLE_BLOCK]
        num_sentences += len(language.split(PARAGRAPH_BREAK.join(chain.from_iterable(block))))
        if num_sentences > 1.2 * len(samples):
            return True
    return False


def _is_wrapped(lines: list[str]) -> bool:
    lengths = np.array([len(line) for line in lines])
    long = np.percentile(lengths, 95)
    if len(lines) < 10 or long > 120 or np.mean(lengths >= 0.8 * long) < 0.5:
        return False
    return bool(np.mean([bool(_CLOSED.search(line)) for line in lines]) < 0.5)


def _text_passages(blocks: Iterable[list[str]], *, wrapped: bool) -> Iterator[Passage]:
    unfinished: list[str] = []  # wrapped lines of a paragraph whose end is in a later block
    for lines in blocks:
        paragraphs = [line.strip() for line in lines]
        if wrapped:
            paragraphs, unfinished = _join_wrapped(unfinished + paragraphs)
        yield Passage(
            "paragraphs", PARAGRAPH_BREAK.join(filter(None, paragraphs)), ends_document=False
        )
    yield Passage("paragraphs", " ".join(unfinished), ends_document=True)


def _join_wrapped(lines: list[str]) -> tuple[list[str], list[str]]:
    """Return the complete paragraphs, each as one line, and the lines of the unfinished last one."""
    paragraphs: list[str] = []
    unfinished: list[str] = []
    for line in lines:
        if line and len(unfinished) < _MAX_PARAGRAPH_LINES:
            unfinished.append(line)
        else:
            paragraphs.append(" ".join(unfinished))
            unfinished = [line] if line else []
    return paragraphs, unfinished


def _read_paragraphs(passage: Passage) -> Iterator[Piece]:
    yield Piece(passage.language.split(passage.text), passage.ends_document)


def _read_sentence_lines(passage: Passage) -> Iterator[Piece]:
    """Yield one sentence per line; a blank line ends a document."""
    lines = [line.strip() for line in passage.text.split("\n")]
    start = 0
    for index, line in enumerate(lines):
        if not line:
            yield Piece(lines[start:index], ends_document=True)
            start = index + 1
    yield Piece(lines[start:], passage.ends_document)


def _read_markup(passage: Passage) -> Iterator[Piece]:
    if passage.kind == "markdown":
        read = markdown_paragraphs
    else:
        read = html_paragraphs
    yield Piece(
        passage.language.split(PARAGRAPH_BREAK.join(read(passage.text))), passage.ends_document
    )


def _read_json_lines(passage: Passage) -> Iterator[Piece]:
    """Yield the text of each line of JSON: a document, or part of the passage's."""
    path, first = passage.where
    for number, line in enumerate(passage.text.split("\n"), start=first):
        if line.strip():
            where = f"{path}:{number}"
            sentences = _json_sentences(
                where, parse_object(where, line), passage.text_field, passage.language
            )
            yield Piece(sentences, ends_document=passage.kind == "json")
    if passage.ends_document:
        yield Piece([], ends_document=True)


def _json_sentences(
    where: str, value: dict[str, Any], text_field: str, language: TextLanguage
) -> list[str]:
    readers: dict[str, Callable[[Any], list[str]]] = {
        text_field: lambda text: language.split(PARAGRAPH_BREAK.join(_paragraphs(text))),
        "sentences": lambda sentences: [_one_line(sentence) for sentence in _list(sentences)],
        "paragraphs": lambda paragraphs: [
            s for paragraph in _list(paragraphs) for s in _paragraph_sentences(paragraph, language)
        ],
    }
    name = next((name for name in readers if name in value), None)
    if name is None:
        field_names = ", ".join(map(str, value)) or "nothing"
        raise DataError(
            f"{where}: must have '{text_field}', 'sentences' or 'paragraphs'; given {field_names}; "
            "name the field in corpus.text_field"
        )
    try:
        return [sentence for sentence in readers[name](value[name]) if sentence]
    except (AttributeError, TypeError):
        expected = "text" if name == text_field else "a list of texts"
        written = repr(value[name])
        if len(written) > _MAX_SHOWN:
            written = f"{written[:_MAX_SHOWN]}…"
        raise DataError(f"{where}: '{name}' must be {expected}; given {written}") from None


def _paragraph_sentences(paragraph: Any, language: TextLanguage) -> list[str]:
    if isinstance(paragraph, str):
        return language.split(_one_line(paragraph))
    return [_one_line(sentence) for sentence in _list(paragraph)]


def _list(value: Any) -> list[Any]:
    """Return a list, else raise TypeError; a string is none, though it could be iterated."""
    if not isinstance(value, list):
        raise TypeError
    return value


def _paragraphs(text: str) -> list[str]:
    return [line for line in map(str.strip, text.split("\n")) if line]


def _one_line(text: str) -> str:
    return " ".join(text.split())


_READERS: dict[str, Callable[[Passage], Iterator[Piece]]] = {
    "html": _read_markup,
    "json": _read_json_lines,
    "json_document": _read_json_lines,
    "markdown": _read_markup,
    "paragraphs": _read_paragraphs,
    "sentences": _read_sentence_lines,
}
_PASSAGES: dict[
    SourceKind, Callable[[Source, str, str, str | None, TextLanguage], Iterator[Passage]]
] = {
    "html": _markup_passages,
    "json": _json_passages,
    "markdown": _markup_passages,
    "table": _row_passages,
    "text": _line_passages,
}
