"""Probes: linear models on frozen vectors, which protocols fit.

- `features`: sentences -> the features of a row
- `logistic`: many L2 logistic regressions, solved as one batched problem
- `relatedness`: probes that predict a score as a distribution over rating levels
- `results`: predictions, scores and their intervals
"""
