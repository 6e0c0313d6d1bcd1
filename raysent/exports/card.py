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
    usage = target.USAGE if usage_of is None else str(usage_of(models))
    found = {one.license for one in _backbones(models) if _IDENTIFIER.fullmatch(one.license or "")}
    parts = [
        _metadata(target, license or (found.pop() if len(found) == 1 else None), usage),
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
    parts = [
        part for model in models for tower in model.config.towers for part in encoders_in(tower)
    ]
    return list(
        {
            part.tokenizer.path: part.tokenizer for part in parts if part.tokenizer is not None
        }.values()
    )


def _started_from(backbone: Backbone) -> str:
    name = backbone.path if backbone.revision else Path(str(backbone.path)).name
    known = {"revision": backbone.revision, "license": backbone.license}
    return (
        ", ".join(
            [
                f"Started from `{name}`",
                *(f"{what} {value}" for what, value in known.items() if value),
            ]
        )
        + "."
    )


def _metadata(target: Format, license: str | None, usage: str) -> str:
    tags = [*_TAGS, *([_ST] if target.LIBRARY == _ST else [])]
    lines = [f"library_name: {target.LIBRARY}", "pipeline_tag: sentence-similarity", "tags:"]
    lines += [f"- {tag}" for tag in tags]
    lines += ["- custom_code"] if "trust_remote_code" in usage else []
    if license:
        identifier, _, name = license.partition(":")
        named = {"license": identifier, **({"license_name": name.strip()} if name else {})}
        lines += [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in named.items()]
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
    what = "bits, 0 or 1" if models[0].code is not None else "numbers"
    return f"It turns text into vectors of {dim:,} {what}; compare them by {encoder.similarity_measure}."


def _is_trained(models: Sequence[SentenceModel]) -> bool:
    origins = [model.origin for model in models]
    return any(origin is not None and origin.is_trained for origin in origins)


def _training(
    encoder: SentenceEncoder, models: Sequence[SentenceModel], folder: Path | None
) -> str:
    if folder is not None and (folder / RUN_FILE).is_file():
        return "\n\n".join(_of_run(folder))
    names = (
        [f"{member.name}: " for member in encoder.members]
        if isinstance(encoder, Ensemble)
        else [""]
    )
    listed = []
    for name, model in zip(names, models, strict=True):
        read = f"{len(model.vocabulary):,} words, at most {model.max_length} read of a sentence"
        what = described(model.origin, model.config.encoder.type)
        listed.append(f"- {name}{what}; {read}")
        own = open_folder(model.source) if model.source else None
        listed += (
            [f"  - {line}" for line in _of_run(own)]
            if own is not None and (own / RUN_FILE).is_file()
            else []
        )
    return "\n".join(listed)


def _of_run(folder: Path) -> tuple[str, str]:
    run = load_run(folder)
    return f"Text: `{shown_path(run.corpus.path)}`.", f"Settings: {describe(run)}; seed {run.seed}."


def _score_table(encoder: SentenceEncoder, folder: Path | None) -> str:
    rows = _ensemble_rows(encoder) if isinstance(encoder, Ensemble) else _score_rows(folder)
    if not rows:
        return "Not evaluated. `raysent evaluate` scores the model."
    names = (
        "task",
        "protocol",
        *(["scored"] if isinstance(encoder, Ensemble) else []),
        "test",
        "95 % interval",
    )
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, ["---"] * len(names), *rows))


def _score_rows(folder: Path | None) -> list[tuple[str, ...]]:
    if folder is None:
        return []
    is_trial = folder.parent.name == TRIALS_FOLDER
    scores = read_scores((folder.parent.parent if is_trial else folder) / EVALUATION_FOLDER)
    shown = [score for score in scores if not is_trial or score.model == folder.name]
    return [
        (
            score.task,
            score.protocol,
            f"{score.test:.1f}{LEARNED * getattr(score, 'learned', False)}",
            _interval(score.interval),
        )
        for score in shown
    ]


def _ensemble_rows(ensemble: Ensemble) -> list[tuple[str, ...]]:
    shown = {ENSEMBLE: "predictions of the ensemble"}
    shown |= {name: f"member {name}" for name in ensemble.result.members}
    return [
        (
            name,
            ensemble.result.protocol,
            what,
            f"{task.scores[key].test:.1f}",
            _interval(task.scores[key].interval),
        )
        for name, task in ensemble.result.tasks.items()
        for key, what in shown.items()
        if key in task.scores
    ]


def _interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"


def _limits(models: Sequence[SentenceModel], target: Format) -> str:
    case = (
        "lower case"
        if all(model.vocabulary.lowercase for model in models)
        else "case as in the training text"
    )
    words = ", ".join(f"{len(model.vocabulary):,}" for model in models)
    lengths = ", ".join(str(model.max_length) for model in models)
    has_code = any(model.code is not None for model in models)
    sizes = models[0].trained_prefixes if len(models) == 1 else ()
    cut = (
        f", `SentenceTransformer(…, truncate_dim={sizes[0]})`"
        if sizes and target.LIBRARY == _ST
        else ""
    )
    zeros = ", but text without any word one of zeros" if "" in target.DIFFERS_ON else ""
    return "\n".join(
        (
            f"- Words outside the vocabulary ({words} words, {case}) are unknown; text without a known word has the "
            f"vector of one unknown word{zeros}.",
            f"- Of a longer text only the first words are read: {lengths}.",
            *(
                f"- It was trained on labels of the training rows of {task}: scores of this task are marked {LEARNED}. "
                "Test rows were not read."
                for task in sorted({task for model in models for task in model.learned_tasks})
            ),
            *(
                [
                    f"- Vectors may be cut to their first {', '.join(map(str, sizes))} numbers: "
                    f"these were trained{cut}."
                ]
                if sizes
                else []
            ),
            *(["- Bits have no gradient: the folder cannot be trained on."] if has_code else []),
            "- The model reflects its training text, with its language, subjects and prejudices.",
        )
    )
