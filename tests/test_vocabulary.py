"""Tokens, ids and word vectors."""

import gzip
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.vocabulary import (
    PAD_ID,
    UNK_ID,
    ChunkTable,
    Sentences,
    Vocabulary,
    VocabularyConfig,
    as_rows,
    build_vocabulary,
    corpus_word_vectors,
    ragged_indices,
    ragged_sums,
    read_word_vectors,
)
from raysent.data.vocabulary import tokens as tokens_module
from raysent.errors import ArtifactError, DataError

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
        ("a well-known, 3.5 or 1,000 o'clock U.S. rule", "a well-known , 3.5 or 1,000 o'clock U.S. rule"),
        ("call numpy.array(n_jobs=2)...", "call numpy.array ( n_jobs = 2 ) ..."),
        ("yes—no – or--so…", "yes -- no -- or -- so ..."),
        ("the dogs' <unk> 'tis 'so'", "the dogs ' <unk> ' tis ' so '"),
        ("Café naïve 1990s 50%", "Café naïve 1990s 50 %"),
    ],
)
def test_tokenize_follows_the_treebank(sentence, expected):
    """Running text and tokenised text come to the same tokens."""
    assert tokens(sentence) == expected


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="aBcdt nsN'’\"`.,-—1é_!…\n\t<>", max_size=30))
def test_tokenize_leaves_its_own_tokens_as_they_are(sentence):
    """Tokens joined by blanks are tokens already, and no character of a word is lost."""
    once = tokens(sentence)
    assert tokens(once) == once
    assert [c for c in once if c.isalnum()] == [c for c in sentence.replace("’", "'") if c.isalnum()]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="aMrnotcé²１ß.,!\"'", min_size=1, max_size=7))
def test_short_cut_for_plain_chunks_agrees_with_the_pattern(chunk):
    """What is tokenised without the pattern is what the pattern gives."""
    plain = tokens_module._plain_tokens(chunk)
    assert plain is None or plain == next(tokens_module._matched_tokens([chunk]))


@pytest.mark.parametrize("chunk", ["cannot", "Cannot,", "Mr.", "etc.", "a", "I.", "word", "word;", 'word"', "été?"])
def test_short_cut_agrees_on_the_special_ones(chunk):
    """Contractions and abbreviations are left to the pattern."""
    plain = tokens_module._plain_tokens(chunk)
    assert plain is None or plain == next(tokens_module._matched_tokens([chunk]))


# Ids


def test_ids_look_words_up():
    """Known words have their id, others UNK_ID."""
    rows = WORDS.ids(["the cat sat.", "The cat"], max_length=50)
    assert rows.ids.tolist() == [2, 3, 4, 5, UNK_ID, 3]
    assert rows.ids.dtype == np.int32
    assert rows.lengths.tolist() == [4, 2]


def test_ids_of_a_sentence_without_known_words_is_one_unknown():
    """An empty sentence and one of unknown words only are a single UNK_ID, wherever they stand."""
    rows = WORDS.ids(["", "blue sky", "the cat", "  "], max_length=50)
    assert rows.ids.tolist() == [UNK_ID, UNK_ID, 2, 3, UNK_ID]
    assert rows.lengths.tolist() == [1, 1, 2, 1]
    assert WORDS.ids([], max_length=50).lengths.tolist() == []


def test_ids_take_a_nul_for_white_space():
    """The mark that stands between sentences inside is harmless in a text."""
    assert WORDS.ids(["the\0cat", "\0", "sat"], max_length=9).lengths.tolist() == [2, 1, 1]


def test_ids_cut_a_longer_sentence():
    """The first tokens stay; what is known is judged before the cut."""
    assert WORDS.ids(["blue the cat"], max_length=1).ids.tolist() == [UNK_ID]
    assert WORDS.ids(["the cat sat", "cat"], max_length=2).lengths.tolist() == [2, 1]


def test_lowercase_vocabulary_lowers_text():
    """Case is dropped before look-up."""
    lowered = Vocabulary(WORDS.words, lowercase=True)
    assert lowered.ids(["THE Cat"], max_length=9).ids.tolist() == [2, 3]
    assert lowered.tokenize(["DON'T, Mr. X"]) == [["do", "n't", ",", "mr.", "x"]]


def test_ids_do_not_depend_on_the_sentences_beside_them():
    """A table filled by other text gives the same ids."""
    sentence = "the cat's well-known cat sat."
    alone = Vocabulary(WORDS.words).ids([sentence], max_length=50)
    WORDS.ids(["other text the cat's cat.", sentence, "more"], max_length=50)
    assert np.array_equal(WORDS.ids([sentence], max_length=50).ids, alone.ids)


def test_chunk_table_that_overflows_gives_the_same_ids():
    """Emptying the table bounds memory and changes nothing."""
    sentences = [f"word{i} the cat{i % 7}." for i in range(50)]
    number: dict[str, int] = {}
    whole = ChunkTable(lambda word: number.setdefault(word, len(number))).encode(sentences)
    small = ChunkTable(number.__getitem__, max_chunks=3)
    parts = [small.encode([sentence]).ids for sentence in sentences]
    assert np.array_equal(np.concatenate(parts), whole.ids)


def test_ragged_helpers_agree_with_loops():
    """Indices and sums of rows, empty ones too."""
    starts, lengths = np.array([5, 9, 2]), np.array([2, 0, 3])
    assert ragged_indices(starts, lengths).tolist() == [5, 6, 2, 3, 4]
    assert ragged_sums(np.array([1, 2, 3, 4, 5]), lengths).tolist() == [3, 0, 12]


def test_as_rows_keeps_what_fits():
    """Rows within the limit are unchanged."""
    rows = Sentences(np.array([2, 3, 4], dtype=np.int32), np.array([2, 1]))
    assert as_rows(rows, max_length=2).ids.tolist() == [2, 3, 4]


# The vocabulary


def test_build_vocabulary_sorts_by_count_then_word():
    """Ties stand in alphabetical order; the size counts every row."""
    counts = [("b", 2), ("a", 2), ("c", 5), ("d", 1)]
    assert build_vocabulary(counts, VocabularyConfig(size=5)).words == ["<pad>", "<unk>", "c", "a", "b"]
    assert build_vocabulary(counts, VocabularyConfig(min_count=3)).words == ["<pad>", "<unk>", "c"]


def test_build_vocabulary_adds_cases_up_where_they_are_dropped():
    """Counts of both cases count together; the text's own unknown word is no new word."""
    counts = [("A", 1), ("a", 1), ("b", 1), ("<unk>", 9)]
    assert build_vocabulary(counts, VocabularyConfig(lowercase=True)).words == ["<pad>", "<unk>", "a", "b"]


@pytest.mark.parametrize("lowercase", [False, True])
def test_vocabulary_round_trip(tmp_path, lowercase):
    """A saved or sent vocabulary is the same."""
    vocabulary = Vocabulary([*WORDS.words, "é", "#", "\u2028x"], lowercase=lowercase)
    vocabulary.save(tmp_path / "vocabulary.txt")
    for again in (Vocabulary.load(tmp_path / "vocabulary.txt"), pickle.loads(pickle.dumps(vocabulary))):
        assert (again.words, again.lowercase) == (vocabulary.words, lowercase)
        assert len(again) == 9


@pytest.mark.parametrize("content", [b"", b"hello\n", b"#lowercase=false\n<pad>\n<unk>\nthe", b"\xff\xfe"])
def test_foreign_vocabulary_is_refused(tmp_path, content):
    """A truncated file or one of another kind is a clear line."""
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
    """Return the vectors in word2vec's binary form."""
    rows = [word.encode() + b" " + struct.pack("<2f", *vector) + separator for word, vector in VECTORS.items()]
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
def test_read_word_vectors_understands_each_form(tmp_path, name, content):
    """All forms give the same vectors, and only the words asked for."""
    (tmp_path / name).write_bytes(content)
    everything = read_word_vectors(tmp_path / name)
    assert everything.words == list(VECTORS)
    assert everything.vectors.dtype == np.float32
    assert np.allclose(everything.vectors, list(VECTORS.values()))
    some = read_word_vectors(tmp_path / name, words=["cat", "dog"])
    assert (some.words, some.vectors.tolist()) == (["cat"], [[3.0, -4.5]])


def test_word_with_spaces_is_one_word(tmp_path):
    """GloVe's file of 840 billion tokens has a few."""
    (tmp_path / "v.txt").write_bytes(b"a 1 2\n. . . 3 4\n")
    assert read_word_vectors(tmp_path / "v.txt").words == ["a", ". . ."]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.txt", b"a 1 2\nb 1\n", r"v.txt:2: must be a word and 2 numbers; given 1 numbers$"),
        ("v.txt", b"a 1 2\nb 1 2 3\n", r"v.txt:2: must be a word and 2 numbers; given 3"),
        ("v.txt", b"a 1 2\nb 1", r"v.txt:2: .* the file ends here: is it truncated\?"),
        ("v.txt", b"a 1 2\nb 1 x\n", r"v.txt:2: must be a word and 2 numbers; could not convert"),
        ("v.txt", b"a 1 2\nb nan 2\n", r"v.txt:2: must hold finite numbers; given NaN or infinity for the word 'b'"),
        ("v.vec", b"3 2\na 1 2\nb 1 2\n", r"v.vec:3: truncated: must hold 3 words; given 2"),
        ("v.txt", b"", "v.txt: must hold vectors; given none"),
        ("v.bin", binary_form()[:-6], r"v.bin: word 3: truncated: must hold 3 words; given 2"),
        ("v.bin", b"hello\n", r"v.bin:1: must begin with the number of words"),
        ("v.txt.gz", gzip.compress(text_form(), mtime=0)[:-9], "v.txt.gz: truncated or not gzip"),
    ],
)
def test_wrong_vectors_are_one_clear_line(tmp_path, name, content, message):
    """Each way a file can be wrong names the file and the line."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_word_vectors(tmp_path / name)


def test_missing_vectors_are_one_clear_line(tmp_path):
    """A missing file, and one without a word of ours."""
    with pytest.raises(DataError, match="none.txt: no such file of word vectors"):
        read_word_vectors(tmp_path / "none.txt")
    (tmp_path / "v.txt").write_bytes(text_form())
    with pytest.raises(DataError, match="must hold any of the words asked for; given none"):
        read_word_vectors(tmp_path / "v.txt", words=["dog"])


# Vectors counted from a corpus


@pytest.fixture
def corpus(tmp_path):
    """Return a corpus of two topics whose words never meet."""
    generator = np.random.default_rng(0)
    topics = [[f"a{i}" for i in range(8)], [f"b{i}" for i in range(8)]]
    lines = [" ".join(generator.choice(topics[line % 2], 6)) for line in range(400)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    config = CorpusConfig(path=str(tmp_path / "a.txt"), format="sentences", cache_dir=str(tmp_path / "cache"))
    return prepare(config, VocabularyConfig())


def test_corpus_vectors_put_words_of_one_topic_together(corpus):
    """Cosines within a topic are above those across, and the values have variance 1."""
    vectors = corpus_word_vectors(corpus, dim=4, seed=0)
    assert vectors.shape == (18, 4)
    assert vectors.dtype == np.float32
    assert not vectors[PAD_ID].any()
    assert vectors[1:].std() == pytest.approx(1, abs=1e-4)
    unit = vectors[2:] / np.linalg.norm(vectors[2:], axis=1, keepdims=True)
    is_a = np.array([word[0] == "a" for word in corpus.vocabulary.words[2:]])
    cosines = unit @ unit.T
    assert cosines[np.ix_(is_a, is_a)].mean() > cosines[np.ix_(is_a, ~is_a)].mean() + 0.3


def test_corpus_vectors_are_kept_and_repeatable(corpus):
    """The file beside the corpus holds what a fresh count gives."""
    first = corpus_word_vectors(corpus, dim=4, seed=1)
    (file,) = corpus.folder.glob("ppmi-*.npz")
    assert np.array_equal(corpus_word_vectors(corpus, dim=4, seed=1), first)
    file.unlink()
    assert np.array_equal(corpus_word_vectors(corpus, dim=4, seed=1), first)


def test_corpus_vectors_need_as_many_words_as_dimensions(corpus):
    """The message names both numbers."""
    with pytest.raises(DataError, match="'ppmi' with 99 dimensions must have as many words; given 18"):
        corpus_word_vectors(corpus, dim=99, seed=0)
