"""Sentence analogies: accuracy against a plain computation, categories, inputs, the pool, the file's format."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import reference
from command import CommandLine

from raysent.analysis.analogies import read_analogies, score_analogies
from raysent.data.corpus import CorpusConfig
from raysent.data.corpus.distinct import distinct_sentences
from raysent.errors import DataError
from raysent.evaluation.members import expand
from raysent.models.schemes.hash import HashEncoder

NOUNS = ("king queen", "man woman", "uncle aunt")
LINES = [
    ": family",
    *(
        "\t".join(f"the {word} slept" for word in (*first.split(), *second.split()))
        for first, second in itertools.permutations(NOUNS, 2)
    ),
    ": tense",
    "he walks home\the walked home\tshe sees it\tshe saw it",
]


PARTS = {
    "king": [1, 0, 1, 0],
    "queen": [0, 1, 1, 0],
    "man": [1, 0, 0, 0],
    "woman": [0, 1, 0, 0],
    "uncle": [1, 0, 0, 1],
    "aunt": [0, 1, 0, 1],
}


class Meaning(HashEncoder):
    """A king is a man plus royalty and a queen is a woman plus royalty: relations are exact differences."""

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> np.ndarray:
        """Return the sum of each sentence's parts of meaning."""
        parts = [[PARTS.get(word, [0, 0, 0, 0]) for word in text.split()] for text in sentences]
        return np.array([np.sum(words, axis=0) for words in parts], np.float32)


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a text of more candidates, one of them also in the file, with its own cache."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "pool.txt").write_text("the king slept\na queen\nthe queen slept well\na dog barked\n")
    return tmp_path / "pool.txt"


def test_score_analogies_finds_exact_differences() -> None:
    """If relations are differences, all family questions are answered right; zero vectors are not."""
    score = score_analogies(expand(["hash:4"])[0], Meaning(4), read_analogies(LINES, name="f"), asks_all_four=True)
    family, tense = score.categories
    assert (family.category, family.num_questions, family.accuracy, family.returned_input) == ("family", 24, 100, 0)
    assert (tense.num_questions, tense.accuracy) == (4, 0)
    assert score.total.accuracy == pytest.approx(100 * 24 / 28)


@pytest.mark.parametrize("excludes_inputs", [False, True])
@pytest.mark.parametrize("asks_all_four", [False, True])
def test_score_analogies_equals_a_plain_computation(excludes_inputs, asks_all_four) -> None:
    """Accuracy and errors are those of answering question by question."""
    analogies = read_analogies(LINES, name="f")
    vectors = HashEncoder(7).encode(list(analogies.sentences)).astype(np.float64)
    forms = [(0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)][: 4 if asks_all_four else 1]
    right, gave_c, gave_input = [], [], []
    for line in analogies.lines.tolist():
        for form in forms:
            a, b, c, d = (line[place] for place in form)
            answer = reference.analogy_answer(vectors, a, b, c, (a, b, c) if excludes_inputs else ())
            right.append(answer == d)
            gave_c.append(answer == c)
            gave_input.append(answer in (a, b, c))
    score = score_analogies(
        expand(["hash:7"])[0], HashEncoder(7), analogies, asks_all_four=asks_all_four, excludes_inputs=excludes_inputs
    )
    assert score.total.accuracy == pytest.approx(100 * np.mean(right))
    assert score.total.returned_c == pytest.approx(100 * np.mean(gave_c))
    assert score.total.returned_input == pytest.approx(100 * np.mean(gave_input))
    assert (score.total.returned_input == 0) == excludes_inputs


def test_score_analogies_takes_answers_from_the_pool(pool) -> None:
    """A nearer sentence of the pool wins; a sentence in both counts as the file's."""
    lines = [": family", "the man slept\tthe woman slept\tthe king slept\tthe queen slept"]
    sentences = distinct_sentences(CorpusConfig(path=str(pool)))
    member, encoder = expand(["hash:4"])[0], Meaning(4)
    # The pool's own queen has the same vector as the file's: the file's comes first.
    assert score_analogies(member, encoder, read_analogies(lines, name="f"), pool=sentences).total.accuracy == 100
    lines[1] = lines[1].replace("the queen slept", "the aunt slept")
    score = score_analogies(member, encoder, read_analogies(lines, name="f"), pool=sentences)
    assert (score.total.accuracy, score.total.returned_input, score.num_candidates) == (0, 0, 8)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([": a", "one\ttwo\tthree"], "^f:2: must be four sentences with tabs between them; given 3$"),
        (["a\tb\tc\td"], "^f:1: must come below a category's line, as in ': family'; given none above$"),
        ([": a", ""], "^f: must hold lines of four sentences with tabs between them; given none$"),
    ],
)
def test_read_analogies_refuses_in_one_line(lines, message) -> None:
    """A malformed line is an error that names it."""
    with pytest.raises(DataError, match=message):
        read_analogies(lines, name="f")


def test_command_analogies_prints_categories(monkeypatch, capsys, pool) -> None:
    """One row per category and one for all; `--json` prints one object."""
    command, file = CommandLine(monkeypatch, capsys), pool.with_name("analogies.txt")
    file.write_text("\n".join(LINES) + "\n")
    ran = command("analogies", "hash:20", "hash:30", file, "--set", f"pool={pool}", "--set", "asks_all_four=true")
    assert ran.code == 0, ran.err
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines[0] == ["category", "questions", "hash:20", "returned", "C", "hash:30", "returned", "C"]
    assert [line[:2] for line in lines[1:4]] == [["family", "24"], ["tense", "4"], ["all", "28"]]
    found = json.loads(command("analogies", "hash:20", file, "--json").out)
    assert found["results"][0]["total"]["num_questions"] == 7
