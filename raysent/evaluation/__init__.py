"""Models and tasks -> scores: tasks, probes on frozen vectors, and the records that are kept.

- `tasks`: the data sets that models are evaluated on, and what a user's names of them mean
- `protocols`: how a task's rows are divided, and which probe is fitted
- `probes`: features, linear classifiers, their predictions and intervals
- `similarity`: correlation of a model's own similarity with human ratings
- `members`: the models that a user names, and what they cost
- `evaluate`: models x tasks -> scores, as jobs
- `records`: what an evaluation finds, and the files that keep it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysent.registry import import_name

if TYPE_CHECKING:
    from raysent.evaluation.baselines import below_start
    from raysent.evaluation.evaluate import Evaluator, Job, MapJobs
    from raysent.evaluation.members import Costs, Member, Model, expand, is_model
    from raysent.evaluation.protocols import PROTOCOLS, protocol_name
    from raysent.evaluation.records import (
        SIMILARITY,
        AnyScore,
        MtebScore,
        Record,
        Score,
        SimilarityScore,
        library_versions,
        read_scores,
    )
    from raysent.evaluation.tasks import PROBED, TASKS, Task, absent_tasks, check_data, find_task, resolve_tasks

# Imported at the first use: some of these need libraries that readers of others do not wait for.
_MODULE_OF = {
    "AnyScore": "records",
    "below_start": "baselines",
    "Costs": "members",
    "Evaluator": "evaluate",
    "Job": "evaluate",
    "MapJobs": "evaluate",
    "Member": "members",
    "Model": "members",
    "MtebScore": "records",
    "PROBED": "tasks",
    "PROTOCOLS": "protocols",
    "Record": "records",
    "SIMILARITY": "records",
    "Score": "records",
    "SimilarityScore": "records",
    "TASKS": "tasks",
    "Task": "tasks",
    "absent_tasks": "tasks",
    "check_data": "tasks",
    "expand": "members",
    "find_task": "tasks",
    "is_model": "members",
    "library_versions": "records",
    "protocol_name": "protocols",
    "read_scores": "records",
    "resolve_tasks": "tasks",
}

__all__ = [
    "PROBED",
    "PROTOCOLS",
    "SIMILARITY",
    "TASKS",
    "AnyScore",
    "Costs",
    "Evaluator",
    "Job",
    "MapJobs",
    "Member",
    "Model",
    "MtebScore",
    "Record",
    "Score",
    "SimilarityScore",
    "Task",
    "absent_tasks",
    "below_start",
    "check_data",
    "expand",
    "find_task",
    "is_model",
    "library_versions",
    "protocol_name",
    "read_scores",
    "resolve_tasks",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    return import_name(__name__, _MODULE_OF, name)
