"""The configurations of the table, and the runs that train them.

In: `space.yaml`, a configuration's number, a seed and a corpus. Out: a `RunConfig`. Configuration `n` belongs to the
family at place `n % 12` of the file and is the same on every machine. The first 24 configurations are the short part of
the table; those after them, the long part, are trained for four times as many steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from raysent.data.corpus import CorpusConfig
from raysent.sweeps.samplers import RandomSampler
from raysent.sweeps.space import Choice, Params, SearchSpace, read_space
from raysent.training.run import RunConfig

SPACE = Path(__file__).parent / "space.yaml"
SEEDS = (0, 1)
NUM_REPORTS = 8
# Sentences of a training, so that a trial of middle size takes 4 to 6 s of a core; a family's trials differ in cost.
SENTENCES = {
    "bag": 30_000,
    "linear": 16_000,
    "cnn": 7_000,
    "uni": 10_000,
    "bi": 8_000,
    "multichannel": 4_000,
    "combine": 4_000,
    "skip_thoughts": 1_600,
    "paragram": 20_000,
    "cse": 4_000,
    "view_agreement": 12_000,
    "view_generation": 11_000,
}
# Configurations of the short part of the table, and how many times longer the others are trained.
NUM_SHORT = 24
LONG = 4
# The share of a corpus' sentences that validates.
VALIDATION_FRACTION = 0.12


@dataclass(frozen=True)
class Configuration:
    """One configuration.

    Attributes:
        number: Its place in the table, from 0.
        params: Searched name -> what was drawn.
    """

    number: int
    params: Params

    @property
    def family(self) -> str:
        """The family's name."""
        return str(self.params["family"])

    @property
    def length(self) -> int:
        """How many times longer than the short part of the table it is trained."""
        return 1 if self.number < NUM_SHORT else LONG


@lru_cache(maxsize=1)
def table_space() -> SearchSpace:
    """Return the space that the table is drawn from."""
    return read_space(SPACE)


def families() -> list[str]:
    """Return the names of the families in order."""
    domain = table_space().domains["family"]
    assert isinstance(domain, Choice)
    return [str(name) for name in domain.options]


@lru_cache(maxsize=4096)
def configuration(number: int) -> Configuration:
    """Return a configuration: the first of its own sequence of random draws that is of its family."""
    names = families()
    family = names[number % len(names)]
    sampler = RandomSampler(table_space(), seed=number)
    for attempt in range(10_000):
        drawn = sampler.ask(attempt)
        if drawn is not None and drawn[0]["family"] == family:
            return Configuration(number, drawn[0])
    raise AssertionError(f"no draw of {family}")


def corpus_paths(folder: Path) -> dict[str, str | list[str]]:
    """Return the files of each corpus: 16 novels, spread over the years, the embedded documentation, and news.

    Args:
        folder: Has `books` and `nonfiction`.
    """
    novels = sorted(map(str, (folder / "books").glob("*.txt.gz")))[5::11]
    news = sorted(map(str, (folder / "nonfiction").glob("abc-*.txt.gz")))
    return {"novels": novels, "docs": "docs", "news": news}


def corpus_config(paths: str | list[str]) -> CorpusConfig:
    """Return how a corpus is read."""
    return CorpusConfig(path=paths, max_length=30, validation_fraction=VALIDATION_FRACTION)


def run_config(chosen: Configuration, *, seed: int, paths: str | list[str], pairs: Path) -> RunConfig:
    """Return the run of a trial; the objective's own metrics are all that it validates by itself."""
    values: dict[str, Any] = table_space().values(chosen.params)
    batch_size = int(values["training"]["batch_size"])
    values["corpus"] = corpus_config(paths).model_dump()
    values["seed"] = seed
    values["training"] |= {"max_steps": max(NUM_REPORTS, chosen.length * SENTENCES[chosen.family] // batch_size)}
    values["validation"] = {"num_candidates": 128, "num_sentences": 256}
    if "pairs" in values:
        values["pairs"]["path"] = str(pairs)
    return RunConfig.model_validate(values)


def order(num_rounds: int, corpora: Sequence[str]) -> Iterator[tuple[str, Configuration, int]]:
    """Yield corpus, configuration and seed of each trial, in rounds over all families, corpora and seeds."""
    num_families = len(families())
    for start in range(0, num_rounds * num_families, num_families):
        for seed in SEEDS:
            for number in range(start, start + num_families):
                for corpus in corpora:
                    yield corpus, configuration(number), seed
