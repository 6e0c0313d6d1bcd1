"""`RunConfig`: all settings of one run, which together with the text determine the trained weights.

In: the `base` of a search space, or `run.json`. Out: a checked `RunConfig`. `loop.fit` trains it.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

import pydantic

from raysent import __version__
from raysent import config as configuration
from raysent.config import StrictModel
from raysent.data.corpus import CorpusConfig
from raysent.data.pairs import PairsConfig
from raysent.data.unicode_form import OF_EARLIER
from raysent.data.vocabulary import VocabularyConfig
from raysent.errors import ArtifactError, ConfigError
from raysent.models import ModelConfig
from raysent.models.backbone import Backbone
from raysent.models.codes import AnyCode
from raysent.models.config import check_parts
from raysent.models.encoders import AnyEncoder, encoders_in
from raysent.models.files import best_encoder, read_record
from raysent.models.known import PRETRAINED_SCHEMES
from raysent.models.objectives import (
    OBJECTIVES,
    AnyObjective,
    LabelBatches,
    PairBatches,
    TargetBatches,
)
from raysent.models.postprocessing import PostprocessingConfig
from raysent.models.schemes import split_path, with_scheme
from raysent.storage import content_key, is_remote, open_folder, read_json, write_json
from raysent.storage.layout import RUN_FILE
from raysent.training.labels import LabelsConfig
from raysent.training.validation import ValidationConfig, metrics_of

_ADDED = {
    "training": (
        "optimizer",
        "weight_decay",
        "epoch_decay",
        "drop_decay",
        "encode_once",
        "accumulate",
        "steps",
        "ema",
        "compile",
    ),
    "corpus": ("document_field", "language"),
    "vocabulary": ("type",),
    "postprocessing": ("whitening", "unit_length"),
    "validation": ("documents",),
}
_PACKAGES = ("torch", "numpy", "ray", "optuna")


class TrainingConfig(StrictModel):
    """Settings of the training; an objective has presets for what is not set (`ObjectiveConfig.presets`).

    Attributes:
        batch_size: Sentences, triplets or pairs of one step, of all workers with `gather_candidates` and otherwise of
            each worker.
        accumulate: Parts of a step's batch whose states are kept one after another, with the gradient of the whole
            batch. A loss that is the mean of its examples' takes the same time; one that compares sentences encodes
            them twice (GradCache).
        optimizer: `sgd` is plain gradient descent, as InferSent is trained. `adamw` is Adam with `weight_decay`.
        weight_decay: Part of the learning rate by which `adamw` shrinks weights at each step, but not biases, norms and
            other vectors; None is 0.01.
        ema: Decay of a moving average of the weights, such as 0.999, which is validated and saved in their place; word
            vectors are then updated by dense Adam. None for the last weights.
        learning_rate: Learning rate, constant unless the following settings say otherwise.
        epoch_decay: Factor of the learning rate after every epoch.
        drop_decay: Factor of the learning rate after every report whose first metric is not above the best before it,
            below it where lower is better.
        epochs: Passes over the training split; may be a fraction.
        steps: Steps of the run, in place of `epochs`: the same number for any number of rows.
        max_steps: Upper limit on the number of steps.
        clip: Limit on the norm of the gradient; None does not clip.
        clip_per: Whether the limit holds per tensor, for all tensors together (`global`), or for those of each member
            of a composition, as if it were trained alone (`member`).
        precision: `auto` multiplies in bfloat16 where the device does so fast (CUDA), else in float32.
        schedule: `linear` decreases the learning rate to zero at the last step.
        warmup_steps: Steps over which the learning rate increases from zero.
        num_reports: Number of reports, after equal parts of the training; each validates and saves a checkpoint.
        row_exact_adam: Whether Adam updates only the word vectors in use, with the result of dense Adam; False is
            torch's dense Adam, as a reference.
        gather_candidates: Whether the candidates of a step are the sentences of all workers.
        encode_once: Whether a fixed encoder, whose codes are trained, encodes each sentence once for all runs, where a
            run reads all its text; the vectors are kept in the cache. False encodes at every step, and needs no room.
        compile: Whether a transformer's layers are compiled by `torch.compile`, which takes about a minute when the run
            begins and changes the last bits of its weights; other encoders stay as they are.
    """

    batch_size: int = pydantic.Field(default=400, ge=2)
    accumulate: int = pydantic.Field(default=1, ge=1)
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    weight_decay: float | None = pydantic.Field(default=None, ge=0, lt=1)
    ema: float | None = pydantic.Field(default=None, gt=0, lt=1)
    learning_rate: float = pydantic.Field(default=5e-4, gt=0)
    epoch_decay: float = pydantic.Field(default=1.0, gt=0, le=1)
    drop_decay: float = pydantic.Field(default=1.0, gt=0, le=1)
    epochs: float = pydantic.Field(default=1.0, gt=0)
    steps: int | None = pydantic.Field(default=None, ge=1)
    max_steps: int | None = pydantic.Field(default=None, ge=1)
    clip: float | None = pydantic.Field(default=5.0, gt=0)
    clip_per: Literal["tensor", "global", "member"] = "tensor"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    schedule: Literal["constant", "linear"] = "constant"
    warmup_steps: int = pydantic.Field(default=0, ge=0)
    num_reports: int = pydantic.Field(default=10, ge=1)
    row_exact_adam: bool = True
    gather_candidates: bool = True
    encode_once: bool = True
    compile: bool = False

    @pydantic.model_validator(mode="after")
    def _decay_has_its_optimizer(self) -> Self:
        if self.weight_decay is not None and self.optimizer != "adamw":
            raise ValueError(
                f"weight_decay must be left out with optimizer {self.optimizer}; set optimizer: adamw"
            )
        return self

    @property
    def decay(self) -> float:
        """Part of the learning rate by which weights shrink at each step."""
        return (
            0.0
            if self.optimizer != "adamw"
            else 0.01
            if self.weight_decay is None
            else self.weight_decay
        )


class RunConfig(StrictModel):
    """One training run; the `base` of a search space has these keys.

    Attributes:
        corpus: Running text, for objectives that read contexts or triplets.
        pairs: Pairs of sentences, for objectives that read pairs.
        labels: A task, for objectives that read the labels of its training rows.
        vocabulary: Settings of the words that have an id.
        encoder: The first tower; without a `type`, settings that differ from those of `initial`.
        second_encoder: The second tower, for objectives that train two; None for the settings of the first.
        initial: Folder of a trained model whose words and encoders the run starts with, or of a sweep, whose best
            encoder it is; `encoder`, `second_encoder` and `postprocessing` default to those of that model. On the
            command line it takes the encoders of the space away.
        objective: The loss.
        postprocessing: How the towers' blocks become one vector.
        code: How vectors become bits; None for no code.
        training: Settings of the training.
        validation: The validation set.
        seed: Seed of everything random in the run.
    """

    corpus: CorpusConfig = pydantic.Field(default_factory=CorpusConfig)
    pairs: PairsConfig | None = None
    labels: LabelsConfig | None = None
    vocabulary: VocabularyConfig = pydantic.Field(default_factory=VocabularyConfig)
    encoder: AnyEncoder
    second_encoder: AnyEncoder | None = None
    initial: str | None = None
    objective: AnyObjective
    postprocessing: PostprocessingConfig = pydantic.Field(default_factory=PostprocessingConfig)
    code: AnyCode | None = None
    training: TrainingConfig = pydantic.Field(default_factory=TrainingConfig)
    validation: ValidationConfig = pydantic.Field(default_factory=ValidationConfig)
    seed: int = pydantic.Field(default=0, ge=0)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _take_from_initial(cls, values: Any) -> Any:
        """Set what is not given to the settings of the model that the run starts with."""
        if not isinstance(values, dict) or not isinstance(values.get("initial"), str):
            return values
        changed = values.get("encoder") or {}
        if not isinstance(changed, dict):
            return values
        if "type" in changed:
            # A bucket is asked once the run starts, not whenever its settings are read.
            if is_remote(values["initial"]) or not Path(values["initial"]).is_dir():
                return values
            return {**values, "initial": best_encoder(values["initial"])}
        name = with_scheme(values["initial"])
        if name.startswith(PRETRAINED_SCHEMES):  # it is its own start
            path = split_path(name)[1]
            encoder = {"type": "pretrained", "path": path, **changed}
            return {**values, "initial": None, "encoder": encoder}
        initial = best_encoder(values["initial"])
        model = read_record(open_folder(initial)).config
        settings: dict[str, Any] = {
            "encoder": {**model.encoder.model_dump(), **changed},
            "postprocessing": model.postprocessing.model_dump(),
        }
        if model.second_encoder is not None:
            settings["second_encoder"] = model.second_encoder.model_dump()
        for name, setting in values.items():
            if setting is not None and name != "encoder":
                settings[name] = setting
        settings["initial"] = initial
        objective = values.get("objective")
        if isinstance(objective, dict) and objective.get("type") in OBJECTIVES:
            objective_class = OBJECTIVES[objective["type"]].Config
            of_initial = objective_class.values_from_initial(num_towers=len(model.towers))
            settings["objective"] = {**of_initial, **objective}
        return settings

    @pydantic.model_validator(mode="after")
    def _parts_fit(self) -> Self:
        objective = self.objective
        tokenizers = self._tokenizers
        if len(tokenizers) > 1:
            folders = " and ".join(str(backbone.path) for backbone in tokenizers)
            raise ValueError(
                f"encoder.path and second_encoder.path must be one folder; given {folders}"
            )
        check_parts(self.encoder, self.second_encoder, objective, self.postprocessing, self.code)
        if isinstance(objective.batches, PairBatches):
            if self.pairs is None:
                raise ValueError(
                    f"pairs.path must be set for objective {objective.type}, which reads pairs of sentences"
                )
            further = [name for name in ("positives", "negatives") if getattr(self.pairs, name)]
            if further and not objective.batches.reads_further:
                raise ValueError(
                    f"pairs.{further[0]} must be left out with objective {objective.type}, which reads two columns; "
                    "objective contrast reads more"
                )
            if objective.batches.needs_scores and self.pairs.score is None:
                raise ValueError(
                    f"pairs.score must name the column of the scores for objective {objective.type}"
                )
        if isinstance(objective.batches, LabelBatches) and self.labels is None:
            raise ValueError(
                f"labels.task must name a task for objective {objective.type}, which reads its labels"
            )
        if (
            objective.type == "contrast"
            and self.source is self.corpus
            and "corpus" not in self.model_fields_set
        ):
            unread = [name for name in ("pairs", "labels") if getattr(self, name) is not None]
            if unread:
                raise ValueError(
                    f"{unread[0]} must be left out with objective contrast on running text; or set "
                    f"objective.positives: {unread[0]}"
                )
        if isinstance(objective.batches, TargetBatches) and objective.batches.teacher is None:
            raise ValueError(
                f"objective.teacher must be set for objective {objective.type}: the folder of a model or an ensemble"
            )
        if self.training.accumulate > 1 and (objective.trains_code or objective.encoded_at_once):
            reason = "trains a code of vectors without states"
            if objective.encoded_at_once:
                reason = "has micro_batch"
            raise ValueError(
                f"training.accumulate must be 1 with objective {objective.type}, which {reason}; "
                f"given {self.training.accumulate}"
            )
        presets = {
            name: preset
            for name, preset in objective.presets.items()
            if name not in self.training.model_fields_set
        }
        if presets:
            # The model is frozen, but this value is not validated yet.
            self.__dict__["training"] = TrainingConfig(**{**self.training.model_dump(), **presets})
        return self

    @property
    def source(self) -> CorpusConfig | PairsConfig | LabelsConfig:
        """The text that the objective reads."""
        if isinstance(self.objective.batches, LabelBatches):
            assert self.labels is not None  # as below
            return self.labels
        if isinstance(self.objective.batches, PairBatches):
            assert self.pairs is not None  # checked when the configuration was made
            return self.pairs
        return self.corpus

    @property
    def source_name(self) -> str:
        """The part of the run that says what is learned from."""
        if self.source is self.corpus:
            return "corpus"
        if self.source is self.pairs:
            return "pairs"
        return "labels"

    @property
    def max_length(self) -> int:
        """Tokens that training reads of a longer text."""
        if self.source.max_length is not None:
            return self.source.max_length
        limits = [
            encoder.token_limit
            for tower in (self.encoder, self.second_encoder)
            for encoder in encoders_in(tower)
            if encoder.token_limit is not None
        ]
        return min(limits, default=CorpusConfig.model_fields["max_length"].default)

    @property
    def num_encoded(self) -> int:
        """Sentences that are encoded for one example of a step."""
        num_encoded = self.objective.batches.num_encoded
        if self.pairs is not None and self.source is self.pairs:
            num_encoded += len(self.pairs.positives) + len(self.pairs.negatives)
        return num_encoded

    @property
    def tokenizer(self) -> Backbone | None:
        """The pretrained model whose sub-words the run reads; None for the run's vocabulary."""
        return next(iter(self._tokenizers), None)

    @property
    def _tokenizers(self) -> list[Backbone]:
        """The pretrained models whose sub-words the encoders read, each once."""
        by_path = {}
        for tower in (self.encoder, self.second_encoder):
            for encoder in encoders_in(tower):
                if encoder.tokenizer is not None:
                    by_path[encoder.tokenizer.path] = encoder.tokenizer
        return list(by_path.values())

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics that validation reports."""
        return metrics_of(self.objective, self.validation)

    @property
    def model(self) -> ModelConfig:
        """The settings that a saved model contains."""
        return ModelConfig(**{name: getattr(self, name) for name in ModelConfig.model_fields})

    @property
    def key(self) -> str:
        """16 hexadecimal digits that identify the configuration, whatever the folder of the corpus' cache is."""
        settings = self.model_dump(mode="json", exclude={"corpus": {"cache_dir"}})
        # A run keeps the form of its text, whatever the version is that continues it.
        del settings["vocabulary"]["unicode_form"]
        # Settings that were added or renamed since leave the key of a run as it was.
        for part, names in _ADDED.items():
            for name in names:
                if settings[part][name] == type(getattr(self, part)).model_fields[name].default:
                    del settings[part][name]
        for pairs in filter(None, (settings["pairs"], settings["validation"]["similarity"])):
            for name in ("positives", "negatives"):
                if not pairs[name]:
                    del pairs[name]
        for task in filter(None, (settings["labels"], settings["validation"]["downstream"])):
            del task["rows"]
        labels = settings["labels"]
        if labels is None:
            del settings["labels"]
        else:
            labels["max_length"] = labels["max_length"] or self.max_length
            if labels["held_out"] == LabelsConfig.model_fields["held_out"].default:
                del labels["held_out"]
        objective = settings["objective"]
        if objective["type"] == "relatedness":
            objective["num_marks"] = objective.pop("num_levels")
            center = objective.pop("penalty_center")
            objective["anchor"] = "first" if center == "initial" else center
        return content_key(settings)


def software_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a run's numbers may depend on, by name."""
    return {
        "python": platform.python_version(),
        "raysent": __version__,
        **{name: version(name) for name in _PACKAGES},
    }


def save_run(config: RunConfig, folder: Path) -> None:
    """Write `run.json`: the configuration, and the versions of the packages that run it.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    write_json(
        folder / RUN_FILE,
        {"config": config.model_dump(mode="json"), "versions": software_versions()},
    )


def load_run(folder: Path) -> RunConfig:
    """Read the configuration of a run's folder.

    Raises:
        ArtifactError: If `run.json` is missing, truncated or of another kind.
    """
    path = folder / RUN_FILE
    record = read_json(path)
    if not isinstance(record, dict) or not isinstance(record.get("config"), dict):
        raise ArtifactError(
            f"{path}: not the record of a run; name a folder that 'raysent train' or a sweep wrote"
        )
    vocabulary = record["config"].get("vocabulary")
    if isinstance(vocabulary, dict):
        vocabulary.setdefault("unicode_form", OF_EARLIER)
    document = configuration.Document(values=record["config"], source=str(path))
    try:
        return configuration.validate(RunConfig, document)
    except ConfigError as error:
        raise ArtifactError(f"{error}; another version of raysent wrote it; train again") from None


def as_begun(config: RunConfig, folder: Path) -> RunConfig:
    """Return the configuration of a run with the form of Unicode that it began with in its folder, if it did."""
    if not (folder / RUN_FILE).is_file():
        return config
    try:
        before = load_run(folder)
    except ArtifactError:  # it is written again
        return config
    if before.key != config.key:
        return config
    form = {"unicode_form": before.vocabulary.unicode_form}
    return config.model_copy(update={"vocabulary": config.vocabulary.model_copy(update=form)})


def describe(config: RunConfig) -> str:
    """Return one line of text: encoder, objective, batch size, learning rate, and other values than the defaults.

    For example ``gru(hidden_size 256), context_prediction(context_size 2), batch 400, learning rate 0.0005``.
    Of absolute paths it has the last part.
    """
    training = config.training
    limits = [steps for steps in (training.steps, training.max_steps) if steps is not None]
    length = f"{min(limits)} steps" if limits else f"{training.epochs:g} epochs"
    return (
        f"{_describe_part(config.encoder)}, {_describe_part(config.objective)}, "
        f"batch {training.batch_size}, learning rate {training.learning_rate:g}, {length}"
    )


def shown_path(value: Any) -> Any:
    """Return a value as it may be shown to others: of an absolute path the last part alone, anything else unchanged."""
    if isinstance(value, str) and Path(value).is_absolute():
        return Path(value).name
    return value


def _describe_part(part: Any) -> str:
    """Return the type of a part, and in brackets what it has other than by default."""
    differences = ", ".join(_differences(part))
    return f"{part.type}({differences})" if differences else str(part.type)


def _differences(part: pydantic.BaseModel) -> Iterator[str]:
    """Yield the settings of a part that are not the defaults, such as `hidden_size 256`."""
    for name, field in type(part).model_fields.items():
        if name == "type" or not field.repr:
            continue
        setting = getattr(part, name)
        if setting == field.get_default(call_default_factory=True, validated_data={}):
            continue
        if isinstance(setting, dict):
            for member_name, member in setting.items():
                yield f"{member_name} {_describe_part(member)}"
        elif isinstance(setting, pydantic.BaseModel):
            for text in _differences(setting):
                yield f"{name}.{text}"
        else:
            yield f"{name} {shown_path(setting)}"
