"""Settings that fit the text, the machine and the time: a space's `fit` names -> values, and why each was chosen.

In: a space that lists names under `fit`, and what is known of the text, the machine and the time allowed. Out: the same
space with a value for each name where it had another one, in `base` and in what it searches, and with the reasons under
`fitted`. It is done once, before the sweep is recorded, so that resume and replay read plain values.

Widths, rates and passes are for training that ends within minutes or hours. The rates are those of a falling learning
rate and word vectors counted from the text.
"""

from __future__ import annotations

import copy
import datetime
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from raysent.config import Override, get_dotted, set_dotted
from raysent.cost import Budget, PlannedWork
from raysent.cost.budget import START_S
from raysent.data.batches import largest_batch
from raysent.errors import RaysentError
from raysent.kernels.devices import multiplies_in_bfloat16
from raysent.models.embeddings import CORPUS_VECTORS
from raysent.models.encoders import encoders_in
from raysent.models.objectives import ContextBatches
from raysent.parallel import Progress
from raysent.progress import format_duration
from raysent.sweeps.layout import Layout, Machines, layout
from raysent.sweeps.machines import machines_at
from raysent.sweeps.space import SearchSpace, with_overrides, with_values
from raysent.sweeps.space.overrides import apply_overrides
from raysent.sweeps.space.space import FAMILY, FORMS, Choice
from raysent.sweeps.speed import MeasuredSpeed, RunSeconds, Speed, drawn_configs, is_alike
from raysent.training.data import TextSize, chosen_vocabulary_type, text_size
from raysent.training.run import RunConfig
from raysent.training.validation import (
    NUM_DOCUMENTS,
    DownstreamConfig,
    count_documents,
    sentences_of_document,
)

# The part of a trial that is trained in the mean if poor trials are stopped early. Of few trials few are stopped, and
# one that the time cuts ranks behind those that finished: up to so many rounds of them are planned to end.
_PART_TRAINED = 0.6
_FEW_ROUNDS = 2
# A share of the time is planned with less a margin, for validation and for speed that differs from the measured one.
_USED = 0.85

# Encoders of the order of words that read the text less often are worse than the mean of the vectors they start from.
_PASSES_OF_ORDER = 2.0
# Objectives of neighbours learn nothing from the other sentences.
_LEAST_WITH_NEIGHBOURS = 0.5

# Rarer words have too few occurrences for a vector of their own.
_MIN_COUNT = 3
# Widths that wider encoders are reduced to, and how often a trial reads the text at the chosen one at least.
_WIDTHS = (300, 600, 1200, 2400)
_MIN_PASSES = 1.5
_CPU_WIDTH = 300
# A batch is at most this part of the text, in steps: fewer steps learn little. Contrast wants so many sentences in a
# batch all the same, and a small text has at least so many steps.
_STEPS_PER_EPOCH = 400
_LEAST_BATCH, _LEAST_STEPS_PER_EPOCH = 50, 4
# Trials of fewer steps than this learn next to nothing.
_LEAST_STEPS = 150
# What a reason says where something is too short or too few.
_LITTLE = "teach next to nothing"
_SHORTAGES = (_LITTLE, "is enough")
# Runs of a space that are looked at for which settings any of them has.
_MOST_RUNS = 256
# Fewer steps than this are few.
_FEW_STEPS = 50_000
# Sentences that a trial reads if no time is given, and how often it reads text, or pairs, at most. On twelve novels the
# score on held-out sentences fell from the second pass on.
_CPU_SENTENCES, _GPU_SENTENCES = 500_000, 20_000_000
_MAX_PASSES_TEXT, _MAX_PASSES_PAIRS = 1.5, 20.0
# Trials shorter than this report less often, on fewer validation sentences.
_SHORT_S = 120.0
_SHORT_REPORTS, _SHORT_SENTENCES = 4, 4_000
# The slowest kind of encoder may take so many times the mean of all kinds.
_UNLIKE_KINDS = 2.0
# Reports, of which at least so many remain for early stopping; and the part of a trial's time that validation may take.
_MIN_REPORTS, _MAX_REPORTS = 3, 40
_MOST_VALIDATION = 0.2


@dataclass(frozen=True)
class Rates:
    """Learning rates that are right for a kind of training.

    Attributes:
        least: The lowest one.
        most: The highest one.
        usual: What is taken where none is searched; None for what is written.
    """

    least: float
    most: float
    usual: float | None


# Of few steps from random values, of many, and of a pretrained encoder's weights and adapters.
_RATES = Rates(1.5e-3, 6e-3, 3e-3)
_RATES_OF_MANY = Rates(1e-4, 2e-3, None)
_RATES_OF_WEIGHTS = Rates(1e-6, 1e-4, 3e-5)
_RATES_OF_ADAPTERS = Rates(1e-4, 1e-3, 3e-4)


@dataclass(frozen=True)
class Situation:
    """What settings are chosen for.

    Attributes:
        num_train: Sentences or pairs for training.
        num_words: Distinct words that occur often enough for a vector.
        has_gpu: Whether trials train on a GPU.
        has_bfloat16: Whether the processor multiplies in bfloat16 fast; `auto` is right for a GPU.
        trial_s: Seconds that a trial may train if it is not stopped early; None for no limit.
        limit: Where `trial_s` comes from, in words.
        num_documents: Documents of the text that are large enough for the metric `document_accuracy`.
        with_neighbours: The part of the sentences that have a neighbour in their document.
        tasks: The tasks that the user names; None where there are none.
        search_s: Seconds of all training, on the clock; None for no limit.
        at_once: Trials that train at a time.
    """

    num_train: int
    num_words: int
    has_gpu: bool = False
    has_bfloat16: bool = False
    trial_s: float | None = None
    limit: str = ""
    num_documents: int = 0
    with_neighbours: float = 1.0
    tasks: DownstreamConfig | None = None
    search_s: float | None = None
    at_once: int = 1


@dataclass(frozen=True)
class FittedSetting:
    """A setting that was chosen.

    Attributes:
        name: Its name.
        values: Its value in `base`, and each domain in which it is searched; equal ones once.
        why: Why, in words.
    """

    name: str
    values: tuple[Any, ...]
    why: str

    @property
    def text(self) -> str:
        """The values as they are written in a space."""
        return ", ".join(map(_written, self.values))


def fitted_settings(space: SearchSpace) -> list[FittedSetting]:
    """Return the settings of a space that were chosen, in the order in which they were."""
    values = space.written()
    settings = []
    for name, why in space.fitted.items():
        if name == "metric":
            found = [space.metric]
        elif name == "first":
            found = [f"{len(space.first)} settings"]
        elif name in (FAMILY, space.evaluation.stratify_by) and name in space.domains:
            found = list(space.domains[name].edges())
        elif name.startswith("limits."):
            found = [get_dotted(values, name)]
        elif "." in name:
            found = [place[key] for place, key in _places(values, name)]
        else:  # a part of a run, such as the encoder
            found = [values["base"].get(name)]
        searched = [value for value in found if isinstance(value, dict)]
        distinct = {repr(value): value for value in searched or found}
        settings.append(FittedSetting(name, tuple(distinct.values()), why))
    return settings


def shortages(space: SearchSpace) -> list[str]:
    """Return what the time, the text or the trials are too few for, each with what is enough, in words."""
    clauses = [clause for why in space.fitted.values() for clause in why.split("; ")]
    return [clause for clause in clauses if any(mark in clause for mark in _SHORTAGES)]


def fitted_values(space: SearchSpace) -> dict[str, Any]:
    """Return the settings of a space that were chosen as plain values: name -> `values` and `why`."""
    return {
        one.name: {"values": list(one.values), "why": one.why} for one in fitted_settings(space)
    }


def _written(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    if not set(value) <= set(FORMS):
        return ", ".join(
            f"{name} ({_written(one)})" if isinstance(one, dict) else f"{name} {one}"
            for name, one in value.items()
        )
    ((form, values),) = value.items()
    return " or ".join(map(str, values)) if form == "choice" else " to ".join(map(str, values[:2]))


def part_trained(space: SearchSpace, *, at_once: int) -> float:
    """Return the part of a trial that is trained in the mean, with so many trials at the same time."""
    is_whole = space.limits.scheduler.type == "none" or space.limits.trials <= _FEW_ROUNDS * at_once
    return 1.0 if is_whole else _PART_TRAINED


def fit_space(space: SearchSpace, situation: Situation, *, speed: Speed) -> SearchSpace:
    """Return a space whose `fit` names have values for a situation; the space itself where it has no such names.

    Args:
        space: The space.
        situation: What the values are chosen for.
        speed: Returns how long trials take; called only if there is a limit on the time.

    Raises:
        ConfigError: If a value does not go with the others.
    """
    if not space.fit:
        return space
    fitting = _Fitting(space, situation, speed)
    for name, rule in _RULES.items():
        for wanted in (wanted for wanted in space.fit if wanted.split(".")[-1] == name):
            rule(fitting, wanted)
    fitting.explain_kinds()
    return fitting.space(is_done=True)


def fit_to_machine(
    space: SearchSpace,
    *,
    tasks: DownstreamConfig | None = None,
    address: str | None = None,
    machines: Machines | None = None,
    is_sweep: bool = True,
    progress: Progress | None = None,
) -> SearchSpace:
    """Return a space whose `fit` names have values for its text, for this machine or a cluster, and for its time.

    The text is read, and with a limit on time, dollars or both a few steps are trained to measure their speed.

    Args:
        space: The space.
        tasks: The tasks that the user names, which a metric to fit then is of; None where there are none.
        address: The Ray cluster; None for this machine.
        machines: What the cluster has for trials; None to ask it.
        is_sweep: Whether trials share the time; a single training has no limit on it.
        progress: Called with the progress of reading the text.

    Raises:
        RaysentError: With the place in the search space of the value at fault, where there is one.
    """
    if not is_sweep:  # nothing is ranked
        space = space.model_copy(update={"fit": [name for name in space.fit if name != "metric"]})
    space = with_vocabulary(space, progress=progress)
    if not space.fit:
        return space
    params = space.first_params()
    try:
        # Before the text is read: a GPU that is not there is refused.
        machines = machines or machines_at(address, space)
        size = text_size(space.config(params), progress=progress)
        plan = layout(space.limits, machines, num_trials=space.limits.trials)
        situation = _situation(space, size, machines, plan, is_local=address is None)
        speed = MeasuredSpeed(size, plan, progress, is_measured=is_alike(machines, address))
        situation = (
            replace(situation, tasks=tasks) if is_sweep else replace(situation, trial_s=None)
        )
        return fit_space(space, situation, speed=speed)
    except RaysentError as error:
        raise space.located(error, params) from None


def with_possible_trials(space: SearchSpace) -> SearchSpace:
    """Return a space with no more trials than its configurations and seeds allow, and why."""
    num, seeds = space.num_configurations, space.limits.seeds
    # Where it is still fitted, a choice of rates becomes an interval.
    if space.limits.trials <= num * seeds or "training.learning_rate" in space.domains.keys() & set(
        space.fit
    ):
        return space
    why = f"the space has no more configurations{f', each with {seeds} seeds' if seeds > 1 else ''}"
    return _with_chosen(space, Override("limits.trials", int(num) * seeds, "the space"), why)


def with_vocabulary(space: SearchSpace, *, progress: Progress | None = None) -> SearchSpace:
    """Return a space with words or sub-words where its vocabulary is ``auto``, and why."""
    params = space.first_params()
    config = space.config(params)
    if config.vocabulary.type != "auto":
        return space
    try:
        chosen, why = chosen_vocabulary_type(config, progress=progress)
    except RaysentError as error:
        raise space.located(error, params) from None
    return _with_chosen(space, Override("base.vocabulary.type", chosen, "the text"), why)


def _with_chosen(space: SearchSpace, chosen: Override, why: str) -> SearchSpace:
    reasons = {**space.fitted, chosen.name.removeprefix("base."): why}
    return with_overrides(space, [chosen, Override("fitted", reasons, chosen.option)])


def _situation(
    space: SearchSpace, size: TextSize, machines: Machines, plan: Layout, *, is_local: bool
) -> Situation:
    trial_s, limit = trial_seconds(space, plan, num_machines=machines.num)
    has_gpu = plan.gpus_per_worker > 0
    return Situation(
        num_train=size.num_train,
        num_words=size.num_words(min_count=_MIN_COUNT),
        has_gpu=has_gpu,
        has_bfloat16=is_local and not has_gpu and multiplies_in_bfloat16(),
        trial_s=trial_s,
        limit=limit,
        num_documents=count_documents(size.documents),
        with_neighbours=float(
            size.documents[size.documents > 1].sum() / max(1, size.documents.sum())
        ),
        search_s=_search_seconds(space),
        at_once=plan.concurrent,
    )


def _search_seconds(space: SearchSpace) -> float | None:
    """Return the seconds of all training on the clock; None without a limit on time."""
    return min(_budget(space).clock_limits().values(), default=None)


def _budget(space: SearchSpace) -> Budget:
    """Return the budget of a sweep that starts now."""
    return space.budget(datetime.datetime.now(datetime.UTC))


def trial_seconds(
    space: SearchSpace, plan: Layout, *, num_machines: int
) -> tuple[float | None, str]:
    """Return the seconds that a whole trial may train, and why, in words; None without a limit on time or dollars.

    Args:
        space: The space.
        plan: How trials share the machines.
        num_machines: The machines.
    """
    work = PlannedWork(
        num_trials=space.limits.trials,
        part=part_trained(space, at_once=plan.concurrent),
        at_once=plan.concurrent,
        num_machines=num_machines,
        usd_per_hour=space.cost.least_usd_per_hour,
    )
    shares = _budget(space).shares(work)
    if not shares:
        return None, ""
    name = min(shares, key=lambda name: shares[name])
    text = {
        "time": space.limits.time,
        "deadline": space.cost.deadline,
        "budget": space.cost.budget,
    }[name]
    several = (
        f"{space.limits.trials} trials, {plan.concurrent} at a time"
        if space.limits.trials > 1
        else "one trial"
    )
    return _USED * shares[name], f"{name} {text} for {several}"


class _Fitting:
    """The values of a space while its `fit` names are replaced."""

    def __init__(self, space: SearchSpace, situation: Situation, speed: Speed) -> None:
        self.now = situation
        self._space, self.speed = space, speed
        self._values: dict[str, Any] = space.written()
        self._reasons: dict[str, str] = {}

    def space(self, *, is_done: bool = False) -> SearchSpace:
        """Return the space as it is now; with `is_done` no name is left to fit, and the reasons are recorded."""
        values = self._values
        if is_done:
            kept = {name: value for name, value in values.items() if name != "fit"}
            values = {**kept, "fitted": {**self._space.fitted, **self._used_reasons()}}
        return self._parsed(values)

    def _used_reasons(self) -> dict[str, str]:
        """Return the reasons of settings that some run has; of others nothing was chosen."""
        configs = self.runs()
        return {
            name: why
            for name, why in self._reasons.items()
            if any(_has_setting(config, name) for config in configs)
        }

    def runs(self) -> list[RunConfig]:
        """Return runs of the space as it is now, of every part that is searched."""
        space = self._parsed(self._values)
        return [space.config(params) for params in itertools.islice(space.edges(), _MOST_RUNS)]

    def _parsed(self, values: dict[str, Any]) -> SearchSpace:
        return with_values(self._space, values)

    def change(self, name: str, new: Callable[[Mapping[str, Any], Any], Any], why: str) -> None:
        """Replace every value of a name, in `base` and in what is searched.

        Args:
            name: The name. ``encoder.hidden_size`` is every `hidden_size` in both encoders, of members too.
            new: The mapping that a value is in, and the value -> the new value.
            why: Why, in words.
        """
        for place, key in list(_places(self._values, name)):
            place[key] = _changed(place[key], partial(new, place))
        self._reasons[name] = why

    def put(self, name: str, value: Any, why: str) -> None:
        """Set a name in `base`, whether or not it has a value there, and wherever it is searched."""
        set_dotted(self._values, f"base.{name}", value)
        self.change(name, lambda *_: value, why)

    def leave_out(self, name: str, labels: Collection[str], why: str) -> None:
        """Leave labels out of a choice that is searched."""
        domain = self.space().domains.get(name)
        options = [str(label) for label in domain.options] if isinstance(domain, Choice) else []
        left = [label for label in options if label not in labels]
        document = replace(self._space.document, values=self._values)
        override = Override(f"search.{name}", {"choice": left}, "fit")
        self._values = apply_overrides(document, [override]).values
        self._reasons[name] = why

    def configs(self, name: str) -> dict[str, RunConfig]:
        """Return the first run of each label of a choice that is searched."""
        space = self.space()
        found: dict[str, RunConfig] = {}
        for params in space.edges():
            found.setdefault(params[name], space.config(params))
        return found

    def put_metric(self, metric: str, settings: Mapping[str, Any], why: str) -> None:
        """Rank by a metric, with the settings of the validation that it needs."""
        self._values["metric"] = metric
        for name, value in settings.items():
            set_dotted(self._values, f"base.validation.{name}", value)
        self._reasons["metric"] = why

    def put_rates(self, name: str, rates: Rates, why: str) -> None:
        """Set a learning rate in `base`, and the interval of a searched one, to some rates.

        What is searched stays in the interval that is written; one without such rates stays as it is.
        """
        is_changed = False
        for settings, key in list(_places(self._values, name)):
            rate = _rate_among(settings[key], rates)
            is_changed |= rate != settings[key]
            settings[key] = rate
        if is_changed:
            self._reasons[name] = why

    def explain_kinds(self) -> None:
        """Say which kinds of encoders are tried in turn, and whether the trials and the time are enough for all."""
        space = self.space()
        name, kinds = space.evaluation.stratify_by, space.kinds
        if name is None or not kinds:
            return
        why = "in turn; the best that ends of each is kept, and RUN/kinds is their weighted average"
        if self.num_trials < len(kinds) * space.limits.seeds:
            needed = len(kinds) * space.limits.seeds
            why = f"{why}; trials are too few for all of them: limits.trials {needed} is enough"
        elif self.now.search_s is not None:
            why += self._too_little_time(space, self.now.search_s)
        before = self._reasons.get(name)
        self._reasons[name] = f"{why}; {before}" if before else why

    def _too_little_time(self, space: SearchSpace, search_s: float) -> str:
        """Return that a whole trial of each kind takes more than the time, and what is enough; else nothing."""
        runs: dict[Any, list[RunConfig]] = {}
        for params in itertools.islice(space.edges(), _MOST_RUNS):
            runs.setdefault(space.kind_of(params), []).append(space.config(params))
        mean_s = self._whole_trial_s([run for of_kind in runs.values() for run in of_kind])
        if mean_s * len(runs) * _UNLIKE_KINDS < search_s * self.now.at_once:
            return ""
        seconds = {kind: self._whole_trial_s(of_kind) for kind, of_kind in runs.items()}
        needed_s = max(sum(seconds.values()) / self.now.at_once, *seconds.values())
        if needed_s <= search_s:
            return ""
        whole = ", ".join(f"{kind} {format_duration(one)}" for kind, one in seconds.items())
        return (
            f"; in {format_duration(search_s)} of training not one of each will end (a whole trial takes {whole}, "
            f"{self.now.at_once} at a time): about {format_duration(needed_s + START_S)} is enough"
        )

    def _whole_trial_s(self, runs: Sequence[RunConfig]) -> float:
        """Return the mean seconds of whole trials of runs that are alike in passes and reports."""
        of_run = self.speed(runs)
        training = runs[0].training
        return training.epochs * of_run.epoch_s + training.num_reports * of_run.report_s

    @property
    def num_trials(self) -> int:
        """The number of trials that the space allows."""
        return self._space.limits.trials

    def written(self, name: str) -> Any:
        """Return the value of a name in `base`; None where it has none."""
        return get_dotted(self._values, f"base.{name}")

    def seconds(self, name: str = "", most: int = 0) -> RunSeconds:
        """Return the mean seconds of parts of drawn trials of the space as it is now, with a name of at most `most`."""
        values = copy.deepcopy(self._values)
        for place, key in list(_places(values, name)) if name else []:
            place[key] = _changed(place[key], lambda value: min(value, most))
        return self.speed(drawn_configs(self._parsed(values)))

    def first(self) -> RunConfig:
        """Return the first run of the space as it is now."""
        space = self.space()
        return space.config(space.first_params())

    def largest(self, name: str) -> Any:
        """Return the largest number that a name has anywhere; 0 where it has none."""
        return max(
            (value for place, key in _places(self._values, name) for value in _numbers(place[key])),
            default=0,
        )


def _places(values: Mapping[str, Any], name: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every mapping and key with a value of a name, in `base` and `search`; both encoders share their names."""
    *path, key = name.split(".")
    sections = ("encoder", "second_encoder") if path[0] == "encoder" else (path[0],)
    base, search = values.get("base", {}), values.get("search", {})
    for run in (base, *get_dotted(search, f"{FAMILY}.choice", {}).values()):
        for section in sections:
            yield from _inside(run.get(section), key)
    for searched, domain in search.items():
        parts = searched.split(".")
        if parts[0] in sections and parts[-1] == key:
            yield search, searched
        elif parts[0] in sections:
            yield from _inside(domain.get("choice"), key)


def _has_setting(config: RunConfig, name: str) -> bool:
    """Return whether a name that was fitted is a setting of a run, whose encoder may have none of this name."""
    section, *path = name.split(".")
    if name == "vocabulary.size":
        return config.tokenizer is None and config.initial is None
    if section != "encoder":
        return True
    encoders = [*encoders_in(config.encoder), *encoders_in(config.second_encoder)]
    return any(_has_field(encoder, path) for encoder in encoders)


def _has_field(part: Any, path: Sequence[str]) -> bool:
    """Return whether settings have a field at a path."""
    if not path:
        return True
    return hasattr(part, path[0]) and _has_field(getattr(part, path[0]), path[1:])


def _inside(node: Any, key: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every mapping at or below a node that has a key, and the key."""
    if not isinstance(node, dict):
        return
    for name, value in node.items():
        if name == key and not isinstance(value, dict):
            yield node, key
        else:
            yield from _inside(value, key)


def _changed(written: Any, new: Callable[[Any], Any]) -> Any:
    """Return a value, or a domain each of whose values, replaced; equal values of a choice become one."""
    if not isinstance(written, dict):
        return new(written)
    ((form, values),) = written.items()
    if isinstance(values, dict):
        return {form: {label: new(value) for label, value in values.items()}}
    if form == "choice":
        return {form: list(dict.fromkeys(new(value) for value in values))}
    return {
        form: [*(new(value) for value in values[:2]), *values[2:]]
    }  # the third is the step of the first two


def _rate_among(written: Any, rates: Rates) -> Any:
    """Return a learning rate, or what is searched of it, by usual rates; what has none of these stays as written."""
    if not isinstance(written, dict):
        return rates.usual or written
    numbers = _numbers(written)
    low, high = max(min(numbers), rates.least), min(max(numbers), rates.most)
    return {"loguniform": [low, high]} if low < high else written


def _numbers(written: Any) -> list[Any]:
    values = (
        next(iter(written.values()))
        if isinstance(written, dict) and set(written) <= set(FORMS)
        else [written]
    )
    return [
        value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]


# -- the rules: how one name is chosen ------------------------------------------------------------------------------


def _fit_metric(fitting: _Fitting, _: str) -> None:
    """Rank by probes on the tasks that are named, else on the documents of the text, else by the metric as written."""
    tasks, num_documents = fitting.now.tasks, fitting.now.num_documents
    of_validation = {
        name: fitting.written(f"validation.{name}") for name in ("downstream", "documents")
    }
    if of_validation["downstream"] is not None:
        fitting.put_metric("downstream", {}, "probes on the tasks that validation.downstream names")
    elif tasks is not None:
        why = f"probes on the tasks that are named: {', '.join(tasks.tasks or ())}"
        values: dict[str, Any] = {"downstream": tasks.model_dump(exclude_none=True)}
        if (of_validation["documents"] or 0) > num_documents:
            values["documents"] = None  # the text has not so many
        fitting.put_metric("downstream", values, why)
    elif of_validation["documents"] is not None:
        fitting.put_metric("document_accuracy", {}, "validation.documents is set")
    elif num_documents >= NUM_DOCUMENTS:
        why = f"no tasks are named; a probe says which of the {NUM_DOCUMENTS} largest documents a sentence is from"
        fitting.put_metric("document_accuracy", {"documents": NUM_DOCUMENTS}, why)
    else:
        fitting.put_metric(
            fitting.space().metric,
            {},
            f"no tasks are named, and the text has {num_documents} of the {NUM_DOCUMENTS} documents of "
            f"{sentences_of_document()} sentences that document_accuracy needs",
        )


def _fit_family(fitting: _Fitting, name: str) -> None:
    """Leave out families whose pairs are not there, and those that this text or this time teaches nothing."""
    configs, now = fitting.configs(name), fitting.now
    reasons: list[str] = []
    left = dict(configs)

    def leave_out(labels: Sequence[str], why: str) -> None:
        if labels and len(labels) == len(left):
            reasons.append(f"{', '.join(labels)}, as there is no other: {why}")
        elif labels:
            reasons.append(f"without {', '.join(labels)}: {why}")
            for label in labels:
                del left[label]

    absent = {label: file for label, config in left.items() if (file := _absent_pairs(config))}
    leave_out(list(absent), f"no file {', '.join(dict.fromkeys(absent.values()))}")
    if now.with_neighbours < _LEAST_WITH_NEIGHBOURS:
        alone = [label for label, config in left.items() if config.objective.learns_from_neighbours]
        leave_out(
            alone, f"{1 - now.with_neighbours:.0%} of the sentences stand alone in their document"
        )
    slow = [label for label, config in left.items() if config.encoder.reads_order]
    if slow and now.trial_s is not None:
        passes = now.trial_s / fitting.speed([left[label] for label in slow]).epoch_s
        if passes < _PASSES_OF_ORDER:
            times = (
                f"a trial of {format_duration(now.trial_s)} reads the text {_count(passes)} times"
            )
            leave_out(slow, f"{times}; in that, bags of words learn more")
    fitting.leave_out(
        name,
        configs.keys() - left.keys(),
        "; ".join(reasons) or "all families can learn from this text",
    )


def _absent_pairs(config: RunConfig) -> str:
    if config.pairs is None or config.source is not config.pairs:
        return ""
    files = [config.pairs.path] if isinstance(config.pairs.path, str) else config.pairs.path
    return next(
        (file for file in files if not file.startswith("s3://") and not Path(file).exists()), ""
    )


def _fit_vocabulary(fitting: _Fitting, name: str) -> None:
    known = fitting.now.num_words
    if fitting.written("vocabulary.type") == "subwords":
        return  # they are trained for their number
    fitting.change(
        name,
        lambda _, written: min(
            written, max(known + 2, 3)
        ),  # two ids stand for padding and for unknown words
        f"{known:,} words occur at least {_MIN_COUNT} times",
    )


def _fit_dim(fitting: _Fitting, name: str) -> None:
    """Word vectors counted from a text have at most as many numbers as there are words."""
    words, of_base = max(1, fitting.now.num_words), fitting.written("encoder.embedding.vectors")

    if fitting.written("vocabulary.type") != "subwords":
        words = min(words, fitting.written("vocabulary.size") or words)

    def new(place: Mapping[str, Any], written: Any) -> Any:
        return min(written, words) if place.get("vectors", of_base) == CORPUS_VECTORS else written

    why = f"at most {words:,} where word vectors are counted from the text, which has so many words"
    fitting.change(name, new, why)


def _fit_precision(fitting: _Fitting, name: str) -> None:
    if fitting.now.has_bfloat16:
        fitting.put(name, "bfloat16", "this processor multiplies in it faster")


def _fit_batch_size(fitting: _Fitting, name: str) -> None:
    """Limit batches to a part of the text, and to what the runs' streams can fill."""
    num_train = fitting.now.num_train
    wanted = num_train // _STEPS_PER_EPOCH // _LEAST_BATCH * _LEAST_BATCH
    most = max(wanted, min(_LEAST_BATCH, num_train // _LEAST_STEPS_PER_EPOCH))
    sizes = [_largest_batch(config, num_train) for config in fitting.runs()]
    most = max(2, min([most, *sizes]))
    num_steps = max(1, num_train // most)
    fitting.change(
        name,
        lambda _, written: min(written, most),
        f"at most {most}: a pass over {num_train:,} sentences then has {num_steps:,} steps",
    )


def _largest_batch(config: RunConfig, num_train: int) -> int:
    """Return the most sentences, pairs or texts that a run's batches of so much text can have."""
    batches = config.objective.batches
    if isinstance(batches, ContextBatches):
        return largest_batch(
            num_train, candidates=batches.candidates, context_size=batches.context_size
        )
    return num_train


def _fit_width(fitting: _Fitting, name: str) -> None:
    """Reduce encoders until a trial reads the text often enough; without a limit on time, by the device."""
    trial_s = fitting.now.trial_s
    if trial_s is None:
        if not fitting.now.has_gpu:
            fitting.change(
                name,
                lambda _, written: min(written, _CPU_WIDTH),
                "no GPU, and no limit on the time",
            )
        return
    written, width = fitting.largest(name), _WIDTHS[0]
    passes = trial_s / fitting.seconds(name, width).epoch_s
    for wider in (wider for wider in _WIDTHS[1:] if width < written):
        of_wider = trial_s / fitting.seconds(name, wider).epoch_s
        if of_wider < _MIN_PASSES:
            break
        width, passes = wider, of_wider
    least = ", the least" if width == _WIDTHS[0] and passes < _MIN_PASSES else ""
    times = f"{_count(passes)} times in {format_duration(trial_s)}"
    why = f"at most {width}{least}: a trial then has time to read the text {times}"
    fitting.change(name, lambda _, value: min(value, width), why)


def _fit_epochs(fitting: _Fitting, name: str) -> None:
    now, first = fitting.now, fitting.first()
    most = _MAX_PASSES_PAIRS if first.source is first.pairs else _MAX_PASSES_TEXT
    if now.trial_s is None:
        sentences = _GPU_SENTENCES if now.has_gpu else _CPU_SENTENCES
        passes = max(1.0, sentences / max(1, now.num_train))
        why = f"{now.num_train:,} sentences; no limit on the time is given"
        if passes > most:
            why += f"; more than {most:g} would repeat the text too often"
        fitting.put(name, _rounded(min(passes, most)), why)
        return
    epoch_s, report_s = fitting.seconds()
    training_s = now.trial_s - report_s * first.training.num_reports
    why = f"a pass takes {format_duration(epoch_s)}, a trial may take {format_duration(now.trial_s)} ({now.limit})"
    if training_s < now.trial_s / 2:
        training_s = now.trial_s / 2
        why += "; validations would take more than half of it, and training has half"
    passes = training_s / epoch_s
    if passes > most:
        why += f"; more than {most:g} would repeat the text too often: raise limits.trials to use the time"
    passes = _rounded(min(passes, most))
    num_steps = passes * now.num_train / first.training.batch_size
    if passes < most and num_steps < _LEAST_STEPS:
        why += _too_few_steps(num_steps, num_trials=fitting.num_trials)
    fitting.put(name, passes, why)


def _too_few_steps(num_steps: float, *, num_trials: int) -> str:
    """Return that trials of so few steps learn next to nothing, and what would give them more."""
    factor = _LEAST_STEPS / max(1.0, num_steps)
    fewer = max(1, int(num_trials / factor))
    cures = [f"{factor:.0f} times the time"] if factor >= 2 else ["more time"]
    if fewer < num_trials:
        cures.insert(0, f"limits.trials {fewer}")
    return (
        f"; {max(1, round(num_steps)):,} steps {_LITTLE}: {' or '.join(cures)} has {_LEAST_STEPS}"
    )


def _fit_learning_rate(fitting: _Fitting, name: str) -> None:
    """Few steps want a higher rate than many; a pretrained encoder wants a lower one than any other."""
    config = fitting.first()
    training = config.training
    of_text = training.steps or training.epochs * fitting.now.num_train / training.batch_size
    steps = min(training.max_steps or math.inf, of_text)
    falls = ", with a falling rate" if training.schedule == "linear" else ""
    why = f"about {max(1, round(steps)):,} steps{falls}"
    adapters = [getattr(one, "lora_settings", None) for one in encoders_in(config.encoder)]
    if config.tokenizer is not None:
        kind = "adapters" if any(adapters) else "weights"
        rates = _RATES_OF_ADAPTERS if any(adapters) else _RATES_OF_WEIGHTS
        fitting.put_rates(name, rates, f"{kind} of a pretrained encoder")
    else:
        fitting.put_rates(name, _RATES if steps < _FEW_STEPS else _RATES_OF_MANY, why)


def _fit_reports(fitting: _Fitting, name: str) -> None:
    """Limit the part of a trial's time that validation takes."""
    trial_s = fitting.now.trial_s
    if trial_s is None:
        return
    report_s = fitting.seconds().report_s
    most = _MAX_REPORTS
    why = ""
    if _is_short(fitting.now):
        most = _SHORT_REPORTS
        why = ", as trials are short"
    in_time = int(_MOST_VALIDATION * trial_s / report_s) if report_s else most
    if in_time < most:
        most = max(_MIN_REPORTS, in_time)
        why = f": a validation takes {format_duration(report_s)}"
        if in_time < _MIN_REPORTS:
            why = f", the least that compares trials{why}"
    fitting.change(name, lambda _, written: min(written, most), f"at most {most}{why}")


def _fit_pool(fitting: _Fitting, name: str) -> None:
    written = fitting.first().validation.num_sentences
    if _is_short(fitting.now) and written > _SHORT_SENTENCES:
        fitting.put(name, _SHORT_SENTENCES, f"at most {_SHORT_SENTENCES:,}, as trials are short")


def _is_short(now: Situation) -> bool:
    return now.trial_s is not None and now.trial_s < _SHORT_S


def _count(passes: float) -> str:
    return f"{passes:.2g}" if passes < 10 else f"{passes:.0f}"


def _rounded(passes: float) -> float:
    return max(0.01, float(f"{passes:.2g}"))


# Last part of a name -> its rule, in the order in which they depend on each other.
_RULES: dict[str, Callable[[_Fitting, str], None]] = {
    "metric": _fit_metric,
    FAMILY: _fit_family,
    "size": _fit_vocabulary,
    "dim": _fit_dim,
    "precision": _fit_precision,
    "batch_size": _fit_batch_size,
    "num_sentences": _fit_pool,
    "hidden_size": _fit_width,
    "num_reports": _fit_reports,
    "epochs": _fit_epochs,
    "learning_rate": _fit_learning_rate,
}
