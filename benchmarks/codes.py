"""Binary codes of frozen sources, each encoded once: AE-SP against AE over seeds, and what predicts STS.

    python -m benchmarks.codes DATA MODEL... [--bits 128] [--seeds 5] [--trials 24]
    raysent sweep binary --run RUN --set initial=MODEL --set encoder=null --set objective.text=pairs --set pairs.path=…
    python -m benchmarks.codes DATA RUN...

DATA is the data folder with `senteval/STS` and `nli`; a MODEL is a model's folder or a file of word vectors, which is
averaged. Codes learn from the pairs of SNLI's development and test files. Scores are the mean Pearson correlation times
100 of the sets of STS 2012 to 2015. The trials draw method, bits, learning rate and lambda_sp as
`search_spaces/binary.yaml` does; the table gives Spearman's correlation of each metric with STS and its 95 % bootstrap
interval. Of a RUN, a sweep of that space, the table alone is printed, over its own trials.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from raysent.data.vocabulary import read_word_vectors
from raysent.evaluation import Evaluator
from raysent.evaluation.tasks import find_task
from raysent.kernels.hamming import unpack_bits
from raysent.models import SentenceModel, VectorCodeConfig, average_of_words, make_code
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.reproduction.scores import paired_interval

YEARS = ("STS12", "STS13", "STS14", "STS15")
METRICS = ("related_auc", "similarity_kept", "reconstruction_r2")


class Source:
    """A frozen source's vectors of the pairs that codes learn from, and of STS; each sentence is encoded once."""

    def __init__(self, encoder: SentenceEncoder, data: Path) -> None:
        """Encode all sentences."""
        pairs = [_column_pairs(data / "nli" / name) for name in ("snli_dev.tsv.gz", "snli_test.tsv.gz")]
        first, second = (np.array([pair[side] for part in pairs for pair in part]) for side in (0, 1))
        texts, rows = np.unique(np.concatenate([first, second]), return_inverse=True)
        self.vectors = np.asarray(encoder.encode(texts.tolist()))
        self.related = rows.reshape(2, -1).T
        sets = [one for year in YEARS for one in find_task(year).load(data / "senteval").sets]
        self.sets = [
            (np.asarray(encoder.encode(one.first)), np.asarray(encoder.encode(one.second)), np.asarray(one.scores))
            for one in sets
        ]

    def sts(self, codes: Callable[[np.ndarray], np.ndarray]) -> float:
        """Return the mean correlation over sets of the cosines of vectors, or of codes as -1 and 1, times 100."""
        found = []
        for first, second, scores in self.sets:
            one, other = codes(first), codes(second)
            cosines = (one * other).sum(axis=1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1) + 1e-12)
            found.append(np.corrcoef(cosines, scores)[0, 1])
        return 100 * float(np.mean(found))

    def trial(self, code: dict[str, object], *, weight: float, rate: float, epochs: int, seed: int) -> dict[str, float]:
        """Return the metrics of a code, and its STS."""
        config = VectorCodeConfig.model_validate(
            {"code": code, "objective": {"lambda_sp": weight}, "learning_rate": rate, "epochs": epochs, "seed": seed}
        )
        made, metrics = make_code(self.vectors, config, related=self.related)

        def codes(vectors: np.ndarray) -> np.ndarray:
            return 2.0 * unpack_bits(made.encode_packed(vectors), num_bits=made.num_bits) - 1

        return {**metrics, "sts": self.sts(codes)}


def _column_pairs(path: Path) -> list[tuple[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [(fields[0], fields[1]) for fields in (line.rstrip("\n").split("\t") for line in lines)]


def compare(source: Source, *, bits: int, seeds: int, epochs: int) -> str:
    """Return a line of AE-SP against AE for each weight, paired over seeds."""
    code = {"type": "autoencoder", "bits": bits}
    plain = [source.trial(code, weight=0.0, rate=2e-3, epochs=epochs, seed=seed)["sts"] for seed in range(seeds)]
    whole = source.sts(lambda vectors: vectors)
    lines = [f"float {whole:.2f}; AE, {bits} bits: {np.mean(plain):.2f} +- {np.std(plain, ddof=1):.2f}"]
    for weight in (0.1, 0.8):
        with_sp = [source.trial(code, weight=weight, rate=2e-3, epochs=epochs, seed=s)["sts"] for s in range(seeds)]
        mean, low, high = paired_interval(np.subtract(with_sp, plain))
        gain = f"difference {mean:+.2f} [{low:+.2f}, {high:+.2f}]"
        lines.append(f"AE-SP, lambda_sp {weight:g}: {np.mean(with_sp):.2f}, {gain}")
    return "\n".join(lines)


def predict(source: Source, *, trials: int, epochs: int) -> str:
    """Return the rank correlation of each metric with STS over random trials."""
    random = np.random.default_rng(0)
    found = []
    for seed in range(trials):
        kind = ("threshold", "random_projection", "principal_components", "autoencoder", "stochastic")[seed % 5]
        code: dict[str, object] = {"type": "autoencoder" if kind == "stochastic" else kind}
        if kind == "threshold":
            code["threshold"] = "mean"
        else:
            code["bits"] = int(random.choice([64, 128, 256]))
        if kind == "stochastic":
            code["threshold"] = "stochastic"
        rate, weight = (float(np.exp(random.uniform(np.log(a), np.log(b)))) for a, b in ((5e-4, 1e-2), (1e-3, 1.0)))
        found.append(source.trial(code, weight=weight, rate=rate, epochs=epochs, seed=seed))
    return correlations(pd.DataFrame(found))


def predict_in_sweep(run: Path, *, data: Path) -> str:
    """Return the rank correlation of each metric with STS over the trials of a sweep."""
    trials = pd.read_csv(run / "trials.csv", dtype={"trial": str}).set_index("trial")
    scores = Evaluator(run / "evaluation", data / "senteval").evaluate([run], YEARS)
    sts = pd.Series([one.test for one in scores], index=[Path(one.model).name for one in scores])
    trials["sts"] = sts.groupby(level=0).mean()
    return correlations(trials)


def correlations(trials: pd.DataFrame) -> str:
    """Return a line for each metric: Spearman's correlation with the column `sts` and its 95 % bootstrap interval."""
    random, lines = np.random.default_rng(0), []
    for metric in filter(trials.columns.__contains__, METRICS):
        known = trials[[metric, "sts"]].dropna().to_numpy()
        draws = [known[random.integers(0, len(known), len(known))] for _ in range(2000)]
        low, high = np.nanpercentile([stats.spearmanr(*drawn.T)[0] for drawn in draws], [2.5, 97.5])
        rank = stats.spearmanr(*known.T)[0]
        lines.append(f"{metric}: Spearman {rank:.2f} [{low:.2f}, {high:.2f}] over {len(known)} trials")
    return "\n".join(lines)


def main() -> None:
    """Print both for each source."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--bits", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    for model in options.models:
        if (model / "trials.csv").is_file():
            print(f"## {model}\n\n{predict_in_sweep(model, data=options.data)}", flush=True)
            continue
        encoder = SentenceModel.load(model) if model.is_dir() else average_of_words(read_word_vectors(model))
        source = Source(encoder, options.data)
        print(f"## {model}\n", flush=True)
        print(compare(source, bits=options.bits, seeds=options.seeds, epochs=options.epochs), flush=True)
        print(predict(source, trials=options.trials, epochs=options.epochs), flush=True)


if __name__ == "__main__":
    main()
