"""Training of one run: of a space, or of a finished trial again.

A finished run is trained again from its weights (the default): the run starts with the words and encoders of the
finished model. The optimizer starts new, and so does the schedule of the learning rate: a finished run keeps no
checkpoint, and moments of another text or batch size would mislead. The objective's own parameters (a decoder, a
classifier) start new too. From scratch, only the configuration is taken, and the words are chosen from the text.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from raysent import config as configuration
from raysent.config import Document, Override, set_dotted
from raysent.errors import ArtifactError, ConfigError, RaysentError, TrainingError
from raysent.live import TrainingView, fitted_lines
from raysent.models import SentenceModel
from raysent.models.sentence_encoder import check_size
from raysent.pipeline.arguments import (
    Space,
    SpaceOptions,
    overrides_of,
    print_notes,
    run_folder_of,
    swept_space,
)
from raysent.pipeline.results import TrainedRun, write_report
from raysent.pipeline.scales import SpaceScale
from raysent.progress import ProgressLines, messages
from raysent.screen import detail, show
from raysent.storage import address_of, open_folder, to_uri
from raysent.storage.layout import (
    CODE_FILE,
    COMPOSITION_FILE,
    ENSEMBLE_FILE,
    MODEL_FILE,
    RUN_FILE,
    SEED_FOLDER,
    SWEEP_FILE,
    TRIALS_FOLDER,
)
from raysent.sweeps import load_record
from raysent.sweeps.fitting import fit_to_machine, shortages
from raysent.sweeps.samplers import make_sampler
from raysent.sweeps.space import absolute_paths, with_absolute_paths
from raysent.training.data import TrainingData, open_training_data
from raysent.training.outcome import (
    Outcome,
    RecordedTraining,
    ended_outcome,
    load_reports,
    read_training,
)
from raysent.training.plan import check_run
from raysent.training.ray_session import ray_session
from raysent.training.ray_train import train as train_run
from raysent.training.run import RunConfig, describe, load_run

# What the weights of a finished run fix.
_FIXED_PARTS = ("encoder", "second_encoder", "vocabulary", "initial")
# Files of folders that hold no training -> what such a folder is.
_OTHER_KINDS = {
    ENSEMBLE_FILE: "an ensemble",
    COMPOSITION_FILE: "a composition of models",
    CODE_FILE: "a code, which has no training of its own",
    MODEL_FILE: "a model without a record of a training, such as one of 'raysent expand'",
}


@overload
def train(space: Space, *, seeds: None = None, **options: Any) -> SentenceModel: ...


@overload
def train(space: Space, *, seeds: int, **options: Any) -> list[SentenceModel]: ...


def train(  # type: ignore[misc]  # noqa: PLR0913 - the overloads leave out what they share
    space: Space,
    *,
    corpus: str | Path | None = None,
    epochs: float | None = None,
    set: Mapping[str, Any] | None = None,
    run: str | Path | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    scale: SpaceScale = "auto",
    workers: int = 1,
    gpus_per_worker: float | None = None,
    address: str | None = None,
    progress: bool = True,
) -> SentenceModel | list[SentenceModel]:
    """Train the run that a sweep of a space would try first, on Ray Train workers.

    That is its base with what the sampler draws first; `set` of a searched name sets it instead.

    Training continues from the last checkpoint of the run folder, if it has one.

    Args:
        space: As for `sweep`.
        corpus: Text to train on.
        epochs: Passes over the text in this training.
        set: Dotted name -> value of the run.
        run: The run folder; with `seeds`, each training has a folder ``seed-N`` in it.
        seed: Seed of everything random, of several the first; by default the space's or 0.
        seeds: Number of trainings, which differ in their seed alone.
        scale: As for `sweep`.
        workers: Number of Ray Train workers.
        gpus_per_worker: GPUs of each worker; by default one if the cluster has enough, else none.
        address: A running Ray cluster; by default this machine.
        progress: Whether to show progress on standard error.

    Returns:
        The model; with `seeds`, a list of models.

    Raises:
        TrainingError: If training cannot continue, for instance because the loss is not finite.
        RaysentError: If the space, the text or the folder is wrong.
    """
    arguments = {name: value for name, value in locals().items() if name not in ("space", "seeds")}
    return _models(train_space(space, seeds=seeds, **arguments), seeds)


@overload
def retrain(
    trial: str | Path | SentenceModel, *, seeds: None = None, **options: Any
) -> SentenceModel: ...


@overload
def retrain(
    trial: str | Path | SentenceModel, *, seeds: int, **options: Any
) -> list[SentenceModel]: ...


def retrain(  # type: ignore[misc]  # noqa: PLR0913 - the overloads leave out what they share
    trial: str | Path | SentenceModel,
    *,
    corpus: str | Path | None = None,
    epochs: float | None = None,
    set: Mapping[str, Any] | None = None,
    run: str | Path | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    from_scratch: bool = False,
    workers: int = 1,
    gpus_per_worker: float | None = None,
    address: str | None = None,
    progress: bool = True,
) -> SentenceModel | list[SentenceModel]:
    """Train a finished trial or training again in a new folder, from its weights.

    Its words are kept, other words of a new text are unknown, and the optimizer starts new.

    Args:
        trial: The folder of a trial or a training, or its model, such as `Sweep.best`.
        corpus: Text to train on; by default the trial's.
        epochs: As for `train`.
        set: As for `train`.
        run: As for `train`.
        seed: Seed of everything random, of several the first; by default one that follows the trial's.
        seeds: As for `train`.
        from_scratch: Start with new weights, with the trial's configuration alone.
        workers: As for `train`.
        gpus_per_worker: As for `train`.
        address: As for `train`.
        progress: As for `train`.

    Returns:
        As `train`.

    Raises:
        TrainingError: As `train`.
        RaysentError: If the folder holds no finished training, or the text or a value is wrong.
    """
    arguments = {name: value for name, value in locals().items() if name not in ("trial", "seeds")}
    return _models(train_trial(trial, seeds=seeds, **arguments), seeds)


def _models(
    trained: Sequence[TrainedRun], seeds: int | None
) -> SentenceModel | list[SentenceModel]:
    """Return the models of trainings: one, or with `seeds` a list; a loss that was not finite is a TrainingError."""
    for one in trained:
        if one.outcome.status == "nan":
            raise TrainingError(f"{one.address}: {one.outcome.message}")
    return trained[0].model if seeds is None else [one.model for one in trained]


def train_space(
    space: Space,
    *,
    corpus: str | Path | None = None,
    epochs: float | None = None,
    set: Mapping[str, Any] | None = None,
    scale: SpaceScale = "auto",
    seed: int | None = None,
    seeds: int | None = None,
    **options: Any,
) -> list[TrainedRun]:
    """Train what a space would try first and write its report; options as for `train`.

    Raises:
        RaysentError: With the line of the search space that is at fault, if one is.
    """
    progress, address = options.get("progress", True), options.get("address")
    values = {**({} if epochs is None else {"training.epochs": float(epochs)}), **(set or {})}
    checked = swept_space(space, options=SpaceOptions(corpus, values, scale))
    checked = checked if address is None else with_absolute_paths(checked)
    with ProgressLines(is_quiet=not progress) as bar:
        checked = fit_to_machine(checked, address=address, is_sweep=False, progress=bar)
    detail(*fitted_lines(checked))
    if progress:
        show(*shortages(checked))
    first = make_sampler(checked, seed=0).ask(0) if checked.domains else None
    params = {} if first is None else first[0]
    config = checked.config(params)
    configs = _with_seeds(config, config.seed if seed is None or "seed" in values else seed, seeds)
    try:
        return train_all(
            configs,
            checked.name,
            seeds=seeds,
            interruptions_per_hour=checked.cost.interruptions_per_hour,
            **options,
        )
    except RaysentError as error:
        raise checked.located(error, params) from None


def train_trial(
    trial: str | Path | SentenceModel,
    *,
    corpus: str | Path | None = None,
    epochs: float | None = None,
    set: Mapping[str, Any] | None = None,
    from_scratch: bool = False,
    seed: int | None = None,
    seeds: int | None = None,
    **options: Any,
) -> list[TrainedRun]:
    """Train a finished trial or training again and write its report; options as for `retrain`.

    Raises:
        RaysentError: If the folder holds no finished training, or a value is wrong.
    """
    if isinstance(trial, SentenceModel):
        if trial.source is None:
            raise ConfigError(
                "model: must have been loaded from the folder of a training; name that folder"
            )
        trial = trial.source
    overrides = overrides_of(
        {
            "corpus": ("corpus.path", None if corpus is None else str(corpus)),
            "epochs": ("training.epochs", None if epochs is None else float(epochs)),
        },
        set,
    )
    folder = open_folder(trial)
    finished = read_finished(folder)
    is_trial = folder.parent.name == TRIALS_FOLDER
    above = folder.parent.parent
    origin = load_record(above).origin if is_trial and (above / SWEEP_FILE).is_file() else ""
    if options.get("address") is not None or (
        origin and Path(origin).is_dir() and Path(origin) != Path.cwd()
    ):
        # Relative paths of a trial start from the folder in which its sweep was started.
        values = absolute_paths(finished.config.model_dump(mode="json"), folder=Path(origin))
        finished = replace(finished, config=RunConfig.model_validate(values))
    seed = next((override.value for override in overrides if override.name == "seed"), seed)
    if not from_scratch:
        check_weights(finished)
    # From scratch its own seed repeats the run to the last bit if nothing else changes; from its weights, the next seed
    # gives batches another order than before.
    first = finished.config.seed + int(not from_scratch) if seed is None else seed
    config = retrained_config(
        finished.config, folder, overrides=overrides, seed=first, from_scratch=from_scratch
    )
    name = f"{above.name}-{folder.name}" if is_trial else f"{folder.name}-retrained"
    return train_all(
        _with_seeds(config, first, seeds), name, seeds=seeds, before=finished.outcome, **options
    )


def _with_seeds(config: RunConfig, first: int, seeds: int | None) -> list[RunConfig]:
    if not isinstance(first, int) or first < 0:
        raise ConfigError(f"seed: must be a whole number of at least 0; given {first!r}")
    check_size("seeds", 1 if seeds is None else seeds)
    return [config.model_copy(update={"seed": first + number}) for number in range(seeds or 1)]


def train_all(  # noqa: PLR0913 - the options of the command
    configs: Sequence[RunConfig],
    name: str,
    *,
    run: str | Path | None = None,
    seeds: int | None = None,
    workers: int = 1,
    gpus_per_worker: float | None = None,
    address: str | None = None,
    progress: bool = True,
    interruptions_per_hour: float = 0.0,
    before: Outcome | None = None,
) -> list[TrainedRun]:
    """Train runs that differ in their seed alone, one after another, and write reports; options as for `train`."""
    check_size("workers", workers)
    if gpus_per_worker and not gpus_per_worker >= (workers > 1):
        least = "1, or 0, with several workers, as they share none" if workers > 1 else "0"
        raise ConfigError(f"gpus_per_worker: must be at least {least}; given {gpus_per_worker}")
    folder = run_folder_of(run, name)
    folders = (
        [folder]
        if seeds is None
        else [folder / f"{SEED_FOLDER}{config.seed}" for config in configs]
    )
    if seeds is not None and (folder / RUN_FILE).exists():
        raise ArtifactError(f"{address_of(folder)}: holds a training; name another run folder")
    for config, place in zip(configs, folders, strict=True):
        _check_free(place, config)
    with ProgressLines(is_quiet=not progress) as bar:
        training_data = open_training_data(configs[0], progress=bar)
        check_run(configs[0], training_data, num_workers=workers)
    words = words_line(configs[0], training_data)
    if progress:
        print_notes(configs[0])
        show(words)
    trained = []
    try:
        with ray_session(address) if len(configs) > 1 else contextlib.nullcontext():
            for config, place in zip(configs, folders, strict=True):
                if progress:
                    _announce(config, place)
                with TrainingView(messages, place, is_quiet=not progress) as view:
                    outcome = train_run(
                        config,
                        place,
                        num_workers=workers,
                        gpus_per_worker=gpus_per_worker,
                        address=address,
                        on_report=view.on_report,
                        interruptions_per_hour=interruptions_per_hour,
                    )
                trained.append(TrainedRun(place, outcome, write_report(place), before))
    except KeyboardInterrupt:
        again = f"--run {shlex.quote(address_of(folder))}"
        line = f"interrupted; the same command with {again} continues from its last checkpoint"
        raise KeyboardInterrupt(line) from None
    return trained


def _check_free(folder: Path, config: RunConfig) -> None:
    """Refuse a file, and a folder of a sweep or of another run; a training of the same run continues in its folder."""
    where = address_of(folder)
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{where}: must be a folder; given a file; name another run folder")
    if (folder / SWEEP_FILE).exists():
        raise ArtifactError(f"{where}: holds a sweep; name another run folder")
    if (folder / RUN_FILE).exists() and load_run(folder).key != config.key:
        raise ArtifactError(
            f"{where}: holds a run with another configuration; name another run folder"
        )


def _announce(config: RunConfig, folder: Path) -> None:
    messages.print(f"{describe(config)}, into {address_of(folder)}", soft_wrap=True)
    if ended_outcome(folder, key=config.key):
        messages.print("the run is finished; nothing is trained again")
    elif reports := load_reports(folder):
        messages.print(f"continues after report {reports[-1].index} of {reports[-1].num_reports}")


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
        raise ArtifactError(
            f"{where}: is a sweep; name one of its trials, such as {where}/{TRIALS_FOLDER}/0000"
        )
    if not (folder / RUN_FILE).is_file():
        kinds = (kind for file, kind in _OTHER_KINDS.items() if (folder / file).is_file())
        raise ArtifactError(
            f"{where}: must be a training; given {next(kinds, 'a folder without one')}; {fix}"
        )
    found = read_training(folder)
    if found.outcome is None:
        raise ArtifactError(f"{where}: has not ended; resume its sweep or training first")
    if not (folder / MODEL_FILE).is_file():
        raise ArtifactError(
            f"{where}: ended without a model ({found.outcome.message or found.outcome.status}); {fix}"
        )
    return found


def retrained_config(
    config: RunConfig,
    folder: Path,
    *,
    overrides: Sequence[Override] = (),
    seed: int,
    from_scratch: bool = False,
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
    if "training.epochs" in names and "training.steps" not in names:
        set_dotted(values, "training.steps", None)
    for override in overrides:
        if not from_scratch and override.name.split(".")[0] in _FIXED_PARTS:
            raise ConfigError(
                f"{override.option}: must be as in {address_of(folder)}, whose weights the run starts with; "
                "leave it out or train from scratch"
            )
    document = Document(values).with_overrides(overrides).with_values(seed=seed)
    if not from_scratch:
        document = document.with_values(initial=to_uri(folder))
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


def words_line(config: RunConfig, training_data: TrainingData) -> str:
    """Return what happens to the words of the text, for a run that starts with a trained model; empty otherwise."""
    if config.initial is None:
        return ""
    kept = f"keeps the {len(training_data.vocabulary):,} words of {config.initial}"
    if training_data.corpus is None:
        return f"{kept}; other words of the pairs are read as unknown"
    share = training_data.corpus.unknown_share
    return f"{kept}; {share:.2%} of this text are other words, which are read as unknown"
