"""`export`: a model or an ensemble -> a folder for another library, compared with the model before it is kept.

The comparison is that of the ids by the exported tokenizer, then of vectors by the target's library: where the ids
agree, the vectors must, up to the order of sums in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raysent.data.vocabulary import UNK_ID, Vocabulary
from raysent.errors import ArtifactError, ConfigError
from raysent.exports.card import check_license, model_card
from raysent.exports.formats import FORMATS, Encode, trained_models
from raysent.exports.tokenizer import finished_ids
from raysent.models import SentenceModel, load
from raysent.models.schemes import encoder_name
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.progress import messages
from raysent.storage import (
    is_remote,
    open_folder,
    storage_errors,
    temporary_folder_beside,
    write_text,
)
from raysent.storage.layout import CARD_FILE

_MODULES = {
    "sentence-transformers": ("sentence_transformers",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
}
# Largest difference of a number of a vector; of codes, the largest share of bits that differ.
MAX_DIFFERENCE = 1e-5
_MAX_BITS = 1e-4
# Largest share of sentences with other ids.
_MAX_OTHER_IDS = 0.02
_NUM_SENTENCES = 200
_PLAIN = (
    "",
    " ",
    "A man is playing a guitar.",
    "Dr. Smith isn't in the U.S. on Monday, is he?",
    "“I can't,” she said – “it's Mr. Jones’s.”",
    "DON'T SHOUT; they've paid $1,000.50 for well-known state-of-the-art devices…",
    "The N.Y. Times (Sat., Oct. 3rd) reported: 45% of 1,234 people didn’t know.",
    "naïve café façade, Ünïcödé and ΟΔΟΣ",
    "日本語の文 and emoji 🙂 -LRB- brackets -RRB- ''quoted''",
    "line\nbreaks\tand\u00a0spaces\u2028everywhere",
    "xyzzy qwfpgj zxcvbnm",
    "cannot gonna would've O'Brien rock 'n' roll 'tis",
    "nai\u0308ve cafe\u0301 and \u1112\u1161\u11ab\u1100\u1173\u11af, decomposed; \u212b and \u037e",
)


@dataclass(frozen=True)
class Check:
    """How an export differs from its model.

    Attributes:
        num_sentences: Sentences compared.
        num_other_ids: Sentences whose ids differ; their vectors are not compared.
        difference: Largest difference of a number of a vector; of codes, the share of bits that differ.
        is_code: Whether the vectors are bits.
    """

    num_sentences: int
    num_other_ids: int
    difference: float
    is_code: bool = False

    @property
    def bound(self) -> float:
        """The largest `difference` that is allowed."""
        return _MAX_BITS if self.is_code else MAX_DIFFERENCE

    @property
    def holds(self) -> bool:
        """Whether the export may be used in place of the model."""
        return (
            self.difference <= self.bound
            and self.num_other_ids <= _MAX_OTHER_IDS * self.num_sentences
        )

    def __str__(self) -> str:
        """Return one line for people."""
        measure = "largest difference"
        if self.is_code:
            measure = "share of bits that differ"
        ids = ""
        if self.num_other_ids:
            ids = f", {self.num_other_ids} with other ids"
        return f"{self.num_sentences:,} sentences{ids}: {measure} {self.difference:.1e} (bound {self.bound:.0e})"


@dataclass(frozen=True)
class Export:
    """A folder that was written.

    Attributes:
        folder: The folder.
        target: The name of the target.
        check: How it differs from the model.
    """

    folder: Path
    target: str
    check: Check


def export(
    model: str | Path | SentenceEncoder,
    output: str | Path,
    *,
    to: str = "sentence-transformers",
    license: str | None = None,
    sentences: list[str] | None = None,
) -> Export:
    """Write a model for another library.

    The folder appears only after it gave the model's vectors on a sample of sentences.

    Args:
        model: A trained model or an ensemble, or its folder.
        output: The new folder.
        to: A target: ``sentence-transformers``, ``static`` or ``onnx``.
        license: An identifier of the hub for the model card, such as ``apache-2.0``; or ``other: NAME``.
        sentences: Text to compare the export with the model on; by default 200 sentences of the model's words.

    Raises:
        ConfigError: If the license or the target is unknown, or the target is not installed or cannot express
            the model.
        ArtifactError: If the folder exists, cannot be written, or does not equal the model.
    """
    target = FORMATS.find(to, where=f"to {to}")
    check_license(license)
    if is_remote(output):
        raise ConfigError(
            f"output {output}: must be a folder of this machine; export there, and copy it to s3://"
        )
    missing = [name for name in _MODULES.get(target.EXTRA, ()) if find_spec(name) is None]
    if missing:
        raise ConfigError(f"to {to}: needs {', '.join(missing)}; install raysent[{target.EXTRA}]")
    if isinstance(model, str | Path):
        encoder = load(encoder_name(model, say=messages.print))
    else:
        encoder = model
    models = trained_models(encoder)
    target.check_model(models)
    path = Path(output)
    if path.is_symlink():
        path = path.resolve()  # so that the folder is renamed to what the link names
    # An empty folder may stand in for the new one.
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ArtifactError(f"{path}: exists; name a new folder")
    folder = None
    if encoder.source:
        folder = open_folder(encoder.source)
    with contextlib.ExitStack() as stack:
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = stack.enter_context(temporary_folder_beside(path))
        with storage_errors(path):
            target.write(models, temporary)
        options: dict[str, Any] = {
            "except_for": target.DIFFERS_ON,
            "prompt": getattr(target, "PROMPT", None),
            "methods": getattr(target, "METHODS", ()),
        }
        check = compare(encoder, models, target.open(temporary), sentences, **options)
        if not check.holds:
            raise ArtifactError(
                f"to {to}: the export must equal the model; given {check}; please report this"
            )
        card = model_card(
            encoder, models, target=target, check=str(check), folder=folder, license=license
        )
        write_text(temporary / CARD_FILE, card)
        # Libraries write some files for their owner alone.
        readable = temporary.stat().st_mode & 0o666
        for file in temporary.rglob("*"):
            if file.is_file():
                file.chmod(readable)
        with storage_errors(path):
            temporary.replace(path)
    return Export(Path(output), to, check)


def compare(
    encoder: SentenceEncoder,
    models: Sequence[SentenceModel],
    encode: Encode,
    sentences: list[str] | None = None,
    *,
    except_for: Sequence[str] = (),
    prompt: str | None = None,
    methods: Sequence[str] = (),
) -> Check:
    """Return how an export differs from its model.

    Args:
        encoder: The model.
        models: The models that it consists of.
        encode: Encodes by the export.
        sentences: Text to compare; by default sentences of the models' words, and odd ones.
        except_for: Sentences to leave out.
        prompt: What the model puts before each; None for its own prompt, as the export does.
        methods: Further methods of both, which differ by their prompts; a few sentences are compared.
    """
    if sentences is None:
        sentences = check_sentences(models[0].vocabulary)
    texts = [text for text in sentences if text not in except_for]
    # Where the tokenizer of the other library reads a text differently, as `tokenizer.py` says, vectors differ too.
    differs = np.any([other_ids(model, texts) for model in models], axis=0)
    same_texts = [text for text, is_other in zip(texts, differs, strict=True) if not is_other]
    pairs = [(encoder.encode(same_texts, prompt=prompt), encode(same_texts))]
    few_texts = same_texts[: len(_PLAIN)]
    for method in methods:
        pairs.append((getattr(encoder, method)(few_texts), encode(few_texts, method)))
    distances = np.concatenate([np.abs(expected - exported) for expected, exported in pairs])
    is_code = len(models) == 1 and models[0].code is not None
    difference = float(distances.mean() if is_code else distances.max(initial=0.0))
    return Check(len(texts), int(differs.sum()), difference, is_code)


def other_ids(model: SentenceModel, sentences: list[str]) -> npt.NDArray[np.bool_]:
    """Return whether each sentence has other ids by the exported tokenizer, bool [sentences]."""
    expected = model.vocabulary.ids(sentences, max_length=model.max_length)
    rows = np.split(expected.ids, np.cumsum(expected.lengths)[:-1])
    exported = finished_ids(model.vocabulary, sentences, max_length=model.max_length)
    pairs = zip(rows, exported, strict=True)
    return np.array([row.tolist() != ids for row, ids in pairs], dtype=bool)


def check_sentences(vocabulary: Vocabulary) -> list[str]:
    """Return sentences of many lengths from the vocabulary's words, and some that are hard to tokenize."""
    generator = np.random.default_rng(0)
    words = np.array(vocabulary.words[UNK_ID + 1 :] or ["word"], dtype=object)
    drawn = [
        " ".join(generator.choice(words, size=int(generator.integers(1, 80))))
        for _ in range(_NUM_SENTENCES - len(_PLAIN))
    ]
    return [*_PLAIN, *drawn]
