"""Files of pairs in their published formats, held-out pairs, and batches."""

import gzip
import json
import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from object_store import BUCKET
from tables import save_dataset, write_table

from raysent.data.batches import PairStream
from raysent.data.pairs import PairCorpus, PairsConfig, read_pairs, read_sts, select_rows
from raysent.data.vocabulary import VocabularyConfig
from raysent.errors import DataError

JSON = {"format": "jsonl", "first": "a", "second": "b", "label": "c"}
LINES = [
    ("a cat", "the cat", "0.5"),
    ("a dog", "one dog", "1"),
    ("no", "never", "2"),
    ("x y", "y x", "3"),
]


def write(path, text):
    """Write text, gzipped if the name ends in .gz."""
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "a.txt"])
def test_tab_separated_pairs_by_index_and_by_name(tmp_path, name):
    """With and without a header line."""
    rows = "\n".join("\t".join(line) for line in LINES)
    plain = read_pairs(PairsConfig(path=write(tmp_path / name, rows), score=2))
    named = PairsConfig(
        path=write(tmp_path / name, f"s1\ts2\trating\n{rows}\n"),
        first="s1",
        second="s2",
        score="rating",
    )
    assert plain.first == read_pairs(named).first == ["a cat", "a dog", "no", "x y"]
    assert plain.second == ["the cat", "one dog", "never", "y x"]
    assert plain.scores.tolist() == read_pairs(named).scores.tolist() == [0.5, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("blank", ["\n", " \n", "\r\n", "\n\n"])
def test_blank_lines_between_pairs_count_for_nothing(tmp_path, blank):
    """As in corpora and tables; the lines that messages name count them."""
    rows = ["s1\ts2\n", *("\t".join(line[:2]) + "\n" for line in LINES)]
    objects = [json.dumps({"s1": line[0], "s2": line[1]}) + "\n" for line in LINES]
    for name, lines in (("a.tsv", rows), ("a.jsonl", objects)):
        for place in (0, 2, len(lines)):
            path = write(tmp_path / name, "".join([*lines[:place], blank, *lines[place:]]))
            assert read_pairs(PairsConfig(path=path, first="s1", second="s2")).first == [
                line[0] for line in LINES
            ]


def test_pairs_are_read_as_other_text_is(tmp_path):
    """UTF-16 with a BOM; a NUL byte is refused with its place."""
    text = "".join("\t".join(line) + "\n" for line in LINES)
    path = tmp_path / "a.tsv"
    path.write_bytes(text.encode("utf-16"))
    assert read_pairs(PairsConfig(path=str(path))).first == [line[0] for line in LINES]
    path.write_bytes(text.replace("no", "\0").encode())
    with pytest.raises(DataError, match=r"a\.tsv:3: must be plain text; given a NUL byte"):
        read_pairs(PairsConfig(path=str(path)))


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet", "folder", "a.jsonl"])
def test_pairs_are_tables(tmp_path, bucket, name):
    """In every form of a table, on disk and in a bucket: the same pairs as in TSV; columns by name or by index."""
    columns = dict(zip(("s1", "s2", "rating"), zip(*LINES, strict=True), strict=True))
    columns["s1"] = ['a "cat", an\nother', *columns["s1"][1:]]
    path = write_table(tmp_path / name, columns)
    found = read_pairs(PairsConfig(path=path, first="s1", second="s2", score="rating"))
    assert (found.first, found.second) == (columns["s1"], list(columns["s2"]))
    assert found.scores.tolist() == [0.5, 1.0, 2.0, 3.0]
    if name in ("a.parquet", "folder"):
        assert (
            read_pairs(PairsConfig(path=path)).key
            == read_pairs(PairsConfig(path=path, first="s1", second="s2")).key
        )
    if name != "folder":
        bucket.upload_file(path, BUCKET, name)
        remote = PairsConfig(path=f"s3://{BUCKET}/{name}", first="s1", second="s2", score="rating")
        assert read_pairs(remote).key == found.key


def test_csv_without_a_header_and_tabs_in_its_place(tmp_path):
    """Indices alone: the first line is a pair. A `.csv` with tabs is TSV as published, quotes and longer lines too."""
    path = write(tmp_path / "a.csv", 'a cat,"the cat, too",1\n' * 4)
    assert read_pairs(PairsConfig(path=path, score=2)).second == ["the cat, too"] * 4
    path = write(tmp_path / "b.csv", 'x\t"so\tit"\n' + 'y\tz\t"\tmore\n' * 3)
    assert read_pairs(PairsConfig(path=path)).second == ['"so', "z", "z", "z"]


def test_classes_of_a_dataset_have_their_names(tmp_path):
    """Numbers of classes stand for names; -1 is a pair without a label."""
    table = pa.table(
        {"a": [f"w{n}" for n in range(6)], "b": ["v"] * 6, "label": [0, 1, 2, -1, 1, 0]}
    )
    save_dataset(tmp_path / "nli", table, ["entailment", "neutral", "contradiction"])
    pairs = read_pairs(
        PairsConfig(path=str(tmp_path / "nli"), label="label", first="a", second="b")
    )
    assert [pairs.classes[label] for label in pairs.labels] == [
        "entailment", "neutral", "contradiction", "neutral", "entailment",
    ]  # fmt: skip


def test_ppdb_pairs_are_columns_1_and_2(tmp_path):
    """PPDB separates its fields by |||."""
    rows = "\n".join(
        f"[X] ||| {one} ||| {other} ||| PPDB2.0Score={score}" for one, other, score in LINES
    )
    pairs = read_pairs(PairsConfig(path=write(tmp_path / "ppdb.gz", rows)))
    assert list(zip(pairs.first, pairs.second, strict=True)) == [line[:2] for line in LINES]


def test_nli_pairs_leave_out_those_without_a_label(tmp_path):
    """SNLI's jsonl; classes are in alphabetical order unless configured."""
    labels = ["neutral", "-", "entailment", "contradiction", "neutral"]
    rows = [
        json.dumps({"sentence1": f"p {n}", "sentence2": "h", "gold_label": label})
        for n, label in enumerate(labels)
    ]
    config = PairsConfig(
        path=write(tmp_path / "snli.jsonl", "\n".join(rows)),
        first="sentence1",
        second="sentence2",
        label="gold_label",
    )
    pairs = read_pairs(config)
    assert (pairs.classes, pairs.labels.tolist()) == (
        ("contradiction", "entailment", "neutral"),
        [2, 1, 0, 2],
    )
    named = read_pairs(
        config.model_copy(update={"classes": ["neutral", "entailment", "contradiction"]})
    )
    assert named.labels.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("settings", "text", "message"),
    [
        ({}, None, r"^pairs\.path: .*a\.tsv: no such file$"),
        ({}, "one column\n" * 5, r"a\.tsv: must have column 1, counted from 0; given 1 columns"),
        (
            {"score": 2},
            "a\tb\tmuch\n" * 5,
            r"a\.tsv: row 1: the score must be a finite number; given 'much'",
        ),
        (
            {"first": "sentense"},
            "sentence\tb\n" * 5,
            r"no such column: 'sentense'; did you mean 'sentence'\?",
        ),
        ({"format": "jsonl"}, "{\n" * 5, r"a\.tsv:1: must be one JSON object a line"),
        ({}, "a\tb\na\n" * 5, r"a\.tsv: row 2: must have 2 values; given 1$"),
        (
            JSON,
            '{"a": "x", "b": null, "c": "y"}\n' * 5,
            r"a\.tsv: row 1: 'b' must be text; given nothing$",
        ),
        (
            JSON,
            '{"a": "x", "b": 3, "c": "y"}\n' * 5,
            r"a\.tsv: row 1: 'b' must be text; given int$",
        ),
        (
            JSON,
            '{"a": "x", "b": "z", "c": null}\n' * 5,
            r"a\.tsv: must contain at least 4 pairs; given 0$",
        ),
        (
            JSON,
            '{"a": "x", "b": "z", "c": [1]}\n' * 5,
            r"a\.tsv: row 1: 'c' must be text or a number; given list$",
        ),
        ({}, "a\tb\n", r"a\.tsv: must contain at least 4 pairs; given 1"),
        (
            {"label": 2, "classes": ["yes"]},
            "a\tb\tno\n" * 5,
            r"pairs\.classes: must name every class .*given 'no'",
        ),
    ],
)
def test_invalid_pairs_raise_one_clear_error(tmp_path, settings, text, message):
    """The error names file, line and requirement."""
    path = tmp_path / "a.tsv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_pairs(PairsConfig(path=str(path), **settings))


def test_sts_sets_leave_out_pairs_without_a_score(tmp_path):
    """In SentEval's layout, an empty line of the scores file means no score."""
    (tmp_path / "STS.input.images.txt").write_text("a\tb\nc\td\ne\tf\n")
    (tmp_path / "STS.gs.images.txt").write_text("1.5\n\n3\n")
    [(name, pairs)] = read_sts(tmp_path).items()
    assert (name, pairs.first, pairs.scores.tolist()) == ("images", ["a", "e"], [1.5, 3.0])
    with pytest.raises(
        DataError, match=r"^validation\.sts: .*none: must contain STS\.input\.NAME\.txt"
    ):
        read_sts(tmp_path / "none")


def test_held_out_pairs_are_never_trained_on(tmp_path):
    """Repeated and reversed pairs are in the same split; the vocabulary has the words of the training pairs."""
    rows = [f"w{n}\tv{n}\n" for n in range(60)]
    rows += [f"v{n}\tw{n}\n" for n in range(60)]
    corpus = PairCorpus(
        PairsConfig(path=write(tmp_path / "a.tsv", "".join(rows)), validation_fraction=0.2)
    )
    sides = [
        {frozenset(pair) for pair in zip(part.first, part.second, strict=True)}
        for part in (corpus.train, corpus.validation)
    ]
    assert not sides[0] & sides[1]
    assert (len(corpus.train), len(corpus.validation)) == (96, 24)
    assert len(corpus.vocabulary(VocabularyConfig())) == 2 + 96


def test_pairs_that_say_the_same_are_held_out_together(tmp_path):
    """In capitals, decomposed or with marks of HTML; a run that an earlier version began holds out what it did."""
    rows = [f"wört{n} one\tv{n}\n" for n in range(60)]
    others = [f"V{n}\tw&ouml;rt{n} ONE\n" for n in range(30)]
    others += [unicodedata.normalize("NFD", row) for row in rows[30:]]
    path = write(tmp_path / "a.tsv", "".join([*rows, *others]))
    config = PairsConfig(path=path, validation_fraction=0.2)
    corpus = PairCorpus(config)
    numbers = [
        {re.findall(r"\d+", first)[0] for first in part.first}
        for part in (corpus.train, corpus.validation)
    ]
    assert not numbers[0] & numbers[1]
    assert len(corpus.train) + len(corpus.validation) == 120
    earlier = PairCorpus(config, unicode_form="as_written")
    assert len(earlier.validation) == 24
    kept = set(zip(earlier.validation.first, earlier.validation.second, strict=True))
    assert kept <= set(zip(corpus.validation.first, corpus.validation.second, strict=True))


def test_pair_stream_epoch_has_every_pair_once_in_its_own_order(tmp_path):
    """The last batch is smaller; the ranks divide a batch."""
    corpus = PairCorpus(
        PairsConfig(path=write(tmp_path / "a.tsv", "".join(f"w{n}\tv{n}\n" for n in range(80))))
    )
    pairs = corpus.train.encode(corpus.vocabulary(VocabularyConfig()), max_length=5)
    batches = PairStream(pairs, batch_size=16, seed=0)
    epochs = [
        np.concatenate(
            [batches.batch(number * batches.num_batches + step).first.ids for step in range(5)]
        )
        for number in (0, 1)
    ]
    assert batches.num_batches == 5
    assert all(np.array_equal(np.sort(ids), np.sort(pairs.first.ids)) for ids in epochs)
    assert not np.array_equal(*epochs)
    ranks = [
        PairStream(pairs, batch_size=16, seed=0, rank=rank, world_size=2).batch(3).first.ids
        for rank in (0, 1)
    ]
    assert np.array_equal(np.concatenate(ranks), batches.batch(3).first.ids)
    with pytest.raises(DataError, match=r"^training\.batch_size: must be at least 4"):
        PairStream(pairs, batch_size=2, seed=0, world_size=2)


def test_select_rows_in_any_order(tmp_path):
    """Rows may be repeated and in any order."""
    corpus = PairCorpus(
        PairsConfig(
            path=write(tmp_path / "a.tsv", "".join("\t".join(line) + "\n" for line in LINES * 3))
        )
    )
    encoded = corpus.vocabulary(VocabularyConfig()).ids(["a cat", "the", "one dog"], max_length=5)
    selected = select_rows(encoded, np.array([2, 0, 2]))
    assert selected.lengths.tolist() == [2, 2, 2]
    assert np.array_equal(
        selected.ids, np.concatenate([encoded.ids[3:], encoded.ids[:2], encoded.ids[3:]])
    )
