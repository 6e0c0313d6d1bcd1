"""CLI of `raysent export` and `serve`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from raysent.cli.console import messages, print_json, results
from raysent.cli.options import JsonOption, opened_name

export_app = typer.Typer()


@export_app.command()
def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Folder of a training, a trial or an ensemble, also in s3://.", parser=opened_name
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The new folder.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="sentence-transformers: any model, with code of its own; static: its StaticEmbedding, for a bag of "
            "one tower; onnx: a graph and a tokenizer, for a single model.",
        ),
    ] = "sentence-transformers",
    license: Annotated[
        str | None,
        typer.Option(
            "--license",
            metavar="NAME",
            help="License on the model card: an identifier of the hub, such as apache-2.0, or 'other: NAME'.",
        ),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option("--push", metavar="OWNER/NAME", help="Also upload the folder as a model of the Hugging Face hub."),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="A model that --push creates is public.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a model for another library.

    The folder holds a model card. It appears only after it gave the model's own vectors on 200 sentences. --push needs
    the token of the hub's own client: HF_TOKEN, or that of 'hf auth login'.
    """
    from raysent.exports import export as write
    from raysent.exports import push as upload

    done = write(model, output, to=to, license=license)
    address = None if push is None else upload(done.folder, push, is_public=public)
    if as_json:
        check = done.check
        print_json(
            {
                "folder": str(done.folder),
                "to": to,
                "sentences": check.num_sentences,
                "other_ids": check.num_other_ids,
                "difference": check.difference,
                "bound": check.bound,
                **({} if address is None else {"pushed": address}),
            }
        )
        return
    results.print(f"{done.folder}: {to}; {done.check}", soft_wrap=True)
    if address is not None:
        results.print(address, soft_wrap=True)


@export_app.command()
def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a model or an ensemble, also in s3://; or hash:DIM, st:PATH or hf:PATH.",
            parser=opened_name,
        ),
    ],
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Any but 127.0.0.1 needs RAYSENT_SERVE_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", min=1, max=65535, help="Port to listen on.")] = 8000,
    normalize: Annotated[
        bool, typer.Option("--normalize/--no-normalize", help="Scale every vector to length 1, as OpenAI's are.")
    ] = True,
    max_batch: Annotated[int, typer.Option("--max-batch", metavar="N", min=1, help="Texts encoded together.")] = 512,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", metavar="N", min=1, help="Texts that may wait; more get status 429.")
    ] = 4096,
    wait_ms: Annotated[
        float, typer.Option("--wait-ms", metavar="MS", min=0, help="Wait so long for more texts of other requests.")
    ] = 2.0,
) -> None:
    """Serve vectors with the interface of OpenAI's embeddings.

    Answers POST /v1/embeddings, and /v1/predict/TASK for an ensemble; /health, /metrics, /docs and a page to try it. A
    token is read from RAYSENT_SERVE_TOKEN. A signal to stop lets requests in flight end.
    """
    from raysent.exports import ServerConfig
    from raysent.exports import serve as run

    token = os.environ.get("RAYSENT_SERVE_TOKEN") or None
    config = ServerConfig(
        token=token, normalize=normalize, max_batch=max_batch, max_waiting=max_waiting, wait_s=wait_ms / 1000
    )

    def say_where() -> None:
        messages.print(f"serving {model} on http://{host}:{port}; stop with Ctrl-C", soft_wrap=True)

    with contextlib.suppress(KeyboardInterrupt):  # the signal to stop, after the requests in flight
        run(model, host=host, port=port, config=config, on_ready=say_where)
