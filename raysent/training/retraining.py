"""A finished run trained again: from its weights or from scratch, longer, on other text, with other seeds.

In: the folder of a training or a trial, and changed values. Out: a checked `RunConfig` for a new folder.

From the weights (the default), the run starts with the words and encoders of the finished model. The optimizer starts
new, and so does the schedule of the learning rate: a finished run keeps no checkpoint, and moments of another text or
batch size would mislead. The objective's own parameters (a decoder, a classifier) start new too. From scratch, only the
configuration is taken, and the words are chosen from the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raysent import config as configuration
from raysent.config import Document, Override, set_dotted
from raysent.errors import ArtifactError, ConfigError
from raysent.storage import address_of, to_uri
from raysent.storage.layout import (
    CODE_FILE,
    COMPOSITION_FILE,
    ENSEMBLE_FILE,
    MODEL_FILE,
    RUN_FILE,
    SWEEP_FILE,
    TRIALS_FOLDER,
)
from raysent.training.data import TrainingData
from raysent.training.outcome import RecordedTraining, read_training
from raysent.training.run import RunConfig

# What the weights of a finished run fix.
_FIXED_PARTS = ("encoder", "second_encoder", "vocabulary", "initial")
# Files of folders that hold no training -> what such a folder is.
_OTHER_KINDS = {
    ENSEMBLE_FILE: "an ensemble",
    COMPOSITION_FILE: "a composition of models",
    CODE_FILE: "a code, which has no training of its own",
    MODEL_FILE: "a model without a record of a training, such as one of 'raysent expand'",
}


def read_finished(folder: Path) -> RecordedTraining:
    """Read the folder of a training or a trial that has ended and left a model.

    Raises:
        ArtifactError: If the folder holds something else, or its training has not ended or left no model.
    """
    where = address_of(folder)
    fix = "name the folder of a training or a trial"
    if not folder.is_dir():
        raise ArtifactError(f"{where}: no such folder; {fix}")
    if (folder / SWEEP_FILE).is_file():
        raise ArtifactError(f"{where}: is a sweep; name one of its trials, such as {where}/{TRIALS_FOLDER}/0000")
    if not (folder / RUN_FILE).is_file():
        kinds = (kind for file, kind in _OTHER_KINDS.items() if (folder / file).is_file())
        raise ArtifactError(f"{where}: must be a training; given {next(kinds, 'a folder without one')}; {fix}")
    found = read_training(folder)
    if found.outcome is None:
        raise ArtifactError(f"{where}: has not ended; resume its sweep or training first")
    if not (folder / MODEL_FILE).is_file():
        raise ArtifactError(f"{where}: ended without a model ({found.outcome.message or found.outcome.status}); {fix}")
    return found


def retrained_config(
    config: RunConfig, folder: Path, *, overrides: Sequence[Override] = (), seed: int, from_scratch: bool = False
) -> RunConfig:
    """Return the run that trains a finished one again.

    Args:
        config: The finished run.
        folder: Its folder, whose weights the new run starts with.
        overrides: Changed values by dotted name; other epochs lift a limit on the steps.
        seed: Seed of the new run.
        from_scratch: Whether to start with new weights.

    Raises:
        ConfigError: With the option, if a value is wrong, or changes what the weights fix.
    """
    values = config.model_dump(mode="json")
    names = {override.name for override in overrides}
    if "training.epochs" in names and "training.max_steps" not in names:
        set_dotted(values, "training.max_steps", None)
    for override in overrides:
        if not from_scratch and override.name.split(".")[0] in _FIXED_PARTS:
            raise ConfigError(
                f"{override.option}: must be as in {address_of(folder)}, whose weights the run starts with; "
                "leave it out or train from scratch"
            )
    document = Document(values).with_overrides(overrides)
    document.values["seed"] = seed
    if not from_scratch:
        document.values["initial"] = to_uri(folder)
    return configuration.validate(RunConfig, document)


def check_weights(finished: RecordedTraining) -> None:
    """Refuse weights that a run cannot start with.

    Raises:
        ConfigError: If the run diverged, or trained a code.
    """
    where, fix = address_of(finished.folder), "train from scratch"
    assert finished.outcome is not None
    if finished.outcome.status == "nan":
        raise ConfigError(f"{where}: diverged; {fix} with a lower training.learning_rate")
    if finished.config.objective.trains_code:
        raise ConfigError(f"{where}: trained a code, whose weights a run cannot start with; {fix}")


def next_seed(config: RunConfig, *, from_scratch: bool) -> int:
    """Return the seed of the first run that trains a finished one again.

    From scratch it is the finished run's own, which repeats it to the last bit if nothing else changes. From its
    weights it is the next one, so that batches come in another order than before.
    """
    return config.seed if from_scratch else config.seed + 1


def words_line(config: RunConfig, training_data: TrainingData) -> str:
    """Return what happens to the words of the text, for a run that starts with a trained model; empty otherwise."""
    if config.initial is None:
        return ""
    kept = f"keeps the {len(training_data.vocabulary):,} words of {config.initial}"
    if training_data.corpus is None:
        return f"{kept}; other words of the pairs are read as unknown"
    share = training_data.corpus.unknown_share
    return f"{kept}; {share:.2%} of this text are other words, which are read as unknown"
