"""Mistakes of many kinds, typed at the command line: each is one line that names the place, exit code 2, nothing left.

All but those marked `cluster` are found before Ray starts, which `no_ray` sees to.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from command import SPACE, CommandLine, write_task
from filelock import FileLock
from tiny_run import tiny_run, write_corpus

import raysent
from raysent.cost import CostConfig
from raysent.errors import ArtifactError, ConfigError
from raysent.progress import ProgressLines
from raysent.storage import read_json, write_json
from raysent.sweeps.cost_tracker import metered, spent_usd
from raysent.training.loop import fit

SWEEP = "sweep space.yaml --yes --run out"
TRAIN = "train space.yaml --run out"
RECORD = (Path(__file__).parent / "data" / "version_2" / "killed" / "sweep.json").read_text()
VECTORS = "--set encoder.embedding.vectors"


@dataclass(frozen=True)
class Case:
    """A mistake.

    Attributes:
        name: What is wrong.
        typed: The command line after `raysent`, split at blanks; `~` stands for a blank inside an argument.
        error: The whole line, as a regular expression.
        space: What is replaced in the search space, and by what.
        files: Files that are written first.
    """

    name: str
    typed: str
    error: str
    space: tuple[str, str] = ("", "")
    files: dict[str, str | bytes] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """The arguments as they are given."""
        return [part.replace("~", " ") for part in self.typed.split()]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """The folder of a trained model, not to be changed."""
    folder = tmp_path_factory.mktemp("model")
    fit(tiny_run(folder, training__max_steps=1, training__num_reports=1), folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """Prepared corpora, shared by the tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def place(tmp_path, monkeypatch, cache) -> Path:
    """A folder to stand in, with a search space and its text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYSENT_CACHE", str(cache))
    (tmp_path / "space.yaml").write_text(SPACE)
    write_corpus(tmp_path)
    return tmp_path


@pytest.fixture
def type_(monkeypatch, capsys) -> CommandLine:
    """Types a command line in this process, whose lines of progress do not come however slow the machine is."""
    monkeypatch.setattr(ProgressLines, "INTERVAL_S", float("inf"))
    return CommandLine(monkeypatch, capsys)


@pytest.fixture(autouse=True)
def no_ray(request, monkeypatch) -> None:
    """A mistake must be found before Ray starts."""
    if "cluster" not in request.keywords:

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("Ray was started")

        monkeypatch.setattr("ray.init", refuse)


def _refused(
    type_: CommandLine,
    *arguments: object,
    error: str,
    stdin: bytes = b"",
    is_after_plan: bool = False,
) -> None:
    """Assert that a command is answered by one line and exit code 2, and that it leaves every file as it was."""
    before = _files()
    ran = type_(*arguments, stdin=stdin)
    *plan, line = ran.err.splitlines()
    assert (ran.code, ran.out) == (2, ""), ran
    assert any(" models to train" in line for line in plan) == is_after_plan, ran
    assert is_after_plan or not plan, ran
    assert re.fullmatch(f"error: {error}", line), f"expected: {error}\ngiven: {ran.err}"
    assert _files() == before


def _files() -> dict[str, bytes | None]:
    """Return the content of every file of the folder stood in, and its folders."""
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in sorted(Path().rglob("*"))
    }


SPACES = [
    Case("wrong key", "doctor space.yaml", r"space.yaml:5: base.encoder.hiden_size: unknown name; did you mean 'hidden_size'\?", ("hidden_size", "hiden_size")),
    Case("wrong section", "doctor space.yaml", r"space.yaml:9: serch: unknown name; did you mean 'search'\?", ("search:", "serch:")),
    Case("wrong type", "doctor space.yaml", r"space.yaml:5: base.encoder.hidden_size: must be a valid integer; given 'many'", ("hidden_size: 8", "hidden_size: many")),
    Case("scalar for mapping", "doctor space.yaml", r"space.yaml:5: base.encoder: must be a mapping of names to values; given 'gru'.*", ("{type: gru, hidden_size: 8, embedding: {dim: 6}}", "gru")),
    Case("impossible value", "doctor space.yaml", r"space.yaml:7: base.training.learning_rate: must be greater than 0; given -0.01", ("0.01", "-0.01")),
    Case("impossible edge", "doctor space.yaml", r"space.yaml:11: search.training.batch_size: must be greater than or equal to 2; given 0", ("[24, 48]", "[24, 0]")),
    Case("nothing given for an encoder", "doctor space.yaml", r"space.yaml:5: base.encoder.type: is required and is not given", ("type: gru, ", "")),
    Case("unknown encoder", "doctor space.yaml", r"space.yaml:5: base.encoder.type: unknown type 'grue'; did you mean 'gru'\?", ("type: gru", "type: grue")),
    Case("unknown domain", "doctor space.yaml", r"space.yaml:11: search.training.batch_size: unknown kind of domain 'chioce'; did you mean 'choice'\?", ("batch_size: {choice", "batch_size: {chioce")),
    Case("unknown task in a space", "doctor space.yaml", r"space.yaml:12: evaluation.tasks: MRR: unknown task; did you mean 'MR'\?", ("limits: {trials: 4}", "evaluation: {tasks: [MRR]}")),
    Case("broken YAML", "doctor space.yaml", r"space.yaml:13: not valid YAML: expected ',' or '}', but got '<stream end>'", ("trials: 4}", "trials: 4")),
    Case("key given twice", "doctor space.yaml", r"space.yaml:12: not valid YAML: found duplicate key \"base\" .*", ("limits:", "base:")),
    Case("empty space", "doctor empty.yaml", r"empty.yaml: must be a mapping of names to values; given nothing", files={"empty.yaml": ""}),
    Case("list for a space", "doctor list.yaml", r"list.yaml: must be a mapping of names to values; given a list", files={"list.yaml": "- a\n"}),
    Case("space that is no text", "doctor odd.yaml", r"odd.yaml: must be text in UTF-8; byte 0 is not; is this another file\?", files={"odd.yaml": b"\xff\xfe"}),
    Case("missing space", "sweep spaces.yaml", r"spaces.yaml: no such search space; did you mean 'space.yaml'\?"),
    Case("missing bare space", "sweep quick_thougths", r"quick_thougths: no such search space; did you mean 'quick_thoughts'\?"),
    Case("folder for a space", "sweep .", r"\.: must be a search-space file; given a folder; name a .yaml file in it"),
    Case("search over the examination", SWEEP, r"space.yaml:11: search.validation.num_candidates: gives trials different validation pools, .*; set it in base", ("training.batch_size: {choice: [24, 48]}", "validation.num_candidates: {choice: [10, 20]}")),
]  # fmt: skip

OPTIONS = [
    Case("argument that has an option", "ensemble tfidf --task rows.csv --set output=x", r"--set output=x: has an option of its own; write --output x"),
    Case("argument with a short option", "search index query --set k=5", r"--set k=5: has an option of its own; write -k 5"),
    Case("argument with an option of another name", "label hash:8 rows.csv --set num_rows=5", r"--set num_rows=5: has an option of its own; write -n 5"),
    Case("argument of a command of a group", "cluster slurm space.yaml --set nodes=2", r"--set nodes=2: has an option of its own; write --nodes 2"),
    Case("argument without an option", f"{SWEEP} --set space=other", r"--set space=other: is an argument of the command; write other as SPACE"),
    Case("argument that the command passes", f"{SWEEP} --set command=[a]", r"--set command=\['a'\]: unknown name; known: .*"),
    Case("no workers", f"{TRAIN} --set workers=0", r"workers: must be a whole number of at least 1; given 0"),
    Case("GPUs below none", f"{TRAIN} --set gpus_per_worker=-1", r"gpus_per_worker: must be at least 0; given -1.0"),
    Case("GPU of two workers", f"{TRAIN} --set workers=2 --set gpus_per_worker=0.5", r"gpus_per_worker: must be at least 1, or 0, with several workers, .*; given 0.5"),
    Case("GPU of a trial's workers", f"{SWEEP} --set limits.workers_per_trial=2 --set limits.gpus_per_worker=0.5", r".*gpus_per_worker must be 0, or at least 1, with several workers_per_trial, .*; given 0.5"),
    Case("time and epochs", "distill hash:8 --into bag --corpus text.txt --time 9s --set epochs=2", r"epochs: must be left out beside time, which decides how many there are"),
    Case("no seeds", f"{TRAIN} --set seeds=0", r"seeds: must be a whole number of at least 1; given 0"),
    Case("training on lessons that are missing", f"{TRAIN} --set limits.learn_from=no/sweep", r"limits.learn_from: no sweep and no lessons.json at no/sweep; name the folder of a sweep"),
    Case("secret as an argument", "serve hash:8 --set token=abc", r"--set token=abc: unknown argument; known: .*"),
    Case("--set without a value", f"{SWEEP} --set seed", r"--set seed: must be NAME=VALUE, as in --set training.batch_size=200"),
    Case("--set of an unknown name", f"{SWEEP} --set training.bach_size=3", r"--set training.bach_size=3: unknown name; did you mean 'batch_size'\?"),
    Case("--set that is no YAML", f"{SWEEP} --set seed=[1", r"--set seed=\[1: the value is not valid YAML: .*; quote it"),
    Case("--set inside a value", f"{SWEEP} --set seed=1 --set seed.x=1", r"--set seed.x=1: base.seed.x: 'base.seed' must be a mapping; it is a single value"),
    Case("--time", f"{SWEEP} --time soon", r"--time soon: a duration must look like 90s, 30m, 2h or 1h30m; given 'soon'"),
    Case("--time without a unit", f"{SWEEP} --time 30", r"--time 30: a duration must look like 90s, 30m, 2h or 1h30m; given '30'"),
    Case("--trials below none", f"{SWEEP} --trials -1", r"--trials: must be greater than or equal to 0; see 'raysent sweep --help'"),
    Case("unknown option", f"{SWEEP} --trails 3", r"--trails: no such option; did you mean .*--trials.*\?; other settings are --set NAME=VALUE; see 'raysent sweep --help'"),
    Case("option that is a setting", "sweep space.yaml --memory 1GiB", r"--memory: no such option; did you mean '--metric'\?; other settings are --set NAME=VALUE; see 'raysent sweep --help'"),
    Case("unknown command", "swep space.yaml", r"swep: no such command; did you mean 'sweep'\?; see 'raysent --help'"),
    Case("missing argument", "report", r"RUN: is required and is not given; see 'raysent report --help'"),
    Case("neither space nor task", "sweep", r"space: must be a search space, or a task must be given, as in raysent sweep --task reviews\.csv"),
    Case("unknown task", f"{SWEEP} --tasks MRR", r"--tasks MRR: unknown task; did you mean 'MR'\?"),
    Case("no task", "evaluate hash:8 --tasks ,", r"--tasks ',': must name a task; known: .*, MR, .*"),
    Case("task without a folder", f"{SWEEP} --tasks MR", r"MR: needs a folder in SentEval's layout as data; given none; it must hold .*"),
    Case("unknown method", "ensemble hash:8 --method vote", r"--method vote: unknown ensemble method; known: all, answer, best, greedy, majority, pool, uniform, validation"),
]  # fmt: skip

CORPORA = [
    Case("missing corpus", f"{SWEEP} --corpus no.txt", r"--corpus no.txt: no such file or folder"),
    Case("missing corpus of the space", SWEEP, r"space.yaml:3: corpus.path: no.txt: no such file or folder", ("text.txt", "no.txt")),
    Case("glob without a match", f"{SWEEP} --corpus *.nothing", r"--corpus \*.nothing: no file matches; a glob is relative to the current folder"),
    Case("folder without text", f"{SWEEP} --corpus folder", r"--corpus folder: contains no .txt, .*; name others by a glob", files={"folder/notes.pdf": "x"}),
    Case("device for a corpus", f"{SWEEP} --corpus /dev/null", r"--corpus /dev/null: must be a file or a folder; .*; save it as a file"),
    Case("empty corpus", f"{SWEEP} --corpus empty.txt", r"--corpus empty.txt: must hold sentences; given none", files={"empty.txt": "\n \n"}),
    Case("one-sentence corpus", f"{SWEEP} --corpus one.txt", r"--corpus one.txt: must hold at least 4 sentences, .*; given 1", files={"one.txt": "Only this .\n"}),
    Case("binary corpus", f"{SWEEP} --corpus bin.txt", r"bin.txt:2: must be plain text; given a NUL byte: is this a binary file, or UTF-16 without a BOM\? Convert it with iconv", files={"bin.txt": b"abc\n\x7fELF\0\1"}),
    Case("Latin-1 corpus", f"{SWEEP} --corpus latin.txt", r"latin.txt:1: must be UTF-8; given byte 0xe9; convert it with iconv", files={"latin.txt": "caf\xe9".encode("latin-1")}),
    Case("truncated gzip", f"{SWEEP} --corpus cut.txt.gz", r"cut.txt.gz: truncated or not gzip \(.*\); fetch it again", files={"cut.txt.gz": gzip.compress(os.urandom(999))[:400]}),
    Case("broken JSON line", f"{SWEEP} --corpus b.jsonl", r"b.jsonl:2: must be one JSON object a line; .*", files={"b.jsonl": '{"text": "A b."}\n{"text":\n'}),
    Case("JSON without text", f"{SWEEP} --corpus b.jsonl", r"b.jsonl:1: must have 'text', 'sentences' or 'paragraphs'; given body; name the field in corpus.text_field", files={"b.jsonl": '{"body": "A b."}\n'}),
    Case("table without a column of text", f"{SWEEP} --corpus b.csv", r".*corpus.text_field: b.csv: must name the column of text; the columns are id, body; name one, as body", files={"b.csv": "id,body\n1,a\n"}),
    Case("table without the column", f"{SWEEP} --corpus b.csv --set corpus.text_field=bdy", r"--set corpus.text_field=bdy: b.csv: must name a column; given 'bdy'; did you mean 'body'\?", files={"b.csv": "id,body\n1,a\n"}),
    Case("table without the column of documents", f"{SWEEP} --corpus b.csv --set corpus.text_field=body --set corpus.document_field=ids", r"--set corpus.document_field=ids: b.csv: must name a column; given 'ids'; did you mean 'id'\?", files={"b.csv": "id,body\n1,a\n"}),
    Case("documents whose rows are apart", f"{SWEEP} --corpus b.csv --set corpus.document_field=id", r"b.csv: row 3: rows of one document must follow one another; '1' was before; sort the rows by 'id'", files={"b.csv": "id,text\n1,a\n2,b\n1,c\n"}),
    Case("ragged table", f"{TRAIN} --corpus b.csv", r"b.csv: row 2: must have 2 values, as the header; given 1; put values with ',' in double quotes", files={"b.csv": "id,text\n1,a\n2\n"}),
    Case("batch larger than the corpus", f"{SWEEP} --set training.batch_size=5000", r"--set training.batch_size=5000: must be at most 270 for the 270 train sentences .*; lower it or add text"),
    Case("edge larger than the corpus", SWEEP, r"space.yaml:11: training.batch_size: must be at most 270 .*; given 480; lower it or add text", ("[24, 48]", "[24, 480]")),
    Case("batch below the workers", f"{SWEEP} --set limits.workers_per_trial=25", r"space.yaml:11: training.batch_size: must be at least the 25 workers; given 24; raise it"),
    Case("misspelt metric", f"{SWEEP} --metric document_acuracy", r"--metric document_acuracy: unknown metric or task; did you mean 'document_accuracy'\?"),
    Case("cache on a file", f"{SWEEP} --set corpus.cache_dir=text.txt", r".*text.txt: a file exists where a folder is needed, or the reverse"),
    Case("training on a missing corpus", f"{TRAIN} --corpus no.txt", r"--corpus no.txt: no such file or folder"),
    Case("training with too large a batch", f"{TRAIN} --set training.batch_size=5000", r"--set training.batch_size=5000: must be at most 270 .*"),
]  # fmt: skip

WORD_VECTORS = [
    Case("missing vectors", f"{SWEEP} {VECTORS}=no.txt", rf"{VECTORS}=no.txt: no such file"),
    Case("missing vectors of a member", SWEEP, r"space.yaml:10: encoder.members.a.embedding.vectors: no.txt: no such file", ("encoder.bidirectional: {choice: [false, true]}", "encoder: {choice: {pair: {type: concat, members: {a: {type: bag, embedding: {vectors: no.txt}}}}}}")),
    Case("vectors of another size", f"{SWEEP} {VECTORS}=v.txt", r"space.yaml:5: encoder.embedding.dim: must be that of the vectors in v.txt, 3; given 6; set it to 3", files={"v.txt": "w1 1 2 3\n"}),
    Case("ragged vectors", f"{SWEEP} {VECTORS}=v.txt", rf"{VECTORS}=v.txt: v.txt:2: must be a word and 3 numbers; given 2 numbers", files={"v.txt": "w1 1 2 3\nw2 1 2\n"}),
    Case("NaN in vectors", f"{SWEEP} {VECTORS}=v.txt", rf"{VECTORS}=v.txt: v.txt:1: must hold finite numbers; given NaN or infinity for the word 'w1'", files={"v.txt": "w1 1 nan 3\n"}),
    Case("vectors of other words", f"{SWEEP} {VECTORS}=v.txt", rf"{VECTORS}=v.txt: must hold vectors of the requested words; given none; check case and format", files={"v.txt": "zebra 1 2 3\n"}),
    Case("truncated vectors", f"{SWEEP} {VECTORS}=v.txt", rf"{VECTORS}=v.txt: v.txt:2: truncated: must hold 9 words; given 1; fetch it again", files={"v.txt": "9 6\nw1 1 2 3 4 5 6\n"}),
    Case("more counted dimensions than words", f"{SWEEP} {VECTORS}=ppmi --set encoder.embedding.dim=900", r"--set encoder.embedding.dim=900: must be at most \d+ with vectors: ppmi, the words of the vocabulary; given 900"),
    Case("training with missing vectors", f"{TRAIN} {VECTORS}=no.txt", rf"{VECTORS}=no.txt: no such file"),
]  # fmt: skip

FOLDERS = [
    Case("run folder taken", SWEEP, r"out: holds a sweep already; continue with 'raysent resume out' or name another run folder", files={"out/sweep.json": "{}"}),
    Case("run folder of a training", SWEEP, r"out: holds a training; name another run folder", files={"out/run.json": "{}"}),
    Case("training into a sweep's folder", TRAIN, r"out: holds a sweep; name another run folder", files={"out/sweep.json": "{}"}),
    Case("file for a run folder", SWEEP, r"out: a file stands where the run folder is needed; name another run folder", files={"out": "x"}),
    Case("resume of nothing", "resume out", r"out: not a sweep's folder, there is no sweep.json in it; name the folder of a sweep"),
    Case("resume of another file", "resume out", r"out/sweep.json: not the record of a sweep; name the folder of a sweep", files={"out/sweep.json": "[1]"}),
    Case("resume of a truncated record", "resume out", r"out/sweep.json: truncated or not JSON \(.*\); restore it or run again", files={"out/sweep.json": '{"kind": "swe'}),
    Case("resume of a record with holes", "resume out", r"out/sweep.json: not whole \(KeyError: 'space'\); restore it or start the sweep again", files={"out/sweep.json": '{"kind": "sweep"}'}),
    Case("report on no run", "report out", r"out: must hold sweep.json, run.json or evaluation/; found none; .* of evaluated models", files={"out/x": ""}),
    Case("report on another file", "report out", r"out/sweep.json: not the record of a sweep; name .*", files={"out/sweep.json": "{}"}),
    Case("report on a broken journal", "report out", r"out/journal.jsonl:1: not JSON \(.*\); another program changed the file", files={"out/sweep.json": RECORD, "out/journal.jsonl": "{\n{}\n{}\n"}),
    Case("evaluation of nothing", "evaluate out", r"out: no such run or model; name a run, a trial, a model, an ensemble, bm25, hash:DIM, .* or words:PATH"),
    Case("evaluation of no run", "evaluate out", r"out: holds no model.json, trials or ensemble.json; name a run or a model", files={"out/x": ""}),
    Case("evaluation of a sweep without a model", "evaluate out", r"out/trials: must hold a trained trial; found none; finish the sweep first", files={"out/trials/0000/x": ""}),
    Case("hash without a size", "evaluate hash:big", r"hash:big: the size must be a whole number from 1 to 999999, as in hash:50"),
    Case("folder without tasks", "evaluate hash:8 --data out", r"out: must be a folder in SentEval's layout; no task found; it would hold MR/rt-polarity.pos"),
    Case("missing task file", "evaluate hash:8 --data data --tasks SUBJ", r"data/SUBJ/subj.objective: no such file; SUBJ needs it, published at https://.*"),
    Case("wrong number of rows", "evaluate hash:8 --data data", r"data/MR/rt-polarity.pos: MR must have 5331 lines as published; given 40; fetch it again from https://.*"),
]  # fmt: skip

CASES = [*SPACES, *OPTIONS, *CORPORA, *WORD_VECTORS, *FOLDERS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_mistake_is_one_line_that_names_the_place(type_, place, case):
    """Whatever is wrong: one line, exit code 2, and every file is as it was."""
    written = (place / "space.yaml").read_text()
    assert case.space[0] in written
    (place / "space.yaml").write_text(written.replace(*case.space, 1) if case.space[0] else written)
    write_task(place / "data")
    for name, content in case.files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content.encode() if isinstance(content, str) else content)
    _refused(type_, *case.arguments, error=case.error)


# -- models -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        ("model.safetensors", None, r"model/model.safetensors: truncated or changed since the model was saved; restore it or train again"),
        ("model.safetensors", b"", r"model/model.safetensors: truncated or changed since the model was saved; restore it or train again"),
        ("vocabulary.txt", None, r"model/vocabulary.txt: truncated or changed since the model was saved; restore it or train again"),
        ("vocabulary.txt", b"", r"model/vocabulary.txt: truncated or changed since the model was saved; restore it or train again"),
        ("model.json", None, r"model/model.json: truncated or not JSON \(.*\); restore it or run again"),
        ("model.json", b"", r"model/model.json: truncated or not JSON \(.*\); restore it or run again"),
        ("model.json", b'{"kind": "sentence-transformers"}', r"model/model.json: not a model of this version of raysent; name the folder of a trained model"),
    ],
)  # fmt: skip
def test_damaged_model_is_named(type_, place, model, file, content, error):
    """A file cut in half (None) or replaced is told by its name; nothing is written."""
    shutil.copytree(model, "model")
    whole = Path("model", file).read_bytes()
    Path("model", file).write_bytes(whole[: len(whole) // 2] if content is None else content)
    _refused(type_, "encode", "model", "-o", "x.npy", stdin=b"w1 w2\n", error=error)


def test_checkpoint_that_is_truncated_or_foreign_is_refused(place, monkeypatch):
    """A run never goes on from what is not its own and whole; what the worker tells becomes the command's one line."""
    config = tiny_run(place, training__num_reports=2)
    fit(config, Path("out"), report=lambda report: report.index < 1)
    [path] = Path("out/checkpoint").glob("*.safetensors")
    whole = path.read_bytes()
    error = (
        r"^out/checkpoint/.*safetensors: truncated or changed; remove out/checkpoint to train again"
    )
    for damaged in (b"", whole[:100]):
        path.write_bytes(damaged)
        with pytest.raises(ArtifactError, match=error):
            fit(config, Path("out"))
    path.write_bytes(whole)
    with pytest.raises(
        ArtifactError,
        match=r"\.json: of a run with another configuration; name another folder or remove",
    ):
        fit(tiny_run(place, training__num_reports=2, seed=9), Path("out"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"seed": -1}, "seed: must be a whole number of at least 0; given -1"),
        ({"seed": "x"}, "seed: must be a whole number of at least 0; given 'x'"),
        ({"seeds": 1.5}, "seeds: must be a whole number of at least 1; given 1.5"),
    ],
)
def test_seeds_of_a_training_are_checked_before_ray_starts(place, options, error):
    """Also where no command has checked them."""
    (place / "space.yaml").write_text(SPACE)
    with pytest.raises(ConfigError, match=f"^{error}$"):
        raysent.train("space.yaml", run="out", progress=False, **options)


# -- encode -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "stdin", "error"),
    [
        (["-o", "x.npy"], b"", r"standard input: must hold one sentence a line; it is empty"),
        (["-o", "x.npy"], b"ok\n\xff\xfe\n", r"standard input:2: must be UTF-8; given byte 0xff; convert it with iconv"),
        (["no.txt", "-o", "x.npy"], b"", r"no.txt: no such file"),
        ([".", "-o", "x.npy"], b"", r"\.: must be a file of lines; given a folder"),
        (["b.csv", "-o", "x.npy"], b"", r"--column: b.csv: must name the column of text; the columns are id, body; name one, as body or, if the first line is a row, set header=false"),
        (["empty.csv", "-o", "x.npy"], b"", r"empty.csv: must hold text; given no row of it"),
        (["b.jsonl", "-o", "x.npy", "--set", "header=false"], b"", r"b.jsonl: only .csv and .tsv may be read without a line of names"),
        (["b.csv", "--column", "bdy", "-o", "x.npy"], b"", r"--column: b.csv: must name a column; given 'bdy'; did you mean 'body'\?"),
        (["b.csv", "--column", "id", "-o", "x.csv"], b"", r"x.csv: must end in .npy, .npz, .parquet; given .csv"),
        (["b.jsonl", "-o", "x.npz"], b"", r"b.jsonl: row 1: column 'text' must be text; given int"),
        (["no.parquet", "-o", "x.npz"], b"", r"no.parquet: no such file"),
        (["text.txt", "--column", "body", "-o", "x.npy"], b"", r"--column body: must be left out for text.txt, which has no columns"),
        (["--column", "body", "-o", "x.npy"], b"", r"--column body: must be left out for standard input, which has no columns"),
        (["text.txt", "-o", "."], b"", r"\.: must be a file; it is a folder or a device"),
        (["text.txt", "-o", "/dev/full"], b"", r"/dev/full: must be a file; it is a folder or a device"),
        (["text.txt", "-o", "text.txt/x.npy"], b"", r"text.txt/x.npy: a file exists where a folder is needed, or the reverse"),
        (["text.txt", "-o", "x.npy", "--set", "batch_size=many"], b"", r"--set batch_size=many: must be a valid integer.*"),
        (["text.txt"], b"", r"--output: is required and is not given; see 'raysent encode --help'"),
    ],
)  # fmt: skip
def test_encode_names_what_it_cannot_read_or_write(type_, place, arguments, stdin, error):
    """No vectors are left for text that could not be read."""
    (place / "b.csv").write_text("id,body\n1,a\n")
    (place / "b.jsonl").write_text('{"text": 1}\n')
    (place / "empty.csv").write_text("text\n")
    _refused(type_, "encode", "hash:16", *arguments, stdin=stdin, error=error)


# -- the disk, other processes, the machine -----------------------------------------------------------------------


@pytest.fixture
def full_disk(place, monkeypatch) -> Iterator[Path]:
    """A folder on a disk of 64 kB; where none may be mounted, every file that is flushed meets a full disk."""
    folder = place / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    is_mounted = (
        shutil.which("mount") is not None
        and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    )
    if not is_mounted:

        def refuse(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", refuse)
    yield folder
    if is_mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_leaves_no_vectors(type_, full_disk):
    """A vector file is whole or not there."""
    error = r"small/x.npy: the disk is full; free some space or name another folder"
    _refused(type_, "encode", "hash:999", "text.txt", "-o", "small/x.npy", error=error)


def test_full_disk_leaves_no_half_run(type_, full_disk):
    """A sweep that could not begin leaves its folder free."""
    with contextlib.suppress(OSError):
        (full_disk / "fill").write_bytes(bytes(1 << 17))
    error = r"small/out/sweep.json: the disk is full; free some space or name another folder"
    _refused(type_, "sweep", "space.yaml", "--yes", "--run", "small/out", error=error)


def test_full_disk_leaves_no_half_corpus(type_, full_disk, monkeypatch):
    """The next preparation finds nothing that looks like a corpus."""
    monkeypatch.setenv("RAYSENT_CACHE", "small/cache")
    (full_disk / "fill").write_bytes(bytes(50_000))
    ran = type_(*SWEEP.split())
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran
    assert ran.err.endswith(
        "small/cache: the disk is full; free some space or name another folder\n"
    )
    assert not list(full_disk.rglob("corpus.json"))
    assert not Path("out").exists()


def test_file_that_may_not_be_read_is_named(type_, place, monkeypatch):
    """Root may read everything, so the refusal is played."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("raysent.data.corpus.sources.hashlib.file_digest", refuse)
    _refused(type_, *SWEEP.split(), error=r"text.txt: cannot be read; change its permissions")


@pytest.fixture
def begun(type_, place, monkeypatch) -> Path:
    """The folder of a sweep that was begun and came to no trial."""
    monkeypatch.setattr(
        "raysent.sweeps.driver._sweep", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    ran = type_(*SWEEP.split())
    assert ran.code == 130
    assert ran.err.splitlines()[-1] == (
        "stopped at once; trials continue from their last checkpoints: raysent resume out"
    )
    monkeypatch.undo()
    monkeypatch.chdir(place)
    return place / "out"


def test_folder_of_a_sweep_that_came_to_no_trial_keeps_what_was_charged(type_, place, monkeypatch):
    """Its money counts in the next try; without it the folder can be named again."""

    def charge_and_fail(record, folder, *_):
        if charged:
            with metered(folder, CostConfig(usd_per_hour=3600.0), what="boot"):
                time.sleep(0.01)
        raise ArtifactError("no machine came")

    monkeypatch.setattr("raysent.sweeps.driver._sweep", charge_and_fail)
    for charged in (False, True):
        assert "no machine came" in type_(*SWEEP.split()).err
        assert (place / "out").exists() == charged
    assert spent_usd(place / "out") >= 0.01


def test_resume_finds_relative_paths_from_any_folder(type_, begun, cache, monkeypatch):
    """They start where the sweep was started; the run folder is named from where one is."""
    monkeypatch.setenv("RAYSENT_CACHE", str(cache))
    places = []
    monkeypatch.setattr(
        "raysent.sweeps.driver._sweep", lambda *_: places.append(Path.cwd()) or _interrupt()
    )
    (begun.parent / "elsewhere").mkdir()
    monkeypatch.chdir(begun.parent / "elsewhere")
    assert type_("resume", "../out").code == 130
    assert places == [begun.parent]
    assert Path.cwd() == begun.parent / "elsewhere"


def test_resume_in_python_never_changes_the_working_folder(type_, begun, cache, monkeypatch):
    """Threads of the caller would lose theirs; one line says where the sweep's relative paths start."""
    monkeypatch.setenv("RAYSENT_CACHE", str(cache))
    places = []
    monkeypatch.setattr(
        "raysent.sweeps.driver._sweep", lambda *_: places.append(Path.cwd()) or _interrupt()
    )
    (begun.parent / "elsewhere").mkdir()
    monkeypatch.chdir(begun.parent / "elsewhere")
    with pytest.raises(
        ConfigError,
        match=rf"^\.\./out: must be resumed in {begun.parent}, where its relative paths",
    ):
        raysent.resume("../out", progress=False)
    assert places == []
    record = read_json(begun / "sweep.json")
    record["space"]["base"]["corpus"]["path"] = str(
        begun.parent / record["space"]["base"]["corpus"]["path"]
    )
    write_json(begun / "sweep.json", record, sealed=True)
    with pytest.raises(KeyboardInterrupt):
        raysent.resume("../out", progress=False)
    assert places == [begun.parent / "elsewhere"]


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_second_driver_of_a_run_is_refused(type_, begun, cache, monkeypatch):
    """Two processes never write one journal."""
    monkeypatch.setenv("RAYSENT_CACHE", str(cache))
    with FileLock(begun / ".lock"):
        _refused(
            type_,
            "resume",
            "out",
            error=r"out: another process is working on this run; wait for it or stop it",
        )
        _refused(
            type_,
            *SWEEP.split(),
            error=r"out: holds a sweep already; continue with 'raysent resume out' or .*",
        )
    assert json.loads((begun / "sweep.json").read_text())["kind"] == "sweep"


@pytest.mark.cluster
def test_more_workers_than_cores_are_refused_and_the_folder_stays_free(type_, place):
    """What only the cluster can tell is told in the same way."""
    set_batch = ["--set", "training.batch_size=200"]
    error = r"limits: one trial needs 200 cores and 0 GPUs; there are \d+ cores and \d+ GPUs; lower limits.workers_per_trial .*"
    _refused(
        type_,
        *SWEEP.split(),
        *set_batch,
        "--set",
        "limits.workers_per_trial=200",
        error=error,
        is_after_plan=True,
    )


def test_cluster_that_does_not_answer_is_named(type_, place):
    """An address without a cluster is the user's mistake, told at once."""
    error = r"--address 127.0.0.1:1: no Ray cluster answers there \(.*refused\)"
    _refused(type_, *SWEEP.split(), "--address", "127.0.0.1:1", error=error, is_after_plan=True)
