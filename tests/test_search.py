"""A folder of passages: indexed, added to, and searched by vectors, by codes, by words and by both."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from command import CommandLine
from tables import WORDS

import raysent
from raysent.data.vocabulary import Vocabulary
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.evaluation.fusion import Ranking, fuse
from raysent.evaluation.retrieval import fit_weight, measure, rank
from raysent.evaluation.task import RetrievalData
from raysent.models import ModelConfig, SentenceModel, load, vector_folder
from raysent.models.schemes.bm25 import Bm25Index
from raysent.models.schemes.hash import HashEncoder
from raysent.models.sentence_encoder import JoinedEncoders, normalize_rows
from raysent.models.vector_folder import VectorFolder, VectorFormat
from raysent.passages.index import Hit, SearchIndex, read_queries
from raysent.storage import file_sha256


@pytest.fixture
def passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write two files of passages, one of which is empty, and return all of them in order."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    lines = [" ".join(generator.choice(WORDS, size=generator.integers(2, 9))) for _ in range(150)]
    (tmp_path / "texts").mkdir()
    for name, some in (("a.txt", lines[:100]), ("b.txt", lines[100:])):
        (tmp_path / "texts" / name).write_text("".join(f"{line}\n" for line in some))
    return lines


def indexed(**options: object) -> SearchIndex:
    """Return the index of the passages by random word vectors."""
    raysent.index("hash:32", "texts", "index", progress=False, **options)
    return SearchIndex("index")


def test_search_by_vectors_equals_a_plain_one(passages) -> None:
    """Places are files and rows, and scores cosines."""
    queries = ["cat dog rain", "the moon"]
    found = indexed().search(queries, k=4)
    encoder = load("hash:32")
    cosines = normalize_rows(encoder.encode(queries)) @ normalize_rows(encoder.encode(passages)).T
    for hits, row in zip(found, cosines, strict=True):
        assert [hit.score for hit in hits] == pytest.approx(-np.sort(-row)[:4], abs=1e-5)
        for hit in hits:
            place = hit.row + (100 if hit.file == "b.txt" else 0)
            assert (hit.text, hit.score) == (passages[place], pytest.approx(row[place], abs=1e-5))


def test_search_by_words_finds_only_what_shares_one(passages) -> None:
    """All passages with the only word, the shortest first."""
    hits = (
        indexed().search("zebra", by="words", k=5),
        raysent.search("index", "dog xyz", by="words", k=200),
    )
    assert hits[0] == [[]]
    assert sorted(hit.text for hit in hits[1][0]) == sorted(
        text for text in passages if "dog" in text.split()
    )
    assert hits[1][0][0].score > hits[1][0][-1].score > 0


def test_signs_are_rescored_by_the_vector_of_the_query(passages, monkeypatch) -> None:
    """An eighth of a byte a number; the order is that of products with signs, not of differing bits."""
    index = indexed(precision="ubinary")
    assert (index.vectors.dtype, index.vectors.shape) == (np.uint8, (150, 4))
    encoder, query = load("hash:32"), "cat dog rain"
    signs = np.where(encoder.encode(passages) > 0, 1.0, -1.0)
    points = signs @ normalize_rows(encoder.encode([query]))[0] / np.sqrt(32)
    (hits,) = index.search(query, k=5)
    assert [hit.score for hit in hits] == pytest.approx(-np.sort(-points)[:5], abs=1e-5)


def test_int8_orders_what_is_near_by_signs(passages, tmp_path, monkeypatch) -> None:
    """As a plain search of bytes; mapped from the disk, and the same of a folder without what is derived."""
    index = indexed(precision="int8")
    assert (index.vectors.dtype, index.vectors.shape) == (np.uint8, (150, 4))
    assert isinstance(index.int8.base, np.memmap)
    encoder, queries = load("hash:32"), ["cat dog rain", "the moon"]
    exact = encoder.encode(passages)
    stored = np.rint(exact * 127 / np.abs(exact).max(axis=1, keepdims=True))
    np.testing.assert_array_equal(index.int8, stored)
    cosines = normalize_rows(encoder.encode(queries)) @ normalize_rows(stored.astype(np.float32)).T
    for hits, row in zip(index.search(queries, k=5), cosines, strict=True):
        assert [hit.score for hit in hits] == pytest.approx(-np.sort(-row)[:5], abs=1e-6)
    monkeypatch.setattr("raysent.passages.index._LEAST_RESCORED", 7)
    monkeypatch.setattr("raysent.passages.index._RESCORED", 1)
    apart = np.unpackbits(
        np.packbits(exact > 0, axis=1) ^ np.packbits(encoder.encode(queries[:1]) > 0, axis=1),
        axis=1,
    )
    near = set(np.lexsort((np.arange(150), apart.sum(axis=1)))[:7].tolist())
    (hits,) = index.search(queries[0], k=7)
    assert {hit.row + (100 if hit.file == "b.txt" else 0) for hit in hits} == near
    shutil.rmtree(tmp_path / "index" / ".search")
    assert SearchIndex("index").search(queries[0], k=7) == [hits]
    raysent.encode_file("hash:32", "texts/a.txt", output="a.npy", precision="int8", progress=False)
    np.testing.assert_array_equal(np.load("a.npy"), index.int8[:100])


@pytest.mark.parametrize(("precision", "width"), [("int8", 256), ("ubinary", 32)])
def test_files_of_bytes_take_a_byte_each(passages, precision, width) -> None:
    """Parquet itself has no type of a byte."""
    raysent.encode_corpus(
        "hash:256", "texts", "many", keeps_text=False, precision=precision, progress=False
    )
    size = Path("many/a.txt.parquet").stat().st_size
    assert width * 100 < size < width * 100 + 5000, size


def test_reading_vectors_holds_a_batch_of_them(tmp_path, monkeypatch) -> None:
    """No part of a file is read before its rows are asked for, so memory does not hold it twice."""
    folder, format = (
        VectorFolder(tmp_path),
        VectorFormat("hash:64", "key", "cosine", "float32", 64, has_text=False),
    )
    folder.use(format)
    with folder.writing("a.txt", format, version="1") as writer:
        for seed in range(20):
            writer.write(np.random.default_rng(seed).random((500, 64), np.float32), [])
    streams = []

    class Counted(io.FileIO):
        num_bytes = 0

        def read(self, size=-1):
            self.num_bytes += len(found := super().read(size))
            return found

    @contextlib.contextmanager
    def opened(name):
        with Counted(name) as stream:
            streams.append(stream)
            yield stream

    monkeypatch.setattr(vector_folder, "open_bytes", opened)
    monkeypatch.setattr(vector_folder, "_BATCH_ROWS", 500)
    next(folder.batches())
    assert 0 < streams[-1].num_bytes < 0.3 * Path(folder.path_of("a.txt")).stat().st_size


def test_bits_of_a_model_with_a_code_are_compared_by_hamming_distance(passages, tmp_path) -> None:
    """Whether they are stored as numbers or packed."""
    config = {
        "encoder": {"type": "gru", "hidden_size": 6, "embedding": {"dim": 5}},
        "objective": {"type": "context_prediction"},
        "code": {"type": "threshold"},
    }
    vocabulary = Vocabulary(["<pad>", "<unk>", *WORDS])
    model = SentenceModel.build(
        ModelConfig.model_validate(config), vocabulary, seed=1, max_length=20
    )
    model.eval().save(tmp_path / "bits")
    encoder = load(tmp_path / "bits")
    distances = np.abs(encoder.encode(["cat dog"]) - encoder.encode(passages)).sum(axis=1)
    for precision in ("float32", "ubinary"):
        raysent.index(
            tmp_path / "bits", "texts", tmp_path / precision, progress=False, precision=precision
        )
        (hits,) = raysent.search(tmp_path / precision, "cat dog", k=6)
        assert [-hit.score for hit in hits] == np.sort(distances)[:6].tolist()


@pytest.mark.parametrize(
    ("query", "passage"),
    [
        ("茶杯", "桌子上有一只红色的茶杯。"),
        ("猫", "院子里睡着三只猫和狗。"),
        ("หิมะตก", "เมื่อคืนหิมะตกที่ภูเขา"),
    ],
)
def test_words_of_text_without_blanks_are_found(passages, query, passage) -> None:
    """In the middle of a clause, of one or more characters; an index of words of before is made again."""
    others = [
        "今天天气很好，我们去公园。",
        "他昨天买了一本新书。",
        "วันนี้อากาศดีมาก",
        "เขาซื้อหนังสือเล่มใหม่",
    ]
    Path("texts/a.txt").write_text("\n".join([*others, passage]) + "\n")
    (hits,) = indexed().search(query, by="words", k=3)
    assert hits[0].text == passage
    about = Path("index/.search/about.json")
    about.write_text(
        json.dumps(
            {key: value for key, value in json.loads(about.read_text()).items() if key != "words"}
        )
    )
    for file in Path("index/.search").glob("*.npy"):
        file.unlink()
    assert SearchIndex("index").search(query, by="words", k=3) == [hits]


def test_index_adds_new_files_and_is_the_same_as_one_made_at_once(passages, tmp_path) -> None:
    """Byte by byte; words of a folder that grew by `encode_corpus` alone are made again at the search."""
    (tmp_path / "texts" / "b.txt").rename(tmp_path / "b.txt")
    assert len(indexed().search("cat", by="words", k=150)[0]) == sum(
        "cat" in text.split() for text in passages[:100]
    )
    (tmp_path / "b.txt").rename(tmp_path / "texts" / "b.txt")
    raysent.encode_corpus("hash:32", "texts", "index", progress=False)
    assert len(raysent.search("index", "cat", by="words", k=150)[0]) == sum(
        "cat" in text.split() for text in passages
    )
    assert indexed().num_passages == 150
    raysent.index("hash:32", "texts", "other", progress=False)
    files = [
        sorted(
            path.relative_to(place)
            for path in Path(place).rglob("*")
            if path.is_file() and path.name != ".lock"
        )
        for place in ("index", "other")
    ]
    assert files[0] == files[1]
    for file in files[0]:
        assert (Path("index") / file).read_bytes() == (Path("other") / file).read_bytes(), file


def test_index_of_several_encoders_has_the_prompts_of_documents(passages) -> None:
    """Each encoder its own, as `encode_document`; a folder without prompts is described as before."""

    class Prompted(HashEncoder):
        prompts = {"query": "query: ", "passage": "passage: "}  # noqa: RUF012

    joined = JoinedEncoders([Prompted(12), JoinedEncoders([HashEncoder(4), Prompted(8)])])
    plain, names = JoinedEncoders([HashEncoder(24)]), ["document", "passage", "corpus"]
    for name, encoder, expected in (
        ("a", joined, names),
        ("b", Prompted(24), "passage"),
        ("c", plain, None),
    ):
        encoder.source = "hash:24"
        raysent.index(encoder, "texts", name, progress=False)
        stored = np.concatenate([batch.vectors for batch in VectorFolder(name).batches()])
        np.testing.assert_array_equal(stored, encoder.encode_document(passages))
        assert VectorFolder(name).format().options.get("prompt_name") == expected
        assert raysent.index(encoder, "texts", name, progress=False).num_skipped == 2


@pytest.mark.parametrize("num_lines", [100, 3])
def test_open_index_refuses_a_file_that_was_encoded_again(passages, num_lines) -> None:
    """It has the vectors of before, so the text of a row is another one's; other files are searched."""
    index = indexed()
    index.prepare()
    Path("texts/a.txt").write_text("a new line\n" * num_lines)
    indexed()
    with pytest.raises(
        ArtifactError, match=r"^index/a\.txt\.parquet: must be as it was opened; .*; open it again$"
    ):
        index.search(passages[50], k=1)
    assert index.search(passages[120], k=1)[0][0].text == passages[120]


def test_what_is_derived_is_of_the_vectors_that_are_there(passages, tmp_path) -> None:
    """A folder that was emptied by `rm -rf index/*` keeps .search/: it is made again for another model or column."""
    rows = "".join(f"{text},{text[::-1]}\n" for text in passages)
    (tmp_path / "t.csv").write_text(f"text,title\n{rows}")
    for model, column, query in (("hash:64", "title", "god"), ("hash:32", "text", "dog")):
        raysent.index(model, "t.csv", "index", column=column, precision="int8", progress=False)
        index = SearchIndex("index")
        assert index.int8.shape == (150, int(model.removeprefix("hash:")))
        (hits,) = index.search(query, by="words", k=150)
        assert len(hits) == sum("dog" in text.split() for text in passages)
        for path in Path("index").glob("[!.]*"):
            path.unlink()


def test_index_without_texts_is_searched_by_vectors(passages) -> None:
    """It holds what int8 vectors need; a search by words is refused."""
    index = indexed(precision="int8", keeps_text=False)
    assert isinstance(index.int8.base, np.memmap)
    (hits,) = index.search(passages[7], k=1)
    assert (hits[0].text, passages[hits[0].row]) == (None, passages[7])
    assert indexed(precision="int8", keeps_text=False).num_passages == len(passages)
    with pytest.raises(
        ConfigError, match="index: holds no texts to search by words; index with keeps_text=true"
    ):
        index.search("cat", by="words")


def test_fused_ranking_is_of_both(passages) -> None:
    """Reciprocal ranks, or a weighted sum, of which the ends are the rankings themselves."""
    index = indexed()
    by_rank = index.search("cat rain", by="fused", k=5)[0]
    assert by_rank[0].score <= 2 / 61
    alone = {
        by: [hit.row for hit in index.search("cat rain", by=by, k=5)[0]]
        for by in ("vectors", "words")
    }
    for weight, by in ((0.0, "vectors"), (1.0, "words")):
        assert [
            hit.row for hit in index.search("cat rain", by="fused", weight=weight, k=5)[0]
        ] == alone[by]


def test_fuse_is_as_the_formulas_say() -> None:
    """Scores are scaled from the last to the first, and to 0 where a ranking ends early."""
    vectors = Ranking(np.array([0]), np.array([[3, 1, 2]]), np.array([[0.9, 0.5, 0.1]], np.float32))
    words = Ranking(np.array([0]), np.array([[2, 7, -1]]), np.array([[4.0, 1.0, 0.0]], np.float32))
    found = fuse(vectors, words, weight=0.25, depth=4)
    assert found.rows.tolist() == [[3, 1, 2, 7]]
    assert found.scores[0] == pytest.approx([0.75, 0.375, 0.25, 0.0625])
    assert fuse(vectors, words, weight=1, depth=4).rows.tolist() == [[2, 7, -1, -1]]
    assert fuse(vectors, words, weight=0, depth=4).rows.tolist() == [[3, 1, 2, -1]]
    found = fuse(vectors, words, depth=3)
    assert found.rows.tolist() == [[2, 3, 1]]
    assert found.scores[0] == pytest.approx([1 / 63 + 1 / 61, 1 / 61, 1 / 62])


def test_weight_is_fitted_on_dev_and_its_score_on_other_queries() -> None:
    """Half of the queries are found by either ranking alone; an even weight finds both."""
    places = np.arange(40)
    relevant = tuple({place: 1.0} for place in places.tolist())
    ids = tuple(map(str, places.tolist()))
    asked = [f"question {place * 7919}" for place in places.tolist()]
    data = RetrievalData("made", [""] * 40, ids, asked, ids, relevant, places, places, places)
    right, wrong = places[:, np.newaxis], (places[:, np.newaxis] + 1) % 40
    rows = [
        np.where(places[:, np.newaxis] % 2 == one, right, wrong).astype(np.int32) for one in (0, 1)
    ]
    scores = [np.full((40, 1), 0.5, np.float32), np.full((40, 1), 9.0, np.float32)]
    rankings = [
        Ranking(places, np.hstack([one, (one + 5) % 40]), np.hstack([score, score / 2]))
        for one, score in zip(rows, scores, strict=True)
    ]
    weight, held_out = fit_weight(*rankings, data)
    assert weight == 0.55, (
        "all but the ends and 0.5 are as good: the middle of them, not the smallest"
    )
    alone = max(measure(one, data)[:, 0].mean() for one in rankings)
    assert alone == 0.5 < held_out <= measure(fuse(*rankings, weight=weight), data)[:, 0].mean()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"by": "letters"}, "by: must be vectors, words, fused; given 'letters'"),
        ({"k": 0}, "k: must be a whole number of at least 1; given 0"),
        ({"by": "fused", "weight": 2}, "weight: must be from 0 to 1; given 2"),
        ({"by": "fused", "weight": "0.4"}, "weight: must be from 0 to 1; given '0.4'"),
        ({"by": "fused", "weight": True}, "weight: must be from 0 to 1; given True"),
        ({"weight": 0.4}, "weight: must be given with by=fused; given by=vectors"),
    ],
)
def test_arguments_that_are_wrong_are_refused(passages, options, error) -> None:
    """In one line."""
    del passages
    with pytest.raises(ConfigError, match=error):
        indexed().search("cat", **options)
    with pytest.raises(ConfigError, match=r"queries\[1\]: must be text; given nothing"):
        SearchIndex("index").search(["cat", " "])


def test_a_text_without_passages_is_refused(passages) -> None:
    """It was a folder that finds nothing, with a warning of NumPy; nothing is left of it."""
    del passages
    Path("latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"^latin.txt:1: must be UTF-8"):
        raysent.index("hash:32", ["latin.txt"], "none", progress=False)
    assert not Path("none").exists()
    Path("empty.txt").touch()
    with pytest.raises(DataError, match=r"^empty.txt: must hold passages; given none$"):
        raysent.index("hash:32", ["empty.txt"], "none", progress=False)
    assert not Path("none").exists()


def test_folder_of_another_model_is_refused(passages) -> None:
    """The model is found by name, and compared by its content."""
    del passages
    indexed()
    with pytest.raises(ArtifactError, match="index: is of hash:32, not of hash:16; name that"):
        raysent.search("index", "cat", model="hash:16")
    with pytest.raises(
        ArtifactError, match=r"must be a folder of vectors; no vectors.json is there"
    ):
        raysent.search(os.curdir, "cat")


def test_index_is_searched_from_any_folder_and_misses_a_model_in_a_line(
    passages, monkeypatch
) -> None:
    """The model's path is stored whole; a model that was moved can be named."""
    del passages
    for seed, place in ((1, "one"), (2, "two")):
        config = {
            "encoder": {"type": "bag", "embedding": {"dim": 5}},
            "objective": {"type": "context_prediction"},
        }
        vocabulary = Vocabulary(["<pad>", "<unk>", *WORDS])
        model = SentenceModel.build(
            ModelConfig.model_validate(config), vocabulary, seed=seed, max_length=20
        )
        model.eval().save(Path("models") / place)
    raysent.index("models/one", "texts", "index", progress=False)
    Path("away").mkdir()
    monkeypatch.chdir("away")
    (hits,) = raysent.search("../index", "cat dog", k=3)
    Path("../models/one").rename("one")
    missing = r"^\.\./index: its model cannot be read \(.*/models/one/.*: no such file\); give model=PATH$"
    with pytest.raises(ArtifactError, match=missing):
        raysent.search("../index", "cat dog")
    assert raysent.search("../index", "cat dog", k=3, model="one") == [hits]
    Path("../models/two").rename("../models/one")
    changed = r"^\.\./index: is of /.*/models/one, before it changed; index into another folder$"
    with pytest.raises(ArtifactError, match=changed):
        raysent.search("../index", "cat dog")
    with pytest.raises(
        ArtifactError, match=r"holds vectors of the model /.*/one, before it changed; name another"
    ):
        raysent.index("../models/one", "../texts", "../index", progress=False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "cat\n \ndog\n"),
        ("a.csv", "query,passage\ncat,x\n,y\ndog,z\ncat,w\n"),
        ("a.jsonl", '{"_id": "1", "text": "cat"}\n{"_id": "2", "text": "dog"}\n'),
        ("a.jsonl", '{"query": "cat"}\n{"query": null}\n{"query": "dog"}\n'),
    ],
)
def test_queries_of_a_file_are_those_that_evaluate_reads(tmp_path, name, text) -> None:
    """Rows without a query are left out, and each query of a table is asked once."""
    (tmp_path / name).write_text(text)
    assert read_queries(str(tmp_path / name)) == ["cat", "dog"]


def test_queries_may_be_numbers_and_no_lists(tmp_path) -> None:
    """As in a task."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"query": 0}\n{"query": 1.5}\n')
    assert read_queries(str(file)) == ["0", "1.5"]
    file.write_text('{"query": ["cat"]}\n')
    with pytest.raises(
        DataError, match="row 1: query 'query' must be text or a number; given list"
    ):
        read_queries(str(file))


def test_command_indexes_and_searches(passages, monkeypatch, capsys, tmp_path) -> None:
    """Queries are arguments, lines of a file, or a column of a table."""
    command = CommandLine(monkeypatch, capsys)
    assert (
        "2 files, 150 passages, 32 dimensions"
        in command("index", "hash:32", "texts", "-o", "index").err
    )
    assert "150 passages ranked by vectors" in command("search", "index", "dog").err
    fused = command("search", "index", "dog", "--by", "fused", "--set", "weight=0.4").err
    assert "150 passages ranked by fused (words weigh 0.4)" in fused
    text = command("search", "index", passages[7], "-k", "2").out
    assert passages[7] in text
    assert "1.0000" in text
    (tmp_path / "asked.csv").write_text(f"id,query\n1,{passages[3]}\n2,cat\n")
    values = json.loads(
        command("search", "index", "dog", "--queries", "asked.csv", "--by", "words", "--json").out
    )
    assert values["by"] == "words"
    assert values["queries"] == ["dog", passages[3], "cat"]
    assert [len(one) for one in values["results"]] == [10, 10, 10]
    assert values["results"][0][0].keys() == {"file", "row", "score", "text"}
    assert "query: must be given at least once" in command("search", "index").err
    assert "use 'raysent index MODEL TEXT -o INDEX'" in command("neighbours", "hash:8", "texts").err


def answers(index: SearchIndex) -> list[object]:
    """Return what an index finds, by every ranking."""
    queries = ["cat dog rain", "the moon", "zqx"]
    return [index.search(queries, k=20, by=by) for by in ("vectors", "words", "fused")]


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_flipped_bit_of_what_is_derived_is_noticed_and_it_is_made_again(
    passages, precision, capsys
) -> None:
    """In one line, with the same hits, whatever file it is in; the next search reads what was written."""
    expected = answers(indexed(precision=precision))
    folder = Path("index/.search")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {"about.json", "blank.npy", "vocab.index.json", "data.csc.index.npy"} <= set(files)
    generator = np.random.default_rng(0)
    for name, content in files.items():
        for _ in range(6):
            damaged = bytearray(content)
            place = int(generator.integers(len(damaged)))
            damaged[place] ^= 1 << int(generator.integers(8))
            (folder / name).write_bytes(bytes(damaged))
            assert answers(SearchIndex("index")) == expected, (name, place)
            lines = capsys.readouterr().err.splitlines()
            if name != "about.json":
                assert lines == [f"index/.search/{name}: is not as it was written; made again"]
            assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
            assert answers(SearchIndex("index")) == expected
            assert capsys.readouterr().err == ""


def test_derived_words_are_read_and_not_made_again(passages, monkeypatch) -> None:
    """Where nothing is damaged."""
    expected = answers(indexed())
    monkeypatch.setattr(SearchIndex, "_all_words", None)
    monkeypatch.setattr(SearchIndex, "_blank_rows", None)
    assert answers(SearchIndex("index")) == expected


def test_derived_file_that_is_missing_or_too_many_is_noticed(passages, capsys) -> None:
    """And `index` itself mends what it finds, also what an earlier version wrote without hashes."""
    expected = answers(indexed())
    folder = Path("index/.search")
    (folder / "vocab.index.json").unlink()
    assert answers(SearchIndex("index")) == expected
    (folder / "corpus.jsonl").write_text("{}\n")
    assert answers(SearchIndex("index")) == expected
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "index/.search/vocab.index.json",
        "index/.search/corpus.jsonl",
    ]
    about = json.loads((folder / "about.json").read_text())
    (folder / "about.json").write_text(json.dumps({**about, "version": 2, "files": {}}))
    (folder / "data.csc.index.npy").write_bytes(b"")
    assert answers(indexed()) == expected
    assert json.loads((folder / "about.json").read_text()) == about


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_indexed_file_that_is_gone_is_named_until_the_index_is_given_again(
    passages, capsys, precision
) -> None:
    """Whether it was lost or removed; what is derived of the other files is made again, and finds their passages."""
    whole = indexed(precision=precision)
    names = [file.name for file in whole.folder.files()]
    assert "is gone" not in capsys.readouterr().err
    gone = Path("index") / f"{names[0]}.parquet"
    gone.unlink()
    for _ in range(2):
        opened = SearchIndex("index")
        hits = opened.search(passages[0], k=50, by="words")[0]
        assert {hit.file for hit in hits} <= set(names[1:])
        line = capsys.readouterr().err
        assert f"{names[0]}.parquet was indexed and is gone, with" in line
        assert f"{whole.num_passages - opened.num_passages:,} passages" in line
    Path("texts", names[0]).unlink()
    indexed(precision=precision)
    capsys.readouterr()
    SearchIndex("index").search(passages[0], k=50, by="words")
    assert "is gone" not in capsys.readouterr().err


def test_words_whose_hashes_are_right_and_whose_numbers_are_not_are_made_again(passages) -> None:
    """As a stranger may write them: no search ends in the midst."""
    expected = answers(indexed())
    folder = Path("index/.search")
    rows = np.load(folder / "indices.csc.index.npy")
    rows[3] = 10**6
    np.save(folder / "indices.csc.index.npy", rows)
    about = json.loads((folder / "about.json").read_text())
    about["files"]["indices.csc.index.npy"] = file_sha256(folder / "indices.csc.index.npy")
    (folder / "about.json").write_text(json.dumps(about))
    assert answers(SearchIndex("index")) == expected


def test_derived_files_that_cannot_be_written_are_made_for_the_search(
    passages, monkeypatch
) -> None:
    """As in a folder of another user."""
    expected = answers(indexed())
    Path("index/.search/vocab.index.json").write_text("{")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr("raysent.passages.derived_files.remove_tree", refuse)
    assert answers(SearchIndex("index")) == expected


def test_index_on_a_full_disk_is_one_line_and_goes_on(passages, monkeypatch) -> None:
    """Also while a library writes what is derived; the same command makes it."""

    def fail(self: Bm25Index, folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Bm25Index, "save", fail)
        with pytest.raises(ArtifactError, match=r"^index/\.search: the disk is full; free some"):
            indexed()
    assert indexed().search(["cat"], k=1, by="words") == SearchIndex("index").search(
        ["cat"], k=1, by="words"
    )
    assert (Path("index") / ".search" / "about.json").is_file()


@pytest.mark.parametrize("precision", ["float32", "int8", "ubinary"])
def test_blank_passage_keeps_its_row_and_is_never_found(passages, precision) -> None:
    """By vectors, words or both, of unknown words too; also where nothing derived is there."""
    lines = ["the cat sat", "", "   ", "a dog ran", "\u200b", "rain fell"]
    Path("texts/a.txt").write_text("\n".join(lines) + "\n")
    Path("texts/b.txt").unlink()
    index = indexed(precision=precision)
    assert index.num_passages == 6
    encoder = load("hash:32")
    assert (encoder.encode(["."]) == encoder.encode([""])).all()
    found = answers(index)
    for by in ("vectors", "fused"):
        for query in (".", "zqx", "rain"):
            (hits,) = index.search(query, k=6, by=by)
            assert sorted(hit.row for hit in hits) == [0, 3, 5]
            assert [hit.text for hit in hits] == [lines[hit.row] for hit in hits]
    assert index.search("rain", k=1)[0][0].row == 5
    shutil.rmtree("index/.search")
    assert answers(SearchIndex("index")) == found


def test_index_of_blank_passages_alone_finds_nothing(passages) -> None:
    """By any ranking."""
    Path("texts/a.txt").write_text("\n\n \n")
    Path("texts/b.txt").unlink()
    index = indexed()
    assert index.num_passages == 3
    assert answers(index) == [[[], [], []]] * 3


def test_blank_passage_of_a_task_with_queries_is_not_found() -> None:
    """A ranking is that of the corpus without it."""

    def data(texts: list[str]) -> RetrievalData:
        return RetrievalData(
            task="t",
            passages=texts,
            passage_ids=tuple(f"p{row}" for row in range(len(texts))),
            queries=["zqx", "a cat"],
            query_ids=("q0", "q1"),
            relevant=({0: 1.0}, {0: 1.0}),
            train=np.array([], dtype=np.int64),
            dev=np.array([0]),
            test=np.array([1]),
        )

    encoder = HashEncoder(16)
    queries = np.array([0, 1])
    whole = rank(encoder, data(["the cat", "", "a dog", " "]), queries, depth=4)
    without = rank(encoder, data(["the cat", "a dog"]), queries, depth=4)
    kept = np.array([0, 2, -1])
    np.testing.assert_array_equal(whole.rows, kept[without.rows])
    np.testing.assert_array_equal(whole.scores, without.scores)
    nothing = rank(encoder, data(["", " "]), queries, depth=4)
    assert (nothing.rows == -1).all()


def test_place_is_a_line_of_text_or_a_row_of_a_table() -> None:
    """A table has a header, and its rows may have several lines."""
    assert Hit("a.txt", 4, 1.0, None).place == "a.txt:5"
    assert Hit("a.csv", 4, 1.0, None).place == "a.csv, row 5"
