"""How well each metric, at each share of training, predicts the final test accuracy of a trial.

In: the table's scalars. Out: for each corpus a table of Spearman correlations, and a plot against the metric's cost.

    over families    over all trials
    within families  over all trials, of both values less their family's mean
    seed noise       standard deviation between two seeds of a configuration over that between configurations
    seconds          median processor seconds of the metric at 25 % of the training, else at the end

Intervals are 95 % bootstrap intervals over configurations, whose seeds stay together. A metric of which less is better
enters with the sign changed. Trials that diverged are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from benchmarks.plots import Mark, scatter
from benchmarks.search.table import read_table
from raysent.evaluation.probes.results import spearman

NUM_RESAMPLES = 1000
PERCENTILES = (2.5, 97.5)
SHARES = (0.125, 0.25, 0.5, 1.0)
LESS_IS_BETTER = ("context_nll", "nll", "loss")
METRICS = (
    "context_accuracy_200",
    "context_accuracy_1000_one",
    "context_accuracy_1000",
    "context_accuracy_4000",
    "context_accuracy_10000",
    "context_nll_200",
    "context_nll_1000",
    "context_nll_4000",
    "context_nll_10000",
    "loss",
    "nll",
    "effective_rank",
    "sts",
    "document_500",
    "library_500",
    "probe_200",
    "probe_500",
    "probe_2000",
)
# What the plot shows.
PLOTTED = (
    "context_accuracy_200",
    "context_accuracy_1000",
    "context_accuracy_4000",
    "context_nll_1000",
    "effective_rank",
    "sts",
    "document_500",
    "library_500",
    "probe_200",
    "probe_500",
)


@dataclass(frozen=True)
class Correlation:
    """A rank correlation.

    Attributes:
        value: Spearman's, from -1 to 1.
        interval: 95 %, over configurations.
        num_trials: Trials that have both values.
    """

    value: float
    interval: tuple[float, float]
    num_trials: int

    def __str__(self) -> str:
        """Return the value and its interval."""
        low, high = self.interval
        return f"{signed(self.value)} [{signed(low)}, {signed(high)}]"


def signed(value: float) -> str:
    """Return a correlation in two digits."""
    return f"{value:.2f}".replace("-0.00", "0.00")


def oriented(metric: str, values: np.ndarray) -> np.ndarray:
    """Return values of which more is better."""
    return -values if metric.startswith(LESS_IS_BETTER) else values


def pairs_of(table: pd.DataFrame, metric: str, share: float) -> pd.DataFrame:
    """Return the metric at a share (`x`) and the final test accuracy (`y`) of each trial that has both."""
    key = ["config", "seed"]
    final = table[table.share == 1.0].set_index(key)
    at_share = table[table.share == share].set_index(key)
    name = f"m.{metric}"
    if name not in table:
        return pd.DataFrame({"x": [], "y": [], "family": [], "config": []})
    found = pd.DataFrame({"x": at_share[name], "y": final["test"], "family": final["family"]}).dropna().reset_index()
    found["x"] = oriented(metric, found["x"].to_numpy(dtype=float))
    return found


def centred(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return pairs less their family's means, of families with two configurations or more."""
    counts = pairs.groupby("family")["config"].transform("nunique")
    kept = pairs[counts > 1].copy()
    for name in ("x", "y"):
        kept[name] = kept[name] - kept.groupby("family")[name].transform("mean")
    return kept


def correlation(pairs: pd.DataFrame, *, seed: int = 0) -> Correlation | None:
    """Return the rank correlation of pairs; None for fewer than six configurations, which all count alike."""
    if pairs["config"].nunique() < 6:
        return None
    # A configuration with one seed counts twice, so that all count alike.
    num_seeds = int(pairs.groupby("config")["x"].size().max())
    groups = [one[["x", "y"]].to_numpy() for _, one in pairs.groupby("config")]
    values = np.stack([np.resize(one, (num_seeds, 2)) for one in groups])
    num = len(values)
    drawn = np.random.default_rng(seed).integers(num, size=(NUM_RESAMPLES, num))
    draws = rank_correlations(values[drawn].reshape(NUM_RESAMPLES, num * num_seeds, 2))
    low, high = np.percentile(draws, PERCENTILES)
    return Correlation(float(rank_correlations(values.reshape(1, -1, 2))[0]), (float(low), float(high)), len(pairs))


def rank_correlations(pairs: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation of each set of pairs [sets, rows, 2], as [sets]; 0 where a column is constant."""
    ranked = rankdata(pairs, axis=1)
    ranked -= ranked.mean(axis=1, keepdims=True)
    x, y = ranked[..., 0], ranked[..., 1]
    lengths = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    return np.asarray((x * y).sum(axis=1) / np.where(lengths > 0, lengths, 1.0))


def seed_noise(pairs: pd.DataFrame, name: str = "x") -> float:
    """Return the standard deviation between seeds over that between configurations; NaN without two seeds."""
    found = pairs.groupby("config")[name].agg(["mean", "var", "count"])
    found = found[found["count"] > 1]
    if len(found) < 3:
        return float("nan")
    within = float(found["var"].mean())
    # The variance of means of two seeds contains half of that between seeds.
    between = float(found["mean"].var()) - within / float(found["count"].mean())
    return float(np.sqrt(within / between)) if between > 0 else float("inf")


def cost(table: pd.DataFrame, metric: str) -> float:
    """Return the median processor seconds of a metric; 0 for one that training itself gives."""
    name = f"s.{metric}"
    if name not in table:
        return 0.0
    for share in (0.25, 1.0):
        found = table.loc[table.share == share, name].dropna()
        if len(found):
            return float(found.median())
    return 0.0


def other_seed(table: pd.DataFrame) -> float:
    """Return the correlation of the final test accuracies of the two seeds of a configuration."""
    final = table[table.share == 1.0].pivot_table(index="config", columns="seed", values="test").dropna()
    if len(final) < 3:
        return float("nan")
    return spearman(final[0].to_numpy(), final[1].to_numpy())


def lines_of(table: pd.DataFrame) -> list[str]:
    """Return the Markdown table of a corpus."""
    heads = [f"{100 * share:g} %" for share in SHARES]
    lines = [
        f"| metric | {' | '.join(heads)} | within, 25 % | within, 100 % | seed noise | seconds |",
        f"|{'---|' * (len(SHARES) + 5)}",
    ]
    for metric in METRICS:
        found = {share: pairs_of(table, metric, share) for share in SHARES}
        if all(len(pairs) == 0 for pairs in found.values()):
            continue
        over = [correlation(found[share]) for share in SHARES]
        within = [correlation(centred(found[share])) for share in (0.25, 1.0)]
        noise = seed_noise(found[1.0])
        if not any(one is not None and np.isfinite(one.value) for one in (*over, *within)):
            continue
        cells = ["" if one is None else str(one) for one in (*over, *within)]
        cells += ["" if np.isnan(noise) else f"{noise:.2f}", f"{cost(table, metric):.2f}"]
        lines.append(f"| `{metric}` | {' | '.join(cells)} |")
    return lines


def marks_of(table: pd.DataFrame) -> list[Mark]:
    """Return the points of a corpus' plot: cost and correlation at 25 % of the training."""
    marks = []
    for metric in PLOTTED:
        found = correlation(pairs_of(table, metric, 0.25))
        if found is not None:
            marks.append(Mark(metric, max(cost(table, metric), 0.01), found.value, found.interval))
    return marks


def summary(table: pd.DataFrame) -> str:
    """Return the sizes of a corpus' table, and what limits every metric."""
    final = table[table.share == 1.0]
    seconds = final.seconds.sum()
    total = seconds + table.evaluation_s.sum() + final.setup_s.sum()
    noise = seed_noise(final.rename(columns={"test": "y"}), "y")
    seeds = f"the two seeds' test accuracies correlate by {signed(other_seed(table))}, seed noise {noise:.2f}"
    has_seeds = not np.isnan(other_seed(table))
    return (
        f"{len(final)} trials of {final.config.nunique()} configurations in {final.family.nunique()} families; "
        f"{seconds:.0f} s of training, {final.seconds.min():.1f} to {final.seconds.max():.1f} s a trial, {total:.0f} s "
        f"in all; test accuracy {final.test.min():.1f} to {final.test.max():.1f}, median {final.test.median():.1f}"
        f"{f'; {seeds}' if has_seeds else ''}."
    )


def main(options: argparse.Namespace) -> None:
    """Print the tables, and write the plot."""
    table = read_table(options.table)
    panels = []
    for corpus in corpora(table):
        of_corpus = table[table.corpus == corpus]
        for part, rows in (("all trials", of_corpus), ("long trials", of_corpus[of_corpus.length > 1])):
            print(f"\n### {corpus}, {part}\n\n{summary(rows)}\n", flush=True)
            print("\n".join(lines_of(rows)), flush=True)
        panels.append((corpus, marks_of(of_corpus)))
    if options.svg is not None:
        options.svg.write_text(scatter(panels, x="processor seconds", y="correlation with test accuracy"))


def corpora(table: pd.DataFrame) -> Sequence[str]:
    """Return the names of the corpora, novels first."""
    return sorted(table.corpus.unique(), reverse=True)
