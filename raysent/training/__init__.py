"""One training run: a `RunConfig` and a folder -> a trained model in that folder.

- `run`: the settings of a run, and `run.json`
- `data`: its text and vocabulary
- `plan`: its model, batches, validation set and number of steps
- `duration`: how long it trains, guessed or measured
- `loop`: `fit`, the training loop in plain PyTorch: step, validate, save, report
- `optimization`: gradient clipping, learning rate, dense and row-exact Adam
- `workers`: several processes with one loss
- `memory`: what a run needs, and what a process of runs holds
- `checkpoint`: everything that is needed to continue bit for bit
- `interruptions`: when to save between reports
- `targets`: what a teacher returns for each sentence of the text
- `students`: the run that distills a teacher
- `retraining`: a finished run trained again, from its weights or from scratch
- `outcome`: reports, and how a run ended
- `validation`: the fixed validation set that all trials share
- `ray_train`: the same loop on Ray Train workers
- `ray_session`: a connection to Ray, and independent jobs on a cluster
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
