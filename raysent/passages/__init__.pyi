from .functions import search as search
from .index import Hit as Hit
from .index import SearchIndex as SearchIndex
from .index import read_queries as read_queries
