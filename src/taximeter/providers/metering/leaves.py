"""From a usage object to the buckets of `Usage`, by the words of its dialect.

Owns: taking totals apart into leaves that exclude each other, and the reason wherever that cannot be done: a remainder
below zero is refused, never rounded up to nothing. Refuses to know: any dialect's names, and how the object came here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import cast

from taximeter.providers.metering.words import Path, Words
from taximeter.records import Basis, Terms, Usage, weakest

_MOST_TOKENS = 10**15  # more than any model has read yet; beyond it a float has no ones and a column may have no room
_MOST_WORD_CHARACTERS = 100

Object = Mapping[str, object]


class _Unreadable(Exception):
    """A usage object cannot be what it says; the text is the reason."""


def read_usage(words: Words, reported: Object, *, model: str | None = None, said: Object | None = None) -> Usage:
    """The buckets of one usage object. `model` is who answered, to tell its own calls from those of others.

    `said` is the object to read where something was added to what was `reported`, which is kept as it came. Never
    raises: what cannot be read is unknown, with the reason.
    """
    said = reported if said is None else said
    try:
        return _read(words, said, model, reported=reported)
    except _Unreadable as unreadable:
        return Usage.unknown(str(unreadable), reported=reported)


def terms_in(words: Words, reported: Object) -> Terms:
    """The terms that are said within a usage object."""
    return Terms(
        tier=word_at(reported, words.tier),
        speed=word_at(reported, words.speed),
        geography=word_at(reported, words.geography),
    )


def word(value: object) -> str | None:
    """A provider's word for something, as far as it is one: printable, and short enough for every report."""
    if not isinstance(value, str):
        return None
    said = value[:_MOST_WORD_CHARACTERS]
    if not said.isprintable():
        said = "".join(character if character.isprintable() else " " for character in said)
    return said.strip() or None


def word_at(said: Object, path: Path | None) -> str | None:
    """The word at `path`, None where there is none."""
    if path is None:
        return None
    value: object = said.get(path[0])
    for key in path[1:]:
        value = cast("Object", value).get(key) if isinstance(value, dict) else None
    return word(value)


def merged(earlier: Object, later: Object) -> dict[str, object]:
    """Two snapshots of one usage object: the later value wins, field by field, and null is none."""
    both = dict(earlier)
    for key, value in later.items():
        before = both.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            both[key] = merged(cast("Object", before), cast("Object", value))
        elif value is not None or key not in both:
            both[key] = value
    return both


def at_least(usage: Usage, *, text_tokens: int, reasoning_tokens: int) -> Usage:
    """`usage` of an answer that broke off: its output is what was said of it, or the tokens that were seen if those are
    more. Either is a lower bound, so the basis is *derived*."""
    reported = usage.output_tokens
    seen = text_tokens + reasoning_tokens
    basis = weakest((usage.basis, Basis.DERIVED))
    if reported is not None and reported >= seen:
        return replace(usage, basis=basis)
    if not seen:
        return usage
    reasons = {name: why for name, why in usage.unknown_reasons.items() if name not in Usage.OUTPUT_LEAVES}
    return replace(
        usage,
        output_text_tokens=text_tokens,
        output_reasoning_tokens=reasoning_tokens,
        output_image_tokens=0,
        output_audio_tokens=0,
        unknown_reasons=reasons,
        basis=basis,
    )


def _read(words: Words, said: Object, model: str | None, *, reported: Object | None = None) -> Usage:
    inputs, input_reasons, basis = _input_side(words, said)
    outputs, output_reasons = _output_side(words, said, model)
    if input_reasons and output_reasons:
        raise _Unreadable(f"the usage object has neither {_name(words.input)} nor {_name(words.output or ())}")
    if not input_reasons and not output_reasons:
        outputs = _agreed(words, said, inputs, outputs)
    usage = Usage(
        **cast("dict[str, int]", inputs | outputs),  # pyright: ignore[reportArgumentType]  # names of leaves only
        other_units={unit: count for unit, path in words.counted.items() if (count := _count(said, (path,)))},
        unknown_reasons=input_reasons | output_reasons,
        basis=basis,
        reported=reported,
    )
    if words.iterations is not None:
        usage = _with_iterations(words, said, usage, model)
    if words.repriced is not None and word_at(said, words.repriced) == "redeemed":
        reason = "a fallback credit was redeemed: the prompt is billed in other buckets than it was read in"
        names = dict.fromkeys(Usage.INPUT_LEAVES)
        usage = replace(usage, **names, by_model={}, prompts_tokens=(), unknown_reasons=dict.fromkeys(names, reason))
    return usage


_Leaves = dict[str, int | None]

_SHARED_WITH_AUDIO = (
    "input_fresh_tokens",
    "input_cache_read_tokens",
    "input_audio_tokens",
    "input_audio_cache_read_tokens",
)


def _input_side(words: Words, said: Object) -> tuple[_Leaves, dict[str, str], Basis]:
    """The leaves of the prompt, the reasons for those that are unknown, and how well they are known."""
    total = _count(said, (words.input,))
    if total is None:
        return _unknown(Usage.INPUT_LEAVES, f"the usage object has no {_name(words.input)}")
    read = _count(said, words.read) or 0
    writes = _writes(words, said)
    written = sum(writes.values())
    audio = _count(said, words.input_audio) or 0
    image = _count(said, words.input_image) or 0
    read_audio = _count(said, words.read_audio)
    if _count(said, words.read_image):
        raise _Unreadable(f"{_count(said, words.read_image)} cached tokens are of images: they have no bucket")
    leaves: _Leaves = {leaf: writes.get(leaf, 0) for leaf in Usage.INPUT_LEAVES}
    if audio and read + written and read_audio is None:
        # Both are parts of the prompt, and may be parts of each other.
        reason = f"of {audio} audio tokens some may be among the {read + written} cached, and nothing says how many"
        return leaves | dict.fromkeys(_SHARED_WITH_AUDIO), dict.fromkeys(_SHARED_WITH_AUDIO, reason), Basis.REPORTED
    read_audio = read_audio or 0
    leaves["input_cache_read_tokens"] = _rest(read, {"cached audio": read_audio}, _name_of(words.read))
    leaves["input_audio_cache_read_tokens"] = read_audio
    leaves["input_audio_tokens"] = _rest(audio, {"cached audio": read_audio}, _name_of(words.input_audio))
    rest = total
    if words.input_has_parts:
        parts = {"cached": read, "written": written, "audio": audio - read_audio}
        rest = _rest(total, parts, _name(words.input))
    cached = read + written
    if image > rest and not cached:
        _rest(rest, {"image": image}, _name(words.input))
    # Where the cache may hold images too, it is taken to hold text first, as prompts begin with it.
    leaves["input_image_tokens"] = min(image, rest)
    leaves["input_fresh_tokens"] = rest - min(image, rest)
    return leaves, {}, Basis.ASSUMED if image and cached else Basis.REPORTED


def _writes(words: Words, said: Object) -> dict[str, int]:
    """What went into a cache, by how long it stays there; what nobody says that of has a leaf of its own."""
    writes = {leaf: _count(said, paths) or 0 for leaf, paths in words.writes.items()}
    total = _count(said, words.write)
    if total is not None:
        divided = {leaf.removesuffix("_tokens"): count for leaf, count in writes.items()}
        writes["input_cache_write_unknown_tokens"] = _rest(total, divided, _name_of(words.write))
    return writes


def _output_side(words: Words, said: Object, model: str | None) -> tuple[_Leaves, dict[str, str]]:
    if words.output is None:
        return dict.fromkeys(Usage.OUTPUT_LEAVES, 0), {}
    total = _count(said, (words.output,))
    if total is None:
        leaves, reasons, _ = _unknown(Usage.OUTPUT_LEAVES, f"the usage object has no {_name(words.output)}")
        return leaves, reasons
    parts = {
        "output_reasoning_tokens": _count(said, words.reasoning) or 0,
        "output_image_tokens": _count(said, words.output_image) or 0,
        "output_audio_tokens": _count(said, words.output_audio) or 0,
    }
    prompt, whole = _count(said, (words.input,)), None if words.total is None else _count(said, (words.total,))
    reasoning = parts["output_reasoning_tokens"]
    if reasoning and prompt is not None and whole == prompt + total + reasoning:
        total += reasoning  # by its own total, this provider counts reasoning beside the answer
    elif not reasoning and prompt is not None and whole is not None and _thinks_silently(model):
        parts["output_reasoning_tokens"] = reasoning = max(0, whole - prompt - total)
        total += reasoning
    text = _rest(total, parts, _name(words.output))
    return {"output_text_tokens": text, **parts}, {}


def _thinks_silently(model: str | None) -> bool:
    """Whether its reasoning is in the total alone: Google's door for OpenAI's clients has no field for Gemini's
    thoughts, which are billed as output."""
    return model is not None and model.lower().rpartition("/")[2].startswith("gemini")


def _agreed(words: Words, said: Object, inputs: _Leaves, outputs: _Leaves) -> _Leaves:
    """The leaves of the answer, when they and those of the prompt make the total that is said."""
    total = None if words.total is None else _count(said, (words.total,))
    added = sum(count or 0 for count in (*inputs.values(), *outputs.values()))
    if total is not None and total != added:
        raise _Unreadable(f"{_name(words.total or ())} is {total}, and its parts sum to {added}")
    return outputs


def _with_iterations(words: Words, said: Object, usage: Usage, model: str | None) -> Usage:
    """The usage of all the calls that a request took, where the object lists them.

    Its own totals leave out some kinds of calls and may leave out the prompts of all but the first, so the sum over
    the list counts; where the list has less than they do, it is not the whole of them.
    """
    listed = said.get(cast("Path", words.iterations)[0])
    if listed is None or listed == []:
        return usage
    if not isinstance(listed, list) or not all(isinstance(call, Mapping) for call in cast("list[object]", listed)):
        raise _Unreadable(f"{_name(cast('Path', words.iterations))} is no list of objects")
    calls = cast("list[Object]", listed)
    plain = replace(words, counted={}, iterations=None, repriced=None)
    inside = [_read(plain, call, None) for call in calls if call.get("type") not in words.beside]
    aside = [_read(plain, call, None) for call in calls if call.get("type") in words.beside]
    if any(None in each.leaves().values() for each in (usage, *inside, *aside)):
        raise _Unreadable("a call in the usage object's list lacks its counts")
    # A total that no call in the list is part of stands beside the list.
    inside_leaves = _summed(inside) if inside else Counter(cast("dict[str, int]", usage.leaves()))
    for side in (Usage.INPUT_LEAVES, Usage.OUTPUT_LEAVES):
        top, below = (sum(leaves.get(leaf) or 0 for leaf in side) for leaves in (usage.leaves(), inside_leaves))
        if below < top:
            raise _Unreadable(f"the usage object says {top} tokens, and the calls in its list sum to {below}")
    # Reasoning is told for the whole answer only.
    reasoning = (usage.output_reasoning_tokens or 0) - inside_leaves["output_reasoning_tokens"]
    if 0 < reasoning <= inside_leaves["output_text_tokens"]:
        inside_leaves["output_reasoning_tokens"] += reasoning
        inside_leaves["output_text_tokens"] -= reasoning
    by_model: dict[str, Counter[str]] = {}
    prompts: list[int] = [] if inside else [usage.input_tokens or 0]
    for call in calls:
        spent = _read(plain, call, None)
        name = word(call.get("model"))
        if name is None or name == model:
            prompts.append(spent.input_tokens or 0)
        else:
            by_model.setdefault(name, Counter()).update(_summed([spent]))
    return replace(
        usage,
        **(dict.fromkeys(usage.leaves(), 0) | (inside_leaves + _summed(aside))),  # pyright: ignore[reportArgumentType]  # names of leaves only
        by_model={name: dict(leaves) for name, leaves in by_model.items()},
        prompts_tokens=tuple(prompts) if len(prompts) > 1 else (),
    )


def _summed(usages: Sequence[Usage]) -> Counter[str]:
    """The leaves of all of `usages`, as far as there is anything in them."""
    leaves = Counter[str]()
    for usage in usages:
        leaves.update({name: count for name, count in usage.leaves().items() if count})
    return leaves


def _unknown(leaves: Sequence[str], reason: str) -> tuple[_Leaves, dict[str, str], Basis]:
    return dict.fromkeys(leaves), dict.fromkeys(leaves, reason), Basis.REPORTED


def _rest(total: int, parts: Mapping[str, int], name: str) -> int:
    """What of `total` is none of its `parts`. Raises _Unreadable when they are more than it."""
    rest = total - sum(parts.values())
    if rest < 0:
        listed = ", ".join(f"{part.removesuffix('_tokens')} {count}" for part, count in parts.items() if count)
        raise _Unreadable(f"{name} is {total}, and its parts are more: {listed}")
    return rest


def _count(said: Object, paths: Sequence[Path]) -> int | None:
    """The count at the first of `paths` that has one, None where none has."""
    for path in paths:
        value: object = said
        for depth, key in enumerate(path):
            if value is None:
                break
            if not isinstance(value, dict):
                raise _Unreadable(f"{_name(path[:depth])} is no object")
            value = cast("Object", value).get(key)
        if value is not None:
            return _whole_number(value, path)
    return None


def _whole_number(value: object, path: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Unreadable(f"{_name(path)} is {_kind(value)}, no number")
    if isinstance(value, float) and isnan(value):
        raise _Unreadable(f"{_name(path)} is not a number")
    if value < 0:
        raise _Unreadable(f"{_name(path)} is negative")
    if value > _MOST_TOKENS:
        raise _Unreadable(f"{_name(path)} is larger than any count of tokens")
    if value != int(value):
        raise _Unreadable(f"{_name(path)} is no whole number")
    return int(value)


def _kind(value: object) -> str:
    return "text" if isinstance(value, str) else "a truth value" if isinstance(value, bool) else "a list or an object"


def _name(path: Path) -> str:
    return ".".join(path)


def _name_of(paths: Sequence[Path]) -> str:
    return _name(paths[0]) if paths else "the cached part"
