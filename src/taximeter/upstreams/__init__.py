"""Other people's machines: who they are, how they are reached, and which of them is asked.

`config` is what the operator says of them, `secrets` their keys, `client` the only HTTP client, `breaker` and
`dispatch` the order of tries, `switchboard` the way from a model's name to whoever serves it.
"""

from taximeter.upstreams.client import Client, Incoming
from taximeter.upstreams.config import Family, Network, Route, Upstream, read_network
from taximeter.upstreams.dispatch import Dispatcher, Outgoing, Reached
from taximeter.upstreams.secrets import Secret

__all__ = [
    "Client",
    "Dispatcher",
    "Family",
    "Incoming",
    "Network",
    "Outgoing",
    "Reached",
    "Route",
    "Secret",
    "Upstream",
    "read_network",
]
