"""`SentenceEncoder`: text -> vectors, the interface of every model, with the names of sentence-transformers."""

from __future__ import annotations

import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeGuard, get_args, overload

import numpy as np
import numpy.typing as npt

from raysent.data.labels import LabelValue
from raysent.errors import ConfigError, DataError, RaysentError
from raysent.parallel import lock_for_forks, map_in_processes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Float32 = npt.NDArray[np.float32]
Precision = Literal["float32", "ubinary", "binary"]
# One sentence or several: also arrays, series and columns of strings.
Texts: TypeAlias = str | Sequence[str] | npt.NDArray[Any] | Any

# Prompts of documents, the first of which that a model has is taken.
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
# Sentences between two updates of the progress bar.
_SHOWN_TEXTS = 8192
# Held while a model moves to its device.
_PLACING = lock_for_forks()
# Of the columns of a table that a message shows.
_SHOWN_COLUMNS = 5
_SHOWN_CHARACTERS = 40


class PredictsTasks(Protocol):
    """Predicts tasks by an encoder, as `raysent.ensembles.predictor.Predictor` does; iterated, it gives their names."""

    def __iter__(self) -> Iterator[str]: ...

    def predict(
        self, arguments: Sequence[Texts], *, task: str | None
    ) -> list[LabelValue] | list[float]:
        """Return the answers of rows; see `SentenceEncoder.predict`."""

    def predict_log_probabilities(
        self, arguments: Sequence[Texts], *, task: str | None
    ) -> npt.NDArray[np.float64]:
        """Return log-probabilities, float64 [rows, classes]; see `SentenceEncoder.predict`."""

    def label_names(self, task: str | None = None) -> tuple[str, ...]:
        """Return the names of a task's classes [classes]."""


class SentenceEncoder(ABC):
    """Encodes sentences as float32 vectors, with the methods of `sentence_transformers.SentenceTransformer`.

    A class of its own defines `encode_texts` and `get_sentence_embedding_dimension`; the rest follows.

    Attributes:
        source: The name that `load` returned this encoder for; None for one that was not loaded.
        learned_tasks: Tasks whose labels it was trained on, with the hashes of their rows.
        prompts: Texts by name that `encode` puts before each sentence, as a pretrained model's folder names them.
        default_prompt_name: The name of the one that is put where none is named; None for none.
        is_placed: Whether its device is chosen; the first `encode` of a loaded model moves it to a GPU, if any.
        adds_prompts: Whether `encode` puts them before the text; false where `encode_texts` takes a `prompt`.
        fuses_words: Whether it ranks passages by words too, with `word_weight`.
        word_weight: The weight of words where it does; None for reciprocal ranks.
        predictors: What predicts tasks by it, which it does not know itself: `raysent.load` sets it, and a saved
            ensemble has its own. None where nothing was loaded.
    """

    adds_prompts = True
    is_placed = False

    source: str | None = None
    learned_tasks: Mapping[str, str] = MappingProxyType({})
    prompts: Mapping[str, str] = MappingProxyType({})
    default_prompt_name: str | None = None
    fuses_words: bool = False
    word_weight: float | None = None
    predictors: PredictsTasks | None = None

    @abstractmethod
    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Return one vector for each sentence, float32 [sentences, dim].

        Args:
            sentences: Text; a sentence may be empty.
            batch_size: Sentences computed at once; changes at most the last bits of the vectors.
        """

    @abstractmethod
    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence."""

    @overload
    def encode(
        self,
        sentences: Texts,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 512,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: Precision | None = "float32",
        convert_to_numpy: Literal[True] = True,
        convert_to_tensor: Literal[False] = False,
        device: str | torch.device | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **options: Any,
    ) -> npt.NDArray[Any]: ...

    @overload
    def encode(
        self, sentences: Texts, *arguments: Any, **options: Any
    ) -> npt.NDArray[Any] | Tensor | list[Tensor]: ...

    def encode(  # noqa: PLR0913, PLR0917 - the order of sentence-transformers
        self,
        sentences: Texts,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 512,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: Precision | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **options: Any,
    ) -> npt.NDArray[Any] | Tensor | list[Tensor]:
        """Encode text; a vector depends on its sentence only.

        Any number of threads, asyncio tasks and forked processes may encode with one model; a forked process computes
        with one thread. Any string has a vector, also one of characters that no text should have: see
        `raysent.data.vocabulary.tokens`. A call that raises, or is interrupted, changes nothing for others.

        Arguments, their order and the results are those of `SentenceTransformer.encode`.

        Args:
            sentences: One string, or a list, tuple, array, series or any other sequence of strings; a sentence may be
                empty.
            prompt_name: Key of `prompts`; None is `default_prompt_name`.
            prompt: Text to put before each sentence; it overrides `prompt_name`.
            batch_size: Sentences computed at once; changes at most the last bits of the vectors.
            show_progress_bar: Whether to show progress.
            output_value: Must be `sentence_embedding`.
            precision: `float32` or None; or one bit for each number, 1 where it is positive, eight to a byte as
                `numpy.packbits` packs them: `ubinary` as uint8, `binary` as int8, which is 128 less.
            convert_to_numpy: Whether to return an array; otherwise a list of tensors.
            convert_to_tensor: Whether to return a tensor; overrides `convert_to_numpy`.
            device: Device to move the model to first; None leaves it there, after the first call.
            normalize_embeddings: Whether each vector gets unit length, after truncation.
            truncate_dim: Numbers to keep of each vector; None keeps all.
            options: Further arguments of the class's `encode_texts`.

        Returns:
            float32 [sentences, dim], or bytes [sentences, ceil(dim / 8)]; without the first axis for a single string.

        Raises:
            RaysentError: If `sentences` is not a string or a sequence of strings.
            ConfigError: If another argument has a value that is not supported.
            DataError: If the model gives a value that is not finite.
        """
        if output_value != "sentence_embedding":
            raise ConfigError(f"output_value: must be 'sentence_embedding'; given {output_value!r}")
        if precision not in (None, *get_args(Precision)):
            raise ConfigError(f"precision: must be float32, ubinary or binary; given {precision!r}")
        check_size("batch_size", batch_size)
        if truncate_dim is not None:
            check_size("truncate_dim", truncate_dim)
        texts = as_sentences(sentences)
        start = self._prompt(prompt_name, prompt)
        if self.adds_prompts:
            texts = [start + text for text in texts]
        elif start or prompt is not None:
            options = {**options, "prompt": start}
        self._place(device)
        vectors = self._encode_with_progress(
            texts, show=bool(show_progress_bar), batch_size=batch_size, **options
        )
        self._check_finite(vectors, texts)
        if truncate_dim is not None:
            vectors = vectors[:, :truncate_dim]
        if normalize_embeddings:
            vectors = normalize_rows(vectors)
        rows: npt.NDArray[Any] = vectors
        if precision in ("ubinary", "binary"):
            rows = _quantize(vectors, is_signed=precision == "binary")
        is_single = isinstance(sentences, str)
        if not (convert_to_numpy or convert_to_tensor):
            tensors = list(_tensor_of(rows))
            return tensors[0] if is_single else tensors
        if is_single:
            rows = rows[0]
        if convert_to_tensor:
            return _tensor_of(rows)
        return rows

    def encode_query(self, sentences: Texts, *args: Any, **options: Any) -> Any:
        """Encode queries: `encode`, with the prompt `query` where the model has one."""
        return self.encode(sentences, *args, **self._with_prompt(("query",), args, options))

    def encode_document(self, sentences: Texts, *args: Any, **options: Any) -> Any:
        """Encode documents: `encode`, with the prompt `document`, `passage` or `corpus` where the model has one."""
        return self.encode(sentences, *args, **self._with_prompt(DOCUMENT_PROMPTS, args, options))

    @property
    def tasks(self) -> list[str]:
        """The tasks that it can predict: those it was evaluated on; of an ensemble those it was made on."""
        return list(self.predictors or ())

    def predict(self, *texts: Texts, task: str | None = None) -> list[LabelValue] | list[float]:
        """Return each row's most probable class; of rated pairs its score, on the scale of the task.

        A class is what the table has: a whole number where its labels are whole numbers. Of a model of an earlier
        version it is always text.

        Args:
            texts: The texts [rows]; two such sequences for a task of pairs. One string is one row. The task's name may
                come before them.
            task: One of `tasks`; None where there is one.

        Raises:
            ConfigError: If the model does not predict the task, or the task needs another number of columns.
            RaysentError: If a column is no string and no sequence of strings.
            ArtifactError: If a record that the model predicts with is missing or was replaced since.
        """
        return self._predicting().predict(texts, task=task)

    def predict_proba(self, *texts: Texts, task: str | None = None) -> npt.NDArray[np.float64]:
        """Return calibrated probabilities, float64 [rows, classes], in the order of `label_names`; see `predict`."""
        probabilities: npt.NDArray[np.float64] = np.exp(
            self.predict_log_probabilities(*texts, task=task)
        )
        return probabilities

    def predict_log_probabilities(
        self, *texts: Texts, task: str | None = None
    ) -> npt.NDArray[np.float64]:
        """Return log-probabilities, float64 [rows, classes]; see `predict_proba`."""
        return self._predicting().predict_log_probabilities(texts, task=task)

    def label_names(self, task: str | None = None) -> tuple[str, ...]:
        """Return the names of a task's classes [classes]; of rated pairs those of the rating levels.

        Raises:
            ConfigError: If the model does not predict the task.
        """
        return self._predicting().label_names(task)

    def _predicting(self) -> PredictsTasks:
        if self.predictors is None:
            raise no_task(self.source or type(self).__name__)
        return self.predictors

    def _place(self, device: str | torch.device | None, *, is_loaded: bool = False) -> None:
        """Move the model to a device, or once to the default one if it can use a GPU and it or its whole was loaded."""
        if device is None and (self.is_placed or not (is_loaded or self.source)):
            return
        can_move = type(self).use_device is not SentenceEncoder.use_device
        with _PLACING:
            if device is not None:
                self.use_device(_device(device, can_move=can_move))
            elif not self.is_placed and can_move:
                from raysent.kernels.devices import default_device  # noqa: PLC0415 - torch comes with it

                self.use_device(default_device())
            self.is_placed = True

    def use_device(self, device: torch.device) -> None:
        """Move the model.

        Raises:
            ConfigError: If the model runs on a CPU only.
        """
        if device.type != "cpu":
            raise ConfigError(f"device: must be cpu for {type(self).__name__}; given {device}")

    def get_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence; the name of this method since sentence-transformers 5.4."""
        return self.get_sentence_embedding_dimension()

    @property
    def cannot_encode(self) -> str | None:
        """Why it has no vectors, in one line, as a lexical model that only answers tasks; None for one that encodes."""
        return None

    @property
    def vectors_of(self) -> str | None:
        """The folder of another model whose vectors `encode` returns, as this one has none; None for its own."""
        return None

    @property
    def cut_sizes(self) -> Sequence[int]:
        """How many first numbers of a vector are a vector too, rising to all: whitened, or trained to be cut."""
        return (self.get_sentence_embedding_dimension(),)

    @property
    def max_seq_length(self) -> int | None:
        """Tokens read of a longer sentence; None where all are read."""
        return None

    def num_tokens(self, sentences: list[str]) -> npt.NDArray[np.int64]:
        """Return how many tokens `encode` reads of each sentence, by the model's own tokenizer, int64 [sentences].

        A prompt that it puts before each sentence counts, and so do special tokens. A class without a tokenizer of its
        own reads what stands between blanks, and one token of an empty sentence.
        """
        start = self._prompt(None, None)
        return np.array([max(1, len((start + text).split())) for text in sentences], np.int64)

    @property
    def similarity_measure(self) -> str:
        """The measure of `similarity`: `cosine`, or `hamming` for codes."""
        return "cosine"

    @property
    def similarity_fn_name(self) -> str:
        """The measure by sentence-transformers' names; on bits, `manhattan` is the Hamming distance."""
        return "manhattan" if self.similarity_measure == "hamming" else "cosine"

    @property
    def model_card_data(self) -> EvaluationMetrics:
        """Where the evaluators of sentence-transformers store what they measured."""
        metrics: EvaluationMetrics = self.__dict__.setdefault("_metrics", EvaluationMetrics())
        return metrics

    @overload
    def similarity(self, a: Tensor, b: Tensor | npt.ArrayLike) -> Tensor: ...

    @overload
    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Float32: ...

    def similarity(self, a: Tensor | npt.ArrayLike, b: Tensor | npt.ArrayLike) -> Float32 | Tensor:
        """Compare every vector of `a` [rows, dim] with every one of `b` [columns, dim].

        Returns:
            float32 [rows, columns]: the cosine, 0 for a vector of zeros; for codes, minus the number of differing
            bits. A tensor if `a` is a tensor.
        """
        rows = self._comparable(a)
        columns = self._comparable(b)
        return self._measured(rows @ columns.T, like=a, dim=rows.shape[1])

    @overload
    def similarity_pairwise(self, a: Tensor, b: Tensor | npt.ArrayLike) -> Tensor: ...

    @overload
    def similarity_pairwise(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Float32: ...

    def similarity_pairwise(
        self, a: Tensor | npt.ArrayLike, b: Tensor | npt.ArrayLike
    ) -> Float32 | Tensor:
        """Compare every vector of `a` [rows, dim] with the same row of `b` [rows, dim]; see `similarity`.

        Returns:
            float32 [rows]; a tensor if `a` is a tensor.
        """
        first = self._comparable(a)
        second = self._comparable(b)
        return self._measured((first * second).sum(axis=1), like=a, dim=first.shape[1])

    def _comparable(self, vectors: Tensor | npt.ArrayLike) -> Float32:
        """Return vectors of unit length, or bits as -1 and 1, float32 [rows, dim]."""
        if _is_tensor(vectors):
            vectors = vectors.detach().cpu().numpy()
        rows = np.atleast_2d(np.asarray(vectors).astype(np.float32, copy=False))
        if self.similarity_measure == "cosine":
            return normalize_rows(rows)
        return 2 * rows - 1

    def _measured(
        self, products: Float32, *, like: Tensor | npt.ArrayLike, dim: int
    ) -> Float32 | Tensor:
        """Return cosines, or minus the number of differing bits of `dim`, as a tensor if `like` is one."""
        similarities = products
        if self.similarity_measure != "cosine":
            # Of bits as -1 and 1 the product is the number of equal ones less that of different ones.
            similarities = (products - dim) / np.float32(2)
        return _tensor_of(similarities) if _is_tensor(like) else similarities

    def _encode_with_progress(
        self, texts: list[str], *, show: bool, batch_size: int, **options: Any
    ) -> Float32:
        if not show:
            return self.encode_texts(texts, batch_size=batch_size, **options)
        from rich.console import Console  # noqa: PLC0415 - only a call that shows its progress needs it
        from rich.progress import track  # noqa: PLC0415 - as above

        # No text makes a block too, whose vectors have the model's size.
        starts = range(0, max(1, len(texts)), _SHOWN_TEXTS)
        blocks = [texts[start : start + _SHOWN_TEXTS] for start in starts]
        tracked = track(blocks, "Encoding", console=Console(stderr=True))
        return np.concatenate(
            [self.encode_texts(block, batch_size=batch_size, **options) for block in tracked]
        )

    def _check_finite(self, vectors: Float32, texts: list[str]) -> None:
        """Refuse vectors of NaN or infinity, which no file, index or client may get."""
        is_finite = np.isfinite(vectors)
        if not is_finite.all():
            text = texts[int((~is_finite.all(axis=1)).argmax())]
            raise DataError(
                f"{self.source or type(self).__name__}: {text[:40]!r}: the vector must be finite; given NaN or "
                "infinity; restore the model or train it again"
            )

    def prompt_for(self, names: Sequence[str]) -> str | list[str]:
        """Return the `prompt_name` of `encode` for the first of several prompts that the model has.

        Args:
            names: Names of prompts, the best one first, such as those of ``encode_document``.

        Returns:
            A name; an empty list where the model has none of them; all names where each of several encoders looks for
            its own.
        """
        options = self._with_prompt(tuple(names), (), {})
        name: str | None = options.get("prompt_name")
        if name:
            return name
        return list(options.get("reads_as", ()))

    def prompt_text(self, name: str | None = None) -> str:
        """Return what a prompt of the model puts before a text; by default that which stands before every text.

        Raises:
            ConfigError: If the model has no prompt of this name.
        """
        return self._prompt(name, None)

    def _prompt(self, name: str | None, prompt: str | None) -> str:
        """Return what stands before each sentence: `prompt`, or that of a name, or of the default name."""
        if prompt is not None:
            return prompt
        if name is None:
            name = self.default_prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            names = ", ".join(self.prompts) or "none"
            raise ConfigError(
                f"prompt_name: must be one of the model's prompts ({names}); given {name!r}"
            )
        return self.prompts[name]

    def _with_prompt(
        self, names: tuple[str, ...], args: tuple[Any, ...], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the options with the first of the prompts that the model has, unless one is given."""
        prompt_name = next((name for name in names if name in self.prompts), None)
        if prompt_name is None or args or options.get("prompt_name") or options.get("prompt"):
            return options
        return {**options, "prompt_name": prompt_name}


class JoinedEncoders(SentenceEncoder):
    """Several encoders; their vectors stand one after another.

    Attributes:
        encoders: The encoders, at least one.
    """

    adds_prompts = False  # each encoder by itself

    def __init__(self, encoders: Iterable[SentenceEncoder], *, normalizes: bool = True) -> None:
        """Hold encoders.

        Args:
            encoders: The encoders.
            normalizes: Whether each one's vector gets unit length; otherwise it is as its `encode` returns it.
        """
        self.encoders = tuple(encoders)
        self._normalizes = normalizes
        learned_tasks: dict[str, str] = {}
        for encoder in self.encoders:
            learned_tasks.update(encoder.learned_tasks)
        self.learned_tasks = learned_tasks

    def get_sentence_embedding_dimension(self) -> int:
        """Return the sum of the encoders' sizes."""
        return sum(encoder.get_sentence_embedding_dimension() for encoder in self.encoders)

    @property
    def max_seq_length(self) -> int | None:
        """Tokens that some encoder reads of a longer sentence."""
        lengths = []
        for encoder in self.encoders:
            if encoder.max_seq_length is None:
                return None
            lengths.append(encoder.max_seq_length)
        return max(lengths)

    def num_tokens(self, sentences: list[str]) -> npt.NDArray[np.int64]:
        """Return the tokens of each sentence for the encoder that reads most, int64 [sentences]."""
        counts = [encoder.num_tokens(sentences) for encoder in self.encoders]
        most: npt.NDArray[np.int64] = np.max(counts, axis=0)
        return most

    def encode_texts(
        self,
        sentences: list[str],
        *,
        batch_size: int = 512,
        reads_as: tuple[str, ...] = (),
        prompt: str | None = None,
    ) -> Float32:
        """Return the vectors, float32 [sentences, dim]; see `SentenceEncoder`.

        Args:
            sentences: Text.
            batch_size: Sentences computed at once.
            reads_as: Names of prompts, of which each encoder takes the first that it has.
            prompt: Text to put before each sentence, in place of the encoders' own.
        """
        options = {
            "batch_size": batch_size,
            "normalize_embeddings": self._normalizes,
            "prompt": prompt,
        }
        blocks = [
            encoder.encode(sentences, **encoder._with_prompt(reads_as, (), options))
            for encoder in self.encoders
        ]
        return np.concatenate(blocks, axis=1)

    def _with_prompt(
        self, names: tuple[str, ...], args: tuple[Any, ...], options: dict[str, Any]
    ) -> dict[str, Any]:
        if args or options.get("prompt_name") or options.get("prompt"):
            return options
        if not any(encoder._with_prompt(names, (), {}) for encoder in self.encoders):
            return options
        return {**options, "reads_as": names}

    def _place(self, device: str | torch.device | None, *, is_loaded: bool = False) -> None:
        for encoder in self.encoders:
            encoder._place(device, is_loaded=is_loaded or self.source is not None)


class WithoutVectors(SentenceEncoder):
    """A model that predicts tasks and has no vectors; `cannot_encode` says why."""

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Refuse to encode; raises a `ConfigError`."""
        del sentences, batch_size
        raise ConfigError(self.cannot_encode)

    def get_sentence_embedding_dimension(self) -> int:
        """Refuse, as `encode_texts`."""
        raise ConfigError(self.cannot_encode)


class EvaluationMetrics:
    """What evaluators measured, by the evaluator's name.

    Attributes:
        metrics: Evaluator -> measure -> value.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, dict[str, Any]] = {}

    def set_evaluation_metrics(
        self, evaluator: Any, metrics: dict[str, Any], epoch: int = 0, step: int = 0
    ) -> None:
        """Store measures; evaluators of sentence-transformers call this."""
        del epoch, step
        name = getattr(evaluator, "name", "") or type(evaluator).__name__
        self.metrics.setdefault(str(name), {}).update(metrics)


def no_task(name: str, *, is_made_by_name: bool = False) -> ConfigError:
    """Return the error of a model that predicts no task.

    Args:
        name: The model's name.
        is_made_by_name: Whether its name is that of a scheme: it has no folder that could hold what predicts.
    """
    fix = f"'raysent evaluate {shlex.quote(name)} --task FILE' fits what does"
    if is_made_by_name:
        fix = (
            f"'raysent ensemble {shlex.quote(name)} --task FILE -o FOLDER' makes a model that does"
        )
    return ConfigError(f"{name}: predicts no task; {fix}")


def _quantize(vectors: Float32, *, is_signed: bool) -> npt.NDArray[Any]:
    """Return the signs of vectors [rows, dim] as bytes [rows, ceil(dim / 8)]."""
    packed = np.packbits(vectors > 0, axis=1)
    if not is_signed:
        return packed
    # In 16 bits, as 0 less 128 is no number of uint8.
    return (packed.astype(np.int16) - 128).astype(np.int8)


@dataclass(frozen=True)
class _EncodeBlock:
    """Encodes a block of sentences in another process."""

    encoder: SentenceEncoder
    options: dict[str, Any]

    def __call__(self, sentences: list[str]) -> Float32:
        vectors: Float32 = self.encoder.encode(sentences, **self.options)
        return vectors

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set up the process: one thread, and the same precision of products as in this one."""
        import torch  # noqa: PLC0415 - late, as predicting by words alone does without

        from raysent.kernels.devices import set_matmul_precision  # noqa: PLC0415 - as above

        self.__dict__.update(state)
        torch.set_num_threads(1)
        self.encoder.is_placed = True  # on the CPU, beside the others
        set_matmul_precision()


def encode_blocks(
    encoder: SentenceEncoder, blocks: Iterable[list[str]], *, num_processes: int = 1, **options: Any
) -> Generator[Float32]:
    """Yield the vectors of blocks of sentences in order; at most a few blocks are encoded ahead.

    Args:
        encoder: Any encoder; every process gets a copy, on the CPU.
        blocks: Sentences; blocks of a few thousand are encoded fastest.
        num_processes: Processes to use, one thread each; 1 encodes in this process, with torch's threads.
        options: Keyword arguments of `encode`.
    """
    if num_processes > 1:
        options["device"] = "cpu"
    return map_in_processes(_EncodeBlock(encoder, options), blocks, num_processes=num_processes)


def as_sentences(sentences: object, *, name: str = "sentences") -> list[str]:
    """Return a string, or a sequence of strings, as a list.

    Args:
        sentences: One text, which is a list of one, or a list, tuple, array, series or any other sequence of texts.
        name: What they are, for messages.

    Raises:
        RaysentError: If it is neither; with the index of the first item that is no string. A table has columns, of
            which one must be given, and a set has no order that vectors could be in.
    """
    if isinstance(sentences, str):
        return [sentences]
    columns = column_names(sentences)
    if columns is not None:
        raise RaysentError(
            f"{name}: must be one column of texts; given a {type(sentences).__name__} with the columns "
            f"{columns or 'none'}; give one of them"
        )
    if isinstance(sentences, (set, frozenset)):
        raise RaysentError(
            f"{name}: must be in an order, as a list is; given a {type(sentences).__name__}; give sorted(…)"
        )
    if isinstance(sentences, (bytes, Mapping)) or not (
        hasattr(sentences, "__len__") and isinstance(sentences, Iterable)
    ):
        raise RaysentError(
            f"{name}: must be a string or a sequence of strings; given {type(sentences).__name__}"
        )
    rows = list(sentences)  # a copy, because another thread may change the list
    for row, sentence in enumerate(rows):
        if not isinstance(sentence, str):
            raise RaysentError(f"{name}[{row}]: must be a string; given {type(sentence).__name__}")
    return rows


def column_names(table: object) -> str | None:
    """Return the names of the columns of a table in memory, as a message shows them; None for what has no columns."""
    names = getattr(table, "column_names", None)
    if names is None:
        names = getattr(table, "columns", None)
    if names is None or callable(names) or isinstance(names, str):
        return None
    columns = list(names)
    shown = [str(column)[:_SHOWN_CHARACTERS] for column in columns[:_SHOWN_COLUMNS]]
    if len(columns) > _SHOWN_COLUMNS:
        shown.append("…")
    return ", ".join(shown)


def check_size(name: str, value: object) -> int:
    """Return a whole number of at least 1.

    Raises:
        ConfigError: If it is anything else.
    """
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= 1:
        return int(value)
    raise ConfigError(f"{name}: must be a whole number of at least 1; given {value!r}")


def _is_tensor(vectors: object) -> TypeGuard[Tensor]:
    """Return whether vectors are a tensor; where torch was not imported, nothing is one."""
    return "torch" in sys.modules and isinstance(vectors, sys.modules["torch"].Tensor)


def _tensor_of(vectors: npt.NDArray[Any]) -> Tensor:
    import torch  # noqa: PLC0415 - late, as predicting by words alone does without

    return torch.from_numpy(np.ascontiguousarray(vectors))


def _device(name: str | torch.device, *, can_move: bool) -> torch.device:
    import torch  # noqa: PLC0415 - as above

    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ConfigError(
            f"device: must be a device of torch, such as cpu or cuda:0; given {name!r}"
        ) from None
    if can_move and device.type == "cuda":
        num_gpus = torch.cuda.device_count()
        if (device.index or 0) >= num_gpus:
            raise ConfigError(
                f"device {device}: must be a device of this machine; PyTorch finds {num_gpus} GPUs; choose cpu"
            )
    return device


def normalize_rows(vectors: Float32) -> Float32:
    """Return vectors [rows, dim] with unit length; zeros stay zeros."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(length == 0, 1.0, length)).astype(np.float32, copy=False)
