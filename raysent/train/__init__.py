"""One run on Ray Train workers: the loop of `trainer.fit`, once in every process of a torch.distributed group.

In: a `RunConfig` and a folder, on several nodes a shared one. Out: the folder, exactly as `trainer.fit` leaves it. The
run's own checkpoints are the truth: Ray's are not used, and a worker that is killed is started again and goes on from
the last of ours.

- `session`: being connected to Ray
- `workers`: one worker, what starts them all, and what they leave
- `whole`: `train`: from a command to an outcome
"""

from __future__ import annotations

from raysent.train.session import cpus_of_largest_node, node_name, quiet_output, quiet_ray, ray_session
from raysent.train.whole import train
from raysent.train.workers import make_trainer, train_worker, trained

__all__ = [
    "cpus_of_largest_node",
    "make_trainer",
    "node_name",
    "quiet_output",
    "quiet_ray",
    "ray_session",
    "train",
    "train_worker",
    "trained",
]
