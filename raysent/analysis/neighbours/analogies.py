"""Sentence analogies: A is to B as C is to D, asked for by the sentence nearest to v(C) + v(B) - v(A).

Source: Logeswaran & Lee 2018, appendix A, on tuples made by Guu et al. 2017; the file's form is Mikolov et al. 2013's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raysent.analysis.neighbours.search import encoded, nearest_vectors, open_index
from raysent.data.corpus import Progress
from raysent.data.corpus.distinct import DistinctSentences, normalize_whitespace
from raysent.errors import DataError
from raysent.evaluation.members import Member
from raysent.models.sentence_encoder import SentenceEncoder, normalize_rows

# Places of (subtracted, added, added and the answer's partner, answer) in a line A B C D.
_ONE = ((0, 1, 2, 3),)
# Each sentence of a line is asked for once; the relation holds along both pairs and both ways.
_FOUR = ((0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0))
# No more than three sentences are left out of an answer.
_NUM_CANDIDATES = 4


@dataclass(frozen=True)
class Analogies:
    """A file of analogies.

    Attributes:
        sentences: Distinct sentences, in order of first appearance.
        categories: Names of the categories, in the order of the file.
        category: Number of each line's category, int64 [lines].
        places: Numbers of each line's sentences A, B, C, D, int64 [lines, 4].
    """

    sentences: tuple[str, ...]
    categories: tuple[str, ...]
    category: np.ndarray
    places: np.ndarray


@dataclass(frozen=True)
class CategoryScore:
    """How many of a category's questions were answered rightly.

    Attributes:
        category: Its name.
        num_questions: Its questions.
        accuracy: Share answered with the sentence that the file names, in percent.
        returned_c: Share answered with C, the sentence that the answer is derived from, in percent.
        returned_input: Share answered with any of A, B and C, in percent.
    """

    category: str
    num_questions: int
    accuracy: float
    returned_c: float
    returned_input: float


@dataclass(frozen=True)
class AnalogyScore:
    """A model's answers to a file of analogies.

    Attributes:
        model: Its name.
        excludes_inputs: Whether A, B and C were left out of the answers.
        asks_all_four: Whether each of a line's four sentences was asked for, or D alone.
        num_candidates: Distinct sentences of the file and of the pool, one in both counted twice.
        categories: Scores of each category.
        total: Over all questions.
    """

    model: str
    excludes_inputs: bool
    asks_all_four: bool
    num_candidates: int
    categories: tuple[CategoryScore, ...]
    total: CategoryScore


def read_analogies(lines: Sequence[str], *, name: str) -> Analogies:
    """Return the analogies of a file: `: category` lines, and lines of four sentences with tabs between them.

    Args:
        lines: The file's lines; empty ones are passed over.
        name: The file's, for messages.

    Raises:
        DataError: If a line is neither, comes before any category, or there is none.
    """
    numbers: dict[str, int] = {}
    categories: dict[str, int] = {}
    rows: list[tuple[int, list[int]]] = []
    for at, line in enumerate(lines, start=1):
        if line.startswith(":"):
            current = categories.setdefault(line[1:].strip(), len(categories))
        elif line.strip():
            parts = [normalize_whitespace(part) for part in line.split("\t")]
            if len(parts) != 4 or not all(parts):
                raise DataError(f"{name}:{at}: must be four sentences with tabs between them; given {len(parts)}")
            if not categories:
                raise DataError(f"{name}:{at}: must come below a category's line, as in ': family'; given none above")
            rows.append((current, [numbers.setdefault(part, len(numbers)) for part in parts]))
    if not rows:
        raise DataError(f"{name}: must hold lines of four sentences with tabs between them; given none")
    category, places = zip(*rows, strict=True)
    return Analogies(tuple(numbers), tuple(categories), np.array(category), np.array(places))


def score_analogies(
    member: Member,
    encoder: SentenceEncoder,
    analogies: Analogies,
    *,
    pool: DistinctSentences | None = None,
    asks_all_four: bool = False,
    excludes_inputs: bool = False,
    cache_dir: str | None = None,
    progress: Progress | None = None,
) -> AnalogyScore:
    """Return how many analogies a model completes.

    The answer is the nearest by cosine among all sentences of the file and of the pool; a model with a code takes part
    with its bits as numbers.

    Args:
        member: The model's name and content key.
        encoder: The model.
        analogies: The questions.
        pool: More sentences that may be answers.
        asks_all_four: Whether each of the four sentences is asked for, as the paper does; else D alone.
        excludes_inputs: Whether A, B and C cannot be answers, as is usual with words; the paper leaves them in.
        cache_dir: Where the pool's vectors are kept.
        progress: Told how far the pool's vectors are.

    Raises:
        DataError: If the model gives a value that is not finite.
        ArtifactError: If the cache cannot be written.
    """
    vectors = encoder.encode(list(analogies.sentences))
    unit = encoded(encoder, list(analogies.sentences), measure="cosine", name=member.name)
    forms = _FOUR if asks_all_four else _ONE
    questions = np.concatenate([analogies.places[:, list(form)] for form in forms])
    asked = normalize_rows(vectors[questions[:, 2]] + vectors[questions[:, 1]] - vectors[questions[:, 0]])
    own = nearest_vectors(unit, asked, k=_NUM_CANDIDATES)
    candidates, cosines = own.rows, own.scores
    if pool is not None:
        index = open_index(member, encoder, pool, measure="cosine", cache_dir=cache_dir, progress=progress)
        hits = index.search(asked, k=_NUM_CANDIDATES)
        candidates = np.hstack([candidates, _numbers(hits.rows, pool, analogies)])
        cosines = np.hstack([cosines, hits.scores])
    if excludes_inputs:
        is_input = (candidates[:, :, None] == questions[:, None, :3]).any(axis=2)
        cosines = np.where(is_input, -np.inf, cosines)
    answers = candidates[np.arange(len(candidates)), cosines.argmax(axis=1)]
    category = np.tile(analogies.category, len(forms))
    scores = [
        _score(name, answers[category == number], questions[category == number])
        for number, name in enumerate(analogies.categories)
        if number in category
    ]
    num_candidates = len(analogies.sentences) + (0 if pool is None else len(pool))
    total = _score("all", answers, questions)
    return AnalogyScore(member.name, excludes_inputs, asks_all_four, num_candidates, tuple(scores), total)


def _numbers(rows: np.ndarray, pool: DistinctSentences, analogies: Analogies) -> np.ndarray:
    """Return the file's numbers of the pool's sentences [questions, candidates]; -1 for those that it does not hold."""
    numbers = {sentence: number for number, sentence in enumerate(analogies.sentences)}
    distinct, places = np.unique(rows, return_inverse=True)
    known = np.array([numbers.get(text, -1) for text in pool.texts(distinct.tolist())])
    found: np.ndarray = known[places.reshape(rows.shape)]
    return found


def _score(category: str, answers: np.ndarray, questions: np.ndarray) -> CategoryScore:
    """Score answers [questions] to (subtracted, added, partner, answer) [questions, 4]."""
    is_right = answers == questions[:, 3]
    # Where the file itself names an input as the answer, giving it is no failure.
    is_input = (answers[:, None] == questions[:, :3]).any(axis=1) & ~is_right
    is_partner = (answers == questions[:, 2]) & ~is_right
    return CategoryScore(
        category,
        num_questions=len(answers),
        accuracy=100 * float(is_right.mean()),
        returned_c=100 * float(is_partner.mean()),
        returned_input=100 * float(is_input.mean()),
    )
