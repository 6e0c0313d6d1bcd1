"""Whether forecasts of scores hold: simulated sweeps drawn from a table of finished trials.

The table (`benchmarks/search`) has trials of twelve families on three corpora, with scores after 12.5, 25, 50 and 100 %
of their steps. For each simulated sweep

- pilots are the first two reports, a quarter of the steps, of a few trials, the families in turn;
- the sweep is a random order of the other trials, as many as a random budget of seconds buys;
- the outcomes are its best validation score at the end (`m.probe_200`), and the mean test accuracy of the equal
  log-pool of its six best trials by that score, or with no --trials of the best of these six.

The forecast is made by `raysent.simulation.forecast.TrialModel`, from the pilots and the budget alone. The shared
errors and the ensemble's gain are fitted to all corpora but one, the errors by the interval score of 80 % bands, and
evaluated on that one, with other draws. The table has no test scores before the end: pilots have validation scores plus
their mean difference in the other corpora.

Source: T. Gneiting and A. E. Raftery, "Strictly proper scoring rules, prediction, and estimation", 2007, section 6.2.

    python -m benchmarks.forecast [--table FILE] [--trials FOLDER] [--sweeps 100] [--fit] [--json]

Without --fit the shipped priors are evaluated on all corpora.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from raysent.simulation.curves import PRIORS, Priors
from raysent.simulation.forecast import Band, TrialModel, band_of
from raysent.sweeps.pilots import Pilot

TABLE = Path(__file__).parent / "search" / "trials.csv.gz"
METRIC = "m.probe_200"
PILOT_REPORTS, LAST_REPORT = (1, 2), 8
NUM_PILOTS, MEMBERS = 8, 6
# Part of the other trials' seconds that a sweep's budget is drawn from.
BUDGET = (0.25, 0.75)
LEVEL = 0.8
DRAWS = 60


@dataclass(frozen=True)
class TableTrial:
    """A finished trial.

    Attributes:
        name: Its name.
        family: Its family.
        metric: The validation score by report.
        test: Mean test accuracy at the end, in percent.
        seconds: Seconds of the whole training.
        valid: Log-probabilities of the validation rows after a quarter, by task; empty if unknown.
        tested: Of the test rows at the end.
    """

    name: str
    family: str
    metric: dict[int, float]
    test: float
    seconds: float
    valid: dict[str, np.ndarray]
    tested: dict[str, np.ndarray]


def read_trials(table: Path, folder: Path | None) -> tuple[dict[str, list[TableTrial]], dict[str, np.ndarray]]:
    """Return the finished trials of each corpus, and the labels of rows by part and task; empty without a folder."""
    rows = pd.read_csv(table)
    labels = {} if folder is None else dict(np.load(folder / "labels.npz"))
    found: dict[str, list[TableTrial]] = {}
    for (corpus, config, seed), of_trial in rows.groupby(["corpus", "config", "seed"], sort=True):
        by_report = of_trial.set_index("report")
        needed = (*PILOT_REPORTS, LAST_REPORT)
        if any(report not in by_report.index for report in needed) or by_report[METRIC][list(needed)].isna().any():
            continue
        name = f"{corpus}-{config:03d}-{seed}"
        arrays: dict[str, np.ndarray] = {}
        if folder is not None:
            with np.load(folder / "trials" / f"{name}.npz") as stored:
                arrays = {key: stored[key].astype(np.float32) for key in stored.files if key != "record"}
        last = by_report.loc[LAST_REPORT]
        trial = TableTrial(
            name,
            str(last["family"]),
            {report: float(by_report[METRIC][report]) for report in needed},
            float(last["test"]),
            float(last["seconds"]),
            {key.removeprefix("2.valid_"): value for key, value in arrays.items() if key.startswith("2.valid_")},
            {key.removeprefix("8.test_"): value for key, value in arrays.items() if key.startswith("8.test_")},
        )
        found.setdefault(str(corpus), []).append(trial)
    return found, labels


def pooled_accuracy(predictions: Sequence[dict[str, np.ndarray]], labels: dict[str, np.ndarray], part: str) -> float:
    """Return the mean accuracy over tasks of an equal log-pool, in percent."""
    scores = []
    for task in predictions[0]:
        pooled = sum(one[task] for one in predictions)
        assert isinstance(pooled, np.ndarray)
        scores.append(100 * float((pooled.argmax(axis=1) == labels[f"{part}_{task}"][: len(pooled)]).mean()))
    return float(np.mean(scores))


@dataclass(frozen=True)
class TableSweep:
    """A simulated sweep: its pilots, its budget, and what it reached."""

    pilots: list[TableTrial]
    families: list[str]
    budget_s: float
    best: float
    ensemble: float
    gain: float
    pilot_gain: float | None
    num_trials: int


def draw_sweep(trials: Sequence[TableTrial], labels: dict[str, np.ndarray], *, seed: int) -> TableSweep:
    """Draw pilots and a sweep of other trials."""
    random = np.random.default_rng(seed)
    order = [trials[place] for place in random.permutation(len(trials))]
    turns: dict[str, int] = {}
    keyed = []
    for trial in order:
        turns[trial.family] = turns.get(trial.family, -1) + 1
        keyed.append((turns[trial.family], trial))
    pilots = [trial for _, trial in sorted(keyed, key=lambda item: item[0])[:NUM_PILOTS]]
    others = [trial for trial in order if trial not in pilots]
    budget_s = random.uniform(*BUDGET) * sum(trial.seconds for trial in others)
    ran = others[: max(1, int(np.searchsorted(np.cumsum([trial.seconds for trial in others]), budget_s)))]
    members = sorted(ran, key=lambda trial: -trial.metric[LAST_REPORT])[:MEMBERS]
    has_arrays = all(trial.tested for trial in members)
    tests = [trial.test for trial in members]
    ensemble = pooled_accuracy([one.tested for one in members], labels, "test") if has_arrays else max(tests)
    gain = None
    if has_arrays:
        singles = [pooled_accuracy([one.valid], labels, "valid") for one in pilots]
        gain = pooled_accuracy([one.valid for one in pilots], labels, "valid") - max(singles)
    families = sorted({trial.family for trial in trials})
    best = members[0].metric[LAST_REPORT]
    return TableSweep(pilots, families, budget_s, best, ensemble, ensemble - max(tests), gain, len(ran))


@dataclass(frozen=True)
class Fitted:
    """What a corpus says: the priors, and the difference between test accuracy and validation score."""

    priors: Priors
    offset: float


def expected(swept: TableSweep, fitted: Fitted, *, seed: int) -> tuple[Band, Band]:
    """Return the forecast of the best validation score and of the ensemble's test accuracy."""
    pilots = []
    for trial in swept.pilots:
        points = tuple((report / LAST_REPORT, trial.metric[report]) for report in PILOT_REPORTS)
        score = tuple((part, value + fitted.offset) for part, value in points)
        pilots.append(Pilot(trial.name, trial.family, points, trial.seconds, score))
    # Without log-probabilities the outcome is the best member's.
    priors = fitted.priors if swept.pilot_gain is not None else replace(fitted.priors, gain=0.0, gain_sigma=0.0)
    model = TrialModel(pilots, mode="max", ensemble_gain=swept.pilot_gain, priors=priors)
    outcomes = [_outcome(model, swept, seed=1000 * seed + number) for number in range(DRAWS)]
    bands = [band_of(values) for values in zip(*outcomes, strict=True)]
    assert bands[0] is not None
    assert bands[1] is not None
    return bands[0], bands[1]


def _outcome(model: TrialModel, swept: TableSweep, *, seed: int) -> tuple[float, float | None]:
    """Draw a sweep's trials until the budget is spent, and return the best and the ensemble."""
    drawn, families = model.sweep(seed), np.random.default_rng(seed)
    spent_s, finals = 0.0, {}
    while spent_s < swept.budget_s or not finals:
        name = f"{len(finals)}"
        curve, seconds = drawn.curve(name, swept.families[int(families.integers(len(swept.families)))])
        spent_s += seconds
        if spent_s <= swept.budget_s or not finals:
            finals[name] = curve.final
    members = sorted(finals, key=lambda name: -finals[name])[:MEMBERS]
    return finals[members[0]], drawn.ensemble([(name, 1.0) for name in members])


# -- fitting and evaluation -------------------------------------------------------------------------------------------


def interval_score(band: Band, outcome: float) -> float:
    """Return the interval score of an 80 % band; less is better."""
    below, above = max(0.0, band.p10 - outcome), max(0.0, outcome - band.p90)
    return band.p90 - band.p10 + 2 / (1 - LEVEL) * (below + above)


def offset_of(by_corpus: Mapping[str, Sequence[TableTrial]]) -> float:
    """Return the mean difference between test accuracy and the validation score at the end, over corpora."""
    of_corpora = [[trial.test - trial.metric[LAST_REPORT] for trial in trials] for trials in by_corpus.values()]
    return float(np.mean([np.mean(differences) for differences in of_corpora]))


def evaluate(sweeps: Sequence[TableSweep], fitted: Fitted) -> dict[str, Any]:
    """Return the fraction of outcomes inside the bands, widths, errors and interval scores."""
    bands = [expected(swept, fitted, seed=number) for number, swept in enumerate(sweeps)]
    found: dict[str, Any] = {}
    for place, name in enumerate(("best", "ensemble")):
        pairs = [(band[place], getattr(swept, name)) for band, swept in zip(bands, sweeps, strict=True)]
        found[name] = {
            "inside": float(np.mean([band.p10 <= value <= band.p90 for band, value in pairs])),
            "below": float(np.mean([value < band.p10 for band, value in pairs])),
            "above": float(np.mean([value > band.p90 for band, value in pairs])),
            "width": float(np.mean([band.p90 - band.p10 for band, _ in pairs])),
            "error": float(np.mean([band.expected - value for band, value in pairs])),
            "absolute_error": float(np.mean([abs(band.expected - value) for band, value in pairs])),
            "interval_score": float(np.mean([interval_score(band, value) for band, value in pairs])),
            "outcome_sd": float(np.std([value for _, value in pairs])),
        }
    return found


# The shared errors that are tried. The other priors are the shipped ones: what a corpus says of them differs less.
LEVELS = (0.0, 0.1, 0.2, 0.3, 0.4)


def fit(sweeps: Mapping[str, Sequence[TableSweep]], by_corpus: Mapping[str, Sequence[TableTrial]]) -> Fitted:
    """Return the priors with the ensemble's mean gain and the shared errors of the least interval score.

    What differs between texts can be seen only in several of them: each has the offset of the others.
    """
    gain = float(np.mean([np.mean([swept.gain for swept in of_corpus]) for of_corpus in sweeps.values()]))
    fitted = Fitted(replace(PRIORS, gain=round(gain, 2)), offset_of(by_corpus))
    losses = {level: _loss(sweeps, by_corpus, _with_levels(fitted, level, level)) for level in LEVELS}
    best, ensemble = (min(LEVELS, key=lambda level: losses[level][measure]) for measure in ("best", "ensemble"))
    return _with_levels(fitted, best, ensemble)


def _loss(
    sweeps: Mapping[str, Sequence[TableSweep]], by_corpus: Mapping[str, Sequence[TableTrial]], fitted: Fitted
) -> dict[str, float]:
    """Return the mean interval score over corpora."""
    found = []
    for corpus, of_corpus in sweeps.items():
        others = {name: trials for name, trials in by_corpus.items() if name != corpus} or by_corpus
        found.append(evaluate(of_corpus, replace(fitted, offset=offset_of(others))))
    return {name: float(np.mean([one[name]["interval_score"] for one in found])) for name in ("best", "ensemble")}


def _with_levels(fitted: Fitted, of_metric: float, of_score: float) -> Fitted:
    """Return priors with other shared errors."""
    priors = fitted.priors
    metric, score = replace(priors.metric, level=of_metric), replace(priors.score, level=of_score)
    return replace(fitted, priors=replace(priors, metric=metric, score=score))


def main() -> None:
    """Evaluate forecasts on each corpus, with the shipped priors or with those that the other corpora say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--trials", type=Path, help="folder of the build, with labels.npz and trials/")
    parser.add_argument("--sweeps", type=int, default=100)
    parser.add_argument("--fit", action="store_true", help="fit the priors to the other corpora")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    by_corpus, labels = read_trials(options.table, options.trials)
    found: dict[str, Any] = {}
    for corpus, trials in by_corpus.items():
        others = {name: of_other for name, of_other in by_corpus.items() if name != corpus}
        held_out = [draw_sweep(trials, labels, seed=number) for number in range(options.sweeps)]
        fitted = Fitted(PRIORS, offset_of(others))
        if options.fit:
            drawn = {
                name: [draw_sweep(of_other, labels, seed=10_000 + number) for number in range(options.sweeps)]
                for name, of_other in others.items()
            }
            fitted = fit(drawn, others)
        found[corpus] = {
            "trials": len(trials),
            "sweeps": options.sweeps,
            "mean_trials_in_a_sweep": float(np.mean([swept.num_trials for swept in held_out])),
            "fitted_to": " and ".join(others) if options.fit else "shipped",
            "priors": asdict(fitted.priors),
            "offset": fitted.offset,
            **evaluate(held_out, fitted),
        }
    print(json.dumps(found, indent=2) if options.json else "\n".join(table_lines(found)))


def table_lines(found: dict[str, Any]) -> list[str]:
    """Return the table of results."""
    lines = [
        "| corpus | priors from | outcome | inside 80 % | below | above | mean width | mean error | absolute error | "
        "sd of outcomes |",
        f"|{'---|' * 10}",
    ]
    for corpus, of_corpus in found.items():
        for name in ("best", "ensemble"):
            one = of_corpus[name]
            parts = [f"{100 * one[key]:.0f} %" for key in ("inside", "below", "above")]
            sizes = [f"{one[key]:.2f}" for key in ("width", "error", "absolute_error", "outcome_sd")]
            lines.append(f"| {corpus} | {of_corpus['fitted_to']} | {name} | {' | '.join(parts + sizes)} |")
    return lines


if __name__ == "__main__":
    main()
