"""The adapter for mteb runs a local task, and its score is that of the vectors."""

import json

import pytest
from scipy.stats import spearmanr

from raysent.models.schemes.hash import HashEncoder

mteb = pytest.importorskip("mteb", reason="pip install raysent[mteb]")

PAIRS = [
    {"sentence1": "a man plays a guitar", "sentence2": "a man plays music", "score": 4.0},
    {"sentence1": "a dog runs", "sentence2": "the train leaves at noon", "score": 0.5},
    {"sentence1": "a cat sleeps", "sentence2": "a cat sleeps well", "score": 4.5},
    {"sentence1": "rain falls", "sentence2": "a man cooks", "score": 0.1},
]


@pytest.mark.filterwarnings("ignore")
def test_mteb_evaluates_a_model_on_a_local_task(tmp_path) -> None:
    """Spearman's correlation of cosines with scores."""
    import datasets
    from mteb.abstasks.sts import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    from raysent.exports.mteb import MtebModel

    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(pair)}\n" for pair in PAIRS))

    class Local(AbsTaskSTS):
        metadata = TaskMetadata(
            name="LocalSTS",
            description="Pairs of this test.",
            type="STS",
            dataset={"path": "local/pairs", "revision": "1"},
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="cosine_spearman",
        )
        min_score, max_score = 0, 5

        def load_data(self, **_) -> None:
            files = {"test": str(path)}
            self.dataset = datasets.load_dataset("json", data_files=files, cache_dir=str(tmp_path / "cache"))
            self.data_loaded = True

    encoder = HashEncoder(50)
    found = mteb.evaluate(MtebModel(encoder), Local(), cache=None, co2_tracker=False)
    first, second = (encoder.encode([pair[side] for pair in PAIRS]) for side in ("sentence1", "sentence2"))
    expected = spearmanr(encoder.similarity_pairwise(first, second), [pair["score"] for pair in PAIRS]).statistic
    assert found.task_results[0].get_score() == pytest.approx(expected, abs=1e-6)
