"""Tokens, ids and word vectors."""

import gzip
import pickle
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysent.data.corpus import CorpusConfig, corpus_word_vectors, prepare
from raysent.data.vocabulary import (
    PAD_ID,
    UNK_ID,
    ChunkTable,
    Sentences,
    Vocabulary,
    VocabularyConfig,
    as_rows,
    build_vocabulary,
    read_word_vectors,
)
from raysent.data.vocabulary import tokens as tokens_module
from raysent.data.vocabulary import vectors as vectors_module
from raysent.errors import ArtifactError, DataError
from raysent.kernels.ragged import ragged_indices, ragged_sums

WORDS = Vocabulary(["<pad>", "<unk>", "the", "cat", "sat", "."])


def tokens(sentence: str) -> str:
    """Return a sentence's tokens with blanks between them."""
    return " ".join(WORDS.tokenize([sentence])[0])


# Tokens


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("I don't know, he said.", "I do n't know , he said ."),
        ("I do n't know , he said .", "I do n't know , he said ."),
        ("“It’s Mr. Reed’s,” we’ve heard!", "\" It 's Mr. Reed 's , \" we 've heard !"),
        ("`` It 's so '' -LRB- yes -RRB-", '" It \'s so " ( yes )'),
        ("She cannot, can't and CAN'T.", "She can not , ca n't and CA N'T ."),
        (
            "a well-known, 3.5 or 1,000 o'clock U.S. rule",
            "a well-known , 3.5 or 1,000 o'clock U.S. rule",
        ),
        ("call numpy.array(n_jobs=2)...", "call numpy.array ( n_jobs = 2 ) ..."),
        ("yes—no – or--so…", "yes -- no -- or -- so ..."),
        ("the dogs' <unk> 'tis 'so'", "the dogs ' <unk> ' tis ' so '"),
        ("Café naïve 1990s 50%", "Café naïve 1990s 50 %"),
    ],
)
def test_tokenize_follows_the_treebank(sentence, expected):
    """Raw text and tokenized text give the same tokens."""
    assert tokens(sentence) == expected


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="aBcdt nsN'’\"`.,-—1é_!…\n\t<>", max_size=30))
def test_tokenize_is_idempotent(sentence):
    """Tokens joined by blanks give the same tokens, and no letter or digit is lost."""
    once = tokens(sentence)
    assert tokens(once) == once
    assert [c for c in once if c.isalnum()] == [
        c for c in sentence.replace("’", "'") if c.isalnum()
    ]


@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet="aMrnotcé²１ß.,!\"'", min_size=1, max_size=7)
    | st.sampled_from(
        ["cannot", "Cannot,", "Mr.", "etc.", "a", "I.", "word", "word;", 'word"', "été?"]
    )
)
def test_short_cut_for_plain_chunks_agrees_with_the_pattern(chunk):
    """Chunks that are tokenized without the pattern get the tokens of the pattern."""
    plain = tokens_module._plain_tokens(chunk)
    assert plain is None or plain == next(
        tokens_module._matched_tokens(tokens_module._plain_text([chunk]))
    )


# Ids


def test_ids_look_words_up():
    """Known words have their id, others UNK_ID."""
    rows = WORDS.ids(["the cat sat.", "The cat"], max_length=50)
    assert rows.ids.tolist() == [2, 3, 4, 5, UNK_ID, 3]
    assert rows.ids.dtype == np.int32
    assert rows.lengths.tolist() == [4, 2]
    assert WORDS.ids(["the\0cat", "\0", "sat"], max_length=9).lengths.tolist() == [
        2,
        1,
        1,
    ]  # NUL is white space


def test_ids_of_a_sentence_without_known_words_is_one_unknown():
    """An empty sentence and one of unknown words only become a single UNK_ID, in any position."""
    rows = WORDS.ids(["", "blue sky", "the cat", "  "], max_length=50)
    assert rows.ids.tolist() == [UNK_ID, UNK_ID, 2, 3, UNK_ID]
    assert rows.lengths.tolist() == [1, 1, 2, 1]
    assert WORDS.ids([], max_length=50).lengths.tolist() == []


def test_ids_truncate_a_longer_sentence():
    """The first tokens are kept; whether a word is known is decided before the truncation."""
    assert WORDS.ids(["blue the cat"], max_length=1).ids.tolist() == [UNK_ID]
    assert WORDS.ids(["the cat sat", "cat"], max_length=2).lengths.tolist() == [2, 1]


def test_lowercase_vocabulary_lowercases_text():
    """Tokens are lowercased before look-up."""
    lowercase = Vocabulary(WORDS.words, lowercase=True)
    assert lowercase.ids(["THE Cat"], max_length=9).ids.tolist() == [2, 3]
    assert lowercase.tokenize(["DON'T, Mr. X"]) == [["do", "n't", ",", "mr.", "x"]]


def test_ids_do_not_depend_on_other_sentences():
    """A table that other text has filled gives the same ids."""
    sentence = "the cat's well-known cat sat."
    alone = Vocabulary(WORDS.words).ids([sentence], max_length=50)
    WORDS.ids(["other text the cat's cat.", sentence, "more"], max_length=50)
    assert np.array_equal(WORDS.ids([sentence], max_length=50).ids, alone.ids)


def test_chunk_table_gives_the_same_ids_after_overflow():
    """Clearing the table bounds memory and changes no id."""
    sentences = [f"word{i} the cat{i % 7}." for i in range(50)]
    number: dict[str, int] = {}
    whole = ChunkTable(lambda word: number.setdefault(word, len(number))).encode(sentences)
    small = ChunkTable(number.__getitem__, max_bytes=1000)
    parts = [small.encode([sentence]).ids for sentence in sentences]
    assert np.array_equal(np.concatenate(parts), whole.ids)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("\ufeffThe cat\ufeff \ufeff", "The cat"),
        ("\ud83d cat\ude00s", "\ufffd cat \ufffd s"),
        ("cat\0sat", "cat sat"),
        ("\u0301 e\u0301 \u0301e", "\u0301 \u00e9 \u0301e"),
        ("\U0001f600 \u200b.", "\U0001f600 \u200b ."),
    ],
)
def test_tokenize_defines_odd_characters(sentence, expected):
    """Byte order marks, lone surrogates, NUL and combining marks have the tokens that the module promises."""
    assert tokens(sentence) == expected
    assert WORDS.ids([sentence], max_length=50).lengths[0] in {1, len(expected.split())}


@pytest.mark.parametrize("bad", ["\ud83d", "x" * 9_999_990 + "1", "\ufeff", "\0", "!" * 200_000])
def test_ids_after_an_odd_sentence_are_as_before(bad):
    """No sentence disables the vocabulary."""
    words = Vocabulary(WORDS.words)
    before = words.ids(["the cat"], max_length=9).ids
    assert words.ids([bad, "the"], max_length=9).lengths.tolist() == [1, 1]
    assert np.array_equal(words.ids(["the cat"], max_length=9).ids, before)


def test_long_chunk_is_read_in_pieces():
    """Its tokens are those of its pieces, in `tokenize` and in `ids`."""
    word = "the" + "a" * ((1 << 16) - 3) + "cat"
    assert [len(token) for token in WORDS.tokenize([word])[0]] == [1 << 16, 3]
    assert WORDS.ids([word, "the"], max_length=9).ids.tolist() == [UNK_ID, 3, 2]


def test_chunk_table_is_unchanged_by_a_call_that_raises():
    """An exception in the middle, such as that of Ctrl-C, leaves later ids right."""
    fail = {"now": False}

    def word_id(word: str) -> int:
        if fail["now"] and word == "sat":
            raise KeyboardInterrupt
        return len(word)

    table = ChunkTable(word_id)
    assert table.encode(["a cat"]).ids.tolist() == [1, 3]
    fail["now"] = True
    with pytest.raises(KeyboardInterrupt):
        table.encode(["horse sat there"])
    fail["now"] = False
    assert table.encode(["there sat a horse cat"]).ids.tolist() == [5, 3, 1, 5, 3]


def test_chunk_table_is_bounded_in_bytes():
    """Neither many chunks nor long ones exceed the size by more than one call."""
    table = ChunkTable(len, max_bytes=20_000)
    for number in range(200):
        table.encode(
            [f"{number}word{number}" * 1000, *(f"w{number}x{index}" for index in range(10))]
        )
    kept = table._table
    assert kept.num_bytes < 20_000
    assert sum(map(sys.getsizeof, kept.known)) + kept.ids.nbytes + kept.starts.nbytes < 50_000


def test_chunk_table_under_threads_gives_the_ids_of_one():
    """Threads that learn new chunks at the same time get their own ids."""
    sentences = [
        " ".join(f"w{(row * 7 + place * row) % 5000}" for place in range(20)) for row in range(2000)
    ]
    table = ChunkTable(lambda word: int(word[1:]), max_bytes=300_000)
    requests = [sentences[first : first + 20] for first in range(0, 2000, 20)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(table.encode, requests))
    finally:
        sys.setswitchinterval(interval)
    for request, rows in zip(requests, found, strict=True):
        assert rows.ids.tolist() == [
            int(word[1:]) for sentence in request for word in sentence.split()
        ]


def test_ragged_helpers_agree_with_loops():
    """Indices and sums of rows, including empty rows; rows within the limit are unchanged."""
    starts, lengths = np.array([5, 9, 2]), np.array([2, 0, 3])
    assert ragged_indices(starts, lengths).tolist() == [5, 6, 2, 3, 4]
    assert ragged_sums(np.array([1, 2, 3, 4, 5]), lengths).tolist() == [3, 0, 12]
    rows = Sentences(np.array([2, 3, 4], dtype=np.int32), np.array([2, 1]))
    assert as_rows(rows, max_length=2).ids.tolist() == [2, 3, 4]


# The vocabulary


def test_build_vocabulary_sorts_by_count_then_word():
    """Ties are in alphabetical order; the size includes padding and unknown word."""
    counts = [("b", 2), ("a", 2), ("c", 5), ("d", 1)]
    assert build_vocabulary(counts, VocabularyConfig(size=5)).words == [
        "<pad>",
        "<unk>",
        "c",
        "a",
        "b",
    ]
    assert build_vocabulary(counts, VocabularyConfig(min_count=3)).words == ["<pad>", "<unk>", "c"]


def test_build_vocabulary_adds_counts_of_both_cases():
    """With lowercase, counts of both cases are added; `<unk>` in the text is not a new word."""
    counts = [("A", 1), ("a", 1), ("b", 1), ("<unk>", 9)]
    assert build_vocabulary(counts, VocabularyConfig(lowercase=True)).words == [
        "<pad>",
        "<unk>",
        "a",
        "b",
    ]


@pytest.mark.parametrize("lowercase", [False, True])
def test_vocabulary_round_trip(tmp_path, lowercase):
    """A saved or pickled vocabulary is restored."""
    vocabulary = Vocabulary([*WORDS.words, "é", "#", "\u2028x"], lowercase=lowercase)
    vocabulary.save(tmp_path / "vocabulary.txt")
    for again in (
        Vocabulary.load(tmp_path / "vocabulary.txt"),
        pickle.loads(pickle.dumps(vocabulary)),
    ):
        assert (again.words, again.lowercase) == (vocabulary.words, lowercase)
        assert len(again) == 9


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", b"#lowercase=false\n<pad>\n<unk>\nthe", b"\xff\xfe"]
)
def test_foreign_vocabulary_is_refused(tmp_path, content):
    """A truncated file or one of another kind raises one clear error."""
    (tmp_path / "vocabulary.txt").write_bytes(content)
    with pytest.raises(ArtifactError, match="vocabulary"):
        Vocabulary.load(tmp_path / "vocabulary.txt")
    with pytest.raises(ArtifactError, match="no such file"):
        Vocabulary.load(tmp_path / "none.txt")


# Word vectors

VECTORS = {"the": [1.0, 2.0], "cat": [3.0, -4.5], ",": [0.0, 1e-3]}


def text_form(*, header: bool = False, end: str = "\n") -> bytes:
    """Return the vectors as text."""
    lines = [f"{word} {' '.join(map(str, vector))}" for word, vector in VECTORS.items()]
    return (end.join([*([f"{len(VECTORS)} 2"] if header else []), *lines]) + end).encode()


def binary_form(separator: bytes = b"\n") -> bytes:
    """Return the vectors in word2vec's binary format."""
    rows = [
        word.encode() + b" " + struct.pack("<2f", *vector) + separator
        for word, vector in VECTORS.items()
    ]
    return b"3 2\n" + b"".join(rows)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("glove.txt", text_form()),
        ("word2vec.txt.gz", gzip.compress(text_form(header=True), mtime=0)),
        ("fasttext.vec", text_form(header=True, end=" \n")),
        ("windows.txt", text_form(end="\r\n")),
        ("news.bin", binary_form()),
        ("news.bin.gz", gzip.compress(binary_form(b""), mtime=0)),
    ],
)
def test_read_word_vectors_of_each_format(tmp_path, name, content):
    """All formats give the same vectors, and only those of the requested words."""
    (tmp_path / name).write_bytes(content)
    everything = read_word_vectors(tmp_path / name)
    assert everything.words == list(VECTORS)
    assert everything.vectors.dtype == np.float32
    assert np.allclose(everything.vectors, list(VECTORS.values()))
    some = read_word_vectors(tmp_path / name, words=["cat", "dog"])
    assert (some.words, some.vectors.tolist()) == (["cat"], [[3.0, -4.5]])


def test_word_with_spaces_is_one_word(tmp_path):
    """GloVe's file of 840 billion tokens contains a few such words."""
    (tmp_path / "v.txt").write_bytes(b"a 1 2\n. . . 3 4\n")
    assert read_word_vectors(tmp_path / "v.txt").words == ["a", ". . ."]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.txt", b"a 1 2\nb 1 2 3\n", r"v.txt:2: must be a word and 2 numbers; given 3"),
        ("v.txt", b"a 1 2\nb 1", r"v.txt:2: .* the file ends here: is it truncated\?"),
        ("v.txt", b"a 1 2\nb 1 x\n", r"v.txt:2: must be a word and 2 numbers; could not convert"),
        ("v.vec", b"3 2\na 1 2\nb 1 2\n", r"v.vec:3: truncated: must hold 3 words; given 2"),
        ("v.txt", b"", "v.txt: must hold vectors; given none"),
        ("v.bin", binary_form()[:-6], r"v.bin: word 3: truncated: must hold 3 words; given 2"),
        ("v.bin", b"hello\n", r"v.bin:1: must begin with the number of words"),
        ("v.txt.gz", gzip.compress(text_form(), mtime=0)[:-9], "v.txt.gz: truncated or not gzip"),
    ],
)
def test_invalid_vectors_raise_one_clear_error(tmp_path, name, content, message):
    """Every error names the file and the line."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_word_vectors(tmp_path / name)


# Vectors computed from a corpus


@pytest.fixture
def corpus(tmp_path):
    """Return a corpus of two topics whose words never occur together."""
    generator = np.random.default_rng(0)
    topics = [[f"a{i}" for i in range(8)], [f"b{i}" for i in range(8)]]
    lines = [" ".join(generator.choice(topics[line % 2], 6)) for line in range(400)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    config = CorpusConfig(
        path=str(tmp_path / "a.txt"), format="sentences", cache_dir=str(tmp_path / "cache")
    )
    return prepare(config, VocabularyConfig())


def test_corpus_vectors_of_one_topic_are_similar(corpus):
    """Cosines within a topic exceed those between topics, and the values have variance 1."""
    vectors = corpus_word_vectors(corpus, dim=4, seed=0)
    assert vectors.shape == (18, 4)
    assert vectors.dtype == np.float32
    assert not vectors[PAD_ID].any()
    assert vectors[1:].std() == pytest.approx(1, abs=1e-4)
    unit = vectors[2:] / np.linalg.norm(vectors[2:], axis=1, keepdims=True)
    is_a = np.array([word[0] == "a" for word in corpus.vocabulary.words[2:]])
    cosines = unit @ unit.T
    assert cosines[np.ix_(is_a, is_a)].mean() > cosines[np.ix_(is_a, ~is_a)].mean() + 0.3


def test_corpus_vectors_are_cached_and_reproducible(corpus):
    """The cached file holds the vectors that a new computation gives; a damaged one is made again."""
    first = corpus_word_vectors(corpus, dim=4, seed=1)
    (file,) = corpus.folder.glob("ppmi-*.npz")
    assert np.array_equal(corpus_word_vectors(corpus, dim=4, seed=1), first)
    whole = file.read_bytes()
    for damaged in (None, whole[:90], whole[:200] + bytes([whole[200] ^ 1]) + whole[201:], b""):
        file.unlink()
        if damaged is not None:
            file.write_bytes(damaged)
        assert np.array_equal(corpus_word_vectors(corpus, dim=4, seed=1), first)


def test_corpus_vectors_need_as_many_words_as_dimensions(corpus):
    """The error names both numbers."""
    with pytest.raises(
        DataError, match="'ppmi' with 99 dimensions must have as many words; given 18"
    ):
        corpus_word_vectors(corpus, dim=99, seed=0)


@pytest.mark.parametrize("kind", ["vectors.txt", "vectors.bin"])
def test_large_file_of_vectors_is_parsed_once(tmp_path, monkeypatch, kind):
    """A second call reads the cache, with the same result for some words as for all; a changed file is parsed anew."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    values = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    names = [f"w{number}" for number in range(49)] + ["w3"]  # the first vector of a word counts
    path = tmp_path / kind
    if kind.endswith(".bin"):
        lines = [
            f"{word} ".encode() + row.tobytes() for word, row in zip(names, values, strict=True)
        ]
        path.write_bytes(b"50 4\n" + b"".join(lines))
    else:
        path.write_text(
            "".join(
                f"{w} {' '.join(map(repr, row.tolist()))}\n"
                for w, row in zip(names, values, strict=True)
            )
        )
    plain = [read_word_vectors(path), read_word_vectors(path, words=["w7", "w3", "none"])]
    monkeypatch.setattr(vectors_module, "_CACHED_BYTES", 0)
    first = [read_word_vectors(path), read_word_vectors(path, words=["w7", "w3", "none"])]
    monkeypatch.setattr(vectors_module, "open_bytes", lambda _: pytest.fail("parsed again"))
    again = [read_word_vectors(path), read_word_vectors(path, words=["w7", "w3", "none"])]
    for expected, *others in zip(plain, first, again, strict=True):
        for found in others:
            assert found.words == expected.words
            np.testing.assert_array_equal(found.vectors, expected.vectors)
    monkeypatch.undo()


def test_word_with_a_carriage_return_shifts_no_vector_of_a_large_file(tmp_path, monkeypatch):
    """The words after it have their own vectors, as in a small file."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "vectors.txt"
    path.write_bytes(b"a 1 2\nb\rc 3 4\nd 5 6\ne\r 7 8\n")
    small = read_word_vectors(path)
    monkeypatch.setattr(vectors_module, "_CACHED_BYTES", 0)
    large = read_word_vectors(path)
    assert large.words == small.words == ["a", "b\rc", "d", "e\r"]
    np.testing.assert_array_equal(large.vectors, small.vectors)


def test_damaged_cache_of_a_large_file_of_vectors_is_made_again(tmp_path, monkeypatch):
    """A changed number, a changed word, a file that is gone."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vectors_module, "_CACHED_BYTES", 0)
    path = tmp_path / "vectors.txt"
    path.write_text("a 1 2\nb 3 4\n")
    read_word_vectors(path)
    (folder,) = (tmp_path / "cache" / "vectors").iterdir()
    for name in ("values.npy", "words.txt", "corpus.json"):
        for damaged in (lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda _: None):
            whole = (folder / name).read_bytes()
            (folder / name).unlink()
            if (data := damaged(whole)) is not None:
                (folder / name).write_bytes(data)
            found = read_word_vectors(path)
            assert found.words == ["a", "b"]
            np.testing.assert_array_equal(found.vectors, [[1, 2], [3, 4]])


def test_large_file_of_vectors_names_the_line_of_a_mistake(tmp_path, monkeypatch):
    """The error is that of a small file, and words of other lines can be read."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vectors_module, "_CACHED_BYTES", 0)
    path = tmp_path / "vectors.txt"
    path.write_text("a 1 2\nb nan 1\nc 3 x\n")
    with pytest.raises(DataError, match=r"vectors\.txt:3: must be a word and 2 numbers"):
        read_word_vectors(path, words=["c"])
    with pytest.raises(DataError, match=r"vectors\.txt:2: must hold finite numbers"):
        read_word_vectors(path, words=["b"])
    assert read_word_vectors(path, words=["a"]).words == ["a"]
