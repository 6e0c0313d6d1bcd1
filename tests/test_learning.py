"""The family `pretrained`: trials that start from the encoder at hand and learn the labels of the task."""

from __future__ import annotations

from pathlib import Path

import pytest
from backbones import write_sentence_transformer
from small_bert import write_bert
from test_pretrained_answers import write_table

import raysent
from raysent.config import Override
from raysent.ensembles import read_answers
from raysent.evaluation.parts import part_folders
from raysent.evaluation.task_set import TaskSet
from raysent.pipeline import learning
from raysent.pipeline.arguments import SpaceOptions, space_of, with_labels_of
from raysent.pipeline.learning import with_pretrained_family
from raysent.storage.layout import LEARNED_FOLDER
from raysent.sweeps.space import Interval, SearchSpace, with_overrides, with_values
from raysent.training.run import load_run

FAMILIES = {"search.family": {"choice": ["quick_thoughts", "binary"]}}


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small encoder in the form of sentence-transformers."""
    base = tmp_path_factory.mktemp("encoders")
    bert = write_bert(base / "bert", num_hidden_layers=3, max_position_embeddings=60)
    return write_sentence_transformer(base / "tiny-en", bert, pooling="mean")


@pytest.fixture
def table(tmp_path: Path) -> TaskSet:
    """A table of two classes as a task."""
    return TaskSet.resolve([str(write_table(tmp_path / "reviews.csv", num_rows=90))])


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What a pass over the rows takes, in place of a measurement."""
    known = {"epoch": 0.1}
    monkeypatch.setattr(learning, "recent_run_s", lambda *_, **__: (known["epoch"], 0.0))
    return known


def joined(name: str, tasks: TaskSet, start: Path, **changes: object) -> tuple[SearchSpace, str]:
    """Return a shipped space with the family, and the line about it."""
    space = space_of(name, SpaceOptions(set=changes))
    space = with_labels_of(space, tasks)
    return with_pretrained_family(space, [f"st:{start}"], tasks)


def test_family_stands_among_the_others_with_rates_of_its_own(encoder_folder, table, seconds):
    """The others keep what they had; a body's rate is from 1e-6 to 1e-4, that of the layer 1e-2."""
    space, line = joined("everything", table, encoder_folder, **FAMILIES)
    assert line == ""
    before = space_of("everything", SpaceOptions(set=FAMILIES))
    of_family = [params for params in space.edges() if params["family"] == "pretrained"]
    others = [params for params in space.edges() if params["family"] != "pretrained"]
    assert {frozenset(one) for one in others} == {frozenset(one) for one in before.edges()}
    assert {params["objective"] for params in of_family} == {"contrast", "task"}
    for params in of_family:
        config = space.config(params)
        assert config.tokenizer is not None
        assert config.source is config.labels
        assert config.max_length == 60
        rate = config.training.learning_rate * config.encoder.learning_rate_factor
        assert rate >= 0.999e-6
        assert rate <= 1.001e-4
        assert config.training.learning_rate == 1e-2
        assert config.training.steps >= 50
    firsts = [space.restricted(one) for one in space.first]
    assert [one["objective"] for one in firsts] == ["contrast", "task"]


def test_labels_start_from_the_encoder_and_from_words(encoder_folder, table, seconds):
    """What both kinds of runs have is searched for both; what the user names as the encoder is the only start."""
    space, _ = joined("labels", table, encoder_folder)
    starts = {params["family"]: space.config(params).encoder.type for params in space.edges()}
    assert starts == {"words": "bag", "pretrained": "pretrained"}
    named, _ = joined(
        "labels", table, encoder_folder, encoder={"type": "pretrained", "path": str(encoder_folder)}
    )
    assert {params["family"] for params in named.edges()} == {"pretrained"}
    other, _ = joined(
        "labels", table, encoder_folder, encoder={"type": "bag", "embedding": {"dim": 4}}
    )
    assert "family" not in other.domains
    assert other.pretrained is None


def test_finetune_searches_every_encoder_that_is_named(encoder_folder, table, seconds, tmp_path):
    """Starts, kinds of training, adapters, rates, steps and batches, and nothing but these."""
    other = write_sentence_transformer(
        tmp_path / "other", write_bert(tmp_path / "bert", seed=1), pooling="cls"
    )
    space = with_labels_of(space_of("finetune"), table)
    encoders = [f"st:{encoder_folder}", "static:none", f"st:{other}"]
    space, line = with_pretrained_family(space, encoders, table)
    assert line == ""
    assert {params["family"] for params in space.edges()} == {"pretrained"}
    configs = [space.config(params) for params in space.edges()]
    assert {config.encoder.path for config in configs} == {str(encoder_folder), str(other)}
    assert {config.encoder.lora and config.encoder.lora.rank for config in configs} == {None, 4, 16}
    assert {config.training.batch_size for config in configs} == {16, 32}
    assert {config.objective.type for config in configs} == {"contrast", "task"}


@pytest.mark.parametrize(
    ("epoch", "steps"), [(0.1, [50, 100, 200, 400]), (60.0, None), (3.0, [50, 100])]
)
def test_family_has_the_steps_that_time_is_enough_for(encoder_folder, table, seconds, epoch, steps):
    """Fewer than a hundred teach nothing: then it is left out, and a line says by how much."""
    seconds["epoch"] = epoch
    limits = {"limits.time": "20m", "limits.trials": 2, "limits.concurrent": 1}
    space, line = joined("everything", table, encoder_folder, **limits, **FAMILIES)
    if steps is None:
        assert "no trial starts from tiny-en" in line
        assert "of the 100 steps that teach something" in line
        assert "pretrained" not in space.domains["family"].options
        return
    assert line == ""
    assert list(space.domains["training.steps"].options) == steps
    assert "from tiny-en: a step takes" in space.fitted["training.steps"]


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ({"choice": [50, 100, 200, 400]}, [50, 100]),
        ({"choice": {"few": 60, "many": 300}}, ["few"]),
        ({"randint": [20, 400]}, (20, 100)),
        ({"choice": [200, 400]}, None),
    ],
)
def test_steps_stay_among_those_that_the_user_wrote(encoder_folder, table, seconds, written, left):
    """In whatever form; where the time is too short for the fewest of them no trial starts from the encoder."""
    seconds["epoch"] = 3.0
    limits = {"limits.time": "20m", "limits.trials": 2, "limits.concurrent": 1}
    values = space_of("everything").written()
    values["pretrained"]["search"]["training.steps"] = written
    values["pretrained"]["first"] = []
    space = with_overrides(
        with_values(space_of("everything"), values),
        [Override(name, value, "--set") for name, value in {**limits, **FAMILIES}.items()],
    )
    space, line = with_pretrained_family(space, [f"st:{encoder_folder}"], table)
    if left is None:
        assert "of the 200 steps" in line
        return
    assert line == ""
    steps = space.domains["training.steps"]
    if isinstance(steps, Interval):
        assert steps.low == left[0]
        assert left[1] <= steps.high < 200
        return
    assert list(steps.options) == left


def test_batches_hold_two_rows_of_each_class(encoder_folder, table, seconds):
    """Also where an interval of sizes is searched."""
    values = space_of("finetune").written()
    values["pretrained"]["search"]["training.batch_size"] = {"randint": [2, 40]}
    values["pretrained"]["first"] = []
    space = with_labels_of(with_values(space_of("finetune"), values), table)
    space, _ = with_pretrained_family(space, [f"st:{encoder_folder}"], table)
    sizes = space.domains["training.batch_size"]
    assert (sizes.low, sizes.high) == (4, 40)


def test_tasks_that_no_family_can_learn_leave_the_space_as_it_was(encoder_folder, table, seconds):
    """Two tasks, and no encoder."""
    space = space_of("everything", SpaceOptions(set=FAMILIES))
    for encoders, tasks in (
        ([], table),
        ([f"st:{encoder_folder}"], TaskSet.resolve([table.tasks[0].spec, "docs-library"])),
    ):
        left, line = with_pretrained_family(space, encoders, tasks)
        assert line == ""
        assert left.domains == space.domains


def test_sweep_of_a_table_learns_from_the_encoder_and_answers(encoder_folder, tmp_path):
    """Both kinds are tried; the best is a member that learned all rows, and its predictions of rows chose."""
    table = write_table(tmp_path / "reviews.csv", num_rows=90)
    run = tmp_path / "run"
    ended = raysent.sweep(
        tasks=[str(table)],
        run=run,
        pretrained=[str(encoder_folder)],
        trials=2,
        time="20m",
        labels=[],
        set={"training.steps": 50, "training.learning_rate": 0.05},
        progress=False,
    )
    assert ended.status == "completed"
    configs = [load_run(path) for path in sorted((run / "trials").iterdir())]
    assert {config.objective.type for config in configs} == {"contrast", "task"}
    assert all(config.labels.rows.endswith("reviews.rows") for config in configs)
    assert {(config.training.steps, config.training.learning_rate) for config in configs} == {
        (50, 0.05)
    }
    (whole,) = (run / LEARNED_FOLDER).iterdir()
    assert len(part_folders(str(whole))) == 3
    assert load_run(whole).labels.held_out is None
    ((_, answer),) = read_answers(run)
    assert whole.name in {name for one in answer.candidates for name in one.members}
    assert answer.num_chosen == 60
    assert len(raysent.load(run / "best").predict(["the cat", "the dog"])) == 2
