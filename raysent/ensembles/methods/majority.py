"""The most frequent class, whatever the members predict; where no model is better, nothing else is worth its time."""

from __future__ import annotations

import numpy as np

from raysent.ensembles.methods import Diagnostics
from raysent.ensembles.pools import Regression
from raysent.ensembles.predictions import MemberPredictions
from raysent.evaluation.targets import Targets


def most_frequent(predictions: MemberPredictions, targets: Targets) -> tuple[Regression, Diagnostics]:
    """Probabilities are the classes' parts of the rows, each with half a row more, so that none is 0."""
    members, _, classes = predictions.shape
    counts = np.bincount(targets.labels, minlength=classes) + 0.5
    return Regression(np.zeros((members, classes, classes)), np.log(counts / counts.sum())), {}


METHODS = {"majority": most_frequent}
