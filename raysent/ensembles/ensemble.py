"""A saved ensemble: its members, loaded, and the combination that was fitted on each task.

`encode` returns the members' unit vectors one after another; those of the sweep's best encoder, `RUN/encoder`, where a
member of its answer has none, with a line that says so. `predict` combines the members' own probes of a task.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from raysent.ensembles.pools import read_combination
from raysent.ensembles.predictor import MakePredictors, Predictor
from raysent.ensembles.result import EnsembleResult, read_result
from raysent.ensembles.task_ensemble import calibration_of
from raysent.ensembles.task_predictor import TaskPredictor, recorded
from raysent.errors import ArtifactError, ConfigError, listed
from raysent.evaluation.members import ensemble_members, load_saved
from raysent.evaluation.records import read_record, record_folder
from raysent.models import load as load_model
from raysent.models.schemes import encoder_beside, is_scheme_name
from raysent.models.sentence_encoder import Float32, JoinedEncoders, SentenceEncoder
from raysent.progress import messages
from raysent.storage import address_of, open_folder, safe_name
from raysent.storage.layout import BEST_FOLDER, ENSEMBLE_FILE, EVALUATION_FOLDER

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LoadedMember:
    """One member of a saved ensemble.

    Attributes:
        name: Its name, and that of its folder of records.
        encoder: The model.
    """

    name: str
    encoder: SentenceEncoder


class AnswerEncoder(SentenceEncoder):
    """What a sweep chose: it encodes by its members' vectors, or else by the sweep's best encoder, `RUN/encoder`.

    Attributes:
        folder: Its folder.
    """

    adds_prompts = False  # each member by itself

    def __init__(self, folder: Path) -> None:
        """Name the folder, beside which the best encoder may be."""
        self.folder = folder

    @property
    @abstractmethod
    def own_encoders(self) -> Sequence[SentenceEncoder]:
        """The members."""

    @property
    @abstractmethod
    def lacks_vectors(self) -> str | None:
        """Why it has no vectors of its own, in a line; None where it has."""

    @property
    def cannot_encode(self) -> str | None:
        """Why it has no vectors: it has none of its own, and no best encoder is beside it."""
        if self.vectors_of is not None:
            return None
        return self.lacks_vectors

    @cached_property
    def vectors_of(self) -> str | None:
        """The best encoder's folder, where this answer has no vectors of its own."""
        if self.lacks_vectors is None:
            return None
        folder = encoder_beside(self.folder)
        if folder is None:
            return None
        return address_of(folder)

    @cached_property
    def _vectors(self) -> JoinedEncoders:
        if self.vectors_of is None:
            return JoinedEncoders(self.own_encoders)
        where = address_of(self.folder)
        messages.print(
            f"{where}: has no vectors of its own; {self.vectors_of} encodes", soft_wrap=True
        )
        # As the encoder itself: its vectors are not scaled.
        return JoinedEncoders([load_model(self.vectors_of)], normalizes=False)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence, the sum over members; raises as `encode_texts`."""
        self._check_vectors()
        return self._vectors.get_sentence_embedding_dimension()

    @property
    def max_seq_length(self) -> int | None:
        """Tokens that some member reads of a longer sentence; None where one reads all."""
        return JoinedEncoders(self.own_encoders).max_seq_length

    @property
    def similarity_measure(self) -> str:
        """`cosine`; of a best encoder with a code `hamming`."""
        if self.vectors_of is None:
            return "cosine"
        return self._vectors.encoders[0].similarity_measure

    @property
    def cut_sizes(self) -> Sequence[int]:
        """Those of the best encoder where it encodes, else all numbers alone."""
        if self.vectors_of is None:
            return super().cut_sizes
        return self._vectors.encoders[0].cut_sizes

    def num_tokens(self, sentences: list[str]) -> npt.NDArray[np.int64]:
        """Return the tokens of each sentence for the member that reads most, int64 [sentences]."""
        return self._vectors.num_tokens(sentences)

    def encode_texts(
        self, sentences: list[str], *, batch_size: int = 512, **options: Any
    ) -> Float32:
        """Return the members' unit vectors one after another, float32 [sentences, dim]; see `SentenceEncoder`.

        Where a member has none, the vectors of the sweep's best encoder.

        Raises:
            ConfigError: If a member has no vectors, and there is no best encoder.
        """
        self._check_vectors()
        return self._vectors.encode_texts(sentences, batch_size=batch_size, **options)

    def _with_prompt(
        self, names: tuple[str, ...], args: tuple[Any, ...], options: dict[str, Any]
    ) -> dict[str, Any]:
        self._check_vectors()
        return self._vectors._with_prompt(names, args, options)

    def _place(self, device: str | torch.device | None, *, is_loaded: bool = False) -> None:
        self._check_vectors()
        self._vectors._place(device, is_loaded=is_loaded or self.source is not None)

    def _check_vectors(self) -> None:
        if self.cannot_encode:
            raise ConfigError(self.cannot_encode)


class Ensemble(AnswerEncoder):
    """Several encoders as one.

    Attributes:
        folder: The folder of `ensemble.json` and of the members' records.
        result: What the ensemble is and what it scores.
        members: The members, in the order of `result.members`.
    """

    def __init__(
        self, members: Sequence[LoadedMember], *, folder: Path, result: EnsembleResult
    ) -> None:
        """Join loaded members; `load_ensemble` does so from a folder."""
        super().__init__(folder)
        self.result = result
        self.members = tuple(members)
        self.learned_tasks = JoinedEncoders(self.own_encoders).learned_tasks
        self.predictors: Predictor = Predictor(self, self._makers)

    def __repr__(self) -> str:
        """Return the folder, the members and the tasks."""
        members = ", ".join(self.result.members)
        tasks = ", ".join(self.tasks)
        return f"Ensemble({address_of(self.folder)!r}, members: {members}; tasks: {tasks})"

    @property
    def own_encoders(self) -> Sequence[SentenceEncoder]:
        """The members."""
        return [member.encoder for member in self.members]

    @property
    def lacks_vectors(self) -> str | None:
        """Why it has no vectors of its own: a member has none."""
        for member in self.members:
            if member.encoder.cannot_encode:
                return (
                    f"{address_of(self.folder)}: cannot encode, as its member {member.name} has no vectors of a fixed "
                    f"size; it predicts {listed(self.tasks)}; to encode, name another member"
                )
        return None

    def _makers(self) -> MakePredictors:
        return {task: partial(self._predictor, task) for task in self.result.tasks}

    def _predictor(self, task: str) -> TaskPredictor:
        of_task = self.result.tasks[task]
        records = []
        for member in self.members:
            member_folder = self.folder / EVALUATION_FOLDER / safe_name(member.name)
            folder = record_folder(member_folder, self.result.protocol)
            record = read_record(folder, task, key=of_task.keys[member.name])
            if record is None:
                raise ArtifactError(
                    f"{address_of(folder / task)}.json: missing or changed since the ensemble was made; make it again"
                )
            records.append(record)
        source = f"{address_of(self.folder / ENSEMBLE_FILE)}: {task}"
        combination = read_combination(of_task.combination, source=source)
        # Files of earlier versions have no calibration.
        calibration = of_task.calibration or calibration_of(records, method=self.result.method)
        return TaskPredictor(
            tuple(member.encoder for member in self.members),
            tuple(records),
            combination,
            calibration,
        )


def load_ensemble(folder: Path) -> Ensemble:
    """Load a saved ensemble and its members.

    Args:
        folder: The folder of `ensemble.json`.

    Raises:
        ArtifactError: If a file is missing or of another kind, or a member changed since the ensemble was made.
    """
    ensemble = read_result(folder)
    members = []
    for name, path in zip(ensemble.members, ensemble_members(folder), strict=True):
        encoder = load_saved(path, ensemble.keys[name])
        if encoder is None:
            raise ArtifactError(
                f"{address_of(folder / ENSEMBLE_FILE)}: member '{name}' changed since the ensemble was made; "
                "make it again"
            )
        members.append(LoadedMember(name, encoder))
    return Ensemble(members, folder=folder, result=ensemble)


class _TaskModels(AnswerEncoder):
    """Several models, each of which predicts a task of its own."""

    def __init__(self, folder: Path, models: Mapping[str, SentenceEncoder]) -> None:
        """Join the models of tasks; `load_predicting` does so from a folder."""
        super().__init__(folder)
        self._models = dict(models)
        self.predictors: Predictor = Predictor(self, self._makers)

    def _makers(self) -> MakePredictors:
        makers = {}
        for task, model in self._models.items():
            makers[task] = partial(predictor_of(model).__getitem__, task)
        return makers

    @property
    def own_encoders(self) -> Sequence[SentenceEncoder]:
        """The models of the tasks."""
        return list(self._models.values())

    @property
    def lacks_vectors(self) -> str:
        """Why it has no vectors of its own."""
        return f"{address_of(self.folder)}: cannot encode, as it has a model for each of {listed(self._models)}"


def predictor_of(encoder: SentenceEncoder) -> Predictor:
    """Return what predicts tasks with a model: its own, as of an ensemble, else by its records, which it then keeps."""
    if not isinstance(encoder.predictors, Predictor):
        encoder.predictors = Predictor(encoder, partial(recorded, encoder))
    return encoder.predictors


def load_predicting(name: str | Path) -> SentenceEncoder:
    """Return a model that predicts, by name: of a sweep's folder the one to take, of several tasks all of them.

    Raises:
        RaysentError: As `raysent.models.load`.
    """
    if isinstance(name, str) and is_scheme_name(name):
        return load_model(name)
    folder = open_folder(name)
    answer_folder = folder
    if (folder / BEST_FOLDER).is_dir():
        answer_folder = folder / BEST_FOLDER
    if (answer_folder / ENSEMBLE_FILE).is_file():
        return load_model(answer_folder)
    task_folders = [path.parent for path in sorted(answer_folder.glob(f"*/{ENSEMBLE_FILE}"))]
    if not task_folders:
        # There is no answer, or one that was not finished.
        return load_model(folder)
    of_tasks = {task_folder.name: load_model(task_folder) for task_folder in task_folders}
    models = _TaskModels(answer_folder, of_tasks)
    models.source = address_of(answer_folder)
    return models
