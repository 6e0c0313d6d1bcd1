"""Unknown tokens, ids of exports, and the preparation of a large made text, for `benchmarks/results/languages.md`.

python -m benchmarks.scripts --what unknown --data FOLDER
python -m benchmarks.scripts --what exports --data FOLDER --runs OUT      (OUT of `benchmarks.languages`)
python -m benchmarks.scripts --what prepare --folder MADE [--files 40] [--sentences 1250000]
"""

from __future__ import annotations

import gzip
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.answers import TABLES, read_table
from benchmarks.common import parsed, show
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.vocabulary import UNK_ID, VocabularyConfig
from raysent.exports.folder import export
from raysent.models import load

NAMES = [name for name in TABLES if "/" in name]
SCRIPTS = [
    [chr(code) for code in range(first, last)]
    for first, last in ((97, 123), (0x430, 0x450), (0x4E00, 0x5998), (0xE01, 0xE2F))
]
CHINESE, THAI, NUM_WORDS = 2, 3, 100_000


def texts_of(name: str, data: Path) -> list[str]:
    """Return the texts of a table, or the Japanese sentences, in an order drawn once."""
    if name == "languages/ja":
        lines = gzip.decompress((data / name / "ud-gsd-dev.txt.gz").read_bytes()).decode().splitlines()
        texts = [line for line in lines if line.strip()]
    else:
        texts = read_table(name, data)["text_a"].tolist()
    return [texts[place] for place in np.random.default_rng(3).permutation(len(texts))]


def unknown(data: Path) -> dict[str, Any]:
    """Return the shares of tokens that are unknown, and bytes, of the fifth of each table that was not prepared."""
    found = {}
    for name in (*NAMES, "languages/ja"):
        texts = texts_of(name, data)
        held_out, rest = texts[: len(texts) // 5], texts[len(texts) // 5 :]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "text.txt"
            path.write_text("\n".join(" ".join(text.split()) for text in rest), "utf-8")
            for kind in ("words", "subwords"):
                config = CorpusConfig(path=str(path), cache_dir=f"{folder}/cache")
                words = prepare(config, VocabularyConfig(type=kind, size=20_000)).vocabulary
                ids = words.ids(held_out, max_length=500).ids
                is_byte = np.array([word.startswith("<0x") for word in words.words])
                shares = {"unknown, %": float((ids == UNK_ID).mean()), "bytes, %": float(is_byte[ids].mean())}
                found[f"{name}, {kind}"] = {key: round(100 * share, 2) for key, share in shares.items()}
    return found


def exports(data: Path, runs: Path) -> dict[str, Any]:
    """Return how many texts have other ids in exports of one trial of each kind of encoder of each sweep."""
    draw = np.random.default_rng(0)
    codes = [code for code in draw.integers(1, 0x11000, 40_000).tolist() if not 0xD800 <= code < 0xE000]
    random = ["".join(map(chr, codes[at : at + 20])) for at in range(0, 10_000, 20)]
    found = {}
    for name in NAMES:
        texts = [*texts_of(name, data)[:2000], *texts_of("languages/ja", data), *random]
        kinds: dict[str, Path] = {}
        for trial in sorted((runs / name.replace("/", "-") / "run-auto" / "trials").iterdir()):
            kinds.setdefault(load(trial).config.encoder.type, trial)  # type: ignore[attr-defined]
        for kind, trial in kinds.items():
            for target in ("sentence-transformers", "onnx"):
                with tempfile.TemporaryDirectory() as folder:
                    check = export(trial, Path(folder) / "export", to=target, sentences=texts).check
                found[f"{name}, {kind}, {target}"] = f"{check.num_other_ids} of {check.num_sentences}"
    return found


def write_text(path: Path, script: int, num_sentences: int, seed: int) -> None:
    """Write sentences of 5 to 24 words drawn by a power law, an empty line after each document of 50 to 149."""
    draw, letters = np.random.default_rng(script), SCRIPTS[script]
    weights = 1 / np.arange(1, len(letters) + 1) ** 0.7
    sizes = draw.integers(1, 4, NUM_WORDS) if script == CHINESE else draw.integers(2, 11, NUM_WORDS)
    text = "".join(letters[place] for place in draw.choice(len(letters), sizes.sum(), p=weights / weights.sum()))
    ends = np.cumsum(sizes).tolist()
    words = np.array(list(dict.fromkeys(text[a:b] for a, b in zip([0, *ends], ends, strict=False))), dtype=object)
    gap, end = ("", "。" if script == CHINESE else " ") if script in (CHINESE, THAI) else (" ", ".")
    draw, left = np.random.default_rng(seed), 100
    with path.open("w", encoding="utf-8") as out:
        for _ in range(num_sentences // 20_000):
            lengths = draw.integers(5, 25, 20_000)
            places = np.minimum(draw.pareto(0.9, lengths.sum()) * 8, 1e12).astype(np.int64) % len(words)
            stop = 0
            for length in lengths.tolist():
                out.write(gap.join(words[places[stop : stop + length]]).capitalize() + end + "\n")
                stop, left = stop + length, left - 1
                if not left:
                    out.write("\n")
                    left = int(draw.integers(50, 150))


def prepared(folder: Path, files: int, sentences: int) -> dict[str, Any]:
    """Write what is missing of the text, and return how long its preparation takes."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        path = folder / f"{number:03d}.txt"
        if not path.exists():
            write_text(path, number % len(SCRIPTS), sentences, number)
    before, start = psutil.Process().memory_info().rss, time.monotonic()
    with tempfile.TemporaryDirectory() as cache:
        corpus = prepare(CorpusConfig(path=str(folder), cache_dir=cache), VocabularyConfig(type="auto", size=50_000))
        seconds = time.monotonic() - start
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        return {"sentences": corpus.num_sentences, "seconds": round(seconds), "ids": len(corpus.vocabulary),
                "sentences a second": round(corpus.num_sentences / seconds),
                "peak above the import, MiB, mapped files too": (most - before) >> 20}  # fmt: skip


def main() -> None:
    """Measure one of the three."""
    options: Any = parsed(__doc__, what="unknown", data=Path("data"), runs=Path("OUT"), folder=Path("made"), files=40,
                          sentences=1_250_000)  # fmt: skip
    if options.what == "prepare":
        show(prepared(options.folder, options.files, options.sentences), options)
    else:
        show(unknown(options.data) if options.what == "unknown" else exports(options.data, options.runs), options)


if __name__ == "__main__":
    main()
