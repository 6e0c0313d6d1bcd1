"""Exports: a trained model or an ensemble as a folder that other libraries read.

- `export`: writes a folder for a target, compares it with the model, and adds a model card
- `formats`: the registry of targets, one file each
- `tokenizer`: a vocabulary as `tokenizer.json`
- `card`: the model card
- `corpus`: many files of text as a folder of vectors
- `search`: such a folder searched by vectors and by words
- `server`: vectors over HTTP; `application` has the answers and the queue
- `mteb`: a model for the mteb package
- `modeling_raysent`: the code that an export for sentence-transformers contains
"""

from raysent.exports.corpus import EncodedCorpus
from raysent.exports.folder import Check, Export, export
from raysent.exports.formats import FORMATS
from raysent.exports.search import read_queries
from raysent.exports.server import ServerConfig, serve

__all__ = [
    "FORMATS",
    "Check",
    "EncodedCorpus",
    "Export",
    "ServerConfig",
    "export",
    "read_queries",
    "serve",
]
