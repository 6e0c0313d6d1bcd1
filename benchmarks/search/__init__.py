"""A table of real trials, and replays of searches on it.

    python -m benchmarks.search build     train the trials that are missing (an hour of a core)
    python -m benchmarks.search collect   write the scalars of all trials to the repository
    python -m benchmarks.search compare   replay of searches on the table

`table` describes the columns, `trials` what is trained, `evaluation` what is measured of a model.
"""
