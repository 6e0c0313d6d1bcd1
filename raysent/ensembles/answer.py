"""Which model to take on a task, what it is worth, and what simpler things give: values, and sentences from them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from raysent.config import StrictModel
from raysent.ensembles.methods import ANSWER
from raysent.evaluation.baselines import LEXICAL, RANKING, is_baseline, is_free
from raysent.evaluation.bootstrap import BootstrapEstimate, Interval
from raysent.evaluation.records import LEARNED, LEARNED_NOTE
from raysent.evaluation.task import Metric
from raysent.evaluation.titles import shown_name
from raysent.screen import WIDTH, shortened
from raysent.storage import address_of

MAJORITY = "majority"
# How a metric is called in a sentence.
_METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "pearson": "correlation × 100",
    "ndcg_at_10": "nDCG@10",
}
_SHOWN_MEMBERS = 4
# Answers of several tasks that the screen shows; and the least room of a title beside a long folder.
_SHOWN_ANSWERS = 2
_LEAST_TITLE = 40
# A difference of at most so many points is a small one.
_SMALL_POINTS = 2.0
# Below this ratio of times, neither is called faster.
_FASTER = 1.5


CandidateKind = Literal["lexical", "pretrained", "free", "baseline", "trained"]


class Candidate(StrictModel):
    """What could be taken on a task.

    Attributes:
        members: Names of the models that it needs; one for a model alone.
        method: How they are combined.
        kind: What it is made of: TF-IDF; pretrained encoders as they are; several of what needs no training; what
            trials are compared with; or trials, alone or with others. None in files of earlier versions.
        log_loss: In nats, of the rows that choose; None for ratings and queries.
        validation: Score of the rows that train, each predicted out of fold, or of the queries of dev, in percent.
        test: Score of the test rows or queries.
        interval: 95 % bootstrap interval of `test`.
        behind: The test score of the answer minus its own; paired.
        encode_ms: Milliseconds for 1,000 texts.
        num_bytes: Size of its models' files.
        learned: Whether one of its models was trained on labels of the task's training rows; its title says so by `*`.
        titles: What its models are called where a person reads it; empty in files of earlier versions.
    """

    members: tuple[str, ...]
    method: str
    kind: CandidateKind | None = None
    validation: float
    log_loss: float | None = None
    test: float
    interval: Interval
    behind: BootstrapEstimate
    encode_ms: float
    num_bytes: int
    learned: bool = False
    titles: tuple[str, ...] = ()

    @property
    def is_trained(self) -> bool:
        """Whether a trial is part of it."""
        if self.kind is None:
            return not is_baseline(self.members[0])
        return self.kind == "trained"

    @property
    def title(self) -> str:
        """What it is in words."""
        if self.method == MAJORITY:
            return "the most frequent class"
        names = list(self.titles or map(shown_name, self.members))
        if len(names) > _SHOWN_MEMBERS:
            names = [*names[: _SHOWN_MEMBERS - 1], f"{len(names) - _SHOWN_MEMBERS + 1} more"]
        title = " + ".join(names)
        if len(self.members) > 1 and self.method != ANSWER:
            title += f" ({self.method})"
        if self.learned:
            title += LEARNED
        return title


class Answer(StrictModel):
    """The model to take on a task.

    Attributes:
        task: The task.
        metric: What the scores are; nDCG@10 on a task with queries.
        num_test: The number of test rows or queries, none of which ranked, stopped, chose or fitted anything.
        num_dev: The number of queries of dev, which chose; None for rows, and in files of earlier versions.
        prefer: Whether the cheapest was taken of those that are nearly as good, and by which cost.
        taken: The index of the answer among `candidates`.
        simplest: The index of the simplest thing that could be taken; None where no TF-IDF or BM25 was scored.
        majority: The index of the most frequent class; None for ratings and queries.
        over_majority: The best candidate's validation score minus that of the most frequent class; paired.
        gain: By how much the answer's log loss on the rows that choose is below that of the simplest, in nats a row.
        num_chosen: The number of rows that chose.
        num_fitted: The number of labelled rows that fitted what is saved, the rows that tested among them; None where
            these were left out.
        kept: A line for each pretrained encoder that it needs: how it is kept, and its size.
        candidates: All that was scored, by falling validation score; last what fewer rows can score, as it learned from
            the others.
    """

    task: str
    metric: Metric | Literal["pearson", "ndcg_at_10"]
    num_test: int
    prefer: Literal["speed", "size"] | None
    taken: int
    simplest: int | None
    majority: int | None
    over_majority: BootstrapEstimate | None
    candidates: tuple[Candidate, ...]
    num_dev: int | None = None
    gain: BootstrapEstimate | None = None
    num_chosen: int | None = None
    num_fitted: int | None = None
    kept: tuple[str, ...] = ()

    @property
    def answer(self) -> Candidate:
        """What to take."""
        return self.candidates[self.taken]

    @property
    def ranks(self) -> bool:
        """Whether the task has queries."""
        return self.metric == "ndcg_at_10"

    @property
    def metric_text(self) -> str:
        """The metric in words."""
        return _METRICS[self.metric]

    @property
    def test_text(self) -> str:
        """What was held out for the score, and how many of them."""
        if not self.ranks:
            return f"{self.num_test:,} hold-out rows"
        queries = f"{self.num_test:,} hold-out queries"
        if self.num_dev is None:
            return queries
        return f"{queries}, chosen by {self.num_dev:,} of dev"

    @property
    def basis(self) -> str:
        """How it was chosen and scored, in a sentence."""
        if self.ranks:
            return (
                "Chosen by the queries of dev, a fitted weight by other queries; "
                "scored on hold-out queries, which chose nothing."
            )
        basis = "Chosen by cross-validation on the rows that train"
        if any(candidate.learned for candidate in self.candidates):
            basis += ", what was fine-tuned on labels by validation rows"
        return f"{basis}; scored on hold-out rows, which chose nothing.{self._refit_text}"

    @property
    def _refit_text(self) -> str:
        if self.num_fitted is None:
            return ""
        return f" Once the score was known, it was fitted on all {self.num_fitted:,} labelled rows."

    @property
    def simpler(self) -> list[Candidate]:
        """Simpler things, the simplest first: the most frequent class, lexical models, what the sentence compares with.

        Then the best pretrained encoder, the best of what is not trained, and the best that is.
        """
        lexical = []
        with_vectors = []
        for candidate in self.candidates:
            if len(candidate.members) > 1 or candidate.method == MAJORITY:
                continue
            if candidate.members[0] in (*LEXICAL, *RANKING):
                lexical.append(candidate)
            else:
                with_vectors.append(candidate)
        if self.ranks:
            shown = [*lexical, *with_vectors[:1]]
            return [candidate for candidate in shown if candidate is not self.answer]
        simple = []
        if self.majority is not None:
            simple.append(self.candidates[self.majority])
        simple += lexical
        if self.simplest is not None:
            simple.append(self.candidates[self.simplest])
        simple += [candidate for candidate in with_vectors if candidate.kind == "pretrained"][:1]
        simple += [candidate for candidate in with_vectors if is_free(candidate.members[0])][:1]
        simple += [candidate for candidate in with_vectors if candidate.is_trained][:1]
        # Two candidates may hold the same member alone.
        by_title = {candidate.title: candidate for candidate in simple}
        by_title.pop(self.answer.title, None)
        return list(by_title.values())

    @property
    def short_score(self) -> str:
        """The score alone, as a title has it: `77.7 % accuracy`."""
        return f"{self._figure(self.answer.test)} {self.metric_text}"

    @property
    def score_text(self) -> str:
        """What it scores on what was held out, and what the most frequent class does."""
        low, high = self.answer.interval
        score = f"{self.metric_text} {self._figure(self.answer.test)} on {self.test_text}"
        score += f" (95 % interval {low:.1f} to {high:.1f})"
        if self.majority in (None, self.taken):
            return score
        assert self.majority is not None
        return f"{score}; most frequent class {self._figure(self.candidates[self.majority].test)}"

    @property
    def verdict(self) -> str:
        """What it is above simpler things; empty where nothing simpler was scored."""
        if self.ranks:
            return "; ".join(
                f"baseline {simple.title} {self._figure(simple.test)}: {_points(simple.behind)}"
                for simple in self.simpler
            )
        if self.taken == self.majority:
            best = next(candidate for candidate in self.candidates if candidate.method != MAJORITY)
            assert self.over_majority is not None
            lead = _points(self.over_majority)
            return f"no model is better beyond chance by cross-validation; {best.title}: {lead}"
        if self.simplest is None:
            return self._over_majority_text
        simple = self.candidates[self.simplest]
        if self.taken == self.simplest or simple.title == self.answer.title:
            return self._over_majority_text or (
                "it is the baseline, and nothing is better beyond chance by cross-validation"
            )
        compared = f"baseline {simple.title} {self._figure(simple.test)}: "
        compared += _verdict(self.answer, simple)
        return "; ".join(filter(None, (compared, self._over_majority_text)))

    @property
    def _over_majority_text(self) -> str:
        if self.over_majority is None or self.over_majority.interval[0] > 0:
            return ""
        return "not better than the most frequent class beyond chance by cross-validation"

    @property
    def sentence(self) -> str:
        """What it is worth, and what simpler things would give."""
        return f"{self.task}: {'; '.join([self.score_text, *self.remarks])}"

    @property
    def remarks(self) -> list[str]:
        """What simpler things would give, and what rows cannot show; each a sentence without its end."""
        parts = [self.verdict]
        if self.gain is not None and self.gain.interval[0] <= 0 and self.taken != self.simplest:
            parts.append(
                f"its gain in log loss on the {self.num_chosen:,} cross-validated rows is not beyond chance"
            )
        if self.simplest not in (None, self.taken) and self.prefer is None:
            simple = self.candidates[self.simplest]
            is_faster = self.answer.encode_ms >= _FASTER * simple.encode_ms > 0
            if is_faster and simple.behind.interval[0] <= 0:
                parts.append("--set evaluation.prefer=speed takes the fastest of what is as good")
        return [part for part in parts if part]

    def _figure(self, score: float) -> str:
        """Return a score as it is written: accuracy in percent."""
        if self.metric == "accuracy":
            return f"{score:.1f} %"
        return f"{score:.1f}"


def answer_lines(answers: Sequence[tuple[Path, Answer]], report: str = "") -> list[str]:
    """Return what a user should know first, at most five lines: the model, its score, its baseline, what to do next.

    Args:
        answers: Each saved answer's folder, and the answer.
        report: The report's file; empty for no line about it.
    """
    lines: list[str] = []
    if len(answers) == 1:
        lines += _lines_of_one(*answers[0])
    elif answers:
        lines += _lines_of_several(answers)
    if report:
        lines.append(f"Report: {report}")
    return lines


def _lines_of_one(folder: Path, answer: Answer) -> list[str]:
    start = f"Your model: {address_of(folder)} ("
    room = max(_LEAST_TITLE, WIDTH - len(start) - 1)
    title = answer.answer.title
    if len(title) > room and len(answer.answer.members) > 1:
        title = f"ensemble of {len(answer.answer.members)}: {title}"
    lines = [f"{start}{shortened(title, room)})"]
    lines += [shortened(capital(text)) for text in (answer.score_text, answer.verdict) if text]
    return [*lines, _next_line(folder, answer)]


def _lines_of_several(answers: Sequence[tuple[Path, Answer]]) -> list[str]:
    heading = f"Your models: one a task, in {address_of(answers[0][0].parent)}"
    num_more = len(answers) - _SHOWN_ANSWERS
    if num_more > 0:
        heading += f", and {num_more} more in the report"
    lines = [heading]
    for _, answer in answers[:_SHOWN_ANSWERS]:
        score = f"{answer.metric_text} {answer._figure(answer.answer.test)}"
        low, high = answer.answer.interval
        # A line has room for the baseline or for how many rows were held out, which the report says too.
        lines.append(
            shortened(f"{answer.task}: {score} ({low:.1f} to {high:.1f}); {answer.verdict}")
        )
    return [*lines, _next_line(*answers[0])]


def _next_line(folder: Path, answer: Answer) -> str:
    """Return what to type next: as many commands as a line holds, the first one whole."""
    first, *further = commands(folder, answer)
    line = f"Next: {first}"
    for command in further:
        longer_line = f"{line}   or   {command}"
        if len(longer_line) <= WIDTH:
            line = longer_line
    return line


def capital(text: str) -> str:
    """Return a sentence with a capital; names such as nDCG keep theirs."""
    first_word = text.split(maxsplit=1)[0]
    if any(letter.isupper() for letter in first_word):
        return text
    return text[0].upper() + text[1:]


def notes_of(answers: Sequence[tuple[Path, Answer]]) -> list[str]:
    """Return what the lines of an answer leave out: how it was chosen, and how its pretrained encoders are kept."""
    notes = []
    for _, answer in answers:
        notes += [f"{answer.sentence}.", answer.basis]
        if any(candidate.learned for candidate in (answer.answer, *answer.simpler)):
            notes.append(LEARNED_NOTE)
        notes += answer.kept
    return list(dict.fromkeys(notes))


def commands(folder: Path, answer: Answer) -> list[str]:
    """Return what to type to use a saved answer."""
    address = shlex.quote(address_of(folder))
    if answer.ranks:
        return [f"raysent index {address} TEXT -o INDEX", "raysent serve INDEX"]
    return [f"raysent predict {address} new.csv", f"raysent serve {address}"]


def answer_card(folder: Path, answer: Answer) -> str:
    """Return the text of the card of a saved answer, Markdown: what it is worth first."""
    shown = [answer.answer, *answer.simpler]
    rows = []
    for candidate in shown:
        low, high = candidate.interval
        test = f"{candidate.test:.1f} [{low:.1f}, {high:.1f}]"
        above = _signed(candidate.behind)
        rows.append(f"| {candidate.title} | {candidate.validation:.1f} | {test} | {above} |")
    address = address_of(folder)
    python = f'model = raysent.load("{address}")\nmodel.predict(["One text.", "Another."])'
    if answer.ranks:
        python = (
            f'raysent.index("{address}", "texts/", "index")\nraysent.search("index", "One query.")'
        )
    console = "\n".join(f"$ {command}" for command in commands(folder, answer))
    heading = (
        f"| model | cross-validated | hold-out {answer.metric_text} | the answer is above by |"
    )
    paragraphs = [
        f"# {answer.task}: {answer.answer.title}",
        f"{answer.sentence}.",
        answer.basis,
        f"```console\n{console}\n```",
        f"```python\n{python}\n```",
        "\n".join([heading, "|---|---|---|---|", *rows]),
    ]
    if any(candidate.learned for candidate in shown):
        paragraphs.append(LEARNED_NOTE)
    paragraphs += answer.kept
    if any("by its name" in line for line in answer.kept):
        paragraphs.append("The folder holds all else that it needs and can be copied.")
    else:
        paragraphs.append("The folder holds all that it needs and can be copied.")
    return "\n\n".join(paragraphs) + "\n"


def answer_values(answers: Sequence[tuple[Path, Answer]]) -> list[dict[str, Any]]:
    """Return what `answer_lines` says as plain values, with every candidate."""
    plain_answers = []
    for folder, answer in answers:
        plain_answers.append(
            {
                "path": address_of(folder),
                "title": answer.answer.title,
                "sentence": answer.sentence,
                **answer.model_dump(mode="json"),
            }
        )
    return plain_answers


def _signed(estimate: BootstrapEstimate | None) -> str:
    assert estimate is not None
    return f"{estimate.value:+.1f} [{estimate.interval[0]:+.1f}, {estimate.interval[1]:+.1f}]"


def _points(estimate: BootstrapEstimate) -> str:
    """Return a difference in points, with its interval."""
    low, high = estimate.interval
    return f"{estimate.value:+.1f} points ({low:+.1f} to {high:+.1f})"


def _verdict(taken: Candidate, simple: Candidate) -> str:
    """Return what a paired difference on hold-out rows says, and what it costs."""
    low, high = simple.behind.interval
    difference = _points(simple.behind)
    ratio = 0.0
    if simple.encode_ms > 0:
        ratio = taken.encode_ms / simple.encode_ms
    times = f"{ratio:.1f} times"
    if ratio >= 10:
        times = f"{ratio:.0f} times"
    slower = ""
    faster = ""
    if ratio >= _FASTER:
        slower = f", {times} slower"
        faster = f", {times} faster"
    if low > 0:
        return f"better by {difference}{slower}"
    if high < 0:
        return f"the baseline is better, {difference}{faster}"
    if low == high:
        return f"as good{faster}"
    if high <= _SMALL_POINTS:
        return f"nearly as good, {difference}{faster}"
    return f"no difference shown, {difference}{faster}"
