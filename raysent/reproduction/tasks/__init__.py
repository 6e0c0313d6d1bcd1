"""The tasks of SentEval's folder layout; found by entry points."""
