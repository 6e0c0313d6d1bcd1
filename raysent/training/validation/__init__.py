"""The fixed validation set that every trial of a sweep is scored on.

- `names`: the metrics that a run reports
- `config`: settings of a run's validation
- `pool`: contexts from the corpus' validation split, `context_accuracy` and `context_nll`
- `metrics`: held-out batches of the objective, similarities of pairs with human ratings, downstream tasks; and the
  validation set of one run
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
