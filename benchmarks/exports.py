"""Exports against their models: ids, vectors and speed, on real and on random text.

tokenizer   share of texts whose ids differ between `tokenizer.json` and the vocabulary; every token of the texts is in
            the vocabulary, which is the strictest test
st          vectors of sentence-transformers, in a process that cannot import raysent, against `encode`
onnx        vectors of onnxruntime at every length from 1 to 200, and its speed with raysent's ids, against `encode`

Models are untrained ones with every example of every encoder and code, two members joined, and the given folders.

    python -m benchmarks.exports WHAT --text PATH... [--real 2000] [--fuzz 500] [--models FOLDER...] [--json]
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysent.data.vocabulary import Vocabulary
from raysent.exports.check import other_ids
from raysent.exports.formats import FORMATS, onnx, trained_models
from raysent.models import ModelConfig, SentenceModel, load
from raysent.models.codes import CODES
from raysent.models.encoders import ENCODERS
from raysent.models.schemes.st import JoinedModels
from raysent.models.sentence_encoder import SentenceEncoder

# Pieces of random text: clitics, abbreviations, marks and odd white space among characters of all planes.
_ODD = r"""can't N'T isn't CANNOT Mr. Jr. 1,000 U.S. e.g. ... -- '' `` " ’ “ ” — … \/ -LRB- <unk> Σ ς İ ß . , ; ( )"""
PIECES = (*_ODD.split(), "\n", "\t", "\x1c", "\x00", "\u2028", "\u00a0", "\u3000", "\u200b")
READ_WITHOUT_RAYSENT = """
import json, sys
sys.modules["raysent"] = None
import numpy as np
from sentence_transformers import SentenceTransformer
texts = json.load(open(sys.argv[1]))
for folder in sys.argv[2:]:
    model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
    first = model.encode(texts, batch_size=64)
    model.save(folder + "-again")
    again = SentenceTransformer(folder + "-again", trust_remote_code=True, device="cpu")
    # The same texts in the same batches: a batch's other texts may change the last bit.
    np.savez(folder + ".npz", first=first, again=again.encode(texts, batch_size=64))
"""


def real_texts(paths: Sequence[Path], number: int) -> list[str]:
    """Return sentences of text files, also .gz, an equal number of each."""
    found: list[str] = []
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as stream:
            words = " ".join(stream.read().split())
        found += re.split(r"(?<=[.!?])\s+", words)[100:][: -(-number // len(paths))]
    return found[:number]


def fuzzed_texts(number: int) -> list[str]:
    """Return random texts of pieces and characters of all planes."""
    draw = random.Random(0)

    def piece() -> str:
        if draw.random() < 0.5:
            return draw.choice(PIECES)
        planes = ((0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x5FF), (0x2000, 0x30FF), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF))
        return chr(draw.randint(*draw.choice(planes)))

    joints = ("", "", " ")
    return ["".join(piece() + draw.choice(joints) for _ in range(draw.randint(0, 40))) for _ in range(number)]


def vocabulary_of(texts: list[str], *, size: int, lowercase: bool) -> Vocabulary:
    """Return the most frequent words of texts."""
    counts = Counter(
        word for row in Vocabulary(["<pad>", "<unk>"], lowercase=lowercase).tokenize(texts) for word in row
    )
    counts.pop("<unk>", None)
    return Vocabulary(["<pad>", "<unk>", *(word for word, _ in counts.most_common(size))], lowercase=lowercase)


def untrained(vocabulary: Vocabulary, *, max_length: int) -> dict[str, SentenceModel]:
    """Return a model with random parameters for every example of every encoder and code."""
    objective = {"type": "context_prediction"}
    gru = {"type": "gru", "hidden_size": 64, "bidirectional": True, "embedding": {"dim": 32}}
    sections: dict[str, dict[str, Any]] = {
        f"{name} {number}": {"encoder": config.model_dump(mode="json"), "objective": objective}
        for name, module in ENCODERS.items()
        for number, config in enumerate(module.Config.examples())
    } | {
        f"code {name} {number}": {"encoder": gru, "code": code.model_dump(), "objective": {"type": "reconstruction"}}
        for name, module in CODES.items()
        for number, code in enumerate(module.Config.examples())
    }
    sections["component"] = {"encoder": gru, "objective": objective, "postprocessing": {"remove_component": True}}
    sections["average"] = {"encoder": gru, "objective": objective, "postprocessing": {"combine": "average"}}
    sample = vocabulary.ids(
        [" ".join(vocabulary.words[2 + row : 12 + row]) for row in range(200)], max_length=max_length
    )
    models = {}
    for name, values in sections.items():
        config = ModelConfig.model_validate(values)
        model = SentenceModel.build(config, vocabulary, seed=1, max_length=max_length).eval()
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            parameter.data.normal_(0, 0.3, generator=generator)
        if model.postprocessing.is_fitted_to_text:
            model.fit_postprocessing(sample)
        model.fit_code(sample)
        models[name] = model
    return models


def encoders_to_try(texts: list[str], folders: Sequence[str], *, max_length: int = 50) -> dict[str, SentenceEncoder]:
    """Return untrained models, two of them joined, and those of the folders."""
    models = untrained(vocabulary_of(texts, size=20_000, lowercase=False), max_length=max_length)
    lower = untrained(vocabulary_of(texts, size=20_000, lowercase=True), max_length=max_length)
    joined = {"joined": JoinedModels([models["gru 0"], lower["bag 0"]])}
    return {**models, "lowercase": lower["lstm 0"], **joined, **{folder: _loaded(folder) for folder in folders}}


def _loaded(folder: str) -> SentenceEncoder:
    encoder = load(folder)
    models = trained_models(encoder)
    return encoder if len(models) == 1 else JoinedModels(models)


def members(encoder: SentenceEncoder) -> list[SentenceModel]:
    """Return the models of an encoder."""
    return list(encoder.models) if isinstance(encoder, JoinedModels) else trained_models(encoder)


def compare_tokenizer(real: list[str], fuzz: list[str]) -> dict[str, Any]:
    """Return how many texts have other ids, cased and lowercase, and some of them."""
    found = {}
    for lowercase in (False, True):
        vocabulary = vocabulary_of([*real, *fuzz], size=10**9, lowercase=lowercase)
        config = {"encoder": {"type": "bag", "embedding": {"dim": 1}}, "objective": {"type": "context_prediction"}}
        model = SentenceModel.build(ModelConfig.model_validate(config), vocabulary, seed=0, max_length=10**6)
        others = [
            [text for text, other in zip(one, other_ids(model, one), strict=True) if other] for one in (real, fuzz)
        ]
        found["lowercase" if lowercase else "cased"] = {
            "words": len(vocabulary),
            "real": len(real),
            "real_differ": len(others[0]),
            "fuzz": len(fuzz),
            "fuzz_differ": len(others[1]),
            "examples": [*others[0][:20], *others[1][:10]],
        }
    return found


def compare_st(encoders: dict[str, SentenceEncoder], real: list[str], fuzz: list[str]) -> dict[str, Any]:
    """Return the largest difference of each model, and of the model saved again and reloaded."""
    texts, found = [*real, *fuzz], {}
    with tempfile.TemporaryDirectory() as scratch:
        folders = {name: Path(scratch) / str(number) for number, name in enumerate(encoders)}
        for name, encoder in encoders.items():
            folders[name].mkdir()
            FORMATS["sentence-transformers"].write(members(encoder), folders[name])
        given = Path(scratch) / "texts.json"
        given.write_text(json.dumps(texts))
        command = [sys.executable, "-c", READ_WITHOUT_RAYSENT, str(given), *map(str, folders.values())]
        subprocess.run(command, check=True)
        for name, encoder in encoders.items():
            with np.load(f"{folders[name]}.npz") as arrays:
                first, again = arrays["first"], arrays["again"]
            is_other = np.any([other_ids(model, texts) for model in members(encoder)], axis=0)
            distance = np.abs(first - encoder.encode(texts))[~is_other]
            is_code = encoder.similarity_measure == "hamming"
            found[name] = {
                "difference": float(distance.mean() if is_code else distance.max()),
                "is_code": is_code,
                "real_other_ids": int(is_other[: len(real)].sum()),
                "fuzz_other_ids": int(is_other[len(real) :].sum()),
                "other": [text for text, other in zip(texts, is_other, strict=True) if other][:10],
                "reloaded_equal": bool((first == again).all()),
            }
    return found


def compare_onnx(encoders: dict[str, SentenceEncoder], real: list[str]) -> dict[str, Any]:
    """Return the largest difference at lengths 1 to 200, and the ratio of speeds with raysent's ids."""
    runtime, found = import_module("onnxruntime"), {}
    words = " ".join(real).split()
    lengths = [" ".join(words[7 * length : 8 * length]) for length in range(1, 201)]
    for name, encoder in encoders.items():
        if isinstance(encoder, JoinedModels):
            continue
        (model,) = members(encoder)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        graph = onnx.build_graph(model).SerializeToString()
        session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

        def run(texts: list[str], model: SentenceModel = model, session: Any = session) -> Any:
            ids = model.vocabulary.ids(texts, max_length=model.max_length)
            rows = np.split(ids.ids, np.cumsum(ids.lengths)[:-1])
            return onnx.encode_ids(session, [row.tolist() for row in rows])

        distance = np.abs(run(lengths) - model.encode(lengths))
        is_code = model.code is not None
        found[name] = {
            "difference": float(distance.mean() if is_code else distance.max()),
            "is_code": is_code,
            "ratio_of_speed": _seconds(model.encode, real) / _seconds(run, real),
        }
    return found


def _seconds(encode: Callable[[list[str]], Any], texts: list[str]) -> float:
    """Return the processor time of the faster of two runs, after one that warms up."""
    encode(texts[:200])
    times = []
    for _ in range(2):
        start = time.process_time()
        encode(texts)
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Run a comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tokenizer", "st", "onnx"))
    parser.add_argument("--text", nargs="+", type=Path, required=True, help="text files, also .gz")
    parser.add_argument("--real", type=int, default=2000, help="sentences of the files")
    parser.add_argument("--fuzz", type=int, default=500, help="random texts")
    parser.add_argument("--models", nargs="*", default=[], help="folders of trained models and ensembles")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    real, fuzz = real_texts(options.text, options.real), fuzzed_texts(options.fuzz)
    if options.what == "tokenizer":
        found = compare_tokenizer(real, fuzz)
    elif options.what == "st":
        found = compare_st(encoders_to_try(real, options.models), real, fuzz)
    else:
        found = compare_onnx(encoders_to_try(real, options.models, max_length=200), real)
    if options.json:
        print(json.dumps(found))
        return
    for name, values in found.items():
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in values.items())}")


if __name__ == "__main__":
    main()
