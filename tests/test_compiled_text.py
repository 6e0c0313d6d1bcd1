"""Compiled text against its reference in Python: sentences, tokens, and the table of chunks."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from compiled import need_kernel
from hypothesis import given, settings
from hypothesis import strategies as st

from raysent.data import sentences
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.vocabulary import ChunkTable, Numbering, VocabularyConfig, tokens
from raysent.kernels.text import CompiledChunkRows, compiled_sentences


@pytest.fixture(autouse=True)
def compiler() -> None:
    """Skip the tests on a machine without a compiler."""
    need_kernel("text")


PARTS = [
    *"aAbZ1_éÉǅßİ字😀²",
    *" \n\t'\"“”‘’.!?,;:-—–…()[]`\u00a0\u2003\u3000\x85\x1c\x01\u0301\u200b\ufeff",
    "\n\n", "``", "''", "..", "Mr.", "U.S.", " me.", " it.", "said ", "The ", " A. ", '." ', '? "', " '", "—'", "C\u00a0.",
]  # fmt: skip


@settings(max_examples=1000, deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=40).map("".join))
def test_compiled_sentences_are_those_of_the_reference(text):
    """Marks that are hidden, pieces that are joined again, and every kind of white space."""
    assert compiled_sentences(text, sentences._segment) == sentences._split_plainly(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n'This is it. And that' is. On.", ["'This is it.", "And that' is.", "On."]),
        ("the —a? a? b]the ? …said he. No.", ["the —a? a? b]the ? … said he.", "No."]),
        ("Oh.. Ⓐ\u0301. B.", ["Oh..", "Ⓐ\u0301.", "B."]),
    ],
)
def test_compiled_sentences_of_rare_marks(text, expected):
    """An opening mark after a line feed, an ellipsis before a piece, and a capital that is no letter."""
    assert (
        sentences._split_plainly(text) == compiled_sentences(text, sentences._segment) == expected
    )


@pytest.mark.parametrize("text", ["One. Two\0 three.", "One. \ud83d Two.", "One. \U00020000 Two."])
def test_compiled_sentences_leave_unknown_characters_to_the_reference(text):
    """NUL separates sentences in the kernel, a lone surrogate is no UTF-8, and later planes have no classes."""
    assert compiled_sentences(text, sentences._segment) is None


@pytest.mark.parametrize(
    "text",
    ["It is plan B\u00a0. He left.", "Plan B “\u3000.", "A \x85. b", "B\u2003\u00a0. The end."],
)
def test_a_space_that_the_splitter_cannot_read_is_hidden_from_it(text):
    """The splitter fails on white space of several bytes between a capital and a full stop; no text is lost."""
    found = sentences.split_sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert compiled_sentences(text, sentences._segment) == found


TOKEN_PARTS = [
    *"abntKſ1_é²'’\"“`.,-—…!?$@<&\x01\x7f\ufeff😀\ud83d\u0301",
    "n't", "N'T", "n'T", "N't", "'s", "'S", "'ll", "'re", "'vE", "'m", "can", "cannot", "CANnot", "Mr", "Mr.", "etc.", "St.",
    "..", "--", "``", "''", "\\/", "-LRB-", "-rrb-", "<unk>", "U.", "e.g.", "3.5", "1,000", "o'clock", "no",
]  # fmt: skip


@settings(max_examples=1000, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(TOKEN_PARTS), min_size=1, max_size=8).map("".join), max_size=9
    )
)
def test_compiled_tokens_are_those_of_the_pattern(chunks):
    """Chunks of ASCII characters and others, in any order."""
    compiled, reference = tokens._compiled_tokens(chunks), tokens._tokens_of_chunks(chunks)
    assert compiled[0] == reference[0]
    assert compiled[1].tolist() == reference[1].tolist()


def tables(max_bytes: int = 1 << 20) -> tuple[ChunkTable, ChunkTable]:
    """Return a compiled table and the reference; each numbers words as it meets them."""
    return tuple(
        ChunkTable(Numbering().__getitem__, max_bytes=max_bytes, is_compiled=compiled)
        for compiled in (True, False)
    )


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.lists(st.text(alphabet="ab cé.'\0\ud83d\u2003\ufeff😀\n", max_size=40), max_size=6),
        max_size=4,
    )
)
def test_compiled_table_gives_the_ids_of_the_reference(calls):
    """Known and new chunks, short and long ones, sentences without tokens, and several calls."""
    compiled, reference = tables()
    for call in calls:
        found, expected = compiled.encode(call), reference.encode(call)
        assert found.ids.tolist() == expected.ids.tolist()
        assert found.lengths.tolist() == expected.lengths.tolist()
        assert (found.ids.dtype, found.lengths.dtype) == (
            expected.ids.dtype,
            expected.lengths.dtype,
        )


@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 15, 16, 17, 24, 255, 256, 257, 70_000])
def test_compiled_table_tells_chunks_of_a_size_apart(size):
    """Chunks that differ in one character only, at any place, have rows of their own."""
    places = sorted({0, 1, size // 2, size - 2, size - 1} & set(range(size)))
    chunks = ["a" * size, *("a" * place + "b" + "a" * (size - place - 1) for place in places)]
    compiled, reference = tables()
    for _ in range(2):
        assert np.array_equal(compiled.encode(chunks).ids, reference.encode(chunks).ids)
    rows = CompiledChunkRows()
    rows.add(chunks, np.arange(len(chunks)))
    found, unknown = rows.find(" ".join(chunks) + " other")
    assert (found.tolist(), unknown) == ([*range(len(chunks)), -1], ["other"])


def test_compiled_table_grows_and_is_emptied():
    """Ten thousand chunks, and a table that exceeds its size at every call."""
    sentences = [f"w{number} x{number % 97}y." for number in range(10_000)]
    for max_bytes in (1 << 24, 1_000):
        compiled, reference = tables(max_bytes)
        for first in range(0, len(sentences), 2_500):
            block = sentences[first : first + 2_500] + sentences[:10]
            assert np.array_equal(compiled.encode(block).ids, reference.encode(block).ids)


def test_compiled_table_makes_room_for_many_tokens_of_a_chunk():
    """A chunk of punctuation has far more ids than the text has chunks."""
    compiled, reference = tables()
    sentences = ["!?" * 5_000, "a b"]
    assert np.array_equal(compiled.encode(sentences).ids, reference.encode(sentences).ids)
    assert compiled.encode(sentences).lengths.tolist() == [10_000, 2]


def test_compiled_table_under_threads_gives_the_ids_of_one():
    """Threads that learn new chunks at the same time."""
    table = ChunkTable(lambda word: int(word[1:]), max_bytes=300_000, is_compiled=True)
    requests = [[f"w{(row * 7 + place) % 3000}" for place in range(200)] for row in range(200)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(table.encode, requests))
    assert [one.ids.tolist() for one in found] == [
        [int(word[1:]) for word in request] for request in requests
    ]


def test_a_corpus_is_the_same_with_and_without_a_compiler(tmp_path, monkeypatch):
    """Every file of the cache, byte by byte."""
    paragraph = "“Well,” said Mr. Day, “it’s 3.5 o'clock; I can't go.” 'No?' he cried -- and naïve U.S. plan B\u00a0. left."
    (tmp_path / "text.txt").write_text(
        "".join(f"{paragraph} Word{number % 700}. The end…\n" for number in range(2_000))
    )

    def files(name: str) -> dict[str, bytes]:
        folder = tmp_path / name
        prepare(
            CorpusConfig(path=str(tmp_path / "text.txt"), cache_dir=str(folder)),
            VocabularyConfig(size=500),
        )
        found = [
            file for file in sorted(folder.rglob("*")) if file.suffix in {".bin", ".txt", ".npy"}
        ]
        return {str(file.relative_to(folder)): file.read_bytes() for file in found}

    compiled = files("compiled")
    for module in (sentences, tokens):
        monkeypatch.setattr(module, "has_compiled_text", lambda: False)
    assert len(compiled) == 9
    assert files("plain") == compiled
