"""Sentence analogies: "A is to B as C is to D" is answered by the sentence nearest to v(C) + v(B) - v(A).

Source: Logeswaran and Lee, 2018, appendix A, on analogies by Guu et al., 2017; the file format is that of Mikolov et
al., 2013.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysent.analysis.nearest import check_search, nearest_vectors
from raysent.analysis.neighbours import index_rows, open_index
from raysent.data import read_lines
from raysent.data.corpus import CorpusConfig, corpus_notes
from raysent.data.corpus.distinct import DistinctSentences, distinct_sentences, normalize_whitespace
from raysent.errors import DataError
from raysent.evaluation.members import Member, expand
from raysent.kernels.devices import set_matmul_precision
from raysent.models import load
from raysent.models.sentence_encoder import SentenceEncoder, normalize_rows
from raysent.parallel import Progress
from raysent.progress import ProgressLines, messages

# Positions in a line A B C D of: the subtracted sentence, the first added, the second added, the answer.
_ONE = ((0, 1, 2, 3),)
# Each sentence of a line is the answer once: the relation holds along both pairs and in both directions.
_FOUR = ((0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0))
# At most three sentences are excluded as answers.
_NUM_CANDIDATES = 4


@dataclass(frozen=True)
class Analogies:
    """A file of analogies.

    Attributes:
        sentences: Distinct sentences, in order of first appearance.
        categories: Names of the categories, in the order of the file.
        category: Index of each line's category, int64 [lines].
        lines: Indices of each line's sentences A, B, C, D, int64 [lines, 4].
    """

    sentences: tuple[str, ...]
    categories: tuple[str, ...]
    category: np.ndarray
    lines: np.ndarray


@dataclass(frozen=True)
class CategoryScore:
    """Accuracy on a category.

    Attributes:
        category: Its name.
        num_questions: The number of its questions.
        accuracy: Percentage answered with the right sentence.
        returned_c: Percentage answered wrongly with C.
        returned_input: Percentage answered wrongly with A, B or C.
    """

    category: str
    num_questions: int
    accuracy: float
    returned_c: float
    returned_input: float


@dataclass(frozen=True)
class AnalogyScore:
    """A model's accuracy on a file of analogies.

    Attributes:
        model: The model's name.
        excludes_inputs: Whether A, B and C are excluded as answers.
        asks_all_four: Whether each of a line's four sentences is the answer of a question, or D alone.
        num_candidates: Distinct sentences of the file and of the pool; a sentence in both counts twice.
        categories: Accuracy on each category.
        total: Accuracy on all questions.
    """

    model: str
    excludes_inputs: bool
    asks_all_four: bool
    num_candidates: int
    categories: tuple[CategoryScore, ...]
    total: CategoryScore


def read_analogies(lines: Sequence[str], *, name: str) -> Analogies:
    """Parse a file of analogies: `: category` lines, and lines of four sentences separated by tabs.

    Args:
        lines: The file's lines; empty ones are ignored.
        name: The file's name, for messages.

    Raises:
        DataError: If a line is neither, precedes the first category, or there is none.
    """
    indices: dict[str, int] = {}
    categories: dict[str, int] = {}
    rows: list[tuple[int, list[int]]] = []
    for number, line in enumerate(lines, start=1):
        if line.startswith(":"):
            current = categories.setdefault(line[1:].strip(), len(categories))
        elif line.strip():
            parts = [normalize_whitespace(part) for part in line.split("\t")]
            if len(parts) != 4 or not all(parts):
                raise DataError(f"{name}:{number}: must be four sentences with tabs between them; given {len(parts)}")
            if not categories:
                raise DataError(
                    f"{name}:{number}: must come below a category's line, as in ': family'; given none above"
                )
            rows.append((current, [indices.setdefault(part, len(indices)) for part in parts]))
    if not rows:
        raise DataError(f"{name}: must hold lines of four sentences with tabs between them; given none")
    category, sentences = zip(*rows, strict=True)
    return Analogies(tuple(indices), tuple(categories), np.array(category), np.array(sentences))


def analogies(
    models: Sequence[str | Path],
    file: str | Path,
    *,
    pool: str | Path | None = None,
    column: str | None = None,
    asks_all_four: bool = False,
    excludes_inputs: bool = False,
    progress: bool = True,
) -> list[AnalogyScore]:
    """Complete analogies among sentences, A is to B as C is to what: the sentence nearest to v(C) + v(B) - v(A).

    The answer is the sentence with the highest cosine among all sentences of the file and of the pool. The vectors of a
    model with a code are its bits as numbers.

    Args:
        models: As for `evaluate`.
        file: Lines ``: category``, and lines of A, B, C and D separated by tabs.
        pool: Text whose sentences are candidates too, beside those of the file; their vectors are cached.
        column: Column of the text of `pool`, if it is a table.
        asks_all_four: Whether each of the four sentences is asked for, as in the paper; by default D.
        excludes_inputs: Whether A, B and C are left out as answers, as is usual for words; the paper keeps them.
        progress: Whether to show progress on standard error.

    Returns:
        For each model the percentage of right answers by category, and of answers that are C itself.

    Raises:
        ConfigError: If FAISS is not installed.
        RaysentError: If a model or a file cannot be used.
    """
    questions = read_analogies(read_lines(Path(file)), name=str(file))
    config = None if pool is None else CorpusConfig(path=str(pool), text_field=column or "text")
    with ProgressLines(is_quiet=not progress) as bar:
        options: dict[str, Any] = {"asks_all_four": asks_all_four, "excludes_inputs": excludes_inputs, "progress": bar}
        sentences = None if config is None else distinct_sentences(config, progress=bar)
        scores = [
            score_analogies(member, load(member.path), questions, pool=sentences, **options)
            for member in expand(models)
        ]
    for note in corpus_notes(config) if config is not None and progress else ():
        messages.print(note, style="dim", soft_wrap=True)
    return scores


def score_analogies(
    member: Member,
    encoder: SentenceEncoder,
    analogies: Analogies,
    *,
    pool: DistinctSentences | None = None,
    asks_all_four: bool = False,
    excludes_inputs: bool = False,
    progress: Progress | None = None,
) -> AnalogyScore:
    """Return a model's accuracy on analogies; `analogies` names the arguments."""
    set_matmul_precision()
    check_search("cosine")
    vectors = encoder.encode(list(analogies.sentences))
    unit = index_rows(encoder, list(analogies.sentences), measure="cosine")
    forms = _FOUR if asks_all_four else _ONE
    questions = np.concatenate([analogies.lines[:, list(form)] for form in forms])
    queries = normalize_rows(vectors[questions[:, 2]] + vectors[questions[:, 1]] - vectors[questions[:, 0]])
    own = nearest_vectors(unit, queries, k=_NUM_CANDIDATES)
    candidates, cosines = own.rows, own.scores
    if pool is not None:
        index = open_index(member, encoder, pool, measure="cosine", progress=progress)
        hits = index.search(queries, k=_NUM_CANDIDATES)
        candidates = np.hstack([candidates, _indices(hits.rows, pool, analogies)])
        cosines = np.hstack([cosines, hits.scores])
    if excludes_inputs:
        is_input = (candidates[:, :, None] == questions[:, None, :3]).any(axis=2)
        cosines = np.where(is_input, -np.inf, cosines)
    answers = candidates[np.arange(len(candidates)), cosines.argmax(axis=1)]
    category = np.tile(analogies.category, len(forms))
    scores = [
        _score(name, answers[category == index], questions[category == index])
        for index, name in enumerate(analogies.categories)
        if index in category
    ]
    num_candidates = len(analogies.sentences) + (0 if pool is None else len(pool))
    total = _score("all", answers, questions)
    return AnalogyScore(member.name, excludes_inputs, asks_all_four, num_candidates, tuple(scores), total)


def _indices(rows: np.ndarray, pool: DistinctSentences, analogies: Analogies) -> np.ndarray:
    """Return the file's indices of the pool's sentences [questions, candidates]; -1 for those not in the file."""
    indices = {sentence: index for index, sentence in enumerate(analogies.sentences)}
    distinct, inverse = np.unique(rows, return_inverse=True)
    known = np.array([indices.get(text, -1) for text in pool.texts(distinct.tolist())])
    found: np.ndarray = known[inverse.reshape(rows.shape)]
    return found


def _score(category: str, answers: np.ndarray, questions: np.ndarray) -> CategoryScore:
    """Score answers [questions] to questions [questions, 4], whose last column is the right answer."""
    is_right = answers == questions[:, 3]
    # An input that is the right answer is not an error.
    is_input = (answers[:, None] == questions[:, :3]).any(axis=1) & ~is_right
    is_c = (answers == questions[:, 2]) & ~is_right
    return CategoryScore(
        category,
        num_questions=len(answers),
        accuracy=100 * float(is_right.mean()),
        returned_c=100 * float(is_c.mean()),
        returned_input=100 * float(is_input.mean()),
    )
