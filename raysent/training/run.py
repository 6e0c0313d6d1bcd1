"""One run: everything that decides its outcome, and the names of the files in its folder.

In: the `base` of a search space, or `run.json`. Out: a `RunConfig`, which alone (with the corpus' text) fixes the
trained weights. Nothing here trains; `trainer.fit` does.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

import pydantic

from raysent import config as configuration
from raysent.config import StrictModel
from raysent.data.corpus import CorpusConfig
from raysent.data.pairs import PairsConfig
from raysent.data.vocabulary import VocabularyConfig
from raysent.errors import ArtifactError, ConfigError
from raysent.models import ModelConfig
from raysent.models.codes import AnyCode
from raysent.models.config import check_parts
from raysent.models.encoders import AnyEncoder
from raysent.models.files import read_record
from raysent.models.objectives import OBJECTIVES, AnyObjective, PairBatches
from raysent.models.postprocessing import PostprocessingConfig
from raysent.storage import content_key, open_folder, read_json, write_json
from raysent.storage.layout import RUN_FILE
from raysent.training.validation import ValidationConfig, metrics_of

_PACKAGES = ("raysent", "torch", "numpy", "ray", "optuna")


class TrainingConfig(StrictModel):
    """How the weights are found; an objective has presets of its own for what is not set (`ObjectiveConfig.presets`).

    Attributes:
        batch_size: Sentences, triplets or pairs of one step. With `gather_candidates` over all workers together, else
            of each worker.
        learning_rate: Adam's, constant unless `schedule` says otherwise.
        epochs: Passes over the training split; may be a fraction.
        max_steps: Upper limit on the steps, whatever `epochs` asks.
        clip: Limit on the norm of the gradient; None leaves it alone.
        clip_per: Whether the limit holds for each tensor by itself or for all together.
        precision: `auto` is bfloat16 products where the device has fast ones (CUDA), float32 elsewhere.
        schedule: `linear` falls to zero at the last step.
        warmup_steps: Steps over which the learning rate rises from zero.
        num_reports: Validation and checkpoint come after equal shares of the training, this many times.
        row_exact_adam: Dense Adam on word tables at the price of the rows touched; False is torch's own, as an oracle.
        gather_candidates: Whether the candidates of a step are the sentences of all workers.
    """

    batch_size: int = pydantic.Field(default=400, ge=2)
    learning_rate: float = pydantic.Field(default=5e-4, gt=0)
    epochs: float = pydantic.Field(default=1.0, gt=0)
    max_steps: int | None = pydantic.Field(default=None, ge=1)
    clip: float | None = pydantic.Field(default=5.0, gt=0)
    clip_per: Literal["tensor", "global"] = "tensor"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    schedule: Literal["constant", "linear"] = "constant"
    warmup_steps: int = pydantic.Field(default=0, ge=0)
    num_reports: int = pydantic.Field(default=10, ge=1)
    row_exact_adam: bool = True
    gather_candidates: bool = True


class RunConfig(StrictModel):
    """One training run; the `base` of a search space is exactly this.

    Attributes:
        corpus: Running text, for objectives that read contexts or triplets.
        pairs: Pairs of sentences, for objectives that read these.
        vocabulary: Which words have an id.
        encoder: The first tower.
        second_encoder: The second one, for objectives that train two; None for another of the first's kind.
        initial: Folder of a trained model whose words and encoders the run begins with; `encoder`, `second_encoder` and
            `postprocessing` are its own where they are not given.
        objective: What training minimises.
        postprocessing: What becomes of the vectors after training.
        code: How vectors become bits; None leaves them.
        training: How.
        validation: What it is examined with.
        seed: Of everything random in the run.
    """

    corpus: CorpusConfig = pydantic.Field(default_factory=CorpusConfig)
    pairs: PairsConfig | None = None
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
        """Fill in what the model that the run begins with says of itself."""
        if not isinstance(values, dict) or not isinstance(values.get("initial"), str) or values.get("encoder"):
            return values
        model = read_record(open_folder(values["initial"])).config
        own = {"encoder": model.encoder, "second_encoder": model.second_encoder, "postprocessing": model.postprocessing}
        taken = {name: part.model_dump() for name, part in own.items() if part is not None}
        given = {name: value for name, value in values.items() if value is not None}
        objective = given.get("objective")
        if isinstance(objective, dict) and objective.get("type") in OBJECTIVES:
            known = OBJECTIVES[objective["type"]].Config.values_from_initial(num_towers=len(model.towers))
            given["objective"] = {**known, **objective}
        return {**taken, **given}

    @pydantic.model_validator(mode="after")
    def _parts_fit(self) -> Self:
        objective = self.objective
        check_parts(self.encoder, self.second_encoder, objective, self.postprocessing, self.code)
        if isinstance(objective.batches, PairBatches):
            if self.pairs is None:
                raise ValueError(
                    f"pairs.path must be set for objective {objective.type}, which reads pairs of sentences"
                )
            if objective.batches.needs_scores and self.pairs.score is None:
                raise ValueError(f"pairs.score must name the column of the scores for objective {objective.type}")
        presets = {key: value for key, value in objective.presets.items() if key not in self.training.model_fields_set}
        if presets:
            # The value is frozen only once it is whole.
            self.__dict__["training"] = TrainingConfig(**{**self.training.model_dump(), **presets})
        return self

    @property
    def source(self) -> CorpusConfig | PairsConfig:
        """The text that the objective reads."""
        if isinstance(self.objective.batches, PairBatches):
            assert self.pairs is not None  # checked when the configuration was made
            return self.pairs
        return self.corpus

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the figures that validation gives."""
        return metrics_of(self.objective, self.validation)

    @property
    def model(self) -> ModelConfig:
        """The part that the model's own files keep."""
        return ModelConfig(
            encoder=self.encoder,
            objective=self.objective,
            second_encoder=self.second_encoder,
            postprocessing=self.postprocessing,
            code=self.code,
        )

    @property
    def key(self) -> str:
        """16 hexadecimal digits that name the configuration; where the corpus is cached does not count."""
        values = self.model_dump(mode="json", exclude={"corpus": {"cache_dir"}})
        return content_key(configuration.original_names(self, values))


def save_run(config: RunConfig, folder: Path) -> None:
    """Write `run.json`: the resolved configuration, and the versions of what will run it.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    versions = {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
    write_json(folder / RUN_FILE, {"config": config.model_dump(mode="json"), "versions": versions})


def load_run(folder: Path) -> RunConfig:
    """Read the configuration of a run's folder.

    Raises:
        ArtifactError: If `run.json` is missing, truncated or of another kind.
    """
    path = folder / RUN_FILE
    values = read_json(path)
    if not isinstance(values, dict) or not isinstance(values.get("config"), dict):
        raise ArtifactError(f"{path}: not the record of a run; name a folder that 'raysent train' or a sweep wrote")
    document = configuration.Document(values=values["config"], source=str(path))
    try:
        return configuration.validate(RunConfig, document, context=configuration.UPGRADE)
    except ConfigError as error:
        raise ArtifactError(f"{error}; the file was written by another version") from None


def describe(config: RunConfig) -> str:
    """Return a short text for people: encoder, objective, batch and step size, and what departs from the defaults.

    For example ``gru(hidden_size 256), context_prediction(context_size 2), batch 400, learning rate 0.0005``.
    """
    training = config.training
    steps = f"{training.max_steps} steps" if training.max_steps is not None else f"{training.epochs:g} epochs"
    return (
        f"{_describe_part(config.encoder)}, {_describe_part(config.objective)}, "
        f"batch {training.batch_size}, learning rate {training.learning_rate:g}, {steps}"
    )


def _describe_part(part: Any) -> str:
    """Return ``type(name value, ...)`` with the values that depart from the part's defaults."""
    inside = ", ".join(_departures(part))
    return f"{part.type}({inside})" if inside else str(part.type)


def _departures(part: pydantic.BaseModel) -> Iterator[str]:
    """Yield ``name value`` for the values that are not the defaults."""
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if name == "type" or value == field.get_default(call_default_factory=True, validated_data={}):
            continue
        if isinstance(value, dict):
            yield from (f"{key} {_describe_part(member)}" for key, member in value.items())
        elif isinstance(value, pydantic.BaseModel):
            yield from (f"{name}.{text}" for text in _departures(value))
        else:
            yield f"{name} {value}"
