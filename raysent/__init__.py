"""Train sentence encoders, search their hyperparameters across a cluster, and combine the best into ensembles."""

__version__ = "0.1.0"
