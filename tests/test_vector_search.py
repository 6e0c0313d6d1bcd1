"""Nearest sentences of a folder of vectors: against plain sorting, with and without an index of FAISS."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import CommandLine

import raysent
from raysent.analysis import vector_search as module
from raysent.analysis.neighbours import find_neighbours
from raysent.analysis.vector_search import FolderVectors, index_vectors
from raysent.data.vocabulary import Vocabulary
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.exports import corpus
from raysent.exports.corpus import Encoding, encode_corpus
from raysent.models import ModelConfig, SentenceModel, vector_folder
from raysent.models.sentence_encoder import normalize_rows

WORDS = ["a", "the", "cat", "sat", "on", "mat", "rain", "fell", "all", "night", "good", "film"]
QUERIES = ["the cat sat", "a good film all night"]


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write two files, one of which repeats a query more often than any search asks at first; return all lines."""
    monkeypatch.setattr(corpus, "BLOCK_SENTENCES", 50)
    monkeypatch.setattr(vector_folder, "_BATCH_ROWS", 40)
    generator = np.random.default_rng(0)
    lines = [" ".join(generator.choice(WORDS, size=generator.integers(0, 9))) for _ in range(150)]
    lines[20:70] = ["the  cat sat"] * 50
    (tmp_path / "in").mkdir()
    for name, some in (("a.txt", lines[:110]), ("b.txt", lines[110:])):
        (tmp_path / "in" / name).write_text("".join(f"{line}\n" for line in some))
    return lines


@pytest.fixture
def bits(tmp_path: Path) -> str:
    """Return the folder of a model with a code of 12 bits."""
    config = ModelConfig.model_validate(
        {
            "encoder": {"type": "gru", "hidden_size": 6, "embedding": {"dim": 5}},
            "objective": {"type": "context_prediction"},
            "code": {"type": "threshold"},
        }
    )
    built = SentenceModel.build(config, Vocabulary(["<pad>", "<unk>", *WORDS]), seed=1, max_length=20)
    built.eval().save(tmp_path / "bits")
    return str(tmp_path / "bits")


def plain_neighbours(model: str, lines: list[str], query: str, *, k: int) -> list[float]:
    """Return the scores of the k nearest distinct lines, nearest first, without the query."""
    encoder = raysent.load(model)
    distinct = sorted({" ".join(line.split()) for line in lines} - {query, ""})
    if encoder.similarity_measure == "hamming":
        differing = encoder.encode(distinct) != encoder.encode([query])
        return sorted(differing.sum(axis=1).tolist())[:k]
    cosines = normalize_rows(encoder.encode(distinct)) @ normalize_rows(encoder.encode([query]))[0]
    return sorted(cosines.tolist(), reverse=True)[:k]


@pytest.mark.parametrize("has_index", [False, True])
@pytest.mark.parametrize("precision", ["float32", "ubinary", "bits as float32"])
def test_search_folder_finds_the_nearest_distinct_sentences(texts, bits, tmp_path, precision, has_index) -> None:
    """The scores are those of sorting all; a query is not its own neighbour unless asked for."""
    model = "hash:16" if precision == "float32" else bits
    encoding = Encoding("ubinary" if precision == "ubinary" else "float32")
    encode_corpus(model, tmp_path / "in", tmp_path / "out", encoding=encoding)
    index = tmp_path / "index.faiss" if has_index else None
    if index is not None:
        pytest.importorskip("faiss")
        assert index_vectors(tmp_path / "out", index, progress=False).num_rows == 150
    found = find_neighbours([model], FolderVectors(tmp_path / "out", index=index), QUERIES, k=6)
    for query, neighbours in zip(QUERIES, found.columns[0].neighbours, strict=True):
        scores = [one.score for one in neighbours]
        np.testing.assert_allclose(scores, plain_neighbours(model, texts, query, k=6), atol=1e-5)
        assert len({one.sentence for one in neighbours} - {query}) == 6
    with_query = find_neighbours(
        [model], FolderVectors(tmp_path / "out", index=index), QUERIES[:1], k=1, includes_query=True
    )
    assert with_query.columns[0].neighbours[0][0].sentence == "the cat sat"


def test_search_folder_with_cells_finds_what_is_near(texts, tmp_path, monkeypatch) -> None:
    """An index of which all cells are read finds the same; too few rows are refused."""
    pytest.importorskip("faiss")
    encode_corpus("hash:16", tmp_path / "in", tmp_path / "out")
    with pytest.raises(ConfigError, match="ivf: needs at least 10,000 vectors; given 150; leave it out"):
        index_vectors(tmp_path / "out", tmp_path / "index", ivf=True, progress=False)
    monkeypatch.setattr(module, "MIN_IVF_ROWS", 100)
    assert index_vectors(tmp_path / "out", tmp_path / "index", ivf=True, progress=False).num_cells == 3
    exact = find_neighbours(["hash:16"], FolderVectors(tmp_path / "out"), QUERIES, k=4)
    found = find_neighbours(["hash:16"], FolderVectors(tmp_path / "out", index=tmp_path / "index"), QUERIES, k=4)
    for one, other in zip(found.columns[0].neighbours, exact.columns[0].neighbours, strict=True):
        assert [neighbour.sentence for neighbour in one] == [neighbour.sentence for neighbour in other]


def test_search_folder_without_texts_names_file_and_row(texts, tmp_path) -> None:
    """Rows count from 1, as an editor counts lines."""
    encode_corpus("hash:16", tmp_path / "in", tmp_path / "out", keeps_text=False)
    found = find_neighbours(["hash:16"], FolderVectors(tmp_path / "out"), [texts[115]], k=1)
    assert found.columns[0].neighbours[0][0].sentence == "b.txt:6"


def test_search_folder_refuses_in_one_line(texts, tmp_path) -> None:
    """Another model, an index of vectors that have changed, a damaged index, a folder of something else."""
    pytest.importorskip("faiss")
    out, index = tmp_path / "out", tmp_path / "index"
    encode_corpus("hash:16", tmp_path / "in", out)
    index_vectors(out, index, progress=False)
    with pytest.raises(ArtifactError, match="out: holds vectors of the model hash:16, not of hash:9; name that model"):
        find_neighbours(["hash:9"], FolderVectors(out), QUERIES)
    with pytest.raises(ConfigError, match="queries: must be at least one sentence"):
        find_neighbours(["hash:16"], FolderVectors(out), [])
    with pytest.raises(ArtifactError, match="in: must be a folder of vectors; no vectors.json is there"):
        find_neighbours(["hash:16"], FolderVectors(tmp_path / "in"), QUERIES)
    (tmp_path / "in" / "c.txt").write_text("one more\n")
    encode_corpus("hash:16", tmp_path / "in", out)
    with pytest.raises(ArtifactError, match="index: is of other vectors than .* has now; run 'raysent index"):
        find_neighbours(["hash:16"], FolderVectors(out, index=index), QUERIES)
    (tmp_path / "empty.txt").write_text("")
    encode_corpus("hash:16", tmp_path / "empty.txt", tmp_path / "none")
    with pytest.raises(DataError, match="none: must hold at least one vector; given none"):
        index_vectors(tmp_path / "none", index, progress=False)


def test_neighbours_refuses_a_damaged_index_or_vector_in_one_line(texts, tmp_path, monkeypatch, capsys) -> None:
    """Numbers that FAISS and Parquet would read as they are; the index that is made again is read."""
    pytest.importorskip("faiss")
    command = CommandLine(monkeypatch, capsys)
    out, index = tmp_path / "out", tmp_path / "index"
    encode_corpus("hash:16", tmp_path / "in", out)
    index_vectors(out, index, progress=False)
    ask = ("neighbours", "hash:16", out, "--query", QUERIES[1], "--json")
    expected, whole = command(*ask, "--index", index).out, index.read_bytes()
    again = f"run 'raysent index {out} -o {index}'"
    said = f"error: {index}: missing or damaged: must have the SHA-256 that is in index.json; {again}\n"
    for damaged in (whole[:100], whole[:-400] + b"\x7e" * 400, b"", None):
        index.unlink()
        if damaged is not None:
            index.write_bytes(damaged)
        ran = command(*ask, "--index", index)
        assert (ran.code, ran.out, ran.err) == (2, "", said)
        index.touch()
    assert command("index", out, "-o", index).code == 0
    assert command(*ask, "--index", index).out == expected
    zero_a_vector(out / "a.txt.parquet", texts[3])
    for ran in (command(*ask), command("index", out, "-o", index)):
        assert (ran.code, ran.out) == (2, "")
        assert f"error: {out / 'a.txt.parquet'}: not vectors, or damaged" in ran.err
        assert "run 'raysent encode' again" in ran.err
    assert index.read_bytes() == whole


def zero_a_vector(path: Path, text: str) -> None:
    """Overwrite the vector of a text by zeros, in the bytes of a Parquet file."""
    vector = np.asarray(raysent.load("hash:16").encode([text]), np.float32).tobytes()
    data = path.read_bytes()
    assert vector in data
    path.write_bytes(data.replace(vector, bytes(len(vector))))


def test_a_flipped_bit_of_a_file_of_vectors_is_found_or_has_no_effect(tmp_path) -> None:
    """In every sixth byte of pages, of their headers and of the footer; nothing but an `ArtifactError` is raised."""
    (tmp_path / "a.txt").write_text("".join(f"{word} cat\n" for word in WORDS))
    encode_corpus("hash:4", tmp_path / "a.txt", tmp_path / "out")
    folder, path = vector_folder.VectorFolder(tmp_path / "out"), tmp_path / "out" / "a.txt.parquet"

    def rows() -> list[tuple[int, bytes, list[str] | None]]:
        assert len(folder.files()) == 1
        return [(batch.first_row, batch.vectors.tobytes(), batch.texts) for batch in folder.batches()]

    expected, whole, file = rows(), path.read_bytes(), folder.find_file("a.txt")
    num_refused = 0
    for at in range(0, len(whole), 6):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at // 2 % 8]) + whole[at + 1 :])
        found = folder.find_file("a.txt")
        try:
            assert rows() == expected, at
        except ArtifactError:
            num_refused += 1
            assert found != file
    assert num_refused > len(whole) // 12


def test_neighbours_refuses_vectors_of_another_format_than_their_folder(texts, tmp_path) -> None:
    """A folder's `vectors.json` whose values were changed."""
    encode_corpus("hash:16", tmp_path / "in", tmp_path / "out")
    about = tmp_path / "out" / "vectors.json"
    about.write_text(about.read_text().replace('"dim": 16', '"dim": 17'))
    with pytest.raises(ArtifactError, match=r"a\.txt\.parquet: must be as vectors\.json says, or one is damaged"):
        find_neighbours(["hash:16"], FolderVectors(tmp_path / "out"), QUERIES)


def test_neighbours_and_index_commands_read_a_folder_of_vectors(texts, tmp_path, monkeypatch, capsys) -> None:
    """Both print what they found; --index needs such a folder."""
    pytest.importorskip("faiss")
    command = CommandLine(monkeypatch, capsys)
    out, index = tmp_path / "out", tmp_path / "index"
    encode_corpus("hash:16", tmp_path / "in", out)
    assert command("index", out, "-o", index).out == f"{index}: 150 vectors by cosine, exact\n"
    shown = [
        json.loads(command("neighbours", "hash:16", out, "--query", QUERIES[1], "--json", *options).out)
        for options in ([], ["--index", index])
    ]
    sentences = [[one["sentence"] for one in table["columns"][0]["neighbours"][0]] for table in shown]
    assert sentences[0] == sentences[1]
    assert shown[0]["num_sentences"] == 150
    ran = command("neighbours", "hash:16", tmp_path / "in", "--query", "a", "--index", index)
    assert (ran.code, "--index: must be used with a folder of vectors" in ran.err) == (2, True)
    assert command("neighbours", "hash:16", out, "--query", "a", "--set", "column=b").code == 2
