"""Names of users and strangers: what they name stays in its folder, and what removes a folder stays in its own."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tables import save_dataset, write_table

from raysent import Task
from raysent.data.tables import read_table
from raysent.ensembles.label_curves import LabelCurve, write_curves
from raysent.ensembles.soup import save_soup
from raysent.errors import ArtifactError, ConfigError, DataError, RaysentError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import Member
from raysent.evaluation.records import read_record, record_folder
from raysent.evaluation.task_files import open_tasks
from raysent.evaluation.tasks import resolve_tasks
from raysent.exports.corpus import encode_corpus
from raysent.models.backbone import transformer_folder
from raysent.models.derived import member_folders
from raysent.pipeline.arguments import default_run_folder
from raysent.pipeline.finishing import save_fusions
from raysent.storage import (
    MAX_NAME_BYTES,
    is_safe_name,
    open_folder,
    path_below,
    remove_folder,
    remove_tree,
    safe_name,
    write_json,
)
from raysent.sweeps.driver import check_free

ROOT = Path(__file__).resolve().parent.parent
ROWS = {"text": ["good film", "bad film"] * 6, "label": ["pos", "neg"] * 6}

# Of each kind that a file's name should not be, some.
UNSAFE = [
    *("", ".", "..", "...", ".hidden", "a.", " a", "a ", "\u00a0a", " "),
    *("a/b", "../a", "/etc", "a\\b", "c:d", "what?", "*", 'say "a"', "<a>", "a|b"),
    *("a\0b", "a\nb", "a\rb", "\tb", "\x1b[31mX", "a\x7f", "a\x9b31m", "a\u2028b"),
    *("a\u202eb", "a\u200bb", "\ufeffa", "a\u00adb", "a\udc80b"),
    *("con", "NUL", "nul.txt", "Com1", "lpt9.a.b", "aux", "CONIN$"),
    *("x" * 232, "文" * 78, "🙂" * 58),
]
SAFE = [
    *("reviews", "a b", "a.b", "50%", "Überprüfung", "отзывы", "评论", "مرحبا"),
    *("می\u200cخواهم", "समीक्षा", "e\u0301", "-", "_", "a..b", "console", "com", "x" * 231),
]


@pytest.mark.parametrize("name", UNSAFE)
def test_a_name_that_no_file_should_have_becomes_one_that_it_may_have(name: str) -> None:
    """What hides, leads out, or is refused somewhere is written by the digits of its bytes."""
    assert not is_safe_name(name)
    made = safe_name(name)
    assert is_safe_name(made)
    assert path_below(Path("folder"), made).parent == Path("folder")


@pytest.mark.parametrize("name", SAFE)
def test_a_safe_name_stays_as_it_is(name: str) -> None:
    """Letters, marks and joiners of every script, blanks and signs stay."""
    assert is_safe_name(name)
    assert safe_name(name) == name.replace("%", "%25")


def test_two_names_never_become_one() -> None:
    """A name says which text it is of."""
    escaped = [name for name in map(safe_name, UNSAFE) if "%" in name]
    texts = [*UNSAFE, *SAFE, *escaped, "x" * 233, "x" * 234]
    distinct = list(dict.fromkeys(texts))
    assert len({safe_name(text) for text in distinct}) == len(distinct)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "../../a", "/etc/passwd", "a\0b"])
def test_a_path_of_a_name_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    """Whoever wrote the name."""
    with pytest.raises(ArtifactError, match=r"must be without / and .*; rename it$") as raised:
        path_below(tmp_path, name)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["a\0b", "..", ".a", "a\nb", "\x1b[31mX\x1b]0;OWNED\a", "a\u202eb", "con", "what?"])  # fmt: skip
def test_a_task_files_name_is_refused_in_one_line_or_made_safe(name: str, tmp_path: Path) -> None:
    """Names are refused in task files, options and Python; that of a file is made of its letters."""
    write_table(tmp_path / "rows.csv", ROWS)
    document = {"tasks": {name: {"path": "rows.csv"}}}
    (tmp_path / "tasks.yaml").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"name: must (be fit to name files|hold no NUL character)"
    ) as raised:
        open_tasks(str(tmp_path / "tasks.yaml"))
    assert str(raised.value).isprintable()
    with pytest.raises(
        ConfigError, match=r"name: must (be fit to name files|hold no NUL character)"
    ):
        Task(str(tmp_path / "rows.csv"), name=name)
    if "\0" in name:  # a file of this name cannot be there at all
        return
    suggested = re.search(r"try '(.*)'", str(raised.value))
    assert suggested is not None
    assert Task(str(tmp_path / "rows.csv"), name=suggested[1]).name == suggested[1]


@pytest.mark.parametrize("file", ["...csv", "..csv", "..hidden.csv", "con.csv", "a\u202eb.csv", "x" * 120 + ".csv", "评" * 80 + ".csv", "🙂.csv", "a\nb.csv"])  # fmt: skip
def test_a_task_has_a_safe_name_whatever_its_file_is_called(file: str, tmp_path: Path) -> None:
    """Points, control characters and what is too long are left out."""
    for path in (file, f"{file.removesuffix('.csv')}.yaml"):
        assert is_safe_name(Task(path).name)
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    whole = tmp_path / f"{file.removesuffix('.csv')[:80]}.yaml"
    whole.write_text("path: rows.csv\n")
    assert is_safe_name(open_tasks(str(whole))[0].name)


def test_names_in_one_unicode_form_name_one_task() -> None:
    """A name that macOS wrote is the one that was typed elsewhere."""
    assert Task("x.csv", name="cafe\u0301").name == Task("x.csv", name="caf\u00e9").name
    assert Task("cafe\u0301.csv").name == Task("caf\u00e9.csv").name == "caf\u00e9"


def test_names_of_several_labels_fit_for_files_and_differ() -> None:
    """A label may be any text of any length."""
    labels = ["..", "a/b", "x" * 300, "x" * 301, "评" * 200, "con", "a\nb"]
    names = [Task("评" * 70 + ".csv", only=label).name for label in labels]
    assert all(map(is_safe_name, names))
    assert len(set(names)) == len(labels)
    assert max(len(name.encode()) for name in names) <= MAX_NAME_BYTES


def test_tasks_whose_files_a_system_may_take_for_one_are_refused(tmp_path: Path) -> None:
    """Of two names that differ in case alone, one would replace the other on macOS and Windows."""
    names = [write_table(tmp_path / folder / "a.csv", ROWS) for folder in _folders(tmp_path)]
    tasks = [
        Task(path, name=name) for path, name in zip(names, ("Reviews", "reviews"), strict=True)
    ]
    with pytest.raises(ConfigError, match=r"reviews: two different tasks have this name but for case: Reviews"):  # fmt: skip
        resolve_tasks(tasks)


def _folders(tmp_path: Path) -> list[str]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return ["one", "two"]


class _Named(Task):
    """A task with any name, as a package may register it."""

    def __init__(self, name: str) -> None:
        super().__init__("x.csv")
        object.__setattr__(self, "name", name)


def _run_with_files(folder: Path) -> list[Path]:
    kept = [folder / "sweep.json", folder / "trials" / "0000" / "model.json", folder / "a.txt"]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return kept


@pytest.mark.parametrize("name", ["..", ".", "../..", "", "a/../../.."])
def test_no_task_makes_a_sweep_remove_its_folder(name: str, tmp_path: Path) -> None:
    """The answer of a task called `..` is not written over the run."""
    kept = _run_with_files(tmp_path / "run")
    tasks = [_Named(name), _Named("other")]
    evaluator = Evaluator(tmp_path / "run" / "evaluation")
    with pytest.raises(RaysentError):
        save_fusions(tmp_path / "run", [], tasks, evaluator)
    assert all(path.is_file() for path in kept)


def test_an_answer_leaves_the_folders_of_another_answer_alone(tmp_path: Path) -> None:
    """Beside the ensemble of a task with classes, a task with queries may be called `members`."""
    best = tmp_path / "best"
    for file in ("ensemble.json", "members/a/model.json", "evaluation/a/t.json"):
        (best / file).parent.mkdir(parents=True, exist_ok=True)
        (best / file).write_text("{}")
    for name in ("members", "evaluation"):
        with pytest.raises(RaysentError, match="at least one"):
            save_fusions(tmp_path, [], [_Named(name)], Evaluator(tmp_path / "evaluation"))
    assert (best / "members/a/model.json").is_file()
    assert (best / "evaluation/a/t.json").is_file()


def test_a_folder_is_removed_only_below_what_is_named(tmp_path: Path) -> None:
    """Neither points nor links lead out of it; of a link, the link is removed."""
    run, other = tmp_path / "run", tmp_path / "other"
    for folder in (run / "best", other):
        folder.mkdir(parents=True)
        (folder / "file").write_text("")
    (run / "link").symlink_to(other)
    (run / "inside").symlink_to(tmp_path)
    outside = [run, run / "best" / "..", run / ".." / "other", other, tmp_path, run / "inside" / "other"]  # fmt: skip
    for folder in outside:
        for remove in (remove_folder, remove_tree):
            with pytest.raises(ArtifactError, match="must be inside .* to be removed"):
                remove(folder, below=run)
    remove_folder(run / "link", below=run)
    assert not (run / "link").exists()
    assert (other / "file").is_file()
    remove_folder(run / "best", below=run)
    remove_folder(run / "never", below=run)
    assert not (run / "best").exists()


def test_folders_are_removed_in_one_place() -> None:
    """Everything else asks `storage.remove_tree`, which stays below a folder of raysent's."""
    users = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "raysent").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("rmtree", "removedirs")
    ]
    assert users == ["raysent/storage/disk.py"]


@pytest.mark.parametrize("name", ["best", "encoder", "soup", "trials"])
def test_a_sweep_does_not_begin_where_it_would_replace_folders_of_the_user(
    name: str, tmp_path: Path
) -> None:
    """A run folder may be that of a project, which has an `encoder` of its own."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "code.py").write_text("")
    with pytest.raises(ArtifactError, match=rf"holds '{name}' of no sweep, which a sweep here would replace"):  # fmt: skip
        check_free(tmp_path)


def test_a_soup_removes_only_soups(tmp_path: Path) -> None:
    """A folder of the user beside them stays."""
    mine = tmp_path / "soup" / "my-notes"
    mine.mkdir(parents=True)
    (mine / "a.txt").write_text("")
    assert save_soup({}, Evaluator(tmp_path / "evaluation"), run=tmp_path) is None
    assert (mine / "a.txt").is_file()


def test_strangers_names_in_files_stay_in_their_folder(tmp_path: Path) -> None:
    """Members of a composition, splits and files of a dataset, modules of a pretrained folder, a protocol."""
    write_json(
        tmp_path / "composition.json", {"kind": "raysent composition", "members": ["../../etc"]}
    )
    with pytest.raises(ArtifactError, match=r"must be without / and"):
        member_folders(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps([{"path": "../other"}]))
    with pytest.raises(ArtifactError, match=r"must be without / and"):
        transformer_folder(tmp_path)
    with pytest.raises(ArtifactError, match=r"must be without / and"):
        record_folder(tmp_path, "..")
    table = pa.table({"text": ["a"] * 12, "label": ["b", "c"] * 6})
    save_dataset(tmp_path / "data", table)
    save_dataset(tmp_path / "splits" / "train", table)
    (tmp_path / "splits" / "dataset_dict.json").write_text('{"splits": ["../data"]}')
    with pytest.raises(DataError, match=r"must be without / and"):
        read_table(tmp_path / "splits")
    state = {"_data_files": [{"filename": "../splits/train/a.arrow"}]}
    (tmp_path / "data" / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match=r"must be without / and"):
        read_table(tmp_path / "data")


def test_names_of_members_and_spaces_fit_for_folders() -> None:
    """A soup of many trials has a name longer than a folder can have."""
    long_soup = "-".join(["soup", *(f"{number:04}" for number in range(90))])
    for name in ("..", ".hidden", "words:..", long_soup, "a\nb", "con"):
        assert is_safe_name(Member(name, name, "key").folder)
        assert is_safe_name(default_run_folder(name).name)
        assert default_run_folder(name).parent == Path("runs")


def test_records_of_a_strangers_task_stay_in_their_folder(tmp_path: Path) -> None:
    """Records and curves are named by tasks."""
    with pytest.raises(ArtifactError, match=r"must be without / and"):
        read_record(tmp_path, "../other")
    curve = LabelCurve.model_construct(task="../../out")
    with pytest.raises(ArtifactError, match=r"must be without / and"):
        write_curves(tmp_path, [curve])
    assert not np.any([path.name == "out.json" for path in tmp_path.parent.rglob("*")])


def test_text_whose_name_no_file_of_vectors_can_have_is_refused(tmp_path: Path) -> None:
    """It is said before anything is encoded."""
    for name in ("a\nb.txt", "x" * 240):
        path = tmp_path / name
        path.write_text("one line\n")
        with pytest.raises(
            DataError, match=r"a name must be of at most 231 bytes, without control"
        ):
            encode_corpus("hash:8", str(path), str(tmp_path / "out"))
        path.unlink()


@pytest.mark.parametrize("name", ["x" * 256, "é" * 128, f"a/{'x' * 4000}/b"])
def test_a_folder_whose_name_is_too_long_is_refused_in_a_short_line(name: str) -> None:
    """The system would not even say whether it is there."""
    with pytest.raises(ArtifactError, match="must be a name of at most 255 bytes; given") as error:
        open_folder(name)
    assert len(str(error.value)) < 200
    assert open_folder("é" * 127) == Path("é" * 127)


def test_a_file_that_begins_like_a_home_folder_is_itself(tmp_path: Path, monkeypatch) -> None:
    """`~x.csv` names no user; `~` is the home folder still."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    rows = "".join(f"words {row},{'good' if row % 2 else 'bad'}\n" for row in range(40))
    for file in ("~x.csv", "home/y.csv"):
        (tmp_path / file).write_text(f"text,label\n{rows}")
    for name in ("./~x.csv", "~x.csv", "~/y.csv"):
        (task,) = resolve_tasks([name])
        assert len(task.load()) == 40
