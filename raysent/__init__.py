"""Train sentence encoders, search their hyperparameters across a cluster, and combine the best into ensembles.

>>> sweep = raysent.sweep("quick_thoughts", corpus="books/", trials=24)
>>> model = raysent.train("quick_thoughts", corpus="books/")
>>> scores = raysent.evaluate([model, "hash:50"], tasks=["MR", "TREC"])
>>> both = raysent.ensemble([model, "hash:50"], tasks=["TREC"])
>>> student = raysent.distill(both, into="bag").model
>>> vectors = raysent.load("runs/one").encode(["A sentence."])
"""

import os

import lazy_loader

__version__ = "0.2.0"

# The public names are listed in `__init__.pyi` and imported at the first use, so that `import raysent` does not wait
# for torch and Ray.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]

# A thread that waits for the others of a product sleeps soon, unless the user has chosen. By default it spins for
# milliseconds. Beside another program that uses the cores it then takes the time of the very threads that it waits for:
# training took 2 to 34 times as long (`benchmarks/results/speed.md`). Libraries read this when they are loaded, so it
# has no effect where torch or scikit-learn was imported before raysent.
if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
    os.environ["GOMP_SPINCOUNT"] = "1000"
