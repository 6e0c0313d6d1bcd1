"""`raysent expand`, `bag` and `average`: models made of a trained one's words, or of a file of word vectors."""

from __future__ import annotations

from pathlib import Path

from raysent.cli.console import print_json, results
from raysent.cli.reading import read_counts, read_lines
from raysent.data.vocabulary import read_word_vectors
from raysent.errors import ArtifactError, ConfigError
from raysent.models import SentenceModel, average_of_words, bag_of_words, check_weighting, load
from raysent.models import expand as expand_model
from raysent.storage.layout import MODEL_FILE


def expand(model: str, vectors: Path, *, output: Path, has_intercept: bool, as_json: bool) -> int:
    """Give a model the words of a file of vectors and save it elsewhere; returns the exit code."""
    trained = _trained(model, output)
    expanded = expand_model(trained, read_word_vectors(vectors), has_intercept=has_intercept)
    expanded.save(output)
    before, after = len(trained.vocabulary), len(expanded.vocabulary)
    if as_json:
        print_json({"model": str(output), "num_words_before": before, "num_words": after})
    else:
        results.print(f"{output}: {before:,} words became {after:,}", soft_wrap=True)
    return 0


def bag(model: str, *, output: Path, as_json: bool) -> int:
    """Save the mean of a model's word vectors as a model of its own; returns the exit code."""
    words = bag_of_words(_trained(model, output))
    words.save(output)
    dim = words.get_sentence_embedding_dimension()
    if as_json:
        print_json({"model": str(output), "dim": dim, "num_words": len(words.vocabulary)})
    else:
        results.print(f"{output}: the mean of {len(words.vocabulary):,} words' vectors, {dim} numbers", soft_wrap=True)
    return 0


def average(
    vectors: Path,
    *,
    output: Path,
    weighting: str,
    counts: Path | None,
    text: Path | None,
    is_lowercase: bool,
    as_json: bool,
) -> int:
    """Save the model that averages the words of a file; returns the exit code."""
    _refuse_existing(output)
    model = average_of_words(
        read_word_vectors(vectors),
        weighting=check_weighting(weighting),
        counts=None if counts is None else read_counts(counts),
        lowercase=is_lowercase,
        remove_component=text is not None,
    )
    if text is not None:
        sample = read_lines(text)[: model.postprocessing.num_sentences]
        model.fit_postprocessing(model.vocabulary.ids(sample, max_length=model.max_length))
    model.save(output)
    dim = model.get_sentence_embedding_dimension()
    if as_json:
        print_json({"model": str(output), "dim": dim, "num_words": len(model.vocabulary)})
    else:
        results.print(f"{output}: the mean of {len(model.vocabulary):,} words' vectors, {dim} numbers", soft_wrap=True)
    return 0


def _trained(model: str, output: Path) -> SentenceModel:
    """Load a trained model whose folder stays as it is.

    Raises:
        ConfigError: If it is no single trained model.
        ArtifactError: If the new folder holds a model already.
    """
    loaded = load(model)
    if not isinstance(loaded, SentenceModel):
        raise ConfigError(f"{model}: must be a trained model with words of its own; name a run's or a trial's folder")
    _refuse_existing(output)
    return loaded


def _refuse_existing(output: Path) -> None:
    if (output / MODEL_FILE).exists():
        raise ArtifactError(f"{output}: holds a model already; name another folder with -o")
