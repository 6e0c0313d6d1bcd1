from .config import ServerConfig as ServerConfig
from .server import make_application as make_application
from .server import serve as serve
