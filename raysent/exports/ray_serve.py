"""Replicas of `raysent serve` on a Ray cluster, by Ray Serve.

    deployment(model)        -> an application for `serve.run`
    build({"model": PATH})   -> the same from text, for `serve run` and Ray Serve's configuration files

Each replica loads the model and has its own queue and limits; Ray Serve distributes requests among the replicas. Their
answers are the same bits. `/metrics` are those of the replica that answers.

Source: Ray Serve's `serve.ingress`, which runs an ASGI application in each replica.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pydantic
import torch

from raysent.config import Document, StrictModel, validate
from raysent.errors import ConfigError
from raysent.exports.server import ServerConfig, make_application
from raysent.models.schemes import is_scheme_name
from raysent.storage import open_folder, to_uri

# Requests that a replica has at the same time; more wait in Ray Serve.
_ONGOING = 256
_NAME = "raysent"
# Ray Serve's packages that Ray alone does not need.
_NEEDED = ("grpc_reflection", "fastapi", "uvicorn", "watchfiles")


class ServeArguments(StrictModel):
    """Arguments of `build`, as text; names and meanings are those of `deployment` and `ServerConfig`."""

    model_config = pydantic.ConfigDict(strict=False)

    model: str
    replicas: int = 2
    cpus: float = 1.0
    normalize: bool = True


def deployment(
    model: str | Path, *, num_replicas: int = 2, num_cpus: float = 1.0, config: ServerConfig | None = None
) -> Any:
    """Return an application of Ray Serve, for `serve.run`.

    Args:
        model: A model or an ensemble by name; every machine of the cluster must be able to load it.
        num_replicas: Processes that each have the model.
        num_cpus: Cores of each, which are also torch's threads.
        config: Limits of each replica; those of connections are Ray Serve's own.

    Raises:
        ConfigError: If Ray Serve is not installed, or a number is wrong.
        RaysentError: If the model is in a bucket that cannot be read.
    """
    if num_replicas < 1 or num_cpus <= 0:
        raise ConfigError(f"replicas and cpus: must be above 0; given {num_replicas} and {num_cpus:g}")
    serve = _ray_serve()
    name = str(model) if is_scheme_name(str(model)) else to_uri(open_folder(model))
    limits, num_threads = config or ServerConfig(), max(1, int(num_cpus))

    def application() -> Any:
        torch.set_num_threads(num_threads)
        return make_application(name, limits)

    replica = serve.deployment(
        serve.ingress(application)(),
        name=_NAME,
        num_replicas=num_replicas,
        max_ongoing_requests=_ONGOING,
        ray_actor_options={"num_cpus": num_cpus},
    )
    return replica.bind()


def build(arguments: Mapping[str, Any]) -> Any:
    """Return the application of `deployment` from arguments as text; a token is read from RAYSENT_SERVE_TOKEN.

        serve run raysent.exports.ray_serve:build model=runs/first/trials/0003 replicas=4

    Raises:
        ConfigError: If one is unknown or wrong.
    """
    given = validate(ServeArguments, Document(dict(arguments), source="arguments"))
    config = ServerConfig(token=os.environ.get("RAYSENT_SERVE_TOKEN") or None, normalize=given.normalize)
    return deployment(given.model, num_replicas=given.replicas, num_cpus=given.cpus, config=config)


def _ray_serve() -> Any:
    """Return the module of Ray Serve.

    Raises:
        ConfigError: If it is not installed.
    """
    if any(find_spec(name) is None for name in _NEEDED):
        raise ConfigError("Ray Serve: needs packages of its own; install raysent[ray-serve]")
    return import_module("ray.serve")
