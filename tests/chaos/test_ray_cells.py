"""The cells of the kill matrix that hang on Ray, with real processes: by `make chaos` alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from caches import own_cache
from object_store import CREDENTIALS

from chaos.driver import NODES_VARIABLE
from chaos.faults import FAULTS
from chaos.matrix import RAY_CELLS, Cell
from chaos.moments import MOMENTS
from chaos.ray_stage import RayStage, fill, ray_cluster
from chaos.store import Store, object_store
from chaos.verdict import HOW, check_ledger, go_on_to_the_end
from raysent.training.ray_session import node_name

# A moment has fewer sights here: signs of life come once a second.
NUM_SIGHTS = {"training": 3}


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """An object store of this machine."""
    with object_store() as store:
        yield store


@pytest.fixture(scope="module")
def cluster(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster whose nodes know the store."""
    cache = own_cache(tmp_path_factory.mktemp("nodes"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL_S3": store.url,
            "RAYSENT_CACHE": cache,
            NODES_VARIABLE: cache,
        }.items():
            patch.setenv(name, value)
        with ray_cluster() as cluster:
            yield cluster


@pytest.fixture
def stage(
    cell: Cell, cluster: Any, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RayStage]:
    """A stage on the cluster; this process sees its run from a machine of its own."""
    fill(cluster)
    monkeypatch.setattr(RayStage, "cluster", cluster)
    nodes = tuple(node_name(node.node_id) for node in [cluster.head_node, *cluster.worker_nodes])
    stage = RayStage(
        tmp_path / "stage", store if cell.fault.startswith("storage") else None, machines=nodes
    )
    monkeypatch.setenv("RAYSENT_CACHE", own_cache(tmp_path / "elsewhere"))
    yield stage
    stage.close()


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")  # Ray's own, of its imports and of its sockets
@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.name) for cell in RAY_CELLS])
def test_ray_cell(cell: Cell, stage: RayStage, tell: Any) -> None:
    """The fault strikes at the moment; then the run is gone on with, and nothing is lost."""
    tell(cell=(cell.fault, cell.moment), where="on Ray")
    chance = cell.chance
    stage.sweep(
        moment=cell.moment,
        nth=chance.randint(1, NUM_SIGHTS.get(cell.moment, MOMENTS[cell.moment].num_sights)),
    )
    machine = stage.wait()
    stage.go_on(FAULTS[cell.fault].strike(stage, machine, chance))
    ending = stage.ending()
    tell(how=HOW.get(ending.code, f"exit code {ending.code}"))
    found = go_on_to_the_end(stage, ending)
    check_ledger(stage, found, killed_s=ending.at_s)
