"""Nearest sentences: exact search against a plain one, distinct sentences, the index, the comparison of models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import reference
from command import CommandLine

from raysent.analysis import neighbours as module
from raysent.analysis.neighbours import CorpusVectors, find_neighbours, open_index, read_comparison
from raysent.data.corpus import CorpusConfig
from raysent.data.corpus.distinct import distinct_sentences
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.evaluation import nearest
from raysent.evaluation.members import expand
from raysent.evaluation.nearest import nearest_codes, nearest_vectors
from raysent.kernels.compiled import try_load
from raysent.models.codes import pack_bits
from raysent.models.schemes.hash import HashEncoder
from raysent.models.sentence_encoder import SentenceEncoder, normalize_rows

TEXT = "a cat sat on the mat\na dog  sat on the mat\n\na cat sat on the mat\nthe rain fell all night\na cat sat there\n"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return the command line."""
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CorpusConfig:
    """Return a corpus of four distinct sentences with its own cache."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(TEXT)
    return CorpusConfig(path=str(tmp_path / "text.txt"))


class Bits(SentenceEncoder):
    """A code: whether each letter occurs."""

    similarity_measure = "hamming"

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> np.ndarray:
        """Return the bits."""
        return np.array([[float(chr(97 + letter) in text) for letter in range(26)] for text in sentences], np.float32)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the number of letters."""
        return 26


class Counting(HashEncoder):
    """Counts the sentences that it encodes; is interrupted at the `breaks_at`th."""

    def __init__(self, dim: int, breaks_at: int | None = None) -> None:
        super().__init__(dim)
        self.num_encoded, self._breaks_at = 0, breaks_at

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> np.ndarray:
        """Return the vectors, or raise."""
        self.num_encoded += len(sentences)
        if self._breaks_at is not None and self.num_encoded >= self._breaks_at:
            raise KeyboardInterrupt
        return super().encode_texts(sentences)


@pytest.mark.parametrize("num_bytes", [1, 3, 8, 25, 37, 64, 100, 128, 256, 320, 512])
@pytest.mark.parametrize("num_rows", [5, 333])
@pytest.mark.parametrize("has_kernel", [True, False])
def test_nearest_codes_equals_a_plain_search(monkeypatch, num_bytes, num_rows, has_kernel) -> None:
    """Bit by bit, by the kernel and by FAISS; few bits differ, so many codes are equal, and these are in order of rows."""
    if not has_kernel:
        monkeypatch.setattr(nearest, "try_load", lambda _: None)
    elif try_load("hamming") is None:
        pytest.skip("no C++ compiler")
    generator = np.random.default_rng(num_bytes)
    codes = np.zeros((num_rows, num_bytes), np.uint8)
    codes[:, [0, -1]] = generator.integers(0, 4, (num_rows, 2))
    queries = codes[generator.integers(0, num_rows, 70)] ^ generator.integers(0, 2, (70, num_bytes), np.uint8)
    hits = nearest_codes(codes, queries, k=9)
    bits = np.unpackbits(codes, axis=1)
    for number in range(0, 70, 30):
        expected = reference.nearest_by_bits(bits, np.unpackbits(queries[number]), 9)
        assert list(zip(hits.rows[number].tolist(), hits.scores[number].tolist(), strict=True)) == expected
    assert (hits.rows.dtype, hits.scores.dtype) == (np.int64, np.int64)


def test_search_without_faiss_is_refused_in_one_line(monkeypatch, corpus) -> None:
    """The line names the extra."""
    monkeypatch.setattr(nearest, "find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match=r"^search of vectors: needs the package faiss-cpu; install raysent\[search\]$"
    ):
        find_neighbours(["hash:5"], CorpusVectors(corpus), ["a cat"])


def test_nearest_vectors_equals_a_plain_search() -> None:
    """Rows and cosines are those of float64 products, one vector at a time; zeros have cosine 0."""
    generator = np.random.default_rng(0)
    vectors = normalize_rows(generator.standard_normal((500, 6)).astype(np.float32))
    vectors[17] = 0
    queries = normalize_rows(generator.standard_normal((70, 6)).astype(np.float32))
    hits = nearest_vectors(vectors, queries, k=9)
    for number in range(0, 70, 10):
        expected = reference.nearest_by_cosine(vectors, queries[number], 9)
        assert hits.rows[number].tolist() == [row for row, _ in expected]
        assert np.allclose(hits.scores[number], [cosine for _, cosine in expected], atol=1e-7)


@pytest.mark.parametrize("dim", [3, 48])
def test_nearest_vectors_orders_equal_ones_by_row(dim) -> None:
    """Rows with the same vector are in the order of the corpus, in every block and beside any other query."""
    one, other = normalize_rows(np.random.default_rng(0).standard_normal((2, dim)).astype(np.float32))
    vectors = np.tile(other, (200_000, 1))
    places = [5, 70_001, 70_002, 150_000, 199_999]
    vectors[places] = one
    single = nearest_vectors(vectors, one[None], k=4)
    beside = nearest_vectors(vectors, np.stack([other, one, other]), k=4)
    assert single.rows.tolist() == [places[:4]]
    assert beside.rows.tolist() == [[0, 1, 2, 3], places[:4], [0, 1, 2, 3]]
    assert np.array_equal(single.scores[0], beside.scores[1])


def test_nearest_vectors_orders_by_float64(monkeypatch) -> None:
    """Cosines that differ by less than the rounding of a float32 product are ordered by float64."""
    generator = np.random.default_rng(1)
    base = generator.standard_normal(64)
    vectors = normalize_rows((base + 1e-5 * generator.standard_normal((400, 64))).astype(np.float32))
    query = normalize_rows(base.astype(np.float32)[None])
    exact = vectors.astype(np.float64) @ query[0].astype(np.float64)
    assert nearest_vectors(vectors, query, k=20).rows[0].tolist() == np.argsort(-exact, kind="stable")[:20].tolist()


def test_nearest_returns_all_rows_of_a_small_corpus() -> None:
    """Fewer rows than k are all returned."""
    vectors = normalize_rows(np.eye(3, dtype=np.float32))
    assert nearest_vectors(vectors, vectors[:1], k=10).rows.tolist() == [[0, 1, 2]]
    assert nearest_codes(pack_bits(np.eye(3, dtype=int)), pack_bits([[0, 0, 1]]), k=10).rows.tolist() == [[2, 0, 1]]


def test_distinct_sentences_keeps_the_first_of_equal_ones(corpus) -> None:
    """Sentences are in order of first appearance, with single blanks."""
    found = distinct_sentences(corpus)
    expected = list(dict.fromkeys(" ".join(line.split()) for line in TEXT.split("\n") if line))
    assert found.texts(range(len(found))) == expected
    assert found.texts([2, 0]) == [expected[2], expected[0]]


def test_distinct_sentences_stops_at_the_configured_number(corpus) -> None:
    """The limit counts sentences before duplicates are removed."""
    assert len(distinct_sentences(corpus.model_copy(update={"max_sentences": 4}))) == 3


def test_distinct_sentences_refuses_an_empty_text(corpus, tmp_path) -> None:
    """A text without sentences is an error of one line."""
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(DataError, match=r"^corpus.path: .*empty.txt: must hold sentences; given none$"):
        distinct_sentences(CorpusConfig(path=str(tmp_path / "empty.txt")))


def test_open_index_continues_after_an_interruption(corpus, monkeypatch) -> None:
    """Complete blocks are kept except the last, which may be torn; the vectors are those of an uninterrupted build."""
    monkeypatch.setattr(module, "_BLOCK_SENTENCES", 1)
    sentences, member = distinct_sentences(corpus), expand(["hash:5"])[0]
    with pytest.raises(KeyboardInterrupt):
        open_index(member, Counting(5, breaks_at=4), sentences)
    again = Counting(5)
    index = open_index(member, again, sentences)
    assert again.num_encoded == 2
    assert np.array_equal(index.rows, HashEncoder(5).encode(sentences.texts(range(4)), normalize_embeddings=True))
    open_index(member, again, sentences)
    assert again.num_encoded == 2


def test_open_index_rebuilds_a_shortened_file(corpus) -> None:
    """A file of vectors that has another size than its summary says is written again."""
    sentences, member = distinct_sentences(corpus), expand(["hash:5"])[0]
    index = open_index(member, HashEncoder(5), sentences)
    expected = index.rows.copy()
    path = index.folder / "vectors.bin"
    path.write_bytes(path.read_bytes()[:-3])
    assert np.array_equal(open_index(member, HashEncoder(5), sentences).rows, expected)


def test_open_index_refuses_nan(corpus) -> None:
    """The error names the model and the sentence."""

    class Broken(HashEncoder):
        def encode_texts(self, sentences, **_):
            return np.full((len(sentences), 5), np.nan, np.float32)

    with pytest.raises(DataError, match=r"^Broken: 'a cat sat on the mat': the vector must be finite; given NaN"):
        open_index(expand(["hash:5"])[0], Broken(5), distinct_sentences(corpus))


def test_neighbours_excludes_the_query_and_duplicates(corpus) -> None:
    """The query is not its own neighbour, unless `includes_query`."""
    found = find_neighbours(["hash:50"], CorpusVectors(corpus), ["a cat  sat on the mat"], k=2)
    assert [one.sentence for one in found.columns[0].neighbours[0]] == ["a dog sat on the mat", "a cat sat there"]
    with_itself = find_neighbours(
        ["hash:50"], CorpusVectors(corpus), ["a cat sat on the mat"], k=2, includes_query=True
    )
    first, second = with_itself.columns[0].neighbours[0]
    assert (first.sentence, second.sentence) == ("a cat sat on the mat", "a dog sat on the mat")
    assert first.score == pytest.approx(1, abs=1e-6)


def test_neighbours_compares_a_code_with_vectors(corpus) -> None:
    """A model with a code is searched by Hamming distance; here the bits are letters."""
    encoders = {"hash:50": HashEncoder(50), "hash:51": Bits()}
    found = find_neighbours(
        ["hash:50", "hash:51"], CorpusVectors(corpus, load=encoders.get), ["a cot sat on the mat"], k=1
    )
    assert [column.measure for column in found.columns] == ["cosine", "hamming"]
    best = found.columns[1].neighbours[0][0]
    assert (best.sentence, best.score) == ("a cat sat on the mat", 0)


@pytest.mark.parametrize(
    ("queries", "message"), [([], "at least one sentence; given none"), (["a", " "], "2 is empty")]
)
def test_neighbours_refuses_empty_queries(corpus, queries, message) -> None:
    """No query or an empty one is an error."""
    with pytest.raises(ConfigError, match=f"^queries: .*{message}$"):
        find_neighbours(["hash:5"], CorpusVectors(corpus), queries)


def test_neighbours_refuses_a_k_of_zero(corpus) -> None:
    """At least one neighbour is needed."""
    with pytest.raises(ConfigError, match="^k: must be at least 1; given 0$"):
        find_neighbours(["hash:5"], CorpusVectors(corpus), ["a"], k=0)


def test_read_comparison_returns_what_was_saved(corpus, tmp_path) -> None:
    """A comparison survives its file; another file is refused."""
    found = find_neighbours(["hash:5", "hash:6"], CorpusVectors(corpus), ["a cat", "rain"], k=3)
    assert read_comparison(tmp_path) is None
    module.save_comparison(tmp_path, found)
    assert read_comparison(tmp_path) == found
    (tmp_path / "neighbours.json").write_text('{"kind": "raysent-neighbours-table"}')
    with pytest.raises(ArtifactError, match=r"neighbours.json: not a table of neighbours of this version; run"):
        read_comparison(tmp_path)


def test_command_neighbours_prints_models_side_by_side(command, corpus, tmp_path) -> None:
    """One table per query, one column per model; queries also come from a file."""
    (tmp_path / "queries.txt").write_text("the rain fell\n")
    ran = command(
        "neighbours",
        "hash:50",
        "hash:20",
        corpus.path,
        "--queries",
        tmp_path / "queries.txt",
        "--query",
        "a cat",
        "-k",
        1,
    )
    assert ran.code == 0, ran.err
    lines = [line.rstrip() for line in ran.out.splitlines() if line.strip()]
    assert lines[0].startswith("4 sentences of ")
    assert [lines[1], lines[4]] == ["a cat", "the rain fell"]
    assert lines[5].split() == ["cosine", "hash:50", "cosine", "hash:20"]
    assert lines[6].count("the rain fell all night") == 2


def test_command_neighbours_prints_one_json_object(command, corpus) -> None:
    """`--json` prints the comparison."""
    ran = command("neighbours", "hash:50", corpus.path, "--query", "a cat sat on the mat", "-k", 2, "--json")
    found = json.loads(ran.out)
    assert found["num_sentences"] == 4
    assert [one["sentence"] for one in found["columns"][0]["neighbours"][0]] == [
        "a dog sat on the mat",
        "a cat sat there",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hash:5", "docs"), "--query: must be given at least once, or a file of queries; given neither"),
        (
            ("hash:5", "hash:6", "--query", "a"),
            "corpus: must be a text to search; given the model hash:6",
        ),
        (("hash:5", "no-such.txt", "--query", "a"), "corpus.path: no-such.txt: no such file or folder"),
        (("hash:5", "docs", "--query", "a", "-k", "0"), "-k"),
    ],
)
def test_command_neighbours_refuses_in_one_line(command, corpus, arguments, message) -> None:
    """A wrong argument is an error of one line that says what must hold."""
    ran = command("neighbours", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
