"""The configuration of one run and its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_run import tiny_run

from raysent.config import parse_yaml, validate
from raysent.data.corpus import CorpusConfig
from raysent.errors import ArtifactError
from raysent.storage import content_key, write_json
from raysent.storage.layout import RUN_FILE
from raysent.training.run import RunConfig, describe, load_run, save_run


def test_run_config_reads_a_base_of_yaml() -> None:
    """Encoder and objective are enough."""
    document = parse_yaml(
        "encoder: {type: gru, hidden_size: 16}\nobjective: {type: context_prediction}\nseed: 3\n"
    )
    config = validate(RunConfig, document)
    assert (
        config.encoder.dim,
        config.training.batch_size,
        config.validation.num_candidates,
        config.seed,
    ) == (
        16,
        400,
        1000,
        3,
    )


@pytest.mark.parametrize("part", [{"pairs": {"path": "p.tsv"}}, {"labels": {"task": "MR"}}])
def test_contrast_does_not_train_on_other_text_than_what_is_given(part: dict[str, Any]) -> None:
    """Of pairs or labels alone it would read the documentation; beside a corpus, a space's other objectives read them."""
    values = {"encoder": {"type": "bag"}, "objective": {"type": "contrast"}, **part}
    (name,) = part
    with pytest.raises(
        ValueError, match=rf"{name} must be left out .* or set objective\.positives: {name}"
    ):
        RunConfig.model_validate(values)
    assert RunConfig.model_validate({**values, "corpus": {"path": "docs"}}).source == CorpusConfig()
    values["objective"] = {"type": "contrast", "positives": name}
    config = RunConfig.model_validate(values)
    assert config.source is getattr(config, name)


def test_a_record_of_a_run_that_was_changed_is_refused(tmp_path: Path) -> None:
    """Whatever bit of whatever value; one of an earlier version has no hash and is read."""
    config = tiny_run(tmp_path)
    save_run(config, tmp_path / "run")
    path = tmp_path / "run" / RUN_FILE
    whole = path.read_bytes()
    place = whole.index(b'"batch_size": ') + len(b'"batch_size": ')
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(ArtifactError, match=r"run.json: changed since it was written; restore it"):
        load_run(tmp_path / "run")
    write_json(path, read_json_of(whole), sealed=False)
    assert load_run(tmp_path / "run") == config


def read_json_of(data: bytes) -> dict[str, Any]:
    """Return the values of a file of JSON without their hash."""
    values: dict[str, Any] = json.loads(data)
    del values["digest"]
    return values


def test_save_run_round_trip_gives_the_same_configuration(tmp_path: Path) -> None:
    """Compositions included."""
    members = {"uni": {"type": "gru", "hidden_size": 4}, "words": {"type": "bag"}}
    config = tiny_run(tmp_path, encoder={"type": "concat", "members": members})
    save_run(config, tmp_path / "run")
    assert load_run(tmp_path / "run") == config
    assert load_run(tmp_path / "run").key == config.key


def test_run_key_ignores_the_cache_folder(tmp_path: Path) -> None:
    """A run can be resumed with another cache, but not with another seed."""
    config = tiny_run(tmp_path)
    assert tiny_run(tmp_path, corpus__cache_dir=None).key == config.key
    assert tiny_run(tmp_path, seed=1).key != config.key


def test_describe_has_the_values_that_differ_from_the_defaults(tmp_path: Path) -> None:
    """The parts, and their changed values only."""
    text = describe(tiny_run(tmp_path, objective__context_size=2))
    assert text == (
        "gru(embedding.dim 6, hidden_size 8), context_prediction(context_size 2), "
        "batch 24, learning rate 0.01, 1 epochs"
    )


def test_describe_has_the_steps_that_a_run_trains(tmp_path: Path) -> None:
    """The fewer of those that are named."""
    config = tiny_run(tmp_path, training__steps=50, training__max_steps=20)
    assert describe(config).endswith("20 steps")
    assert describe(tiny_run(tmp_path, training__max_steps=20)).endswith("20 steps")


def test_key_of_a_run_outlives_new_and_renamed_settings(tmp_path: Path) -> None:
    """So that the checkpoints of version 0.2.0 are found."""
    now = {"type": "relatedness", "num_levels": 5, "penalty_center": "initial"}
    pairs = {"path": "pairs.tsv", "score": 2}
    changes = {"objective": now, "pairs": pairs, "validation__similarity": pairs}
    config = tiny_run(tmp_path, **changes)
    added = {
        "training": {
            "optimizer",
            "weight_decay",
            "epoch_decay",
            "drop_decay",
            "encode_once",
            "accumulate",
            "steps",
            "ema",
            "compile",
        },
        "corpus": {"cache_dir", "document_field", "language"},
        "vocabulary": {"type", "unicode_form"},
        "postprocessing": {"whitening", "unit_length"},
        "validation": {"documents": True, "similarity": {"positives", "negatives"}},
        "pairs": {"positives", "negatives"},
        "labels": True,
    }
    values = config.model_dump(mode="json", exclude=added)
    objective = values["objective"]
    objective |= {"num_marks": objective.pop("num_levels"), "anchor": "first"}
    del objective["penalty_center"]
    assert config.key == content_key(values)
