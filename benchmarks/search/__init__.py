"""Replays of searches on a table of real trials: `python -m benchmarks.search [--orders 100] [--only POLICY]`.

`table` describes the table, `compare` what is printed; `--output FOLDER` reads trials with log-probabilities.
"""
