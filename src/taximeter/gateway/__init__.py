"""The HTTP door: requests in, answers out, and a receipt for each.

`app` has the routes, `inference` the endpoints that cost money, `relay` the way from a request to its receipt,
`errors` the status codes. Everything below is reached through a `Backend`, a ledger and a settler: this room knows no
engine.
"""

from taximeter.gateway.app import build_app
from taximeter.gateway.inference import Ways
from taximeter.gateway.relay import Exchange, Relay, ShuttingDown

__all__ = ["Exchange", "Relay", "ShuttingDown", "Ways", "build_app"]
