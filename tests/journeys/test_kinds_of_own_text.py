"""Uni, bi and multichannel encoders of one's own text by one command, killed and resumed, and codes of the winner."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal

import pytest
from material import SMALL

pytestmark = pytest.mark.cluster


@pytest.mark.journey
def test_one_command_has_a_member_of_each_kind_and_codes_of_the_winner(user, until):
    """`kill -9` in mid-sweep; after `resume` the three kinds predict together, and the last line's command runs."""
    command = ["sweep", "quick_thoughts", "--corpus", "books/", "--task", "reviews.csv"]
    small = ["--set=evaluation.baselines=false", "--with=none", *SMALL]
    killed = user.start(*command, "--trials=6", "--yes", "--run", "runs/books", *small)
    journal = user.folder / "runs" / "books" / "journal.jsonl"
    until(lambda: journal.exists() and '"event": "report"' in journal.read_text(), killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (user.folder / "runs/books/kinds").exists()

    said = user("resume", "runs/books")
    trials = "import raysent; print(*raysent.Sweep('runs/books').trials.sort_index().family)"
    assert user.python(trials).split() == ["uni", "bi", "multichannel"] * 2
    kinds = json.loads((user.folder / "runs/books/kinds/kinds.json").read_text())
    assert {one["kind"] for one in kinds["kinds"]} == {"uni", "bi", "multichannel"}
    assert all(one["has_ended"] for one in kinds["kinds"])
    for one in kinds["kinds"]:
        assert re.search(rf"^{one['kind']} +{one['member']} ", said, re.MULTILINE)
        assert one["adds"]["interval"][0] <= one["adds"]["value"] <= one["adds"]["interval"][1]
    assert "\nEnsemble of the kinds: runs/books/kinds " in said

    (user.folder / "runs/books/kinds").rename(user.folder / "kinds")  # it stands alone
    texts = ["The hotel by the rose was easy.", "The train by the oath was rude."]
    loaded = f"import raysent; print(raysent.load('kinds').predict({texts!r}))"
    assert user.python(loaded).strip() == "['positive', 'negative']"

    [last] = re.findall(r"^Binary codes of its encoder: raysent (.*)$", said, re.MULTILINE)
    user(
        *shlex.split(last),
        "--run=runs/codes",
        "--trials=2",
        "--yes",
        "--with=none",
        "--set=search.code={choice: [random_projection]}",
        "--set=evaluation.baselines=false",
        "--set=validation={num_sentences: 60}",
    )
    assert (user.folder / "runs/codes/trials/0000/model.json").exists()
