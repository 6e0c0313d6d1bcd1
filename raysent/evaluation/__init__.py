"""Models and tasks -> scores: what a task is, the probes fitted on frozen vectors, and the records that are kept.

- `tasks`: one registry of the data sets that a model is evaluated on
- `probes`: classifiers on frozen vectors, one module a protocol
- `evaluate`: models x tasks -> scores and records
- `similarity`: correlation of a model's own similarity with human ratings; nothing is trained
- `members`: which models a path names, and what they cost
- `records`: what is kept of one model on one task
- `jobs`: one model on one task, as a unit of work
- `inventory`: which tasks a data folder holds
"""
