"""How trials share machines: as many at once as there are places, on as many GPUs as stand, and what stays idle."""

from __future__ import annotations

import pytest

from raysent.errors import ConfigError
from raysent.sweeps.layout import Layout, Machines, idle_parts, layout
from raysent.sweeps.space import Limits

# One GPU; eight in one machine; two machines of four; all with room for four trials on each.
ONE = Machines(cpus=16, gpus=1, trials_per_gpu=4, shapes=((16, 1.0),))
EIGHT = Machines(cpus=64, gpus=8, trials_per_gpu=4, shapes=((64, 8.0),))
TWO_OF_FOUR = Machines(
    cpus=64, gpus=8, cpus_per_node=32, trials_per_gpu=4, shapes=((32, 4.0), (32, 4.0))
)
# Eight GPUs in one machine, and 96 cores in three without one.
MIXED = Machines(
    cpus=112,
    gpus=8,
    cpus_per_node=32,
    trials_per_gpu=4,
    shapes=((16, 8.0), (32, 0.0), (32, 0.0), (32, 0.0)),
)


@pytest.mark.parametrize(
    ("machines", "num_trials", "at_once", "part", "num_gpus"),
    [
        (ONE, 1, 1, 1.0, 1),
        (ONE, 3, 3, 0.3333, 1),
        (ONE, 8, 4, 0.25, 1),
        (ONE, 20, 4, 0.25, 1),
        (ONE, 200, 4, 0.25, 1),
        (EIGHT, 1, 1, 1.0, 1),
        (EIGHT, 3, 3, 1.0, 3),
        (EIGHT, 8, 8, 1.0, 8),
        (EIGHT, 20, 20, 0.3333, 7),
        (EIGHT, 200, 32, 0.25, 8),
        (MIXED, 1, 1, 1.0, 1),
        (MIXED, 3, 3, 1.0, 3),
        (MIXED, 8, 8, 1.0, 8),
        (MIXED, 20, 16, 0.5, 8),
        (MIXED, 200, 16, 0.5, 8),
        (TWO_OF_FOUR, 1, 1, 1.0, 1),
        (TWO_OF_FOUR, 3, 3, 1.0, 3),
        (TWO_OF_FOUR, 8, 8, 1.0, 8),
        (TWO_OF_FOUR, 20, 20, 0.3333, 7),
        (TWO_OF_FOUR, 200, 32, 0.25, 8),
    ],
)
def test_trials_use_the_gpus_that_stand(
    machines: Machines, num_trials: int, at_once: int, part: float, num_gpus: int
) -> None:
    """A GPU to itself while there are enough; several on one where trials would wait else, and a core for each."""
    plan = layout(Limits(), machines, num_trials=num_trials)
    assert (plan.concurrent, plan.gpus_per_worker, plan.num_gpus) == (at_once, part, num_gpus)
    assert machines.num_fitting(plan.cpus_per_worker, plan.gpus_per_worker) >= plan.concurrent


def test_machine_with_few_cores_leaves_no_trial_waiting() -> None:
    """Four of its GPUs have two cores beside them, so that the other machine's are shared."""
    uneven = Machines(
        cpus=34, gpus=8, cpus_per_node=32, trials_per_gpu=4, shapes=((2, 4.0), (32, 4.0))
    )
    plan = layout(Limits(), uneven, num_trials=8)
    assert (plan.concurrent, plan.gpus_per_worker) == (8, 0.5)


def test_machines_that_are_launched_are_as_few_as_hold_the_trials() -> None:
    """Each costs money: a GPU is filled before another machine is asked for."""
    launched = Machines(cpus=64, gpus=8, cpus_per_node=8, trials_per_gpu=4, num_nodes=8)
    plan = layout(Limits(), launched, num_trials=8)
    assert (plan.concurrent, plan.gpus_per_worker, plan.num_gpus) == (8, 0.25, 2)
    assert idle_parts(plan, launched, Limits(), num_trials=8) == []


@pytest.mark.parametrize(
    ("limits", "machines", "num_trials", "lines"),
    [
        ({}, EIGHT, 8, []),
        ({}, EIGHT, 200, []),
        (
            {},
            EIGHT,
            3,
            [
                "5 of 8 GPUs stay idle: 3 trials are left; limits.workers_per_trial gives each several"
            ],
        ),
        ({"concurrent": 2}, EIGHT, 20, ["6 of 8 GPUs stay idle: limits.concurrent is 2"]),
        ({"gpus_per_worker": 0}, EIGHT, 20, ["8 of 8 GPUs stay idle: limits.gpus_per_worker is 0"]),
        (
            {"gpus_per_worker": 0.5},
            EIGHT,
            6,
            ["5 of 8 GPUs stay idle: limits.gpus_per_worker is 0.5, and 6 trials are left"],
        ),
        (
            {},
            MIXED,
            8,
            [
                "96 cores of machines without a GPU stay idle: the trials train on GPUs; "
                "limits.gpus_per_worker=0 trains all of them on cores"
            ],
        ),
        (
            {},
            EIGHT,
            20,
            ["1 of 8 GPUs stay idle: 20 trials are left, and 3 share each of the others"],
        ),
        (
            {},
            Machines(cpus=4, gpus=8, trials_per_gpu=4, shapes=((4, 8.0),)),
            20,
            [
                "4 of 8 GPUs stay idle: each trial needs a core, or as many workers, of its own beside a GPU"
            ],
        ),
    ],
)
def test_what_stays_idle_is_said_with_its_reason(limits, machines, num_trials, lines) -> None:
    """It is paid for, or somebody else's turn."""
    chosen = Limits(**limits)
    plan = layout(chosen, machines, num_trials=num_trials)
    said = idle_parts(plan, machines, chosen, num_trials=num_trials)
    assert said[: len(lines)] == lines
    assert len(said) == len(lines)


def test_workers_of_one_trial_have_whole_gpus() -> None:
    """Two trials of four workers take all eight; a third waits."""
    plan = layout(Limits(workers_per_trial=4), TWO_OF_FOUR, num_trials=3)
    assert plan == Layout(2, 4, 8, 1.0, is_nested=True)
    assert plan.num_gpus == 8


def test_cluster_without_a_core_says_how_workers_come() -> None:
    """Fewer workers of a trial would not help."""
    with pytest.raises(ConfigError, match=r"there are 0 cores .* --set cluster\.workers="):
        layout(Limits(), Machines(cpus=0), num_trials=3)
