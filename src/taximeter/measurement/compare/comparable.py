"""Whether measurements may be ranked: what must agree between them, and what does not.

Owns: the fields, how each is found in a result, and the refusal, which names every field that differs with all its
values. Refuses to know: the figures.

What nobody knows is not equal: it is said to be unknown. Where the measurer decides a field (what was asked, and how),
unknown is a refusal too; of what only the server knows (its hardware, its weights) it is a doubt that stands beside the
ranking.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, cast
from urllib.parse import urlsplit

from taximeter.errors import RequestError
from taximeter.measurement.results import DEFINITIONS, Result

Facts = Mapping[str, str | None]
"""What is known of one side, by field; None is unknown."""


class Kind(StrEnum):
    """What a field is part of."""

    MODEL = "model"
    SETUP = "setup"
    MEASUREMENT = "measurement"
    TARGET = "latency target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One thing that must agree. The measurer decides it (`is_asked`), or the server has it: only that may be meant to
    differ."""

    name: str
    kind: Kind
    is_asked: bool = False


FIELDS: Final = (
    Field(name="model", kind=Kind.MODEL, is_asked=True),
    Field(name="weights", kind=Kind.MODEL),
    Field(name="kv_cache_format", kind=Kind.SETUP),
    Field(name="hardware", kind=Kind.SETUP),
    Field(name="context_tokens", kind=Kind.SETUP),
    Field(name="max_batch", kind=Kind.SETUP),
    Field(name="study", kind=Kind.MEASUREMENT, is_asked=True),
    Field(name="api", kind=Kind.MEASUREMENT, is_asked=True),
    Field(name="workload", kind=Kind.MEASUREMENT, is_asked=True),
    Field(name="prompt_tokens", kind=Kind.MEASUREMENT, is_asked=True),
    Field(name="output_tokens", kind=Kind.MEASUREMENT, is_asked=True),
    Field(name="loop", kind=Kind.MEASUREMENT, is_asked=True),
    Field(name="levels", kind=Kind.MEASUREMENT, is_asked=True),
    Field(name="cache", kind=Kind.MEASUREMENT, is_asked=True),
    Field(name="definitions", kind=Kind.MEASUREMENT, is_asked=True),
    Field(name="latency_target", kind=Kind.TARGET, is_asked=True),
)
_BY_NAME: Final = {field.name: field for field in FIELDS}
AS_THE_WORKLOAD: Final = "as the workload has them"
NONE: Final = "none"
"""The value of a field that was decided to be nothing, such as no latency target."""

# By the servers' own names.
_WEIGHTS: Final = ("weights", "quantization", "weight_format", "dtype")
_KV_FORMATS: Final = ("kv_cache_dtype", "kv_format", "cache_type_k")
_SLOTS: Final = ("max_num_seqs", "max_running_requests", "total_slots", "slots", "max_batch")
# In the name of a file of weights: Q4_K_M, q8_0, IQ3_XS, BF16, F16.
_QUANTIZATION: Final = re.compile(
    r"(?<![a-z0-9])(i?q\d+_[a-z0-9_]+|bf16|f16|f32|mxfp4|nvfp4)(?![a-z0-9])", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field and its value on each side; None is unknown."""

    field: Field
    values: Facts

    def __str__(self) -> str:
        told = ", ".join(f"{side} {'unknown' if value is None else value}" for side, value in self.values.items())
        return f"{self.field.name.replace('_', ' ')}: {told}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparability:
    """`agreed` is known to be equal, `differing` known not to be; of `unknown` at least one side does not say. `meant`
    differs because it is what is compared, `assumed` is taken to be equal on somebody's word."""

    agreed: Facts
    differing: tuple[Difference, ...]
    unknown: tuple[Difference, ...]
    meant: tuple[Difference, ...]
    assumed: tuple[Difference, ...]

    @property
    def obstacles(self) -> tuple[Difference, ...]:
        """Why there is no ranking."""
        return (*self.differing, *(each for each in self.unknown if each.field.is_asked))

    @property
    def may_be_ranked(self) -> bool:
        return not self.obstacles

    @property
    def doubts(self) -> tuple[str, ...]:
        """What must stand beside a ranking."""
        told = [f"not known to be equal: {each}" for each in self.unknown if not each.field.is_asked]
        told += [f"taken to be equal on your word: {each}" for each in self.assumed]
        return (*told, *(f"differs, as you mean it to: {each}" for each in self.meant))

    def refusal(self) -> str:
        """One line that names every field that is in the way, with its values."""
        return "these are not ranked, because they differ in " + "; ".join(map(str, self.obstacles))


def comparability(
    sides: Mapping[str, Facts], *, same: Collection[str] = (), meant: Collection[str] = ()
) -> Comparability:
    """Hold the sides against each other, field by field.

    `same` are fields that are taken to be equal whatever the sides say: the same model may have two names. `meant` are
    those that are meant to differ, being what is compared. Raises RequestError for a field that is none, or that may
    not be waived.
    """
    _check("same", same, [field.name for field in FIELDS if field.kind in (Kind.MODEL, Kind.SETUP)])
    _check("vary", meant, [field.name for field in FIELDS if not field.is_asked])
    agreed: dict[str, str | None] = {}
    found: dict[str, list[Difference]] = {"differing": [], "unknown": [], "meant": [], "assumed": []}
    for field in FIELDS:
        values = {side: facts.get(field.name) for side, facts in sides.items()}
        known = {value for value in values.values() if value is not None}
        if len(known) == 1 and None not in values.values():
            agreed[field.name] = next(iter(known))
            continue
        if field.name in meant:
            place = "meant"
        elif field.name in same:
            place = "assumed"
        else:
            place = "differing" if len(known) > 1 else "unknown"
        found[place].append(Difference(field=field, values=values))
    return Comparability(agreed=agreed, **{place: tuple(each) for place, each in found.items()})


def facts_of(result: Result, target: int = 0) -> Facts:
    """What a result says of itself, by field."""
    described: Mapping[str, Any] = result.targets[target] if target < len(result.targets) else {}
    seen = result.observations.get(str(described.get("name")), ())
    plan = result.plan
    facts = dict(server_facts(described, client=result.environment))
    study = _text(plan.get("study"))
    facts["study"] = result.kind if study is None else f"{result.kind}, {study}"
    facts["workload"] = _text(plan.get("workload")) or _default_workload(result)
    if result.kind == "load":
        facts["prompt_tokens"] = facts["output_tokens"] = facts["workload"] and AS_THE_WORKLOAD
    else:
        facts["prompt_tokens"] = _lengths(plan.get("prompt_tokens"), [each.asked_prompt_tokens for each in seen])
        facts["output_tokens"] = _lengths(plan.get("output_tokens"), [each.asked_output_tokens for each in seen])
    loop = _text(plan.get("loop")) or ("closed" if plan.get("concurrency") is not None else None)
    facts["loop"] = loop and ", ".join(filter(None, (loop, _text(plan.get("arrivals")))))
    facts["levels"] = _lengths(plan.get("levels", plan.get("concurrency")), [])
    facts["cache"] = _text(plan.get("cache"))
    facts["latency_target"] = _text(plan.get("slo")) or NONE
    facts["definitions"] = _definitions(result)
    return facts


def server_facts(described: Mapping[str, Any], *, client: Mapping[str, str]) -> Facts:
    """What is known of a server before it is asked anything. `client` is the environment of who measures: a server on
    the same machine runs on what that runs on."""
    setup = cast("Mapping[str, Any]", described.get("setup") or {})
    weights = next((_text(setup[name]) for name in _WEIGHTS if setup.get(name)), None)
    if weights is None:
        named = " ".join(str(text) for text in (setup.get("model_path"), described.get("model")) if text)
        in_name = _QUANTIZATION.search(named)
        weights = in_name[1].upper() if in_name else None
    is_here = _is_this_machine(str(described.get("url") or ""))
    return {
        "model": _text(described.get("model")),
        "weights": weights,
        "kv_cache_format": next((_text(setup[name]) for name in _KV_FORMATS if setup.get(name)), None),
        "hardware": _text(client.get("client_cpu")) if is_here else _text(setup.get("hardware")),
        "context_tokens": _text(described.get("context_tokens")),
        "max_batch": next((_text(setup[name]) for name in _SLOTS if setup.get(name)), None),
        "api": _text(described.get("dialect")),
    }


def _definitions(result: Result) -> str:
    """Equal only where every definition is, word for word. Those that a study has beside the common ones are told by
    their fingerprint: there are many."""
    theirs = dict(result.definitions)
    changed = sorted(name for name, meaning in DEFINITIONS.items() if theirs.get(name) != meaning)
    own = sorted(item for item in theirs.items() if item[0] not in DEFINITIONS)
    told = [f"version {result.schema_version}"]
    told += [f"{name} = {theirs.get(name, 'left out')}" for name in changed]
    if own:
        told.append(f"and {len(own)} more ({sha256(repr(own).encode()).hexdigest()[:8]})")
    return "; ".join(told)


def _default_workload(result: Result) -> str | None:
    return "random words" if result.kind in ("sweep", "compare") else None


def _lengths(planned: object, asked: Sequence[int | None]) -> str | None:
    """What was asked for, which the observations show best; else the plan."""
    seen = sorted({each for each in asked if each is not None})
    if seen and None not in asked and len(seen) <= 64:
        return ", ".join(f"{each:,}" for each in seen)
    if isinstance(planned, list | tuple):
        listed = [_text(each) for each in cast("Sequence[object]", planned)]
        return ", ".join(each for each in listed if each is not None) or None
    return _text(planned)


def _text(value: object) -> str | None:
    if value is None or value == "" or isinstance(value, Mapping):
        return None
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def _is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check(flag: str, names: Collection[str], allowed: Sequence[str]) -> None:
    for name in names:
        if name not in allowed:
            reason = "how something was measured cannot be waived" if name in _BY_NAME else "there is no such field"
            raise RequestError(f"--{flag} {name}: {reason}", param=flag, hint=f"one of {', '.join(allowed)}")
