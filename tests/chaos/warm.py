"""What every driver needs, read and compiled once, by the process that drivers are forked from."""

import sklearn.linear_model  # noqa: F401

from raysent.kernels.native import try_load
from raysent.reproduction.reported import reported_tables

reported_tables()
for _name in ("cross_entropy", "gru", "row_adam", "text"):
    try_load(_name)
