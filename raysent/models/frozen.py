"""Pretrained encoders as they are: a folder of sentence-transformers or transformers -> a `SentenceModel`.

The model is that which a training would begin with, so that it encodes packed batches, and is saved, exported,
whitened and distilled like any other. Folders with other parts are read by sentence-transformers; see the scheme `st`.
"""

from __future__ import annotations

from typing import Any

from raysent.config import Document, validate
from raysent.data.vocabulary import SubwordVocabulary
from raysent.models.backbone import Backbone, read_backbone, read_tokenizer
from raysent.models.config import ModelConfig
from raysent.models.known import EncoderFiles
from raysent.models.model import SentenceModel
from raysent.models.origin import Origin

# Tokens read of a longer text, where nothing limits them.
_MAX_TOKENS = 8192
# Of a transformer's layers, those after which states of words say most about a text beside its own vector.
_MIDDLE = 2 / 3


def read_frozen(files: EncoderFiles, *, is_middle: bool = False) -> SentenceModel:
    """Return the model of a folder, with the folder's own weights.

    Args:
        files: Where they are.
        is_middle: Whether to return the encoder of its middle layer: the mean of the states after two thirds of the
            layers, of unit length.

    Raises:
        ForeignModelError: If sentence-transformers alone reads such a folder.
        ArtifactError: If files are missing, damaged or wrong.
        ConfigError: If the libraries of the extra `pretrained` are not installed.
    """
    backbone = read_backbone(str(files.folder))
    encoder: dict[str, Any] = {"type": "pretrained", "path": str(files.folder)}
    if is_middle:
        encoder["layer"] = _middle_layer(backbone)
    config = validate(ModelConfig, Document({"encoder": encoder}))
    model = SentenceModel.build(
        config,
        SubwordVocabulary(read_tokenizer(backbone)),
        seed=0,
        max_length=config.encoder.encoded_length(_MAX_TOKENS),
        has_objective=False,
    )
    name = files.name
    if files.known is None and not files.is_of_hub:
        # A path of this machine says nothing elsewhere.
        name = files.folder.name
    model.origin = Origin(kind="pretrained", encoder=name)
    return model.eval()


def _middle_layer(backbone: Backbone) -> int:
    """Return the number of layers after which the middle layer's states are read; at least one."""
    return max(1, round(_MIDDLE * backbone.num_layers))
