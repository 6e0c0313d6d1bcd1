"""Tasks with queries: their files, measures against pytrec_eval, rankings by words and by vectors."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import pytrec_eval
from command import CommandLine
from tables import WORDS

import raysent
from raysent.data.vocabulary import Vocabulary
from raysent.ensembles import answer_lines, read_answers, save_fusion
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.fusion import Ranking
from raysent.evaluation.members import expand
from raysent.evaluation.records import read_scores
from raysent.evaluation.retrieval import (
    MEASURES,
    differences,
    measure,
    rank,
    read_retrieval,
    some_passages,
    validation_score,
)
from raysent.evaluation.task import RetrievalData, Task
from raysent.evaluation.task_files.queries import with_dev
from raysent.evaluation.tasks import find_task
from raysent.models import ModelConfig, SentenceModel, load
from raysent.models.schemes.bm25 import Bm25Index, words
from raysent.models.sentence_encoder import normalize_rows
from raysent.pipeline.arguments import default_space
from raysent.report.sections.answer import what_to_take
from raysent.storage import read_json, write_json
from raysent.storage.layout import CARD_FILE
from raysent.training.validation.config import DownstreamConfig
from raysent.training.validation.metrics import Downstream


def write_task(folder: Path, *, num_passages: int = 120, num_queries: int = 40) -> Path:
    """Write a folder in BEIR's form: each query is some words of its passage, every third also of another's."""
    generator = np.random.default_rng(0)
    passages = [generator.choice(WORDS, size=7).tolist() for _ in range(num_passages)]
    (folder / "qrels").mkdir(parents=True)
    lines = [
        {"_id": f"d{place}", "title": text[0], "text": " ".join(text[1:])}
        for place, text in enumerate(passages)
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = [
        {"_id": f"q{place}", "text": " ".join(passages[place][2:6])} for place in range(num_queries)
    ]
    (folder / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in asked))
    for name, places in (
        ("dev", range(num_queries // 2)),
        ("test", range(num_queries // 2, num_queries)),
    ):
        rows = [f"q{place}\td{place}\t2" for place in places] + [
            f"q{place}\td{place + 50}\t1" for place in places[::3]
        ]
        (folder / "qrels" / f"{name}.tsv").write_text(
            "\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n"
        )
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of queries and passages, with a cache of its own."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    return write_task(tmp_path / "questions")


def loaded(name: Path | str) -> RetrievalData:
    """Return a task's queries and passages."""
    data = find_task(str(name)).load()
    assert isinstance(data, RetrievalData)
    return data


def made(relevant: list[dict[int, float]], num_passages: int) -> RetrievalData:
    """Return a task of which only identifiers and relevance matter; the identifiers are in no order."""
    ids = tuple(f"d{(7 * place) % num_passages}" for place in range(num_passages))
    queries = [f"query {place}" for place in range(len(relevant))]
    places = np.arange(len(relevant))
    return RetrievalData(
        "made",
        [""] * num_passages,
        ids,
        queries,
        tuple(queries),
        tuple(relevant),
        places,
        places,
        places,
    )


def by_trec_eval(ranking: Ranking, data: RetrievalData) -> np.ndarray:
    """Return the measures of each query by pytrec_eval."""
    judged = {
        data.query_ids[query]: {
            data.passage_ids[row]: int(grade) for row, grade in data.relevant[query].items()
        }
        for query in ranking.queries.tolist()
    }
    run = {
        data.query_ids[query]: {
            data.passage_ids[row]: float(score)
            for row, score in zip(rows, scores, strict=True)
            if row >= 0
        }
        for query, rows, scores in zip(
            ranking.queries.tolist(), ranking.rows.tolist(), ranking.scores.tolist(), strict=True
        )
    }
    found = pytrec_eval.RelevanceEvaluator(
        judged, {"ndcg_cut.10", "recall.100", "recip_rank"}
    ).evaluate(run)
    values = [
        (one["ndcg_cut_10"], one["recall_100"], one["recip_rank"])
        for one in (found[name] for name in run)
    ]
    array = np.array(values)
    array[:, 2] = np.where(array[:, 2] >= 0.1, array[:, 2], 0)  # of the first ten
    return array


@pytest.mark.parametrize("seed", range(3))
def test_measures_equal_those_of_pytrec_eval(seed) -> None:
    """With ties, grades, queries without a relevant or judged passage, and queries for which little or nothing is found."""
    generator = np.random.default_rng(seed)
    num_passages, num_queries, depth = 300, 40, 150
    relevant = [
        {
            int(row): float(generator.integers(-1, 4))
            for row in generator.choice(num_passages, size, replace=False)
        }
        for size in generator.integers(0, 30, size=num_queries)
    ]
    relevant[0] = {3: 0.0}
    rows = np.stack(
        [generator.permutation(num_passages)[:depth] for _ in range(num_queries)]
    ).astype(np.int32)
    scores = -np.sort(
        -generator.integers(0, 25, size=(num_queries, depth)).astype(np.float32) / 7, axis=1
    )
    rows[1], rows[2, 4:] = -1, -1
    # pytrec_eval refuses a query without any judgement.
    relevant = [one or {0: 0.0} for one in relevant]
    data, ranking = made(relevant, num_passages), Ranking(np.arange(num_queries), rows, scores)
    assert np.allclose(measure(ranking, data), by_trec_eval(ranking, data), atol=5e-5)


@pytest.mark.parametrize("model", ["bm25", "hash:20"])
def test_rankings_of_a_folder_equal_pytrec_eval_and_a_plain_search(folder, model) -> None:
    """All passages are candidates; the title is part of a passage."""
    data, encoder = loaded(folder), load(model)
    ranking = rank(encoder, data, np.concatenate([data.dev, data.test]))
    assert np.allclose(measure(ranking, data), by_trec_eval(ranking, data), atol=5e-5)
    if model == "bm25":
        return
    cosines = (
        normalize_rows(encoder.encode(data.queries))
        @ normalize_rows(encoder.encode(data.passages)).T
    )
    best = np.argsort(-cosines, axis=1, kind="stable")[ranking.queries][:, :5]
    assert np.allclose(
        np.take_along_axis(cosines[ranking.queries], best, 1), ranking.scores[:, :5], atol=1e-5
    )


def test_words_rank_as_the_formula_says() -> None:
    """Lucene's form of BM25, word by word; of equal passages the first comes first, and none without a word."""
    passages = ["the cat sat", "a dog", "", "Cat, cat!", "a dog"]
    rows, scores = Bm25Index.of(passages).top("cat dog zebra", 10)
    lengths = [len(words(text)) for text in passages]
    expected = {}
    for row, text in enumerate(passages):
        for word in ("cat", "dog"):
            count = words(text).count(word)
            holders = sum(word in words(other) for other in passages)
            norm = 1.5 * (1 - 0.75 + 0.75 * lengths[row] / np.mean(lengths))
            gain = (
                np.log(1 + (len(passages) - holders + 0.5) / (holders + 0.5))
                * count
                / (count + norm)
            )
            expected[row] = expected.get(row, 0) + gain
    expected = {row: score for row, score in expected.items() if score}
    assert rows.tolist() == sorted(expected, key=lambda row: (-round(expected[row], 5), row))
    assert np.allclose(scores, [expected[row] for row in rows.tolist()], atol=1e-5)


def test_words_of_scripts_without_blanks_are_pairs_of_characters() -> None:
    """Beside words of other scripts, whatever their case and form of Unicode; Chinese characters are also alone."""
    found = words("Dr. Mu\u0308ller 我喜欢 ｉＰｈｏｎｅ手机")
    assert found == ["dr", "müller", "我喜", "喜欢", "我", "喜", "欢", "iphone", "手机", "手", "机"]
    assert words("ที่ หิมะ हिन्दी カメ ﾈｺ 𠮷野") == [
        *("ที", "ี่", "หิ", "ิม", "มะ", "हिन्दी", "カメ", "ネコ", "𠮷野", "𠮷", "野")
    ]


def test_index_of_words_is_read_as_it_was_written(tmp_path) -> None:
    """From a folder."""
    index = Bm25Index.of(["the cat sat", "a dog"])
    index.save(tmp_path / "words")
    loaded = Bm25Index.load(tmp_path / "words", num_passages=len(index))
    assert loaded.top("dog", 3)[0].tolist() == [1]
    with pytest.raises(ValueError, match="3 passages"):
        Bm25Index.load(tmp_path / "words", num_passages=3)


def test_passage_with_the_identifier_of_the_query_is_no_candidate(folder) -> None:
    """As in beir; the queries of a table are no passages."""
    data = loaded(folder)
    lines = [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({**line, "_id": line["_id"].replace("q", "d")}) + "\n" for line in lines)
    )
    for path in (folder / "qrels").glob("*.tsv"):
        path.write_text(re.sub(r"^q(?=\d)", "d", path.read_text(), flags=re.MULTILINE))
    same = loaded(folder)
    assert same.row_hash != data.row_hash
    first = int(same.dev[0])
    assert first in rank(load("bm25"), data, data.dev).rows[0]
    assert first not in rank(load("bm25"), same, same.dev).rows[0]


def test_table_of_queries_has_the_passages_of_rows_without_a_query(tmp_path) -> None:
    """Equal texts are one query or passage; what is not relevant is a candidate; dev and test share no query."""
    rows = [(f"where is {word}", f"{word} is here", "1") for word in WORDS]
    rows += [("", "nobody asks for this", "1"), (rows[0][0], rows[1][1], "0"), rows[0]]
    with (tmp_path / "asked.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("query", "passage", "relevance"), *rows])
    data = loaded(tmp_path / "asked.csv")
    assert len(data.passages) == len(WORDS) + 1
    assert data.relevant[0] == {0: 1.0, 1: 0.0}
    assert sorted([*data.dev, *data.test]) == list(range(len(WORDS)))
    remarks = find_task(str(tmp_path / "asked.csv")).remarks
    assert "19 passages" in remarks.notes[0]
    assert "no dev part: all 18 test queries are tested" in remarks.warnings[0]


@pytest.mark.parametrize(
    ("file", "old", "new", "error"),
    [
        (
            "qrels/dev.tsv",
            "d0\t2",
            "d0\tgood",
            "row 1: relevance must be a finite number; given 'good'",
        ),
        (
            "qrels/test.tsv",
            "q20\td20",
            "q20\td999",
            "corpus-id 'd999' must be an _id of corpus.jsonl",
        ),
        ("corpus.jsonl", '"_id": "d3"', '"_id": "d2"', "_id 'd2' must be there once"),
    ],
)
def test_folder_that_is_wrong_is_refused_in_a_line(folder, file, old, new, error) -> None:
    """With the file and the row."""
    path = folder / file
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=re.escape(error)):
        loaded(folder)


def test_parts_that_are_missing_are_drawn_of_others(folder) -> None:
    """The test part of dev, else of train; dev of what is left of train; every query is in one part."""
    name = folder.name
    (folder / "qrels/test.tsv").unlink()
    task = find_task(str(folder))
    data = task.load()
    assert (len(data.train), len(data.dev), len(data.test)) == (0, 10, 10)
    assert sorted([*data.dev, *data.test]) == list(range(20))
    assert "test drawn of dev" in _about(task, name)
    (folder / "qrels/dev.tsv").rename(folder / "qrels/train.tsv")
    task = find_task(str(folder))
    data = task.load()
    # Half of train is tested, and no more than that is left.
    assert (len(data.train), len(data.dev), len(data.test)) == (10, 0, 10)
    assert sorted([*data.train, *data.test]) == list(range(20))
    assert "test drawn of train" in _about(task, name)


@pytest.mark.parametrize("name", ["validation.tsv", "valid.tsv", "Dev.tsv", "val.tsv.gz"])
def test_part_of_another_usual_name_is_that_part(folder, name) -> None:
    """It chooses, and the test queries stay whole where something is chosen."""
    dev, data = folder / "qrels/dev.tsv", loaded(folder)
    text = dev.read_bytes()
    dev.unlink()
    (folder / "qrels" / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    same = loaded(folder)
    assert same.dev.tolist() == data.dev.tolist()
    assert same.test.tolist() == data.test.tolist()
    assert with_dev(same).test.tolist() == data.test.tolist()


def test_files_that_are_no_parts_are_named(folder) -> None:
    """One beside parts in a note; without parts the error has what is there, and not a number of queries."""
    (folder / "qrels/pooled.tsv").write_text("query-id\tcorpus-id\tscore\n")
    notes = find_task(str(folder)).remarks.notes
    assert any("qrels/pooled.tsv is no part and left out" in note for note in notes)
    for part in ("dev", "test"):
        (folder / f"qrels/{part}.tsv").unlink()
    with pytest.raises(DataError, match=r"must have qrels/test\.tsv.*; given qrels/pooled\.tsv$"):
        loaded(folder)


def test_query_that_chooses_and_judges_is_named(folder) -> None:
    """Published parts are used as they are, and a warning says what that means."""
    test = folder / "qrels/test.tsv"
    test.write_text(test.read_text() + "q0\td0\t2\nq1\td1\t2\n")
    task = find_task(str(folder))
    assert len(task.load().test) == 22
    assert "2 test queries are in train or dev too" in " ".join(task.remarks.warnings)


def _about(task: Task, name: str) -> str:
    (about,) = (note for note in task.remarks.notes if note.startswith(f"{name}: "))
    return about


def test_query_in_two_parts_is_refused(tmp_path) -> None:
    """It would choose and judge."""
    (tmp_path / "t.csv").write_text("query,passage,split\na b,c,dev\na b,d,test\ne,f,test\n")
    with pytest.raises(
        DataError, match="row 2: the query must be in one part; given validation and test"
    ):
        loaded(tmp_path / "t.csv")


def test_evaluation_keeps_scores_and_rankings(folder, tmp_path) -> None:
    """The means over test queries, an interval, the score of dev; what was done is read again."""
    evaluator = Evaluator(tmp_path / "out")
    (score, other) = evaluator.evaluate(["bm25", "hash:20"], [str(folder)])
    data = loaded(folder)
    values = measure(rank(load("bm25"), data, data.test), data)
    assert [score.measures[name] for name in MEASURES] == pytest.approx(
        (100 * values.mean(axis=0)).tolist()
    )
    assert score.test == pytest.approx(100 * np.mean(score.by_query), abs=1e-3)
    assert score.validation == pytest.approx(validation_score(load("bm25"), data))
    assert score.interval[0] < score.test < score.interval[1]
    assert [one for one in read_scores(tmp_path / "out") if one.model == "bm25"] == [score]
    (record,) = Evaluator(tmp_path / "out").results(expand(["bm25"]), [find_task(str(folder))])[
        expand(["bm25"])[0]
    ]
    assert record.score == score
    assert len(record.ranking.queries) == 40
    assert record.ranking.rows.dtype == np.int32
    place = tmp_path / "out" / "bm25" / "retrieval"
    arrays = place / f"{score.task}.npz"
    whole = arrays.read_bytes()
    arrays.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    about = json.loads(arrays.with_suffix(".json").read_text())
    assert about["seconds"] == {"encode_ms_per_1000": score.encode_ms}
    key = about["key"]
    with pytest.raises(ArtifactError, match=r"npz: [^\n]+$"):
        read_retrieval(place, score.task, key=key)
    assert evaluator.evaluate(["bm25"], [str(folder)]) == [score]
    assert read_retrieval(place, score.task, key=key).score == score
    behind = differences([score, other])
    assert behind[0].value == 0
    assert behind[0].interval == (0, 0)
    assert behind[1].value == pytest.approx(other.test - score.test, abs=1e-3)


def test_words_rank_passages_alone_and_answer_nothing_else(folder, tmp_path) -> None:
    """Models of words are left out where they cannot answer; where none is left it is an error."""
    scores = raysent.evaluate(
        ["hash:20", "bm25", "tfidf"],
        tasks=[str(folder)],
        output=tmp_path / "out",
        baselines=False,
        progress=False,
    )
    assert scores["model"].tolist() == ["hash:20", "bm25"]
    with pytest.raises(
        ConfigError, match="must be a task for bm25, which ranks passages, which needs queries"
    ):
        raysent.evaluate(
            "bm25", tasks=["docs-library"], output=tmp_path / "out", baselines=False, progress=False
        )
    with pytest.raises(ConfigError, match="bm25: cannot encode"):
        load("bm25").encode(["text"])


def test_command_prints_scores_and_what_the_best_is_ahead_by(
    folder, tmp_path, monkeypatch, capsys
) -> None:
    """A table of measures; as JSON with the value of every query."""
    command = CommandLine(monkeypatch, capsys)
    out = f"output={tmp_path / 'out'}"
    asked = ("--tasks", folder, "--set", out, "--set", "baselines=false")
    text = command("evaluate", "hash:20", "bm25", *asked).out
    assert "nDCG@10" in text
    assert "questions, 20 dev and 20 test queries" in text
    values = json.loads(command("evaluate", "bm25", *asked, "--json").out)
    assert len(values["results"][0]["by_query"]) == 20
    assert values["results"][0]["num_queries"] == {"dev": 20, "test": 20}


def test_command_of_a_fusion_says_what_can_be_typed(folder, tmp_path, monkeypatch, capsys) -> None:
    """A folder with a blank is quoted."""
    monkeypatch.chdir(tmp_path)
    ran = CommandLine(monkeypatch, capsys)(
        "ensemble", "hash:20", "--tasks", folder, "-o", "my fusion"
    )
    assert "my fusion: 'raysent index 'my fusion' TEXT -o INDEX' makes an index" in ran.out


def test_queries_of_dev_are_a_metric_of_trials(folder) -> None:
    """A fixed sample, with every relevant passage; the test queries are not read."""
    data = loaded(folder)
    small = some_passages(data, max_queries=10, max_passages=40)
    assert len(small.dev) == 10
    assert len(small.passages) == 40
    for place in small.dev.tolist():
        kept = {small.passages[row]: grade for row, grade in small.relevant[place].items()}
        assert kept == {data.passages[row]: grade for row, grade in data.relevant[place].items()}
    encoder = load("hash:20")
    found = Downstream(DownstreamConfig(tasks=[str(folder)])).downstream_metrics(encoder)
    assert found["downstream"] == pytest.approx(validation_score(encoder, data))


def test_encoders_and_words_are_fused_and_saved_as_a_model(folder, tmp_path) -> None:
    """What is best on dev is taken; the saved model ranks as it did, alone and in an index."""
    fused = raysent.ensemble(
        ["hash:20", "hash:300"], tasks=[str(folder)], output=tmp_path / "fused", progress=False
    )
    answer = fused.result.answer
    first = answer.answer
    assert first.validation == max(one.validation for one in answer.candidates)
    assert first.behind.value == 0
    alone = {("hash:20",), ("hash:300",), ("hash:20", "hash:300"), ("bm25",)}
    assert {one.members for one in answer.candidates} >= alone
    assert next(one.members for one in answer.simpler) == ("bm25",)
    again = load(tmp_path / "fused")
    assert (again.word_weight, again.result) == (fused.word_weight, fused.result)
    (score,) = Evaluator(tmp_path / "out").evaluate([tmp_path / "fused"], [str(folder)])
    assert score.test == pytest.approx(first.test)
    behind = answer.candidates[answer.simplest].behind
    assert "on 20 hold-out queries, chosen by 20 of dev (95 % interval" in answer.sentence
    assert "baseline BM25 " in answer.sentence
    assert f": {behind.value:+.1f} points (" in answer.sentence
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(
        "".join(f"{text}\n" for text in loaded(folder).passages)
    )
    raysent.index(tmp_path / "fused", tmp_path / "texts", tmp_path / "index", progress=False)
    data = loaded(folder)
    expected = rank(again, data, data.test[:1]).rows[0, :5].tolist()
    assert [
        hit.row for hit in raysent.search(tmp_path / "index", data.queries[data.test[0]], k=5)[0]
    ] == expected


def test_fusion_whose_member_or_file_is_another_is_refused(folder, tmp_path) -> None:
    """In one line that says what to do."""
    raysent.ensemble(["hash:20"], tasks=[str(folder)], output=tmp_path / "fused", progress=False)
    path = tmp_path / "fused" / "fusion.json"
    values = read_json(path)
    write_json(path, {**values, "keys": {"hash:20": "other"}}, sealed=True)
    with pytest.raises(ArtifactError, match="member 'hash:20' changed since; make it again"):
        load(tmp_path / "fused")
    write_json(path, {**values, "kind": "other"}, sealed=True)
    with pytest.raises(ArtifactError, match="no fusion.json of this version; make it again"):
        load(tmp_path / "fused")
    with pytest.raises(
        ConfigError, match="must be at least one encoder to rank passages with words"
    ):
        raysent.ensemble(["bm25"], tasks=[str(folder)], output=tmp_path / "other", progress=False)
    for setting in ({"method": "pool"}, {"protocol": "senteval"}, {"baselines": False}):
        with pytest.raises(
            ConfigError, match="must be alone, without other settings, as it ranks passages"
        ):
            raysent.ensemble(
                ["hash:20"],
                tasks=[str(folder)],
                output=tmp_path / "other",
                progress=False,
                **setting,
            )


def test_fusion_of_copies_can_be_moved_alone(folder, tmp_path) -> None:
    """As a sweep saves it."""
    config = {
        "encoder": {"type": "bag", "embedding": {"dim": 5}},
        "objective": {"type": "context_prediction"},
    }
    vocabulary = Vocabulary(["<pad>", "<unk>", *WORDS])
    SentenceModel.build(ModelConfig.model_validate(config), vocabulary, seed=1, max_length=20).save(
        tmp_path / "model"
    )
    evaluator = Evaluator(tmp_path / "out")
    save_fusion(
        [tmp_path / "model"],
        find_task(str(folder)),
        evaluator,
        folder=tmp_path / "best",
        copies=True,
    )
    ((place, answer),) = read_answers(tmp_path)
    assert place == tmp_path / "best"
    lines = answer_lines([(place, answer)])
    assert lines[0].startswith(f"Your model: {place} (")
    assert lines[1].startswith(f"nDCG@10 {answer.answer.test:.1f} on ")
    assert f"raysent index {place} TEXT -o INDEX" in lines[-1]
    card = (place / CARD_FILE).read_text()
    section = what_to_take(SimpleNamespace(answers=((place, answer),)))
    for one in (answer.answer, *answer.simpler):
        assert f"| {one.title} | {one.validation:.1f} |" in card
    assert {row[0].text for row in section.blocks[-1].rows} == {
        one.title for one in answer.candidates
    }
    shutil.rmtree(tmp_path / "model")
    (tmp_path / "best").rename(tmp_path / "moved")
    assert load(tmp_path / "moved").encode(["cat dog"]).shape == (1, 10)  # of two towers


def test_text_of_a_sweep_without_a_corpus_is_the_passages(folder) -> None:
    """And trials are ranked by the queries of dev."""
    space = default_space([str(folder)])
    config = space.config(space.first_params())
    lines = Path(str(config.corpus.path)).read_text().splitlines()
    assert {json.loads(line)["text"] for line in lines} == set(loaded(folder).passages)
    assert config.validation.downstream.tasks == [str(folder)]


# --- a published test part -------------------------------------------------------------------------------------------


@pytest.fixture
def published(folder) -> Path:
    """Return a folder whose queries are all in a published test part."""
    rows = (folder / "qrels/dev.tsv").read_text() + "".join(
        (folder / "qrels/test.tsv").read_text().partition("\n")[2]
    )
    (folder / "qrels/dev.tsv").unlink()
    (folder / "qrels/test.tsv").write_text(rows)
    return folder


def test_a_test_part_alone_is_tested_whole_where_nothing_is_chosen(
    published, tmp_path, monkeypatch, capsys
) -> None:
    """Of one model and of several: all its queries, by the plain measures; the line and JSON name both numbers."""
    data = loaded(published)
    assert (len(data.dev), len(data.test)) == (0, 40)
    values = measure(rank(load("bm25"), data, np.arange(40)), data)
    command = CommandLine(monkeypatch, capsys)
    options = (
        "--tasks",
        published,
        "--set",
        f"output={tmp_path / 'out'}",
        "--set",
        "baselines=false",
    )
    ran = command("evaluate", "bm25", *options, "--json")
    (result,) = json.loads(ran.out)["results"]
    assert result["num_queries"] == {"dev": 0, "test": 40}
    assert result["validation"] is None
    assert result["test"] == pytest.approx(100 * values[:, 0].mean())
    assert len(result["by_query"]) == 40
    ran = command("evaluate", "bm25", "hash:20", *options)
    assert "questions, 0 dev and 40 test queries" in ran.out
    assert "against the first" in ran.out
    assert (
        "no dev part: all 40 test queries are tested where nothing is chosen, and 20 of them choose and 20 are tested "
        "where something is"
    ) in " ".join(ran.err.split())


def test_queries_of_a_test_part_alone_choose_where_something_is_chosen(published, tmp_path) -> None:
    """Half of them, the same for a sweep's metric and for a fusion, whose answer is of the others."""
    data = loaded(published)
    parted = with_dev(data)
    assert len(parted.dev) == len(parted.test) == 20
    assert sorted([*parted.dev, *parted.test]) == list(range(40))
    assert with_dev(parted) is parted
    found = Downstream(DownstreamConfig(tasks=[str(published)])).downstream_metrics(load("hash:20"))
    assert found["downstream"] == pytest.approx(validation_score(load("hash:20"), parted))
    fused = raysent.ensemble(
        "hash:20", tasks=[str(published)], output=tmp_path / "fused", progress=False
    )
    answer = fused.result.answer
    assert (answer.num_dev, answer.num_test) == (20, 20)
    assert "on 20 hold-out queries, chosen by 20 of dev" in answer.sentence
    assert "chosen by 20 of dev" in answer.test_text


def test_a_model_that_some_test_queries_chose_is_tested_by_the_others(
    published, tmp_path, capsys
) -> None:
    """What was fused by queries of the task is not scored on them; another model beside it neither."""
    raysent.ensemble("hash:20", tasks=[str(published)], output=tmp_path / "fused", progress=False)
    capsys.readouterr()
    scores = raysent.evaluate(
        [tmp_path / "fused", "hash:20"],
        tasks=[str(published)],
        output=tmp_path / "out",
        baselines=False,
    )
    assert "20 of its 40 test queries may have chosen a model" in " ".join(
        capsys.readouterr().err.split()
    )
    fused = next(one for one in read_scores(tmp_path / "out") if one.model == "fused")
    assert fused.num_queries == {"dev": 20, "test": 20}
    assert scores.validation.notna().all()


def test_a_table_of_queries_without_parts_is_tested_whole(tmp_path) -> None:
    """All its queries, unless something is chosen; a train part gives queries of dev, a small one none of it."""
    rows = [("query", "passage"), *((f"what about {word}", f"all of {word}") for word in WORDS)]
    path = tmp_path / "questions.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
    data = loaded(path)
    assert (len(data.train), len(data.dev), len(data.test)) == (0, 0, len(WORDS))
    parts = ["train"] * (len(WORDS) - 2) + ["test"] * 2
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(
            [
                ("query", "passage", "split"),
                *((*row, part) for row, part in zip(rows[1:], parts, strict=True)),
            ]
        )
    data = loaded(path)
    assert len(data.test) == 2
    assert len(data.dev) > 0
    assert len(data.train) + len(data.dev) == len(WORDS) - 2
