"""The model card of an export: a `README.md` with the metadata of the Hugging Face hub.

It names the training text and settings as the run's folder records them, the scores of the folder's `evaluation/`, the
comparison of export and model, and limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from raysent import __version__
from raysent.ensembles import ENSEMBLE, Ensemble
from raysent.errors import ConfigError
from raysent.evaluation.records import LEARNED, read_scores
from raysent.exports.formats import Format
from raysent.models import SentenceModel
from raysent.models.backbone import Backbone
from raysent.models.encoders import encoders_in
from raysent.models.origin import described
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.storage import open_folder
from raysent.storage.layout import EVALUATION_FOLDER, RUN_FILE, TRIALS_FOLDER
from raysent.training.run import describe, load_run, shown_path

# The form of the identifiers of the Hugging Face hub.
_IDENTIFIER = re.compile(r"[a-z0-9.+-]+")
_ST = "sentence-transformers"
_TAGS = ("sentence-similarity", "feature-extraction", "raysent")


def model_card(
    encoder: SentenceEncoder,
    models: Sequence[SentenceModel],
    *,
    target: Format,
    check: str,
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
        license: What `check_license` accepts; None for that of the model that training started from, if it is known.
    """
    usage_of = getattr(target, "usage_of", None)
    if usage_of is None:
        usage = target.USAGE
    else:
        usage = str(usage_of(models))
    if not license:
        # The licence of what training started from may be passed on where it is a single one.
        licenses = {backbone.license for backbone in _backbones(models)}
        identifiers = [name for name in licenses if _IDENTIFIER.fullmatch(name or "")]
        if len(identifiers) == 1:
            license = identifiers[0]
    parts = [
        _metadata(target, license, usage),
        f"# Sentence encoder {'trained' if _is_trained(models) else 'made'} with raysent",
        _summary(encoder, models),
        "## Use",
        f"```python\n{usage}\n```",
        "## Training",
        "\n\n".join([_training(encoder, models, folder), *map(_started_from, _backbones(models))]),
        "## Scores",
        _score_table(encoder, folder),
        "## Export",
        f"Written by raysent {__version__}: `raysent export --to {target.TARGET}`. Compared with the model: {check}.",
        "## Limits",
        _limits(models, target),
    ]
    return "\n\n".join(parts) + "\n"


def _backbones(models: Sequence[SentenceModel]) -> list[Backbone]:
    """Return the pretrained models that training started from, each once."""
    backbones: dict[object, Backbone] = {}
    for model in models:
        for tower in model.config.towers:
            for part in encoders_in(tower):
                if part.tokenizer is not None:
                    backbones[part.tokenizer.path] = part.tokenizer
    return list(backbones.values())


def _started_from(backbone: Backbone) -> str:
    if backbone.revision:
        name = backbone.path
    else:
        name = Path(str(backbone.path)).name
    phrases = [f"Started from `{name}`"]
    if backbone.revision:
        phrases.append(f"revision {backbone.revision}")
    if backbone.license:
        phrases.append(f"license {backbone.license}")
    return ", ".join(phrases) + "."


def _metadata(target: Format, license: str | None, usage: str) -> str:
    """Return the block of metadata that the hub reads; quoted strings of JSON are YAML too."""
    lines = [f"library_name: {target.LIBRARY}", "pipeline_tag: sentence-similarity", "tags:"]
    lines += [f"- {tag}" for tag in _TAGS]
    if target.LIBRARY == _ST:
        lines.append(f"- {_ST}")
    if "trust_remote_code" in usage:
        lines.append("- custom_code")
    if license:
        identifier, _, name = license.partition(":")
        lines.append(f"license: {json.dumps(identifier, ensure_ascii=False)}")
        if name:
            lines.append(f"license_name: {json.dumps(name.strip(), ensure_ascii=False)}")
    return "\n".join(["---", *lines, "---"])


def check_license(license: str | None) -> None:
    """Refuse what has not the form of the hub's identifiers, nor of `other: NAME`.

    Raises:
        ConfigError: In that case.
    """
    is_name = (
        license is not None
        and license.isprintable()
        and re.fullmatch(r"other: *\S.{0,200}", license)
    )
    if license is None or _IDENTIFIER.fullmatch(license) or is_name:
        return
    raise ConfigError(
        f"license {license!r:.60}: must be an identifier of the hub, such as apache-2.0, or 'other: NAME'"
    )


def _summary(encoder: SentenceEncoder, models: Sequence[SentenceModel]) -> str:
    dim = encoder.get_sentence_embedding_dimension()
    if isinstance(encoder, Ensemble):
        return f"An ensemble of {len(models)} models; their vectors of unit length stand side by side, {dim:,} numbers."
    unit = "bits, 0 or 1" if models[0].code is not None else "numbers"
    return f"It turns text into vectors of {dim:,} {unit}; compare them by {encoder.similarity_measure}."


def _is_trained(models: Sequence[SentenceModel]) -> bool:
    origins = [model.origin for model in models]
    return any(origin is not None and origin.is_trained for origin in origins)


def _training(
    encoder: SentenceEncoder, models: Sequence[SentenceModel], folder: Path | None
) -> str:
    if folder is not None and (folder / RUN_FILE).is_file():
        return "\n\n".join(_of_run(folder))
    if isinstance(encoder, Ensemble):
        names = [f"{member.name}: " for member in encoder.members]
    else:
        names = [""]
    lines = []
    for name, model in zip(names, models, strict=True):
        reading = f"{len(model.vocabulary):,} words, at most {model.max_length} read of a sentence"
        origin = described(model.origin, model.config.encoder.type)
        lines.append(f"- {name}{origin}; {reading}")
        run_folder = None
        if model.source:
            run_folder = open_folder(model.source)
        if run_folder is not None and (run_folder / RUN_FILE).is_file():
            lines += [f"  - {line}" for line in _of_run(run_folder)]
    return "\n".join(lines)


def _of_run(folder: Path) -> tuple[str, str]:
    run = load_run(folder)
    return f"Text: `{shown_path(run.corpus.path)}`.", f"Settings: {describe(run)}; seed {run.seed}."


def _score_table(encoder: SentenceEncoder, folder: Path | None) -> str:
    names: tuple[str, ...]
    if isinstance(encoder, Ensemble):
        names = ("task", "protocol", "scored", "test", "95 % interval")
        rows = _ensemble_rows(encoder)
    else:
        names = ("task", "protocol", "test", "95 % interval")
        rows = _score_rows(folder)
    if not rows:
        return "Not evaluated. `raysent evaluate` scores the model."
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, ["---"] * len(names), *rows))


def _score_rows(folder: Path | None) -> list[tuple[str, ...]]:
    if folder is None:
        return []
    if folder.parent.name == TRIALS_FOLDER:
        # A sweep keeps the scores of all its trials in one folder.
        sweep_scores = read_scores(folder.parent.parent / EVALUATION_FOLDER)
        scores = [score for score in sweep_scores if score.model == folder.name]
    else:
        scores = read_scores(folder / EVALUATION_FOLDER)
    return [
        (
            score.task,
            score.protocol,
            f"{score.test:.1f}{LEARNED * getattr(score, 'learned', False)}",
            _interval(score.interval),
        )
        for score in scores
    ]


def _ensemble_rows(ensemble: Ensemble) -> list[tuple[str, ...]]:
    labels = {ENSEMBLE: "predictions of the ensemble"}
    for member in ensemble.result.members:
        labels[member] = f"member {member}"
    protocol = ensemble.result.protocol
    rows: list[tuple[str, ...]] = []
    for name, task in ensemble.result.tasks.items():
        for key, label in labels.items():
            if key in task.scores:
                score = task.scores[key]
                rows.append((name, protocol, label, f"{score.test:.1f}", _interval(score.interval)))
    return rows


def _interval(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return ""
    return f"{interval[0]:.1f} to {interval[1]:.1f}"


def _limits(models: Sequence[SentenceModel], target: Format) -> str:
    case = "case as in the training text"
    if all(model.vocabulary.lowercase for model in models):
        case = "lower case"
    words = ", ".join(f"{len(model.vocabulary):,}" for model in models)
    lengths = ", ".join(str(model.max_length) for model in models)
    zeros = ""
    if "" in target.DIFFERS_ON:
        zeros = ", but text without any word one of zeros"
    lines = [
        f"- Words outside the vocabulary ({words} words, {case}) are unknown; text without a known word has the "
        f"vector of one unknown word{zeros}.",
        f"- Of a longer text only the first words are read: {lengths}.",
    ]
    for task in sorted({task for model in models for task in model.learned_tasks}):
        lines.append(
            f"- It was trained on labels of the training rows of {task}: scores of this task are marked {LEARNED}. "
            "Test rows were not read."
        )
    # Members of an ensemble stand side by side, so the first numbers of all are those of one of them.
    sizes = models[0].trained_prefixes if len(models) == 1 else ()
    if sizes:
        option = ""
        if target.LIBRARY == _ST:
            option = f", `SentenceTransformer(…, truncate_dim={sizes[0]})`"
        lines.append(
            f"- Vectors may be cut to their first {', '.join(map(str, sizes))} numbers: these were trained{option}."
        )
    if any(model.code is not None for model in models):
        lines.append("- Bits have no gradient: the folder cannot be trained on.")
    lines.append(
        "- The model reflects its training text, with its language, subjects and prejudices."
    )
    return "\n".join(lines)
