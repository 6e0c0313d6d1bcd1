"""Sub-words beside words, as vectors counted from English novels, on eight tasks, clean and misspelt.

    python -m benchmarks.subwords --data FOLDER --books BOOKS [--size 20000] [--seeds 3] [--draws 10]

The mean of a sentence's 200 counted vectors under logistic regression (C 1; pairs: |u - v| and u v). Rows that were
looked at when the lengths of sub-words' vectors were chosen (4,000 of five tasks) are left out. Prints accuracy, and
the difference to words with a 95 % interval over seeds of the vectors, draws of labels and test rows.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from benchmarks.answers import read_table
from benchmarks.common import parsed, show
from raysent.data.corpus import CorpusConfig, corpus_word_vectors, prepare
from raysent.data.vocabulary import Vocabulary, VocabularyConfig

TASKS = ("MR", "SUBJ", "MPQA", "SST2", "SST5", "TREC", "MRPC", "SICK-E")
SEEN = {"MR", "SUBJ", "MPQA", "SST2", "TREC"}
SIZES, NUM_TEST = (100, 1000), 1000


def misspelt(sentence: str, draw: np.random.Generator) -> str:
    """Return a sentence in which one letter of a tenth of the words is swapped with the next, left out or repeated."""
    words = sentence.split()
    for place in np.flatnonzero(draw.uniform(size=len(words)) < 0.1):
        word, at = words[place], int(draw.integers(max(1, len(words[place]) - 1)))
        swapped = word[:at] + word[at + 1 : at + 2] + word[at : at + 1] + word[at + 2 :]
        words[place] = (swapped, word[:at] + word[at + 1 :], word[:at] + word[at:][:1] + word[at:])[draw.integers(3)]
    return " ".join(words)


def means(vocabulary: Vocabulary, vectors: np.ndarray, texts: list[str]) -> np.ndarray:
    """Return the mean of each sentence's vectors, [sentences, dim]."""
    ids = vocabulary.ids(texts, max_length=200)
    sums = np.zeros((len(texts), vectors.shape[1]))
    np.add.at(sums, np.repeat(np.arange(len(texts)), ids.lengths), vectors[ids.ids])
    return np.asarray(sums / ids.lengths[:, None])


def main() -> None:  # noqa: PLR0912 - a study
    """Measure words and sub-words on the same rows."""
    options: Any = parsed(__doc__, data=Path("data"), books=str, size=20_000, seeds=3, draws=10)
    warnings.simplefilter("ignore", ConvergenceWarning)
    tables = {}
    for name in TASKS:
        frame = read_table(name, options.data)
        if name in SEEN:
            frame = frame.drop(frame.sample(n=4000, random_state=1).index)
        tables[name] = frame.sample(n=min(len(frame), 6000), random_state=2)
    right: dict[tuple[str, bool, int], list[np.ndarray]] = {}
    for kind in ("words", "subwords"):
        with tempfile.TemporaryDirectory() as cache:
            config = CorpusConfig(path=options.books, cache_dir=cache)
            corpus = prepare(config, VocabularyConfig(type=kind, size=options.size, lowercase=True))
            tables_of = [corpus_word_vectors(corpus, dim=200, seed=seed) for seed in range(options.seeds)]
        for is_misspelt in (False, True):
            for frame in tables.values():
                labels = frame["label"].to_numpy()
                draw = np.random.default_rng(5)
                columns = [frame[name].tolist() for name in frame if name != "label"]
                if is_misspelt:
                    columns = [[misspelt(text, draw) for text in column] for column in columns]
                for vectors in tables_of:
                    parts = [means(corpus.vocabulary, vectors, column) for column in columns]
                    values = parts[0]
                    if len(parts) > 1:
                        values = np.hstack([abs(parts[0] - parts[1]), parts[0] * parts[1]])
                    for seed in range(options.draws):
                        order = np.random.default_rng(seed).permutation(len(labels))
                        test = order[-NUM_TEST:]
                        for size in SIZES:
                            train = order[:size]
                            model = LogisticRegression(max_iter=300).fit(values[train], labels[train])
                            hits = (model.predict(values[test]) == labels[test]).astype(float)
                            right.setdefault((kind, is_misspelt, size), []).append(hits)
    shape = (len(TASKS), options.seeds, options.draws, NUM_TEST)
    found = {}
    generator = np.random.default_rng(0)
    for is_misspelt in (False, True):
        for size in SIZES:
            words, parts = (
                100 * np.array(right[kind, is_misspelt, size]).reshape(shape) for kind in ("words", "subwords")
            )
            drawn = []
            for _ in range(1000):
                rows = generator.integers(0, NUM_TEST, NUM_TEST)
                some = (parts - words)[:, generator.integers(0, options.seeds, options.seeds)]
                drawn.append(some[:, :, generator.integers(0, options.draws, options.draws)][..., rows].mean())
            by_task = dict(zip(TASKS, (parts - words).mean(axis=(1, 2, 3)).round(1).tolist(), strict=True))
            low, high = np.percentile(drawn, (2.5, 97.5))
            found[f"{'misspelt' if is_misspelt else 'clean'}, {size} labels"] = {
                "words": round(words.mean(), 2), "subwords": round(parts.mean(), 2),
                "difference": [round(float(one), 2) for one in ((parts - words).mean(), low, high)], "by task": by_task,
            }  # fmt: skip
    show(found, options)


if __name__ == "__main__":
    main()
