"""The model card of an export: a `README.md` with the metadata of the Hugging Face hub.

It names the training text and settings as the run's folder records them, the scores of the folder's `evaluation/`, the
comparison of export and model, and limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from raysent import __version__
from raysent.data.vocabulary import SubwordVocabulary
from raysent.ensembles import Ensemble
from raysent.evaluation.records import read_scores
from raysent.exports.check import Check
from raysent.exports.formats import Format
from raysent.models import SentenceModel
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.storage.layout import EVALUATION_FOLDER, RUN_FILE, TRIALS_FOLDER
from raysent.training.run import describe, load_run

# The name of joined vectors among the scores of an ensemble.
_JOINED = "concatenation"
_TAGS = ("sentence-similarity", "feature-extraction", "raysent")


def model_card(
    encoder: SentenceEncoder,
    models: Sequence[SentenceModel],
    *,
    target: Format,
    check: Check,
    folder: Path | None,
    license: str | None,
) -> str:
    """Return the text of a model card.

    Args:
        encoder: The model.
        models: The models that it consists of.
        target: What it was exported to.
        check: The comparison of export and model.
        folder: The model's folder; None if it has none.
        license: An identifier such as `apache-2.0`; None if it is not known.
    """
    parts = [
        _metadata(target, license),
        "# Sentence encoder trained with raysent",
        _summary(encoder, models),
        "## Use",
        f"```python\n{_usage(target, models)}\n```",
        "## Training",
        _training(models, folder),
        "## Scores",
        _scores(encoder, folder),
        "## Export",
        f"Written by raysent {__version__}: `raysent export --to {target.TARGET}`. Compared with the model: {check}.",
        "## Limits",
        _limits(models),
    ]
    return "\n\n".join(parts) + "\n"


def _usage(target: Format, models: Sequence[SentenceModel]) -> str:
    """Return the lines of Python that read the folder."""
    has_subwords = any(isinstance(model.vocabulary, SubwordVocabulary) for model in models)
    return str(getattr(target, "USAGE_OF_SUBWORDS", target.USAGE)) if has_subwords else target.USAGE


def _metadata(target: Format, license: str | None) -> str:
    tags = [*_TAGS, *(["sentence-transformers"] if target.LIBRARY == "sentence-transformers" else [])]
    lines = [f"library_name: {target.LIBRARY}", "pipeline_tag: sentence-similarity", "tags:"]
    lines += [f"- {tag}" for tag in tags]
    lines += ["- custom_code"] if "trust_remote_code" in target.USAGE else []
    lines += [f"license: {license}"] if license else []
    return "\n".join(["---", *lines, "---"])


def _summary(encoder: SentenceEncoder, models: Sequence[SentenceModel]) -> str:
    dim = encoder.get_sentence_embedding_dimension()
    if isinstance(encoder, Ensemble):
        return f"An ensemble of {len(models)} models; their vectors of unit length stand side by side, {dim:,} numbers."
    what = "bits, 0 or 1" if models[0].code is not None else "numbers"
    return f"It turns English text into vectors of {dim:,} {what}; compare them by {encoder.similarity_measure}."


def _training(models: Sequence[SentenceModel], folder: Path | None) -> str:
    if folder is not None and (folder / RUN_FILE).is_file():
        run = load_run(folder)
        return f"Text: `{run.corpus.path}`.\n\nSettings: {describe(run)}; seed {run.seed}."
    listed = [
        f"- {model.config.encoder.type} trained for {model.config.objective.type}, {len(model.vocabulary):,} words, "
        f"at most {model.max_length} read of a sentence"
        for model in models
    ]
    return "\n".join(listed)


def _scores(encoder: SentenceEncoder, folder: Path | None) -> str:
    rows = _joined_rows(encoder) if isinstance(encoder, Ensemble) else _score_rows(folder)
    if not rows:
        return "Not evaluated. `raysent evaluate` scores the model."
    return _table(("task", "protocol", "test", "95 % interval"), rows)


def _score_rows(folder: Path | None) -> list[tuple[str, ...]]:
    """Return the scores of a model; those of a trial are in the sweep's folder."""
    if folder is None:
        return []
    is_trial = folder.parent.name == TRIALS_FOLDER
    scores = read_scores((folder.parent.parent if is_trial else folder) / EVALUATION_FOLDER)
    shown = [score for score in scores if not is_trial or score.model == folder.name]
    return [(score.task, score.protocol, f"{score.test:.1f}", _interval(score.interval)) for score in shown]


def _joined_rows(ensemble: Ensemble) -> list[tuple[str, ...]]:
    """Return the scores of probes on an ensemble's joined vectors, which are what an export gives."""
    found = {name: task.scores.get(_JOINED) for name, task in ensemble.result.tasks.items()}
    protocol = ensemble.result.protocol
    return [
        (name, protocol, f"{scores.test:.1f}", _interval(scores.interval))
        for name, scores in found.items()
        if scores is not None
    ]


def _interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _limits(models: Sequence[SentenceModel]) -> str:
    case = "lower case" if all(model.vocabulary.lowercase for model in models) else "case as in the training text"
    words = ", ".join(f"{len(model.vocabulary):,}" for model in models)
    lengths = ", ".join(str(model.max_length) for model in models)
    return "\n".join(
        (
            f"- Words outside the vocabulary ({words} words, {case}) are unknown; text without a known word has the "
            "vector of one unknown word.",
            f"- Of a longer text only the first words are read: {lengths}.",
            "- The model reflects its training text, with its language, subjects and prejudices.",
        )
    )
