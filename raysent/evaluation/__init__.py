"""Models and tasks -> scores: tasks, probes on frozen vectors, and the records that are kept.

- `tasks`: the data sets that models are evaluated on, and what a user's names of them mean
- `protocols`: how a task's rows are divided, and which probe is fitted
- `probes`: features, linear classifiers, their predictions and intervals
- `similarity`: correlation of a model's own similarity with human ratings
- `nearest`, `retrieval`: exact search, and how well a model ranks passages for queries
- `members`: the models that a user names, and what they cost
- `task_kinds`: what the kind of a task decides; `task_set`: the tasks of a sweep
- `evaluate`: models x tasks -> scores, as jobs
- `records`: what an evaluation finds, and the files that keep it
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
