"""Keys that must not be seen.

Owns: where a key comes from (the environment or a file, never the configuration itself), and that nothing prints it.
Refuses to know: what it opens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

from taximeter.errors import ConfigError
from taximeter.upstreams.headers import KEY_HEADERS

_FROM_ENVIRONMENT: Final = "env:"
_FROM_FILE: Final = "file:"
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


_CONCEALED: Final = b"[key]"
_SHORTEST_KEY_BYTES: Final = 8  # what is shorter is no key, and may be part of any word


class Secret:
    """A text that is only given out by `reveal`: whatever prints, compares or pickles it gets nothing."""

    __slots__ = ("_text", "origin")

    def __init__(self, text: str, origin: str) -> None:
        self._text = text
        self.origin = origin

    def reveal(self) -> str:
        """The text itself, for the one place that sends it."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret(from {self.origin})"

    def __reduce__(self) -> str:
        raise TypeError("a secret does not travel")


def read_secret(where: str, environ: Mapping[str, str], *, base: Path) -> Secret:
    """The key that `where` points at: `env:NAME` or `file:PATH`, relative to `base`.

    Raises ConfigError when it points nowhere, when there is nothing, or when somebody wrote a key there instead; that
    is then not repeated.
    """
    if where.startswith(_FROM_ENVIRONMENT):
        name = where.removeprefix(_FROM_ENVIRONMENT)
        if not _VARIABLE.fullmatch(name):  # it may be the key itself
            raise ConfigError("env: is followed by the name of a variable", hint='for example "env:OPENAI_API_KEY"')
        text = environ.get(name, "").strip()
        if not text:
            raise ConfigError(f"the environment variable {name} is not set", hint=f"export {name}=...")
    elif where.startswith(_FROM_FILE):
        path = base / Path(where.removeprefix(_FROM_FILE)).expanduser()
        try:
            text = path.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the file {path} cannot be read: {type(error).__name__}") from error
        if not text:
            raise ConfigError(f"the file {path} is empty")
    else:
        raise ConfigError(
            "a key is never written into the configuration", hint='point at it: "env:NAME" or "file:PATH"'
        )
    if not (text.isascii() and text.isprintable()):
        raise ConfigError(f"the key from {where} cannot be sent: it must be one line of ASCII")
    return Secret(text, where)


def concealed(data: bytes, keys: Iterable[bytes]) -> bytes:
    """`data` without `keys`: some servers repeat in their complaints what they were shown."""
    for key in keys:
        if len(key) >= _SHORTEST_KEY_BYTES and key in data:
            data = data.replace(key, _CONCEALED)
    return data


def keys_shown(key: Secret | None, headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """What an upstream was shown, and must not repeat to others: its own key, or those in the client's `headers`."""
    if key is not None:
        return [key.reveal().encode()]
    return [value.rpartition(b" ")[2] for name, value in headers if name in KEY_HEADERS]


@lru_cache(maxsize=256)  # most requests come with the key of the one before
def caller_named(key: bytes) -> str:
    """What whoever shows this key is called on receipts: the same name for the same key, from which nobody gets back to
    it."""
    digest = blake2b(key, digest_size=6, person=b"taximeter").hexdigest()
    return f"key-{digest}"
