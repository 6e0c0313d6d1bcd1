"""Search spaces: domains, conditions, and mistakes told with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysent.config import Override, parse_yaml, shipped_path
from raysent.errors import ConfigError, DataError
from raysent.sweeps.space import (
    SETTINGS,
    Choice,
    Interval,
    SweepSettings,
    find_space,
    parse_space,
    read_space,
    schema,
    with_overrides,
)

SPACES = sorted((Path(__file__).parent.parent / "search_spaces").glob("*.yaml"))
BASE = """
base:
  encoder: {type: gru, hidden_size: 64}
  objective: {type: context_prediction}
search:
"""


def _space(search: str):
    return parse_space(parse_yaml(BASE + search, source="s.yaml"), name="s")


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_every_shipped_space_is_valid(path):
    """Each file of search_spaces/ passes the check at every edge."""
    space = read_space(path)
    assert space.name == path.stem
    assert space.config(space.first_params())


def test_relatedness_is_tuned_on_the_grids_of_paraphrases():
    """Jiao, Wang and Feng, section 4.2: "same as in Section 4.1"."""
    relatedness, paraphrases = (
        read_space(find_space(name)).domains for name in ("sick_relatedness", "cse")
    )
    for name in ("objective.lambda_w", "objective.lambda_c", "training.batch_size"):
        assert set(relatedness[name].options) == set(paraphrases[name].options)


def test_find_space_takes_a_bare_name_and_refuses_a_table():
    """`quick_thoughts` will do for its path."""
    assert find_space("quick_thoughts").stem == "quick_thoughts"
    with pytest.raises(
        ConfigError,
        match=r"given a table; to train on its labels, run 'raysent sweep --task reviews.csv'$",
    ):
        find_space("reviews.csv")


def test_parse_domain_understands_every_form():
    """Each form gives its bounds or labels; a quniform ends on its grid."""
    space = _space(
        "  training.learning_rate: {loguniform: [1e-4, 1e-2]}\n"
        "  training.batch_size: {quniform: [100, 450, 100]}\n"
        "  objective.context_size: {randint: [1, 3]}\n"
        "  encoder.dropout: {uniform: [0.0, 0.5]}\n"
        "  encoder.bidirectional: {choice: [false, true]}\n"
    )
    assert space.domains["training.learning_rate"] == Interval(1e-4, 1e-2, is_log=True)
    assert space.domains["training.batch_size"] == Interval(100, 400, step=100, is_integer=True)
    assert space.domains["objective.context_size"].edges() == [1, 3]
    assert space.domains["encoder.bidirectional"] == Choice({False: False, True: True})


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("  encoder.droput: {uniform: [0, 0.5]}\n", r"^s.yaml:6: search.encoder.droput: unknown name; did you mean 'dropout'\?"),
        ("  encoder.hidden_size: {choice: [64, many]}\n", r"^s.yaml:6: search.encoder.hidden_size: must be a valid integer; given 'many'"),
        ("  encoder.dropout: {loguniform: [0, 1]}\n", r"with 0 < low with low <= high; given \[0, 1\]"),
        ("  encoder.dropout: {uniform: [0.5, 0.1]}\n", r"low <= high; given \[0.5, 0.1\]"),
        ("  encoder.dropout: 0.5\n", r"^s.yaml:6: search.encoder.dropout: must be one of \{choice \|"),
        ("  encoder: {choice: {a: {type: gruu}}}\n", r"^s.yaml:6: search.encoder.choice.a.type: unknown type 'gruu'; did you mean 'gru'\?"),
    ],
)  # fmt: skip
def test_parse_space_tells_a_mistake_with_its_line(search, message):
    """A mistake in a domain is told at its line, checked against the models at every edge."""
    with pytest.raises(ConfigError, match=message):
        _space(search)


def test_parse_space_refuses_unknown_names_in_a_part_of_base_that_every_trial_replaces():
    """A part that the search replaces as a whole shows no mistake of `base` at any edge."""
    text = (
        "base:\n  encoder:\n    type: gru\n    droput: 0.5\n  objective: {type: context_prediction}\n"
        "search:\n  encoder: {choice: {small: {type: gru, hidden_size: 64}, words: {type: bag}}}\n"
    )
    with pytest.raises(
        ConfigError,
        match=r"^s.yaml:4: base.encoder.droput: unknown name; did you mean 'dropout'\?$",
    ):
        parse_space(parse_yaml(text, source="s.yaml"), name="s")
    assert parse_space(parse_yaml(text.replace("    droput: 0.5\n", ""), source="s.yaml"), name="s")


def test_conditions_leave_a_name_out_and_refuse_what_is_not_there():
    """A name under `when` is searched only with the values named."""
    search = (
        "  encoder.bidirectional: {choice: [false, true]}\n  encoder.hidden_size: {choice: [32, 64]}\n"
        "when:\n  encoder.hidden_size: {encoder.bidirectional: %s}\n"
    )
    space = _space(search % "true")
    assert space.is_active("encoder.hidden_size", {"encoder.bidirectional": True})
    assert not space.is_active("encoder.hidden_size", {"encoder.bidirectional": False})
    with pytest.raises(
        ConfigError,
        match=r"^s.yaml:9: when.encoder.hidden_size.encoder.bidirectional: no such value: 'maybe'",
    ):
        _space(search % "maybe")


def test_structured_choice_is_set_before_narrower_names(tmp_path):
    """A choice of whole encoders is set first; a name inside it then departs from it."""
    space = _space(
        "  encoder: {choice: {small: {type: gru, hidden_size: 8}, bag: {type: bag}}}\n"
        "  encoder.embedding.dim: {choice: [5, 7]}\n"
    )
    config = space.config({"encoder.embedding.dim": 7, "encoder": "small"})
    assert (config.encoder.hidden_size, config.encoder.embedding.dim) == (8, 7)


def test_overrides_replace_the_base_and_end_the_search(tmp_path):
    """--set reaches the base, the limits, and takes the name out of the search."""
    path = tmp_path / "s.yaml"
    path.write_text(BASE + "  training.batch_size: {choice: [2, 8]}\n")
    space = read_space(path, overrides=["training.batch_size=50", "limits.trials=3"])
    assert space.config({}).training.batch_size == 50
    assert (space.domains, space.limits.trials) == ({}, 3)


def test_overrides_inside_a_part_that_is_searched_as_a_whole_end_its_search(tmp_path):
    """The part is that of the base; names that depend on a label of it are not searched either."""
    path = tmp_path / "s.yaml"
    path.write_text(
        BASE
        + "  encoder: {choice: {a: {type: gru}, b: {type: bag}}}\n  encoder.dropout: {choice: [0.1, 0.2]}\n"
        "  training.batch_size: {choice: [2, 8]}\nwhen: {encoder.dropout: {encoder: a}}\n"
        "evaluation: {stratify_by: encoder}\n"
    )
    space = read_space(path, overrides=["encoder.hidden_size=5"])
    assert (list(space.domains), space.evaluation.stratify_by) == (["training.batch_size"], None)
    assert (space.config({}).encoder.type, space.config({}).encoder.hidden_size) == ("gru", 5)


@pytest.mark.parametrize("name", ["quickstart", "everything", "binary"])
def test_choice_of_mappings_in_a_shipped_space_is_one_line(name):
    """Without labels it is none of those that stand there; the one line says how to write it."""
    path = shipped_path(f"search_spaces/{name}.yaml")
    with pytest.raises(
        ConfigError, match=r"^--set search.encoder=.*: must be .* or choice: \{label: value, …\}"
    ):
        read_space(path, overrides=["search.encoder={choice: [{type: gru}, {type: bag}]}"])


def test_schema_describes_base_and_domains():
    """Editors get the run's own schema, and every form of a domain."""
    described = schema()
    assert "encoder" in described["properties"]["base"]["properties"]
    assert len(described["properties"]["search"]["additionalProperties"]["oneOf"]) == 5


def test_overrides_reach_conditions_and_evaluation(tmp_path):
    """A fixed name is no longer asked for by `when` or `evaluation.stratify_by`; what needs another value of it is not searched."""
    path = tmp_path / "s.yaml"
    path.write_text(
        BASE
        + "  encoder.bidirectional: {choice: [false, true]}\n  encoder.hidden_size: {choice: [32, 64]}\n"
        "when: {encoder.hidden_size: {encoder.bidirectional: true}}\nevaluation: {stratify_by: encoder.bidirectional}\n"
    )
    fixed = read_space(path, overrides=["encoder.bidirectional=true"])
    assert (list(fixed.domains), fixed.conditions, fixed.evaluation.stratify_by) == (
        ["encoder.hidden_size"],
        {},
        None,
    )
    assert read_space(path, overrides=["encoder.bidirectional=false"]).domains == {}


def test_overrides_are_named_by_their_mistakes(tmp_path):
    """What an option gave is told by the option, not by a line of the file that says something else."""
    path = tmp_path / "s.yaml"
    path.write_text(BASE + "  encoder: {choice: {a: {type: gru}, b: {type: bag}}}\n")
    with pytest.raises(ConfigError, match=r"^--set seed=x: must be a valid integer; given 'x'$"):
        read_space(path, overrides=["seed=x"])
    with pytest.raises(
        ConfigError, match=r"^--trials -1: must be greater than or equal to 0; given -1$"
    ):
        read_space(path, overrides=[Override("limits.trials", -1, "--trials -1")])
    with pytest.raises(ConfigError, match=r"^--time 0m: must be above 0; given '0m'$"):
        read_space(path, overrides=[Override("limits.time", "0m", "--time 0m")])
    space = with_overrides(read_space(path, overrides=["corpus.path=none.txt"]), ["seed=1"])
    error = DataError("corpus.path: none.txt: must hold sentences")
    assert (
        str(space.located(error, space.first_params()))
        == "--set corpus.path=none.txt: must hold sentences"
    )
    both = ["encoder.hidden_size=5", "search.encoder={choice: {a: {type: bag}}}"]
    with pytest.raises(
        ConfigError,
        match=r"^--set encoder.hidden_size=5: 'encoder' is searched as a whole and would",
    ):
        read_space(path, overrides=both)
    with pytest.raises(
        ConfigError,
        match=r"^--set search.encoder=.*: another option sets a value in 'encoder', which",
    ):
        read_space(path, overrides=both[::-1])


def test_located_adds_the_place_of_the_value_that_an_error_names():
    """Mistakes found after reading point at the line, or are left alone where they name no value."""
    space = _space("  training.batch_size: {choice: [2, 8]}\n")
    error = DataError("training.batch_size: must be at most 7")
    assert (
        str(space.located(error, {"training.batch_size": 8}))
        == "s.yaml:6: training.batch_size: must be at most 7"
    )
    assert (
        str(space.located(DataError("encoder.hidden_size: no"), {}))
        == "s.yaml:3: encoder.hidden_size: no"
    )
    assert str(space.located(DataError("text.txt:3: no"), {})) == "text.txt:3: no"


def test_override_of_search_gives_a_name_another_domain(tmp_path):
    """A domain can be replaced, or added, from the command line."""
    path = tmp_path / "s.yaml"
    path.write_text(BASE + "  training.batch_size: {choice: [2, 8]}\n")
    space = read_space(path, overrides=["search.training.batch_size={choice: [4, 6]}"])
    assert space.domains["training.batch_size"].edges() == [4, 6]
    with pytest.raises(
        ConfigError,
        match=r"^--set search.training.batch_size=.*: must be greater than or equal to 2; given 1",
    ):
        read_space(path, overrides=["search.training.batch_size={choice: [1, 6]}"])


FAMILIES = """
base:
  encoder: {type: gru, hidden_size: 8}
  objective: {type: context_prediction}
  training: {batch_size: 20, learning_rate: 0.1}
search:
  family:
    choice:
      quick: {training: {batch_size: 40}}
      skip: {objective: {type: sentence_decoding}, encoder: {type: gru, hidden_size: 4}}
      bow: {encoder: {type: bag}}
  encoder.hidden_size: {choice: [6, 12]}
  objective.decoder: {choice: [cond, init]}
when:
  encoder.hidden_size: {family: [quick, skip]}
  objective.decoder: {family: skip}
"""


def test_family_sets_several_parts_of_a_run_at_once(tmp_path):
    """What names a type replaces a part, the rest adds to it; narrower names are set afterwards."""
    path = tmp_path / "s.yaml"
    path.write_text(FAMILIES)
    space = read_space(path)
    quick = space.config({"encoder.hidden_size": 12, "family": "quick"})
    assert (quick.training.batch_size, quick.training.learning_rate, quick.encoder.hidden_size) == (
        40,
        0.1,
        12,
    )
    skip = space.config({"family": "skip", "encoder.hidden_size": 6, "objective.decoder": "init"})
    assert (skip.objective.type, skip.objective.decoder, skip.encoder.hidden_size) == (
        "sentence_decoding",
        "init",
        6,
    )
    path.write_text(FAMILIES.replace("{type: bag}", "{type: bag, poling: sum}"))
    with pytest.raises(
        ConfigError,
        match=r"^.*s.yaml:11: search.family.choice.bow.encoder.poling: unknown name; did",
    ):
        read_space(path)


def test_given_value_holds_in_every_family_that_takes_it():
    """Whether a family names it, or replaces the part that it stands in; both encoders and members have it too."""
    given = [
        "encoder.hidden_size=128",
        "training.batch_size=100",
        "encoder.embedding.dim=50",
        "encoder.dropout=0.5",
    ]
    space = read_space(find_space("everything"), overrides=given)
    runs = {params["family"]: space.config(params) for params in space.edges()}
    assert len(runs) == 10
    assert {run.training.batch_size for run in runs.values()} == {100}
    members = runs.pop("multichannel").encoder.members.values()
    assert {(member.hidden_size, member.embedding.dim) for member in members} == {(128, 50)}
    assert {(run.encoder.dropout, run.encoder.embedding.dim) for run in runs.values()} == {
        (0.5, 50)
    }
    assert {getattr(run.encoder, "hidden_size", 128) for run in runs.values()} == {128}
    assert {
        run.second_encoder.hidden_size for run in runs.values() if run.second_encoder is not None
    } == {128}


@pytest.mark.parametrize("given", ["seed=3", "search.seed={choice: [3, 4]}"])
def test_seed_is_not_set_where_each_trial_has_its_own(tmp_path, given):
    """With several seeds it trained the same trial several times."""
    path = tmp_path / "s.yaml"
    path.write_text(FAMILIES)
    read_space(path, overrides=[given])
    with pytest.raises(
        ConfigError, match=r"^--set .*seed=.*: must be left out with limits.seeds above 1"
    ):
        read_space(path, overrides=[given, "limits.seeds=2"])


def test_given_value_of_a_family_is_refused_at_its_option(tmp_path):
    """Not at the line of the family, where it does not stand."""
    path = tmp_path / "s.yaml"
    path.write_text(FAMILIES.replace("quick: {training", "quick: {encoder: {type: gru}, training"))
    with pytest.raises(
        ConfigError, match=r"^--set encoder.hidden_size=-5: must be greater than or equal to 1"
    ):
        read_space(path, overrides=["encoder.hidden_size=-5"])


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "everything",
            "family={choice: [quick_thoughts, binry]}",
            "no such label 'binry'; did you mean 'binary'?",
        ),
        ("everything", "family={choice: [binry]}", "no such label 'binry'; did you mean 'binary'?"),
        (
            "labels",
            "objective={choice: [contrast, taks]}",
            "no such label 'taks'; did you mean 'task'?",
        ),
        (
            "everything",
            "family={uniform: [0, 1]}",
            "must be choice: {label: {part of a run: values, …}, …}",
        ),
    ],
)
def test_typo_in_a_label_is_named(name, given, message):
    """In place of a line of the space that no longer finds its label."""
    with pytest.raises(ConfigError) as refused:
        read_space(find_space(name), overrides=[f"search.{given}"])
    assert str(refused.value) == f"--set search.{given}: {message}"


@pytest.mark.parametrize(
    "domain", ["{choice: [a, b]}", "{uniform: [0, 1]}", "{choice: {a: null, b: {}}}"]
)
def test_family_of_a_space_is_a_choice_of_mappings(domain):
    """Refused in a line."""
    base = "base: {encoder: {type: gru}, objective: {type: context_prediction}}\n"
    with pytest.raises(
        ConfigError, match=r"search.family: must be choice: \{label: \{part of a run: values"
    ):
        parse_space(parse_yaml(f"{base}search: {{family: {domain}}}\n"), name="toy")


def test_labels_of_a_choice_can_be_left_out(tmp_path):
    """They keep what they stand for; names that only the others have are not searched."""
    path = tmp_path / "s.yaml"
    path.write_text(FAMILIES)
    space = read_space(path, overrides=["search.family={choice: [quick, bow]}"])
    assert list(space.domains) == ["family", "encoder.hidden_size"]
    assert space.conditions["encoder.hidden_size"]["family"] == ["quick"]
    assert space.config({"family": "bow"}).encoder.type == "bag"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: ../../..\n", "name: must be letters, digits, spaces and _.+=-"),
        ("name: a/b\n", "name: must be letters"),
    ],
)
def test_space_refuses_a_name_outside_runs(text, message):
    """Before anything is planned."""
    base = "base: {encoder: {type: gru}, objective: {type: context_prediction}}\n"
    with pytest.raises(ConfigError, match=message):
        parse_space(parse_yaml(base + text), name="toy")


@pytest.mark.parametrize("values", ["[1, 1]", "[1, true, 1.0]", "[0, 2, false]", "[1, 1.0]"])
def test_choice_of_one_value_twice_is_refused(values):
    """1, 1.0 and true are one value of Python, whatever draws one of them."""
    text = f"search: {{training.clip: {{choice: {values}}}}}\n"
    with pytest.raises(ConfigError, match="with distinct values; given"):
        parse_space(parse_yaml(text), name="toy")


def test_arguments_of_a_sweep_are_its_settings():
    """Type checkers know each setting by name; the tasks have an argument of their own."""
    assert SweepSettings.__annotations__.keys() == SETTINGS.keys() - {"tasks"}
