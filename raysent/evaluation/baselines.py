"""What any model should beat: the names of baselines that stand beside trained models.

st:NAME           a pretrained encoder as it is, with logistic regression
middle:NAME       the middle layer of the same encoder
static:NAME       the static table of an encoder, a vector for each sub-word
chance            the most frequent class
tfidf             words weighted by TF-IDF, with logistic regression
tfidf:chars       the same with parts of words
words:PATH        the mean of the best model's own word vectors
start:PATH        the best model before its first step
words:start:PATH  the mean of its word vectors before its first step
hash:DIM          the mean of random word vectors, of the best model's size
bm25              words that passages share with a query; on tasks with queries alone, in place of TF-IDF
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from raysent.errors import ConfigError, RaysentError
from raysent.evaluation.members import Member, expand, model_folder
from raysent.evaluation.task import Task
from raysent.models import load as load_model
from raysent.models.known import STATIC_SCHEME
from raysent.progress import messages

CHANCE = "chance"
LEXICAL = ("tfidf", "tfidf:chars")
# What ranks passages, and answers no other task.
RANKING = ("bm25",)
_FORMS = ("tfidf:", "words:", "start:", "hash:")
# Pretrained encoders that are read as they are. The last layer comes first, then the middle one.
PRETRAINED = ("st:", "hf:", "middle:", STATIC_SCHEME)
# Of models that learned labels from a pretrained encoder, beside the encoder as it is.
_WORTH_OF_TUNED = 0.5


def baselines_of(
    members: Sequence[Member],
    *,
    protocol: str = "fast",
    ranks: bool = False,
    tasks: Iterable[Task] = (),
) -> list[Member]:
    """Return the baselines of models, without `chance`; those of a trained model are of the first that has a folder.

    One whose files do not allow it, such as a start from word vectors that were counted from a corpus, is left out; so
    are those of words under a protocol other than `fast`, which needs vectors. `ranks` is for tasks with queries;
    `tasks` are what the models are evaluated on, see `lexical_names`.
    """
    paths: list[str] = []
    if ranks:
        paths += RANKING
    elif protocol.partition("/")[0] == "fast":
        paths += lexical_names(tasks)
    # What is made of the trained model has its short name, not its folder's.
    names: dict[str, str] = {}
    trained = next((member for member in members if _is_trained(member)), None)
    if trained is not None:
        dim = load_model(trained.path).get_sentence_embedding_dimension()
        for scheme in ("words:", "start:", "words:start:"):
            path = f"{scheme}{trained.path}"
            names[path] = f"{scheme}{trained.name}"
            if _can_load(path):
                paths.append(path)
        paths.append(f"hash:{dim}")
    member_paths = {member.path for member in members}
    missing = [path for path in paths if path not in member_paths]
    if not missing:
        return []
    baselines = expand(missing)
    return [replace(member, name=names.get(member.path, member.name)) for member in baselines]


def _is_trained(member: Member) -> bool:
    """Return whether a model is in a folder of its own, and so has word vectors and perhaps a start."""
    return member.encoder is None and model_folder(Path(member.path)) is not None


def lexical_names(tasks: Iterable[Task]) -> tuple[str, ...]:
    """Return the lexical baselines of tasks: without that of words where none of them writes blanks between words."""
    are_unspaced = [task.unspaced_language is not None for task in tasks]
    if are_unspaced and all(are_unspaced):
        return LEXICAL[1:]
    return LEXICAL


def can_answer(path: str, *, ranks: bool) -> bool:
    """Return whether a model, given the argument of `load`, answers tasks with queries, or other ones."""
    if ranks:
        return path not in LEXICAL
    return path not in RANKING


def is_baseline(path: str) -> bool:
    """Return whether a model is a baseline of others, given the argument of `load`."""
    return path in (*LEXICAL, *RANKING) or path.startswith(_FORMS)


def is_free(path: str) -> bool:
    """Return whether a model costs no training: TF-IDF, a pretrained encoder, or the mean of untrained word vectors."""
    is_lexical = path in (*LEXICAL, *RANKING)
    return is_lexical or path.startswith(("words:start:", *PRETRAINED))


def is_pretrained(path: str) -> bool:
    """Return whether a model is a pretrained encoder that is read as it is, given the argument of `load`."""
    return path.startswith(PRETRAINED)


def worth_elsewhere(
    paths: Sequence[str], *, unfit: Collection[str] = (), tuned: Collection[str] = ()
) -> list[float]:
    """Return what each model is worth on other tables, from 0 to 1; the sum is 1.

    Where a pretrained encoder reads the language of a text, it is far above anything else with few labels, and so are
    its last and its middle layer together; where none does, TF-IDF of parts of words is the best of what needs no
    training.

    Args:
        paths: The models, as arguments of `load`; at least one.
        unfit: Those of the pretrained encoders that do not read the language of the text.
        tuned: Those that started from a pretrained encoder and learned the labels of the task. Where one reads the
            language, they are worth as much together as the encoders as they are.
    """
    pretrained = [path for path in paths if is_pretrained(path) and path not in unfit]
    # A static table is below the encoder that it is of.
    leaders = [path for path in pretrained if not path.startswith(STATIC_SCHEME)] or pretrained
    for lexical in reversed(LEXICAL):
        if not leaders and lexical in paths:
            leaders = [lexical]
    leaders = leaders or [path for path in paths if path not in tuned] or list(paths)
    learned: list[str] = []
    if any(is_pretrained(path) for path in leaders):
        learned = [path for path in paths if path in tuned]
    worths = dict.fromkeys(leaders, (1 - _WORTH_OF_TUNED * bool(learned)) / len(leaders))
    worths |= dict.fromkeys(learned, _WORTH_OF_TUNED / max(1, len(learned)))
    return [worths.get(path, 0.0) for path in paths]


def below_start(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the points that trained models lose against themselves before training.

    Args:
        scores: Model -> its score; a model without a score of `start:MODEL` is left out.
    """
    lost = {}
    for name, score in scores.items():
        start_score = scores.get(f"start:{name}")
        if start_score is not None and start_score > score:
            lost[name] = start_score - score
    return lost


def _can_load(name: str) -> bool:
    """Return whether a model has what a baseline is made from; where that is there and damaged, a line says so."""
    from raysent.models.schemes.start import has_run  # noqa: PLC0415 - torch comes with it

    try:
        load_model(name)
    except RaysentError as error:
        is_of_start = "start:" in name
        is_missing = isinstance(error, ConfigError) or (is_of_start and not has_run(name))
        if not is_missing:
            messages.print(f"{name} is left out: {error}")
        return False
    return True
