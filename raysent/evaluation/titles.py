"""What a model is called where a person reads it, by its name and by what its folder says.

In: the short name of a member, such as `0003` or `words:start:0003`, and its path. Out: `GRU both ways, 300 numbers,
trial 3` or `mean of the text's word vectors before training (trial 3)`.
"""

from __future__ import annotations

import re
from pathlib import Path

from raysent.errors import RaysentError
from raysent.evaluation.members import model_folder
from raysent.models.schemes import find_scheme

_TRIAL = re.compile(r"(?:(?P<sweep>.+)-)?(?P<number>0\d{3})")
# Between the names of models that are combined.
_AND = " + "
_WHOLE_NAMES = {
    "tfidf": "TF-IDF of words",
    "tfidf:chars": "TF-IDF of characters",
    "bm25": "BM25",
    "soup": "mean of the trials' weights",
}
# The scheme of a name -> what it makes of the rest.
_FORMS = {
    "words:start": "mean of word vectors before training ({})",
    "words": "mean of the word vectors of {}",
    "middle": "{}'s middle layer",
    "static": "{}'s static table",
    "start": "{} before training",
    "hash": "mean of random vectors of words ({} numbers)",
}


def shown_name(name: str) -> str:
    """Return the name of a model in words: `trial 3` for `0003`, `TF-IDF of words` for `tfidf`."""
    if _AND in name:
        return _AND.join(map(shown_name, name.split(_AND)))
    if name in _WHOLE_NAMES:
        return _WHOLE_NAMES[name]
    scheme, _, rest = name.rpartition(":")
    if scheme in _FORMS:
        return _FORMS[scheme].format(shown_name(rest))
    trial = _TRIAL.fullmatch(name)
    if trial is None:
        return name
    of_sweep = f" of {trial['sweep']}" if trial["sweep"] else ""
    return f"trial {int(trial['number'])}{of_sweep}"


def model_title(path: str, name: str) -> str:
    """Return what a model is called: of a trained encoder first what it is, then its name in words.

    Args:
        path: The argument of `load`.
        name: The model's short name.
    """
    folder = None if find_scheme(path) is not None else model_folder(Path(path))
    if folder is None:
        return shown_name(name)
    from raysent.models.config import spoken_name  # noqa: PLC0415 - torch comes with it
    from raysent.models.files import read_record  # noqa: PLC0415 - as above

    try:
        config = read_record(folder).config
    except RaysentError:  # a damaged one has its name alone
        return shown_name(name)
    return f"{spoken_name(config.encoder, config.code)}, {shown_name(name)}"
