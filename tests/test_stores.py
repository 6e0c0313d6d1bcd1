"""Whatever keeps a model's name finds the model again: for every scheme, in another process, folder and cache.

Everything is made once; one process reads all of it after the home was moved, offline, with another cache of the hub that
holds the models; and another one where nothing but the store itself is left. Each test looks at one store and scheme.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backbones import write_sentence_transformer
from small_bert import write_bert
from tiny_run import tiny_run

import raysent
from raysent.ensembles import read_answers, save_best, save_fusion
from raysent.ensembles.best import Keeping
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.tasks import resolve_tasks
from raysent.models.schemes import SCHEMES
from raysent.training.loop import fit

constants = pytest.importorskip("huggingface_hub.constants")
pytest.importorskip("sentence_transformers", reason="pip install raysent[pretrained]")

TEXT = ["the dog runs", "the cat runs to a man"]
COMMIT = "0123456789012345678901234567890123456789"
HUB_NAME = "owner/tiny"
# The models that each scheme names; `hub` of those that read pretrained encoders.
NAMES = {
    "bm25": {"plain": "bm25"},
    "hash": {"plain": "hash:8"},
    "hf": {"folder": "hf:tiny", "hub": f"hf:{HUB_NAME}"},
    "middle": {"folder": "middle:tiny", "hub": f"middle:{HUB_NAME}"},
    "st": {"folder": "st:tiny", "hub": f"st:{HUB_NAME}"},
    "start": {"folder": "start:gru"},
    "static": {},  # has a test of its own
    "tfidf": {"plain": "tfidf:chars"},
    "words": {"folder": "words:gru"},
}
MODELS = {
    f"{scheme} {kind}": name for scheme, names in NAMES.items() for kind, name in names.items()
}
WITH_VECTORS = [model for model in MODELS if not model.startswith(("bm25", "tfidf"))]
PREDICTING = [model for model in MODELS if not model.startswith("bm25")]
PRETRAINED = [model for model in MODELS if model.startswith(("st ", "hf ", "middle "))]
# What is lost with the folder that lay beside the store, or with the cache of the hub.
REFERS = {"ensemble": WITH_VECTORS, "index": WITH_VECTORS}

READ = """
import json, sys
import raysent
from raysent.errors import RaysentError

TEXT = json.loads(sys.argv[1])

def predicted(path):
    return raysent.load(path).predict_proba("animals", TEXT).tolist()

def encoded(path):
    return raysent.load(path).encode(TEXT).tolist()

def found(path):
    hits = raysent.search(path, TEXT, k=3)
    return [[hit.score for hit in of_query] for of_query in hits]

def scored(path):
    names, table, output = json.loads(path)
    scores = raysent.evaluate(names, tasks=[table], output=output, baselines=False, progress=False)
    return scores.select_dtypes("number").fillna(0).to_numpy().tolist()

READERS = {"ensemble": predicted, "answer": predicted, "encoder": encoded, "index": found,
           "fusion": encoded, "export": encoded, "records": scored}
for line in sys.stdin:
    store, path = json.loads(line)
    try:
        value = READERS[store](path)
    except RaysentError as error:
        value = str(error)
    print("\\t" + json.dumps(value), flush=True)
"""


@dataclass(frozen=True)
class Store:
    """Something that keeps a model's name.

    Attributes:
        path: Where it is, below the home; of records, the names, the table and the folder.
        value: What it gives where it was made.
    """

    path: str
    value: Any


@dataclass(frozen=True)
class Stores:
    """All stores, and what other processes read from them: a value, or an error's line.

    Attributes:
        made: (store, model) -> the store.
        moved: What is read after the home was moved, offline, with another cache of the hub that holds the models.
        alone: What is read where the models are gone.
        home: The home after the move.
    """

    made: dict[tuple[str, str], Store]
    moved: dict[tuple[str, str], Any]
    alone: dict[tuple[str, str], Any]
    home: Path


def _write_table(path: Path) -> Path:
    rows = [
        f"{split},the {word} runs {number},{word}"
        for split, count in (("train", 14), ("validation", 8), ("test", 8))
        for number in range(count)
        for word in ("cat", "dog")
    ]
    path.write_text("\n".join(["split,text,label", *rows]) + "\n")
    return path


def _write_queries(folder: Path) -> Path:
    """Write a task of queries and passages, in BEIR's form."""
    (folder / "qrels").mkdir(parents=True)
    words = ["cat", "dog", "man", "sleep", "to", "a"]
    passages = [f"the {one} runs and {other}" for one in words for other in words]
    lines = [{"_id": f"p{n}", "title": "", "text": text} for n, text in enumerate(passages)]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    queries = [{"_id": f"q{n}", "text": f"{word} runs"} for n, word in enumerate(words * 4)]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)) + "\n")
    for split, part in (("dev", range(12)), ("test", range(12, 24))):
        relevant = [f"q{n}\tp{6 * (n % 6) + n % 5}\t1" for n in part]
        lines_of = "\n".join(["query-id\tcorpus-id\tscore", *relevant])
        (folder / f"qrels/{split}.tsv").write_text(lines_of + "\n")
    return folder


def _cache(folder: Path, encoder: Path) -> Path:
    """Make a cache of the hub that holds an encoder."""
    model = folder / f"models--{HUB_NAME.replace('/', '--')}"
    shutil.copytree(encoder, model / "snapshots" / COMMIT)
    (model / "refs").mkdir()
    (model / "refs/main").write_text(COMMIT)
    return folder


def _make(home: Path, table: str) -> dict[tuple[str, str], Store]:
    made: dict[tuple[str, str], Store] = {}
    text = home / "passages.txt"
    text.write_text("\n".join(f"the {word} runs" for word in ("cat", "dog", "man")) + "\n")
    (task,) = resolve_tasks([table])
    records = partial(raysent.evaluate, tasks=[table], baselines=False, progress=False)
    for model, name in MODELS.items():
        place = model.replace(" ", "-")
        if model in PREDICTING:
            names = [name, "hash:4"]
            ensemble = raysent.ensemble(
                names, tasks=[table], output=f"both-{place}", baselines=False, progress=False
            )
            value = ensemble.predict_proba("animals", TEXT).tolist()
            made["ensemble", model] = Store(f"both-{place}", value)
            scores = records([name], output=f"records-{place}")
            value = scores.select_dtypes("number").fillna(0).to_numpy().tolist()
            path = json.dumps([[name], table, f"records-{place}"])
            made["records", model] = Store(path, value)
        if model in WITH_VECTORS:
            raysent.index(name, text, f"index-{place}", progress=False)
            hits = raysent.search(f"index-{place}", TEXT, k=3)
            value = [[hit.score for hit in of_query] for of_query in hits]
            made["index", model] = Store(f"index-{place}", value)
    for model in PRETRAINED:
        for copies in (False, True) if model.endswith("hub") else (False,):
            label = f"{model} copied" if copies else model
            made |= _answers(MODELS[model], label, task, keeping=Keeping(copies_hub=copies))
    exported = raysent.export("st:tiny", "exported", to="sentence-transformers")
    assert exported is not None
    value = raysent.load("st:exported").encode(TEXT).tolist()
    made["export", "st folder"] = Store("st:exported", value)
    return made


def _answers(name: str, label: str, task: Any, *, keeping: Keeping) -> dict[tuple[str, str], Store]:
    """Save what a sweep saves: the answer and the best encoder, and what ranks passages."""
    run = Path(f"run-{label.replace(' ', '-')}")
    evaluator = Evaluator(run / "evaluation")
    save_best([], evaluator, run=run, tasks=[task], pretrained=[name], keeping=keeping)
    queries = resolve_tasks(["questions"])[0]
    ranking = run / "ranking"
    save_fusion(
        [name], queries, evaluator, folder=ranking, copies=True, copies_hub=keeping.copies_hub
    )
    answer = raysent.load(run / "best")
    return {
        ("answer", label): Store(f"{run}/best", answer.predict_proba("animals", TEXT).tolist()),
        ("encoder", label): Store(
            f"{run}/encoder", raysent.load(run / "encoder").encode(TEXT).tolist()
        ),
        ("fusion", label): Store(f"{ranking}", raysent.load(ranking).encode(TEXT).tolist()),
    }


def _read(stores: dict[tuple[str, str], Store], folder: Path, cache: Path) -> Iterator[Any]:
    """Yield what a process of its own reads from stores: of another user, without a network."""
    lines = [json.dumps([store, made.path]) for (store, _), made in stores.items()]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(cache),
        "RAYSENT_CACHE": str(folder.parent / f"{folder.name}-cache"),
    }
    ended = subprocess.run(
        [sys.executable, "-c", READ, json.dumps(TEXT)],
        cwd=folder,
        env=environment,
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    for line in ended.stdout.splitlines():
        if line.startswith("\t"):
            yield json.loads(line)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """Make all stores of all models, move them, and read them."""
    base = tmp_path_factory.mktemp("stores")
    home = base / "home"
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        encoder = write_sentence_transformer(home / "tiny", write_bert(base / "bert"))
        other = write_bert(base / "other", seed=3, num_hidden_layers=3)
        of_hub = write_sentence_transformer(base / "of-hub", other, normalize=True)
        patch.setattr(constants, "HF_HUB_CACHE", str(_cache(base / "hub", of_hub)))
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        fit(tiny_run(base), home / "gru")
        table = f"{_write_table(home / 'animals.csv').name}:text=text,label=label,split=split"
        _write_queries(home / "questions")
        made = _make(home, table)
        patch.undo()
    assert encoder.is_dir()
    (base / "elsewhere").mkdir()
    moved_home = home.rename(base / "elsewhere/moved")
    moved = dict(zip(made, _read(made, moved_home, _cache(base / "hub-2", of_hub)), strict=True))
    alone_home = base / "alone"
    alone_home.mkdir()
    shutil.copy(moved_home / "animals.csv", alone_home)
    for path in moved_home.iterdir():
        if path.name.startswith(("both-", "index-", "run-", "exported")):
            shutil.copytree(path, alone_home / path.name)
    left = {names: store for names, store in made.items() if names[0] != "records"}
    alone = dict(zip(left, _read(left, alone_home, base / "no-hub"), strict=True))
    return Stores(made, moved, alone, moved_home)


def cases(store: str, models: list[str]) -> list[tuple[str, str]]:
    """Return the store with each model."""
    return [(store, model) for model in models]


ANSWERS = [*PRETRAINED, *(f"{model} copied" for model in PRETRAINED if model.endswith("hub"))]
ALL = [
    *cases("ensemble", PREDICTING),
    *cases("records", PREDICTING),
    *cases("index", WITH_VECTORS),
    *(case for store in ("answer", "encoder", "fusion") for case in cases(store, ANSWERS)),
    ("export", "st folder"),
]


def test_every_scheme_is_part_of_this_contract() -> None:
    """A new one names its models here."""
    assert {prefix for prefix in SCHEMES if prefix not in NAMES} == set()


@pytest.mark.parametrize(("store", "model"), ALL)
def test_model_is_found_again_after_a_move(stores, store, model):
    """By another process, offline, where the cache of the hub is another one that holds it too."""
    value = stores.moved[store, model]
    assert not isinstance(value, str), value
    np.testing.assert_allclose(value, stores.made[store, model].value, atol=1e-5)


@pytest.mark.parametrize(("store", "model"), [case for case in ALL if case[0] != "records"])
def test_store_alone_gives_the_same_or_one_line(stores, store, model):
    """A copy of an answer needs nothing; what refers to a folder or to the hub says so in a line that names it."""
    value = stores.alone[store, model]
    needs_hub = model.endswith("hub") and store in ("answer", "fusion")
    if needs_hub or (model in REFERS.get(store, []) and not model.startswith("hash")):
        assert isinstance(value, str), (store, model)
        assert "\n" not in value
        name = f"{HUB_NAME}@{COMMIT}" if "hub" in model else MODELS[model].rpartition(":")[2]
        assert name in value
    else:
        assert not isinstance(value, str), value
        np.testing.assert_allclose(value, stores.made[store, model].value, atol=1e-5)


@pytest.mark.parametrize("model", ANSWERS)
def test_answer_says_how_it_keeps_its_encoder(stores, model):
    """In its last line and on its card, with the size; a copy is linked to the files that it came from."""
    run = stores.home / f"run-{model.replace(' ', '-')}"
    ((folder, answer),) = [one for one in read_answers(run) if one[0] == run / "best"]
    (line,) = answer.kept
    card = (folder / "README.md").read_text()
    assert line in card
    if model.endswith("hub"):
        expected = f"{HUB_NAME}@{COMMIT} is kept by its name and commit: a machine that lacks it downloads 1 MB; "
        assert line.startswith(expected)
        assert "The folder holds all else that it needs" in card
        return
    assert " is copied into " in line
    assert line.endswith("(1 MB, linked to the files that it came from)")
    assert "The folder holds all that it needs" in card


def test_label_curves_name_models_without_their_folders(stores, tmp_path, monkeypatch):
    """So that they can be read anywhere."""
    monkeypatch.chdir(stores.home)
    table = f"{stores.home / 'animals.csv'}:text=text,label=label,split=split"
    raysent.label_curves(
        ["st:tiny"], tasks=[table], labels=[8], output=tmp_path, baselines=False, progress=False
    )
    (path,) = tmp_path.rglob("*.json")
    assert str(stores.home) not in path.read_text()
