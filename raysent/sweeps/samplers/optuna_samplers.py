"""Four samplers of Optuna's, through its ask-and-tell interface: `tpe`, `random`, `qmc` and `gp`.

Each is seeded for each draw from (sweep seed, trial number, attempt) and carries no random state from draw to draw.

`study_of` returns a recorded sweep as a study, for Optuna's plots, importances and dashboard.
"""

from __future__ import annotations

import copy
import heapq
import warnings
from collections import deque
from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar, Literal

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from raysent.config import StrictModel
from raysent.sweeps.components import NoSettings
from raysent.sweeps.record import RecordedSweep
from raysent.sweeps.space.space import Choice, Domain, Params, SearchSpace
from raysent.sweeps.trial import Trial, derived_seed

# A sampler that is sure of its optimum proposes it again and again: after some attempts draws are random.
MAX_SAMPLED, MAX_ATTEMPTS = 10, 300
# TPE keeps a tenth of what it sees as good, so all of these are among the best 25; the rest shows what to avoid.
NUM_BEST, NUM_LATEST = 25, 75

optuna.logging.set_verbosity(optuna.logging.ERROR)

# The status of a trial -> its state in a study; any other has failed.
_STATES = {
    "finished": TrialState.COMPLETE,
    "stopped": TrialState.PRUNED,
    "running": TrialState.RUNNING,
    "waiting": TrialState.WAITING,
}


class Window(InMemoryStorage):
    """Optuna's storage in memory, of one study, that shows the best trials, the latest ones, and those that run.

    A sampler reads its whole history at every draw: at 10,000 trials a proposal of TPE takes 152 ms with all of them
    and 12 ms with these (5 parameters, one core), and a resumed sweep repeats every draw. Up to `NUM_BEST + NUM_LATEST`
    trials nothing is left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._open: set[int] = set()
        self._latest: deque[int] = deque(maxlen=NUM_LATEST)
        # The worst of the best first; of equal ones the latest.
        self._best: list[tuple[float, int]] = []
        # A trial that has ended changes no more.
        self._ended: dict[int, FrozenTrial] = {}
        self._sign = 1.0

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Begin a trial; it is shown until it has ended."""
        trial_id = super().create_new_trial(study_id, template_trial)
        self._open.add(trial_id)
        self._sign = (
            -1.0 if self.get_study_directions(study_id)[0] == StudyDirection.MINIMIZE else 1.0
        )
        return trial_id

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Take a trial's state; one that has ended is shown while it is among the best or the latest."""
        is_set = super().set_trial_state_values(trial_id, state, values)
        if is_set and state.is_finished():
            self._open.discard(trial_id)
            if state != TrialState.FAIL:
                self._latest.append(trial_id)
            if state == TrialState.COMPLETE and values:
                heapq.heappush(self._best, (self._sign * values[0], -trial_id))
                if len(self._best) > NUM_BEST:
                    heapq.heappop(self._best)
            self._show()
        return is_set

    def get_all_trials(
        self,
        study_id: int,  # noqa: ARG002 - there is one study
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """Return the trials that are shown: those that have ended, then those under way, in order."""
        trials = [
            *self._ended.values(),
            *(self.get_trial(trial_id) for trial_id in sorted(self._open)),
        ]
        trials = [trial for trial in trials if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    def _show(self) -> None:
        shown = {*self._latest, *(-trial_id for _, trial_id in self._best)}
        self._ended = {
            trial_id: self._ended.get(trial_id) or self.get_trial(trial_id)
            for trial_id in sorted(shown)
        }


class OptunaSampler:
    """Draws parameters by a sampler of Optuna's; a subclass says which.

    Attributes:
        Config: The settings.
        keeps_place: Whether a draw depends on how many there were before it.
    """

    Config: ClassVar[type[StrictModel]] = NoSettings
    keeps_place: ClassVar[bool] = False

    def __init__(self, space: SearchSpace, config: Any, *, seed: int) -> None:
        self._space, self._config, self._seed = space, config, seed
        # Optuna sees the positions of a choice's labels, which compare whatever the labels are.
        self._distributions = {
            name: distribution_of(domain, has_labels=False)
            for name, domain in space.domains.items()
        }
        self._study = optuna.create_study(
            study_name=space.name,
            storage=Window(),
            direction=direction_of(space),
            sampler=optuna.samplers.RandomSampler(seed=0),
        )
        self._asked: dict[int, optuna.trial.Trial] = {}
        self._seen: set[str] = set()
        self._first = _first_of(space)

    def optuna_sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return the sampler of one draw.

        Args:
            seed: Of this draw.
        """
        raise NotImplementedError

    def ask(self, number: int) -> tuple[Params, int] | None:
        """Return parameters that were not tried before, and how many draws they took.

        None where none was found, which for a small space means that all of it has been tried.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
            trial, params = self._draw_planned(number, attempt)
            if _key(params) not in self._seen:
                self._keep(number, trial, params)
                return params, attempt
            self._study.tell(trial, state=TrialState.FAIL)
        return None

    def replay(self, number: int, params: Params, *, attempts: int) -> None:
        """Take recorded parameters, with the study as it was after their draw."""
        for attempt in range(1, attempts):
            trial, _ = self._draw_planned(number, attempt)
            self._study.tell(trial, state=TrialState.FAIL)
        self._study.enqueue_trial(
            {name: self._stored(name, value) for name, value in params.items()}
        )
        trial, _ = self._draw(number, attempts)
        self._keep(number, trial, params)

    def on_report(self, number: int, *, index: int, score: float, usd: float = 0.0) -> None:  # noqa: ARG002
        """Report a score to Optuna, whose samplers know no cost."""
        self._asked[number].report(score, index)

    def complete(self, number: int, *, status: str, score: float | None) -> None:
        """Tell Optuna how a trial ended: one that was stopped counts by its last report, a failed one not at all."""
        trial = self._asked.pop(number)
        if status == "finished" and score is not None:
            self._study.tell(trial, score)
        else:
            self._study.tell(
                trial, state=TrialState.PRUNED if status == "stopped" else TrialState.FAIL
            )

    @property
    def num_startup(self) -> int:
        """Trials that are drawn at random first; more of them pay only where many follow."""
        return max(4, min(10, self._space.limits.trials // 4))

    def _draw_planned(self, number: int, attempt: int) -> tuple[optuna.trial.Trial, Params]:
        """Draw; the first configurations begin with `first`, then with each value of `evaluation.stratify_by`.

        Where these are kinds of encoders of which one each is kept, all others have them in turn. A kind of which
        nothing new is found gives up its turn.
        """
        place, kinds = number // self._space.limits.seeds, self._space.kinds
        planned: Params = {}
        if place < len(self._first):
            planned = self._first[place]
        elif kinds and attempt <= MAX_ATTEMPTS // 2:
            planned = {str(self._space.evaluation.stratify_by): kinds[place % len(kinds)]}
        if planned:
            self._study.enqueue_trial(
                {name: self._stored(name, value) for name, value in planned.items()}
            )
        return self._draw(number, attempt)

    def _draw(self, number: int, attempt: int) -> tuple[optuna.trial.Trial, Params]:
        """Ask the study for one trial and draw every active name in the file's order."""
        seed = derived_seed(self._seed, number, attempt)
        with warnings.catch_warnings():
            # Optuna warns that some samplers are experimental.
            warnings.simplefilter("ignore")
            is_random = attempt > MAX_SAMPLED
            self._study.sampler = (
                optuna.samplers.RandomSampler(seed=seed) if is_random else self.optuna_sampler(seed)
            )
            trial = self._study.ask()
            if self.keeps_place:
                trial.relative_params  # noqa: B018 - Optuna 5 draws late, and not at all where all values are given
            params: Params = {}
            for name, domain in self._space.domains.items():
                if self._space.is_active(name, params):
                    params[name] = drawn = _suggest(trial, name, self._distributions[name])
                    if isinstance(domain, Choice):
                        params[name] = list(domain.options)[drawn]
        return trial, params

    def _stored(self, name: str, value: Any) -> Any:
        domain = self._space.domains[name]
        return list(domain.options).index(value) if isinstance(domain, Choice) else value

    def _keep(self, number: int, trial: optuna.trial.Trial, params: Params) -> None:
        self._asked[number] = trial
        self._seen.add(_key(params))


class TPE(OptunaSampler):
    """Tree-structured Parzen estimator, multivariate, with a liar for trials that run."""

    def __init__(self, space: SearchSpace, config: Any, *, seed: int) -> None:
        super().__init__(space, config, seed=seed)
        self._together = {
            name: distribution
            for name, distribution in sorted(self._distributions.items())
            if not space.conditions.get(name) and not distribution.single()
        }

    def optuna_sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return the sampler of one draw."""
        return _FixedSpaceTPE(self._together, seed=seed, num_startup=self.num_startup)


class _FixedSpaceTPE(optuna.samplers.TPESampler):
    """TPE that knows which names every trial has; else it reads that from all trials at every draw."""

    def __init__(
        self, together: Mapping[str, BaseDistribution], *, seed: int, num_startup: int
    ) -> None:
        super().__init__(
            seed=seed, n_startup_trials=num_startup, multivariate=True, constant_liar=True
        )
        self._together = together

    def infer_relative_search_space(self, *_: Any, **__: Any) -> dict[str, BaseDistribution]:
        """Return the names that every trial has."""
        return dict(self._together)


class Random(OptunaSampler):
    """Independent random draws."""

    def optuna_sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return the sampler of one draw."""
        return optuna.samplers.RandomSampler(seed=seed)


class QuasiRandom(OptunaSampler):
    """Quasi-random draws: a scrambled Sobol sequence, whose position the study keeps."""

    keeps_place = True

    def optuna_sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return the sampler of one draw, which continues the sweep's one sequence."""
        return optuna.samplers.QMCSampler(
            seed=derived_seed(self._seed),
            scramble=True,
            independent_sampler=optuna.samplers.RandomSampler(seed=seed),
            warn_independent_sampling=False,
        )


class GaussianProcess(OptunaSampler):
    """Optuna's Gaussian-process sampler."""

    def optuna_sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return the sampler of one draw."""
        independent = optuna.samplers.RandomSampler(seed=seed)
        return optuna.samplers.GPSampler(
            seed=seed, n_startup_trials=self.num_startup, independent_sampler=independent
        )


def _first_of(space: SearchSpace) -> list[Params]:
    """Return what the first configurations begin with: learned settings in half of them, then each other stratum.

    A search of two or three begins with two that are learned.
    """
    num = space.limits.trials // space.limits.seeds
    most = max(num // 2, min(num, 2))
    learned = {_key(params): params for params in map(space.restricted, space.first) if params}
    first = list(learned.values())[:most]
    name = space.evaluation.stratify_by
    domain = None if name is None else space.domains[name]
    if name is None or not isinstance(domain, Choice):
        return first
    known = [params.get(name) for params in first]
    return [*first, *({name: label} for label in domain.options if label not in known)]


def direction_of(space: SearchSpace) -> Literal["maximize", "minimize"]:
    """Return in which direction Optuna looks for the best trials of a space."""
    return "maximize" if space.mode == "max" else "minimize"


def distribution_of(domain: Domain, *, has_labels: bool) -> BaseDistribution:
    """Return a domain as Optuna knows it; a choice by its labels, or by their positions."""
    if isinstance(domain, Choice):
        return CategoricalDistribution(
            list(domain.options) if has_labels else range(len(domain.options))
        )
    if domain.is_integer:
        return IntDistribution(
            int(domain.low), int(domain.high), step=int(domain.step) if domain.step else 1
        )
    return FloatDistribution(domain.low, domain.high, step=domain.step, log=domain.is_log)


def _suggest(trial: optuna.trial.Trial, name: str, distribution: BaseDistribution) -> Any:
    match distribution:
        case CategoricalDistribution():
            return trial.suggest_categorical(name, distribution.choices)
        case IntDistribution():
            return trial.suggest_int(
                name, distribution.low, distribution.high, step=distribution.step
            )
        case FloatDistribution():
            low, high = distribution.low, distribution.high
            return trial.suggest_float(
                name, low, high, step=distribution.step, log=distribution.log
            )
    raise TypeError(f"{name}: not a distribution that a space has: {distribution}")


def _key(params: Params) -> str:
    return repr(sorted(params.items()))


def study_of(sweep: RecordedSweep) -> optuna.Study:
    """Return an Optuna study with every trial of a sweep, rebuilt from its journal.

    Parameters have their labels, reports are intermediate values, and a trial's value is its last one. A trial that
    the scheduler stopped is pruned, one that a clock or a budget stopped is complete; one that failed or diverged has
    failed, and has no value. User attributes give the trial's `trial` (its name), `status`, `seed`, `seconds`, `usd`,
    all last `metrics`, and `error`, if it has one.
    """
    found = optuna.create_study(study_name=sweep.space.name, direction=direction_of(sweep.space))
    for trial in sweep.trials:
        found.add_trial(_frozen_trial(sweep.space, trial))
    return found


def _frozen_trial(space: SearchSpace, trial: Trial) -> FrozenTrial:
    status = "finished" if trial.status == "stopped" and not trial.is_outranked else trial.status
    state, value = _STATES.get(status, TrialState.FAIL), trial.metrics.get(space.metric)
    if state == TrialState.COMPLETE and value is None:
        state = TrialState.FAIL
    scores = ((report.index, report.metrics.get(space.metric)) for report in trial.reports)
    attributes = {name: getattr(trial, name) for name in ("status", "seed", "seconds", "usd")}
    attributes |= {
        "metrics": dict(trial.metrics),
        **({"error": trial.error} if trial.error else {}),
    }
    return optuna.trial.create_trial(
        state=state,
        value=value if state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        params=dict(trial.params),
        distributions={
            name: distribution_of(space.domains[name], has_labels=True) for name in trial.params
        },
        intermediate_values={index: score for index, score in scores if score is not None},
        user_attrs={"trial": trial.name, **attributes},
    )


SAMPLERS = {"tpe": TPE, "random": Random, "qmc": QuasiRandom, "gp": GaussianProcess}
