"""Where jobs of judging are done: in turn, in several processes, or on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import raysent.ensembles  # noqa: F401 - lets models be ensembles, in processes of their own too
from raysent.errors import ConfigError
from raysent.evaluation.evaluate import Job, MapJobs, Result, run_job
from raysent.training.ray_session import map_on_ray


@dataclass(frozen=True)
class Over:
    """Over what jobs are spread: so many processes, or a cluster; with neither, they are done in turn."""

    processes: int | None
    address: str | None

    def map_jobs(self) -> MapJobs | None:
        """Return what spreads them.

        Raises:
            ConfigError: If both are asked for.
        """
        if self.processes is not None and self.address is not None:
            raise ConfigError("--processes and --address: must not both be given; a cluster has its own cores")
        if self.processes in (None, 1) and self.address is None:
            return None
        return partial(map_on_ray, _run_any_job, num_cpus=self.processes, address=self.address)


def _run_any_job(job: Job) -> Result:
    """Evaluate a model, or an ensemble, which this module's imports can load."""
    return run_job(job)
