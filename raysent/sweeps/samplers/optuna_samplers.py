"""Which values to try next, by Optuna's samplers through its ask-and-tell interface.

Each draw is made by a sampler seeded from (sweep seed, trial number, attempt), never by one that carries random state
from draw to draw: the same events give the same proposals, in a sweep that was killed and resumed too.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from raysent.sweeps.samplers.window import Window
from raysent.sweeps.space import Choice, Domain, Params, SearchSpace
from raysent.sweeps.trial import derived_seed

# A sampler that is sure of its optimum proposes it again and again: after some tries the draw is blind.
MAX_SAMPLED, MAX_ATTEMPTS = 10, 300

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Sampler(Protocol):
    """What a conductor asks for parameters."""

    def ask(self, number: int) -> tuple[Params, int] | None:
        """Draw the parameters of trial `number`; also how many draws that took. None where there are no more."""

    def repeat(self, number: int, params: Params, *, attempts: int) -> None:
        """Take the parameters of a draw that the journal recorded."""

    def on_report(self, number: int, *, index: int, score: float, usd: float) -> None:
        """Learn a trial's score at one of its reports, and what it has cost by then."""

    def complete(self, number: int, *, status: str, score: float | None) -> None:
        """Learn how a trial ended."""


class OptunaSampler:
    """The searcher: proposes parameters and learns from what they gave."""

    def __init__(self, space: SearchSpace, *, seed: int) -> None:
        self._space = space
        self._seed = seed
        self._study = optuna.create_study(
            storage=Window(),
            direction="maximize" if space.mode == "max" else "minimize",
            sampler=optuna.samplers.RandomSampler(seed=0),
        )
        self._together = {
            name: _distribution(domain)
            for name, domain in sorted(space.domains.items())
            if not space.conditions.get(name) and not _distribution(domain).single()
        }
        self._asked: dict[int, optuna.trial.Trial] = {}
        self._seen: set[str] = set()

    def ask(self, number: int) -> tuple[Params, int] | None:
        """Draw the parameters of trial `number`.

        Returns:
            Parameters that satisfy every constraint and were not tried before, and how many draws that took; None if
            none was found, which for a small space means that all of it has been tried.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
            self._fix_kind(number)
            trial, params = self._draw(number, attempt)
            if repr(sorted(params.items())) not in self._seen and self._space.violated(params) is None:
                self._take(number, trial, params)
                return params, attempt
            self._study.tell(trial, state=TrialState.FAIL)
        return None

    def repeat(self, number: int, params: Params, *, attempts: int) -> None:
        """Take the parameters of a draw that the journal recorded, leaving the searcher as it was after that draw."""
        for attempt in range(1, attempts):
            self._fix_kind(number)
            trial, _ = self._draw(number, attempt)
            self._study.tell(trial, state=TrialState.FAIL)
        self._study.enqueue_trial({name: self._index(name, drawn) for name, drawn in params.items()})
        trial, _ = self._draw(number, attempts)
        self._take(number, trial, params)

    def on_report(self, number: int, *, index: int, score: float, usd: float = 0.0) -> None:  # noqa: ARG002
        """Learn a trial's score at one of its reports; Optuna's samplers know no cost."""
        self._asked[number].report(score, index)

    def complete(self, number: int, *, status: str, score: float | None) -> None:
        """Learn how a trial ended; a stopped trial counts by its last report, a failed one not at all."""
        trial = self._asked.pop(number)
        if status == "finished" and score is not None:
            self._study.tell(trial, score)
        elif status == "stopped":
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, state=TrialState.FAIL)

    def _fix_kind(self, number: int) -> None:
        """Let the first trials be one of each kind that is judged by itself, so that every kind is there."""
        name = self._space.evaluation.stratify_by
        domain = None if name is None else self._space.domains[name]
        place = number // self._space.limits.seeds
        if name is not None and isinstance(domain, Choice) and place < len(domain.options):
            self._study.enqueue_trial({name: place})

    def _take(self, number: int, trial: optuna.trial.Trial, params: Params) -> None:
        self._asked[number] = trial
        self._seen.add(repr(sorted(params.items())))

    def _draw(self, number: int, attempt: int) -> tuple[optuna.trial.Trial, Params]:
        """Ask the study for one trial and draw every active name in the file's order."""
        with warnings.catch_warnings():
            # Optuna warns that some samplers are experimental and that labels may not be strings.
            warnings.simplefilter("ignore")
            self._study.sampler = self._sampler(number, attempt)
            trial = self._study.ask()
            params: Params = {}
            for name, domain in self._space.domains.items():
                if self._space.is_active(name, params):
                    params[name] = _suggest(trial, name, domain)
        return trial, params

    def _sampler(self, number: int, attempt: int) -> optuna.samplers.BaseSampler:
        """Return the sampler of one draw."""
        seed = derived_seed(self._seed, number, attempt)
        # The first trials are drawn blindly; more of them pay only where many will follow.
        num_blind = max(4, min(10, self._space.limits.trials // 4))
        kind = self._space.limits.sampler if attempt <= MAX_SAMPLED else "random"
        match kind:
            case "tpe":
                return _ToldTPE(self._together, seed=seed, num_blind=num_blind)
            case "random":
                return optuna.samplers.RandomSampler(seed=seed)
            case "qmc":
                # One sequence for the whole sweep: its position is kept by the study.
                blind = optuna.samplers.RandomSampler(seed=seed)
                return optuna.samplers.QMCSampler(
                    seed=derived_seed(self._seed),
                    scramble=True,
                    independent_sampler=blind,
                    warn_independent_sampling=False,
                )
            case "gp":
                blind = optuna.samplers.RandomSampler(seed=seed)
                return optuna.samplers.GPSampler(seed=seed, n_startup_trials=num_blind, independent_sampler=blind)
            case "ei_per_usd":
                raise ValueError("ei_per_usd is no sampler of Optuna's; see make_searcher")

    def _index(self, name: str, drawn: Any) -> Any:
        """Return what Optuna calls a drawn value: a choice's position, or the number."""
        domain = self._space.domains[name]
        return list(domain.options).index(drawn) if isinstance(domain, Choice) else drawn


class _ToldTPE(optuna.samplers.TPESampler):
    """TPE that is told which names are always drawn together; else it reads that from all trials at every draw."""

    def __init__(self, together: Mapping[str, BaseDistribution], *, seed: int, num_blind: int) -> None:
        super().__init__(seed=seed, n_startup_trials=num_blind, multivariate=True, constant_liar=True)
        self._together = together

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: optuna.trial.FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """Return the names that every trial has."""
        return dict(self._together)


def _distribution(domain: Domain) -> BaseDistribution:
    """Return a domain as Optuna knows it."""
    if isinstance(domain, Choice):
        # Positions, not labels: labels of mixed types would not compare.
        return CategoricalDistribution(range(len(domain.options)))
    if domain.is_integer:
        return IntDistribution(int(domain.low), int(domain.high), step=int(domain.step) if domain.step else 1)
    return FloatDistribution(domain.low, domain.high, step=domain.step, log=domain.is_log)


def _suggest(trial: optuna.trial.Trial, name: str, domain: Domain) -> Any:
    """Draw one name from its domain."""
    if isinstance(domain, Choice):
        # Positions, not labels: labels of mixed types would not compare.
        return list(domain.options)[trial.suggest_categorical(name, range(len(domain.options)))]
    if domain.is_integer:
        step = int(domain.step) if domain.step else 1
        return trial.suggest_int(name, int(domain.low), int(domain.high), step=step)
    return trial.suggest_float(name, domain.low, domain.high, step=domain.step, log=domain.is_log)
