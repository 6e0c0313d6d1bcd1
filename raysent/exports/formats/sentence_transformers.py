"""sentence-transformers: a folder that `SentenceTransformer(folder, trust_remote_code=True)` reads without raysent.

The folder contains its own module, `modeling_raysent.py`; that file describes the others. That of a pretrained encoder
of one tower is a standard one, of sentence-transformers' own modules, and needs no `trust_remote_code`, unless its
tokenizer adds no special tokens: those modules give zeros for text that has no token, and raysent reads an unknown one.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from torch import Tensor

from raysent.data.vocabulary import SubwordVocabulary
from raysent.errors import ConfigError
from raysent.exports.formats import Encode
from raysent.exports.tokenizer import TOKENIZER_FILE, build_tokenizer, numbered
from raysent.models import SentenceModel
from raysent.models.encoders import ENCODERS, pretrained
from raysent.models.known import quiet
from raysent.models.schemes.st import KIND
from raysent.models.sentence_encoder import DOCUMENT_PROMPTS
from raysent.models.standard import is_standard
from raysent.registry import OWN_PACKAGE
from raysent.storage import save_tensors, write_json
from raysent.storage.layout import EXPORT_FILE, VOCABULARY_FILE

TARGET = "sentence-transformers"
EXTRA = "sentence-transformers"
LIBRARY = "sentence-transformers"
USAGE = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER", trust_remote_code=True)
vectors = model.encode(["A sentence.", "Another one."])
similarities = model.similarity(vectors, vectors)"""
# Of folders that need no code of their own.
STANDARD_USAGE = USAGE.replace(", trust_remote_code=True", "")
DIFFERS_ON: tuple[str, ...] = ()
METHODS = ("encode_query", "encode_document")

# Types of codes that `Code` of the exported code computes.
_CODES = ("autoencoder", "principal_components", "random_projection", "threshold")
_CODE = Path(__file__).parent.parent / "modeling_raysent.py"


def exported_code() -> Any:
    """Return the module that exports contain, with the plain implementation of every encoder and code."""
    from raysent.exports import modeling_raysent  # noqa: PLC0415 - the extra `sentence-transformers`

    return modeling_raysent


def plain_member(model: SentenceModel) -> Any:
    """Return a model as the exported code computes it: a module of a padded batch, with the model's own values."""
    model = _without_adapters(model)
    member = exported_code().Member(_about(model))
    tensors = model.tensors()
    for name, parameter in member.named_parameters():
        parameter.data.copy_(tensors[name])
    return member


def check_model(models: Sequence[SentenceModel]) -> None:
    """Refuse encoders and codes of other packages, and those that the exported code does not have.

    Raises:
        ConfigError: With the name of the encoder or code.
    """
    for model in models:
        for part in (model.config.encoder, model.config.second_encoder, model.config.code):
            _check_own(part)


def _check_own(part: Any) -> None:
    if part is None:
        return
    if part.type in ENCODERS:
        kind = "encoder"
        table_name = "ENCODERS"
    else:
        kind = "code"
        table_name = "Code"
    if not type(part).__module__.startswith(f"{OWN_PACKAGE}."):
        raise ConfigError(f"{kind} {part.type}: cannot be exported: another package defines it")
    if part.type not in (*exported_code().ENCODERS, *_CODES):
        raise ConfigError(
            f"{kind} {part.type}: cannot be exported: {table_name} of exports/modeling_raysent.py "
            "has no form of it; add one"
        )
    for member in (getattr(part, "members", None) or {}).values():
        _check_own(member)


def usage_of(models: Sequence[SentenceModel]) -> str:
    """Return the lines of Python that read the folder."""
    if is_standard(models):
        return STANDARD_USAGE
    return USAGE


def write(models: Sequence[SentenceModel], folder: Path) -> None:
    """Write the folder: a standard one where it can be, else one with its own module."""
    if is_standard(models):
        _write_standard(models[0], folder)
        return
    models = [_without_adapters(model) for model in models]
    tensors: dict[str, Tensor] = {}
    for number, model in enumerate(models):
        for name, tensor in model.tensors().items():
            if not name.startswith("objectives."):
                tensors[f"{number}.{name}"] = tensor.contiguous()
        write_words(model, folder, number=number)
    save_tensors(folder / "model.safetensors", tensors, metadata={"format": "pt"})
    write_json(
        folder / EXPORT_FILE,
        {"kind": KIND, "format": 1, "members": [_about(model) for model in models]},
        sealed=False,
    )
    shutil.copyfile(_CODE, folder / _CODE.name)
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{_CODE.stem}.RaysentModule"}]
    write_json(folder / "modules.json", modules)
    is_code = len(models) == 1 and models[0].code is not None
    versions = {name.replace("-", "_"): version(name) for name in (TARGET, "transformers", "torch")}
    prompts: dict[str, str] = {}
    default_prompt_name = None
    if len(models) == 1:
        prompts = {**models[0].prompts, **_prompts(models[0])}
        default_prompt_name = models[0].default_prompt_name
    settings = {
        "__version__": versions,
        "model_type": "SentenceTransformer",
        "prompts": prompts,
        "default_prompt_name": default_prompt_name,
        # On bits, the Manhattan distance is the Hamming distance.
        "similarity_fn_name": "manhattan" if is_code else "cosine",
    }
    write_json(folder / "config_sentence_transformers.json", settings, sealed=False)


def write_words(model: SentenceModel, folder: Path, *, number: int = 0) -> None:
    """Write the tokenizer and the vocabulary of the member of a number."""
    tokenizer = build_tokenizer(model.vocabulary, max_length=model.max_length)
    tokenizer.save(str(folder / numbered(TOKENIZER_FILE, number)))
    model.vocabulary.save(folder / numbered(VOCABULARY_FILE, number))


def open(folder: Path) -> Encode:
    """Return the `encode` of sentence-transformers."""
    library = import_module("sentence_transformers")
    with quiet():
        model = library.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")

    def encode(sentences: list[str], method: str = "encode") -> Any:
        return getattr(model, method)(sentences, batch_size=64)

    return encode


def _described(config: Any) -> Any:
    """Return a configuration whose pretrained encoders have no adapters, and no paths of this machine."""
    if not isinstance(config, dict):
        return config
    if config.get("type") != "pretrained":
        return {name: _described(value) for name, value in config.items()}
    about = pretrained.Config.model_validate(config).about
    if about.revision:
        name = str(about.path)
    else:
        name = Path(config["path"]).name
    return {
        "type": "pretrained",
        "path": name,
        "backbone": {**about.model_dump(mode="json"), "path": name},
    }


def _without_adapters(model: SentenceModel) -> SentenceModel:
    """Return a model whose adapters are added to its weights; one without adapters itself."""
    tensors = model.tensors()
    if not any(".lora_" in name for name in tensors):
        return model
    for tower_name, tower in model.named_modules():
        if isinstance(tower, pretrained.Encoder):
            prefix = f"{tower_name}.model."
            tensors = {name: tensors[name] for name in tensors if not name.startswith(prefix)}
            for name, parameter in tower.merged().named_parameters():
                tensors[f"{prefix}{name}"] = parameter.detach()
    config = type(model.config).model_validate(_described(model.config.model_dump(mode="json")))
    record = model.record.model_copy(update={"config": config})
    objective = model.config.objective
    keeps_objectives = objective is not None and objective.in_saved_model != "absent"
    if not keeps_objectives:
        tensors = {name: tensors[name] for name in tensors if not name.startswith("objectives.")}
    return SentenceModel.from_tensors(record, model.vocabulary, tensors)


def _write_standard(model: SentenceModel, folder: Path) -> None:
    library = import_module("sentence_transformers")
    modules = import_module("sentence_transformers.sentence_transformer.modules")
    tower = cast("pretrained.Encoder", model.f)
    about = cast("pretrained.Config", model.config.encoder).about
    length = {"model_max_length": model.max_length}
    with TemporaryDirectory() as name, quiet():
        tower.merged().save_pretrained(name)
        cast("SubwordVocabulary", model.vocabulary).tokenizer.save(f"{name}/{TOKENIZER_FILE}")
        write_json(
            Path(name) / "tokenizer_config.json", {**about.tokenizer, **length}, sealed=False
        )
        parts = [modules.Transformer(name, max_seq_length=model.max_length), *tower.heads]
        prompts = {
            "prompts": {**about.prompts, **_prompts(model)},
            "default_prompt_name": about.default_prompt or None,
        }
        library.SentenceTransformer(modules=parts, device="cpu", **prompts).save(
            str(folder), create_model_card=False
        )


def _prompts(model: SentenceModel) -> dict[str, str]:
    """Return what the model puts before queries and documents, by the names of sentence-transformers."""
    texts = {}
    for task, names in {"query": ("query",), "document": DOCUMENT_PROMPTS}.items():
        name = model.prompt_for(names)
        texts[task] = model.prompt_text(name if isinstance(name, str) else None)
    return texts


def _about(model: SentenceModel) -> dict[str, Any]:
    names = {id(value): name for name, value in model.named_parameters()}
    shared = {
        name: names[id(value)]
        for name, value in model.named_parameters(remove_duplicate=False)
        if names[id(value)] != name and not name.startswith("objectives.")
    }
    record = model.record
    return {
        **record.model_dump(mode="json"),
        "config": _described(record.config.model_dump(mode="json")),
        "prompt": model.prompt_text(),
        "prompts": _prompts(model),
        "unknown_id": model.vocabulary.unknown_id,
        "has_padding": model.vocabulary.has_padding,
        "num_towers": len(model.towers),
        "num_bits": model.num_bits,
        "normalizes": record.config.normalizes,
        "shared": shared,
    }
