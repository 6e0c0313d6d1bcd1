"""What a sweep does before Ray starts: prepare the text that trials share, and check the whole space against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from raysent.corpus import Corpus, prepare
from raysent.errors import RaysentError
from raysent.run import RunConfig
from raysent.search_space import Params, SearchSpace
from raysent.trainer import check_run
from raysent.validation import PoolRecord

Progress = Callable[[str, int, int | None], None]


def prepare_space(space: SearchSpace, *, progress: Progress | None = None) -> dict[str, Any]:
    """Build or open the corpus, and check the run at every edge of the space against it.

    Args:
        space: The space.
        progress: Hears how far the preparation of the corpus is.

    Returns:
        What is known of `corpus` and `pool`, as plain values.

    Raises:
        RaysentError: With the place in the search space of the value at fault, where there is one.
    """
    corpora: dict[str, Corpus] = {}
    facts: dict[str, Any] = {}
    # Without constraints that leave an edge, the base is what there is.
    for params in space.edges() if space.domains else [{}]:
        config = space.config(params)
        try:
            corpus = _opened(config, corpora, progress)
            pool = check_run(config, corpus, num_workers=space.limits.workers_per_trial).record
        except RaysentError as error:
            raise space.located(error, params) from None
        facts = facts or {"corpus": _corpus_facts(config, corpus), "pool": asdict(pool)}
        _check_comparable(space, params, facts["pool"]["hash"], pool)
    return facts


def _opened(config: RunConfig, corpora: dict[str, Corpus], progress: Progress | None) -> Corpus:
    """Return the corpus of a run, prepared once for all that share it."""
    key = config.corpus.model_dump_json() + config.vocabulary.model_dump_json()
    if key not in corpora:
        corpora[key] = prepare(config.corpus, config.vocabulary, progress=progress)
    return corpora[key]


def _check_comparable(space: SearchSpace, params: Params, first: str, pool: PoolRecord) -> None:
    """Refuse a search over what trials are examined with."""
    if pool.hash == first:
        return
    names = [name for name in params if name.split(".")[0] in ("corpus", "validation")]
    raise space.document.error(
        ("search", names[0]), "gives trials different validation pools, so that none could be compared; set it in base"
    )


def _corpus_facts(config: RunConfig, corpus: Corpus) -> dict[str, Any]:
    """Return what `sweep.json` tells of the corpus."""
    return {
        "path": config.corpus.path,
        "key": corpus.key,
        "text_key": corpus.text_key,
        "num_sentences": corpus.num_sentences,
        "num_documents": corpus.num_documents,
        "num_tokens": corpus.num_tokens,
        "num_train": len(corpus.train),
        "num_validation": len(corpus.validation),
    }
