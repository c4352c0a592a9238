"""The whole exception tree, by who must act.

    TaximeterError
    ├── RequestError          the caller: the request cannot be served as it stands
    │   ├── ModelNotFound     no such model here
    │   └── PromptTooLong     prompt plus answer do not fit the model's context
    ├── ConfigError           the operator: a setting, a file or a model on disk is wrong
    │   ├── ModelFileError    a weight file is damaged, hostile or of an unknown kind
    │   └── DownloadError     a model could not be fetched or failed its checksum
    ├── CapacityError         nobody: come back in `retry_after_s`
    ├── UpstreamError         the provider: keeps its status and body
    │   └── UpstreamRefused   it did answer, and would not serve this request
    ├── PricingError          the price list: no price, no date, or a unit it cannot charge
    ├── LedgerError           the ledger: it cannot be read or written
    └── InvariantBroken       us: a bug, never the caller's fault

Owns: the names, and the sentence each error carries. Refuses to know: HTTP (the gateway decides status codes)
and exit codes (the command line does).
"""

from __future__ import annotations


class TaximeterError(Exception):
    """Root of every error this package raises on purpose.

    `message` says what is wrong, `hint` what to do about it. Neither ever holds a secret or a prompt.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class RequestError(TaximeterError):
    """The caller must change the request. `param` names the offending field, where there is one."""

    def __init__(self, message: str, *, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class ModelNotFound(RequestError):
    """The model asked for is not served here."""


class PromptTooLong(RequestError):
    """Prompt and answer together do not fit the model's context or the KV cache."""


class ConfigError(TaximeterError):
    """The operator must change a setting, a file or an installation. `place` is where in a TOML file it stands: keys,
    and numbers from 0 in lists of tables; empty where that is not known, or nowhere."""

    def __init__(self, message: str, *, hint: str | None = None, place: tuple[str | int, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.place = place


class ModelFileError(ConfigError):
    """A weight file cannot be used: truncated, damaged, hostile, or of a kind we do not know."""


class DownloadError(ConfigError):
    """A model could not be fetched, or what was fetched is not what was pinned."""


class CapacityError(TaximeterError):
    """Everything is busy; the same request may succeed after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class UpstreamError(TaximeterError):
    """A provider failed. `status` and `body` are what it said, None where it said nothing."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        body: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.body = body


class UpstreamRefused(UpstreamError):
    """A provider would not serve the request as it stands, or not now. `status` is its own; `retry_after_s` is when it
    wants to be asked again, where it says so."""

    def __init__(self, message: str, *, status: int, retry_after_s: float | None = None) -> None:
        super().__init__(message, status=status)
        self.retry_after_s = retry_after_s


class PricingError(TaximeterError):
    """Usage cannot be turned into money: no such model, no price at that date, or an unpriced unit."""


class LedgerError(TaximeterError):
    """The ledger cannot be opened, read or written."""


class InvariantBroken(TaximeterError):
    """Something that must always hold does not. This is a bug in Taximeter."""
