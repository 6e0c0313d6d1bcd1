"""Models made from models or word vectors, without training: expanded, averaged, composed, whitened; and codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raysent.config import Document, StrictModel, validate
from raysent.data import read_counts, read_lines
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.vocabulary import VocabularyConfig, read_word_vectors
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.members import expand as expand_names
from raysent.evaluation.members import is_model, model_folder
from raysent.models import (
    SentenceModel,
    Whitening,
    average_of_words,
    check_weighting,
    load_code,
    read_vectors,
    rotate,
)
from raysent.models import compose as compose_models
from raysent.models import expand as expand_model
from raysent.models import load as load_model
from raysent.models.schemes import encoder_name
from raysent.models.sentence_encoder import JoinedEncoders
from raysent.models.vector_codes import VectorCode
from raysent.pipeline.arguments import overrides_of
from raysent.progress import ProgressLines, messages
from raysent.storage import open_folder, storage_errors, whole_file
from raysent.storage.layout import RUN_FILE
from raysent.training.data import TrainingData, open_training_data
from raysent.training.run import load_run


def expand(
    model: str | Path | SentenceModel,
    vectors: str | Path,
    *,
    output: str | Path | None = None,
    intercept: bool = True,
) -> SentenceModel:
    """Give a trained model the words of pretrained vectors; its own words keep their vectors.

    Args:
        model: Folder of a training or a trial, or its model.
        vectors: GloVe, word2vec or fastText vectors, text or ``.bin``, also ``.gz``.
        output: Folder of the new model; None does not save it.
        intercept: Whether the linear map, fitted on the words that both have, has an intercept.

    Raises:
        RaysentError: If it is no single trained model, the vectors cannot be read, or the folder holds a model.
    """
    given = trained_model(model, output)
    return saved(
        expand_model(
            given,
            read_word_vectors(Path(vectors), unicode_form=given.vocabulary.unicode_form),
            has_intercept=intercept,
        ),
        output,
    )


def average(
    vectors: str | Path,
    *,
    output: str | Path | None = None,
    weighting: str = "uniform",
    counts: str | Path | None = None,
    remove_component: str | Path | None = None,
    lowercase: bool = False,
) -> SentenceModel:
    """Return the mean of a file's word vectors as a model: plain, with SIF weights, or without the first component.

    Of a sentence the first 50 words are read.

    Args:
        vectors: As for `expand`.
        output: As for `expand`.
        weighting: ``uniform``; or ``sif``: a / (a + p(word)) with a = 0.001.
        counts: Lines of a word and its count, for ``sif``.
        remove_component: Text; the first component of its sentences' vectors is removed.
        lowercase: Whether text is lower-cased before words are looked up.

    Raises:
        RaysentError: If a file cannot be read, the weighting is unknown, or the folder holds a model.
    """
    check_free(output)
    model = average_of_words(
        read_word_vectors(Path(vectors)),
        weighting=check_weighting(weighting),
        counts=None if counts is None else read_counts(Path(counts)),
        lowercase=lowercase,
        sample=None if remove_component is None else read_lines(Path(remove_component)),
    )
    return saved(model, output)


@dataclass(frozen=True)
class Binarized:
    """Packed binary codes of vectors.

    Attributes:
        codes: Eight bits per byte, uint8 [rows, ceil(bits / 8)].
        code: The code, for other vectors.
        preserved: What it preserves of held-out vectors, by name; empty for a code that was given.
    """

    codes: np.ndarray
    code: VectorCode
    preserved: Mapping[str, float] = field(default_factory=dict)


def binarize(
    vectors: str | Path,
    *,
    output: str | Path | None = None,
    bits: int | None = None,
    seed: int | None = None,
    keep: str | Path | None = None,
    use: str | Path | None = None,
) -> Binarized:
    """Turn a file of vectors into packed binary codes, the form of sentence-transformers' ubinary, FAISS and usearch.

    The code is a rotation of the vectors, whose variance is evened out in part; nothing is trained.

    Args:
        vectors: A ``.npy`` file, floats [rows, dim], from any encoder.
        output: The ``.npy`` file of codes to write; None writes none.
        bits: Bits of a code; by default one for each number of a vector, at most 2,048.
        seed: Seed of the rotation; 0 by default.
        keep: Folder to save the code in.
        use: Folder of a saved code, which is used instead of making one.

    Raises:
        RaysentError: If a file cannot be read or written, or a setting is wrong.
    """
    if use is not None and (bits is not None or seed is not None):
        raise ConfigError("use: must not stand beside bits or seed, as the code is given")
    floats = read_vectors(Path(vectors))
    preserved: dict[str, float] = {}
    if use is not None:
        code = load_code(Path(use))
    else:
        code, kept = rotate(floats, bits=bits, seed=seed or 0)
        preserved["similarity_kept"] = kept
    codes = code.encode_packed(floats)
    if output is not None:
        with (
            storage_errors(Path(output)),
            whole_file(output) as temporary,
            temporary.open("wb") as stream,
        ):
            np.save(stream, codes)
    if keep is not None:
        code.save(Path(keep))
    return Binarized(codes, code, preserved)


def compose(models: Sequence[str | Path], *, output: str | Path) -> JoinedEncoders:
    """Put trained models side by side as one model in a folder of its own.

    Args:
        models: Folders of trainings or trials; a sweep stands for its trials.
        output: Folder of the new model; must be new or empty.

    Returns:
        The composition, as `load` returns it.

    Raises:
        ConfigError: If fewer than two models are given, one has a code, or the folder is not empty.
        ArtifactError: If a folder holds no model.
    """
    places: dict[str, Path] = {}
    for member in expand_names(models):
        found = model_folder(Path(member.path))
        if found is None:
            raise ConfigError(
                f"{member.path}: must be a trained model to be composed; name the folder of a training"
            )
        places[member.folder] = found
    return compose_models(places, open_folder(output))


@dataclass(frozen=True)
class Whitened:
    """A whitened model.

    Attributes:
        model: The model.
        dimension: Dimensions kept.
        rank: Directions in which the vectors of the sample vary.
        num_sentences: Sentences of the sample.
    """

    model: SentenceModel
    dimension: int
    rank: int
    num_sentences: int


def whiten(
    model: str | Path | SentenceModel,
    *,
    corpus: str | Path | None = None,
    dimension: int | Literal["full"] = "full",
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
        dimension: Dimensions to keep; ``full`` keeps all in which the vectors vary.
        set: Dotted name -> value of `corpus`, such as ``corpus.text_field``.
        num_sentences: Sentences of the sample, spread evenly over the text; at least 100 of running text.
        output: Folder of the new model; None does not save it.
        progress: Whether to show progress on standard error.

    Raises:
        RaysentError: If the model has a code, or a file or the dimension is wrong.

    Source: Su et al., 2021, section 3.3.
    """
    given = trained_model(model, output)
    if dimension != "full" and not (isinstance(dimension, int) and dimension >= 1):
        raise ConfigError(
            f"dimension: must be a positive whole number or full; given {dimension!r}"
        )
    run = (
        load_run(Path(given.source))
        if given.source and (Path(given.source) / RUN_FILE).is_file()
        else None
    )
    overrides = overrides_of(
        {"corpus": ("corpus.path", None if corpus is None else str(corpus))}, set
    )
    if run is None and not overrides:
        raise ConfigError("corpus: must name text, because the model's folder has no run.json")
    with ProgressLines(is_quiet=not progress) as bar:
        if run is not None and not overrides:
            text = open_training_data(run, progress=bar)
        else:
            source = validate(_Text, Document({}).with_overrides(overrides)).corpus
            prepared = prepare(source, VocabularyConfig(), words=given.vocabulary, progress=bar)
            text = TrainingData(given.vocabulary, corpus=prepared, max_length=given.max_length)
    found = Whitening(given, text.sample(num_sentences))
    kept = found.rank if dimension == "full" else dimension
    return Whitened(saved(found.apply(kept), output), kept, found.rank, found.num_sentences)


class _Text(StrictModel):
    """What `set` of `whiten` names."""

    corpus: CorpusConfig = CorpusConfig()


def trained_model(model: str | Path | SentenceModel, output: str | Path | None) -> SentenceModel:
    """Return a single trained model, for a new one in another folder.

    Raises:
        ConfigError: If it is a model of another kind.
        ArtifactError: If the new folder holds a model already.
    """
    loaded = (
        load_model(encoder_name(model, say=messages.print))
        if isinstance(model, (str, Path))
        else model
    )
    if not isinstance(loaded, SentenceModel):
        raise ConfigError(
            f"{model}: must be a trained model with words of its own; name the folder of a training"
        )
    check_free(output)
    return loaded


def check_free(output: str | Path | None) -> None:
    """Refuse a folder that holds a model."""
    if output is not None and is_model(str(output)):
        raise ArtifactError(f"{output}: holds a model already; name another folder")


def saved(model: SentenceModel, output: str | Path | None) -> SentenceModel:
    """Return a model after it was saved, if a folder is named."""
    if output is not None:
        model.save(open_folder(output))
    return model
