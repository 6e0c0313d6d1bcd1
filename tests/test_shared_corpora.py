"""Prepared text that the machines of a cluster share: built once, fetched by the others, in a folder and in a bucket."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from object_store import BUCKET

from raysent import storage
from raysent.config import parse_yaml
from raysent.data.corpus import CorpusConfig, cache, preparation, prepare, shared_cache
from raysent.data.vocabulary import VocabularyConfig
from raysent.errors import ConfigError
from raysent.storage import open_folder, remove_folder
from raysent.storage.layout import PREPARED_FOLDER
from raysent.sweeps import SweepRecord
from raysent.sweeps.driver import start
from raysent.sweeps.space import parse_space


@pytest.fixture(params=["folder", "bucket"])
def shared(request, tmp_path) -> str:
    """Where machines share: a folder, or an address in an empty bucket."""
    if request.param == "folder":
        return str(tmp_path / "run" / PREPARED_FOLDER)
    request.getfixturevalue("bucket")
    return f"s3://{BUCKET}/a/run/{PREPARED_FOLDER}"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A file of 40 documents."""
    path = tmp_path / "text.txt"
    path.write_text(
        "\n\n".join("\n".join(f"Word{i} has {j} lines ." for j in range(5)) for i in range(40))
    )
    return path


@pytest.fixture
def built(monkeypatch) -> list[str]:
    """The stages that were built, in order."""
    stages: list[str] = []
    build_once = preparation.build_once

    def counted(folder, name, build):
        def noted(place):
            summary = build(place)
            stages.append(name.partition("/")[0])
            return summary

        return build_once(folder, name, noted)

    monkeypatch.setattr(preparation, "build_once", counted)
    return stages


def _prepare(
    text: Path, machine: Path, shared: str | None, *, is_head: bool = False, size: int = 100
) -> None:
    config = CorpusConfig(
        path=str(text), format="sentences", cache_dir=str(machine), num_processes=1
    )
    with shared_cache(shared, publishes_all=is_head):
        prepare(config, VocabularyConfig(size=size))


def _files(machine: Path, stage: str = "corpora") -> dict[str, bytes]:
    return {
        str(path.relative_to(machine)): path.read_bytes()
        for path in (machine / stage).rglob("*")
        if path.is_file()
    }


def test_corpus_is_prepared_once_and_fetched_by_the_other_machines(text, tmp_path, shared, built):
    """A head and two nodes with empty caches: equal bytes; nodes do not need the text of the corpus."""
    machines = [tmp_path / name for name in ("head", "one", "two")]
    for machine in machines:
        _prepare(text, machine, shared, is_head=machine.name == "head")
    assert built == ["text", "corpora"]
    head, one, two = map(_files, machines)
    assert head == one == two
    assert len(head) == 5
    assert not (machines[1] / "text").exists()
    _prepare(text, machines[0], shared, is_head=True)
    manifests = [name for name in _names(shared) if name.endswith("manifest.json")]
    assert (len(built), len(manifests)) == (2, 2)


def test_what_a_node_builds_is_fetched_by_the_others(text, tmp_path, shared, built):
    """Another size of the vocabulary: the node gets the text from the head, and the next node the corpus from it."""
    _prepare(text, tmp_path / "head", shared, is_head=True)
    for name in ("one", "two"):
        _prepare(text, tmp_path / name, shared, size=20)
    assert built == ["text", "corpora", "corpora"]
    assert _files(tmp_path / "one") == _files(tmp_path / "two")
    assert _files(tmp_path / "one", "text") == _files(tmp_path / "head", "text")


def test_head_publishes_what_its_cache_has(text, tmp_path, shared, built):
    """An earlier sweep prepared it."""
    _prepare(text, tmp_path / "head", None)
    _prepare(text, tmp_path / "head", shared, is_head=True)
    _prepare(text, tmp_path / "one", shared)
    assert built == ["text", "corpora"]


@pytest.mark.parametrize("damage", ["cut", "missing", "manifest"])
def test_damaged_copy_is_not_used(text, tmp_path, shared, built, damage):
    """The node builds for itself, and its cache is whole."""
    _prepare(text, tmp_path / "head", shared, is_head=True)
    ending = "manifest.json" if damage == "manifest" else "ids.bin"
    (name,) = (name for name in _names(shared) if "/corpora/" in name and name.endswith(ending))
    data = storage.read_shared(name)
    storage.remove_shared(name)
    if damage != "missing":
        storage.create_shared(name, data[:-7])
    _prepare(text, tmp_path / "one", shared)
    assert built == ["text", "corpora", "corpora"]
    assert _files(tmp_path / "one") == _files(tmp_path / "head")
    assert not list((tmp_path / "one").rglob("*.unfinished"))


def test_two_writers_leave_one_copy(text, tmp_path, shared):
    """Each writes below a name of its own; the manifest is that of one of them, and the other removes its files."""
    _prepare(text, tmp_path / "head", None)
    (folder,) = (tmp_path / "head" / "corpora").iterdir()
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(lambda _: cache._publish(folder, f"{shared}/corpora/{folder.name}"), range(4))
        )
    assert len(_names(shared)) == 6
    (manifest,) = (name for name in _names(shared) if name.endswith("manifest.json"))
    place = json.loads(storage.read_shared(manifest))["place"]
    assert sum(f"/{place}/" in name for name in _names(shared)) == 5
    _prepare(text, tmp_path / "one", shared)
    assert _files(tmp_path / "one") == _files(tmp_path / "head")


def test_place_that_cannot_be_used_shares_nothing(text, tmp_path, built):
    """Each machine builds for itself."""
    (tmp_path / "file").write_text("")
    for name in ("head", "one"):
        _prepare(text, tmp_path / name, str(tmp_path / "file" / "run"), is_head=name == "head")
    assert built == ["text", "corpora"] * 2


def test_working_copies_of_a_run_do_not_have_it(text, tmp_path, shared, monkeypatch):
    """It is in the run's folder until its training has ended, and is not downloaded with the run."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    run = open_folder(shared.removesuffix(f"/{PREPARED_FOLDER}"))
    _prepare(text, tmp_path / "head", shared, is_head=True)
    open_folder(shared.removesuffix(f"/{PREPARED_FOLDER}"))
    if shared.startswith("s3://"):
        assert [path for path in run.rglob("*") if path.is_file()] == []
    remove_folder(run / PREPARED_FOLDER, below=run)
    assert _names(shared) == []


def test_sweep_that_does_not_begin_leaves_nothing(text, tmp_path, monkeypatch):
    """The text of a cluster's sweep is shared before the cluster is called."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    values = f"""
base:
  corpus: {{path: {text}, format: sentences}}
  encoder: {{type: gru, hidden_size: 8, embedding: {{dim: 6}}}}
  objective: {{type: context_prediction}}
  training: {{batch_size: 24}}
  validation: {{num_candidates: 5}}
search: {{training.learning_rate: {{loguniform: [1e-3, 1e-1]}}}}
"""
    space = parse_space(parse_yaml(values, source="space.yaml"), name="toy")
    with pytest.raises(ConfigError, match="no Ray cluster answers"):
        start(SweepRecord(space, 0, [], "127.0.0.1:1", None), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def _names(shared: str) -> list[str]:
    if shared.startswith("s3://"):
        return [item.address for item in storage.list_s3(shared)]
    return [str(path) for path in Path(shared).rglob("*") if path.is_file()]
