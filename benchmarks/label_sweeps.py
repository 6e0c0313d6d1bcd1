"""What learning from labels adds to the answer of a sweep, beside the sweep without it and two TF-IDF, on fresh rows.

    python -m benchmarks.label_sweeps --data DATA --folder OUT --small ENCODER --draw 1 [--tables MR,TREC]
    python -m benchmarks.label_sweeps --folder OUT --show

`OUT/base-DRAW` is a sweep of all families on novels, without tasks, for six minutes; ENCODER is a small transformer of
masked words of the same novels. Of each table 600 rows are laid aside for each draw, which nothing else reads. For each
number of labels n rows are drawn, other rows for each draw. The rivals are

- `without`: what `raysent.ensembles.save_best` takes of the six members that the sweep itself selects, the transformer
  as it is, and both TF-IDF, by the n rows in cross-validation;
- `without, divided`: the same, of a task whose validation rows are a fifth of the n rows, drawn at random;
- `with`: as `without, divided`, of the trials that the sweep had finished after five minutes, and of trials of the
  space `labels`, for one minute on two cores: settings by the sweep's sampler, half of them from the novels' model that
  is best on the rows that choose, half from the transformer;
- both TF-IDF, on all n rows.

`--train` trains the trials of `labels` alone, which a later call then chooses from.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from benchmarks.answers import read_table
from benchmarks.common import parsed, show
from raysent.ensembles import combine, load_ensemble, save_best
from raysent.errors import ConfigError
from raysent.evaluation.baselines import LEXICAL
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.task_files import OwnTask
from raysent.storage import read_json, write_json
from raysent.sweeps import read_sweep
from raysent.sweeps.ranking import select_members
from raysent.sweeps.record import trial_folder
from raysent.sweeps.samplers.optuna_samplers import TPE
from raysent.sweeps.space.reading import read_space
from raysent.training.loop import fit

TABLES, SIZES, FRESH = ("MR", "SUBJ", "MPQA", "SST2", "TREC"), (32, 100, 300, 1000), 600
TRIALS, SECONDS, EARLY, KEPT = 12, 120.0, 300.0, 4
STAGE = ""
RESAMPLES, PERCENTILES = 2000, (2.5, 97.5)


class Drawn(OwnTask):
    """A table whose column only says how its rows were drawn."""

    def load(self, data_dir: Path | None = None) -> Any:
        """Return the rows."""
        data = super().load(data_dir)
        return replace(data, has_drawn_validation=len(data.validation) > 0)


def base_models(run: Path, *, within: float | None) -> list[str]:
    """Return the members that a sweep selects, of the trials that had ended after some seconds."""
    recorded = read_sweep(run)
    trials = recorded.trials
    if within is not None:
        begun = min(path.stat().st_mtime for path in run.glob("trials/*/run.json")) - 10
        trials = [one for one in trials if (trial_folder(run, one.number) / "outcome.json").is_file()
                  and (trial_folder(run, one.number) / "outcome.json").stat().st_mtime - begun < within]  # fmt: skip
    found = select_members(recorded.record.space, trials, num_members=6)
    return [str(trial_folder(run, one.number)) for one in found]


def space_of(task: Path, novels: str, small: str, folder: Path) -> Any:
    """Write the space `labels` with two starts, and return it."""
    values = yaml.safe_load((Path(__file__).parents[1] / "search_spaces" / "labels.yaml").read_text())
    values["base"]["labels"] = {"task": str(task)}
    del values["base"]["encoder"], values["base"]["vocabulary"]
    values["base"]["validation"] = {"downstream": {"tasks": [str(task)], "max_rows": 2000}}
    starts = {"novels": {"initial": novels}, "small": {"encoder": {"type": "pretrained", "path": small}}}
    values["search"] = {"family": {"choice": starts}, **values["search"]}
    values["limits"] = {"trials": TRIALS}
    values["evaluation"] = {"members": KEPT, "stratify_by": "family"}
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return read_space(path)


def learned(space: Any, folder: Path, seed: int) -> tuple[list[str], float]:
    """Train trials of a space for a time; returns their folders, the best by validation first, and the seconds."""
    sampler, scores, began = TPE(space, TPE.Config(), seed=seed), {}, time.process_time()
    for number in range(TRIALS):
        if time.process_time() - began > SECONDS or (asked := sampler.ask(number)) is None:
            break
        reports: list[Any] = []
        config = space.config(asked[0]).model_copy(update={"seed": seed * 100 + number})
        outcome = fit(config, folder / f"{number:04d}", report=lambda one, kept=reports: kept.append(one) or True)
        score = reports[-1].metrics["downstream"] if reports else None
        is_done = outcome.status == "finished" and score is not None
        sampler.complete(number, status="finished" if is_done else "failed", score=score)
        if is_done:
            scores[str(folder / f"{number:04d}")] = score
    return sorted(scores, key=lambda name: -scores[name]), time.process_time() - began


def cell(options: Any, frame: pd.DataFrame, fresh: pd.DataFrame, place: Path, seed: int) -> dict[str, Any]:  # noqa: PLR0915 - in order
    """Return which fresh rows each rival predicts rightly, and what it is."""
    parts = {}
    for name, share in (("whole", 0.0), ("divided", 0.2)):
        rows = frame[["text_a", "label"]].copy()
        num_choose = round(share * len(rows))
        rows["split"] = ["validation"] * num_choose + ["train"] * (len(rows) - num_choose)
        test = fresh[["text_a", "label"]].assign(split="test")
        test = test[test["label"].isin(set(rows[rows.split == "train"].label))]
        path = place / f"{name}.csv"
        pd.concat([rows, test]).to_csv(path, index=False)
        parts[name] = Drawn(str(path), name=name, text="text_a", label="label", split="split")
    found: dict[str, Any] = {"right": {}, "titles": {}}
    base = Path(options.folder) / f"base-{options.draw}"

    def add(name: str, folder: Path, title: str) -> None:
        (predictor,) = load_ensemble(folder).predictors.values()
        answers = predictor.answers(predictor.log_probabilities([fresh["text_a"].tolist()]))
        found["right"][name] = (np.array(answers) == fresh["label"].to_numpy()).astype(int).tolist()
        found["titles"][name] = title

    def best(name: str, models: list[str], part: str) -> None:
        evaluator = Evaluator(place / f"evaluation-{part}{STAGE}", divides=True)
        records = evaluator.records(expand(models), [parts[part]])
        ranked = [one.path for one in sorted(records, key=lambda one: -records[one][0].validation)]
        if name == "with":
            fresh_ones = [one for one in ranked if "learned" in one]
            ranked = [one for one in ranked if one not in fresh_ones[KEPT:]]
        run = place / name.replace(", ", "-")
        run.mkdir()
        (saved,) = save_best(ranked, evaluator, run=run, tasks=[parts[part]])
        assert saved.answer is not None
        taken = saved.answer.candidates[saved.answer.taken]
        add(name, run / "best", taken.title + ("*" if taken.learned else ""))

    early, kept = [*base_models(base, within=EARLY), f"st:{options.small}"], place / "learned.json"
    if not kept.exists():
        order, space = early, None
        if len(early) > 2:
            evaluator = Evaluator(place / "evaluation-start", divides=True)
            records = evaluator.records(expand(early), [parts["divided"]])
            order = [one.path for one in sorted(records, key=lambda one: -records[one][0].validation)]
        for novels in order:
            if novels.startswith("st:"):
                continue
            try:
                space = space_of(place / "divided.yaml", novels, options.small, place)
                space.config({**space.first_params(), "family": "novels"})
                break
            except ConfigError as error:
                print("cannot go on:", novels, error)
        shutil.rmtree(place / "learned", ignore_errors=True)
        trials, seconds = learned(space, place / "learned", seed)
        write_json(kept, {"trials": trials, "seconds": seconds, "start": novels})
    known = read_json(kept)
    if options.train:
        return known
    for old in ("without", "without-divided", "with", *[name.replace(":", "-") for name in LEXICAL]):
        shutil.rmtree(place / old, ignore_errors=True)
    everything = [*base_models(base, within=None), f"st:{options.small}"]
    for name in LEXICAL:
        combine([name], output=place / name.replace(":", "-"), tasks=[parts["whole"]], method="uniform")
        add(name, place / name.replace(":", "-"), name)
    best("without", everything, "whole")
    best("without, divided", everything, "divided")
    found |= {"seconds": known["seconds"], "trials": len(known["trials"]), "start": known["start"]}
    best("with", [*early, *known["trials"]], "divided")
    return found


def measure(name: str, options: Any) -> None:
    """Make the cells of a table that are missing."""
    frame = read_table(name, options.data).sample(frac=1, random_state=7)
    fresh, rest = frame[(options.draw - 1) * FRESH : options.draw * FRESH], frame[3 * FRESH :]
    for size in map(int, options.sizes.split(",")):
        path = Path(options.folder) / f"{name}-{size}-{options.draw}.json"
        if path.exists():
            continue
        place = path.with_suffix("")
        if options.train and (place / "learned.json").exists():
            continue
        place.mkdir(parents=True, exist_ok=True)
        (place / "divided.yaml").write_text(
            yaml.safe_dump(
                {
                    "path": str(place / "divided.csv"),
                    "name": "divided",
                    "text": "text_a",
                    "label": "label",
                    "split": "split",
                }
            )
        )
        began = time.time()
        seed = 100 * options.draw + size
        found = cell(options, rest.sample(size, random_state=seed), fresh, place, seed)
        if options.train:
            print(name, size, found, flush=True)
            continue
        write_json(path, found)
        rows = {key: round(100 * float(np.mean(value)), 1) for key, value in found["right"].items()}
        print(
            name,
            size,
            rows,
            found["titles"],
            f"{found['trials']} trials {found['seconds']:.0f} s; all {time.time() - began:.0f} s",
            flush=True,
        )


def summary(folder: Path) -> dict[str, Any]:
    """Return the differences of `with` to its rivals by number of labels, with intervals over rows and draws."""
    generator, found = np.random.default_rng(0), dict[str, Any]()
    for size in SIZES:
        tables = {
            name: [read_json(one)["right"] for one in sorted(folder.glob(f"{name}-{size}-*.json"))] for name in TABLES
        }
        tables = {name: cells for name, cells in tables.items() if cells}
        means: dict[str, list[np.ndarray]] = {}
        for name, cells in tables.items():
            right = {key: np.array([one[key] for one in cells], float) for key in cells[0]}
            better = max(LEXICAL, key=lambda one: right[one].mean())
            for key, other in {"TF-IDF": better, "without": "without", "without, divided": "without, divided"}.items():
                difference = 100 * (right["with"] - right[other])
                drawn = []
                for _ in range(RESAMPLES):
                    taken = difference[generator.integers(0, len(cells), len(cells))]
                    rows = generator.integers(0, difference.shape[1], taken.shape)
                    drawn.append(np.take_along_axis(taken, rows, axis=1).mean())
                found[f"{size}, {name} - {key}"] = [
                    round(float(one), 2) for one in (difference.mean(), *np.percentile(drawn, PERCENTILES))
                ]
                means.setdefault(key, []).append(np.array([difference.mean(), *drawn]))
            found[f"{size}, {name}"] = {key: round(100 * float(value.mean()), 2) for key, value in right.items()} | {
                "draws": len(cells)
            }
        for key, rows in means.items():
            value, *drawn = np.mean(rows, axis=0)
            found[f"{size}, mean - {key}"] = [
                round(float(one), 2) for one in (value, *np.percentile(drawn, PERCENTILES))
            ]
    return found


def main() -> None:
    """Make what is missing of the tables named, and print the summary of all."""
    options = parsed(
        __doc__,
        data=Path("data"),
        folder=str,
        small="",
        draw=1,
        tables=",".join(TABLES),
        sizes=",".join(map(str, SIZES)),
        show=False,
        train=False,
    )
    if not options.show:
        for name in options.tables.split(","):
            measure(name, options)
    show(summary(Path(options.folder)), options)


if __name__ == "__main__":
    main()
