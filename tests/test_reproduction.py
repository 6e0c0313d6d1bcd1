"""Reproduction: papers' files, the graph's cost, made models, tables, and verdicts on claims."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from reference import bag, without_top_component
from scipy import stats
from tiny_run import write_corpus

from benchmarks.claims import claims_page, holm, reported_difference
from raysent.cli.console import DASH
from raysent.config import Document, validate
from raysent.data.vocabulary import Vocabulary, WordVectors
from raysent.errors import ConfigError, DataError
from raysent.evaluation.records import SimilarityScore
from raysent.models import SentenceModel, expand, load
from raysent.models.config import ModelConfig
from raysent.models.sentence_encoder import normalize_rows
from raysent.reproduction import commands, estimate, known_papers, read_paper, reproduce, scores
from raysent.reproduction.files import ClaimEntry, PaperFile
from raysent.reproduction.making import (
    Graph,
    MeanOf,
    OfTested,
    all_lines,
    caption_pairs,
    complete_pairs,
    letters,
    of_tested,
    represent,
)
from raysent.reproduction.reported import reported_tables
from raysent.reproduction.run import (
    absent_tasks,
    plan_reproduction,
    planned_run,
    protocol_of_claim,
)
from raysent.reproduction.scores import (
    ClaimResult,
    Column,
    claim_result,
    figure_of,
    reported_rows,
)
from raysent.reproduction.tasks import senteval, similarity
from raysent.storage import read_json, read_json_lines, write_json_lines
from raysent.training.outcome import load_reports

# The graph of a paper of two encoders, on a toy text.
TOY = """
paper: Logeswaran and Lee, 2018
title: Toy
scales:
  small:
    protocol: fast
    machine: {flops: 1.0e+9, usd_per_hour: 1.0}
    data:
      text: {path: text.txt, sentences: 120}
      absent: {path: nowhere, about: text that nobody has}
    bases:
      contexts: &contexts
        corpus: {path: "{text}", format: sentences, validation_fraction: 0.2, cache_dir: CACHE}
        encoder: {type: gru, hidden_size: 8, bidirectional: true, embedding: {dim: 6}}
        objective: {type: context_prediction}
        training: {batch_size: 24, max_steps: 4, num_reports: 2}
        validation: {num_candidates: 20, num_sentences: 40}
      other:
        corpus: {path: "{absent}"}
        encoder: {type: bag, embedding: {dim: 6}}
        objective: {type: context_prediction}
models:
  gru: {train: contexts}
  bag: {train: contexts, run: {encoder: {type: bag, embedding: {dim: 6}}}}
  both: {compose: [gru, bag]}
  mean: {represent: gru, run: {encoder: {encode_pooling: [mean, max]}, postprocessing: {remove_component: true, num_sentences: 40}}}
  f: {blocks: [0], of: gru}
  words: {bag: gru}
  pooled: {ensemble: [gru, bag]}
  away: {train: other}
tables:
  "1":
    title: All
    tasks: [CR, MR]
    rows: {uni-QT: gru, combine: both, mean: mean, f: f, words: words, pooled: pooled, away: away}
claims:
  first: {claim: a GRU is better, better: gru, worse: bag, tasks: [CR], place: table 1, before: ["seed 9: undecidable"]}
  later: {claim: images, needs: image features}
  gone: {claim: another text, better: away, worse: gru, tasks: [CR]}
"""  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data with a text and one small task, and the toy paper's file."""
    folder = tmp_path_factory.mktemp("toy")
    write_corpus(folder)
    (folder / "senteval/CR").mkdir(parents=True)
    for name, words in (("pos", "w1 w2 w3"), ("neg", "w20 w21")):
        lines = [f"{words} w{number % 7}" for number in range(60)]
        (folder / f"senteval/CR/custrev.{name}").write_text("\n".join(lines) + "\n")
    (folder / "toy.yaml").write_text(TOY.replace("CACHE", str(folder / "cache")))
    return folder


@pytest.fixture(autouse=True)
def _small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senteval, "NUM_ROWS", dict.fromkeys(senteval.NUM_ROWS, 60))


def toy(folder: Path, **options):
    """Reproduce the toy paper."""
    options = {"data": folder, "output": folder / "out", "seeds": (0, 1), **options}
    return reproduce(str(folder / "toy.yaml"), **options)


def test_reproduce_makes_every_kind_of_model_and_evaluates_it(folder: Path):
    """A table has a score for each row, a reason for each row without one, and the reported figures."""
    (table,) = toy(folder, tables=["1"]).tables
    assert set(table.ours) == {"uni-QT", "combine", "mean", "f", "words", "pooled"}
    assert all(0 <= scores["CR"] <= 100 for scores in table.ours.values())
    assert table.skipped == {"away": f"needs text that nobody has ({folder / 'nowhere'})"}
    assert table.reported["uni-QT"] == {"CR": 82.8, "MR": 77.2}
    assert table.tasks == ("CR", "MR")
    assert read_json(folder / "out/results.json")["tables"]["1"]["ours"] == table.ours
    gru, both = (load(folder / "out/models" / name / "0") for name in ("gru", "both"))
    assert both.get_sentence_embedding_dimension() == gru.get_sentence_embedding_dimension() + 12


def test_reproduce_keeps_what_is_made(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A second call trains nothing and gives the same scores; a changed setting is made again."""
    before = toy(folder, tables=["1"]).tables
    monkeypatch.setattr(Graph, "_train", lambda *_: pytest.fail("trained again"))
    assert toy(folder, tables=["1"]).tables == before
    monkeypatch.undo()
    paper = read_paper(str(folder / "toy.yaml"))
    graph = Graph(paper, "small", folder, folder / "out")
    values = paper.model_dump()
    values["models"]["gru"]["run"] = {"encoder": {"hidden_size": 10}}
    changed = Graph(validate(PaperFile, Document(values)), "small", folder, folder / "out")
    assert changed.key("gru", 0) != graph.key("gru", 0)
    assert changed.key("both", 0) != graph.key("both", 0)
    assert changed.key("bag", 0) == graph.key("bag", 0)


def test_reproduce_begins_nothing_after_its_limit(folder: Path, tmp_path: Path):
    """Every model is skipped with the reason."""
    found = reproduce(str(folder / "toy.yaml"), data=folder, output=tmp_path, max_hours=0.0)
    assert set(found.tables[0].skipped.values()) >= {"not begun: the limit of 0 hours is reached"}
    assert not found.tables[0].ours


def test_claims_compare_both_arms_on_every_seed(folder: Path):
    """Runs of the same seeds, paired; a claim that cannot run says what it needs; the page lists all of them."""
    found = {claim.name: claim for claim in toy(folder, tables=[], claims=["all"]).claims}
    assert len(found["first"].better) == len(found["first"].worse) == 2
    weights = [
        SentenceModel.load(folder / "out/models/gru" / seed).tensors()["f.words.weight"]
        for seed in "01"
    ]
    assert not np.array_equal(*weights)
    assert (found["later"].verdict, found["later"].reason) == ("not run", "image features")
    assert found["gone"].verdict == "not run"
    page = claims_page([(str(folder / "toy.yaml"), folder / "out")])
    assert "| a GRU is better | table 1 |" in page
    assert "| images | *ours* |" in page
    assert "- Toy: a GRU is better – seed 9: undecidable" in page
    assert page.startswith(
        "3 comparisons: 1 stated in a paper (1 undecidable); 2 ours (2 not run)."
    )
    assert page.count("*not run*") == 2
    assert claims_page([(str(folder / "toy.yaml"), folder / "nothing")]).count("*not run*") == 3


def _toy_claim(folder: Path, **claim) -> ClaimResult:
    """Return the verdict on a claim that is added to the toy paper."""
    values = yaml.safe_load((folder / "toy.yaml").read_text())
    values["claims"] = {"own": {"claim": "it holds", **claim}}
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(values))
    (found,) = reproduce(
        str(path), data=folder, output=folder / "out", tables=[], claims=["own"], seeds=(0, 1)
    ).claims
    return found


def test_a_claim_may_compare_a_metric_of_the_runs(folder: Path):
    """Of their last reports, in percent; an unknown one is named."""
    found = _toy_claim(folder, better="gru", worse="bag", metric="context_accuracy")
    reports = [
        load_reports(folder / "out/models/gru" / seed)[-1].metrics["context_accuracy"]
        for seed in "01"
    ]
    assert found.better == pytest.approx([100 * value for value in reports])
    unknown = _toy_claim(folder, better="gru", worse="bag", metric="context_accurcy")
    assert unknown.verdict == "not run"
    known = "context_accuracy, context_nll, loss"
    assert unknown.reason == f"gru: metric context_accurcy: must be one of gru's: {known}"


def test_a_claim_that_cannot_be_measured_leaves_the_others(folder: Path):
    """Of a model that is not trained there is no metric; the claims after it are run."""
    values = yaml.safe_load((folder / "toy.yaml").read_text())
    values["claims"] = {
        "never": {
            "claim": "words learn",
            "better": "words",
            "worse": "both",
            "metric": "context_accuracy",
        },
        "then": {"claim": "a GRU is better", "better": "gru", "worse": "bag", "tasks": ["cr"]},
    }
    (folder / "several.yaml").write_text(yaml.safe_dump(values))
    options = {
        "data": folder,
        "output": folder / "out",
        "tables": [],
        "claims": ["never", "then"],
        "seeds": (0, 1),
    }
    never, then = reproduce(str(folder / "several.yaml"), **options).claims
    assert (
        never.reason
        == "words: metric context_accuracy: must be one of words's: none, as it is not trained"
    )
    assert (never.verdict, len(then.better)) == ("not run", 2)


def test_a_claim_is_judged_on_all_its_tasks(folder: Path):
    """Those whose files are not there are named."""
    found = _toy_claim(folder, better="gru", worse="bag", tasks=["CR", "SUBJ", "STS14"])
    assert (found.verdict, found.reason) == ("not run", "needs the files of SUBJ, STS14")


def test_what_was_made_of_other_data_is_made_again(folder: Path):
    """By its path, in the file or by another folder of data; what does not read it keeps its key."""
    values = read_paper(str(folder / "toy.yaml")).model_dump(exclude_none=True)
    values["models"] |= {"average": {"average": "vectors"}, "side": {"compose": ["average", "gru"]}}

    def keys(path: str, data: Path = folder) -> list[str]:
        values["scales"]["small"]["data"]["vectors"] = {"path": path}
        graph = Graph(validate(PaperFile, Document(values)), "small", data, folder / "out")
        return [graph.key(name, 0) for name in ("average", "side", "gru")]

    glove, word2vec, moved = (
        keys("glove.txt"),
        keys("word2vec.txt"),
        keys("glove.txt", folder / "more"),
    )
    assert [one == other for one, other in zip(glove, word2vec, strict=True)] == [
        False,
        False,
        True,
    ]
    assert glove[0] != moved[0]
    assert glove == keys("glove.txt")


def test_results_of_another_scale_are_not_kept(folder: Path):
    """Tables of a small scale are none of the published settings."""
    values = yaml.safe_load((folder / "toy.yaml").read_text())
    values["scales"]["paper"] = values["scales"]["small"]
    (folder / "scales.yaml").write_text(yaml.safe_dump(values))
    options = {"data": folder, "output": folder / "out", "claims": ["later"]}
    reproduce(str(folder / "scales.yaml"), tables=["1"], **options)
    reproduce(str(folder / "scales.yaml"), tables=[], scale="paper", **options)
    results = read_json(folder / "out/results.json")
    assert (results["scale"], results["tables"], list(results["claims"])) == (
        "paper",
        {},
        ["later"],
    )


def test_a_claim_may_compare_the_speed_of_a_search(folder: Path):
    """Each model searches rows of its own size; the page says what was searched."""
    found = _toy_claim(folder, better="bag", worse="gru", searched=20_000)
    assert min(found.better + found.worse) > 0
    page = claims_page([(str(folder / "own.yaml"), folder / "out")])
    assert "| queries in a millisecond, of 20,000 rows |" in page


def test_a_claim_may_rank_images(folder: Path):
    """Features that are a map of the captions' own words are found by a model of words; without them it is not run."""
    asked = {"better": "bag", "worse": "gru", "images": "coco"}
    assert (
        _toy_claim(folder, **asked).reason
        == f"needs features of images ({folder / 'coco/images.npy'})"
    )
    (folder / "coco").mkdir()
    generator = np.random.default_rng(0)
    words = [f"w{number}" for number in range(30)]
    turn = generator.standard_normal((30, 16))
    lines, features = ["image\tsplit\tcaption"], []
    for image, split in enumerate(["train"] * 40 + ["dev"] * 20 + ["test"] * 20):
        chosen = generator.choice(30, 3, replace=False)
        lines += [f"{image}\t{split}\t{' '.join(words[word] for word in chosen)}"] * 2
        features.append(turn[chosen].sum(0))
    np.save(folder / "coco/images.npy", np.stack(features).astype(np.float32))
    (folder / "coco/captions.tsv").write_text("\n".join(lines) + "\n")
    found = _toy_claim(folder, **asked)
    assert found.verdict != "not run"
    assert all(0 < recall <= 100 for recall in found.better + found.worse)
    assert "| recalls of images and captions |" in claims_page(
        [(str(folder / "own.yaml"), folder / "out")]
    )


def test_a_search_of_codes_is_that_of_packed_bits(monkeypatch: pytest.MonkeyPatch):
    """Eight bits are a byte; vectors are float32."""
    seen = []

    def searched(rows, queries, *, k):
        seen.append((rows.shape, rows.dtype, queries.shape, k))

    monkeypatch.setattr(scores, "nearest_codes", searched)
    monkeypatch.setattr(scores, "nearest_vectors", searched)
    for measure in ("hamming", "cosine"):
        encoder = SimpleNamespace(
            get_sentence_embedding_dimension=lambda: 12, similarity_measure=measure
        )
        assert scores.search_speed(encoder, 500, seed=0) > 0
    assert seen[0] == ((500, 2), np.uint8, (100, 2), 10)
    assert seen[-1] == ((500, 12), np.float32, (100, 12), 10)


def test_a_claim_may_compare_two_protocols(folder: Path):
    """Each arm is evaluated with its own; the page names both."""
    found = _toy_claim(folder, better="bag", worse="bag", tasks=["CR"], protocols=["fast", "kiros"])
    alone = _toy_claim(folder, better="bag", worse="gru", tasks=["CR"])
    assert found.better == alone.better
    with pytest.raises(ConfigError, match="kirso"):
        _toy_claim(folder, better="bag", worse="bag", tasks=["CR"], protocols=["fast", "kirso"])
    _toy_claim(folder, better="bag", worse="bag", tasks=["CR"], protocols=["fast", "kiros"])
    page = claims_page([(str(folder / "own.yaml"), folder / "out")])
    assert "| bag (fast) " in page
    assert "| bag (kiros) " in page


@pytest.mark.parametrize(("seconds", "verdict"), [(0.0, "run"), (1e9, "not run")])
def test_a_claim_may_ask_for_no_more_time(folder: Path, seconds: float, verdict: str):
    """An arm that trained longer leaves the claim not run, with both times."""
    toy(folder, tables=[], claims=["first"])
    for seed in "01":
        path = folder / "out/models/gru" / seed / "reports.jsonl"
        reports = [{**report, "seconds": seconds} for report in read_json_lines(path)]
        write_json_lines(path, reports)
    found = _toy_claim(folder, better="gru", worse="bag", tasks=["CR"], is_in_time=True)
    assert (found.verdict == "not run") == (verdict == "not run")
    assert found.reason.startswith("seed 0: gru trained 1000000000 s, bag ") == (
        verdict == "not run"
    )


@pytest.mark.parametrize(
    ("better", "margin", "verdict"),
    [
        ([2.0, 3.0, 2.5], 0.0, "reproduced"),
        ([-2.0, -3.0, -2.5], 0.0, "refuted at this size"),
        ([-1.0, 3.0, 0.5], 0.0, "undecidable"),
        ([-0.2, -0.1, -0.15], -0.5, "reproduced"),
        ([2.0, 3.0, 2.5], 4.0, "refuted at this size"),
    ],
)
def test_verdict_is_the_sign_of_the_paired_interval(better, margin, verdict):
    """Student's interval of the paired differences, beside the margin; p is that of Student's test of the margin."""
    worse = [60.0, 70.0, 50.0]
    entry = ClaimEntry(claim="one is better", better="a", worse="b", margin=margin)
    found = claim_result(
        "one", entry, better=np.add(better, worse).tolist(), worse=worse, seeds=(7, 8, 9)
    )
    assert (found.verdict, found.margin, found.seeds) == (verdict, margin, (7, 8, 9))
    low, high = stats.t.interval(0.95, 2, loc=np.mean(better), scale=stats.sem(better))
    assert found.interval == pytest.approx((low, high))
    assert found.difference == pytest.approx(np.mean(better))
    assert found.p == pytest.approx(stats.ttest_1samp(better, margin).pvalue)
    assert (found.p < 0.05) == (verdict != "undecidable")


def test_differences_without_spread_are_certain():
    """Equal differences of all seeds: p is 0 beside another margin, and 1 at it."""
    entry = ClaimEntry(claim="one is better", better="a", worse="b", margin=1.0)
    found = [
        claim_result("one", entry, better=[gap, gap], worse=[0.0, 0.0], seeds=(0, 1))
        for gap in (2.0, 1.0)
    ]
    assert [(one.verdict, one.p) for one in found] == [("reproduced", 0.0), ("undecidable", 1.0)]


def test_holm_is_the_step_down_of_its_paper():
    """Rejected at a level: the smallest p-values while each is at most the level over the number that are left."""
    p_values = [*np.random.default_rng(1).uniform(0, 0.08, 12).round(3).tolist(), 0.9, 0.9, 1.0]
    adjusted = holm(p_values)
    for level in (0.01, 0.05, 0.2):
        rejected = set()
        for place, one in enumerate(sorted(range(15), key=p_values.__getitem__)):
            if p_values[one] > level / (15 - place):
                break
            rejected.add(one)
        assert rejected == {place for place, p_value in enumerate(adjusted) if p_value <= level}
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_a_page_has_verdicts_before_and_after_all_claims(tmp_path: Path, folder: Path):
    """One of three claims, p of 0.02: alone it is below 0.05, times three it is not; the margin stands beside."""
    result = {
        "verdict": "reproduced",
        "better": [2.0, 3.0],
        "worse": [1.0, 1.0],
        "seeds": [20, 21],
        "p": 0.02,
    }
    result |= {"difference": 1.5, "interval": [0.1, 2.9]}
    (tmp_path / "results.json").write_text(json.dumps({"claims": {"first": result}}))
    page = claims_page([(str(folder / "toy.yaml"), tmp_path)])
    row = "| **reproduced** | undecidable | gru 2.50 | bag 1.00 | +1.50 [+0.10, +2.90] |  | 20 to 21 | CR |  |"
    assert row in page
    (tmp_path / "results.json").write_text(json.dumps({"claims": {"first": {**result, "p": 0.01}}}))
    assert "| **reproduced** | reproduced |" in claims_page([(str(folder / "toy.yaml"), tmp_path)])


@pytest.mark.parametrize("name", known_papers())
def test_claims_agree_with_the_paper_where_its_tables_have_both_arms(name: str):
    """A claim of a paper's table is what the figures of that table show; a table that is named is one of the paper."""
    paper = read_paper(name)
    numbers = {table.table for table in reported_tables() if table.paper == paper.paper}
    checked = 0
    for claim, entry in paper.claims.items():
        named = re.findall(r"tables? (\d+(?: of the appendix)?)(?: and (\d+))?", entry.place)
        # The recalls of images are no scores of tasks.
        assert {
            number for pair in named for number in pair if number
        } <= numbers or claim == "image-ranking", claim
        reported = reported_difference(paper, entry)
        if entry.place != "ours" and reported is not None:
            assert reported > entry.margin, f"{claim}: the paper has {reported:+.2f}"
            checked += 1
    assert checked >= {"binary_codes": 7, "cse": 5, "multi_view": 2}.get(name, 1)
    ours = sum(entry.place == "ours" for entry in paper.claims.values())
    assert (
        ours
        == {"binary_codes": 12, "cse": 8, "multi_view": 2, "quick_thoughts": 2, "skip_thoughts": 2}[
            name
        ]
    )


@pytest.mark.parametrize(
    ("name", "claim", "difference"),
    [
        ("quick_thoughts", "combine-over-uni", 0.73),
        ("quick_thoughts", "combine-over-bi", 1.03),
        ("quick_thoughts", "mc-over-combine", 1.55),
        ("quick_thoughts", "uni-equals-bi", -0.30),
        ("quick_thoughts", "more-text", 1.88),
        ("quick_thoughts", "ensemble-over-best", 0.53),
        ("quick_thoughts", "bow-over-rnn-sts", 16.00),
        ("cse", "universal-over-scratch", 1.38),
        ("skip_thoughts", "skip-over-bow", 2.89),
        ("skip_thoughts", "features", 2.15),
    ],
)
def test_the_papers_own_difference_is_that_of_its_rows(name, claim, difference):
    """Computed by hand from the texts; a reader judges a verdict beside it."""
    paper = read_paper(name)
    assert reported_difference(paper, paper.claims[claim]) == pytest.approx(difference, abs=0.006)


def test_represent_changes_the_test_representation_alone(folder: Path):
    """Pooled states in place of the last one; the weights stay, and the first singular vector is fitted anew."""
    toy(folder, tables=["1"])
    source = folder / "out/models/gru/0"
    before = SentenceModel.load(source)
    after = represent(source, {"encoder": {"encode_pooling": ["mean", "max", "min", "last"]}})
    assert after.get_sentence_embedding_dimension() == 4 * before.get_sentence_embedding_dimension()
    np.testing.assert_array_equal(
        after.tensors()["f.words.weight"], before.tensors()["f.words.weight"]
    )
    last = after.encode(["w1 w2"]).reshape(2, 4, 8)[:, 3]
    last /= np.linalg.norm(last, axis=1, keepdims=True)
    np.testing.assert_allclose(last, before.encode(["w1 w2"]).reshape(2, 8), atol=1e-6)
    removed = load(folder / "out/models/mean/0")
    assert removed.postprocessing.is_fitted_to_text


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("name", known_papers())
def test_shipped_papers_are_valid_at_both_scales(name: str, scale):
    """Every run's values are checked, every figure of a row is found, and every claim has arms or says what it needs."""
    paper = read_paper(name)
    trained = [model for model, entry in paper.models.items() if entry.train is not None]
    plan = {
        one.name: one
        for one in estimate(
            paper, list(paper.models), scale=scale, data=Path("/nowhere"), counts=()
        )
    }
    assert set(plan) == set(paper.models)
    assert all(plan[model].missing for model in trained)
    assert all(
        (claim.better and claim.worse and claim.measured) or claim.needs
        for claim in paper.claims.values()
    )
    for number, table in paper.tables.items():
        known = reported_rows(paper, number, table)
        for row, entry in table.models().items():
            is_reported = any(known.values()) or number[0].isdigit()
            assert bool(known.get(row)) == (is_reported and not entry.is_ours), (
                f"table {number}, {row}: reported figures"
            )


@pytest.mark.parametrize("name", known_papers())
def test_estimate_of_shipped_papers_counts_every_objective(name: str):
    """A model of each objective has parameters, whatever that needs of the vocabulary."""
    paper, data = read_paper(name), Path("/nowhere")
    trained = [model for model, entry in paper.models.items() if entry.train is not None]
    runs = {model: paper.values(model, scale="small", data=data) for model in trained}
    counted = {run["objective"]["type"]: model for model, run in runs.items()}.values()
    plan = {
        one.name: one for one in estimate(paper, trained, scale="small", data=data, counts=counted)
    }
    assert counted
    assert all(plan[model].parameters > 0 for model in counted)


@pytest.mark.parametrize(
    ("model", "millions"), [("efficiency-qt", 19.806), ("efficiency-st", 57.709)]
)
def test_parameters_are_those_of_the_paper(model: str, millions: float):
    """Appendix C of Quick-Thoughts counts 19.8 and 57.7 million."""
    paper = read_paper("quick_thoughts")
    found = estimate(paper, [model], scale="paper", data=Path("/nowhere"))[0]
    assert found.parameters / 1e6 == pytest.approx(millions, abs=5e-4)
    assert found.reported == pytest.approx(found.parameters / 1e6, abs=0.05)


def test_estimate_adds_operations_bytes_and_launches(folder: Path):
    """4 steps of 24 sentences of 12 words: six operations a parameter and token, Adam of the words read, launches."""
    paper = read_paper(str(folder / "toy.yaml"))
    (found,) = estimate(paper, ["gru"], scale="small", data=folder)
    gru = 2 * 2 * 3 * (4 * 6 + 4 * 4 + 4 + 4)
    assert found.steps == 4
    assert found.parameters == gru + 2 * 50_000 * 6
    tables, tokens = 2 * 50_000 * 6, 24 * 12
    of_step = (
        6 * gru * tokens / 1e9
        + 32 * (gru + tables * tokens / 50_000) / 8e9
        + (300 + 2 * 12 * 12) * 1e-5
    )
    assert found.hours == pytest.approx(4 * of_step / 3600)
    assert found.usd == pytest.approx(found.hours)


def test_estimate_of_a_code_has_its_fixed_encoder(folder: Path):
    """Two operations for each of its parameters and the tokens of the text, which it reads once in twelve steps."""
    values = read_paper(str(folder / "toy.yaml")).model_dump(exclude_none=True)
    changes = {
        "code": {"type": "autoencoder", "bits": 8},
        "encoder": None,
        "objective": {"type": "reconstruction"},
        "training": {"max_steps": 12, "epochs": 3.0},
    }
    values["models"]["code"] = {"train": "contexts", "initial": "gru", "run": changes}
    values["scales"]["small"]["data"]["text"]["sentences"] = 96  # 4 steps of 24 sentences
    found = estimate(validate(PaperFile, Document(values)), ["code"], scale="small", data=folder)[
        -1
    ]
    # Both towers, without their words.
    code, gru, steps = 2 * 8 * 16 + 8 + 16, 2 * 2 * 3 * (4 * 6 + 4 * 4 + 4 + 4), 12
    of_step = (
        (6 * code + 2 * gru / 3) * 24 * 12 / 1e9 + 32 * code / 8e9 + (300 + 2 * 12 * 12) * 1e-5
    )
    assert (found.parameters, found.steps) == (code, steps)
    assert found.hours == pytest.approx(steps * of_step / 3600, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": {"x": {"train": "contexts", "bag": "gru"}}}, "must have exactly one of train"),
        ({"models": {"x": {"compose": ["gru", "gur"]}}}, "no model 'gur'; did you mean 'gru'"),
        ({"models": {"x": {"bag": "y"}, "y": {"bag": "x"}}}, "is made of itself"),
        ({"models": {"x": {"train": "context"}}}, "scale small has no base 'context'"),
        ({"models": {"x": {"average": "vectors"}}}, "scale small has no dataset 'vectors'"),
        (
            {
                "tables": {
                    "2": {"title": "x", "tasks": ["CR"], "rows": {"a": "gru"}, "protocol": "kiro"}
                }
            },
            "'kiro' is unknown; did you",
        ),
    ],
)
def test_paper_files_are_checked(folder: Path, change, message: str):
    """One error that names the model."""
    values = read_paper(str(folder / "toy.yaml")).model_dump(exclude_none=True)
    for part, entries in change.items():
        values[part] |= entries
    with pytest.raises(ConfigError, match=message):
        validate(PaperFile, Document(values))


def test_reproduce_refuses_unknown_names(folder: Path):
    """A paper, a table, a claim, with the nearest name."""
    with pytest.raises(
        ConfigError, match=r"^PAPER: no paper 'quick_thought'; did you mean 'quick_thoughts'"
    ):
        read_paper("quick_thought")
    with pytest.raises(ConfigError, match=r"^tables 2: no such table; known: 1$"):
        toy(folder, tables=["2"])
    with pytest.raises(ConfigError, match=r"^claims frist: no such claim; did you mean 'first'"):
        toy(folder, claims=["frist"])
    with pytest.raises(
        ConfigError, match=r"^seeds: must be at least two different ones; given 3, 3"
    ):
        toy(folder, seeds=(3, 3))


def test_caption_pairs_are_two_of_each_training_image(tmp_path: Path):
    """Flickr30k's lines; a file of another kind is an error."""
    import gzip

    images = [
        {"split": "train", "captions": list("abcde")},
        {"split": "val", "captions": list("fghij")},
    ]
    with gzip.open(tmp_path / "captions.gz", "wt") as stream:
        stream.writelines(json.dumps(image) + "\n" for image in images)
    assert caption_pairs(tmp_path / "captions.gz") == ["a\tb\n", "c\td\n"]


def test_complete_pairs_are_the_lines_of_two_columns(tmp_path: Path):
    """Lines of one column, of three, or of an empty one are left out."""
    import gzip

    with gzip.open(tmp_path / "words.gz", "wt") as stream:
        stream.write("a\tb\nV\nc\td\te\nf\t\ng\th\n")
    assert complete_pairs(tmp_path / "words.gz") == ["a\tb\n", "g\th\n"]
    assert len(all_lines(tmp_path / "words.gz")) == 5
    (tmp_path / "bad.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"must hold columns, as gzipped text"):
        complete_pairs(tmp_path / "bad.gz")


def test_pairs_for_training_lose_the_sentences_of_tests(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """However they are tokenized, on either side; also if the task's file came after a file had been derived."""
    import gzip

    monkeypatch.setitem(similarity.SET_SIZES, "SICK-R-similarity", {"test": 1})
    (tmp_path / "senteval/SICK").mkdir(parents=True)
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    rows = header + "1\tA man 's dog runs\tTwo dogs sit\t3\tX\n"
    with gzip.open(tmp_path / "pairs.gz", "wt") as stream:
        stream.write("a man's dog runs.\tx\nx\tTwo dogs sit!\nTwo dogs\tsit\n")
    values = read_paper(str(folder / "toy.yaml")).model_dump(exclude_none=True)
    seen = set()
    for derive, num_lines in (("lines", 3), ("lines", 1), ("complete_pairs", 1)):
        pairs = {"path": "pairs.gz", "derive": derive, "without": ["SICK-R-similarity"]}
        values["scales"]["small"]["data"] |= {"pairs": pairs}
        graph = Graph(validate(PaperFile, Document(values)), "small", tmp_path, tmp_path / "out")
        graph.derive()
        (found,) = {*(tmp_path / "out/derived").iterdir()} - seen
        assert len(found.read_text().splitlines()) == num_lines
        derived = graph.paper.scales["small"].data["pairs"]
        assert found.name == derived.derived("pairs", tmp_path)
        assert found.name != derived.model_copy(update={"path": "other.gz"}).derived(
            "pairs", tmp_path
        )
        seen.add(found)
        (tmp_path / "senteval/SICK/SICK_test_annotated.txt").write_text(rows)
    assert letters("A man's dog!") == letters("a man 's dog")
    values["scales"]["small"]["data"]["pairs"] = {"path": "pairs.gz", "without": ["STS15"]}
    with pytest.raises(ConfigError, match="without: needs derive"):
        validate(PaperFile, Document(values))


def test_cse_drops_words_where_sentences_continue_phrases():
    """At scale `paper`, as in section 4.1; trained on one corpus alone it drops none."""
    paper, configs = read_paper("cse"), {}
    for name in paper.order(["cumulative", "sentence"]):
        configs[name] = planned_run(paper, name, configs, scale="paper", data=Path("data"))
    dropped = {name: config.encoder.embedding.dropout for name, config in configs.items()}
    assert dropped == {"phrase": 0.0, "cumulative": 0.1, "sentence": 0.0}


def test_estimate_of_penalized_words_reads_the_whole_table():
    """CSE, 100,000 words of 300 numbers: 64 bytes each at every step; a bag of trained words reads those of its batch."""
    paper = read_paper("cse")
    (found,) = estimate(paper, ["phrase"], scale="paper", data=Path("/nowhere"))
    assert (
        found.hours * 3600 / found.steps
        > 64 * 100_000 * 300 / paper.scales["paper"].machine.bandwidth
    )
    assert 0.2 < found.hours < 2
    bag = estimate(read_paper("quick_thoughts"), ["bow"], scale="paper", data=Path("/nowhere"))[0]
    assert 0.01 < bag.hours < 2


def test_estimate_of_a_code_leaves_out_its_frozen_source():
    """A code of 128 bits of 300 numbers and its decoder; the source's words are read, not trained."""
    paper = read_paper("binary_codes")
    found = {
        one.name: one for one in estimate(paper, ["words-ae"], scale="small", data=Path("/nowhere"))
    }["words-ae"]
    assert found.parameters == 2 * 300 * 128 + 128 + 300
    assert found.hours > 0


def test_methods_without_training_are_not_trained():
    """Their rows of a table cost a step each, and not 12.6 hours of a decoder that no evaluation reads."""
    planned = {one.name: one for one in plan_reproduction("binary_codes", scale="paper")}
    for name in ("ht", "ht-001", "ht-01", "random", "pca"):
        assert planned[name].steps == 1
        assert planned[name].usd < 0.01
    assert planned["ae"].steps > 100_000


def test_codes_of_the_published_size_read_vectors_as_they_are():
    """As the text binarises InferSent's own; what is whitened, which is ours, has unit length before."""
    paper = read_paper("binary_codes")
    for name in ("ht", "ht-001", "ht-01", "random", "pca", "ae", "ae-sp"):
        assert paper.values(name, scale="paper", data=Path())["postprocessing"] == {
            "unit_length": False
        }
    white = paper.values("white-ae", scale="paper", data=Path())["postprocessing"]
    assert white == {"unit_length": True, "whitening": 4096}


def test_a_column_may_be_a_measure_or_a_set_of_a_task():
    """Correlations are Pearson's, the plain mean over sets, unless the column says otherwise."""
    score = SimilarityScore(
        model="m", task="STS14", measure="cosine", pearson=50.0, pearson_weighted=52.0,
        pearson_all=54.0, spearman=40.0, spearman_weighted=42.0, spearman_all=44.0,
        by_set={"deft-news": 30.0}, spearman_by_set={"deft-news": 20.0}, num_pairs=9, measures={},
    )  # fmt: skip
    expected = {"STS14": 50.0, "STS14 pearson": 50.0, "STS14 pearson_weighted": 52.0}
    expected |= {"STS14 spearman": 40.0, "STS14 deft-news": 30.0, "STS14 f1": None}
    found = {text: figure_of(score, Column.of(text).measure) for text in expected}
    assert found == expected
    paraphrases = replace(score, measures={"accuracy": 70.0, "f1": 80.0})
    assert (figure_of(paraphrases, ""), figure_of(paraphrases, "f1")) == (70.0, 80.0)


def test_tables_have_the_columns_of_the_papers():
    """F1, rank correlations, errors and single sets too; the mean of Quick-Thoughts' table 8 is weighted by pairs."""
    papers = {name: read_paper(name) for name in known_papers()}
    for name, number, columns in (
        ("quick_thoughts", "1", {"MRPC f1", "SICK-R spearman", "SICK-R mse"}),
        ("skip_thoughts", "3", {"MRPC f1", "SICK-R mse"}),
        ("binary_codes", "1", {"STS14 spearman", "MRPC-similarity f1"}),
        ("multi_view", "5", {"MRPC f1"}),
        ("cse", "1", {"STS13 FNWN", "STS15 belief"}),
        ("cse", "2", {"STS16 postediting"}),
    ):
        paper = papers[name]
        reported = reported_rows(paper, number, paper.tables[number])
        assert columns <= set(paper.tables[number].tasks)
        assert any(columns <= set(figures) for figures in reported.values())
    pairs = {"deft-news": 300, "deft-forum": 450, "OnWN": 750, "tweet-news": 750, "images": 750, "headlines": 750}  # fmt: skip
    of_paper = papers["quick_thoughts"]
    for figures in reported_rows(of_paper, "8", of_paper.tables["8"]).values():
        mean = sum(pairs[name] * figures[f"STS14 {name}"] for name in pairs) / sum(pairs.values())
        assert figures["STS14 pearson_weighted"] == pytest.approx(mean, abs=0.6)


def test_the_top_component_of_what_is_tested_is_that_of_its_sentences():
    """Equal to a restatement by the SVD of these sentences' vectors alone; the stored one is another."""
    words = ["<pad>", "<unk>", *(f"w{number}" for number in range(30))]
    config = ModelConfig.model_validate(
        {
            "encoder": {"type": "bag", "pooling": "mean", "embedding": {"dim": 12, "vectors": "ppmi"}},
            "postprocessing": {"remove_component": True, "num_sentences": 40},
            "objective": {"type": "paraphrase_margin"},
        }
    )  # fmt: skip
    draw = np.random.default_rng(0)
    table = (draw.normal(size=(len(words), 12)) + 0.4).astype(np.float32)
    model = SentenceModel.build(
        config, Vocabulary(words), seed=0, max_length=9, word_vectors=lambda _: table
    ).eval()
    sample = [" ".join(draw.choice(words[2:], 4)) for _ in range(40)]
    tested = [" ".join(draw.choice(words[2:12], 4)) for _ in range(25)]
    model.fit_postprocessing(model.vocabulary.ids(sample, max_length=9))
    before = model.encode(tested)
    ids = [[words.index(word) for word in sentence.split()] for sentence in tested]
    expected = without_top_component(np.stack([bag(table[some], pooling="mean") for some in ids]))
    np.testing.assert_allclose(OfTested(model).encode(tested), expected, atol=1e-5)
    assert np.abs(before - expected).max() > 0.05


def test_a_fixed_channel_that_is_expanded_has_the_vectors_of_its_file():
    """Every word of the file, as it is there: a channel that is fixed knew those of the text alone."""
    draw = np.random.default_rng(0)
    vectors = WordVectors([f"w{number}" for number in range(40)], draw.normal(size=(40, 6)).astype(np.float32))  # fmt: skip
    config = ModelConfig.model_validate(
        {
            "encoder": {"type": "linear", "hidden_size": 5, "embedding": {"dim": 6, "vectors": "ppmi", "trained": False}},
            "objective": {"type": "paraphrase_margin"},
        }
    )  # fmt: skip

    def built(num_words: int) -> SentenceModel:
        words = ["<pad>", "<unk>", *vectors.words[:num_words]]
        table = np.concatenate([np.zeros((2, 6)), vectors.vectors[:num_words]])
        return SentenceModel.build(
            config,
            Vocabulary(words),
            seed=0,
            max_length=9,
            word_vectors=lambda _: table.astype(np.float32),
        ).eval()

    few, whole = built(20), built(40)
    learned = {name: value for name, value in few.state_dict().items() if len(value) == 5}
    assert learned
    whole.load_state_dict(learned, strict=False)
    assert np.array_equal(few.encode(["w30"]), few.encode(["zzz"]))
    for has_intercept in (False, True):
        expanded = expand(few, vectors, has_intercept=has_intercept)
        np.testing.assert_allclose(
            expanded.encode(vectors.words), whole.encode(vectors.words), atol=1e-5
        )
    paper = read_paper("multi_view")
    for number in ("3", "5"):
        made = [paper.models[row.model].kind for row in paper.tables[number].models().values()]
        assert set(made) <= {"expand", "average"}


def test_views_that_were_trained_apart_are_averaged(tmp_path: Path):
    """Unit vectors of both, and the component of what is tested taken from each by itself."""
    encoders = [load("hash:12"), load("hash:12")]
    texts = ["a b c", "d e"]
    np.testing.assert_allclose(
        MeanOf(encoders).encode(texts), normalize_rows(encoders[0].encode(texts)), atol=1e-6
    )
    refitted = of_tested(MeanOf(encoders))
    assert [type(part) for part in refitted.encoders] == [OfTested, OfTested]
    with pytest.raises(ConfigError, match="mean: must be of models of one size"):
        MeanOf([load("hash:12"), load("hash:5")])


def test_table_6_of_multi_view_has_the_papers_rows_and_its_mean():
    """All views of the half that trains nothing, each beside the paper's figure."""
    paper = read_paper("multi_view")
    reported = reported_rows(paper, "6", paper.tables["6"])
    rows = {name: row for name, row in paper.tables["6"].models().items() if not row.is_ours}
    mean = "mean of STS12-16 and SICK14"
    assert {name for name in rows if mean in reported[name]} == set(rows)
    assert len(rows) == 17
    assert (reported["two single views, f+g"][mean], reported["G f+g"][mean]) == (68.6, 70.3)
    assert paper.tables["6"].columns[-1] == mean


def test_tables_that_were_made_by_what_is_tested_say_so():
    """Those of Multi-view that nothing is trained for; a classifier's is not."""
    tables = read_paper("multi_view").tables
    assert {number: table.component for number, table in tables.items()} == {
        "3": "tested",
        "5": "stored",
        "6": "tested",
    }


def test_missing_tasks_are_named_before_a_run_and_beside_a_table(folder: Path):
    """By the plan, and by the table that has dashes for them."""
    name = str(folder / "toy.yaml")
    assert absent_tasks(name, tables=["1"], claims=["first"], data=folder) == ["MR"]
    (table,) = toy(folder, tables=["1"]).tables
    assert table.absent == ("MR",)


def test_claims_of_the_published_size_have_the_protocol_of_the_table_beside_them(folder: Path):
    """A verdict stands on the figures that the table prints; at scale small all have the scale's."""
    for name, claim, protocol in (
        ("quick_thoughts", "combine-over-uni", "kiros"),
        ("binary_codes", "sp-over-ae-classification", "senteval"),
        ("skip_thoughts", "conditional-over-initial", "kiros"),
    ):
        paper = read_paper(name)
        assert protocol_of_claim(paper, paper.claims[claim], scale="paper") == protocol
        assert protocol_of_claim(paper, paper.claims[claim], scale="small") == "fast"


def test_expansion_of_the_published_size_is_a_matrix_alone():
    """And no row is expanded that does not say so; GloVe's row is GloVe's; both arms of appendix C read 50 words."""
    paper = read_paper("quick_thoughts")
    for number, table in paper.tables.items():
        for name, row in table.models().items():
            made_of = paper.order([row.model])
            assert any("expanded" in model for model in made_of) == ("expanded" in name), number
    assert paper.models["words"].average == "glove"
    assert paper.scales["paper"].data["glove"].path.startswith("vectors/glove")
    values = {arm: paper.values(arm, scale="paper", data=Path()) for arm in ("efficiency-qt", "efficiency-st")}  # fmt: skip
    assert values["efficiency-st"]["objective"]["max_length"] == 50
    assert {one["corpus"]["max_length"] for one in values.values()} == {50}


def test_results_are_kept_after_each_table(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A call that is stopped in its second part has the first in its results."""

    def stopped(self: object, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("raysent.reproduction.run._Runner.claim", stopped)
    with pytest.raises(KeyboardInterrupt):
        toy(folder, claims=["first"])
    assert json.loads((folder / "out" / "results.json").read_text())["tables"]


def test_reported_tables_are_complete():
    """All papers are read, every row has a number, and percentages are in a plausible range."""
    tables = reported_tables()
    assert len({table.paper for table in tables}) == 5
    for table in tables:
        for row in table.rows.values():
            assert any(figure is not None for figure in row)
            measured = zip(table.columns, row, strict=True)
            bounded = [
                figure
                for column, figure in measured
                if column.endswith(("pearson", "spearman", "f1"))
            ]
            assert all(figure is None or 10 < figure < 100 for figure in bounded)


@pytest.mark.parametrize(
    ("ours", "text"),
    [(76.25, "76.2"), (0.256, "0.256"), (-4.0, "-4.0"), (-0.3, "-0.3"), (None, DASH)],
)
def test_cell_of_a_table_has_the_digits_of_its_measure(ours, text):
    """A squared error has three; a correlation in percent may be below zero."""
    assert commands._cell(ours, None) == text
    assert commands._cell(ours, 76.0) == f"{text} (76)"
