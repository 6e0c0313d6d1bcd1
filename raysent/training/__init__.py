"""One training run: a `RunConfig` and a folder -> a trained model in that folder.

- `run`: the settings of a run, and `run.json`
- `data`: its text and vocabulary
- `plan`: its model, batches, validation set and number of steps
- `loop`: `fit`, the training loop in plain PyTorch: step, validate, save, report
- `optimization`: gradient clipping, learning rate, dense and row-exact Adam
- `workers`: several processes with one loss
- `checkpoint`: everything that is needed to continue bit for bit
- `interruptions`: when to save between reports
- `outcome`: reports, and how a run ended
- `validation`: the fixed validation set that all trials share
- `ray_train`: the same loop on Ray Train workers
- `ray_session`: a connection to Ray, and independent jobs on a cluster
"""
