"""Synthetic exports of other programs: what LiteLLM, Langfuse, OpenTelemetry's collector, Codex and the batches of two
providers write of a call, in their words.

Made from a seed, as transcripts are. Sessions begin one after the other, each calls one model, and some go on side by
side; their prompts grow, and most of a prompt comes from the cache.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from import_lab.transcripts import Made

_IN_A_FILE = 50_000
_SIDE_BY_SIDE = 8
_START, _TIME = datetime(2026, 10, 1, 8, tzinfo=UTC), timedelta(days=55)
_MODELS = (("gpt-5", "openai"), ("gpt-5-mini", "openai"), ("claude-sonnet-4-6", "anthropic"))
_TEAMS = ("search", "support", "billing")


@dataclass(slots=True)
class _Session:
    number: int
    model: str
    provider: str
    team: str
    left: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of `session`; `prompt` holds what was `cached`."""

    name: str
    session: _Session
    at: datetime
    first: datetime
    end: datetime
    prompt: int
    cached: int
    output: int


def make_exports(folder: Path, source: str, *, calls: int, one_file: bool = False, seed: int = 1) -> Made:
    """Write so many calls to `folder`/exports, as `source` (one of `EXPORTS`) has them."""
    made = Made()
    place = folder / "exports"
    place.mkdir(parents=True, exist_ok=True)
    export = EXPORTS[source]
    in_a_file = calls if one_file else _IN_A_FILE
    told = _calls(random.Random(seed), calls, export.models, made)  # noqa: S311 - synthetic data
    if export.by_session:
        _write_sessions(place, export, told, made, in_one=one_file)
        return made
    for number, begin in enumerate(range(0, calls, in_a_file)):
        some = (next(told) for _ in range(min(in_a_file, calls - begin)))
        _write(place / f"{export.stem}-{number:04}{export.suffix}", export.lines(some), made)
    return made


def _calls(chance: random.Random, calls: int, models: tuple[tuple[str, str], ...], made: Made) -> Iterator[_Call]:
    open_sessions: list[_Session] = []
    begun = 0
    for number in range(calls):
        if len(open_sessions) < _SIDE_BY_SIDE:
            model, provider = chance.choice(models)
            open_sessions.append(
                _Session(begun, model, provider, chance.choice(_TEAMS), chance.randrange(10, 200), 4_000)
            )
            begun += 1
        session = chance.choice(open_sessions)
        session.left -= 1
        if not session.left:
            open_sessions.remove(session)
        cached = session.context_tokens // 128 * 128
        prompt = session.context_tokens + chance.randrange(50, 3_000)
        output = chance.randrange(20, 1_800)
        session.context_tokens = 4_000 if prompt > 120_000 else prompt + output
        at = _START + _TIME * (number / calls)
        first = at + timedelta(milliseconds=chance.randrange(200, 2_000))
        end = first + timedelta(milliseconds=output * 12)
        made.calls += 1
        made.tokens["input_tokens"] += prompt - cached
        made.tokens["cache_read_input_tokens"] += cached
        made.tokens["output_tokens"] += output
        yield _Call(f"{chance.getrandbits(96):024x}", session, at, first, end, prompt, cached, output)


# --- What each program writes of a call ---------------------------------------------------------------------------


def _chat_usage(call: _Call) -> dict[str, Any]:
    return {
        "completion_tokens": call.output,
        "prompt_tokens": call.prompt,
        "total_tokens": call.prompt + call.output,
        "completion_tokens_details": {"reasoning_tokens": 0},
        "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": call.cached},
    }


def _messages_usage(call: _Call) -> dict[str, Any]:
    return {
        "input_tokens": call.prompt - call.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": call.cached,
        "output_tokens": call.output,
        "service_tier": "batch",
    }


def _litellm(call: _Call) -> dict[str, Any]:
    session = call.session
    metadata = {
        "user_api_key": f"{session.number % 7:064x}",
        "user_api_key_alias": f"key-{session.number % 7}",
        "user_api_key_team_alias": session.team,
        "status": "success",
        "usage_object": _chat_usage(call),
        "model_map_information": {"model_map_key": session.model},
        "additional_usage_values": {"completion_tokens_details": None, "prompt_tokens_details": None},
    }
    return {
        "request_id": f"chatcmpl-{call.name}",
        "call_type": "acompletion",
        "api_key": f"{session.number % 7:064x}",
        "spend": round((call.prompt + 8 * call.output) * 1.25e-6, 8),
        "total_tokens": call.prompt + call.output,
        "prompt_tokens": call.prompt,
        "completion_tokens": call.output,
        "startTime": _stamp(call.at),
        "endTime": _stamp(call.end),
        "completionStartTime": _stamp(call.first),
        "model": session.model,
        "model_group": session.model,
        "custom_llm_provider": session.provider,
        "user": f"user-{session.number % 40}",
        "metadata": metadata,
        "cache_hit": "False",
        "cache_key": "Cache OFF",
        "request_tags": [f"service:{session.team}"],
        "team_id": session.team,
        "end_user": "",
        "requester_ip_address": None,
        "messages": {},
        "response": {},
        "session_id": f"session-{session.number}",
        "status": "success",
    }


def _langfuse(call: _Call) -> dict[str, Any]:
    session = call.session
    details = {"input": call.prompt - call.cached, "input_cached_tokens": call.cached, "output": call.output}
    price = round((call.prompt + 8 * call.output) * 1.25e-6, 9)
    return {
        "id": call.name,
        "traceId": f"trace-{session.number}",
        "type": "GENERATION",
        "name": "answer",
        "startTime": _stamp(call.at),
        "endTime": _stamp(call.end),
        "completionStartTime": _stamp(call.first),
        "model": session.model,
        "modelParameters": {"temperature": "1"},
        "input": None,
        "output": None,
        "metadata": {"ls_provider": session.provider},
        "usageDetails": {**details, "total": call.prompt + call.output},
        "costDetails": {"total": price},
        "calculatedTotalCost": price,
        "level": "DEFAULT",
        "statusMessage": None,
        "environment": "production",
        "sessionId": f"session-{session.number}",
        "userId": f"user-{session.number % 40}",
        "traceName": session.team,
        "tags": [session.team],
    }


def _spans(call: _Call) -> dict[str, Any]:
    """A request for one answer: the service's own span, and the model's within it."""
    session, trace = call.session, f"{int(call.name, 16):032x}"
    names: dict[str, str | int | float] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": session.provider,
        "gen_ai.request.model": session.model,
        "gen_ai.response.model": session.model,
        "gen_ai.response.id": f"chatcmpl-{call.name}",
        "gen_ai.conversation.id": f"session-{session.number}",
        "gen_ai.request.max_tokens": 4096,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.usage.input_tokens": call.prompt,
        "gen_ai.usage.output_tokens": call.output,
        "gen_ai.usage.cache_read.input_tokens": call.cached,
        "server.address": "api.example.com",
        "server.port": 443,
    }
    of_model = _span(trace, call.name[:16], call.name[8:], f"chat {session.model}", call, names)
    of_model["attributes"].append(_listed("gen_ai.response.finish_reasons", ["stop"]))
    around = _span(trace, call.name[8:], None, "POST /answer", call, {"http.request.method": "POST"})
    resource = {"attributes": [_attribute("service.name", session.team), _attribute("service.version", "1.4.2")]}
    scope = {"scope": {"name": "openai", "version": "2.1.0"}, "spans": [of_model, around]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def _span(
    trace: str, name: str, parent: str | None, title: str, call: _Call, said: dict[str, str | int | float]
) -> dict[str, Any]:
    return {
        "traceId": trace,
        "spanId": name,
        "parentSpanId": parent or "",
        "name": title,
        "kind": 3,
        "startTimeUnixNano": str(_nanoseconds(call.at)),
        "endTimeUnixNano": str(_nanoseconds(call.end)),
        "attributes": [_attribute(key, value) for key, value in said.items()],
        "status": {},
    }


def _attribute(key: str, value: str | float) -> dict[str, Any]:
    if isinstance(value, str):
        return {"key": key, "value": {"stringValue": value}}
    return {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}}


def _listed(key: str, values: Iterable[str]) -> dict[str, Any]:
    return {"key": key, "value": {"arrayValue": {"values": [{"stringValue": value} for value in values]}}}


def _openai_batch(call: _Call) -> dict[str, Any]:
    body = {
        "id": f"chatcmpl-{call.name}",
        "object": "chat.completion",
        "created": int(call.at.timestamp()),
        "model": call.session.model,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}],
        "usage": _chat_usage(call),
    }
    response = {"status_code": 200, "request_id": call.name, "body": body}
    return {"id": f"batch_req_{call.name}", "custom_id": f"row-{call.name}", "response": response, "error": None}


def _anthropic_batch(call: _Call) -> dict[str, Any]:
    message = {
        "id": f"msg_{call.name}",
        "type": "message",
        "role": "assistant",
        "model": call.session.model,
        "content": [{"type": "text", "text": "yes"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": _messages_usage(call),
    }
    return {"custom_id": f"row-{call.name}", "result": {"type": "succeeded", "message": message}}


def _rollout(calls: Iterable[_Call]) -> Iterator[str]:
    """One session of Codex: each call is an event with what it took, and what all took so far."""
    total: dict[str, int] = {}
    for number, call in enumerate(calls):
        session = call.session
        if not number:
            meta = {"id": f"session-{session.number}", "cwd": f"/home/dev/{session.team}", "cli_version": "0.60.1"}
            yield _line({"timestamp": _stamp(call.at), "type": "session_meta", "payload": meta})
            context = {"model": session.model, "cwd": f"/home/dev/{session.team}"}
            yield _line({"timestamp": _stamp(call.at), "type": "turn_context", "payload": context})
        last = {
            "input_tokens": call.prompt,
            "cached_input_tokens": call.cached,
            "output_tokens": call.output,
            "reasoning_output_tokens": 0,
            "total_tokens": call.prompt + call.output,
        }
        total = {key: total.get(key, 0) + count for key, count in last.items()}
        info = {"total_token_usage": total, "last_token_usage": last, "model_context_window": 272_000}
        payload = {"type": "token_count", "info": info, "rate_limits": None}
        yield _line({"timestamp": _stamp(call.end), "type": "event_msg", "payload": payload})


def _line(entry: Any) -> str:
    return json.dumps(entry, separators=(",", ":")) + "\n"


def _json_lines(record: Callable[[_Call], dict[str, Any]]) -> Callable[[Iterable[_Call]], Iterator[str]]:
    return lambda calls: (_line(record(call)) for call in calls)


def _csv_lines(calls: Iterable[_Call]) -> Iterator[str]:
    """As a database writes its table: objects are texts of JSON."""
    begun = False
    for call in calls:
        row = {
            key: json.dumps(value) if isinstance(value, dict | list) else value for key, value in _litellm(call).items()
        }
        out = io.StringIO()
        writer = csv.DictWriter(out, list(row), lineterminator="\n")
        if not begun:
            writer.writeheader()
            begun = True
        writer.writerow(row)
        yield out.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """How a program writes calls, and what `taximeter import --from` calls it."""

    reader: str
    lines: Callable[[Iterable[_Call]], Iterator[str]]
    stem: str = "export"
    suffix: str = ".jsonl"
    models: tuple[tuple[str, str], ...] = _MODELS
    by_session: bool = False


EXPORTS = {
    "litellm": Export(reader="litellm", lines=_json_lines(_litellm)),
    "litellm-csv": Export(reader="litellm", lines=_csv_lines, suffix=".csv"),
    "langfuse": Export(reader="langfuse", lines=_json_lines(_langfuse)),
    "otlp": Export(reader="otlp", lines=_json_lines(_spans)),
    "codex": Export(reader="codex", lines=_rollout, stem="rollout", models=_MODELS[:2], by_session=True),
    "openai-batch": Export(
        reader="openai-batch", lines=_json_lines(_openai_batch), stem="batch_68f0c0ffee", models=_MODELS[:2]
    ),
    "anthropic-batch": Export(
        reader="anthropic-batch", lines=_json_lines(_anthropic_batch), stem="msgbatch_01ABCDEF", models=_MODELS[2:]
    ),
}
"""By the names that are asked for."""


# --- Writing --------------------------------------------------------------------------------------------------------


def _write_sessions(place: Path, export: Export, calls: Iterator[_Call], made: Made, *, in_one: bool) -> None:
    """A file for each session, or for all of it as if that were one."""
    waiting: dict[int, list[_Call]] = {}
    for call in calls:
        number = 0 if in_one else call.session.number
        waiting.setdefault(number, []).append(call)
        if not in_one and not call.session.left:
            _write_session(place, export, waiting.pop(number), made)
    for some in waiting.values():
        _write_session(place, export, some, made)


def _write_session(place: Path, export: Export, calls: list[_Call], made: Made) -> None:
    at = calls[0].at
    name = f"{export.stem}-{at:%Y-%m-%dT%H-%M-%S}-{calls[0].session.number:08}{export.suffix}"
    path = place / f"{at:%Y/%m/%d}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, export.lines(calls), made)
    os.utime(path, (calls[-1].end.timestamp(), calls[-1].end.timestamp()))


def _write(path: Path, lines: Iterable[str], made: Made) -> None:
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            made.lines += 1
            made.size_bytes += file.write(line)  # all of it is ASCII
    made.files += 1


def _stamp(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1e6) * 1_000
