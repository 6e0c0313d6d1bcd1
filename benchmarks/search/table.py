"""The table of trials: `build` trains what is missing; `read_table` returns the scalars, `read_arrays` the rest.

    OMP_NUM_THREADS=1 python -m benchmarks.search build --data DIR --output FOLDER [--only-corpus novels] [--rounds 3]

DIR has `corpus/books`, `corpus/nonfiction` and `senteval`. A trial is one file of FOLDER/trials, whole or absent, so
that the build may be stopped and started again at any time. `collect` writes the scalars of all trials as
`benchmarks/search/trials.csv.gz`.

Columns of the scalars, a row for each report of each trial:

    corpus, config, seed    `novels`, `docs` or `news`; number of the configuration; seed of the run
    family, params          of the configuration; params is a JSON object, searched name -> what was drawn
    length                  1 for the short part of the table; how many times longer trials of the long part are trained
    report, share           1, 2, 4, 8 of eight reports; share of the steps that are done
    steps, sentences        steps of the whole run, and sentences of these steps
    seconds                 processor seconds of training up to this report, evaluation and set-up apart
    setup_s, evaluation_s   processor seconds before the first step, and of this report's evaluation
    status                  finished or nan; a trial that diverged has no metrics from there on
    test                    mean test accuracy over the five tasks, in percent; at the last report alone
    m.NAME                  a metric: context_accuracy_*, context_nll_* (pools of 200, 1,000 and 10,000 candidates;
                            `1000_one` is a single block of 1,000), probe_200, probe_500, probe_2000 (mean validation
                            accuracy over five tasks), document_* (which document is a sentence of), library_* (docs
                            alone), sts (Spearman, STS benchmark's development pairs), effective_rank, loss (mean
                            training loss since the report before), nll (Skip-Thoughts alone), valid_TASK, test_TASK
    s.NAME                  of the shipped table: processor seconds of a metric, from the trained model to the value
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks.search.evaluation import SAMPLES, Measurement, Reading
from benchmarks.search.trials import NUM_REPORTS, Configuration, corpus_config, corpus_paths, order, run_config
from raysent.data.corpus import Corpus, prepare
from raysent.data.corpus.preparation import sentence_texts
from raysent.data.pairs import PairCorpus
from raysent.data.vocabulary import VocabularyConfig
from raysent.evaluation.probes.lexical import fit_lexical
from raysent.evaluation.task import TaskData
from raysent.kernels.devices import set_matmul_precision
from raysent.models.objectives import PairBatches
from raysent.models.schemes.tfidf import LexicalModel
from raysent.platforms import trim_heap
from raysent.storage import load_arrays, save_arrays
from raysent.storage.files import whole_file
from raysent.training.data import TrainingData, open_training_data
from raysent.training.loop import _Training
from raysent.training.memory import limit_primitive_cache
from raysent.training.plan import report_index
from raysent.training.run import RunConfig, describe
from raysent.training.workers import Workers

SCALARS = Path(__file__).parent / "trials.csv.gz"
LABELS = "labels.npz"
BASELINE_FILE = "tfidf.npz"
NUM_PAIRS = 40_000
TEST_TASKS = "test_"
# What the reports after 12.5, 25, 50 and 100 % of the steps measure.
READINGS = {
    1: Reading(2000, SAMPLES[:1]),
    2: Reading(4000, SAMPLES[:2]),
    4: Reading(2000, SAMPLES[:1]),
    8: Reading(4000, SAMPLES, has_test=True),
}


class Bench:
    """The trials of one corpus."""

    def __init__(self, name: str, paths: str | list[str], *, data: Path, output: Path) -> None:
        """Prepare text, pairs and tasks."""
        self.name, self.paths, self._folder = name, paths, output / "trials"
        self._pairs = output / f"pairs-{name}.tsv"
        corpus = prepare(corpus_config(paths), VocabularyConfig(size=10_000))
        if not self._pairs.exists():
            write_pairs(self._pairs, paths)
        self._measure = Measurement(corpus, corpus_config(paths), data=data / "senteval")
        if not (output / LABELS).exists():
            write_labels(output / LABELS, self._measure.tasks)
        if not (output / BASELINE_FILE).exists():
            write_baseline(output / BASELINE_FILE, self._measure.tasks)
        self.row_hashes = {task: rows.row_hash for task, rows in self._measure.tasks.items()}

    def file(self, chosen: Configuration, seed: int) -> Path:
        """Return the file of a trial."""
        return self._folder / f"{self.name}-{chosen.number:03d}-{seed}.npz"

    def train(self, chosen: Configuration, seed: int) -> str:
        """Train and measure a trial, write its file, and return a line about it."""
        started = time.process_time()
        config = run_config(chosen, seed=seed, paths=self.paths, pairs=self._pairs)
        data = self._open(config)
        training = _Training(config, data, device=torch.device("cpu"), workers=Workers())
        setup = time.process_time() - started
        reports, arrays, status = self._reports(training, config, data.text)
        record = {
            "corpus": self.name,
            "config": chosen.number,
            "seed": seed,
            "family": chosen.family,
            "params": chosen.params,
            "status": status,
            "steps": config.training.max_steps,
            "sentences": (config.training.max_steps or 0) * config.training.batch_size,
            "setup_s": setup,
            "reports": reports,
            "row_hashes": self.row_hashes,
            "run": describe(config),
            "key": config.key,
        }
        path = self.file(chosen, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_arrays(path, {"record": np.array(json.dumps(record)), **arrays})
        del training
        trim_heap()
        last = reports[-1] if reports else {"metrics": {}, "seconds": 0.0}
        total = time.process_time() - started
        shown = {name: last["metrics"].get(name, math.nan) for name in ("context_accuracy_1000", "probe_2000", "sts")}
        values = ", ".join(f"{name} {value:.3f}" for name, value in shown.items())
        return f"{path.stem} {chosen.family} {status}: trained {last['seconds']:.1f} s of {total:.1f} s; {values}"

    def _open(self, config: RunConfig) -> TrainingData:
        """Return the text of a run; pairs have the words of the corpus, so that vectors can be counted from it."""
        if not isinstance(config.objective.batches, PairBatches):
            return open_training_data(config)
        assert config.pairs is not None
        corpus = prepare(config.corpus, config.vocabulary)
        return TrainingData(corpus.vocabulary, corpus=corpus, pairs=PairCorpus(config.pairs), max_length=30)

    def _reports(
        self, training: _Training, config: RunConfig, text: Corpus
    ) -> tuple[list[dict[str, Any]], dict[str, np.ndarray], str]:
        """Step through a run as `fit` does, and measure the model at the reports."""
        num_steps, seconds = config.training.max_steps or 1, 0.0
        reports: list[dict[str, Any]] = []
        arrays: dict[str, np.ndarray] = {}
        for step in range(num_steps):
            started = time.process_time()
            training._step()
            seconds += time.process_time() - started
            index = report_index(step + 1, num_steps=num_steps, num_reports=NUM_REPORTS)
            is_due = index > report_index(step, num_steps=num_steps, num_reports=NUM_REPORTS)
            if not training._is_finite():
                return reports, arrays, "nan"
            if is_due and index in READINGS:
                started = time.process_time()
                own = training._metrics()
                if not all(math.isfinite(value) for value in own.values()):
                    return reports, arrays, "nan"
                reading = READINGS[index]
                found = self._measure(training._model, text, reading)
                training._loss_sum.zero_()
                training._num_losses = 0
                own = {name: value for name, value in own.items() if name in ("loss", "nll")}
                evaluation = time.process_time() - started
                values = {"report": index, "seconds": seconds, "evaluation_s": evaluation}
                reports.append({**values, "metrics": {**own, **found.metrics}})
                arrays |= {f"{index}.{name}": values for name, values in found.arrays.items()}
        return reports, arrays, "finished"


def write_pairs(path: Path, paths: str | list[str]) -> None:
    """Write neighbouring sentences of a corpus' training documents as pairs; no sentence is in two."""
    config = corpus_config(paths)
    split = prepare(config, VocabularyConfig(size=10_000)).train
    documents = split.documents(0, len(split))
    firsts = np.arange(0, len(split) - 1, 2)
    firsts = firsts[documents[firsts] == documents[firsts + 1]]
    firsts = np.sort(np.random.default_rng(0).permutation(firsts)[:NUM_PAIRS])
    texts = sentence_texts(config)
    one, other = (texts.texts(split.first + firsts + offset) for offset in (0, 1))
    with whole_file(path) as temporary:
        temporary.write_text("".join(f"{a}\t{b}\n" for a, b in zip(one, other, strict=True)), encoding="utf-8")


def write_labels(path: Path, tasks: Mapping[str, TaskData]) -> None:
    """Write the classes of the validation and test rows of each task, which log-probabilities are compared with."""
    labels = {
        f"{part}_{name}": data.labels[rows]
        for name, data in tasks.items()
        for part, rows in (("valid", data.validation), ("test", data.test))
    }
    save_arrays(path, labels)


def write_baseline(path: Path, tasks: Mapping[str, TaskData]) -> None:
    """Write what TF-IDF of words, fitted to the rows of trials' probes, predicts for validation and test rows."""
    arrays = {}
    for name, data in tasks.items():
        (fold,) = fit_lexical(LexicalModel("words"), data)[0].folds
        arrays[f"valid_{name}"] = fold.validation_log_probabilities.astype(np.float16)
        arrays[f"test_{name}"] = fold.test_log_probabilities.astype(np.float16)
    save_arrays(path, arrays)


def build(options: argparse.Namespace) -> None:
    """Train the trials that are missing, in rounds over families, corpora and seeds."""
    torch.set_num_threads(1)
    limit_primitive_cache()
    set_matmul_precision()
    paths = corpus_paths(options.data / "corpus")
    names = [name for name in paths if options.only_corpus in (None, name)]
    benches = {name: Bench(name, paths[name], data=options.data, output=options.output) for name in names}
    for name, chosen, seed in order(options.rounds, names):
        if not benches[name].file(chosen, seed).exists():
            print(f"{time.strftime('%H:%M:%S')} {benches[name].train(chosen, seed)}", flush=True)


def read_trials(folder: Path) -> list[dict[str, Any]]:
    """Return the records of all trials in a build's folder, in a fixed order."""
    files = sorted((folder / "trials").glob("*.npz"))
    return [json.loads(str(load_arrays(path)["record"])) for path in files]


def as_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each report; see the module for its columns."""
    rows = []
    for record in records:
        common = {name: record[name] for name in ("corpus", "config", "seed", "family", "status", "steps", "sentences")}
        common["length"] = Configuration(record["config"], record["params"]).length
        common |= {"params": json.dumps(record["params"]), "setup_s": rounded(record["setup_s"])}
        for report in record["reports"]:
            metrics = report["metrics"]
            tests = [value for name, value in metrics.items() if name.startswith(TEST_TASKS)]
            rows.append(
                {
                    **common,
                    "report": report["report"],
                    "share": report["report"] / NUM_REPORTS,
                    "seconds": rounded(report["seconds"]),
                    "evaluation_s": rounded(report["evaluation_s"]),
                    "test": rounded(float(np.mean(tests))) if tests else None,
                    **{f"m.{name}": rounded(value) for name, value in metrics.items()},
                }
            )
    return rows


def rounded(value: float) -> float:
    """Return a number with five digits."""
    return float(f"{value:.5g}")


def collect(options: argparse.Namespace) -> None:
    """Write the scalars of a build."""
    table = pd.DataFrame(as_rows(read_trials(options.output)))
    # Without the time, so that the same trials give the same file.
    table.to_csv(options.to or SCALARS, index=False, compression={"method": "gzip", "mtime": 0})
    print(f"{options.to or SCALARS}: {len(table)} reports")


def read_table(path: Path = SCALARS) -> pd.DataFrame:
    """Return the scalars, with `params` as mappings."""
    table = pd.read_csv(path)
    table["params"] = table["params"].map(json.loads)
    return table
