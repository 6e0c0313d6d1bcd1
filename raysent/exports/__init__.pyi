from .corpus import EncodedCorpus as EncodedCorpus
from .encode import encode_corpus as encode_corpus
from .folder import Check as Check
from .folder import Export as Export
from .folder import export as export
from .formats import FORMATS as FORMATS
