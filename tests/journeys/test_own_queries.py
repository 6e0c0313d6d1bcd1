"""From a folder of passages and a table of queries to a search that is served: the path of the page on search."""

from __future__ import annotations

import csv
import json

import pytest
from material import SMALL, write_questions


@pytest.mark.journey
@pytest.mark.cluster
def test_own_queries_become_a_served_search(user, serving):
    """Sweep by the queries of dev, index by what is best, search and serve: each in a process of its own."""
    write_questions(user.folder / "passages", user.folder / "asked.csv")
    sweep = [
        "sweep",
        "quick_thoughts",
        "--corpus",
        "books/",
        "--metric",
        "asked.csv",
        "--run",
        "runs/first",
    ]
    said = user(*sweep, "--trials=1", "--yes", *SMALL)
    assert "Your model: runs/first/best (" in said
    assert "nDCG@10 " in said

    user("index", "runs/first", "passages", "-o", "index")
    with (user.folder / "asked.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {
        None: json.loads(user("search", "index", "--queries", "asked.csv", "-k", "5", "--json"))[
            "results"
        ]
    }
    lines = (
        "import json, raysent\nfrom dataclasses import asdict\n"
        f"asked, index = {[row['query'] for row in rows]!r}, raysent.SearchIndex('index')\n"
        "for by in ('vectors', 'words', 'fused'):\n"
        "    print(json.dumps([[asdict(hit) for hit in hits] for hits in index.search(asked, k=5, by=by)]))\n"
    )
    searched = map(json.loads, user.python(lines).splitlines())
    found |= dict(zip(("vectors", "words", "fused"), searched, strict=True))
    assert found[None] in (found["vectors"], found["words"], found["fused"])
    is_right = [
        any(hit["text"] == row["passage"] for hit in hits)
        for hits, row in zip(found["words"], rows, strict=True)
    ]
    assert sum(is_right) >= 0.9 * len(rows)

    with serving("index") as ask:
        for by, expected in found.items():
            body = {"input": [row["query"] for row in rows], "k": 5} | (
                {} if by is None else {"by": by}
            )
            for hits, searched in zip(ask("v1/search", body)["results"], expected, strict=True):
                assert [hit["text"] for hit in hits] == [hit["text"] for hit in searched]
                assert [hit["score"] for hit in hits] == pytest.approx(
                    [hit["score"] for hit in searched], abs=1e-6
                )
