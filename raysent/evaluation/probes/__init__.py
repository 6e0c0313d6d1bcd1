"""Probes: linear models on frozen vectors, which protocols fit.

- `features`: sentences -> the features of a row
- `lexical_features`: the same by TF-IDF, and what its probes predict; `lexical`: fits of these probes
- `logistic`: many L2 logistic regressions, solved as one batched problem
- `relatedness`: probes that predict a score as a distribution over rating levels
- `results`: predictions, scores and their intervals
"""
