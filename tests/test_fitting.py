"""Settings that fit text, machine and time, and the published ones."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_bert import write_bert
from tiny_run import write_corpus

from raysent import pipeline
from raysent.config import Document, Override, get_dotted, parse_yaml
from raysent.errors import ConfigError
from raysent.evaluation.task_set import TaskSet
from raysent.live import fitted_lines
from raysent.pipeline import arguments
from raysent.reproduction import read_paper
from raysent.sweeps import SweepRecord, load_record
from raysent.sweeps.fitting import (
    Situation,
    fit_space,
    fit_to_machine,
    fitted_settings,
    part_trained,
    with_possible_trials,
)
from raysent.sweeps.layout import Machines
from raysent.sweeps.machines import machines_at, this_machine
from raysent.sweeps.record import save_record
from raysent.sweeps.space import (
    SearchSpace,
    apply_overrides,
    find_space,
    parse_space,
    read_space,
    with_overrides,
)
from raysent.sweeps.space.space import FAMILY
from raysent.sweeps.speed import RunSeconds, recent_run_s
from raysent.training.data import open_training_data
from raysent.training.plan import check_run
from raysent.training.run import RunConfig
from raysent.training.validation import DownstreamConfig

NOVELS = Situation(num_train=97_000, num_words=16_000)
BOOKS = Situation(num_train=70_000_000, num_words=900_000, has_gpu=True)
FITTED = (
    "quick_thoughts",
    "quick_thoughts_bow",
    "multichannel",
    "skip_thoughts",
    "multiview_generative",
    "infersent",
)


# The kinds that take equally long.
ONE_CHANNEL = "search.family={choice: [uni, bi]}"


def fitted(name: str, situation: Situation, *, set: tuple[str, ...] = (), speed=None):
    """Return a shipped space with values for a situation."""

    def seconds(configs: list[RunConfig]) -> RunSeconds:
        return RunSeconds(
            sum(100.0 * config.encoder.dim / 300 for config in configs) / len(configs)
        )

    return fit_space(
        read_space(find_space(name), overrides=list(set)), situation, speed=speed or seconds
    )


def test_fit_space_of_few_sentences_on_cores_is_narrow():
    """Widths, batches and words shrink to what twelve novels and a core carry; the text is read one and a half times."""
    space = fitted("quick_thoughts", NOVELS)
    training = space.config({}).training
    assert space.config({}).vocabulary.size == 16_002
    assert space.config({}).encoder.embedding.vectors == "ppmi"
    assert list(space.domains["encoder.hidden_size"].options) == [300]
    assert list(space.domains["training.batch_size"].options) == [200]
    assert training.epochs == 1.5
    assert space.domains["training.learning_rate"].edges() == [1.5e-3, 6e-3]


def test_fit_space_of_many_sentences_on_a_gpu_keeps_the_values_of_the_file():
    """Only the passes are chosen there, and the rates of many steps among those of the file."""
    space, written = fitted("quick_thoughts", BOOKS), read_space(find_space("quick_thoughts"))
    rate = "training.learning_rate"
    assert space.domains[rate].edges() == [1e-4, 2e-3]
    assert {**space.domains, rate: None} == {**written.domains, rate: None}
    assert space.config({}).model_copy(update={"training": None}) == written.config({}).model_copy(
        update={"training": None}
    )
    assert space.config({}).training.epochs == 1.0


@pytest.mark.parametrize(
    ("trial_s", "epochs", "reports", "num_sentences"),
    [(130.0, 1.3, 9, 10_000), (60.0, 0.6, 4, 4_000)],
)
def test_fit_space_uses_the_time_of_a_trial(trial_s, epochs, reports, num_sentences):
    """Passes are the trial's time over that of a pass; a short trial reports less."""
    situation = Situation(
        97_000, 16_000, trial_s=trial_s, limit="time 12m for 4 trials, 2 at a time"
    )
    config = fitted("quick_thoughts", situation, set=(ONE_CHANNEL,)).config({})
    assert (config.training.epochs, config.training.num_reports) == (epochs, reports)
    assert config.validation.num_sentences == num_sentences


def test_fit_space_takes_the_widest_encoder_that_reads_the_text_often_enough():
    """300, 600 and 1200 take 100, 200 and 400 s a pass: about 150 s in the mean of the first two, 233 s of all."""
    widths = {
        trial_s: list(
            fitted("quick_thoughts", Situation(97_000, 16_000, trial_s=trial_s))
            .domains["encoder.hidden_size"]
            .options
        )
        for trial_s in (100.0, 300.0, 3000.0)
    }
    assert widths == {100.0: [300], 300.0: [300, 600], 3000.0: [300, 600, 1200]}


def test_fit_space_leaves_most_of_the_time_to_training():
    """Validations of 20 s: five of them are a fifth of 500 s; the rest of the time is for passes of 300 s."""
    situation = Situation(97_000, 16_000, trial_s=500.0)
    space = fitted(
        "quick_thoughts",
        situation,
        set=("encoder.hidden_size=300",),
        speed=lambda _: RunSeconds(300.0, 20.0),
    )
    assert (space.config({}).training.num_reports, space.config({}).training.epochs) == (5, 1.3)


def test_fit_space_counts_the_steps_that_a_run_may_take():
    """`max_steps` ends a run before its passes do, for the choice of the rate and for its reason."""
    few = fitted("quick_thoughts", BOOKS, set=("training.max_steps=400",))
    assert few.fitted["training.learning_rate"].startswith("about 400 steps")
    many = fitted("quick_thoughts", BOOKS, set=("training.max_steps=60000",))
    assert many.fitted["training.learning_rate"].startswith("about 60,000 steps")


@pytest.mark.parametrize(
    ("written", "few", "many"),
    [
        ([1e-5, 1e-4], [1e-5, 1e-4], [1e-5, 1e-4]),
        ([1e-3, 1e-2], [1.5e-3, 6e-3], [1e-3, 2e-3]),
        ([2e-3, 3e-3], [2e-3, 3e-3], [2e-3, 3e-3]),
    ],
)
def test_fit_space_stays_in_the_interval_of_rates_that_is_written(written, few, many):
    """Rates outside of it are none that the user wants, even where they are usual."""
    values = read_space(find_space("quick_thoughts")).written()
    values["search"]["training.learning_rate"] = {"loguniform": written}
    space = parse_space(Document(values=values, source="own.yaml"), name="own")
    for situation, rates in ((NOVELS, few), (BOOKS, many)):
        found = fit_space(space, situation, speed=lambda _: RunSeconds(100.0))
        assert found.domains["training.learning_rate"].edges() == pytest.approx(rates)


@pytest.mark.parametrize(("lora", "rates"), [(None, [1e-6, 1e-4]), ({"rank": 2}, [1e-4, 1e-3])])
def test_fit_space_knows_the_rates_of_pretrained_encoders(tmp_path, lora, rates):
    """Those of weights, and of adapters; no interval of an encoder that begins with random values."""
    encoder = {"type": "pretrained", "path": str(write_bert(tmp_path / "bert")), "lora": lora}
    values = {
        "base": {"encoder": encoder, "objective": {"type": "masked_words"}},
        "search": {"training.learning_rate": {"loguniform": [1e-7, 1e-1]}},
        "metric": "nll",
        "fit": ["training.learning_rate"],
    }
    space = parse_space(Document(values=values, source="own.yaml"), name="own")
    found = fit_space(space, NOVELS, speed=lambda _: RunSeconds(100.0))
    assert found.domains["training.learning_rate"].edges() == rates
    assert "of a pretrained encoder" in found.fitted["training.learning_rate"]


def test_fit_space_limits_passes_and_says_so():
    """A text is not read without end, and the plan says what uses the time."""
    space = fitted("quick_thoughts", Situation(97_000, 16_000, trial_s=1e6))
    assert space.config({}).training.epochs == 1.5
    assert "raise limits.trials" in space.fitted["training.epochs"]


def test_fit_space_reaches_the_members_and_the_searched_encoders():
    """One name is that of every encoder that is written or searched."""
    options = fitted("skip_thoughts", NOVELS).domains["encoder"].options
    assert options["uni"]["hidden_size"] == 300
    assert {one["hidden_size"] for one in options["combine"]["members"].values()} == {300}
    members = fitted("multichannel", Situation(2_000, 200)).config({}).encoder.members
    assert {one.embedding.dim for one in members.values()} == {200}


def test_fit_space_keeps_the_size_of_word_vectors_that_a_file_has():
    """The size of vectors in a file is not chosen."""
    space = fitted(
        "quick_thoughts", Situation(2_000, 200), set=("encoder.embedding.vectors=glove.txt",)
    )
    assert space.config({}).encoder.embedding.dim == 300


@pytest.mark.parametrize(
    ("trials", "scheduler", "part"),
    [(4, "asha", 1.0), (5, "asha", 0.6), (24, "asha", 0.6), (24, "none", 1.0)],
)
def test_part_trained_counts_on_early_stopping_among_many_trials_alone(trials, scheduler, part):
    """Two rounds of trials, or all without early stopping, are planned to end."""
    limits = (f"limits.trials={trials}", f"limits.scheduler={{type: {scheduler}}}")
    assert (
        part_trained(read_space(find_space("quick_thoughts"), overrides=list(limits)), at_once=2)
        == part
    )


@pytest.mark.parametrize("name", FITTED)
def test_fit_space_leaves_nothing_to_fit_and_is_valid(name):
    """Whatever the situation, the result is a valid space that is not fitted again."""
    for situation in (NOVELS, BOOKS, Situation(300, 40, has_bfloat16=True, trial_s=10.0)):
        space = fitted(name, situation)
        assert not space.fit
        written = read_space(find_space(name))
        assert set(space.fitted) <= {*written.fit, *([FAMILY] if written.kinds else [])}
        assert fit_space(space, BOOKS, speed=lambda _: RunSeconds(1.0)) is space


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("training.epochs=7.0", "training.epochs"),
        ("encoder.hidden_size=64", "encoder.hidden_size"),
        ("search.encoder.hidden_size={choice: [64, 1200]}", "encoder.hidden_size"),
        ("training={batch_size: 64, epochs: 1.0}", "training.epochs"),
    ],
)
def test_a_given_value_is_not_fitted(text, name):
    """A value of `--set` decides, whether it is the name's own, a whole section's or what is searched."""
    written = read_space(find_space("quick_thoughts"), overrides=[text])
    space = fit_space(written, NOVELS, speed=lambda _: RunSeconds(1.0))
    assert name not in space.fitted
    assert space.domains.get(name) == written.domains.get(name)
    base, base_written = (one.document.values["base"] for one in (space, written))
    assert get_dotted(base, name) == get_dotted(base_written, name)


def test_a_given_value_of_encoders_is_set_where_it_is_fitted():
    """In both encoders, in members and in searched encoders, which stay searched; a member's own value is kept."""
    sizes = ("encoder.embedding.dim=24", "encoder.hidden_size=32")
    space = read_space(find_space("skip_thoughts"), overrides=list(sizes))
    for label in ("uni", "bi", "combine"):
        encoder = space.config({"encoder": label}).encoder
        for one in encoder.members.values() if label == "combine" else [encoder]:
            assert (one.hidden_size, one.embedding.dim, one.embedding.vectors) == (32, 24, "ppmi")
    assert space.evaluation.stratify_by == "encoder"
    for name in ("multiview_discriminative", "multiview_generative"):
        config = read_space(find_space(name), overrides=list(sizes)).config({})
        assert [one.embedding.dim for one in (config.encoder, config.second_encoder)] == [24, 24]
        assert [one.hidden_size for one in (config.encoder, config.second_encoder)] == [32, 32]
    own = "encoder.members.fixed.hidden_size=48"
    for given in ((own, *sizes), (*sizes, own)):
        space = read_space(find_space("multichannel"), overrides=list(given))
        assert [one.hidden_size for one in space.config({}).encoder.members.values()] == [48, 32]
        assert not [name for name in (*space.domains, *space.fit) if name.startswith("encoder")]
    space = read_space(find_space("everything"), overrides=list(sizes))
    views = space.config({"family": "view_agreement"})
    assert (views.encoder.hidden_size, views.second_encoder.hidden_size) == (32, 32)
    assert space.config({"family": "cse"}).encoder.embedding.dim == 24


@pytest.mark.parametrize("name", ["skip_thoughts", "multichannel", "everything"])
def test_a_wrong_value_of_encoders_names_the_option(name):
    """Wherever it is set, the error is of the option, not of a line of the file."""
    with pytest.raises(ConfigError, match=r"^--set encoder.hidden_size=-3: must be greater"):
        read_space(find_space(name), overrides=["encoder.hidden_size=-3"])
    with pytest.raises(ConfigError, match=r"^--set encoder.hidden_sizes=3: "):
        read_space(find_space(name), overrides=["encoder.hidden_sizes=3"])


def test_a_given_value_is_set_in_searched_encoders_that_leave_it_out():
    """A default is replaced too, in a member of a member, where the encoder takes the name; and conditions go."""
    member = "{type: gru, bidirectional: true}"
    space = parse_yaml(f"""
base:
  encoder: {{type: gru}}
  objective: {{type: context_prediction}}
search:
  encoder:
    choice:
      gru: {{type: gru}}
      bag: {{type: bag}}
      deep: {{type: concat, members: {{inner: {{type: concat, members: {{a: {member}}}}}, b: {member}}}}}
  encoder.hidden_size: {{choice: [300, 600]}}
when:
  encoder.hidden_size: {{encoder: gru}}
fit: [encoder.hidden_size]
""")
    space = parse_space(apply_overrides(space, ["encoder.hidden_size=32"]), name="own")
    assert list(space.domains) == ["encoder"]
    assert space.config({"encoder": "gru"}).encoder.hidden_size == 32
    members = space.config({"encoder": "deep"}).encoder.members
    assert (members["inner"].members["a"].hidden_size, members["b"].hidden_size) == (32, 32)
    with pytest.raises(ConfigError, match="'base' must be a mapping"):
        apply_overrides(
            parse_yaml("base: docs\nfit: [encoder.hidden_size]"), ["encoder.hidden_size=32"]
        )


DOCUMENTS = replace(NOVELS, num_documents=12)
TASKS = DownstreamConfig(tasks=["MR", "TREC"], max_rows=1000)


@pytest.mark.parametrize(
    ("situation", "metric", "validation", "why"),
    [
        (
            NOVELS,
            "context_accuracy",
            {},
            "no tasks are named, and the text has 0 of the 10 documents of 100 sentences",
        ),
        (
            DOCUMENTS,
            "document_accuracy",
            {"documents": 10},
            "no tasks are named; a probe says which of the 10 largest",
        ),
        (
            replace(DOCUMENTS, tasks=TASKS),
            "downstream",
            {"downstream": {"tasks": ["MR", "TREC"], "max_rows": 1000}},
            "probes on the tasks that are named: MR, TREC",
        ),
    ],
)
def test_fit_space_ranks_by_named_tasks_then_documents_then_the_metric_of_the_file(
    situation, metric, validation, why
):
    """The reason is recorded, and a space that is read again has the metric as a plain value."""
    space = fitted("quick_thoughts", situation)
    assert space.metric == metric
    assert metric in space.config({}).metrics
    assert space.document.values["base"].get("validation", {}) == validation
    assert space.fitted["metric"].startswith(why)
    assert fitted_lines(space)[1].split()[:2] == ["metric", metric]
    assert fitted_settings(space)[0].values == (metric,)


def test_documents_that_the_text_lacks_are_left_out_where_tasks_rank():
    """`adapt` counts documents; a text of one document and a task is no mistake."""
    for situation, documents in ((NOVELS, None), (DOCUMENTS, 10)):
        space = fitted("adapt", replace(situation, tasks=TASKS))
        assert (space.metric, space.document.values["base"]["validation"]["documents"]) == (
            "downstream",
            documents,
        )


@pytest.mark.parametrize(
    ("set", "tasks", "metric"),
    [
        (("metric=context_nll",), TASKS, "context_nll"),
        (("validation.downstream.tasks=[SUBJ]",), TASKS, "downstream"),
        (("validation.documents=5",), None, "document_accuracy"),
    ],
)
def test_a_metric_or_what_it_is_measured_on_that_is_set_decides(set, tasks, metric):
    """A user's metric is kept, and so are the user's own tasks and number of documents."""
    space = fitted("quick_thoughts", replace(DOCUMENTS, tasks=tasks), set=set)
    assert space.metric == metric
    assert ("metric" in space.fitted) == (metric != "context_nll")
    validation = space.config({}).validation
    assert (validation.documents, validation.downstream and validation.downstream.tasks) == (
        5 if metric == "document_accuracy" else None,
        ["SUBJ"] if metric == "downstream" else None,
    )


def test_published_settings_leave_the_metric_to_be_chosen():
    """A paper publishes no metric of a sweep."""
    space = arguments.space_of("quick_thoughts", arguments.SpaceOptions(scale="paper"))
    assert space.fit in ([], ["metric"])
    assert fit_space(space, DOCUMENTS, speed=None).metric == "document_accuracy"


def test_ranking_tasks_are_those_that_are_named():
    """Tasks that are merely there do not count; many tasks share the rows."""
    space = read_space(find_space("quickstart"))
    tasks = TaskSet.resolve(["docs-library", "docs-neighbours"])
    assert arguments.ranking_tasks(space, replace(tasks, are_named=False)) is None
    assert arguments.ranking_tasks(space, TaskSet()) is None
    named = arguments.ranking_tasks(space, tasks)
    assert named == DownstreamConfig(tasks=["docs-library", "docs-neighbours"], max_rows=1000)


def test_fit_of_an_empty_list_uses_the_values_as_written():
    """`--set fit=[]` turns it off."""
    space = read_space(find_space("quick_thoughts"), overrides=["fit=[]"])
    assert fit_space(space, NOVELS, speed=lambda _: RunSeconds(1.0)) is space


def test_fit_of_an_unknown_name_is_one_line():
    """The error has the file and the line."""
    text = "fit: [training.clip]\nbase: {encoder: {type: gru}, objective: {type: context_prediction}}\n"
    with pytest.raises(ConfigError, match=r"^s.yaml:1: fit.0: must be"):
        parse_space(parse_yaml(text, source="s.yaml"), name="s")


def test_fit_to_machine_records_plain_values(tmp_path):
    """What is read from `sweep.json` is not fitted again; the record adds the form in which text is read."""
    path = write_corpus(tmp_path)
    overrides = [
        Override(
            "corpus",
            {"path": str(path), "format": "sentences", "cache_dir": str(tmp_path / "cache")},
            "--corpus",
        ),
        Override("limits", {"trials": 2, "time": "40s"}, "--time"),
        Override("encoder.hidden_size", 16, "--set"),
    ]
    space = fit_to_machine(read_space(find_space("quick_thoughts"), overrides=overrides))
    config = space.config({})
    assert (config.encoder.embedding.dim, config.vocabulary.size) == (40, 42)
    assert any(
        line.split()[:2] == ["training.epochs", str(config.training.epochs)]
        for line in fitted_lines(space)
    )
    save_record(tmp_path, SweepRecord(space, seed=0))
    read = load_record(tmp_path).space
    expected_base = {**space.document.values["base"]}
    expected_base["vocabulary"] = {**expected_base["vocabulary"], "unicode_form": "NFC"}
    assert read.document.values == {**space.document.values, "base": expected_base}
    assert fit_to_machine(read) is read


@pytest.mark.parametrize(
    ("search", "more", "trials"),
    [
        (
            "encoder.bidirectional: {choice: [false, true]}, training.batch_size: {choice: [10, 20]}",
            "",
            4,
        ),
        (
            "encoder.bidirectional: {choice: [false, true]}, training.batch_size: {randint: [2, 4]}",
            "",
            6,
        ),
        ("training.batch_size: {quniform: [10, 49, 10]}", "limits: {trials: 24, seeds: 3}", 12),
        ("training.batch_size: {quniform: [10, 49, 10]}", "limits: {trials: 5, seeds: 3}", 5),
        (
            "encoder.bidirectional: {choice: [false, true]}, encoder.dropout: {uniform: [0.0, 0.5]}",
            "",
            12,
        ),
        ("training.learning_rate: {choice: [0.001, 0.002]}", "", 2),
        (
            "training.learning_rate: {choice: [0.001, 0.002]}",
            "fit: [training.learning_rate]",
            12,
        ),  # from an interval
    ],
)
def test_trials_are_no_more_than_the_space_has(search, more, trials):
    """Of a space without intervals its configurations, times the seeds of each."""
    base = "base: {encoder: {type: gru}, objective: {type: context_prediction}}"
    space = parse_space(parse_yaml(f"{base}\nsearch: {{{search}}}\n{more}\n"), name="s")
    assert with_possible_trials(space).limits.trials == trials


def test_trials_of_a_small_space_have_all_the_time(tmp_path, monkeypatch):
    """Before the time is divided, and once more where values that became equal are one."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("raysent.sweeps.speed.seconds_of_steps", lambda *_: (0.01, 0.1))
    values = {"corpus.format": "sentences", "encoder.embedding.dim": 8, "objective.context_size": 1}
    values |= {"training.batch_size": 20, "training.learning_rate": 1e-3, "cost.trial": "1s"}
    values |= {
        "objective.type": "context_prediction",
        "search.family": {"choice": ["uni", "bi"]},
    }
    given = {
        "corpus": write_corpus(tmp_path),
        "metric": "context_accuracy",
        "tasks": [],
        "time": "40s",
    }
    planned = pipeline.plan(
        "quick_thoughts", set={**values, "encoder.hidden_size": 16}, progress=False, **given
    )
    assert "for 2 trials" in planned.space.fitted["training.epochs"]
    assert planned.estimate.reports[1][0] == 2
    line = next(line for line in fitted_lines(planned.space) if "limits.trials " in line)
    assert line.split(maxsplit=2) == ["limits.trials", "2", "the space has no more configurations"]
    monkeypatch.setattr(
        "raysent.sweeps.fitting.fit_space", lambda space, *_, **__: with_width(space)
    )
    assert (
        pipeline.plan("quick_thoughts", set=values, progress=False, **given).space.limits.trials
        == 2
    )


def with_width(space: SearchSpace) -> SearchSpace:
    """Return a space with the only width that fits."""
    return with_overrides(space, ["encoder.hidden_size=16"])


def test_settings_at_an_address_are_those_of_its_machines(tmp_path, monkeypatch):
    """The cores of the cluster's nodes, not of this machine, say how many trials train at once."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    nodes = [{"NodeID": name, "Alive": True, "Resources": {"CPU": 3.0}} for name in ("a", "b")]
    monkeypatch.setattr(
        "raysent.sweeps.machines.ray_session", lambda address: contextlib.nullcontext()
    )
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 6.0})
    monkeypatch.setattr("raysent.sweeps.machines.num_cores", lambda: 1)
    there = machines_at("10.0.0.1:6379", read_space(find_space("quick_thoughts")))
    assert (there.cpus, there.cpus_per_node, there.num_fitting(2, 0.0)) == (6, 3, 2)
    overrides = [
        Override(
            "corpus", {"path": str(write_corpus(tmp_path)), "format": "sentences"}, "--corpus"
        ),
        Override("limits", {"trials": 30, "time": "40s"}, "--time"),
        Override("encoder.hidden_size", 16, "--set"),
    ]
    space = fit_to_machine(
        read_space(find_space("quick_thoughts"), overrides=overrides), address="10.0.0.1:6379"
    )
    assert "30 trials, 6 at a time" in space.fitted["training.epochs"]


@pytest.mark.parametrize(
    ("quota", "period", "num"),
    [
        ("350000 100000", None, 3),
        ("50000 100000", None, 1),
        ("max 100000", None, 64),
        ("350000", "100000", 3),
        ("-1", "100000", 64),
        ("", None, 64),
    ],
)
def test_cores_of_this_machine_are_those_of_its_container(
    monkeypatch, tmp_path, quota, period, num
):
    """By either version of control groups; Ray starts trials on no others."""
    file, other = tmp_path / "quota", tmp_path / "period"
    file.write_text(quota + "\n")
    if period is not None:
        other.write_text(period + "\n")
    files = ((tmp_path / "none", tmp_path / "none"), (file, file if period is None else other))
    monkeypatch.setattr("raysent.platforms.QUOTA_FILES", files)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert this_machine().cpus == num


def test_budget_pays_for_every_machine_and_what_is_attached(tmp_path, monkeypatch):
    """Of a cluster that stands as of one that grows; disks and addresses cost as the machines do."""
    monkeypatch.setattr(
        "raysent.sweeps.fitting.fit_space", lambda _, situation, *, speed: situation
    )
    given = [
        "limits={trials: 16, scheduler: none}",
        "cost={machines: {m5.large: 1.0}, budget: 800usd}",
    ]
    text = Override(
        "corpus", {"path": str(write_corpus(tmp_path)), "format": "sentences"}, "--corpus"
    )

    def trial_s(machines: Machines, *more: str) -> float:
        space = read_space(find_space("quick_thoughts"), overrides=[text, *given, *more])
        return fit_to_machine(space, machines=machines).trial_s

    stands, grows = Machines(4, 0.0, 1, shapes=((1, 0.0),) * 4), Machines(4, 0.0, 1, num_nodes=4)
    assert trial_s(stands) == trial_s(grows)
    assert trial_s(stands, "cost.attached=1.0") == pytest.approx(trial_s(stands) / 2, rel=0.01)


def test_speed_is_measured_on_each_device(tmp_path, monkeypatch):
    """What a CPU needs says nothing of a GPU, within the hour either."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    speeds = iter([(0.5, 1.0), (0.05, 0.1)])
    monkeypatch.setattr("raysent.sweeps.speed.seconds_of_steps", lambda *_: next(speeds))
    text = Override(
        "corpus", {"path": str(write_corpus(tmp_path)), "format": "sentences"}, "--corpus"
    )
    config = read_space(
        find_space("quick_thoughts"), overrides=[text, "training.batch_size=20"]
    ).config({})
    data = open_training_data(config)
    measured = recent_run_s(config, data, num_threads=1)
    assert recent_run_s(config, data, num_threads=1) == measured
    monkeypatch.setattr("raysent.sweeps.speed.default_device", lambda: torch.device("meta"))
    assert recent_run_s(config, data, num_threads=1) == pytest.approx((measured[0] / 10, 0.1))


def test_sweep_gets_the_settings_that_its_plan_showed(tmp_path, monkeypatch):
    """For an hour, on the same text and with as many threads; a damaged file is measured anew."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    speeds = iter([(0.5, 1.0), (0.05, 0.1), (0.02, 0.1), (0.02, 0.1), (0.01, 0.1)])
    monkeypatch.setattr("raysent.sweeps.speed.seconds_of_steps", lambda *_: next(speeds))
    overrides = [
        Override(
            "corpus", {"path": str(write_corpus(tmp_path)), "format": "sentences"}, "--corpus"
        ),
        Override("limits", {"trials": 2, "time": "40s"}, "--time"),
        Override("encoder.hidden_size", 16, "--set"),
    ]

    def epochs() -> float:
        space = fit_to_machine(read_space(find_space("quick_thoughts"), overrides=overrides))
        return space.config({}).training.epochs

    planned = epochs()
    assert epochs() == planned
    [kept] = (tmp_path / "cache/speeds").iterdir()
    os.utime(kept, (0, 0))
    of_another_hour = epochs()
    assert of_another_hour > planned
    kept.write_text("[1.0, -1.0]")
    of_another_time = epochs()
    assert of_another_time >= of_another_hour
    changed = kept.read_text().replace('"epoch_s": ', '"epoch_s": 9')
    kept.write_text(changed)
    assert epochs() == of_another_time
    assert next(speeds) == (0.01, 0.1)  # each of the others was measured once


SPACES = Path(__file__).resolve().parent.parent / "search_spaces"
PUBLISHED = {
    path.stem: space.published
    for path in SPACES.glob("*.yaml")
    if (space := read_space(path)).published
}
# Nobody published the settings of these.
UNPUBLISHED = {"finetune", "quickstart", "adapt", "labels"}


def _paper_space(name: str) -> SearchSpace:
    space = read_space(find_space(name))
    overrides = pipeline.scale_overrides(space, "paper", data="there")
    if name == "sick_relatedness":
        overrides = [*overrides, Override("pairs.path", "SICK.txt", "--set")]
    return read_space(find_space(name), overrides=overrides)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_scale_paper_has_the_settings_of_the_reproduction(name):
    """They have one definition, in the paper's file; no more is searched than the grids that the space names."""
    published, space = PUBLISHED[name], _paper_space(name)
    choice = next(iter(published.choices), None)
    grids = {**published.paper_grid, **published.our_grid}
    assert set(space.domains) == {*grids, *published.choices}
    assert {other for name in grids for other in space.conditions.get(name, {})} <= set(space.domains)  # fmt: skip
    models = {"": published.model} if choice is None else published.choices[choice]
    for label, model in models.items():
        if isinstance(model, dict):
            continue
        paper, _, of_paper = model.rpartition("/")
        values = read_paper(paper or published.paper).values(of_paper, scale="paper", data=Path("there"))  # fmt: skip
        params = next(one for one in space.edges() if not choice or one[choice] == label)
        mine = space.values({name: value for name, value in params.items() if name == choice})
        for part in ("vocabulary", "encoder", "objective", "postprocessing", "code", "training"):
            if values.get(part) is not None:
                assert mine[part] == values[part], part
    assert space.fit in ([], ["metric"])
    assert {space.fitted[name] for name in published.paper_grid} <= {"the paper's grid"}
    assert {space.fitted[name] for name in published.our_grid} <= {"ours: the paper gives no grid"}


def test_every_space_of_a_paper_has_its_published_settings():
    """Each is searched at that size by one command."""
    spaces = {path.stem for path in SPACES.glob("*.yaml")}
    assert spaces == {*PUBLISHED, *UNPUBLISHED}


@pytest.mark.parametrize(
    ("name", "searched"),
    [
        ("quick_thoughts", {"objective.context_size": [1, 2, 3], "training.batch_size": [200, 400, 800], "encoder.hidden_size": [600, 1200, 2400], "objective.margin": [0.3, 1.0, 3.0]}),
        ("cse", {"objective.margin": [0.4, 0.6, 0.8], "objective.lambda_w": [2e-4, 2e-5, 2e-6], "training.batch_size": [32, 64, 128, 256]}),
        ("binary", {"objective.lambda_sp": [0.0, 0.2, 0.5, 0.8, 1.0], "code.bits": [512, 1024, 2048, 4096]}),
        ("quick_thoughts_bow", {"encoder.embedding.dim": [100, 300, 500], "training.batch_size": [500, 1000, 1500, 2000]}),
        ("multiview_discriminative", {"objective.context_size": [1, 2, 3, 4]}),
    ],
)  # fmt: skip
def test_scale_paper_searches_what_the_texts_searched(name, searched):
    """Also what they tuned without a grid; lambda_w is twice the text's, as our penalty is half of its."""
    domains = _paper_space(name).domains
    assert {one: list(domains[one].options) for one in searched} == searched


def test_scale_paper_gives_way_to_a_given_value():
    """`--set` decides over the published value and over the search of it."""
    space = read_space(find_space("quick_thoughts"))
    overrides = [*pipeline.scale_overrides(space, "paper"), "training.batch_size=64"]
    space = read_space(find_space("quick_thoughts"), overrides=overrides)
    for label in ("uni", "bi", "multichannel"):
        assert space.config({"family": label}).training.batch_size == 64
        assert space.config({"family": label}).training.learning_rate == 5e-4
    assert "training.batch_size" not in space.domains
    lines = fitted_lines(space)
    models = "'uni, bi, bi-fixed'"
    family = next(line for line in lines if line.startswith("  family "))
    assert f"published: Logeswaran and Lee, 2018, {models}" in family
    assert any("1 or 2 or 3" in line and "ours: the paper gives no grid" in line for line in lines)


def test_scale_paper_of_a_space_without_published_settings_is_one_line():
    """The error says what to use."""
    with pytest.raises(ConfigError, match=r"^scale paper: .* 'quickstart' has none"):
        pipeline.scale_overrides(read_space(find_space("quickstart")), "paper")


@pytest.mark.parametrize("num_train", [16, 45, 60, 120, 333, 2_413, 21_000])
def test_fitted_batches_are_filled_by_the_text(num_train):
    """Of every run that the space has; the reason counts the steps that a pass really has."""
    space = fitted("everything", Situation(num_train, 900, trial_s=60.0, limit="time 5m"))
    sizes = {space.config(params).training.batch_size for params in space.edges()}
    for params in space.edges():
        config = space.config(params)
        batches = config.objective.batches
        window = 2 * getattr(batches, "context_size", 0) + 1
        most = num_train if window == 1 else (num_train - window + 1) // window * window
        assert 2 <= config.training.batch_size <= most
    why = space.fitted["training.batch_size"]
    steps = int(why.rpartition(" then has ")[2].split()[0].replace(",", ""))
    assert steps == max(1, num_train // int(re.search(r"at most (\d+)", why)[1]))
    assert steps >= 4 or max(sizes) < 50


@pytest.mark.parametrize("num_rows", [15, 64])
def test_settings_for_a_small_text_pass_the_checks_of_a_run(tmp_path, num_rows):
    """What is fitted is never refused for a value that nobody wrote."""
    lines = [f"w{row % 9} w{row % 5} w{row % 7} w{row % 3} x{row}" for row in range(num_rows)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    corpus = {
        "path": str(tmp_path / "text.txt"),
        "format": "sentences",
        "validation_fraction": 0.3,
        "cache_dir": str(tmp_path / "cache"),
    }
    overrides = [
        Override("corpus", corpus, "--corpus"),
        Override("validation.num_candidates", 3, "--set"),
        Override("validation.downstream", None, "--set"),
        Override("metric", "context_accuracy", "--set"),
        Override("search.family", {"choice": ["quick_thoughts", "quick_thoughts_bow"]}, "--set"),
    ]
    space = fit_to_machine(read_space(find_space("everything"), overrides=overrides))
    for params in space.edges():
        config = space.config(params)
        check_run(config, open_training_data(config))


def test_reasons_are_of_settings_that_a_run_has():
    """A bag of words has no hidden size, a pretrained model its own words; a text without a choice says no more."""
    alone = Situation(2_413, 900, trial_s=81.0, limit="time 5m", with_neighbours=0.1)
    space = fitted("everything", alone)
    assert list(space.domains["family"].options) == ["binary"]
    assert "encoder.hidden_size" not in space.fitted
    assert "encoder.embedding.dim" in space.fitted
    assert "validation.num_sentences" not in space.fitted  # the file has fewer
    assert space.config(space.first_params()).validation.num_sentences == 2_000
    assert "encoder.hidden_size" in fitted("everything", NOVELS).fitted


def test_reasons_tell_what_a_limit_moved():
    """The least width, the least reports, half of the time for training, the most passes, and too few steps."""
    slow = fitted(
        "quick_thoughts",
        Situation(97_000, 16_000, trial_s=10.0, limit="time 4m"),
        set=(ONE_CHANNEL,),
    )
    why = slow.fitted["encoder.hidden_size"]
    assert why == "at most 300, the least: a trial then has time to read the text 0.1 times in 10s"
    assert slow.fitted["training.num_reports"] == "at most 4, as trials are short"
    steps = "48 steps teach next to nothing: limits.trials 7 or 3 times the time has 150"
    assert slow.fitted["training.epochs"].endswith(f"; {steps}")
    situation = Situation(97_000, 16_000, trial_s=200.0, limit="time 9m")
    busy = fitted("quick_thoughts", situation, speed=lambda _: RunSeconds(100.0, 30.0))
    least = "at most 3, the least that compares trials: a validation takes 30s"
    assert busy.fitted["training.num_reports"] == least
    half = fitted("quick_thoughts", situation, speed=lambda _: RunSeconds(100.0, 60.0))
    assert "more than half of it, and training has half" in half.fitted["training.epochs"]
    assert half.config({}).training.epochs == 1.0
    free = fitted("quick_thoughts", NOVELS).fitted["training.epochs"]
    assert free.endswith("; more than 1.5 would repeat the text too often")
    constant = fitted("quick_thoughts", NOVELS, set=("training.schedule=constant",))
    assert constant.fitted["training.learning_rate"] == "about 728 steps"


def test_families_that_cannot_be_left_out_are_not_said_to_learn():
    """Where nothing else is left, the reason against them stands."""
    text = """
base: {encoder: {type: gru}, objective: {type: context_prediction}}
search:
  family: {choice: {uni: {encoder: {type: gru}}, bow: {encoder: {type: bag}}}}
fit: [family]
"""
    written = parse_space(parse_yaml(text, source="s.yaml"), name="s")
    alone = replace(NOVELS, with_neighbours=0.1)
    space = fit_space(written, alone, speed=lambda _: RunSeconds(1.0))
    assert list(space.domains["family"].options) == ["uni", "bow"]
    assert space.fitted["family"] == (
        "uni, bow, as there is no other: 90% of the sentences stand alone in their document"
    )


def test_word_vectors_have_no_more_numbers_than_the_vocabulary_has_words():
    """Also where the vocabulary is given and not fitted."""
    space = fitted("quick_thoughts", NOVELS, set=("vocabulary.size=40",))
    assert space.config({}).encoder.embedding.dim == 40


def test_fitted_settings_have_values_and_reasons():
    """The plan has a line for each setting."""
    settings = {one.name: one for one in fitted_settings(fitted("quick_thoughts", NOVELS))}
    assert settings["encoder.hidden_size"].text == "300"
    assert settings["training.learning_rate"].text == "0.0015 to 0.006"
    assert settings["vocabulary.size"].why == "16,000 words occur at least 3 times"
