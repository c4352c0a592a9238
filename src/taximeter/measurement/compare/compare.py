"""One against another: the same work, asked of both in turn, and how many times as long one takes as the other.

Owns: rounds, ratios with their intervals, and what may be said of them. Refuses to know: who is asked. Whether anything
may be ranked is decided in `comparable`; where it may not, there are figures side by side and no ratios.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import msgspec

from taximeter.errors import ConfigError, RequestError, UpstreamError
from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.asking.wire import Question
from taximeter.measurement.compare.comparable import Comparability, Facts, comparability, facts_of
from taximeter.measurement.compare.per_dollar import OperatingPoint
from taximeter.measurement.estimates import Estimate, median, ratio_of_medians
from taximeter.measurement.load.run import Trouble
from taximeter.measurement.results import Result
from taximeter.measurement.sweep.sweep import WARM_RATIO

if TYPE_CHECKING:
    from numpy.random import Generator

LABELS: Final = "ABCDEFGH"
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")


class Metric(StrEnum):
    """What is compared; each is better when it is shorter."""

    TTFT = "TTFT"
    ITL = "ITL"
    END_TO_END = "end to end"

    def of(self, seen: Observation) -> float | None:
        """Nanoseconds, None where this request has no such figure. An answer of another length than was asked for took
        another time for that alone."""
        match self:
            case Metric.TTFT:
                return seen.ttft_ns()
            case Metric.ITL:
                return seen.itl_ns
            case Metric.END_TO_END:
                is_as_asked = seen.asked_output_tokens in (None, seen.output_tokens)
                return seen.end_to_end_ns() if is_as_asked else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of those that are compared. `conditions` are its requests by what was asked (a length, a level of load); only
    requests under the same condition are held against each other. `points` are its levels of load, for curves."""

    label: str
    name: str
    facts: Facts
    conditions: Mapping[str, tuple[Observation, ...]] = field(repr=False)
    points: tuple[OperatingPoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One metric under one condition. `figures` are medians in nanoseconds by side; `ratios` are to the first side's,
    and there are none where nothing may be ranked."""

    condition: str
    metric: Metric
    figures: Mapping[str, Estimate]
    ratios: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What came out. `names` are the sides by their labels, the first one is what the others are held against."""

    names: Mapping[str, str]
    comparability: Comparability
    rows: tuple[Row, ...]
    says: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def base(self) -> str:
        return next(iter(self.names))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One who is asked live: `question` makes one for a shape, of so many prompt and answer tokens."""

    label: str
    asker: Asker
    question: Callable[[str, int, int], Question]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The same work for everybody: each prompt length once in each round."""

    prompt_tokens: tuple[int, ...]
    output_tokens: int
    rounds: int
    seed: int

    def order(self, labels: Sequence[str]) -> list[tuple[str, int]]:
        """Who is asked which length, one after the other. In each round the lengths come in a random order, and at each
        of them the sides too: what drifts, drifts for all."""
        chance = random.Random(self.seed)  # noqa: S311 - an order, not a key
        planned: list[tuple[str, int]] = []
        for _ in range(self.rounds):
            for length in chance.sample(self.prompt_tokens, len(self.prompt_tokens)):
                planned += [(label, length) for label in chance.sample(list(labels), len(labels))]
        return planned


async def run_rounds(
    contenders: Sequence[Contender],
    plan: Rounds,
    *,
    on_seen: Callable[[str, Observation], object],
    may_ask: Callable[[str, int], bool] = lambda _label, _tokens: True,
    on_progress: Callable[[int, int], object] = lambda _done, _all: None,
) -> bool:
    """Ask, one request at a time, after each side has been warmed up with each length; each observation that counts is
    told as it comes, so that cancelling loses none. Gives whether all was asked: it ends where `may_ask` (whom, how
    long a prompt) says no. Raises UpstreamError when a side does not answer its warm-up."""
    by_label = {contender.label: contender for contender in contenders}
    warming = [(label, length) for length in plan.prompt_tokens for label in by_label]
    order = [*warming, *plan.order(list(by_label))]
    for number, (label, length) in enumerate(order):
        if not may_ask(label, length):
            return False
        contender = by_label[label]
        is_warming = number < len(warming)
        shape = f"warm-up {length}" if is_warming else f"{length}"
        seen = await contender.asker.ask(contender.question(shape, length, plan.output_tokens))
        if not is_warming:
            on_seen(label, seen)
        elif not seen.is_complete:
            raise UpstreamError(f"{label} does not answer {length:,} prompt tokens: {seen.error}", status=seen.status)
        on_progress(number + 1, len(order))
    return True


def sides_of(results: Sequence[Result]) -> list[Side]:
    """Everybody who was measured in these results, labelled A, B, C in their order. Raises RequestError for fewer than
    two, or more than there are labels."""
    found = [(result, number) for result in results for number in range(len(result.targets))]
    if not 2 <= len(found) <= len(LABELS):
        raise RequestError(f"a comparison is between 2 to {len(LABELS)}, these are {len(found)}")
    return [_side(label, result, number) for label, (result, number) in zip(LABELS, found, strict=False)]


def compare(
    sides: Sequence[Side],
    *,
    same: Sequence[str] = (),
    meant: Sequence[str] = (),
    rng: Generator,
) -> Comparison:
    """Hold them against the first. `same` and `meant` as in `comparability`."""
    shared = _shared(sides)
    agreement = comparability(
        {side.label: _shared_facts(side.facts, shared, side) for side in sides}, same=same, meant=meant
    )
    rows: list[Row] = []
    for condition in shared:
        samples = {side.label: _kept(side.conditions[condition]) for side in sides}
        rows += _rows(condition, samples, is_ranked=agreement.may_be_ranked, rng=rng)
    says = _says(rows, [side.label for side in sides]) if agreement.may_be_ranked else (agreement.refusal(),)
    return Comparison(
        names={side.label: side.name for side in sides},
        comparability=agreement,
        rows=tuple(rows),
        says=says,
        warnings=(*(agreement.doubts if agreement.may_be_ranked else ()), *_warnings(sides, shared)),
    )


def is_void(seen: Observation) -> bool:
    """Whether a whole answer is not to what was asked: to a prompt of another length, or of one that nobody counted."""
    return seen.asked_prompt_tokens is not None and seen.prompt_is_exact is not True


def _kept(many: Sequence[Observation]) -> list[Observation]:
    return [seen for seen in many if seen.is_complete and not is_void(seen)]


def _side(label: str, result: Result, number: int) -> Side:
    described = result.targets[number]
    name, url = str(described.get("name") or label), str(described.get("url") or "")
    model = described.get("model")
    told = f"{model} at {url}" if model and name == urlsplit(url).netloc else name
    facts = facts_of(result, number)
    weights = facts["weights"]
    conditions: dict[str, list[Observation]] = {}
    for seen in result.observations.get(name, ()):
        by_length = seen.shape == str(seen.asked_prompt_tokens)
        conditions.setdefault(f"{seen.asked_prompt_tokens:,} tokens" if by_length else seen.shape, []).append(seen)
    return Side(
        label=label,
        name=f"{told}, {weights}" if weights and weights.lower() not in told.lower() else told,
        facts=facts,
        conditions={condition: tuple(many) for condition, many in conditions.items()},
        points=_points(result.conclusions) if result.kind == "load" else _curve(result.conclusions, name),
    )


def _curve(conclusions: Mapping[str, Any], name: str) -> tuple[OperatingPoint, ...]:
    """The levels of one side of a comparison. Raises ConfigError for what is none."""
    curves = cast("Mapping[str, object]", conclusions.get("curves") or {})
    try:
        return msgspec.convert(curves.get(name, ()), tuple[OperatingPoint, ...])
    except msgspec.ValidationError as error:
        raise ConfigError(f"the levels of {name} are damaged: {error}") from error


def _points(conclusions: Mapping[str, Any]) -> tuple[OperatingPoint, ...]:
    """The levels of a load's conclusions that have a throughput and an ITL, and that were measured under their load."""
    found: list[OperatingPoint] = []
    slo: Any = conclusions.get("slo")
    for point in cast("Sequence[Any]", conclusions.get("points") or ()):
        try:
            if any(flag["trouble"] == Trouble.NO_WINDOW for flag in point.get("flags") or ()):
                continue
            itl: Any = point["itl"]["percentiles"]["p50"]
            attained: Any = point.get("attainment")
            meets = None if slo is None or attained is None else bool(attained["share"]["value"] >= slo["share"])
            found.append(
                OperatingPoint(
                    level=float(point["level"]),
                    tokens_per_s=float(point["output"]["mean_per_s"]),
                    itl_ns=float(itl["value"]),
                    tokens_interval=_interval(point["output"].get("interval_per_s")),
                    itl_interval=_interval((itl.get("low"), itl.get("high"))),
                    meets_target=meets,
                )
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            continue  # a level without answers has neither
    return tuple(found)


def _interval(ends: Any) -> tuple[float, float] | None:
    return None if ends is None or None in ends else (float(ends[0]), float(ends[1]))


def _shared(sides: Sequence[Side]) -> list[str]:
    """Conditions under which everybody was measured, by their numbers."""
    everywhere = [each for each in sides[0].conditions if all(each in side.conditions for side in sides)]

    def place(condition: str) -> tuple[float, str]:
        number = _NUMBER.search(condition.replace(",", ""))
        return (float(number[0]) if number else 0.0, condition)

    return sorted(everywhere, key=place)


def _shared_facts(facts: Facts, shared: Sequence[str], side: Side) -> Facts:
    """Lengths and levels differ only where none is shared: each row is of one that is."""
    if not shared or not side.conditions:
        return facts
    told = ", ".join(shared)
    return {**facts, ("levels" if facts.get("study") == "load" else "prompt_tokens"): told}


def _rows(condition: str, samples: Mapping[str, list[Observation]], *, is_ranked: bool, rng: Generator) -> list[Row]:
    rows: list[Row] = []
    base = next(iter(samples))
    for metric in Metric:
        values = {
            label: [value for seen in many if (value := metric.of(seen)) is not None and value > 0]
            for label, many in samples.items()
        }
        figures = {label: median(many, rng=rng) for label, many in values.items() if many}
        ratios = {
            label: ratio_of_medians(many, values[base], rng=rng)
            for label, many in values.items()
            if is_ranked and label != base and many and values[base]
        }
        if figures:
            rows.append(Row(condition=condition, metric=metric, figures=figures, ratios=ratios))
    return rows


def _says(rows: Sequence[Row], labels: Sequence[str]) -> tuple[str, ...]:
    base, *others = labels
    return tuple(
        _sentence(metric, base, other, [row for row in rows if row.metric is metric and other in row.ratios])
        for other in others
        for metric in Metric
        if any(row.metric is metric and other in row.ratios for row in rows)
    )


def _sentence(metric: Metric, base: str, other: str, rows: Sequence[Row]) -> str:
    """What the ratios of one metric say of one side. An interval that has 1 in it shows no difference."""
    found: dict[str, list[Row]] = {"shorter": [], "longer": [], "no different": [], "unknown": []}
    for row in rows:
        low, high = row.ratios[other].interval or (None, None)
        if low is None or high is None:
            found["unknown"].append(row)
        else:
            found["shorter" if high < 1 else "longer" if low > 1 else "no different"].append(row)
    parts: list[str] = []
    for word, of in found.items():
        if not of:
            continue
        where = "" if len(rows) == 1 else " everywhere" if len(of) == len(rows) else f" at {_listed(of)}"
        if word == "unknown":
            parts.append(f"too few samples to say{where}")
        elif word == "no different":
            anywhere = where.replace("everywhere", "anywhere")
            parts.append(f"no difference is shown{anywhere} ({_span(of, other)} times {base}'s)")
        else:
            parts.append(f"{other}'s is {word}{where}, {_span(of, other)} times {base}'s")
    return f"{metric}: {'; '.join(parts)}"


def _listed(rows: Sequence[Row]) -> str:
    """`64, 512 and 4,096 tokens`, `concurrency 1 and 4`: the word that all share is said once."""
    told = [row.condition for row in rows]
    if len(told) > 1:
        words = [condition.partition(" ") for condition in told]
        if len({last for _, _, last in words}) == 1:
            told = [*(first for first, _, _ in words[:-1]), told[-1]]
        elif len({first for first, _, _ in words}) == 1:
            told = [told[0], *(last for _, _, last in words[1:])]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"


def _span(rows: Sequence[Row], other: str) -> str:
    values = [row.ratios[other].value for row in rows]
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _warnings(sides: Sequence[Side], shared: Sequence[str]) -> tuple[str, ...]:
    """What was left out, by side."""
    told: list[str] = []
    for side in sides:
        seen = [each for condition in shared for each in side.conditions[condition]]
        failed = sum(not each.is_complete for each in seen)
        void = sum(each.is_complete and is_void(each) for each in seen)
        of_other_length = sum(
            each.is_complete and not is_void(each) and each.asked_output_tokens not in (None, each.output_tokens)
            for each in seen
        )
        if failed:
            told.append(
                f"{side.label}: {failed} of {len(seen)} requests were not answered whole: they are in no figure"
            )
        if void:
            told.append(f"{side.label}: {void} of {len(seen)} prompts did not have the length asked for: they are void")
        if of_other_length:
            told.append(
                f"{side.label}: {of_other_length} of {len(seen)} answers did not have the length asked for: they are"
                " not in end to end"
            )
        cached = sum(each.cached_tokens or 0 for each in seen)
        read = sum(each.prompt_tokens or 0 for each in seen)
        if side.facts.get("cache") == "cold" and read and cached >= WARM_RATIO * read:
            told.append(f"{side.label}: {cached / read:.0%} of its prompt tokens came from a cache: it was not cold")
        elsewhere = [condition for condition in side.conditions if condition not in shared]
        if elsewhere:
            told.append(f"{side.label} alone was measured at {', '.join(elsewhere)}: left out")
    return tuple(told)
