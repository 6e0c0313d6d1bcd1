"""The table of real trials: its scalars, and the space that its configurations were drawn from.

216 trials of 12 families on three texts. What trained and measured them is in the commit a4146ddc: `python -m
benchmarks.search build` there writes a folder of trials with log-probabilities, an hour of a core, and `collect` the
scalars, `benchmarks/search/trials.csv.gz`. Their columns, a row for each report of each trial:

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

import json
from functools import lru_cache
from pathlib import Path

import pandas as pd

from raysent.sweeps.space import SearchSpace, read_space

SCALARS, SPACE = Path(__file__).parent / "trials.csv.gz", Path(__file__).parent / "space.yaml"
TASKS = ("MR", "SUBJ", "TREC", "MPQA", "SST2")
NUM_REPORTS = 8
# In a folder of trials: the classes of validation and test rows, and what TF-IDF predicts for them.
LABELS, BASELINE_FILE = "labels.npz", "tfidf.npz"


@lru_cache(maxsize=1)
def table_space() -> SearchSpace:
    """Return the space that the table is drawn from; configuration `n` is of its family `n` modulo 12."""
    return read_space(SPACE)


def read_table() -> pd.DataFrame:
    """Return the scalars, with `params` as mappings."""
    table = pd.read_csv(SCALARS)
    table["params"] = table["params"].map(json.loads)
    return table
