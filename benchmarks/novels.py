"""One result on real text: members of four kinds, their ensemble and a student, against plain and trained baselines.

Everything is trained on the novels alone, on one thread, for about an hour and a half of a core in all:

- members: Quick-Thoughts as bag of words, bi- and unidirectional GRU, and multichannel;
- untrained: TF-IDF of words and of characters, and the mean of the word vectors that the members start from, plain and
  as SIF (words weighted by a / (a + p), first component removed);
- peers, on the same sentences: gensim's doc2vec, and sentence-transformers' mean of words, from the same word vectors
  as the members, with the loss of unsupervised SimCSE (a sentence's positive is itself under another dropout mask);
- the student: a bag of words of one tower that learns the members' joined vectors.

Each step continues from what the output folder has; `results` reads it and prints the tables. A reference, such as a
pretrained model on disk, may stand beside them.

    OMP_NUM_THREADS=1 python -m benchmarks.novels members|untrained|peers|student|evaluate|labels|results
        --books FOLDER --data DIR --output FOLDER [--seed N] [--only NAME,…] [--reference st:PATH]

Each seed has an output folder of its own; the step `few-labels` takes several, and prints the means over them.

Source: Gao, Yao and Chen, 2021 (unsupervised SimCSE); Arora et al., 2017 (SIF); Le and Mikolov, 2014 (doc2vec).
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from benchmarks import plots
from benchmarks.distillation import difference, encode_ms
from raysent.data.corpus import Corpus, corpus_word_vectors, prepare
from raysent.data.vocabulary import UNK_ID, WordVectors
from raysent.ensembles.label_curves import ENSEMBLE, LabelScores, read_curves, write_curves
from raysent.ensembles.measures import BootstrapEstimate, mean_estimate
from raysent.ensembles.task_ensemble import score_methods, score_model
from raysent.evaluation.baselines import LEXICAL
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import Member, expand, model_key
from raysent.evaluation.probes.results import PERCENTILES
from raysent.evaluation.records import Record, SimilarityScore
from raysent.evaluation.task import TaskData
from raysent.evaluation.tasks import resolve_tasks
from raysent.models import average_of_words, load
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.pipeline import compose
from raysent.storage import file_sha256, read_json, write_json
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.outcome import load_reports
from raysent.training.run import RunConfig

CLASS_TASKS = ("MR", "SUBJ", "MPQA", "SST-2", "TREC", "SST-5", "MRPC", "SICK-E")
LABEL_TASKS = CLASS_TASKS[:5]
SCORE_TASKS = ("SICK-R", "STS-B")
SIMILARITY_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS-B-similarity", "SICK-R-similarity")
SIZES = (32, 100, 300, 1000)
BATCH_SIZE, CHUNK = 400, 100_000
SECONDS_FILE = "processor_seconds.json"
WITH_TFIDF, STUDENT, MEAN = f"{ENSEMBLE} + tfidf", "student", "mean"
WITH_BOTH, MEAN_WITH_BOTH, BOTH = (" + ".join([*first, *LEXICAL]) for first in ([ENSEMBLE], [MEAN], []))
DRAWS_FOLDER = "label_draws"

PEERS = ("simcse", "doc2vec")
SIMCSE_STEPS = 2000
DOC2VEC_EPOCHS = 10
STUDENT_SENTENCES, STUDENT_EPOCHS = 200_000, 10.0

WORDS: dict[str, Any] = {"dim": 300, "vectors": "ppmi"}
GRU: dict[str, Any] = {"type": "gru", "hidden_size": 300, "embedding": WORDS}
# Encoder, and passes over the text.
MEMBERS: dict[str, tuple[dict[str, Any], float]] = {
    "bag": ({"type": "bag", "embedding": {"dim": 600, "vectors": "ppmi"}}, 1.5),
    "bi": ({**GRU, "bidirectional": True}, 0.7),
    "uni": (GRU, 0.6),
    "multichannel": (
        {
            "type": "concat",
            "members": {
                "fixed": {**GRU, "bidirectional": True, "embedding": {**WORDS, "trained": False}},
                "trained": {**GRU, "bidirectional": True},
            },
        },
        0.4,
    ),
}


# -- training ---------------------------------------------------------------------------------------------------------


def run_config(encoder: dict[str, Any], books: str, *, epochs: float, seed: int, **changes: Any) -> RunConfig:
    """Return a run on the novels, on contexts unless `changes` name another objective."""
    values: dict[str, Any] = {
        "corpus": {"path": books, "max_length": 30},
        "vocabulary": {"size": 50_000, "lowercase": True},
        "encoder": encoder,
        "objective": {"type": "context_prediction"},
        "training": {
            "batch_size": 400, "learning_rate": 2.5e-3, "schedule": "linear", "precision": "bfloat16",
            "epochs": epochs, "num_reports": 4,
        },
        "validation": {"num_candidates": 1000, "num_sentences": 5000},
        "seed": seed,
    }  # fmt: skip
    return RunConfig.model_validate({**values, **changes})


def corpus_of(books: str) -> Corpus:
    """Return the prepared text that everything is trained on."""
    config = run_config(GRU, books, epochs=1.0, seed=0)
    return prepare(config.corpus, config.vocabulary)


def timed(folder: Path, action: Callable[[], object]) -> float:
    """Return the processor seconds of an action, kept in a folder; what an interrupted one took is added."""
    file = folder / SECONDS_FILE
    folder.mkdir(parents=True, exist_ok=True)
    before = float(read_json(file)["seconds"]) if file.exists() else 0.0
    started = time.process_time()
    try:
        action()
    finally:
        total = before + time.process_time() - started
        write_json(file, {"seconds": total})
    return total


def train_members(books: str, output: Path, names: Sequence[str], *, seed: int) -> None:
    """Train the members one after another."""
    for name in names:
        encoder, epochs = MEMBERS[name]
        config = run_config(encoder, books, epochs=epochs, seed=seed)
        open_training_data(config)
        place = output / "members" / name
        seconds = timed(place, lambda config=config, place=place: fit(config, place))  # type: ignore[misc]
        print(f"{name}: {seconds:.0f} s of processor time, {epochs:g} passes", flush=True)


def make_untrained(books: str, output: Path, *, seed: int) -> None:
    """Save the mean of the members' initial word vectors, and the same as SIF."""
    corpus = corpus_of(books)
    known = corpus.vocabulary.words[UNK_ID + 1 :]
    vectors = WordVectors(known, corpus_word_vectors(corpus, dim=WORDS["dim"], seed=seed)[UNK_ID + 1 :])
    frequencies = np.zeros(len(corpus.vocabulary), dtype=np.int64)
    for first in range(0, len(corpus.train), CHUNK):
        ids = corpus.train.sentences(first, min(first + CHUNK, len(corpus.train))).ids
        frequencies += np.bincount(ids, minlength=len(frequencies))
    counts = dict(zip(known, frequencies[UNK_ID + 1 :].tolist(), strict=True))
    average_of_words(vectors, lowercase=True).save(output / "untrained" / "mean")
    sif = average_of_words(vectors, weighting="sif", counts=counts, lowercase=True, remove_component=True)
    sif.fit_postprocessing(corpus.train.sentences(0, sif.postprocessing.num_sentences))
    sif.save(output / "untrained" / "sif")


def train_student(books: str, output: Path, *, seed: int) -> None:
    """Train a student on what the members return for part of the text."""
    teacher, place = output / "teacher", output / STUDENT
    if not teacher.exists():
        compose([str(output / "members" / name) for name in MEMBERS], output=teacher)
    config = run_config(
        {"type": "bag", "embedding": {"dim": 1024}},
        books,
        epochs=STUDENT_EPOCHS,
        seed=seed,
        corpus={"path": books, "max_length": 30, "max_sentences": STUDENT_SENTENCES},
        objective={"type": "distillation", "teacher": str(teacher), "dim": 1024, "max_loss": 100.0},
    )
    seconds = timed(place / "targets", lambda: open_training_data(config))
    print(f"targets: {seconds:.0f} s of processor time", flush=True)
    print(f"student: {timed(place, lambda: fit(config, place)):.0f} s of processor time", flush=True)


# -- peers ------------------------------------------------------------------------------------------------------------


def sentences_of(corpus: Corpus, count: int) -> list[list[str]]:
    """Return the words of the first training sentences; unknown ones are left out."""
    words, found = np.array(corpus.vocabulary.words, dtype=object), []
    for first in range(0, min(count, len(corpus.train)), CHUNK):
        rows = corpus.train.sentences(first, min(first + CHUNK, count, len(corpus.train)))
        parts = np.split(rows.ids, np.cumsum(rows.lengths)[:-1])
        found += [words[ids[ids > UNK_ID]].tolist() for ids in parts]
    return found


class Doc2Vec(SentenceEncoder):
    """gensim's doc2vec: the vector of a new sentence is inferred, from the same start every time."""

    def __init__(self, file: Path, *, seed: int) -> None:
        """Load the model that `train_doc2vec` wrote."""
        self._seed = seed
        self.model = importlib.import_module("gensim.models.doc2vec").Doc2Vec.load(str(file))

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> np.ndarray:
        """Return the inferred vectors, float32 [sentences, dim]."""
        del batch_size
        rows = []
        for sentence in sentences:
            self.model.random.seed(self._seed)
            rows.append(self.model.infer_vector(sentence.lower().split(), epochs=DOC2VEC_EPOCHS))
        return np.stack(rows).astype(np.float32)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of a vector."""
        return int(self.model.vector_size)


def train_doc2vec(corpus: Corpus, place: Path, *, seed: int) -> None:
    """Train doc2vec as a distributed bag of words together with skip-gram word vectors."""
    library = importlib.import_module("gensim.models.doc2vec")
    texts = [
        library.TaggedDocument(words, [number]) for number, words in enumerate(sentences_of(corpus, len(corpus.train)))
    ]
    model = library.Doc2Vec(
        texts, vector_size=WORDS["dim"], dm=0, dbow_words=1, min_count=3, window=5, sample=1e-4, workers=1,
        epochs=DOC2VEC_EPOCHS, seed=seed,
    )  # fmt: skip
    model.save(str(place / "doc2vec.model"))


def train_simcse(corpus: Corpus, place: Path, *, seed: int) -> None:
    """Train sentence-transformers' mean of word vectors with the loss of unsupervised SimCSE."""
    library = importlib.import_module("sentence_transformers")
    modules = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    tokenizers = importlib.import_module("sentence_transformers.sentence_transformer.modules.tokenizer")
    losses = importlib.import_module("sentence_transformers.sentence_transformer.losses")
    torch.manual_seed(seed)
    names = list(corpus.vocabulary.words)
    vectors = torch.from_numpy(corpus_word_vectors(corpus, dim=WORDS["dim"], seed=seed))
    tokenizer = tokenizers.WhitespaceTokenizer(vocab=names, stop_words=[], do_lower_case=True)
    words = modules.WordEmbeddings(tokenizer, vectors, update_embeddings=True)
    layers = [words, modules.Pooling(WORDS["dim"], pooling_mode="mean"), modules.Dropout(0.1)]
    model = library.SentenceTransformer(modules=layers, device="cpu")
    texts = [" ".join(found) for found in sentences_of(corpus, len(corpus.train))]
    chosen = np.random.default_rng(seed).permutation(len(texts))[: SIMCSE_STEPS * BATCH_SIZE]
    texts = [texts[row] for row in chosen]
    pairs = importlib.import_module("datasets").Dataset.from_dict({"anchor": texts, "positive": texts})
    options = library.SentenceTransformerTrainingArguments(
        output_dir=str(place / "trainer"), max_steps=SIMCSE_STEPS, per_device_train_batch_size=BATCH_SIZE,
        learning_rate=1e-3, bf16=True, use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True,
        logging_steps=200, seed=seed,
    )  # fmt: skip
    loss = losses.MultipleNegativesRankingLoss(model)
    library.SentenceTransformerTrainer(model=model, args=options, train_dataset=pairs, loss=loss).train()
    model.save(str(place / "model"), create_model_card=False)


def train_peers(books: str, output: Path, names: Sequence[str], *, seed: int) -> None:
    """Train the models of other libraries."""
    corpus = corpus_of(books)
    trainings: dict[str, Callable[[Path], None]] = {
        "doc2vec": lambda place: train_doc2vec(corpus, place, seed=seed),
        "simcse": lambda place: train_simcse(corpus, place, seed=seed),
    }
    for name in names:
        place = output / "peers" / name
        if not any((place / file).exists() for file in ("model", "doc2vec.model")):
            seconds = timed(place, lambda train=trainings[name], place=place: train(place))  # type: ignore[misc]
            print(f"{name}: {seconds:.0f} s of processor time", flush=True)


# -- scores -----------------------------------------------------------------------------------------------------------


def models_of(output: Path, reference: str | None, *, seed: int) -> dict[str, list[Member]]:
    """Return the models by kind; what is not trained yet is left out."""

    def folders(names: Sequence[str]) -> list[Member]:
        paths = [str(output / name) for name in names if (output / name / "outcome.json").exists()]
        return expand(paths) if paths else []

    untrained = [str(output / "untrained" / name) for name in ("mean", "sif")]
    places = {name: output / "peers" / name for name in PEERS}
    peers = [
        Member(name, f"st:{place / 'model'}", model_key(f"st:{place / 'model'}"))
        for name, place in places.items()
        if (place / "model").exists()
    ]
    if (file := places["doc2vec"] / "doc2vec.model").exists():
        peers.append(Member("doc2vec", "doc2vec", file_sha256(file), Doc2Vec(file, seed=seed)))
    return {
        "member": folders([f"members/{name}" for name in MEMBERS]),
        STUDENT: folders([STUDENT]),
        "untrained": [*expand(LEXICAL), *(expand(untrained) if Path(untrained[-1]).exists() else [])],
        "peer": peers,
        "reference": [] if reference is None else expand([reference]),
    }


def evaluate(output: Path, data: Path, models: Mapping[str, Sequence[Member]]) -> None:
    """Make the records of every model on every task."""
    evaluator = Evaluator(output / "evaluation", data)
    for member in (one for kind in models.values() for one in kind):
        started = time.process_time()
        is_lexical = member.path in LEXICAL
        tasks = CLASS_TASKS if is_lexical else (*CLASS_TASKS, *SCORE_TASKS, *SIMILARITY_TASKS)
        evaluator.results([member], resolve_tasks(tasks, data))
        if not is_lexical and not (file := output / "ms" / f"{member.folder}.json").exists():
            write_json(file, {"ms": encode_ms(member.encoder or load(member.path))})
        print(f"{member.name}: {time.process_time() - started:.0f} s of processor time", flush=True)


def score_labels(output: Path, data: Path, models: Mapping[str, Sequence[Member]]) -> None:
    """Score all models against the number of labels."""
    others = [one for kind in (STUDENT, "untrained", "peer", "reference") for one in models[kind]]
    for task in resolve_tasks(LABEL_TASKS, data):
        rows = task.load(data)
        assert isinstance(rows, TaskData)
        started = time.process_time()
        scores = LabelScores(rows, models["member"], others, sizes=SIZES)
        members = [one.name for one in models["member"]]
        scores.combine(ENSEMBLE, members, method="validation")
        scores.combine(WITH_TFIDF, [*members, "tfidf"])
        scores.combine(WITH_BOTH, [*members, *LEXICAL])
        scores.combine(MEAN_WITH_BOTH, [MEAN, *LEXICAL], kind="baseline")
        scores.combine(BOTH, LEXICAL, kind="baseline")
        curve = scores.curve()
        write_curves(output, [curve])
        draws = {name: np.stack([scores.means(name, size) for size in SIZES]) for name in curve.curves}
        write_json(output / DRAWS_FOLDER / f"{task.name}.json", {name: found.tolist() for name, found in draws.items()})
        print(f"{task.name}: {time.process_time() - started:.0f} s of processor time", flush=True)


def results(output: Path, data: Path, models: Mapping[str, Sequence[Member]]) -> str:
    """Return the tables."""
    evaluator = Evaluator(output / "evaluation", data)
    everything = [one for kind in models.values() for one in kind]
    records = {
        one.name: found for one, found in evaluator.records(everything, resolve_tasks(CLASS_TASKS, data)).items()
    }
    members = [one.name for one in models["member"]]
    tests = {name: [score_model(one).test for one in found] for name, found in records.items()}
    for name, parts in {ENSEMBLE: members, WITH_TFIDF: [*members, "tfidf"]}.items():
        tests[name] = ensemble_tests(records, parts, "validation")
        tests[f"{name}, pool"] = ensemble_tests(records, parts, "pool")
    means = {name: mean_estimate(found) for name, found in tests.items()}
    seconds = {name: seconds_of(output, name) for name in records}
    seconds[ENSEMBLE] = seconds[WITH_TFIDF] = sum(seconds[name] or 0.0 for name in members)
    validation = {name: mean(one.validation for one in found) for name, found in records.items()}
    best = max(members, key=lambda name: validation[name])
    baseline = max((one.name for kind in ("untrained", "peer") for one in models[kind]), key=validation.__getitem__)
    ms = {one.name: ms_of(output, one) for one in everything}
    ms[ENSEMBLE] = sum(ms[name] or 0.0 for name in members)
    lines = [
        "## All labels", "",
        f"| model | {' | '.join(CLASS_TASKS)} | mean | trained, min | ms |",
        f"|---|{'---|' * (len(CLASS_TASKS) + 3)}",
    ]  # fmt: skip
    for name, found in tests.items():
        cost, took = seconds.get(name), ms.get(name)
        cells = [*(f"{one.value:.2f}" for one in found), f"{means[name].value:.2f}"]
        cells += ["" if cost is None else f"{cost / 60:.0f}", "" if took is None else f"{took:.1f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", f"Best member on validation: {best}; best of untrained models and peers: {baseline}.", ""]
    lines += ["| difference of means | points |", "|---|---|"]
    pairs = [
        (ENSEMBLE, best), (ENSEMBLE, baseline), (best, baseline), (WITH_TFIDF, "tfidf"), (WITH_TFIDF, ENSEMBLE),
        (f"{WITH_TFIDF}, pool", "tfidf"), (ENSEMBLE, "tfidf"), (best, "tfidf"), (best, "mean"), (best, "sif"),
        *((ENSEMBLE, one.name) for kind in ("peer", "reference") for one in models[kind]),
        *((one.name, other) for one in models[STUDENT] for other in (best, ENSEMBLE)),
    ]  # fmt: skip
    for one, other in dict.fromkeys(pairs):
        if one != other and {one, other} <= means.keys():  # some may have been left out by --only
            lines.append(f"| {one} - {other} | {difference(means[one], means[other])} |")
    lines += ["", *similarity_table(evaluator, models)]
    return "\n".join([*lines, *cost_table(output, records, members, seconds)])


def ensemble_tests(
    records: Mapping[str, Sequence[Record]], names: Sequence[str], method: str
) -> list[BootstrapEstimate]:
    """Return the test scores of an ensemble, one for each task."""
    of_tasks = zip(*(records[name] for name in names), strict=True)
    return [score_methods(list(one), [method])[method].test for one in of_tasks]


def seconds_of(output: Path, name: str) -> float | None:
    """Return the processor seconds that a model was trained for; None for one that was not."""
    places = [output / kind / name for kind in ("members", "peers")] + [output / name]
    found = [read_json(place / SECONDS_FILE)["seconds"] for place in places if (place / SECONDS_FILE).exists()]
    return float(found[0]) if found else None


def ms_of(output: Path, member: Member) -> float | None:
    """Return the milliseconds to encode 1,000 sentences; None for a model without vectors."""
    file = output / "ms" / f"{member.folder}.json"
    return float(read_json(file)["ms"]) if file.exists() else None


def similarity_table(evaluator: Evaluator, models: Mapping[str, Sequence[Member]]) -> list[str]:
    """Return correlations of cosines with human ratings, and of probes."""
    names = [*SIMILARITY_TASKS, *SCORE_TASKS]
    lines = [
        "## Similarity",
        "",
        f"| model | {' | '.join(names)} | mean of cosines |",
        f"|---|{'---|' * (len(names) + 1)}",
    ]
    chosen = [one for kind in models.values() for one in kind if one.path not in LEXICAL]
    for member, found in evaluator.results(chosen, resolve_tasks(names, evaluator.data_dir)).items():
        values = [one.pearson if isinstance(one, SimilarityScore) else one.score.test for one in found]
        cells = [*(f"{value:.1f}" for value in values), f"{mean(values[: len(SIMILARITY_TASKS)]):.1f}"]
        lines.append(f"| {member.name} | {' | '.join(cells)} |")
    return [*lines, ""]


def label_draws(outputs: Sequence[Path]) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the tasks, and the mean over tasks and seeds of each model's scores, [sizes, resamples].

    The first resample is the original. Seeds have the same draws and test rows.
    """
    tasks = [curve.task for curve in read_curves(outputs[0])]
    found = [read_json(output / DRAWS_FOLDER / f"{task}.json") for output in outputs for task in tasks]
    return tasks, {name: np.mean([one[name] for one in found], axis=0) for name in found[0]}


def label_table(outputs: Sequence[Path]) -> str:
    """Return mean scores against the number of labels, and paired differences with 95 % intervals."""
    tasks, draws = label_draws(outputs)
    columns, rule = " | ".join(f"{size:,} labels" for size in SIZES), "---|" * len(SIZES)
    lines = [f"Means over {', '.join(tasks)}, and over {len(outputs)} trainings.", ""]
    lines += [f"| model | {columns} |", f"|---|{rule}"]
    lines += [f"| {name} | {' | '.join(f'{of_size[0]:.2f}' for of_size in found)} |" for name, found in draws.items()]
    lines += ["", f"| difference | {columns} |", f"|---|{rule}"]
    for one, other in (
        (ENSEMBLE, "tfidf"), (ENSEMBLE, "tfidf:chars"), (ENSEMBLE, MEAN), (ENSEMBLE, BOTH), (ENSEMBLE, MEAN_WITH_BOTH),
        (WITH_TFIDF, "tfidf"), (WITH_TFIDF, MEAN_WITH_BOTH), (WITH_BOTH, BOTH), (WITH_BOTH, MEAN_WITH_BOTH),
        (MEAN_WITH_BOTH, BOTH), (MEAN_WITH_BOTH, "tfidf"), (MEAN, "tfidf"),
    ):  # fmt: skip
        cells = []
        for left, right in zip(draws[one], draws[other], strict=True):
            low, high = np.percentile((left - right)[1:], PERCENTILES)
            cells.append(f"{left[0] - right[0]:+.2f} [{low:+.2f}, {high:+.2f}]")
        lines.append(f"| {one} - {other} | {' | '.join(cells)} |")
    return "\n".join(lines)


def label_plot(outputs: Sequence[Path]) -> str:
    """Return a plot of the mean scores against the number of labels, as SVG."""
    tasks, draws = label_draws(outputs)
    places, lines = range(len(SIZES)), []
    for name in (WITH_BOTH, MEAN_WITH_BOTH, ENSEMBLE, MEAN, "tfidf", "tfidf:chars"):
        bands = [(float(low), float(high)) for low, high in np.percentile(draws[name][:, 1:], PERCENTILES, axis=1).T]
        lines.append(plots.Line(name, list(places), draws[name][:, 0].tolist(), bands))
    title = f"mean accuracy on {', '.join(tasks)}"
    ticks = {float(place): f"{size:,}" for place, size in zip(places, SIZES, strict=True)}
    return plots.curves([(title, lines)], x="labels", y="accuracy, %", ticks=ticks)


def cost_table(
    output: Path, records: Mapping[str, Sequence[Record]], members: Sequence[str], seconds: Mapping[str, float | None]
) -> list[str]:
    """Return what each part of the time bought: within a training, and as members join the ensemble."""
    lines = ["## What the time bought", "", "| member | context_accuracy after each quarter |", "|---|---|"]
    for name in members:
        values = [report.metrics["context_accuracy"] for report in load_reports(output / "members" / name)]
        lines.append(f"| {name} | {', '.join(f'{value:.4f}' for value in values)} |")
    lines += ["", "| members, in the order of training | minutes in all | ensemble, mean |", "|---|---|---|"]
    for count in range(1, len(members) + 1):
        test = mean_estimate(ensemble_tests(records, members[:count], "validation"))
        total = sum(seconds[name] or 0.0 for name in members[:count]) / 60
        lines.append(f"| {' + '.join(members[:count])} | {total:.0f} | {test.value:.2f} |")
    return lines


def main() -> None:
    """Do the step that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = ("members", "untrained", "student", "peers", "evaluate", "labels", "results", "few-labels")
    parser.add_argument("step", choices=steps)
    parser.add_argument("--books", required=True, help="folder of novels")
    parser.add_argument("--data", type=Path, required=True, help="folder in SentEval's layout")
    parser.add_argument("--output", type=Path, required=True, nargs="+", help="of `few-labels` one for each seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="NAME,…", help="only these members or peers")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="of `few-labels`: where the plot goes")
    parser.add_argument("--reference", metavar="MODEL", help="a further model to evaluate, such as st:PATH")
    options = parser.parse_args()
    torch.set_num_threads(1)
    output, names = options.output[0], options.only.split(",") if options.only else None
    if options.step == "members":
        train_members(options.books, output, names or list(MEMBERS), seed=options.seed)
    elif options.step == "untrained":
        make_untrained(options.books, output, seed=options.seed)
    elif options.step == "student":
        train_student(options.books, output, seed=options.seed)
    elif options.step == "peers":
        train_peers(options.books, output, names or PEERS, seed=options.seed)
    elif options.step == "few-labels":
        print(label_table(options.output))
        if options.svg is not None:
            options.svg.write_text(label_plot(options.output))
    else:
        models = models_of(output, options.reference, seed=options.seed)
        if names:
            models = {kind: [one for one in found if one.name in names] for kind, found in models.items()}
        if options.step == "evaluate":
            evaluate(output, options.data, models)
        elif options.step == "labels":
            score_labels(output, options.data, models)
        else:
            print(results(output, options.data, models))


if __name__ == "__main__":
    main()
