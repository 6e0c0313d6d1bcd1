"""`whiten`: a finished model with whitened vectors, whose dimension a validation score may choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from raysent.config import Document, StrictModel, validate
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.vocabulary import VocabularyConfig
from raysent.errors import ConfigError
from raysent.evaluation.task import Task
from raysent.models import SentenceModel, Whitening
from raysent.models import load as load_model
from raysent.models.schemes import encoder_name
from raysent.pipeline.arguments import metric_values, overrides_of
from raysent.pipeline.derived import check_free
from raysent.progress import ProgressLines
from raysent.storage import open_folder
from raysent.storage.layout import RUN_FILE
from raysent.training.data import TrainingData, open_training_data
from raysent.training.run import RunConfig, load_run
from raysent.training.validation import METRICS, ValidationConfig, Validator


@dataclass(frozen=True)
class Whitened:
    """A whitened model, and how its dimension was chosen.

    Attributes:
        model: The model; unchanged where its own vectors have the best score.
        dimension: Dimensions kept; None where the model is unchanged.
        rank: Directions in which the vectors of the sample vary.
        num_sentences: Sentences of the sample.
        metric: The metric of `scores`; empty where the caller named the dimension.
        scores: Dimension -> validation score; None stands for the model as it is.
    """

    model: SentenceModel
    dimension: int | None
    rank: int
    num_sentences: int
    metric: str = ""
    scores: Mapping[int | None, float] = field(default_factory=dict)


def whiten(  # noqa: PLR0913 - the options of the command
    model: str | Path | SentenceModel,
    *,
    corpus: str | Path | None = None,
    dimension: int | Literal["auto", "full"] = "auto",
    metric: str | Task | None = None,
    data: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    num_sentences: int = 15_000,
    output: str | Path | None = None,
    progress: bool = True,
) -> Whitened:
    """Whiten the vectors of a trained model: keep the directions of the largest variance, each with the same variance.

    The transform is computed from sentences without labels and stored with the model; the encoder is not trained.

    Args:
        model: Folder of a training or a trial, or its model.
        corpus: Text to compute it from; by default the model's training text.
        dimension: Dimensions to keep; ``full`` keeps all in which the vectors vary; ``auto`` takes the best of the
            model as it is, 64, 128, 256, … and ``full`` by `metric`.
        metric: A task with a probe, scored on its validation rows; or ``pearson``, with `set` naming the sets of pairs.
            By default what the model's training was validated on.
        data: Folder of task files.
        set: Dotted name -> value of `corpus` and `validation`, such as ``validation.sts``.
        num_sentences: Sentences of the sample, spread evenly over the text.
        output: Folder of the new model; None does not save it.
        progress: Whether to show progress on standard error.

    Returns:
        The new model and how it was chosen.

    Raises:
        RaysentError: If the model has a code, or a file, a metric or the dimension is wrong.

    Source: Su et al., 2021, section 3.3.
    """
    check_free(output)
    given = load_model(encoder_name(model)) if isinstance(model, (str, Path)) else model
    if not isinstance(given, SentenceModel):
        raise ConfigError(f"{model}: must be a trained model; a composition or an ensemble has whitened members")
    if dimension not in ("auto", "full") and not (isinstance(dimension, int) and dimension >= 1):
        raise ConfigError(f"dimension: must be a positive whole number, full or auto; given {dimension!r}")
    run = load_run(Path(given.source)) if given.source and (Path(given.source) / RUN_FILE).is_file() else None
    values = {**({} if metric is None else metric_values(metric, data)), **(set or {})}
    values = {name: value for name, value in values.items() if not name.startswith(("metric", "evaluation."))}
    sources = _whitening_sources(run, values, corpus=corpus)
    name = _whitening_metric(metric, sources.validation) if dimension == "auto" else ""
    with ProgressLines(is_quiet=not progress) as bar:
        is_own = run is not None and corpus is None and not any(key.startswith("corpus.") for key in values)
        if is_own and run is not None:
            text = open_training_data(run, progress=bar)
        else:
            prepared = prepare(sources.corpus, VocabularyConfig(), words=given.vocabulary, progress=bar)
            text = TrainingData(given.vocabulary, corpus=prepared, max_length=given.max_length)
    found = Whitening(given, text.sample(num_sentences))
    result = Whitened(given, None, found.rank, found.num_sentences)
    if dimension == "auto":
        result = _best_whitening(result, found, name, sources.validation)
    else:
        kept = found.rank if dimension == "full" else dimension
        result = replace(result, model=found.apply(kept), dimension=kept)
    if output is not None:
        result.model.save(open_folder(output))
    return result


class _WhiteningSources(StrictModel):
    """The text and the validation set of `whiten`."""

    corpus: CorpusConfig = CorpusConfig()
    validation: ValidationConfig = ValidationConfig()


def _whitening_sources(
    run: RunConfig | None, values: Mapping[str, Any], *, corpus: str | Path | None
) -> _WhiteningSources:
    """Return the settings of `whiten`: those of the model's training with what the caller sets."""
    if run is None and corpus is None and "corpus.path" not in values:
        raise ConfigError("corpus: must name text, because the model's folder has no run.json")
    own: dict[str, Any] = {} if run is None else {"validation": run.validation.model_dump(exclude_none=True)}
    overrides = overrides_of({"corpus": ("corpus.path", None if corpus is None else str(corpus))}, values)
    return validate(_WhiteningSources, Document(own).with_overrides(overrides))


def _whitening_metric(metric: str | Task | None, validation: ValidationConfig) -> str:
    """Return the name of the metric that the dimension is chosen by.

    Raises:
        ConfigError: If there is none, or it does not read the finished vectors.
    """
    present = [
        *(["pearson"] if validation.sts is not None or validation.similarity is not None else []),
        *(["downstream"] if validation.downstream is not None else []),
    ]
    wanted = metric if metric in METRICS else None if metric is None else "downstream"
    if wanted in present or (wanted is None and present):
        return str(wanted or present[0])
    if wanted in (None, "pearson"):
        raise ConfigError(
            "dimension auto: must have validation scores to choose by; name a task as metric, or metric pearson and "
            "a folder as validation.sts; or a dimension, such as 256"
        )
    raise ConfigError(f"metric {wanted}: must be pearson or a task, which read whitened vectors")


def _best_whitening(unchanged: Whitened, found: Whitening, metric: str, validation: ValidationConfig) -> Whitened:
    """Return the model of the best validation score; of equal ones the model as it is, else the fewest dimensions."""
    vocabulary, max_length = unchanged.model.vocabulary, unchanged.model.max_length
    needed = validation if metric == "downstream" else validation.model_copy(update={"downstream": None})
    validator = Validator([metric], needed, vocabulary=vocabulary, max_length=max_length)
    scores: dict[int | None, float] = {None: validator.metrics_of(unchanged.model.eval())[metric]}
    for dimension in found.dimensions():
        scores[dimension] = validator.metrics_of(found.apply(dimension))[metric]
    best = max(scores, key=scores.__getitem__)
    model = unchanged.model if best is None else found.apply(best)
    return replace(unchanged, model=model, dimension=best, metric=metric, scores=scores)
