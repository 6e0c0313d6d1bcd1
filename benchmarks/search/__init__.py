"""What a sweep ranks by, how it searches, and which members it takes, measured on a table of real trials.

    python -m benchmarks.search build     train the trials that are missing (an hour of a core)
    python -m benchmarks.search collect   write the scalars of all trials to the repository
    python -m benchmarks.search metrics   how well each metric predicts final test accuracy
    python -m benchmarks.search policies  replay of searches on the table
    python -m benchmarks.search members   members chosen greedily, and by rank

`table` describes the columns, `trials` what is trained, `evaluation` what is measured of a model.
"""
