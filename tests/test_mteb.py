"""Tasks of mteb: the score is that of the vectors, kept as a record of raysent and in mteb's own form.

Most tests need mteb; the records and the refusal without it do not.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from command import CommandLine
from scipy.stats import spearmanr

import raysent
from raysent.errors import ConfigError, DataError
from raysent.evaluation.records import MtebScore, read_score, read_scores, write_score
from raysent.integrations import mteb as module
from raysent.models.schemes.hash import HashEncoder
from raysent.report.run import read_run
from raysent.report.sections.evaluation import task_scores

PAIRS = [
    {"sentence1": "a man plays a guitar", "sentence2": "a man plays music", "score": 4.0},
    {"sentence1": "a dog runs", "sentence2": "the train leaves at noon", "score": 0.5},
    {"sentence1": "a cat sleeps", "sentence2": "a cat sleeps well", "score": 4.5},
    {"sentence1": "rain falls", "sentence2": "a man cooks", "score": 0.1},
]
TASKS = '''
"""Tasks on data of this folder."""
import json
from pathlib import Path

import datasets
from mteb.abstasks import AbsTaskRetrieval, AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata

HERE = Path(__file__).parent
PAIRS = json.loads((HERE / "pairs.json").read_text())


def about(name, type, main_score):
    return TaskMetadata(
        name=name, description="Pairs of a test.", type=type, dataset={"path": "local/pairs", "revision": "1"},
        eval_splits=["test"], eval_langs=["eng-Latn"], main_score=main_score,
    )


class Pairs(AbsTaskSTS):
    metadata = about("LocalPairs", "STS", "cosine_spearman")
    min_score, max_score = 0, 5

    def load_data(self, **_):
        self.dataset = datasets.DatasetDict(test=datasets.Dataset.from_list(PAIRS))
        self.data_loaded = True


class Find(AbsTaskRetrieval):
    metadata = about("LocalFind", "Retrieval", "ndcg_at_10")

    def load_data(self, **_):
        rows = list(enumerate(PAIRS))
        test = {
            "corpus": datasets.Dataset.from_list([{"id": f"d{n}", "text": one["sentence2"]} for n, one in rows]),
            "queries": datasets.Dataset.from_list([{"id": f"q{n}", "text": one["sentence1"]} for n, one in rows]),
            "relevant_docs": {f"q{n}": {f"d{n}": 1} for n, one in rows if one["score"] > 1},
            "top_ranked": None,
        }
        self.dataset = {"default": {"test": test}}
        self.data_loaded = True
'''
needs_mteb = pytest.mark.skipif(find_spec("mteb") is None, reason="pip install raysent[mteb]")
SCORE = MtebScore("one", "SciFact", "ndcg_at_10", 41.5, {"test": {"default": 41.5}}, "abc", "2.0.0")


def test_score_is_read_as_it_was_written(tmp_path):
    """Under its key, and among the other scores of the folder."""
    write_score(tmp_path / "one/mteb", SCORE, key="k")
    assert read_score(tmp_path / "one/mteb", "SciFact", MtebScore, key="k") == SCORE
    assert read_score(tmp_path / "one/mteb", "SciFact", MtebScore, key="other") is None
    assert read_score(tmp_path / "one/mteb", "Other", MtebScore, key="k") is None
    assert read_scores(tmp_path) == [SCORE]


def test_report_shows_scores_in_a_table_of_their_own(tmp_path):
    """Beside no probe's, whose scale is another."""
    write_score(tmp_path / "evaluation/one/mteb", SCORE, key="k")
    [table] = task_scores(read_run(tmp_path)).blocks
    assert table.caption == "main scores of MTEB's tasks × 100"
    assert [cell.text for cell in table.rows[0]] == ["one", "41.50", "41.50"]


def test_evaluate_without_mteb_names_the_extra(tmp_path, monkeypatch):
    """Before a model is loaded."""
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"^mteb: needs mteb; install raysent\[mteb\]$"):
        raysent.evaluate("hash:8", mteb=["SciFact"], output=tmp_path, progress=False)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Return a file that defines a task of pairs and one of retrieval."""
    (tmp_path / "pairs.json").write_text(json.dumps(PAIRS))
    (tmp_path / "my_tasks.py").write_text(TASKS)
    return tmp_path / "my_tasks.py"


@needs_mteb
@pytest.mark.filterwarnings("ignore")
def test_tasks_of_a_file_give_the_scores_of_the_vectors(tasks, tmp_path, monkeypatch, capsys):
    """By the command, by the adapter, and computed here; mteb reads its own results."""
    import mteb

    monkeypatch.chdir(tmp_path)
    ran = CommandLine(monkeypatch, capsys)("evaluate", "hash:50", "--mteb", tasks, "--json")
    assert ran.code == 0, ran.err
    found = {score["task"]: score for score in json.loads(ran.out)["mteb"]}
    encoder = HashEncoder(50)
    first, second = (
        encoder.encode([pair[side] for pair in PAIRS]) for side in ("sentence1", "sentence2")
    )
    expected = spearmanr(
        encoder.similarity_pairwise(first, second), [pair["score"] for pair in PAIRS]
    ).statistic
    assert found["LocalPairs"]["test"] == pytest.approx(100 * expected, abs=1e-4)
    order = np.argsort(-encoder.similarity(first, second), axis=1)
    ranks = [list(order[row]).index(row) for row, pair in enumerate(PAIRS) if pair["score"] > 1]
    assert found["LocalFind"]["test"] == pytest.approx(
        100 * np.mean(1 / np.log2(2 + np.array(ranks))), abs=1e-3
    )
    [folder] = Path().glob("**/hash%3A50/mteb")
    kept = {score.task: score for score in read_scores(folder.parent.parent)}
    assert kept["LocalPairs"].test == found["LocalPairs"]["test"]
    own = mteb.ResultCache(folder.parent.parent / "mteb").load_results(tasks=["LocalPairs"])
    assert own.model_results[0].task_results[0].get_score() == pytest.approx(expected, abs=1e-5)
    for task, _ in module.find_mteb_tasks([str(tasks)]):
        by_adapter = mteb.evaluate(
            module.MtebModel(encoder), task, cache=None, co2_tracker=False
        ).task_results[0]
        assert 100 * by_adapter.get_score() == pytest.approx(
            found[task.metadata.name]["test"], abs=1e-4
        )


@needs_mteb
@pytest.mark.filterwarnings("ignore")
def test_record_of_a_published_task_is_read_again(tasks, tmp_path, monkeypatch):
    """A task of a file is evaluated each time, because its data has no revision."""
    task = module.find_mteb_tasks([str(tasks)])[0][0]
    monkeypatch.setattr(module, "_published_task", lambda _: task)
    first = raysent.evaluate(
        "hash:50", mteb=["LocalPairs"], output=tmp_path / "out", progress=False
    )
    monkeypatch.setattr(module, "_score", lambda *_, **__: pytest.fail("evaluated again"))
    again = raysent.evaluate(
        "hash:50", mteb=["LocalPairs"], output=tmp_path / "out", progress=False
    )
    assert first.equals(again)
    with pytest.raises(pytest.fail.Exception, match="evaluated again"):
        raysent.evaluate("hash:50", mteb=[task], output=tmp_path / "out", progress=False)


@needs_mteb
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (
            "STSBenchmrk",
            ConfigError,
            r"^mteb STSBenchmrk: unknown task of mteb; did you mean 'STSBenchmark'\?$",
        ),
        ("none.py", ConfigError, r"^mteb none\.py: no such file; name a file that defines tasks"),
        ("empty.py", ConfigError, r"^mteb empty\.py: must define a task; "),
        (
            "broken.py",
            DataError,
            r"^mteb LocalPairs: its data cannot be loaded: FileNotFoundError: .*pairs.json",
        ),
    ],
)
def test_wrong_task_is_refused(tasks, tmp_path, monkeypatch, name, kind, message):
    """In one line, with what could have been meant."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.py").write_text("from mteb.abstasks import AbsTaskSTS\n")
    late = TASKS.replace('PAIRS = json.loads((HERE / "pairs.json").read_text())\n', "")
    late = late.replace(
        "from_list(PAIRS)", 'from_list(json.loads((HERE / "pairs.json").read_text()))'
    )
    (tmp_path / "broken.py").write_text(late)
    if name == "broken.py":
        (tmp_path / "pairs.json").unlink()
    with pytest.raises(kind, match=message):
        raysent.evaluate("hash:8", mteb=[name], output=tmp_path / "out", progress=False)
