"""What an upstream did for a request, as receipts want it.

Owns: putting together what was tried, who answered, and what the answer said of itself. Refuses to know: how the answer
was passed on, or to whom.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from taximeter.providers.sighting import Found
from taximeter.records import Phase, Request, Served, Usage
from taximeter.upstreams.config import Route
from taximeter.upstreams.dispatch import Trail

if TYPE_CHECKING:
    from taximeter.upstreams.incoming import Incoming

_REQUEST_ID_HEADERS: Final = ("request-id", "x-request-id")  # Anthropic's, and OpenAI's
_MOST_ID_CHARACTERS: Final = 200


def served(
    route: Route,
    request: Request,
    trail: Trail,
    incoming: Incoming | None,
    found: Found | None,
    *,
    at_ns: int,
    usage: Usage | None,
    spent_ns: Mapping[Phase, int],
) -> Served:
    """`incoming` is None while nobody has begun to answer: then it was whoever was tried last."""
    tries = tuple(trail.tries)
    tried = tries[-1].upstream if tries else route.upstreams[0].name
    ids = () if incoming is None else (incoming.header(name) for name in _REQUEST_ID_HEADERS)
    return Served(
        at_ns=at_ns,
        usage=usage,
        work=None,
        served_by=tried if incoming is None else incoming.upstream.name,
        model=(None if found is None else found.model) or route.send_as or request.model,
        terms=None if found is None else found.terms,
        upstream_request_id=next((each[:_MOST_ID_CHARACTERS] for each in ids if each), None),
        tries=tries,
        spent_ns=spent_ns,
    )


def why_no_answer(incoming: Incoming | None) -> str:
    """The reason why nothing is known of what an answer took that was none."""
    if incoming is None:
        return "no upstream began to answer"
    return f"{incoming.upstream.name} answered with status {incoming.status}"
