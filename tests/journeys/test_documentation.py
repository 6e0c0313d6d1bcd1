"""Every line of code that README and docs show runs as it is printed, in a fresh process, in one user's folder.

The search spaces that the pages name are the user's own files of the same names, with next to nothing to train.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
import shutil
from pathlib import Path

import pytest
import yaml
from installed import ROOT, User
from material import review, sentence, write_books, write_sentences

pytestmark = pytest.mark.cluster

# In the order in which a newcomer reads them: later pages use the runs of earlier ones.
PAGES = [
    "README.md",
    "docs/quickstart.md",
    "docs/howto/own_labels.md",
    "docs/howto/learn.md",
    "docs/howto/own_text.md",
    "docs/howto/kinds.md",
    "docs/howto/settings_that_fit.md",
    "docs/howto/train_on.md",
    "docs/howto/distill.md",
    "docs/howto/whitening.md",
    "docs/howto/encode_a_corpus.md",
    "docs/howto/search.md",
    "docs/howto/use_models_elsewhere.md",
    "docs/ranking.md",
    "docs/cost.md",
    "docs/cluster.md",
    "docs/storage.md",
    "docs/reproduce.md",
    "docs/papers.md",
    "docs/examples.md",
    "docs/install.md",
    "docs/interruptions.md",
    "docs/index.md",
]
# `make chaos` runs the pages, which takes many minutes; `make journeys` the first; every test what is quick.
MARKS = {"README.md": [pytest.mark.chaos, pytest.mark.journey], "docs/install.md": []}
# What a line holds that cannot run here, and why.
CANNOT_RUN = {
    r"^pip install|/pip install|--install-completion": "changes the user's environment",
    r"^make ": "needs the checkout; .ci/run runs its tests",
    r"^cp -r": "copies the examples, which test_examples.py runs",
    r"s3://|^aws ": "needs a bucket; test_bucket.py has a sweep in one",
    r"cluster|HOST|^raysent (attach|stop)": "needs an account of AWS or a cluster; test_following.py and test_cluster.py have fakes",
    r"st:models|hf:models": "needs pretrained weights",
    r"--mteb|^import mteb": "needs raysent[mteb] and its data; test_mteb.py has a task of its own",
    r"mlflow|wandb": "needs another tracker's package; test_trackers.py has them",
    r"^raysent serve|^serve run|^curl": "serves until it is stopped; test_own_labels.py serves",
    r"STS/STS12|sts-dev.csv|--data data|coco_": "needs files of a published data set",
    r"sweep (everything|adapt|labels) |RUN|NAME-DATE|SPACE|benchmarks": "is the form of a command, or takes many minutes",
}
# What a line makes anew: it must not be there yet.
MADE = r"(?:--run|-o|--output|\b(?:run|output)=)[ \"]*((?:runs|models|vectors|exported|onnx_model|index)[\w/]*)(?![\w./])"
TINY = {
    "metric": "context_accuracy",
    "base": {
        "corpus": {"path": "books/", "validation_fraction": 0.1},
        "vocabulary": {"size": 200},
        "encoder": {"type": "gru", "hidden_size": 130, "embedding": {"dim": 64}},
        "objective": {"type": "context_prediction"},
        "training": {"batch_size": 100, "epochs": 0.5, "num_reports": 2, "learning_rate": 0.005},
        "validation": {"num_candidates": 20, "num_sentences": 60},
    },
    "search": {"training.learning_rate": {"loguniform": [0.001, 0.01]}},
    "published": {"paper": "quick_thoughts", "model": "uni"},
    "limits": {"trials": 8},
    "evaluation": {"members": 2, "baselines": False, "tasks": ["labels.csv"]},
}


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the language and the text of every block of code of a page."""
    found = re.findall(
        r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [(language, text) for language, text in found if language in ("console", "python", "")]


def steps(page: str) -> list[tuple[str, str, int]]:
    """Return what a page runs: the kind of the code, the code, and the exit code that its next line tells."""
    found: list[tuple[str, str, int]] = []
    for language, text in blocks(page):
        if language == "python":
            found.append(("python", text, 0))
            continue
        joined = re.sub(r" \\\n\s*", " ", text)
        commands = re.findall(r"^(?:\$ |(?=raysent ))(.*)\n?(error:)?", joined, re.MULTILINE)
        found += [("shell", command, 2 if error else 0) for command, error in commands]
    return found


def reason_not_to(code: str) -> str | None:
    """Return why a step cannot run here, and None where it can."""
    return next(
        (why for pattern, why in CANNOT_RUN.items() if re.search(pattern, code, re.MULTILINE)), None
    )


# The columns of `reviews.csv`, which are others where a page says so.
COLUMNS = {"docs/howto/own_text.md": ["id", "product", "review"]}


def write_table(path: Path, columns: list[str]) -> None:
    """Write a table of reviews with some of the columns that the pages name."""
    draw = random.Random(5)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns, extrasaction="ignore")
        table.writeheader()
        for number in range(240):
            label = "positive" if number % 2 else "negative"
            text, part = review(label, draw), "test" if number % 5 == 0 else "train"
            row = {
                "text": text,
                "label": label,
                "body": text,
                "stars": 5 if number % 2 else 1,
                "part": part,
            }
            table.writerow(row | {"id": number, "product": f"product {number % 7}", "review": text})


def write_questions(folder: Path) -> None:
    """Write passages as text files, and queries for them as a table and in BEIR's form."""
    draw = random.Random(7)
    passages = [
        sentence(["ship", "rose", "judge", "oven", "tide", f"w{number}"], draw)
        for number in range(60)
    ]
    queries = [" ".join(one.rstrip(".").split()[1::2]) for one in passages]
    (folder / "texts").mkdir()
    (folder / "texts" / "one.txt").write_text("\n".join(passages) + "\n")
    with (folder / "questions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("query", "passage"), *zip(queries, passages, strict=True)])
    (folder / "nfcorpus" / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", passages), ("queries", queries)):
        lines = (
            json.dumps({"_id": f"{name[0]}{number}", "text": text})
            for number, text in enumerate(texts)
        )
        (folder / "nfcorpus" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    for place, part in enumerate(("train", "dev", "test")):
        rows = "".join(
            f"q{number}\tc{number}\t1\n" for number in range(20 * place, 20 * place + 20)
        )
        (folder / "nfcorpus" / "qrels" / f"{part}.tsv").write_text(
            "query-id\tcorpus-id\tscore\n" + rows
        )


@pytest.fixture(scope="module")
def reader(environment_with_extras: Path, tmp_path_factory: pytest.TempPathFactory) -> User:
    """Return somebody who has the files that the pages name."""
    place = tmp_path_factory.mktemp("reader")
    user = User(environment_with_extras, place, RAYSENT_CACHE=str(place / "cache"))
    for name in ("books", "novels", "handbook"):
        write_books(user.folder / name)
    (user.folder / "search_spaces").mkdir()
    for name in ("quickstart", "quick_thoughts"):
        (user.folder / "search_spaces" / f"{name}.yaml").write_text(
            yaml.safe_dump({"name": name, **TINY})
        )
    for name in ("adapt", "labels"):
        space = yaml.safe_load((ROOT / "search_spaces" / f"{name}.yaml").read_text())
        space["base"]["training"] |= {"max_steps": 4, "num_reports": 1}
        space["limits"] = {"trials": 2}
        (user.folder / "search_spaces" / f"{name}.yaml").write_text(yaml.safe_dump(space))
    (user.folder / "reviews.yaml").write_text(
        "path: reviews.csv\nsplit: {validation: 0.15, test: 0.15}\n"
    )
    write_questions(user.folder)
    write_table(user.folder / "labels.csv", ["text", "label"])
    write_table(user.folder / "new.csv", ["id", "text"])
    write_sentences(user.folder / "sentences.txt")
    (user.folder / "articles").mkdir()
    draw, words = random.Random(6), ["rain", "night", "hill", "road", "letter", "lamp"]
    for number in range(2):
        with gzip.open(user.folder / "articles" / f"{number}.txt.gz", "wt") as file:
            file.write("".join(sentence(words, draw) + "\n" for _ in range(40)))
    lines = "import pandas; pandas.DataFrame({'body': ['A rainy night. A long road.'] * 400, 'article_id': range(400)})"
    user.python(f"{lines}.to_parquet('articles.parquet')")
    return user


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=MARKS.get(page, [pytest.mark.chaos])) for page in PAGES]
)
def test_page_runs_as_printed(page, reader):
    """A page's commands and its Python, in their order; what a command makes anew is removed first."""
    write_table(
        reader.folder / "reviews.csv", COLUMNS.get(page, ["text", "label", "body", "stars", "part"])
    )
    for kind, printed, exit_code in steps(page):
        if reason_not_to(printed) is not None:
            continue
        code = printed.replace("30m", "20s")  # the time that trainings have
        for made in re.findall(MADE, code):
            shutil.rmtree(reader.folder / made, ignore_errors=True)
        if kind == "shell":
            answer = (
                "--yes " if re.match(r"raysent sweep", code) and "--dry-run" not in code else ""
            )
            reader.run(
                "sh",
                "-c",
                code.replace("raysent sweep ", f"raysent sweep {answer}", 1),
                code=exit_code,
            )
        else:
            reader.python(code)


def test_every_page_with_code_is_read():
    """A page that shows commands or Python is one of those that are run, and no reason is kept for lines that are gone."""
    shown = {
        str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    }
    assert (
        sorted(page for page in shown - set(PAGES) if "/reference/" not in page and steps(page))
        == []
    )
    code = [step[1] for page in PAGES for step in steps(page)]
    assert [p for p in CANNOT_RUN if not any(re.search(p, one, re.MULTILINE) for one in code)] == []


PARSE = """
import json, shlex, sys
import typer
from typer.main import get_command
from raysent.cli.app import app

for line in json.loads(sys.argv[1]):
    command, words = get_command(app), shlex.split(line, comments=True)
    try:
        context = command.make_context(words[0], words[1:])
        while hasattr(command, "commands"):
            name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            context = command.make_context(name, rest, parent=context)
    except next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError") as error:
        print(line, "->", error.message)
"""


def test_lines_that_cannot_run_here_name_commands_and_options_that_exist(reader):
    """Every line of raysent is read by the command line as it is, also those that need a cluster or an account."""
    lines = [
        code
        for page in PAGES
        for kind, code, _ in steps(page)
        if kind == "shell" and code.startswith("raysent ")
    ]
    # In the form of a command, brackets say that an option may be left out.
    plain = [
        re.sub(r"\[(--[^\]]*)\]", r"\1", line)
        for line in lines
        if "--install-completion" not in line and "s3:" not in line and "--version" not in line
    ]
    python = reader.env["PATH"].split(":")[0] + "/python"
    assert reader.run(python, "-c", PARSE, json.dumps(plain)).stdout == ""
