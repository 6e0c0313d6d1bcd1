"""Spot interruptions: the cloud's notice drains the Ray node, and training reads the drain.

agent.py      the process on every worker node that polls AWS for a notice, and its watch of the machine's permit
ray_nodes.py  permits, draining Ray nodes and reading drains, for all supported versions of Ray

The agent must start without torch, so this package imports neither `training` nor `cluster`.
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
