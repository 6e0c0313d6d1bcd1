"""Tasks: names, rows, published numbers of lines, and the tasks made of documentation."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raysent.data.corpus import DocsDocument
from raysent.errors import ConfigError, DataError
from raysent.evaluation import tasks
from raysent.evaluation.task import PROBED, SCORINGS, ProbeTask
from raysent.evaluation.tasks import embedded as documentation
from raysent.reproduction.tasks import senteval


def write_two_files(data_dir, positive: bytes, negative: bytes) -> None:
    """Write the files of a small CR."""
    (data_dir / "CR").mkdir()
    (data_dir / "CR/custrev.pos").write_bytes(positive)
    (data_dir / "CR/custrev.neg").write_bytes(negative)


@pytest.fixture
def small_counts(monkeypatch):
    """Set the published numbers of lines: CR two and three, all other files two."""
    counts = dict.fromkeys(senteval.NUM_ROWS, 2) | {"CR/custrev.neg": 3}
    monkeypatch.setattr(senteval, "NUM_ROWS", counts)


def documents(
    num_libraries: int = 3, num_modules: int = 9, num_sentences: int = 24
) -> list[DocsDocument]:
    """Return simulated documentation in which every sentence is distinct."""
    return [
        DocsDocument(
            library=f"library{library}",
            module=f"module{module}",
            sentences=[
                f"sentence {number} of module {module} in {library}"
                for number in range(num_sentences)
            ],
        )
        for library in range(num_libraries)
        for module in range(num_modules)
    ]


def modules_of(data, rows) -> set[str]:
    """Return the modules of the first sentences of some rows."""
    return {data.sentences[0][row].partition("of ")[2] for row in rows}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MR", "MR"),
        ("mr", "MR"),
        ("SST2", "SST-2"),
        ("docs_library", "docs-library"),
        ("sts-12", "STS12"),
    ],
)
def test_find_task_ignores_case_and_hyphens(name, expected):
    """Tasks with and without a probe are found in one way."""
    assert tasks.find_task(name).name == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TERC", r"^tasks TERC: unknown task; did you mean 'TREC'\?$"),
        ("sts-17", r"^tasks sts-17: unknown task; did you mean 'STS1\d'\?$"),
        (
            "xyzzy",
            r"^tasks xyzzy: unknown task; known: docs-library, docs-neighbours, MR, CR.*STS-B, STS12, STS13",
        ),
    ],
)
def test_find_task_names_the_nearest_or_all(name, message):
    """The error names the nearest task, or all where none is near."""
    with pytest.raises(ConfigError, match=message):
        tasks.find_task(name)


def test_find_task_says_of_a_file_that_is_there_which_files_are_read(tmp_path, monkeypatch):
    """A spreadsheet or an empty folder is no misspelt task."""
    (tmp_path / "reviews.xlsx").write_bytes(b"PK")
    (tmp_path / "tables").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("reviews.xlsx", "tables"):
        with pytest.raises(
            DataError,
            match=rf"^{name}: must be a .csv, .* file or a folder .*; save it as .csv, or",
        ):
            tasks.resolve_tasks([name])


def test_find_task_rejects_a_task_scored_in_another_way():
    """An ensemble combines probes, so it cannot use a task without one; nor is such a task listed for it."""
    with pytest.raises(
        ConfigError,
        match=r"^tasks: STS12: must be scored by accuracy or correlation; .* by similarity$",
    ):
        tasks.find_task("sts12", scorings=PROBED, option="tasks: ")
    with pytest.raises(ConfigError, match=r"known: docs-library.*STS-B$"):
        tasks.find_task("xyzzy", scorings=PROBED)


@pytest.mark.parametrize("task", tasks.TASKS.values(), ids=lambda task: task.name)
def test_every_task_names_its_files_and_source(task):
    """A task that reads files names them and where they are published; its name is its own, in any case."""
    assert tasks.TASKS[task.name] is tasks.find_task(task.name.lower().replace("-", "_")) is task
    assert task.scoring in SCORINGS
    assert bool(task.files) == task.source.startswith("https://")


@pytest.mark.parametrize(
    "task", [task for task in tasks.TASKS.values() if not task.files], ids=lambda task: task.name
)
def test_every_embedded_task_is_read_without_a_folder(task):
    """Its rows have labels of at least two classes in every split, and the same content each time."""
    data = task.load()
    assert data.task == task.name
    assert len(data) == len(data.sentences[0]) == len(data.labels)
    for rows in (data.train, data.validation, data.test):
        assert len(np.unique(data.labels[rows])) > 1
    assert task.load().row_hash == data.row_hash


def test_resolve_tasks_takes_tasks_beside_names():
    """A task that no registry knows, such as one made from a user's file, is taken as it is; each is taken once."""
    data = documentation.neighbour_rows(
        tasks.find_task("docs-neighbours"), documents(), split_sizes=(60, 16, 16)
    )
    own = ProbeTask("reviews", reader=lambda task, data_dir: replace(data, task=task.name))
    found = tasks.resolve_tasks(["docs-neighbours", own, "DOCS_NEIGHBOURS"])
    assert [task.name for task in found] == ["docs-neighbours", "reviews"]
    assert found[1].load().task == "reviews"
    with pytest.raises(
        ConfigError, match="^tasks docs-neighbours: two different tasks have this name; rename one$"
    ):
        tasks.resolve_tasks(["docs-neighbours", replace(own, name="docs-neighbours")])
    assert [tasks.resolve_tasks(one)[0].name for one in ("docs-neighbours", own)] == [
        "docs-neighbours",
        "reviews",
    ]


def test_read_lines_splits_on_newlines_only(tmp_path, small_counts):
    """U+0085 within a line is part of the sentence, and an empty line is a row."""
    write_two_files(tmp_path, b"a\x85b\n\n", b"c\nd \x0c e\nf")
    data = tasks.load_task("CR", tmp_path)
    assert data.sentences == (["a\x85b", "", "c", "d \x0c e", "f"],)
    assert data.labels.tolist() == [1, 1, 0, 0, 0]
    assert data.label_names == ("neg", "pos")


def test_check_data_finds_published_tasks_complete():
    """Every task whose files are there is as published; what is missing is named."""
    folder = Path(
        os.environ.get("RAYSENT_SENTEVAL", Path(__file__).parents[2] / "shared/data/senteval")
    )
    if not folder.is_dir():
        pytest.skip(f"no {folder}; name SentEval's data/downstream with RAYSENT_SENTEVAL")
    for found in tasks.check_data(folder):
        is_present = tasks.TASKS[found.task].is_present(folder)
        assert (found.status, bool(found.num_rows)) == (
            ("complete", True) if is_present else ("missing", False)
        ), found


OWN_TASKS = """
import numpy as np
from raysent.evaluation.task import ScoredSet, SimilarityTask

def read(task, data_dir):
    return [ScoredSet("all", ["a", "b"], ["a", "c"], np.array([5.0, 0.0]))]

TASKS = {"Own-Pairs": SimilarityTask("Own-Pairs", reader=read)}
"""


def test_resolve_tasks_finds_those_of_other_packages(tmp_path, monkeypatch):
    """By an entry point of the group `raysent.tasks`, written like any other name."""
    (tmp_path / "own_tasks.py").write_text(OWN_TASKS)
    metadata = tmp_path / "own_tasks-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-tasks\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[raysent.tasks]\npairs = own_tasks\n")
    monkeypatch.syspath_prepend(tmp_path)
    tasks.TASKS.refresh()
    try:
        (found,) = tasks.resolve_tasks(["own_pairs"])
        assert tasks.resolve_tasks(None)[-1] is found
        assert len(found.load()) == 2
    finally:
        tasks.TASKS.refresh()


def test_sst2_keeps_the_given_splits(tmp_path, small_counts):
    """Train, validation and test rows follow each other as the files do."""
    folder = tmp_path / "SST/binary"
    folder.mkdir(parents=True)
    for part in ("train", "dev", "test"):
        (folder / f"sentiment-{part}").write_text(
            f"good {part}\t1\nbad {part}\t0\n", encoding="utf-8"
        )
    data = tasks.load_task("SST-2", tmp_path)
    assert data.sentences[0][2:4] == ["good dev", "bad dev"]
    assert (data.train.tolist(), data.validation.tolist(), data.test.tolist()) == (
        [0, 1],
        [2, 3],
        [4, 5],
    )
    assert data.labels.tolist() == [1, 0, 1, 0, 1, 0]


def test_sst2_rejects_a_line_without_label(tmp_path, small_counts):
    """The error names file and line."""
    folder = tmp_path / "SST/binary"
    folder.mkdir(parents=True)
    for part in ("train", "dev", "test"):
        (folder / f"sentiment-{part}").write_text("good\t1\nbad\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"sentiment-train:2: SST-2 needs a label and a sentence; given 'bad'"
    ):
        tasks.load_task("SST-2", tmp_path)


def test_trec_reads_coarse_classes(tmp_path, small_counts):
    """The class is the text before the colon; sentences may hold any byte."""
    (tmp_path / "TREC").mkdir()
    (tmp_path / "TREC/train_5500.label").write_bytes(b"NUM:dist How far ?\nLOC:city Where\xf0 ?\n")
    (tmp_path / "TREC/TREC_10.label").write_bytes(b"LOC:other Where to ?\nNUM:date When ?\n")
    data = tasks.load_task("trec", tmp_path)
    assert data.label_names == ("LOC", "NUM")
    assert data.sentences[0] == ["How far ?", "Where\xf0 ?", "Where to ?", "When ?"]
    assert data.labels.tolist() == [1, 0, 0, 1]


def test_trec_rejects_a_class_unseen_in_training(tmp_path, small_counts):
    """The error gives the classes of train."""
    (tmp_path / "TREC").mkdir()
    (tmp_path / "TREC/train_5500.label").write_bytes(b"NUM:dist a\nLOC:city b\n")
    (tmp_path / "TREC/TREC_10.label").write_bytes(b"HUM:x c\nNUM:date d\n")
    with pytest.raises(DataError, match=r"labels of TREC must be LOC, NUM; given 'HUM'"):
        tasks.load_task("TREC", tmp_path)


def names(data_dir=None, **options) -> list[str]:
    """Return the names of the tasks taken if none is named."""
    return [task.name for task in tasks.resolve_tasks(None, data_dir, **options)]


def test_resolve_tasks_takes_those_present_by_default(tmp_path, small_counts):
    """With a folder, the tasks in it; without, the embedded ones."""
    assert names() == ["docs-library", "docs-neighbours"]
    write_two_files(tmp_path, b"a\nb\n", b"c\nd\ne\n")
    assert names(tmp_path) == ["CR"]
    assert "MR" in tasks.absent_tasks(tmp_path)


def test_resolve_tasks_takes_the_scorings_wanted_by_default(tmp_path):
    """One data set may be three tasks: its files are those of all of them."""
    for name in tasks.find_task("SICK-E").files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert names(tmp_path) == ["SICK-E", "SICK-R", "SICK-R-similarity"]
    assert names(tmp_path, scorings=PROBED) == ["SICK-E", "SICK-R"]
    assert names(tmp_path, default={"accuracy"}) == ["SICK-E"]


def test_row_hash_depends_on_the_content():
    """Equal rows have equal hashes; other rows have another."""
    task = tasks.find_task("docs-library")
    first, second = (
        documentation.library_rows(task, documents(), split_sizes=(60, 15, 15)) for _ in range(2)
    )
    other = documentation.library_rows(task, documents(), split_sizes=(60, 15, 15), seed=1)
    assert first.row_hash == second.row_hash
    assert first.row_hash != other.row_hash


def test_library_rows_are_balanced_and_split_by_module():
    """Every library has the same number of rows in a split, and no module is in two splits."""
    data = documentation.library_rows(
        tasks.find_task("docs-library"), documents(), split_sizes=(60, 15, 15)
    )
    assert data.kind == "sentence"
    assert data.label_names == tuple(sorted({one.library for one in documents()}))
    splits = [data.train, data.validation, data.test]
    assert [np.bincount(data.labels[rows]).tolist() for rows in splits] == [
        [20] * 3,
        [5] * 3,
        [5] * 3,
    ]
    found = [modules_of(data, rows) for rows in splits]
    assert not found[0] & found[1] | found[0] & found[2] | found[1] & found[2]


def test_library_rows_leave_out_repeated_and_short_sentences():
    """A sentence that occurs twice could be in two splits; one of four words is too short."""
    repeated = [
        DocsDocument(f"library{number}", "x", ["the same words in both", "too short"])
        for number in range(2)
    ]
    task = tasks.find_task("docs-library")
    data = documentation.library_rows(task, [*documents(), *repeated], split_sizes=(600, 150, 150))
    assert not {"the same words in both", "too short"} & set(data.sentences[0])


def test_library_rows_need_two_libraries():
    """The error gives the number found."""
    with pytest.raises(
        DataError, match=r"^docs-library: needs the documentation of two libraries; found 1"
    ):
        documentation.library_rows(tasks.find_task("docs-library"), documents(num_libraries=1))


def test_neighbour_rows_pair_half_of_the_sentences_with_another():
    """Half of the pairs are neighbours; the others are of one library; no module is in two splits."""
    data = documentation.neighbour_rows(
        tasks.find_task("docs-neighbours"), documents(), split_sizes=(60, 16, 16)
    )
    assert (data.kind, data.label_names) == ("pair", ("apart", "neighbours"))
    assert [int(data.labels[rows].sum()) for rows in (data.train, data.validation, data.test)] == [
        30,
        8,
        8,
    ]
    for first, second, label in zip(*data.sentences, data.labels, strict=True):
        one, other = (sentence.split() for sentence in (first, second))
        is_next = one[4] == other[4] and int(other[1]) - int(one[1]) == 1
        assert (one[-1] == other[-1], is_next) == (True, bool(label))
    assert not modules_of(data, data.train) & modules_of(data, data.test)


def test_neighbour_rows_need_several_modules():
    """A single module cannot be split."""
    with pytest.raises(
        DataError, match=r"^docs-neighbours: needs neighboring sentences of several modules; found"
    ):
        documentation.neighbour_rows(
            tasks.find_task("docs-neighbours"), documents(num_libraries=1, num_modules=1)
        )
