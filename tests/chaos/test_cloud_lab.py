"""The whole path on a cloud of this computer: the cells of `lab_cells.py`, in one lab.

Some cells run beside each other, each with a cluster of its own or one whose head stays: most of their time they wait
for machines that end themselves.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from chaos.lab import KEPT_FOLDER, can_run, cloud_lab
from chaos.lab_cells import CELLS, Cell, Outcome, Shared, cluster_name, in_order

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.cluster,
    pytest.mark.skipif(not can_run(), reason="needs namespaces, which root has on Linux"),
]
# Cells at the same time.
AT_ONCE = int(os.environ.get("LAB_AT_ONCE", "4"))
Outcomes = dict[str, Future[tuple[Outcome, float]]]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """The selected cells, which run; name -> how each ends, and its seconds."""
    selected = [
        item.callspec.params["cell"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "outcomes" in item.fixturenames
    ]
    folder = Path(KEPT_FOLDER or tempfile.mkdtemp(prefix="lab", dir="/tmp"))
    folder.mkdir(exist_ok=True)
    with cloud_lab(folder) as lab:
        shared, pool = Shared(lab), ThreadPoolExecutor(AT_ONCE)
        try:
            yield {cell.name: pool.submit(_run, shared, cell) for cell in in_order(selected)}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run(shared: Shared, cell: Cell) -> tuple[Outcome, float]:
    began = time.monotonic()
    facts = {"cell": cell.name}
    try:
        outcome = cell.run(shared, cluster_name(cell))
        facts |= {"how": outcome.how, "bill": outcome.bill}
    except BaseException as error:
        facts |= {"how": f"FAILED: {error!r}"}
        raise
    finally:
        seconds = time.monotonic() - began
        with (shared.lab.folder / "outcomes.jsonl").open("a") as stream:
            stream.write(json.dumps(facts | {"seconds": round(seconds)}) + "\n")
    return outcome, seconds


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id=cell.name, marks=[] if cell.is_quick else [pytest.mark.cloud])
        for cell in CELLS
    ],
)
def test_nothing_is_left_and_nothing_in_use_is_ended(
    outcomes: Outcomes, cell: Cell, record_property
) -> None:
    """Each cell checks what is left, who was ended, and the ledger."""
    outcome, seconds = outcomes[cell.name].result()
    record_property("lab", (cell.name, outcome.how, seconds))
    record_property("bill", outcome.bill)
