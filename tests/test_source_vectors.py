"""The vectors of a fixed encoder whose codes are trained: computed once, shared by runs, the same after a resume."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_run import tiny_run

from raysent.data.vocabulary import Sentences
from raysent.errors import ArtifactError
from raysent.models import KnownVectors, SentenceModel, sentence_keys
from raysent.training import fit
from raysent.training.run import RunConfig


def _sentences(*rows: list[int]) -> Sentences:
    return Sentences(
        np.concatenate([np.array(row, dtype=np.int32) for row in rows]),
        np.array([len(r) for r in rows]),
    )


def test_keys_are_equal_for_equal_words_in_equal_order_alone():
    """All sentences of up to five words of four, alone and among others."""
    rows = [[0]]
    for length in range(1, 6):
        rows += [
            [int(word) for word in np.base_repr(number, 4).zfill(length)]
            for number in range(4**length)
        ]
    keys = sentence_keys(_sentences(*rows))
    assert len(np.unique(keys)) == len(rows) - 1
    assert keys[0] == keys[1]
    alone = [sentence_keys(_sentences(row))[0] for row in rows[:50]]
    assert np.array_equal(alone, keys[:50])


def test_vectors_are_found_only_where_all_are_known():
    """An unknown sentence among known ones, also one whose key is above all others."""
    known_sentences = _sentences([3, 1], [2], [1, 3])
    keys, rows = np.unique(sentence_keys(known_sentences), return_index=True)
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    known = KnownVectors(keys, values[rows])
    assert len(known) == 3
    found = known.find(_sentences([2], [3, 1], [2]))
    assert found is not None
    assert np.array_equal(found, values[[1, 0, 1]])
    assert known.find(_sentences([2], [3])) is None
    assert known.find(_sentences([2**30])) is None


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a trained model of two towers."""
    folder = tmp_path_factory.mktemp("source")
    fit(tiny_run(folder, training__max_steps=6), folder / "run")
    return folder


def _code_run(source: Path, **changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "initial": str(source / "run"),
        "encoder": None,
        "code": {"type": "autoencoder", "bits": 8},
        "objective": {"type": "reconstruction", "lambda_sp": 0.1},
        "postprocessing": {"remove_component": True, "num_sentences": 60},
        "training__epochs": 3.0,
        "training__num_reports": 3,
        **changes,
    }
    return tiny_run(source, **values)


def _count_encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the sentences that the encoder reads."""
    counts, read = list[int](), SentenceModel.pack

    def pack(self: SentenceModel, sentences: Sentences) -> Any:
        counts.append(len(sentences.lengths))
        return read(self, sentences)

    monkeypatch.setattr(SentenceModel, "pack", pack)
    encoded = SentenceModel.encoded

    def count(self: SentenceModel, sentences: Sentences, **options: Any) -> Any:
        counts.append(len(sentences.lengths))
        return encoded(self, sentences, **options)

    monkeypatch.setattr(SentenceModel, "encoded", count)
    return counts


def test_sentences_are_encoded_once_for_all_runs_and_give_the_same_code(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The second run encodes none; against encoding at every step the weights differ by rounding alone."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    cache = {"corpus__cache_dir": None}
    counts = _count_encoded(monkeypatch)
    fit(_code_run(source, **cache), tmp_path / "once")
    keys = np.load(next((tmp_path / "cache" / "source_vectors").glob("*/keys.npy")))
    assert counts == [len(keys)]
    counts.clear()
    other = fit(_code_run(source, **cache, code={"type": "threshold"}, seed=1), tmp_path / "other")
    assert counts == []
    assert other.status == "finished"
    fit(_code_run(source, **cache, training__encode_once=False), tmp_path / "each")
    assert sum(counts) > 3 * len(keys)
    once, slow = (SentenceModel.load(tmp_path / name) for name in ("once", "each"))
    for (name, one), two in zip(once.named_parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4, msg=name)


def test_a_resumed_run_has_the_same_bits_with_and_without_a_cache(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The second half computes the vectors again."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "first"))
    config = _code_run(source, corpus__cache_dir=None)
    fit(config, tmp_path / "whole")
    fit(config, tmp_path / "halves", report=lambda report: report.index != 1)
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "second"))
    fit(config, tmp_path / "halves")
    one, two = (SentenceModel.load(tmp_path / name).tensors() for name in ("whole", "halves"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_other_weights_get_other_vectors(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The same text, encoded by two models, has two entries in the cache."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    fit(tiny_run(source, training__max_steps=7), tmp_path / "source" / "run")
    for place, folder in enumerate((source, tmp_path / "source")):
        fit(
            _code_run(source, corpus__cache_dir=None, initial=str(folder / "run")),
            tmp_path / str(place),
        )
    assert len(list((tmp_path / "cache" / "source_vectors").iterdir())) == 2


def test_a_run_of_less_than_an_epoch_encodes_what_it_reads(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two steps do not pay for encoding the whole text."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    fit(_code_run(source, corpus__cache_dir=None, training__max_steps=2), tmp_path / "run")
    assert not (tmp_path / "cache" / "source_vectors").exists()


def test_a_disk_without_room_names_the_setting(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One line says what is needed, what there is, and how to do without."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "raysent.training.source_vectors.shutil.disk_usage", lambda path: SimpleNamespace(free=5)
    )
    with pytest.raises(
        ArtifactError, match=r"0\.0 are free; .* or set training\.encode_once=false"
    ):
        fit(_code_run(source, corpus__cache_dir=None), tmp_path / "run")
