"""What `raysent sweep --task TABLE` is worth beside what its users have, on rows that nothing has read.

    python -m benchmarks.peers [--data FOLDER] [--folder OUT] [--tables MR,TREC] [--sizes 32,100] [--fresh 1200]
                                [--setfit 32] [--setfit-tables MR,SST2]
    python -m benchmarks.peers --folder OUT --show

Of each table fresh rows are laid aside. Of the others so many are drawn as a user's own table, and on these alone:

raysent     the command's own function, with the pretrained encoder that this machine has
minilm      sentence-transformers' vectors of the same encoder, and scikit-learn's logistic regression
tfidf       scikit-learn's TF-IDF of words, or of characters, whichever the fresh rows prefer, with the same
setfit      SetFit's trainer with its defaults on the same encoder, at the sizes of `--setfit` (pip install setfit)

C is chosen by five folds for all of them. All predict the fresh rows. Without FOLDER the table is that of `examples/`;
with it, tables in the layout of `raysent doctor`, and one that is made here: first sentences of docstrings, and which
library they are from. Cells are kept in OUT, and the same command continues with what is
missing. Processor times are of one process each; the encoder's vectors of a table, which both sides use, are made once
and counted apart.
"""

from __future__ import annotations

import ast
import re
import tempfile
import time
import zlib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sentence_transformers
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline

import raysent
from benchmarks.answers import read_table
from benchmarks.common import parsed
from raysent.ensembles import read_answers
from raysent.models.known import encoder_at_hand
from raysent.storage import read_json, write_json

DOCSTRINGS = "docstrings"
LIBRARIES = ("numpy", "pandas", "scipy", "sklearn", "torch")
NAMES = (
    *("MR", "SUBJ", "MPQA", "TREC", "SST2", "MRPC"),
    *("tweets_emotion", "news_ag", "intents_clinc", DOCSTRINGS),
)
SIZES = (32, 100, 300, 1000, 0)
DRAWS = {32: 3, 100: 3, 300: 3}
STRENGTHS = {"logisticregression__C": [0.1, 1.0, 10.0, 100.0]}
MAX_CLASSES = 10
RESAMPLES, PERCENTILES = 2000, (2.5, 97.5)


def own_table(name: str, data: Path | None) -> pd.DataFrame:
    """Return the rows of a table: `text_a`, of pairs `text_b`, and `label`; of many classes ten, drawn once."""
    if data is None:
        tickets = Path(__file__).parent.parent / "examples" / "tickets.csv"
        return pd.read_csv(tickets).rename(columns={"text": "text_a"})
    if name == DOCSTRINGS:
        return docstrings()
    frame = read_table(name if name.isupper() or name == "SST2" else f"tables/{name}", data)
    classes = np.unique(frame["label"].astype(str))
    if len(classes) > MAX_CLASSES:
        kept = np.random.default_rng(0).choice(classes, MAX_CLASSES, replace=False)
        frame = frame[frame["label"].astype(str).isin(kept)]
    return frame.drop_duplicates([one for one in frame if one != "label"]).reset_index(drop=True)


def docstrings() -> pd.DataFrame:
    """Return first sentences of functions' docstrings, and the library of each; none holds a library's name."""
    named = re.compile("|".join([*LIBRARIES, "scikit", "pytorch", "tensor"]), re.IGNORECASE)
    rows = set()
    for library in LIBRARIES:
        spec = find_spec(library)
        assert spec is not None
        assert spec.origin is not None
        for path in sorted(Path(spec.origin).parent.rglob("*.py")):
            if "test" in str(path.relative_to(Path(spec.origin).parent)):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.FunctionDef):
                    continue
                sentence = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                if 30 <= len(sentence) <= 200 and not named.search(sentence):
                    rows.add((sentence, library))
    frame = pd.DataFrame(sorted(rows), columns=["text_a", "label"])
    return frame.drop_duplicates("text_a", keep=False).reset_index(drop=True)


def drawn(frame: pd.DataFrame, size: int, generator: np.random.Generator) -> pd.DataFrame:
    """Return rows in which each class has its share, and two at least."""
    order = generator.permutation(len(frame))
    shuffled = frame.iloc[order]
    ranks = shuffled.groupby("label").cumcount()
    share = ranks / shuffled.groupby("label")["label"].transform("size")
    places = np.argsort(np.where(ranks < 2, -1.0, share), kind="stable")
    return shuffled.iloc[np.sort(places[:size])]


def features(encoder: Any, frame: pd.DataFrame) -> np.ndarray:
    """Return what logistic regression reads: unit vectors; of pairs |u - v| and u * v."""
    first = encoder.encode(frame["text_a"].tolist(), normalize_embeddings=True)
    if "text_b" not in frame:
        return first
    second = encoder.encode(frame["text_b"].tolist(), normalize_embeddings=True)
    return np.hstack([np.abs(first - second), first * second])


def searched(model: Any, labels: np.ndarray) -> GridSearchCV:
    """Return a search for C by five folds, or as many as the rarest class has rows."""
    fewest = int(np.unique(labels, return_counts=True)[1].min())
    folds = StratifiedKFold(max(2, min(5, fewest)), shuffle=True, random_state=0)
    return GridSearchCV(model, STRENGTHS, cv=folds, scoring="accuracy")


def by_words(train: pd.DataFrame, fresh: pd.DataFrame, analyzer: str) -> np.ndarray:
    """Return the predictions of TF-IDF with logistic regression; of pairs, of both texts one after another."""
    options = (
        {"analyzer": "word"}
        if analyzer == "word"
        else {"analyzer": "char_wb", "ngram_range": (2, 5)}
    )
    model = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, **options), LogisticRegression(max_iter=1000)
    )
    texts = [frame.filter(like="text_").agg(" ".join, axis=1).tolist() for frame in (train, fresh)]
    labels = train["label"].to_numpy()
    return searched(model, labels).fit(texts[0], labels).predict(texts[1])


def by_encoder(train: np.ndarray, labels: np.ndarray, fresh: np.ndarray) -> np.ndarray:
    """Return the predictions of logistic regression on vectors."""
    model = make_pipeline(LogisticRegression(max_iter=1000))
    return searched(model, labels).fit(train, labels).predict(fresh)


def by_setfit(train: pd.DataFrame, fresh: pd.DataFrame, folder: str) -> np.ndarray:
    """Return the predictions of SetFit at its defaults."""
    datasets = import_module("datasets")
    setfit = import_module("setfit")
    rows = datasets.Dataset.from_dict(
        {"text": train["text_a"].tolist(), "label": train["label"].astype(str).tolist()}
    )
    with tempfile.TemporaryDirectory() as output:
        options = setfit.TrainingArguments(output_dir=output, report_to="none")
        model = setfit.SetFitModel.from_pretrained(folder, local_files_only=True)
        setfit.Trainer(model=model, args=options, train_dataset=rows).train()
        return np.asarray(model.predict(fresh["text_a"].tolist()))


def by_raysent(
    train: pd.DataFrame, fresh: pd.DataFrame, name: str, encoders: list[str] | None
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the predictions of the answer, and what the command says of it."""
    texts = [one for one in train if one != "label"]
    with tempfile.TemporaryDirectory() as folder:
        run, table = Path(folder) / "run", Path(folder) / f"{name}.jsonl"
        train.to_json(table, orient="records", lines=True, force_ascii=False)
        task = f"{table}:text={'+'.join(texts)},label=label"
        raysent.sweep(tasks=[task], run=run, pretrained=encoders, labels=[], progress=False)
        ((place, answer),) = read_answers(run)
        columns = [fresh[one].tolist() for one in fresh if one != "label"]
        predicted = raysent.load(place).predict(*columns)
    about = {"title": answer.answer.title, "interval": list(answer.answer.interval)}
    return np.asarray(predicted), {
        **about,
        "printed": answer.answer.test,
        "num_test": answer.num_test,
    }


def cell(
    frame: pd.DataFrame,
    fresh: pd.DataFrame,
    vectors: np.ndarray,
    *,
    name: str,
    size: int,
    draw: int,
    encoder: str,
    setfit_folder: str | None,
) -> dict[str, Any]:
    """Return how many fresh rows each is right on, row by row, and its processor time."""
    seed = zlib.crc32(f"{name}/{size}/{draw}".encode())
    train = drawn(frame, size, np.random.default_rng(seed))
    places = train.index.to_numpy()
    labels = train["label"].to_numpy()
    truth = fresh["label"].to_numpy()
    about: dict[str, Any] = {"labels": len(train)}
    ways = {
        "minilm": lambda: by_encoder(vectors[places], labels, vectors[fresh.index]),
        "tfidf": lambda: by_words(train, fresh, "word"),
        "tfidf:chars": lambda: by_words(train, fresh, "char"),
    }
    if setfit_folder is not None:
        ways["setfit"] = lambda: by_setfit(train, fresh, setfit_folder)
    for way, predict in ways.items():
        began_s = time.process_time()
        right = predict().astype(str) == truth.astype(str)
        about[way] = {"right": right.astype(int).tolist(), "s": time.process_time() - began_s}
    began_s = time.process_time()
    predicted, said = by_raysent(train, fresh, name, [encoder])
    right = predicted.astype(str) == truth.astype(str)
    about["raysent"] = {
        "right": right.astype(int).tolist(),
        "s": time.process_time() - began_s,
        **said,
    }
    return about


def run(options: Any) -> None:
    """Fill the cells that are missing."""
    files = encoder_at_hand("en")
    if files is None:
        raise SystemExit(
            "no pretrained encoder is on this machine; name its folder in RAYSENT_MODELS"
        )
    library = sentence_transformers.SentenceTransformer(str(files.folder), device="cpu")
    data = Path(options.data) if options.data else None
    setfit_sizes = [int(size) for size in options.setfit.split(",") if size]
    setfit_tables = options.setfit_tables.split(",")
    for name in options.tables.split(",") if data else ["tickets"]:
        frame = own_table(name, data)
        order = np.random.default_rng(zlib.crc32(name.encode())).permutation(len(frame))
        num_fresh = min(options.fresh, len(frame) // 2)
        fresh, left = frame.iloc[order[:num_fresh]], frame.iloc[order[num_fresh:]]
        left = left.iloc[: options.most]
        wanted = [int(size) for size in options.sizes.split(",")]
        todo = [
            (size or len(left), size, draw)
            for size in wanted
            if size <= len(left)
            for draw in range(min(DRAWS.get(size, 1), options.draws))
        ]
        todo = [one for one in todo if not place_of(options, name, *one[1:]).exists()]
        if not todo:
            continue
        read = features(library, pd.concat([fresh, left]))
        vectors = np.zeros((len(frame), read.shape[1]), dtype=np.float32)
        vectors[np.concatenate([fresh.index, left.index])] = read
        for count, size, draw in todo:
            is_tuned = size in setfit_sizes and name in setfit_tables and "text_b" not in left
            about = cell(
                left,
                fresh,
                vectors,
                name=name,
                size=count,
                draw=draw,
                encoder=f"st:{files.name}",
                setfit_folder=str(files.folder) if is_tuned else None,
            )
            write_json(place_of(options, name, size, draw), {"table": name, "size": size, **about})
            scores = {
                way: round(100 * np.mean(about[way]["right"]), 1) for way in WAYS if way in about
            }
            print(name, size or "all", draw, scores, about["raysent"]["title"], flush=True)


WAYS = ("raysent", "minilm", "tfidf", "tfidf:chars", "setfit")


def place_of(options: Any, name: str, size: int, draw: int) -> Path:
    """Return the file of a cell."""
    return Path(options.folder) / f"{name}-{size or 'all'}-{draw}.json"


def estimate(
    cells: list[dict[str, Any]], other: str, generator: np.random.Generator
) -> tuple[float, float, float]:
    """Return by how many points raysent is above another in the mean of tables, and its interval."""
    by_table: dict[str, list[np.ndarray]] = {}
    for one in cells:
        best = other
        if other == "tfidf":
            best = max(("tfidf", "tfidf:chars"), key=lambda way: sum(one[way]["right"]))
        difference = np.subtract(one["raysent"]["right"], one[best]["right"])
        by_table.setdefault(one["table"], []).append(100.0 * difference)
    value = float(
        np.mean([np.mean([rows.mean() for rows in draws]) for draws in by_table.values()])
    )
    resampled = []
    for _ in range(RESAMPLES):
        means = []
        for draws in by_table.values():
            rows = generator.integers(0, len(draws[0]), len(draws[0]))
            chosen = generator.integers(0, len(draws), len(draws))
            means.append(np.mean([draws[draw][rows].mean() for draw in chosen]))
        resampled.append(np.mean(means))
    low, high = np.percentile(resampled, PERCENTILES)
    return value, float(low), float(high)


def show_cells(folder: Path) -> None:
    """Print the table of all cells that are there."""
    cells = [read_json(path) for path in sorted(folder.glob("*.json"))]
    generator = np.random.default_rng(0)
    sizes = sorted({one["size"] for one in cells}, key=lambda size: size or 10**9)
    headings = ["all" if not size else f"{size:,}" for size in sizes]
    print(f"| table | above | {' | '.join(headings)} |\n|---|---|{'---|' * len(sizes)}")
    tables = sorted({one["table"] for one in cells})
    for names in [*([name] for name in tables), tables]:
        for other in ("minilm", "tfidf", "setfit"):
            texts = []
            for size in sizes:
                some = [
                    one
                    for one in cells
                    if one["size"] == size
                    and one["table"] in names
                    and (other == "tfidf" or other in one)
                ]
                if not some:
                    texts.append("")
                    continue
                value, low, high = estimate(some, other, generator)
                texts.append(f"{value:+.1f} [{low:+.1f}, {high:+.1f}]")
            if not any(texts):
                continue
            title = names[0] if len(names) == 1 else "**mean**"
            print(f"| {title} | {other} | {' | '.join(texts)} |")
    held = []
    for one in cells:
        low, high = one["raysent"]["interval"]
        held.append(low <= 100 * np.mean(one["raysent"]["right"]) <= high)
    print(f"\n{sum(held)} of {len(held)} printed intervals hold the score on fresh rows")
    seconds = {
        way: np.median([one[way]["s"] for one in cells if way in one])
        for way in WAYS
        if any(way in one for one in cells)
    }
    print(
        "processor seconds in the median:",
        {way: round(float(value), 1) for way, value in seconds.items()},
    )


def main() -> None:
    """Run the benchmark as the module's docstring says."""
    options = parsed(
        __doc__,
        data="",
        folder="build/peers",
        tables=",".join(NAMES),
        sizes=",".join(map(str, SIZES)),
        draws=3,
        fresh=1200,
        most=2300,
        setfit="",
        setfit_tables=",".join(NAMES),
        show=False,
    )
    if not options.show:
        run(options)
    show_cells(Path(options.folder))


if __name__ == "__main__":
    main()
