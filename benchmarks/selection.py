"""How often the interval of what is chosen holds chance, on labels that are dealt at random.

    python -m benchmarks.selection [--draws 1000] [--rows 300] [--trials 24] [--curves 100] [--json]
    python -m benchmarks.selection --run RUN --texts FILE [--draws 100]

Every draw deals labels again to the same texts, half of each class, so that any prediction of fresh rows is right in
half of them. Trials are divided, ranked, chosen, combined and scored by raysent's own functions; counted is how often
the 95 % interval of the test score holds 50. The trials are random vectors, bags of random word vectors and TF-IDF;
with --run, those of a finished sweep, whose last reports are made again for each draw: trained once, ranked each time.
--curves is the number of draws that score label curves too, which take longer.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from raysent.ensembles import label_curve
from raysent.ensembles.combining import _by_task
from raysent.ensembles.task_ensemble import score_methods
from raysent.evaluation.bootstrap import score_interval
from raysent.evaluation.members import Member
from raysent.evaluation.probes.features import task_features
from raysent.evaluation.probes.lexical import fit_lexical
from raysent.evaluation.protocols import fit_probe
from raysent.evaluation.records import Record
from raysent.evaluation.task import TaskData
from raysent.evaluation.task_files import OwnTask
from raysent.models import load as load_model
from raysent.models.schemes.tfidf import LexicalModel
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.sweeps import read_sweep
from raysent.sweeps.ranking import TrialResult, rank
from raysent.training.validation.metrics import sample_rows

CHANCE, TOP, MAX_ROWS, SIZES = 50.0, 4, 2000, (32, 100)
WORDS = 400
Found = tuple[str, float, tuple[float, float]]


class Fixed(SentenceEncoder):
    """Vectors of known sentences, computed once."""

    def __init__(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Hold the vectors [texts, dim]."""
        self.vectors = dict(zip(texts, np.asarray(vectors, dtype=np.float32), strict=True))

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> np.ndarray:
        """Return the sentences' vectors."""
        del batch_size
        return np.stack([self.vectors[sentence] for sentence in sentences])

    def get_sentence_embedding_dimension(self) -> int:
        """Return the vectors' size."""
        return len(next(iter(self.vectors.values())))


def random_texts(number: int) -> list[str]:
    """Return different texts of ten words."""
    generator = np.random.default_rng(0)
    return [" ".join(f"w{word}" for word in generator.integers(WORDS, size=10)) for _ in range(number)]


def members_of(texts: Sequence[str], num_trials: int, run: Path | None) -> list[Member]:
    """Return the trials, with their sentences encoded."""
    if run is not None:
        recorded = read_sweep(run)
        names = [trial.name for trial in recorded.trials][:num_trials]
        encoders = [Fixed(texts, load_model(recorded.folder / "trials" / name).encode(list(texts))) for name in names]
    else:
        names = [f"{place:04d}" for place in range(num_trials)]
        encoders = [cheap_encoder(texts, place) for place in range(num_trials)]
    return [Member(name, name, name, one) for name, one in zip(names, encoders, strict=True)]


def cheap_encoder(texts: Sequence[str], place: int) -> SentenceEncoder:
    """Return TF-IDF, a bag of random word vectors, or random vectors."""
    if place < 1:
        return load_model("tfidf")
    if place % 2:
        return Fixed(texts, load_model(f"hash:{8 + place}").encode(list(texts)))
    return Fixed(texts, np.random.default_rng(place).standard_normal((len(texts), 16)))


def record_of(member: Member, data: TaskData, encode_ms: float) -> Record:
    """Return what an evaluation keeps of a member, with a given time to encode in place of a measured one."""
    if isinstance(member.encoder, LexicalModel):
        result = fit_lexical(member.encoder, data)[0]
    else:
        result = fit_probe(task_features(member.encoder, data), data)
    seconds = {"encode_s": 1.0, "encode_ms_per_1000": encode_ms}
    return Record(
        **dict.fromkeys(("model", "model_key", "key"), member.name),
        **{name: getattr(data, name) for name in ("task", "kind", "label_names", "row_hash", "labels", "scores")},
        **{name: getattr(result, name) for name in ("validation", "test", "folds", "probe")},
        protocol="fast",
        measures={},
        about={"interval": score_interval(result, data), "seconds": seconds},
    )


def reported(member: Member, record: Record, data: TaskData, *, is_same: bool) -> float:
    """Return what a trial reports of a task: the validation score of a probe on its training rows alone."""
    if is_same or isinstance(member.encoder, LexicalModel):
        return record.validation
    small = sample_rows(data, max_rows=MAX_ROWS)
    value = fit_probe(task_features(member.encoder, small), small).validation
    assert len(data) > MAX_ROWS or abs(value - record.validation) < 1e-6, (value, record.validation)
    return value


def drawn_table(seed: int, texts: Sequence[str]) -> pd.DataFrame:
    """Return the texts with labels at random, as many of one class as of the other."""
    labels = np.random.default_rng((7, seed)).permutation(np.arange(len(texts)) % 2)
    return pd.DataFrame({"text": list(texts), "label": [f"c{one}" for one in labels]})


def choices(
    members: Sequence[Member], seed: int, texts: Sequence[str], *, has_curves: bool, is_same: bool
) -> Iterator[Found]:
    """Yield what is chosen by each way of choosing: its test score and interval."""
    generator = np.random.default_rng((8, seed))
    data = OwnTask(drawn_table(seed, texts), name="own").load()
    records = {one: [record_of(one, data, float(generator.uniform(0.5, 2)))] for one in members}
    values = {one.name: reported(one, kept[0], data, is_same=is_same) for one, kept in records.items()}
    trials = [
        TrialResult(one.name, place, "finished", {}, values[one.name], place) for place, one in enumerate(members)
    ]
    by_name = {one.name: one for one in members}
    ranked = {by_name[trial.name]: records[by_name[trial.name]] for trial in rank(trials, mode="max")}
    best = next(iter(ranked.values()))[0]
    yield "best trial of the sweep", best.test, best.about["interval"]
    fixed = records[members[1]][0]
    yield "a trial that nothing chose", fixed.test, fixed.about["interval"]
    six = dict(list(ranked.items())[:6])
    kept = {"six best, validation": (six, "validation"), "six best, pool": (six, "pool")}
    kept[f"--top {TOP}"] = (dict(list(ranked.items())[:TOP]), "validation")
    for name, (chosen, method) in kept.items():
        test = score_methods(_by_task(chosen)[0], [method])[method].tested
        yield name, test.value, test.interval
    if has_curves:
        curve = label_curve(data, list(six), [Member("tfidf", "tfidf", "tfidf", load_model("tfidf"))], sizes=SIZES)
        models = [one for one in curve.curves.values() if one.kind != "baseline"]
        for place, size in enumerate(curve.sizes):
            point = max(models, key=lambda one: one.validation[place]).points[place]
            yield f"label curve, {size} labels", point.value, point.interval


def main() -> None:
    """Print the coverage of each way of choosing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("draws", 1000), ("rows", 300), ("trials", 24), ("curves", 100), ("first", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    for name in ("run", "texts"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lines = [] if options.texts is None else options.texts.read_text(encoding="utf-8").splitlines()
    texts = lines[: options.rows] or random_texts(options.rows)
    members = members_of(texts, options.trials, options.run)
    found: dict[str, list[tuple[float, bool, bool]]] = defaultdict(list)
    for draw in range(options.first, options.first + options.draws):
        # Where it reads all training rows, a trial reports the validation score of its record: two draws fit both.
        is_same = options.rows <= MAX_ROWS and draw >= options.first + 2
        done = choices(members, draw, texts, has_curves=draw < options.curves, is_same=is_same)
        for name, score, (low, high) in done:
            found[name].append((score, low <= CHANCE <= high, low > CHANCE))
    rows = {
        name: {
            "draws": len(of_name),
            "mean": float(np.mean([one[0] for one in of_name])),
            "holds chance, %": 100 * float(np.mean([one[1] for one in of_name])),
            "above chance, %": 100 * float(np.mean([one[2] for one in of_name])),
        }
        for name, of_name in found.items()
    }
    if options.json:
        print(json.dumps(rows))
        return
    print("| chosen | draws | mean test score | interval holds chance | interval above chance |\n|---|---|---|---|---|")
    for name, row in rows.items():
        draws, mean, holds, above = row.values()
        print(f"| {name} | {draws} | {mean:.2f} | {holds:.1f} % | {above:.1f} % |")


if __name__ == "__main__":
    main()
