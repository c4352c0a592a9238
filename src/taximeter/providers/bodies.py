"""JSON that comes from outside: reading it, and the sentences for what cannot be read.

Owns: what all dialects refuse in the same words. Refuses to know: the fields of any dialect, HTTP.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from taximeter.errors import RequestError

_MAX_MODEL_CHARACTERS = 256
_MAX_STOPS = 16
_MAX_STOP_CHARACTERS = 256

_B = TypeVar("_B", bound=msgspec.Struct)


class _Named(msgspec.Struct):
    model: str


_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_named_decoder = msgspec.json.Decoder(_Named)


def model_named_in(body: bytes) -> str | None:
    """The model that a body names, even where the rest of it cannot be served; None where that cannot be read."""
    try:
        model = _named_decoder.decode(body).model
    except (msgspec.DecodeError, RecursionError):
        return None
    return model if _is_model_name(model) else None


def decode(decoder: msgspec.json.Decoder[_B], body: bytes | msgspec.Raw, at: str = "") -> _B:
    """The body, or what stands `at` a place in one, as what `decoder` reads. Raises RequestError with the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), at) from error
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not JSON: {_lower_first(str(error))}") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error


def _wrong_field(complaint: str, at: str) -> RequestError:
    """msgspec's complaint, with the field in front: "Expected `int` >= 1 - at `$.n`"."""
    what, _, path = complaint.partition(" - at `$")
    param = (at + path.rstrip("`").replace("[...]", "")).lstrip(".")
    if missing := re.search(r"missing required field `(\w+)`", what):
        param = f"{param}.{missing[1]}" if param else missing[1]
        return RequestError(f"`{param}` is missing", param=param)
    if not param:
        return RequestError(f"the body must be a JSON object: {_lower_first(what)}")
    return RequestError(f"`{param}`: {_lower_first(what)}", param=param)


def _lower_first(text: str) -> str:
    return text if text.startswith("JSON") else text[:1].lower() + text[1:]


def unsupported(param: str, why: str, *, hint: str | None = None) -> RequestError:
    """The refusal of a field that is known, and that cannot be served."""
    return RequestError(f"`{param}` is not supported yet: {why}", param=param, hint=hint)


def check_model_name(model: str) -> None:
    """Raises RequestError for what cannot be the name of a model."""
    if not _is_model_name(model):
        raise RequestError(
            f"`model` must be a printable name of at most {_MAX_MODEL_CHARACTERS} characters", param="model"
        )


def _is_model_name(model: str) -> bool:
    return 0 < len(model) <= _MAX_MODEL_CHARACTERS and model.isprintable()


def stop_strings(given: str | list[str] | None, param: str) -> tuple[str, ...]:
    """The strings that end an answer. Raises RequestError."""
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stops) > _MAX_STOPS:
        raise RequestError(f"`{param}` has more than {_MAX_STOPS} strings", param=param)
    if not all(0 < len(stop) <= _MAX_STOP_CHARACTERS for stop in stops):
        raise RequestError(f"each `{param}` string must have 1 to {_MAX_STOP_CHARACTERS} characters", param=param)
    return stops


def json_object(text: str) -> msgspec.Raw | None:
    """The JSON object that `text` is, as it is written; None where it is none."""
    try:
        written = text.encode()
        _object_decoder.decode(written)
    except (UnicodeEncodeError, msgspec.DecodeError, RecursionError):
        return None
    return msgspec.Raw(written)
