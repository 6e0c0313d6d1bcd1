"""Every model of the five papers, trained small with one allowance of processor time, judged alike, in one table.

    python -m benchmarks.papers --data DIR --output FOLDER [--seconds 90] [--processes 2] [--only NAME,NAME]

`rows.yaml` says what a row is; DIR is laid out as `docs/data.md` says. What is done is kept: a second call goes on.
"""
