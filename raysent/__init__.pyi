from ._core import *  # noqa: F403 - the core, which is all that is found without wings
from .cluster.slurm import slurm_file as slurm_file
from .cluster.sweeps import attach as attach
from .cluster.sweeps import cluster_down as cluster_down
from .cluster.sweeps import cluster_policies as cluster_policies
from .cluster.sweeps import cluster_status as cluster_status
from .cluster.sweeps import cluster_up as cluster_up
from .cluster.sweeps import plan_on_cluster as plan_on_cluster
from .cluster.sweeps import resume_on_cluster as resume_on_cluster
from .cluster.sweeps import stop as stop
from .cluster.sweeps import sweep_on_cluster as sweep_on_cluster
from .exports.encode import encode_corpus as encode_corpus
from .exports.folder import export as export
from .passages.functions import index as index
from .passages.functions import search as search
from .passages.index import Hit as Hit
from .passages.index import SearchIndex as SearchIndex
from .reproduction.run import reproduce as reproduce
from .serving.config import ServerConfig as ServerConfig
from .serving.server import serve as serve

__version__: str
