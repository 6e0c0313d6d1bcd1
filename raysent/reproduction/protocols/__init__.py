"""The protocols of two papers and of SentEval, as they were published; found by entry points."""
