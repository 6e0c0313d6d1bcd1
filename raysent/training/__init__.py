"""One training run: a `RunConfig` and a folder -> a trained model in that folder.

- `run`: what a run is, and the files of its folder
- `data`: the text, the words and the batches that a run's settings name
- `plan`: its steps and reports, and what is checked before it starts
- `loop`: `fit`, the plain PyTorch loop: step, validate, save, report; no Ray in it
- `optimization`: gradient clipping, learning rate, dense and row-exact Adam
- `workers`: several processes with one loss
- `checkpoint`: everything needed to continue bit for bit, and when to save it
- `outcome`: what a run reports and how it ended
- `validation`: the fixed validation set that all trials share
- `ray_train`: the same loop on Ray Train workers
- `spread`: independent jobs over the cores of a Ray cluster
"""
