"""`index` and `search`: a folder of passages made, and searched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import raysent
from raysent.errors import DataError
from raysent.models.sentence_encoder import DOCUMENT_PROMPTS
from raysent.passages.index import Hit, SearchIndex
from raysent.storage import is_remote, remove_folder

if TYPE_CHECKING:
    from raysent.exports.corpus import EncodedCorpus


def index(
    model: str | Path, input: str | Path | Sequence[str | Path], output: str | Path, **options: Any
) -> EncodedCorpus:
    """Make a folder of passages that `search` searches by vectors and by words; another call adds what is new.

    Args:
        model: As for `encode_corpus`; its prompt for documents is put before each passage.
        input: Text, as for `encode_corpus`: each line or row is a passage.
        output: The folder, also in ``s3://``.
        options: Further arguments of `encode_corpus`; with ``precision="int8"`` a search needs 1/32 of the memory.

    Raises:
        RaysentError: As `encode_corpus`; or if there are no passages, or bm25s is not installed.
    """
    is_new = not is_remote(output) and not Path(output).exists()
    encoded = raysent.encode_corpus(
        model, input, output, **{"prompt_name": DOCUMENT_PROMPTS, **options}
    )
    if not encoded.stopped:
        made = SearchIndex(output)
        if not made.num_passages:
            if is_new:
                remove_folder(Path(output), below=Path(output).parent)
            paths = [input] if isinstance(input, str | Path) else input
            raise DataError(f"{', '.join(map(str, paths))}: must hold passages; given none")
        made.save_derived()
    return encoded


def search(
    index: str | Path,
    queries: str | Sequence[str],
    *,
    k: int = 10,
    by: str | None = None,
    weight: float | None = None,
    model: str | Path | None = None,
) -> list[list[Hit]]:
    """Return the best passages of a folder that `index` made, for each query; `SearchIndex` keeps it open.

    Args:
        index: The folder.
        queries: One query, or several.
        k: Passages of each query.
        by: As for `SearchIndex.search`: ``vectors``, ``words`` or ``fused``.
        weight: As for `SearchIndex.search`.
        model: The model that encoded the folder, if it is elsewhere by now.

    Raises:
        RaysentError: If an argument is wrong, the folder is none or damaged, or a library is needed and not installed.
    """
    return SearchIndex(index, model=model).search(queries, k=k, by=by, weight=weight)
