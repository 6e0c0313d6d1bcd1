r"""Files of sentence pairs -> two columns of text with labels or scores, and the same as ids.

Understood are tab-separated lines, PPDB's ``|||`` and one JSON object a line, each also gzipped: so the published forms
of PPDB, SNLI and MultiNLI (`gold_label` "-" is left out), SICK, simplified Wikipedia, Quora, and the sets of STS. Lines
end at "\n" alone, and nothing is quoted.

- `config`: which file, and which of its columns
- `texts`: pairs as text and as ids
- `files`: reading them
- `sts`: reading the sets of an STS folder
- `splits`: pairs to learn from and pairs held out, and their words
"""

from raysent.pairs.config import PairsConfig
from raysent.pairs.files import read_pairs
from raysent.pairs.splits import PairCorpus
from raysent.pairs.sts import read_sts
from raysent.pairs.texts import EncodedPairs, PairTexts, take_rows

__all__ = ["EncodedPairs", "PairCorpus", "PairTexts", "PairsConfig", "read_pairs", "read_sts", "take_rows"]
