"""Other programs that raysent works with: trackers of sweeps, and benchmarks of others; found by entry points.

mlflow_runs.py, tensorboard.py, wandb_runs.py  send a sweep's trials to a tracker while it runs, or afterwards
mteb.py                                        a model as mteb takes it, and models on mteb's tasks
"""
