"""What is shown where: the screen, `--verbose`, and the log of a run; and what models are called."""

from __future__ import annotations

import pytest
from rich.table import Table

from raysent import screen
from raysent.errors import ConfigError
from raysent.evaluation.titles import model_title, shown_name
from raysent.models.encoders import ENCODERS
from raysent.progress import VERBOSE_VARIABLE, messages
from raysent.screen import LOG_FILE, RunLog, detail, run_log, shortened, show, warn
from raysent.training.loop import fit
from tests.tiny_run import tiny_run


def _table() -> Table:
    table = Table(box=None)
    table.add_column("name")
    table.add_row("a row")
    return table


def test_log_has_what_the_screen_leaves_out(tmp_path, capsys, monkeypatch):
    """In order, each line with its time, from before the folder was known; with --verbose the screen has it too."""
    monkeypatch.delenv(VERBOSE_VARIABLE, raising=False)
    with run_log() as log:
        detail("before the folder")
        show("a plan", "")
        log.open(tmp_path)
        detail("a detail", "", _table())
        warn("a warning")
    assert capsys.readouterr().err.splitlines() == ["a plan", "warning: a warning"]
    lines = (tmp_path / LOG_FILE).read_text().splitlines()
    assert [line[21:].strip() for line in lines] == [
        "before the folder",
        "a plan",
        "a detail",
        "name",
        "a row",
        "warning: a warning",
    ]
    monkeypatch.setenv(VERBOSE_VARIABLE, "1")
    with run_log() as log:
        log.open(tmp_path)
        detail("a detail")
    assert capsys.readouterr().err.splitlines() == ["a detail"]
    assert (tmp_path / LOG_FILE).read_text().splitlines()[:6] == lines
    messages.print("after it")
    assert "after it" not in (tmp_path / LOG_FILE).read_text()


def test_log_inside_another_is_that_one(tmp_path):
    """The command line's begins before a sweep's, and has the answer after it."""
    with run_log() as outer:
        with run_log() as inner:
            inner.open(tmp_path)
            show("inside")
        show("outside")
    assert inner is outer
    assert len((tmp_path / LOG_FILE).read_text().splitlines()) == 2


def test_log_of_a_bucket_is_stored_whole(tmp_path):
    """No line can be appended there: it continues what is there, and is whole at the end."""
    stored: list[str] = []
    (tmp_path / LOG_FILE).write_text("an earlier line\n")
    with run_log() as log:
        log.open(tmp_path, store=lambda _, text: stored.append(text))
        for number in range(3):
            detail(f"line {number}")
    assert len(stored) < 4
    assert stored[-1].startswith("an earlier line\n")
    assert stored[-1].endswith("line 2\n")


def test_log_of_a_bucket_is_not_made_again_once_its_folder_is_removed(tmp_path):
    """As where a sweep came to nothing."""
    with run_log() as log:
        log.open(tmp_path, store=lambda path, text: path.write_text(text))
        detail("a line")
        log.close()
        (tmp_path / LOG_FILE).unlink()
    assert not (tmp_path / LOG_FILE).exists()


def test_log_says_what_ended_the_run(tmp_path):
    """The screen has the line from the command, which follows the log's end."""
    with pytest.raises(ConfigError, match="must be"), run_log() as log:
        log.open(tmp_path)
        raise ConfigError("trials: must be at least 1; given 0")
    lines = (tmp_path / LOG_FILE).read_text().splitlines()
    assert lines[-1].endswith("error: trials: must be at least 1; given 0")


def test_log_has_no_secret_and_no_order_to_a_terminal(tmp_path):
    """As what is printed."""
    with run_log() as log:
        log.open(tmp_path)
        detail("https://user:hidden@host/x \x1b[2J")
    text = (tmp_path / LOG_FILE).read_text()
    assert "hidden" not in text
    assert "\x1b" not in text


def test_disk_that_refuses_the_log_ends_nothing(tmp_path):
    """What is printed counts."""
    log = RunLog()
    (tmp_path / LOG_FILE).mkdir()
    log.open(tmp_path)
    log("a line")
    log.close()


def test_long_line_is_cut_between_words():
    """Never in one, unless a word is longer than the line."""
    assert shortened("a b c", 5) == "a b c"
    assert shortened("all of it, and more", 14) == "all of it…"
    assert shortened("x" * 20, 10) == "x" * 9 + "…"
    assert screen.WIDTH == 100


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("0006", "trial 6"),
        ("first-0006", "trial 6 of first"),
        ("tfidf", "TF-IDF of words"),
        ("tfidf:chars", "TF-IDF of characters"),
        ("words:start:0003", "mean of word vectors before training (trial 3)"),
        ("middle:all-MiniLM-L6-v2", "all-MiniLM-L6-v2's middle layer"),
        ("hash:1200", "mean of random vectors of words (1200 numbers)"),
        ("ensemble + tfidf", "ensemble + TF-IDF of words"),
        ("2024", "2024"),
        ("my-model", "my-model"),
    ],
)
def test_models_have_names_that_a_person_can_say(name, words):
    """Whatever scheme made them."""
    assert shown_name(name) == words


def test_trained_model_says_what_it_is(tmp_path):
    """By its record; a damaged one, and what has no folder, by its name alone."""
    folder = tmp_path / "0006"
    fit(tiny_run(tmp_path, encoder__bidirectional=True), folder)
    assert model_title(str(folder), "0006") == "GRU both ways, 8 numbers, trial 6"
    assert model_title("tfidf", "tfidf") == "TF-IDF of words"
    next(folder.rglob("model.json")).write_text("{")
    assert model_title(str(folder), "0006") == "trial 6"


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_every_encoder_has_a_spoken_name(name):
    """One that says its size, and of which kind it is without a name of a setting."""
    for config in ENCODERS[name].Config.examples():
        assert config.spoken_name.endswith(f", {config.dim:,} numbers")
        assert "_" not in config.spoken_kind
