"""The gateway as its clients see it: how a task is said to have ended, and what its receipts add up to.

Owns: the addresses of these pages, the key that is shown, and how long an answer is waited for. Refuses to know: who
asks, and what for.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, urlsplit

from taximeter.errors import UpstreamError
from taximeter.records import Groups

_PATIENCE_S: Final = 5.0
_LONGEST_ANSWER_BYTES: Final = 1 << 20
_KINDS: Final = ("task", "run", "session")
OWN_KEY_HEADER: Final = "x-taximeter-key"
"""The gateway's own key, beside which a provider's can be shown as usual."""
# What clients have behind the gateway's own URL: groups, and the API's own paths.
_PATH: Final = re.compile(
    r"(?P<before>.*?)(?:/(?:task|run|session)/[^/]+|/label/[^/]+/[^/]+)*(?:/v1(?:/.*)?)?", re.DOTALL
)


def header_fields(groups: Groups) -> dict[str, str]:
    """The headers that say so to the gateway."""
    named = {kind: getattr(groups, kind) for kind in _KINDS}
    fields = {f"x-taximeter-{kind}": name for kind, name in named.items() if name}
    return fields | {f"x-taximeter-label-{key}": value for key, value in groups.labels.items()}


def path_prefix(groups: Groups) -> str:
    """The same as the beginning of a path, for programs that can only be told where the API is."""
    named = {kind: getattr(groups, kind) for kind in _KINDS}
    words = [f"/{kind}/{_whole(name)}" for kind, name in named.items() if name]
    return "".join([*words, *(f"/label/{_whole(key)}/{_whole(value)}" for key, value in groups.labels.items())])


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayDoor:
    """A gateway at `url`, without `/v1`. `key` is the header that opens it, name and value, None where it is open."""

    url: str
    key: tuple[str, str] | None = None

    def __repr__(self) -> str:
        return f"GatewayDoor({self.url!r})"  # the key is nobody's business

    @classmethod
    def from_environment(cls, url: str, environ: Mapping[str, str] | None = None) -> GatewayDoor:
        """The gateway at `url`, with the key that TAXIMETER_API_KEY points at (`env:NAME` or `file:PATH`), if it does.
        Raises ConfigError when there is none."""
        where = (os.environ if environ is None else environ).get("TAXIMETER_API_KEY")
        if not where:
            return cls(url=base_of(url))
        from taximeter.upstreams.secrets import read_secret  # noqa: PLC0415  # few gateways ask for a key

        secret = read_secret(where, os.environ if environ is None else environ, base=Path())
        return cls(url=base_of(url), key=(OWN_KEY_HEADER, secret.reveal()))

    def finish(self, task: str, *, succeeded: bool, labels: Mapping[str, str] | None = None) -> None:
        """Say that the task has ended. Raises UpstreamError when the gateway does not take it."""
        self._ask(f"/api/tasks/{_whole(task)}/finish", {"succeeded": succeeded, "labels": dict(labels or {})})

    def sums(self, kind: str, name: str) -> Mapping[str, Any]:
        """What the receipts of one `task`, `run` or `session` add up to. Raises UpstreamError."""
        return self._ask(f"/api/{kind}s/{_whole(name)}")

    def _ask(self, path: str, body: object = None) -> Mapping[str, Any]:
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, sent, {"content-type": "application/json"})  # noqa: S310 - see `base_of`
        if self.key is not None:
            request.add_header(*self.key)
        # A proxy that is meant for the world cannot reach this machine.
        handlers = [urllib.request.ProxyHandler({})] if _is_here(self.url) else []
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=_PATIENCE_S) as answer:
                said = json.loads(answer.read(_LONGEST_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                raise UpstreamError(f"{self.url} answered {error.code}: {_told(error)}", status=error.code) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UpstreamError(f"{self.url} does not answer: {reason}") from error
        if not isinstance(said, dict):
            raise UpstreamError(f"{self.url} is no gateway of ours: its answer is no JSON object")
        return cast(dict[str, Any], said)


def base_of(url: str) -> str:
    """The gateway's own URL, from one of its clients' base URLs or of its pages. Raises UpstreamError for no URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UpstreamError(f"{url!r} is no URL of a gateway", hint="it looks like http://127.0.0.1:8000")
    match = _PATH.fullmatch(parts.path.rstrip("/"))
    before = "" if match is None else match["before"]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{before}"


def _told(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(_LONGEST_ANSWER_BYTES))["error"]["message"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return error.reason


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _whole(name: str) -> str:
    return quote(name, safe="")
