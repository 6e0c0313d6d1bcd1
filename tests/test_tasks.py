"""Tasks: names, rows, published counts, and the tasks drawn from documentation."""

import numpy as np
import pytest

from raysent.data.corpus import DocsDocument
from raysent.errors import ConfigError, DataError
from raysent.evaluation import tasks
from raysent.evaluation.tasks import embedded as documentation
from raysent.evaluation.tasks import senteval


def write_two_files(data_dir, positive: bytes, negative: bytes) -> None:
    """Write the files of a small CR."""
    (data_dir / "CR").mkdir()
    (data_dir / "CR/custrev.pos").write_bytes(positive)
    (data_dir / "CR/custrev.neg").write_bytes(negative)


@pytest.fixture
def small_counts(monkeypatch):
    """Let CR be published with two and three lines, SST-2 and TREC with two in every file."""
    counts = dict.fromkeys(senteval.NUM_ROWS, 2) | {"CR/custrev.neg": 3}
    monkeypatch.setattr(senteval, "NUM_ROWS", counts)


def documents(num_libraries: int = 3, num_modules: int = 9, num_sentences: int = 24) -> list[DocsDocument]:
    """Return made-up documentation in which every sentence is distinct."""
    return [
        DocsDocument(
            library=f"library{library}",
            module=f"module{module}",
            sentences=[f"sentence {number} of module {module} in {library}" for number in range(num_sentences)],
        )
        for library in range(num_libraries)
        for module in range(num_modules)
    ]


def modules_of(data, rows) -> set[str]:
    """Return the modules that the first column's sentences of some rows come from."""
    return {data.sentences[0][row].partition("of ")[2] for row in rows}


@pytest.mark.parametrize("name", ["MR", "mr", "SST2", "sst-2", "docs_library", "TREC"])
def test_find_task_ignores_case_and_hyphens(name):
    """Names are found however they are written."""
    assert tasks.find_task(name).name.lower().replace("-", "") == name.lower().replace("-", "").replace("_", "")


def test_find_task_names_the_nearest():
    """An unknown task's message names the one that was meant."""
    with pytest.raises(ConfigError, match=r"^--tasks TERC: unknown task; did you mean 'TREC'\?$"):
        tasks.find_task("TERC")


def test_find_task_lists_what_is_known():
    """Where nothing is near, all tasks are listed."""
    with pytest.raises(ConfigError, match=r"--tasks xyzzy: unknown task; known: docs-library, docs-order, MR, CR"):
        tasks.find_task("xyzzy")


@pytest.mark.parametrize("task", tasks.known_tasks().values(), ids=lambda task: task.name)
def test_every_task_says_what_it_is(task):
    """A task that needs data names its files, their counts and where they are published."""
    assert task.split in ("nested", "train-test", "train-validation-test")
    if task.needs_data:
        assert task.files
        assert task.source.startswith("https://")
        assert all(senteval.NUM_ROWS[name] > 0 for name in task.files)


def test_reader_splits_on_newlines_only(tmp_path, small_counts):
    """U+0085 within a line is part of the sentence, and an empty line is a row."""
    write_two_files(tmp_path, b"a\x85b\n\n", b"c\nd \x0c e\nf")
    data = tasks.load_task("CR", tmp_path)
    assert data.sentences == (["a\x85b", "", "c", "d \x0c e", "f"],)
    assert data.labels.tolist() == [1, 1, 0, 0, 0]
    assert data.label_names == ("neg", "pos")


def test_missing_file_is_named(tmp_path):
    """The message names the file, the task and where it is published."""
    with pytest.raises(DataError, match=r"CR/custrev.pos: no such file; CR needs it, published at https://github.com"):
        tasks.load_task("CR", tmp_path)


def test_wrong_count_is_refused(tmp_path, small_counts):
    """A file of another length is not the published one."""
    write_two_files(tmp_path, b"a\n", b"c\nd\ne\n")
    with pytest.raises(DataError, match=r"custrev.pos: CR must have 2 lines as published; given 1; fetch it again"):
        tasks.load_task("CR", tmp_path)


def test_missing_folder_is_asked_for():
    """A task from files cannot be loaded without a folder."""
    with pytest.raises(DataError, match=r"^MR: needs a folder in SentEval's layout; given none; name it with --data"):
        tasks.load_task("MR")


def test_sst2_keeps_the_given_splits(tmp_path, small_counts):
    """Train, validation and test rows follow each other as the files do."""
    folder = tmp_path / "SST/binary"
    folder.mkdir(parents=True)
    for part in ("train", "dev", "test"):
        (folder / f"sentiment-{part}").write_text(f"good {part}\t1\nbad {part}\t0\n", encoding="utf-8")
    data = tasks.load_task("SST-2", tmp_path)
    assert data.sentences[0][2:4] == ["good dev", "bad dev"]
    assert (data.train.tolist(), data.validation.tolist(), data.test.tolist()) == ([0, 1], [2, 3], [4, 5])
    assert data.labels.tolist() == [1, 0, 1, 0, 1, 0]


def test_sst2_refuses_a_line_without_label(tmp_path, small_counts):
    """A line of another form is named."""
    folder = tmp_path / "SST/binary"
    folder.mkdir(parents=True)
    (folder / "sentiment-train").write_text("good\t1\nbad\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"sentiment-train:2: SST-2 needs a label and a sentence; given 'bad'"):
        tasks.load_task("SST-2", tmp_path)


def test_trec_reads_coarse_classes(tmp_path, small_counts):
    """The class is what stands before the colon; the text may hold any byte."""
    (tmp_path / "TREC").mkdir()
    (tmp_path / "TREC/train_5500.label").write_bytes(b"NUM:dist How far ?\nLOC:city Where\xf0 ?\n")
    (tmp_path / "TREC/TREC_10.label").write_bytes(b"LOC:other Where to ?\nNUM:date When ?\n")
    data = tasks.load_task("trec", tmp_path)
    assert data.label_names == ("LOC", "NUM")
    assert data.sentences[0] == ["How far ?", "Where\xf0 ?", "Where to ?", "When ?"]
    assert data.labels.tolist() == [1, 0, 0, 1]


def test_trec_refuses_a_class_unseen_in_training(tmp_path, small_counts):
    """A test label that training lacks is a wrong file."""
    (tmp_path / "TREC").mkdir()
    (tmp_path / "TREC/train_5500.label").write_bytes(b"NUM:dist a\nLOC:city b\n")
    (tmp_path / "TREC/TREC_10.label").write_bytes(b"HUM:x c\nNUM:date d\n")
    with pytest.raises(DataError, match=r"labels of TREC must be LOC, NUM; given 'HUM'"):
        tasks.load_task("TREC", tmp_path)


def test_default_tasks_are_those_at_hand(tmp_path, small_counts):
    """With a folder, the tasks in it; without, the embedded ones; an empty folder is a mistake."""
    assert tasks.default_tasks() == ["docs-library", "docs-order"]
    with pytest.raises(DataError, match=r"no task found; it would hold MR/rt-polarity.pos"):
        tasks.default_tasks(tmp_path)
    write_two_files(tmp_path, b"a\nb\n", b"c\nd\ne\n")
    assert tasks.default_tasks(tmp_path) == ["CR"]
    assert "MR" in tasks.absent_tasks(tmp_path)


def test_row_hash_follows_the_content():
    """The same rows have the same hash; another label, another one."""
    task = tasks.find_task("docs-library")
    first, second = (documentation.library_rows(task, documents(), split_sizes=(60, 15, 15)) for _ in range(2))
    other = documentation.library_rows(task, documents(), split_sizes=(60, 15, 15), seed=1)
    assert first.row_hash == second.row_hash
    assert first.row_hash != other.row_hash


def test_library_rows_are_balanced_and_apart():
    """Every library has as many rows in a split, and no module is in two splits."""
    data = documentation.library_rows(tasks.find_task("docs-library"), documents(), split_sizes=(60, 15, 15))
    splits = [data.train, data.validation, data.test]
    assert [np.bincount(data.labels[rows]).tolist() for rows in splits] == [[20] * 3, [5] * 3, [5] * 3]
    found = [modules_of(data, rows) for rows in splits]
    assert not found[0] & found[1] | found[0] & found[2] | found[1] & found[2]


def test_library_rows_leave_out_repeated_and_short_sentences():
    """A sentence of two places could be in two splits; one of four words says too little."""
    repeated = [DocsDocument(f"library{number}", "x", ["the same words in both", "too short"]) for number in range(2)]
    task = tasks.find_task("docs-library")
    data = documentation.library_rows(task, [*documents(), *repeated], split_sizes=(600, 150, 150))
    assert not {"the same words in both", "too short"} & set(data.sentences[0])


def test_library_rows_need_two_libraries():
    """With one library there is nothing to tell apart."""
    with pytest.raises(DataError, match=r"^docs-library: needs the documentation of two libraries; found 1"):
        documentation.library_rows(tasks.find_task("docs-library"), documents(num_libraries=1))


def test_order_rows_swap_half_of_the_neighbours():
    """Pairs are neighbours; half are swapped and labelled so; no module is in two splits."""
    data = documentation.order_rows(tasks.find_task("docs-order"), documents(), split_sizes=(60, 16, 16))
    assert data.kind == "order"
    assert [int(data.labels[rows].sum()) for rows in (data.train, data.validation, data.test)] == [30, 8, 8]
    for first, second, label in zip(*data.sentences, data.labels, strict=True):
        gap = int(second.split()[1]) - int(first.split()[1])
        assert gap == (1 if label else -1)
    assert not modules_of(data, data.train) & modules_of(data, data.test)


def test_order_rows_need_several_modules():
    """A single module cannot be divided."""
    with pytest.raises(DataError, match=r"^docs-order: needs neighbouring sentences of several modules; found"):
        documentation.order_rows(tasks.find_task("docs-order"), documents(num_libraries=1, num_modules=1))
