"""A model over HTTP: predictions, vectors with the interface of OpenAI's embeddings, and passages of an index.

config.py          limits
server.py          `serve`, by uvicorn
application.py     the answers, and the queue of what is computed
batching.py        requests that are computed together
connection.py      one client's connection, which is closed where it takes too long
server_request.py  what clients sent, checked; server_answer.py: long answers, sent in parts
server_json.py     JSON of both; server_json_process.py: a process beside the server for long ones
commands.py        the command `serve`
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
