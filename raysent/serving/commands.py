"""The command `serve`: a model over HTTP."""

from __future__ import annotations

import contextlib
import os
from typing import Annotated

import typer

import raysent
from raysent.cli.options import ModelArgument, SetOption, arguments_of
from raysent.cli.wings import Command
from raysent.progress import messages


def serve(
    model: ModelArgument,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDRESS", help="Any but 127.0.0.1 needs RAYSENT_SERVE_TOKEN."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=1, max=65535, help="Port to listen on.")
    ] = 8000,
    overrides: SetOption = None,
) -> None:
    """Serve a model's predictions, and its vectors with the interface of OpenAI's embeddings.

    Answers POST /v1/predict for what 'raysent predict' takes, /v1/embeddings for a model with vectors of one size,
    /v1/search for a folder that 'raysent index' wrote in place of a model; /health, /metrics, /docs and a page to try
    it. A token is read from RAYSENT_SERVE_TOKEN. A signal to stop lets requests in flight end. --set takes limits of
    the server: normalize=false, for vectors as the model returns them; max_batch=512 texts encoded together;
    max_waiting=8192 texts that may wait; wait_s=0.002, seconds to wait for more of others; model=PATH of an index.
    """

    def say_where() -> None:
        messages.print(f"serving {model} on http://{host}:{port}; stop with Ctrl-C", soft_wrap=True)

    token = os.environ.get("RAYSENT_SERVE_TOKEN") or None
    config = raysent.ServerConfig(token=token, **arguments_of(raysent.ServerConfig, overrides))
    with contextlib.suppress(KeyboardInterrupt):  # the signal to stop, after the requests in flight
        raysent.serve(model, host=host, port=port, config=config, on_ready=say_where)


COMMANDS = {"serve": Command(serve, "Models")}
