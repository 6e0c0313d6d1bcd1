"""Prepared corpora: formats, splits, cache, errors, and the embedded corpus."""

import gzip
import json
import multiprocessing
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from object_store import BUCKET
from pyarrow import parquet
from tables import save_dataset, write_table

from raysent.config import Document, validate
from raysent.data.corpus import CorpusConfig, corpus_notes, docs_documents, embedded, prepare
from raysent.data.corpus import documents as documents_module
from raysent.data.corpus.documents import describe_reading, passages, read_passage
from raysent.data.corpus.embedded import extract, is_prose, paragraphs, prose_sentences
from raysent.data.corpus.preparation import choose_splits
from raysent.data.corpus.sources import Source, find_sources
from raysent.data.sentences import PARAGRAPH_BREAK, split_sentences
from raysent.data.texts import read_texts
from raysent.data.vocabulary import VocabularyConfig
from raysent.errors import ConfigError, DataError
from raysent.storage import cache_folder

DOCUMENTS = [[f"Document {d} has sentence {s} ." for s in range(4 + d % 3)] for d in range(30)]
PARAGRAPHS = (
    'Mr. Reed spoke to me. I heard him. "Who is there?" cried John.',
    "It was late. She left the house at 4.30 p.m. and didn't come back.",
)


def write(path: Path, documents=DOCUMENTS) -> Path:
    """Write documents with one sentence per line and blank lines between documents."""
    path.write_text("\n\n".join("\n".join(sentences) for sentences in documents) + "\n")
    return path


def build(path, tmp_path, *, progress=None, size=50_000, **options):
    """Prepare a corpus in a cache below `tmp_path`."""
    paths = path if isinstance(path, list) else str(path)
    config = CorpusConfig(path=paths, cache_dir=str(tmp_path / "cache"), **options)
    return prepare(config, VocabularyConfig(size=size), progress=progress)


def text_of(split) -> list[str]:
    """Return the sentences of a split as text."""
    rows, words = split.sentences(0, len(split)), split.corpus.vocabulary.words
    starts = np.cumsum(rows.lengths)[:-1]
    return [" ".join(words[i] for i in ids) for ids in np.split(rows.ids, starts)]


def read(source, **options) -> list[list[str]]:
    """Return the documents of a file as lists of sentences."""
    documents: list[list[str]] = [[]]
    for passage in passages(source, **({"format": "auto", "text_field": "text"} | options)):
        for piece in read_passage(passage):
            documents[-1] += piece.sentences
            if piece.ends_document:
                documents.append([])
    return [document for document in documents if document]


# Content


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The corpus of `DOCUMENTS`."""
    folder = tmp_path_factory.mktemp("corpus")
    return build(write(folder / "a.txt"), folder)


def test_prepare_keeps_every_sentence_in_order(corpus):
    """Both splits together are the text; each keeps the order of its documents."""
    train, validation = text_of(corpus.train), text_of(corpus.validation)
    everything = [sentence for document in DOCUMENTS for sentence in document]
    assert [s for s in everything if s in set(train)] == train
    assert [s for s in everything if s in set(validation)] == validation
    assert sorted(train + validation) == sorted(everything)


def test_prepare_counts_sentences_documents_and_tokens(corpus, tmp_path):
    """The counts and the fraction of unknown tokens are those of the text."""
    assert (
        corpus.num_documents == 30 == corpus.train.num_documents + corpus.validation.num_documents
    )
    assert (
        corpus.num_sentences
        == sum(map(len, DOCUMENTS))
        == len(corpus.train) + len(corpus.validation)
    )
    assert (
        corpus.num_tokens
        == 6 * corpus.num_sentences
        == corpus.train.num_tokens + corpus.validation.num_tokens
    )
    assert corpus.unknown_share == 0.0
    assert build(write(tmp_path / "a.txt"), tmp_path, size=6).unknown_share == pytest.approx(2 / 6)


def test_split_is_by_document_and_seeded(tmp_path):
    """No document is in both splits; the choice depends on the seed only."""
    path = write(tmp_path / "a.txt")
    first, again, other = (build(path, tmp_path, seed=seed) for seed in (0, 0, 1))
    assert not set(first.train.documents(0, len(first.train))) & set(
        first.validation.documents(0, 4)
    )
    assert first.validation.text_hash == again.validation.text_hash != other.validation.text_hash
    assert len(first.validation) >= 0.05 * first.num_sentences


def test_documents_are_all_zero_across_documents(tmp_path):
    """Windows may cross documents if configured."""
    corpus = build(write(tmp_path / "a.txt"), tmp_path, across_documents=True)
    assert not corpus.train.documents(0, len(corpus.train)).any()


def test_sentences_are_read_by_range_and_by_position(corpus):
    """An arbitrary selection equals single slices; a range outside of the split is never cut short in silence."""
    train = corpus.train
    gathered = train.sentences_at(np.array([7, 3, 60]))
    slices = [train.sentences(i, i + 1) for i in (7, 3, 60)]
    assert np.array_equal(gathered.ids, np.concatenate([s.ids for s in slices]))
    assert np.array_equal(train.documents_at(np.array([7, 60])), train.documents(0, 61)[[7, 60]])
    with pytest.raises(
        DataError, match=f"must be within 0 to {len(train)}; given 0 to {len(train) + 1}"
    ):
        train.sentences(0, len(train) + 1)


def test_limits_of_length_and_number(tmp_path):
    """The first tokens of a sentence are kept, and the first sentences of a text."""
    path = write(tmp_path / "a.txt")
    short = build(path, tmp_path, max_length=3).train
    assert set(short.sentences(0, 9).lengths) == {3}
    assert text_of(short)[0].startswith("Document 0 has")
    assert build(path, tmp_path, max_sentences=11).num_sentences == 11


def test_corpus_and_vocabulary_give_the_same_ids(tmp_path):
    """Encoding a sentence later gives the ids of training, also with a lowercase vocabulary."""
    sentences = [
        f"Mr. {name} can't see THE “well-known” U.S. in 3.5 days (e.g. today)."
        for name in "ABCDEFG"
    ]
    config = CorpusConfig(path=str(write(tmp_path / "a.txt", [sentences] * 40)), format="sentences",
                          cache_dir=str(tmp_path / "cache"))  # fmt: skip
    for lowercase in (False, True):
        corpus = prepare(config, VocabularyConfig(lowercase=lowercase, size=20))
        trained = corpus.train.sentences(0, 7)
        encoded = corpus.vocabulary.ids(sentences, max_length=config.max_length)
        assert np.array_equal(encoded.ids, trained.ids)
        assert np.array_equal(encoded.lengths, trained.lengths)


def test_single_document_gives_its_tail_to_validation(tmp_path):
    """With one document, its last sentences are the validation split."""
    corpus = build(write(tmp_path / "a.txt", [[f"Sentence {i} ." for i in range(100)]]), tmp_path)
    assert text_of(corpus.validation) == [f"Sentence {i} ." for i in range(95, 100)]


@pytest.mark.parametrize(
    ("starts", "bounds"),
    [([0, 1000, 1040, 1080], [[1000, 1080]]), ([0, 500, 1100], [[1045, 1100]])],
)
def test_choose_splits_of_large_documents(starts, bounds):
    """A document with far more than the fraction stays in training; if all are such, all but one tail."""
    assert (
        choose_splits(np.array(starts), fraction=0.05, seed=0, name="x").validation.bounds.tolist()
        == bounds
    )


@pytest.mark.parametrize(
    ("starts", "fraction"), [([0, 4], 0.05), ([0, 1000], 0.5), ([0, 40, 100], 0.5)]
)
@pytest.mark.parametrize("seed", range(4))
def test_choose_splits_leaves_sentences_for_training(starts, fraction, seed):
    """Where twice the fraction is all of the text."""
    splits = choose_splits(np.array(starts), fraction=fraction, seed=seed, name="x")
    assert min(splits.train.num_sentences, splits.validation.num_sentences) >= 2


def test_corpus_pickles_as_its_path(corpus):
    """Pickling a corpus for a worker pickles only its path."""
    corpus.train.sentences(0, 5)
    sent = pickle.dumps(corpus.train)
    assert len(sent) < 1_000
    assert text_of(pickle.loads(sent)) == text_of(corpus.train)


# Formats


FOX = (
    "the quick brown fox jumps over the lazy dog and runs far away into a dark wood " * 12
).split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n\n".join("\n".join(sentences) for sentences in DOCUMENTS), DOCUMENTS),
        (
            "\n".join(PARAGRAPHS),
            [["Mr. Reed spoke to me.", "I heard him.", '"Who is there?" cried John.', "It was late.",
              "She left the house at 4.30 p.m. and didn't come back."]],
        ),
        (
            "\n".join(" ".join(FOX[i : i + 14]) for i in range(0, len(FOX), 14)) + ".\n\nA second paragraph stands here.",
            [[" ".join(FOX) + ".", "A second paragraph stands here."]],
        ),
    ],
    ids=["a sentence a line", "a paragraph a line", "hard-wrapped"],
)  # fmt: skip
def test_auto_finds_the_layout_of_lines(tmp_path, text, expected):
    """Lines of one sentence are kept, blank ones between documents; others are split; wrapped ones are joined."""
    path = tmp_path / "a.txt"
    path.write_text(text + "\n")
    assert read(Source(str(path))) == expected


def test_format_overrides_auto(tmp_path):
    """`text` splits lines that `auto` keeps; `sentences` keeps lines that `auto` splits."""
    path = tmp_path / "a.txt"
    path.write_text(PARAGRAPHS[0] + "\n")
    assert len(read(Source(str(path)), format="text")[0]) == 3
    assert read(Source(str(path)), format="sentences") == [[PARAGRAPHS[0]]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"text": "It rained. We left."}, ["It rained.", "We left."]),
        ({"body": "It rained. We left."}, ["It rained.", "We left."]),
        ({"sentences": ["It rained .", "We left ."]}, ["It rained .", "We left ."]),
        (
            {"doc": "a", "paragraphs": [["It rained ."], ["We left ."]]},
            ["It rained .", "We left ."],
        ),
        ({"paragraphs": ["It rained. We left."]}, ["It rained.", "We left."]),
    ],
)
def test_json_lines_are_one_document_each(tmp_path, value, expected):
    """All forms of a JSON document are read, of text from the configured field."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(value) + "\n").encode() * 2))
    assert read(Source(str(path)), text_field="body" if "body" in value else "text") == [
        expected,
        expected,
    ]


def test_byte_order_mark_and_carriage_returns_are_dropped(tmp_path):
    """A file from Windows gives the same sentences; other Unicode line separators do not end a line."""
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffOne\u2028here .\r\nTwo .\r\n".encode())
    assert read(Source(str(path)), format="sentences") == [["One\u2028here .", "Two ."]]


def test_folder_is_read_recursively_and_sorted(tmp_path):
    """Text files at all depths, sorted by path; hidden files and other suffixes are ignored."""
    for name in ("b.txt", "a/z.txt", "a/c.jsonl", ".hidden.txt", "index.tsv"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("x\n")
    found = [
        Path(s.path).relative_to(tmp_path / "in").as_posix()
        for s in find_sources(str(tmp_path / "in"))
    ]
    assert found == ["a/c.jsonl", "a/z.txt", "b.txt"]


def test_suffixes_are_read_in_capital_letters_too(tmp_path):
    """In a folder, and as the file's form."""
    (tmp_path / "in").mkdir()
    for name in ("B.TXT", "X.JSONL", "a.txt", "DATA.CSV"):
        (tmp_path / "in" / name).write_text('{"text": "One. Two. Three. Four."}\n')
    assert [Path(one.path).name for one in find_sources(str(tmp_path / "in"))] == [
        "B.TXT",
        "X.JSONL",
        "a.txt",
    ]
    assert read_texts(str(tmp_path / "in" / "X.JSONL")).texts == ["One. Two. Three. Four."]
    assert text_of(build(tmp_path / "in" / "X.JSONL", tmp_path).train) == ["One .", "Two ."]


def test_json_lines_whose_first_object_is_empty_are_refused(tmp_path):
    """They would give no text; a file without an object has none."""
    (tmp_path / "a.jsonl").write_text('{}\n{"text": "a"}\n')
    with pytest.raises(
        DataError, match=r"a\.jsonl: row 1: column 'text' must be text; given nothing$"
    ):
        read_texts(str(tmp_path / "a.jsonl"))
    (tmp_path / "a.jsonl").write_text("\n\n")
    assert read_texts(str(tmp_path / "a.jsonl")).texts == []


def test_globs_and_lists_of_files(tmp_path):
    """The files of a glob are sorted, a list keeps its order, and a named file may have any suffix."""
    for name in "abc":
        (tmp_path / f"{name}.tsv").write_text("x\n")
    assert [s.path[-5] for s in find_sources(str(tmp_path / "*.tsv"))] == ["a", "b", "c"]
    assert [
        s.path[-5] for s in find_sources([str(tmp_path / "c.tsv"), str(tmp_path / "a.tsv")])
    ] == ["c", "a"]


def test_remote_objects_are_read_like_files(tmp_path, bucket):
    """An ``s3://`` prefix gives the same corpus as the folder; a missing one raises one clear error."""
    text = write(tmp_path / "a.txt").read_bytes()
    bucket.put_object(Bucket=BUCKET, Key="in/a.txt.gz", Body=gzip.compress(text))
    bucket.put_object(Bucket=BUCKET, Key="in/index.tsv", Body=b"x")
    remote, local = build(f"s3://{BUCKET}/in", tmp_path), build(tmp_path / "a.txt", tmp_path)
    assert find_sources(str(Path(f"s3://{BUCKET}/in"))) == find_sources(f"s3://{BUCKET}/in")
    assert text_of(remote.train) == text_of(local.train)
    for name in ("table.parquet", "table.csv.gz", "dataset"):
        write_table(tmp_path / name, ROWS)
    for file in (*tmp_path.glob("table*"), *(tmp_path / "dataset").iterdir()):
        bucket.upload_file(str(file), BUCKET, file.relative_to(tmp_path).as_posix())
    for name in ("table.parquet", "table.csv.gz", "dataset"):
        remote = build(f"s3://{BUCKET}/{name}", tmp_path, text_field="body", document_field="doc")
        assert text_of(remote.train) == text_of(local.train)
    assert read_texts(f"s3://{BUCKET}/table.parquet", column="body").texts == ROWS["body"]
    with pytest.raises(DataError, match=f"s3://{BUCKET}/no: no such object"):
        build(f"s3://{BUCKET}/no", tmp_path)
    with pytest.raises(
        DataError, match="s3://nowhere/in: no such bucket; create it first or name another"
    ):
        build("s3://nowhere/in", tmp_path)


# Tables, Markdown and HTML

ROWS = {"doc": [document for document in range(30) for _ in DOCUMENTS[document]],
        "body": [sentence for document in DOCUMENTS for sentence in document]}  # fmt: skip


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv", "a.parquet", "a.jsonl", "folder"])
def test_column_of_a_table_is_a_corpus(tmp_path, monkeypatch, name):
    """Rows of one identifier are a document, whatever the form and the sizes of blocks; as lines of text would be."""
    monkeypatch.setattr(documents_module, "_PASSAGE_CHARACTERS", 60)
    path = write_table(tmp_path / name, ROWS)
    found = build(path, tmp_path, text_field="body", document_field="doc")
    expected = build(write(tmp_path / "a.txt"), tmp_path)
    assert text_of(found.train) == text_of(expected.train)
    assert np.array_equal(found.train.documents(0, 99), expected.train.documents(0, 99))
    assert found.key == build(path, tmp_path, text_field="body", document_field="doc").key
    assert found.key != expected.key


def test_one_long_document_of_json_lines_is_read_in_parts(tmp_path, monkeypatch):
    """Memory holds one of them; the document ends with the last."""
    monkeypatch.setattr(documents_module, "_PASSAGE_CHARACTERS", 200)
    path = tmp_path / "a.jsonl"
    rows = [{"body": f"Sentence {number} is here .", "doc": "all"} for number in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(
        documents_module.passages(
            Source(str(path)), format="auto", text_field="body", document_field="doc"
        )
    )
    assert max(len(one.text) for one in found) < 300
    pieces = [piece for one in found for piece in documents_module.read_passage(one)]
    assert [sentence for piece in pieces for sentence in piece.sentences] == [
        row["body"] for row in rows
    ]
    assert [one.ends_document for one in found[1:]] == [False] * (len(found) - 2) + [True]


def test_splits_of_a_datasets_folder_are_read_in_order(tmp_path):
    """All splits, each beginning a document; the folder of one is a corpus of its own."""
    table = pa.table({"text": [f"Sentence {number} ." for number in range(20)]})
    for split in ("train", "test"):
        save_dataset(tmp_path / "data" / split, table)
    (tmp_path / "data" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    document = table["text"].to_pylist()
    assert [read(source) for source in find_sources(str(tmp_path / "data"))] == [
        [document],
        [document],
    ]
    assert [read(source) for source in find_sources(str(tmp_path / "data" / "test"))] == [
        [document]
    ]


@pytest.mark.parametrize(
    ("texts", "options", "expected"),
    [
        (["It rained. We left.", "It ended. All slept."], {}, [["It rained.", "We left."], ["It ended.", "All slept."]]),
        (["It rained.", "", "We left."], {}, [["It rained.", "We left."]]),
        (["It rained.", "We left."], {"format": "text"}, [["It rained."], ["We left."]]),
        (["It rained. We left."], {"format": "sentences"}, [["It rained. We left."]]),
        (["It rained.\r\nWe left."], {"format": "sentences"}, [["It rained. We left."]]),
        (["One, a\n\nTwo, b", "NA"], {"format": "text"}, [["One, a", "Two, b"], ["NA"]]),
    ],
)  # fmt: skip
def test_rows_without_document_are_documents_if_they_are_running_text(
    tmp_path, texts, options, expected
):
    """Rows of one sentence are one document, as lines are; empty rows are left out; "NA" is text."""
    path = tmp_path / "a.csv"
    write_table(path, {"id": range(len(texts)), "sentence": texts})
    assert read(Source(str(path)), **options) == expected


def test_notes_report_the_columns_that_are_read(tmp_path):
    """Tables that are read alike share a line; other files have none."""
    texts = {"text": ["It rained. We left."], "doc": ["a"]}
    paths = [write_table(tmp_path / name, texts) for name in ("a.csv", "b.csv")]
    paths += [
        write_table(tmp_path / "c.csv", {"Sentence": ["It rained."]}),
        str(write(tmp_path / "d.txt")),
    ]
    assert corpus_notes(CorpusConfig(path=paths)) == [
        f"{paths[0]} and 1 more: text = 'text', running text a row, a document each",
        f"{paths[2]}: text = 'Sentence', one sentence a row, the table is one document",
    ]
    config = CorpusConfig(path=paths[0], document_field="doc")
    assert corpus_notes(config) == [
        f"{paths[0]}: text = 'text', running text a row, a document for each 'doc'"
    ]
    assert corpus_notes(CorpusConfig()) == []


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl", "a.md"])
def test_encodings_with_a_bom_and_crlf_give_the_same_sentences(tmp_path, name, encoding, newline):
    """A BOM is no part of a name or a word, nor a carriage return of a line's last one."""
    header = {"a.csv": ["text"], "a.tsv": ["id\ttext"]}.get(name, [])
    sentences = [f"D\xe9j\xe0 vu \U0001f600 {number}." for number in range(30)]
    lines = {
        "a.tsv": [f"1\t{sentence}" for sentence in sentences],
        "a.jsonl": [json.dumps({"text": " ".join(sentences)}, ensure_ascii=False)],
        "a.md": [f"{sentence}{newline}" for sentence in sentences],
    }.get(name, sentences)
    bom = "" if encoding == "utf-8-sig" else "\ufeff"
    (tmp_path / name).write_bytes((bom + newline.join([*header, *lines])).encode(encoding))
    assert read(Source(str(tmp_path / name))) == [sentences]


def test_markdown_and_html_are_read_as_text(tmp_path):
    """Headings, paragraphs, items and quotations are paragraphs; markup, code and tables of data are left out."""
    (tmp_path / "a.md").write_text(
        "---\ntitle: no\n---\n# A *heading*\n\nIt rained, a\n[link](http://x) says. We ![no](no.png)`left`.\n\n- An item\n\n"
        "> Said <b>he</b> &amp; she.\n\n```\nno = 1\n```\n\n| no | no |\n|---|---|\n| no | no |\n"
    )
    sentences = ["A heading", "It rained, a link says.", "We left.", "An item", "Said he & she."]
    assert read(Source(str(tmp_path / "a.md"))) == [sentences]
    (tmp_path / "b.HTM").write_text(
        "<?xml version='1.0'?><html><head><title>no</title><style>no</style></head><body><nav>no</nav><h1>A <i>heading</i></h1>"
        "<p>It rained, a\n<a href=x>link</a> says. We left.<p>An item<br><br>Said <!-- no -->he &amp; she.<pre>no</pre>"
        "<table><tr><th>no<td>no</table><script>no</script>"
    )
    assert read(Source(str(tmp_path / "b.HTM"))) == [sentences]


def test_folder_without_text_gives_its_markup_and_then_its_tables(tmp_path):
    """Only one kind of files of a folder is read, so that a README or an index beside text is none."""
    for name in (
        "t/a.txt",
        "t/README.md",
        "t/index.csv",
        "m/a.md",
        "m/b.html",
        "m/index.csv",
        "c/a.csv",
        "c/b.parquet",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    found = {
        folder: [Path(one.path).name for one in find_sources(str(tmp_path / folder))]
        for folder in "tmc"
    }
    assert found == {"t": ["a.txt"], "m": ["a.md", "b.html"], "c": ["a.csv", "b.parquet"]}


def test_keys_of_plain_text_and_json_are_those_of_version_0_1(tmp_path):
    """Settings and kinds of files that came later are in the key only where they are used."""
    sources = [Source("a.txt", etag="x"), Source("b.jsonl", etag="y")]
    settings = {"format": "auto", "text_field": "text", "max_sentences": None}
    assert describe_reading(sources, CorpusConfig()) == ([[False, "x"], [True, "y"]], settings)
    assert describe_reading([], CorpusConfig(document_field="doc"))[1] == settings | {
        "document_field": "doc"
    }


def test_value_of_ten_megabytes_is_text(tmp_path):
    """A row may be longer than a block; the rows before it are read once."""
    path = tmp_path / "a.csv"
    before = [f"Sentence {number} ." for number in range(100_000)]
    path.write_text("\n".join(["text", *before, "word " * 2_000_000, "The end ."]))
    (document,) = read(Source(str(path)), format="sentences")
    assert document == [*before, ("word " * 2_000_000).strip(), "The end ."]


# Sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["Dr. Jones came at 5 p.m. yesterday.", "He left."],
        ['"What then?', "Let me go,\" said she."],
        ['"Go away!" he cried.', "She went."],
        ["It has weight. ", "alpha must be given."],
        ["She gave it to me.", "I took it."],
        ["He said: “Be quiet.”", "“Why?” asked the boy."],
    ],
)  # fmt: skip
def test_split_sentences_finds_the_ends(sentences):
    """Abbreviations, speech with its speaker, and typographic quotes."""
    expected = [sentence.strip() for sentence in sentences]
    assert split_sentences(" ".join(expected)) == expected


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.text(alphabet="aB bé.!?\"'“”’(),—1\t", min_size=1).filter(str.strip), max_size=6)
)
def test_split_sentences_loses_nothing(given_paragraphs):
    """Every character except white space is kept, in order, for any number of paragraphs."""
    stripped = [paragraph.strip() for paragraph in given_paragraphs]
    at_once = split_sentences(PARAGRAPH_BREAK.join(stripped))
    assert "".join("".join(at_once).split()) == "".join("".join(stripped).split())


def test_split_sentences_of_many_paragraphs_at_once():
    """The sentences of a block are those of its paragraphs, concatenated."""
    block = [
        *PARAGRAPHS,
        "“A “quoted” word ends here.”",
        "under no heading",
        "“Why? what?” he said.",
        "‘No’",
    ] * 50
    alone = [sentence for paragraph in block for sentence in split_sentences(paragraph)]
    assert split_sentences(PARAGRAPH_BREAK.join(block)) == alone


# The cache


def test_cache_is_keyed_by_content_not_by_path(tmp_path):
    """The same text at another path is the same corpus; another text is another corpus."""
    first = build(write(tmp_path / "a.txt"), tmp_path)
    assert build(write(tmp_path / "b.txt"), tmp_path).folder == first.folder
    assert build(write(tmp_path / "c.txt", [*DOCUMENTS, ["One more ."]]), tmp_path).key != first.key


def test_text_is_read_once_for_all_vocabularies(tmp_path):
    """With another vocabulary or split no file is read again; the text key stays, the corpus key changes."""
    path = write(tmp_path / "a.txt")
    stages: list[str] = []
    first = build(path, tmp_path, progress=lambda stage, done, total: stages.append(stage))
    second = build(
        path, tmp_path, size=7, seed=3, progress=lambda stage, done, total: stages.append(stage)
    )
    assert set(stages[: stages.index("encoding")]) == {"reading"}
    assert "reading" not in stages[stages.index("encoding") :]
    assert first.text_key == second.text_key
    assert first.key != second.key


@pytest.mark.parametrize(
    "name", ["ids.bin", "offsets.bin", "vocabulary.txt", "documents.npy", "corpus.json"]
)
def test_damaged_cache_is_rebuilt(tmp_path, name):
    """A truncated file is detected and the corpus built again."""
    path = write(tmp_path / "a.txt")
    corpus = build(path, tmp_path)
    expected = text_of(corpus.train)
    file = corpus.folder / name
    file.write_bytes(file.read_bytes()[:-3])
    assert text_of(build(path, tmp_path).train) == expected


@pytest.mark.parametrize("name", ["ids.bin", "offsets.bin", "corpus.json"])
def test_damage_of_the_same_size_is_rebuilt(tmp_path, name):
    """Also in files larger than 32 MiB: ids out of range would be written to, those in range trained on in silence."""
    path, num_sentences = tmp_path / "a.txt", 5 << 16
    path.write_text("".join(f"{'yes ' * 26}w{number % 4}\n" for number in range(num_sentences)))
    corpus = build(path, tmp_path, format="sentences")
    file = corpus.folder / name
    whole = file.read_bytes()
    if name == "ids.bin":
        assert len(whole) > 32 << 20
    at = whole.index(b'"num_sentences"') + 17 if name == "corpus.json" else len(whole) // 2
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    build(path, tmp_path, format="sentences")
    assert file.read_bytes() == whole


def test_build_is_on_the_disk_before_it_is_found(tmp_path, monkeypatch):
    """A loss of power after the rename must not leave a folder of empty files."""
    flushed, fsync = set(), os.fsync

    def noted(handle):
        flushed.add(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    corpus = build(write(tmp_path / "a.txt"), tmp_path)
    assert flushed >= {file.stat().st_ino for file in corpus.folder.iterdir()}


def test_build_after_a_killed_build(tmp_path, monkeypatch):
    """The next build deletes the files of an unfinished one."""
    path = write(tmp_path / "a.txt")

    def killed(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(path, tmp_path, progress=killed)
    assert build(path, tmp_path).num_documents == 30
    assert not list((tmp_path / "cache").rglob("*.unfinished"))


def _prepare_in_process(path, cache, log):
    config = CorpusConfig(path=path, cache_dir=cache)

    def log_stage(stage, done, total):
        with Path(log).open("a") as stream:
            stream.write(stage + "\n")

    prepare(config, VocabularyConfig(), progress=log_stage)


def test_many_processes_build_once(tmp_path):
    """Two concurrent processes read the text once."""
    path, log = write(tmp_path / "a.txt"), tmp_path / "log"
    context = multiprocessing.get_context("spawn")
    arguments = (str(path), str(tmp_path / "cache"), str(log))
    processes = [context.Process(target=_prepare_in_process, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert log.read_text().split().count("reading") == 1


def test_cache_folder_follows_option_then_environment(tmp_path, monkeypatch):
    """The option comes before $RAYSENT_CACHE."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "environment"))
    assert cache_folder(None) == tmp_path / "environment"
    assert cache_folder(str(tmp_path / "option")) == tmp_path / "option"


@pytest.mark.parametrize(
    ("max_sentences", "max_file_bytes"), [(None, 1 << 20), (700, 1 << 20), (700, 0), (None, 2_000)]
)
def test_prepare_in_processes_gives_the_same_bytes(
    tmp_path, monkeypatch, max_sentences, max_file_bytes
):
    """Every file is the same for any number of processes, with limits and all kinds of files, read whole or in parts."""
    monkeypatch.setattr(documents_module, "_MAX_FILE_BYTES", max_file_bytes)
    monkeypatch.setattr(documents_module, "_GROUP_CHARACTERS", 400)
    monkeypatch.setattr(documents_module, "_NUM_FIRST_GROUPS", 3)
    for part in range(8):
        write(
            tmp_path / f"{part}.txt",
            [[f"{s} of {part} ," for s in document] for document in DOCUMENTS],
        )
    (tmp_path / "running.txt").write_text("\n".join(PARAGRAPHS * 40))
    lines = [json.dumps({"sentences": document}) for document in DOCUMENTS]
    (tmp_path / "objects.jsonl").write_text("\n".join(lines))
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    written = []
    for num_processes in (1, 3, None):
        cache = tmp_path / f"cache-{num_processes}"
        config = CorpusConfig(
            path=files,
            cache_dir=str(cache),
            num_processes=num_processes,
            max_sentences=max_sentences,
        )
        prepare(config, VocabularyConfig())
        written.append(
            {
                p.relative_to(cache): p.read_bytes()
                for p in cache.rglob("*")
                if p.suffix != ".lock" and p.is_file()
            }
        )
    assert len(written[0]) == 11
    assert written[0] == written[1] == written[2]


def test_prepare_in_processes_names_the_bad_line(tmp_path):
    """An error that another process finds names file and line."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "One."}\n' * 3 + "{\n")
    with pytest.raises(DataError, match=r"a.jsonl:4: must be one JSON object a line"):
        build(path, tmp_path, num_processes=2)


def test_preparation_memory_is_bounded(tmp_path):
    """Five times the text needs less than twice the memory."""

    def peak(num_copies: int) -> int:
        path = tmp_path / f"{num_copies}.txt"
        with path.open("w") as stream:
            stream.writelines(
                f"Line {i % 50} of a rather ordinary text .\n" * 500 for i in range(num_copies)
            )
        tracemalloc.start()
        build(path, tmp_path)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak_bytes

    small, large = peak(120), peak(600)  # 60,000 and 300,000 sentences
    assert large < 2 * small


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_preparation_keeps_no_pages_of_its_files(tmp_path):
    """Pages of a file that is mapped and read to its end stay in memory: 4 bytes a word and 8 a sentence."""
    path, pages = tmp_path / "a.txt", []
    path.write_text(f"{'yes ' * 40}\n" * 200_000)

    def note(*_):
        (line,) = (
            one
            for one in Path("/proc/self/status").read_text().splitlines()
            if one.startswith("RssFile")
        )
        pages.append(int(line.split()[1]) << 10)

    corpus = build(path, tmp_path, format="sentences", progress=note)
    num_bytes = (corpus.folder / "ids.bin").stat().st_size
    assert num_bytes > 30e6
    assert max(pages) - pages[0] < num_bytes / 3


# Errors


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt.gz", gzip.compress(b"Text .\n" * 99, mtime=0)[:-9], "a.txt.gz: truncated or not gzip"),
        ("a.jsonl", b"[1]\n", "a.jsonl:1: must be a JSON object; given list"),
        ("a.jsonl", b'{"text": 3}\n', "a.jsonl:1: 'text' must be text; given 3"),
        ("a.jsonl", b'{"paragraphs": 3}\n', "a.jsonl:1: 'paragraphs' must be a list of texts; given 3"),
        ("a.txt", "Text .\n".encode("utf-16")[:-1], "a.txt:1: must be UTF-16; given byte 0x0a"),
        ("a.txt", "Text .\n".encode("utf-16-le"), "a.txt:1: must be plain text; given a NUL byte"),
        ("a.csv", b"", "a.csv: must name its columns in the first line; given an empty file"),
        ("a.csv", b"\n \n", "a.csv: must name its columns in the first line; given an empty file"),
        ("a.csv", b"text\n", "a.csv: must hold sentences; given none"),
        ("a.csv", b'id,text\n1,""\n2," "\n', "a.csv: must hold sentences; given none"),
        ("a.csv", b"id,my review\n", "corpus.text_field: .*a.csv: must name the column of text; the columns are id, my review; name one, as NAME$"),
        ("a.csv", b"text,id,text\na,b,c\n", "a.csv: columns must have different names; given 'text' twice; rename one"),
        ("a.csv", b"id,text\n1,a\n2,caf\xe9\n", "a.csv:3: must be UTF-8; given byte 0xe9; convert it with iconv"),
        ("a.csv", "text\nd\xe9j\xe0\n".encode() + "d\xe9j\xe0\n".encode("latin-1"), "a.csv:3: must be UTF-8; given byte 0xe9"),
        ("a.csv", b"id,text\n1,a\0\n", "a.csv:2: must be plain text; given a NUL byte: is this a binary file"),
        ("a.csv", b'id,text\n1,"' + b"long\n" * 8_000_000, "a.csv: line 2: must close the quotation mark of each value; write marks inside a value twice, as \"\""),
        ("a.csv.gz", gzip.compress(b"text\n" + b"A b .\n" * 99, mtime=0)[:-9], "a.csv.gz: truncated or not gzip"),
        ("a.tsv", b"id\ttext\n1\ta\tb\n", "a.tsv: row 1: must have 2 values, as the header; given 3"),
        ("a.parquet", b"PAR1 and no more", "a.parquet: not a Parquet file, or truncated"),
        ("a.parquet", {"text": [1, 2]}, "a.parquet: row 1: 'text' must be text; given int"),
        ("a.parquet", {"text": ["a", None]}, "a.parquet: row 2: 'text' must be text; given nothing"),
        ("a.parquet", {"text": pa.array([1 << 60], pa.timestamp("us"))}, "a.parquet: dates must be in the years 1 to 9999; one is not; leave out its column"),
        ("a.parquet", {"text": [["a"], ["b"]]}, "a.parquet: row 1: 'text' must be text; given list"),
        ("a.parquet", {"id": [1]}, "must name the column of text; the columns are id; name one, as id"),
        ("a.md", b"# caf\xe9\n", "a.md:1: must be UTF-8; given byte 0xe9"),
        ("a.md", b"```\nonly = code\n```\n", "a.md: must hold sentences; given none"),
        ("a.html", b"<head><title>A title .</title></head>", "a.html: must hold sentences; given none"),
        ("data/dataset_info.json", b"{}", "data: not a folder of datasets, or incomplete .*; save it again"),
        ("data/dataset_dict.json", b"[]", "data/dataset_dict.json: must list the splits of a dataset; save it again"),
    ],
)  # fmt: skip
def test_invalid_file_raises_one_clear_error(tmp_path, name, content, message):
    """Every error names the file, the line and the requirement."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if isinstance(content, dict):
        parquet.write_table(pa.table(content), path)
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        build(path if path.parent == tmp_path else path.parent, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", "text,doc\na,1\nb,\n", {"document_field": "doc"}, "a.csv: row 2: 'doc' must identify a document; given nothing"),
        ("a.jsonl", '{"text": "a"}\n', {"document_field": "doc"}, "a.jsonl:1: 'doc' must identify a document; given nothing"),
        ("a.jsonl", '{"text": "a", "doc": [1]}\n', {"document_field": "doc"}, "a.jsonl:1: 'doc' must be text or a number; given list"),
        ("a.txt", "a\n", {"document_field": "doc"}, "corpus.document_field: .*a.txt: must be left out for a file without columns; given 'doc'"),
    ],
)  # fmt: skip
def test_column_that_cannot_be_used_raises_one_clear_error(
    tmp_path, name, content, options, message
):
    """Every error names the setting or the row."""
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        build(tmp_path / name, tmp_path, **options)
    assert "\n" not in str(caught.value)


def test_no_path_raises_one_clear_error(tmp_path):
    """There is nothing to name."""
    with pytest.raises(DataError, match="must name at least one file; given an empty list"):
        build([], tmp_path)


@pytest.mark.parametrize("path", ["caf\udce9.txt", ["a.txt", "caf\udce9.txt"]])
def test_name_that_is_not_utf_8_raises_one_clear_error(path):
    """It can be in no record of a run."""
    with pytest.raises(ConfigError, match="path: must be a name in UTF-8; rename the file"):
        validate(CorpusConfig, Document({"path": path}))


# The embedded corpus


@pytest.fixture(scope="module")
def documentation():
    """Return the documents of two small libraries."""
    return list(extract(["optuna", "pydantic"]))


def test_docs_are_prose_of_named_modules(documentation):
    """Documents name their library and module; two libraries have well over a thousand sentences."""
    assert {document.library for document in documentation} == {"optuna", "pydantic"}
    assert all(document.module.startswith(document.library) for document in documentation)
    sentences = [sentence for document in documentation for sentence in document.sentences]
    assert len(sentences) > 1_500
    assert all(is_prose(sentence) for sentence in sentences)


def test_docs_are_cached(documentation, monkeypatch, tmp_path):
    """They are extracted once; then each line of the file is a document."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded, "extract", lambda libraries: iter(documentation))
    assert list(docs_documents()) == documentation
    monkeypatch.setattr(embedded, "extract", lambda libraries: pytest.fail("extracted again"))
    assert list(docs_documents()) == documentation


DOCSTRING = """Fit the model to data.

Parameters
----------
X : ndarray of shape (rows, columns)
    The values to fit, which are never changed. See :class:`~a.b.Model` for more.
alpha, beta : float
    Ignored here.

.. code-block:: python

    This is not a sentence that should be kept at all.

.. note:: The order of the rows is of *no* importance [1]_.

Returns the error :math:`e = 1` of the fit, which is a formula.

    >>> fit(x)
    This is the output of a doctest, which is not prose.

======  =====================================
name    The name of the column in the table.
======  =====================================

References
----------
.. [1] A paper by somebody, which is not to be kept as prose.
"""


def test_prose_excludes_markup_code_and_tables():
    """Only the sentences of a docstring remain, in order."""
    sentences = [
        sentence for paragraph in paragraphs(DOCSTRING) for sentence in prose_sentences(paragraph)
    ]
    assert sentences == [
        "Fit the model to data.",
        "The values to fit, which are never changed.",
        "The order of the rows is of no importance.",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "x = fit(a, b) is the call.",
        "Numpy Pandas Torch Ray Optuna.",
        "Too short.",
        "no capital is here at all.",
    ],
)
def test_is_prose_rejects_other_lines(line):
    """Code, lists of names and fragments are not prose."""
    assert not is_prose(line)
