"""Every cell of the kill matrix ends in a finished sweep or one clear line, and a resume finishes the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from caches import own_cache

from chaos.cloud_stage import CloudStage, check_cloud
from chaos.faults import FAULTS
from chaos.matrix import CELLS, QUICK, Cell
from chaos.moments import MOMENTS
from chaos.priced_stage import SPOT_USD_PER_HOUR, TYPE, PricedStage, check_prices
from chaos.prices import price_source
from chaos.stage import Stage
from chaos.store import Store, object_store
from chaos.verdict import HOW, Found, check_ledger, check_same, go_on_to_the_end, look


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    """An object store of this machine."""
    with object_store() as store:
        yield store


@pytest.fixture(scope="session")
def references() -> dict[int, Found]:
    """Epochs of a trial -> the sweep where nothing goes wrong."""
    return {}


@pytest.fixture
def undisturbed(
    stage: Stage, references: dict[int, Found], tmp_path_factory: pytest.TempPathFactory
) -> Found:
    """The sweep of the cell, where nothing goes wrong."""
    if stage.epochs not in references:
        plain = type("PlainStage", (Stage,), {"epochs": stage.epochs})(
            tmp_path_factory.mktemp("undisturbed"), None
        )
        plain.sweep()
        ending = plain.ending()
        assert ending.code == 0, ending.errors
        references[stage.epochs] = look(plain)
        check_ledger(plain, references[stage.epochs], killed_s=0.0)
    return references[stage.epochs]


def _marked(cell: Cell) -> Any:
    marks = [
        pytest.mark.chaos,
        *([pytest.mark.quick] if (cell.fault, cell.moment) in QUICK else []),
    ]
    return pytest.param(cell, id=cell.name, marks=marks)


@pytest.fixture
def stage(
    cell: Cell, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    """A stage; this process sees it from a machine of its own."""
    with price_source(TYPE, usd_per_hour=SPOT_USD_PER_HOUR) as source:
        monkeypatch.setattr(PricedStage, "source", source, raising=False)
        place = FAULTS[cell.fault].place
        kind = (
            CloudStage
            if place == "cloud"
            else PricedStage
            if cell.fault == "price source down"
            else Stage
        )
        stage = kind(tmp_path / "stage", None if place == "disk" else store)
        for name, value in {
            **stage.env,
            "RAYSENT_CACHE": own_cache(tmp_path / "elsewhere"),
        }.items():
            monkeypatch.setenv(name, value)
        yield stage
        stage.close()


@pytest.mark.parametrize("cell", [_marked(cell) for cell in CELLS])
def test_cell(cell: Cell, stage: Stage, undisturbed: Found, tell: Any) -> None:
    """The fault strikes at the moment, the seed says at which of its sights; then the run is gone on with."""
    tell(cell=(cell.fault, cell.moment), where="without Ray")
    chance = cell.chance
    stage.sweep(moment=cell.moment, nth=chance.randint(1, MOMENTS[cell.moment].num_sights))
    machine = stage.wait() or "one"
    stage.go_on(FAULTS[cell.fault].strike(stage, machine, chance))
    ending = stage.ending()
    tell(how=HOW.get(ending.code, f"exit code {ending.code}"))
    found = go_on_to_the_end(stage, ending)
    check_same(found, undisturbed)
    check_ledger(stage, found, killed_s=ending.at_s)
    if isinstance(stage, CloudStage):
        check_cloud(stage, found, cell.fault, ending)
    if isinstance(stage, PricedStage):
        assert ending.code == 0
        check_prices(stage, found)
