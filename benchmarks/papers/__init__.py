"""Every model of the five papers, trained at a small size with the same processor time, evaluated alike, in one table.

    python -m benchmarks.papers --data DIR --output FOLDER [--seconds 90] [--processes 2] [--only NAME,NAME]

`rows.yaml` defines the rows; `docs/data.md` describes DIR. Finished rows are kept: a second call continues.
"""
