"""What `taximeter compare` does: finds out who is compared, has them asked in turn, and shows what came out.

Owns: options that are for one side, the order of a live comparison, and its exit codes. Refuses to know: whether
something may be ranked, and how pictures look.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from numpy.random import default_rng
from rich.text import Text

from taximeter import __version__
from taximeter.cli.comparing_levels import measure_levels, price_of_all, turns_of
from taximeter.cli.console import err, out, print_json, waiting
from taximeter.cli.measuring import (
    Access,
    Bench,
    bench,
    count_range,
    described,
    new_run,
    nothing_counted_yet,
    parse_max_cost,
)
from taximeter.cli.tables import print_table
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import RequestError
from taximeter.ledger import Ledger
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.asking.prompts import Prompts
from taximeter.measurement.asking.spending import Purse, estimate
from taximeter.measurement.compare.comparable import Comparability, comparability, server_facts
from taximeter.measurement.compare.compare import (
    LABELS,
    Comparison,
    Contender,
    Rounds,
    Side,
    compare,
    run_rounds,
    sides_of,
)
from taximeter.measurement.compare.levels import Turns
from taximeter.measurement.compare.page import comparison_csv, comparison_page, comparison_pictures, comparison_table
from taximeter.measurement.compare.per_dollar import Curve, per_dollar_chart
from taximeter.measurement.load.punctual import punctual_loop
from taximeter.measurement.load.slo import Slo
from taximeter.measurement.load.workload import fixed
from taximeter.measurement.pictures.chart import Chart
from taximeter.measurement.pictures.page import page_html
from taximeter.measurement.pictures.plots import ASCII, UNICODE, plot
from taximeter.measurement.results import Result, environment, read_result, write_result, write_whole
from taximeter.records import MachineRate
from taximeter.settings import Settings

EXIT_REFUSED: Final = 3
_NO_LEVELS: Final = (
    "one request at a time makes no curve per dollar: compare them with --concurrency 1..16, or measure each with"
    " `taximeter load --concurrency 1..16 --out FILE`, and compare the files"
)
_LENGTHS, _LENGTH = "64..1024", "256"
_ROUNDS, _TURNS = 10, 5
_LABELLED: Final = re.compile(r"([A-Z])=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A call of the command. `by_side` has what is said for one side (`A=...`) or for all, by option."""

    subjects: tuple[str, ...]
    prompt_tokens: str | None
    output_tokens: int
    rounds: int | None
    concurrency: str | None
    duration_s: float
    by_side: Mapping[str, tuple[str, ...]]
    api: str | None
    provider: str | None
    slo: str | None
    same: tuple[str, ...]
    vary: tuple[str, ...]
    is_shown_anyway: bool
    seed: int
    max_cost: str | None
    as_json: bool
    csv: Path | None
    html: Path | None
    out: Path | None


def run(wanted: Wanted) -> int:
    """The exit code."""
    comparability({}, same=wanted.same, meant=wanted.vary)  # a wrong name is told before anything is asked
    slo = None if wanted.slo is None else Slo.parse(wanted.slo)
    is_file = [_is_result(Path(subject)) for subject in wanted.subjects]
    if all(is_file):
        results = [read_result(Path(subject)) for subject in wanted.subjects]
    elif any(is_file) or len(wanted.subjects) < 2:
        raise RequestError(
            "compare files with files, or at least two servers with each other",
            param="subjects",
            hint="what is measured on another day is not measured in turn: keep each with --out, and compare the files",
        )
    else:
        measured = _measured(wanted)
        if isinstance(measured, Comparability):
            return _refuse(measured, as_json=wanted.as_json)
        results = [measured]
        if wanted.out is not None:
            write_result(wanted.out, measured)
    return _show(wanted, results, slo)


def _show(wanted: Wanted, results: Sequence[Result], slo: Slo | None) -> int:
    sides = sides_of(results)
    rates = _by_side(wanted, "machine-rate", [side.label for side in sides])
    found = compare(sides, same=wanted.same, meant=wanted.vary, rng=default_rng(wanted.seed))
    is_ranked = found.comparability.may_be_ranked
    if not (is_ranked or wanted.is_shown_anyway):
        return _refuse(found.comparability, as_json=wanted.as_json)
    curves = _curves(sides, {label: _rate(text) for label, text in rates.items()}, slo) if is_ranked else None
    warnings = _whose(sides, results)
    if is_ranked and rates and curves is None:
        warnings = (*warnings, _NO_LEVELS)
    says = found.says if curves is None else (curves.says, *found.says)
    found = replace(found, says=says, warnings=(*found.warnings, *warnings))
    if wanted.csv is not None:
        write_whole(wanted.csv, comparison_csv(sides))
    if wanted.html is not None:
        write_whole(wanted.html, _page(found, curves, results))
    if wanted.as_json:
        print_json({"comparison": found, "may_be_ranked": is_ranked})
    else:
        _print(found, curves)
    return 0


def _whose(sides: Sequence[Side], results: Sequence[Result]) -> tuple[str, ...]:
    """The results' own warnings, each with the label of the side that it is about where a result is of one side."""
    labels = iter([side.label for side in sides])
    told: list[str] = []
    for result in results:
        of = [label for _, label in zip(result.targets, labels, strict=False)]
        told += [f"{of[0]}: {warning}" if len(of) == 1 else warning for warning in result.warnings]
    return tuple(told)


def _refuse(found: Comparability, *, as_json: bool) -> int:
    """Say what differs, with all values, and nothing else."""
    if as_json:
        print_json({"comparison": None, "may_be_ranked": False, "obstacles": found.obstacles})
        return EXIT_REFUSED
    console = err()
    console.print(Text.assemble(("taximeter: ", "bold red"), "these are not ranked, because they differ in"))
    for difference in found.obstacles:
        console.print(Text(f"  {difference}"), soft_wrap=True)
    hints = ["--anyway shows the figures side by side, unranked"]
    if waivable := [each.field.name for each in found.obstacles if not each.field.is_asked]:
        hints.append(f"--vary {waivable[0]} says that it is meant to differ")
    if any(each.field.name == "model" for each in found.obstacles):
        hints.append("--same model says that it is one model under two names")
    console.print(Text.assemble(("  hint: ", "dim"), "; ".join(hints)), soft_wrap=True)
    return EXIT_REFUSED


def _print(found: Comparison, curves: Chart | None) -> None:
    console = out()
    for label, name in found.names.items():
        console.print(Text.assemble((f"{label}  ", "bold"), name), soft_wrap=True)
    console.print()
    for sentence in found.says:
        console.print(Text(sentence, style="bold"))
    table = comparison_table(found)
    if table.rows:
        console.print()
        cells = [dict(zip(table.headings, map(Text, row), strict=True)) for row in table.rows]
        print_table(cells, right=table.headings[2:], least_telling=("n", *reversed(table.headings[2:-1])))
    letters = UNICODE if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII
    for picture in comparison_pictures(found, curves):
        console.print()
        # What pictures say was said above.
        for line in plot(replace(picture, says=picture.name), console.width, letters=letters):
            console.print(line, soft_wrap=True)
    if found.warnings:
        console.print()
    for warning in found.warnings:
        console.print(Text(f"! {warning}", style="yellow"))


def _page(found: Comparison, curves: Chart | None, results: Sequence[Result]) -> str:
    facts = {
        "Measured": ", ".join(f"{result.run} on {result.made_at:%Y-%m-%d %H:%M} UTC" for result in results),
        "By": ", ".join(dict.fromkeys(f"Taximeter {result.taximeter_version}" for result in results)),
        "From": ", ".join(dict.fromkeys(result.environment.get("client_cpu", "unknown") for result in results)),
    }
    made = f"Made {SYSTEM_CLOCK.utc_now():%Y-%m-%d %H:%M} UTC by taximeter compare."
    return page_html(comparison_page(found, curves=curves, facts=facts, made=made))


def _curves(sides: Sequence[Side], rates: Mapping[str, MachineRate], slo: Slo | None) -> Chart | None:
    """Throughput per machine-dollar, of the sides that have levels of load and a rate."""
    drawn = [
        Curve(name=side.label, rate=rates[side.label], points=side.points)
        for side in sides
        if side.points and side.label in rates
    ]
    if not drawn:
        return None
    target = None if slo is None or slo.itl_ns is not None else str(slo)
    return per_dollar_chart(drawn, target=target, target_itl_ns=None if slo is None else slo.itl_ns)


def _measured(wanted: Wanted) -> Result | Comparability:
    """Ask them all in turn. Where that could not be ranked, nothing is asked, unless it is wanted all the same."""
    if len(wanted.subjects) > len(LABELS):
        raise RequestError(f"at most {len(LABELS)} can be compared at once", param="subjects")
    plan = Rounds(
        prompt_tokens=_lengths(wanted.prompt_tokens or (_LENGTHS if wanted.concurrency is None else _LENGTH)),
        output_tokens=wanted.output_tokens,
        rounds=wanted.rounds or (_ROUNDS if wanted.concurrency is None else _TURNS),
        seed=wanted.seed,
    )
    turns = None if wanted.concurrency is None else turns_of(wanted.concurrency, plan)
    purse, settings = Purse(parse_max_cost(wanted.max_cost)), Settings.load()
    accesses = _accesses(wanted)
    with waiting("looking at both sides") as say, Ledger.open(settings.ledger_url, spool=settings.spool_dir) as ledger:
        name = new_run("compare")
        with nothing_counted_yet(ledger, name), asyncio.Runner(loop_factory=punctual_loop) as runner:
            return runner.run(_contest(wanted, accesses, plan, turns, ledger, settings, purse, say, name))


async def _contest(
    wanted: Wanted,
    accesses: Mapping[str, Access],
    plan: Rounds,
    turns: Turns | None,
    ledger: Ledger,
    settings: Settings,
    purse: Purse,
    say: Callable[[str], object],
    run: str,
) -> Result | Comparability:
    async with contextlib.AsyncExitStack() as stack:
        benches = {
            label: await stack.enter_async_context(bench(access, ledger, settings, run=run, purse=purse, say=say))
            for label, access in accesses.items()
        }
        around = environment()
        targets = {label: described(benches[label].target, access.serve_flags) for label, access in accesses.items()}
        known = {label: server_facts(each, client=around) for label, each in targets.items()}
        asked = {"study": "compare", "workload": "", "prompt_tokens": "", "output_tokens": "", "loop": "", "levels": ""}
        asked |= {"cache": "", "definitions": "", "latency_target": ""}  # the same for all, since we ask
        before = comparability(
            {label: {**facts, **asked} for label, facts in known.items()}, same=wanted.same, meant=wanted.vary
        )
        if not (before.may_be_ranked or wanted.is_shown_anyway):
            return before
        prices = {
            label: {length: _price(each, length, plan.output_tokens) for length in plan.prompt_tokens}
            for label, each in benches.items()
        }
        _tell_the_cost(prices, None if turns else plan, purse)
        if turns is not None:
            return await _levels(wanted, benches, targets, prices, plan, turns, around, say)
        seen: dict[str, list[Observation]] = {label: [] for label in benches}
        warnings: list[str] = []
        try:
            contenders = [await _contender(label, each, plan, say) for label, each in benches.items()]
            is_whole = await run_rounds(
                contenders,
                plan,
                on_seen=lambda label, one: seen[label].append(one),
                may_ask=lambda label, length: purse.allows(prices[label][length]),
                on_progress=_progress(say),
            )
            if not is_whole:
                warnings.append("it ended early: more would have cost more than --max-cost")
        except asyncio.CancelledError:
            # Ctrl-C: what was measured so far is shown and kept.
            if not any(seen.values()):
                raise
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            warnings.append("it was interrupted: these are the requests until then")
    return Result(
        kind="compare",
        run=run,
        made_at=SYSTEM_CLOCK.utc_now(),
        taximeter_version=__version__,
        environment=around,
        targets=tuple(targets.values()),
        plan={
            "prompt_tokens": list(plan.prompt_tokens),
            "output_tokens": plan.output_tokens,
            "rounds": plan.rounds,
            "concurrency": 1,
            "cache": "cold",
            "seed": plan.seed,
            "order": "in each round lengths in random order, at each length sides in random order",
        },
        conclusions={},
        observations={str(targets[label]["name"]): tuple(many) for label, many in seen.items()},
        warnings=tuple(warnings),
    )


async def _levels(
    wanted: Wanted,
    benches: Mapping[str, Bench],
    targets: Mapping[str, Mapping[str, Any]],
    prices: Mapping[str, Mapping[int, Decimal | None]],
    plan: Rounds,
    turns: Turns,
    around: Mapping[str, str],
    say: Callable[[str], object],
) -> Result:
    """Levels of load in turn, for curves."""
    (length,) = plan.prompt_tokens
    first = next(iter(benches.values()))
    workload = fixed(length, plan.output_tokens)
    slo = None if wanted.slo is None else Slo.parse(wanted.slo)
    found = await measure_levels(
        benches,
        workload,
        turns,
        duration_s=wanted.duration_s,
        slo=slo,
        may_ask=lambda label: first.purse.allows(prices[label][length]),
        say=say,
        on_progress=_progress(say, "turns"),
    )
    names = {label: str(target["name"]) for label, target in targets.items()}
    return Result(
        kind="compare",
        run=first.run,
        made_at=SYSTEM_CLOCK.utc_now(),
        taximeter_version=__version__,
        environment=around,
        targets=tuple(targets.values()),
        plan={
            "study": "levels",
            "loop": "closed",
            "levels": list(turns.levels),
            "workload": workload.says,
            "duration_s": wanted.duration_s,
            "rounds": turns.rounds,
            "slo": None if slo is None else str(slo),
            "cache": "cold",
            "seed": turns.seed,
            "order": "in each round levels in random order, at each level sides in random order",
        },
        conclusions={"curves": {names[label]: points for label, points in found.curves.items()}},
        observations={names[label]: many for label, many in found.observations.items()},
        warnings=found.warnings,
    )


async def _contender(label: str, each: Bench, plan: Rounds, say: Callable[[str], object]) -> Contender:
    asker = each.asker()
    prompts = await Prompts.calibrated(
        each.target, asker, seed=plan.seed, report=lambda what: say(f"{each.target.name}: {what}")
    )
    if min(plan.prompt_tokens) < prompts.shortest_tokens:
        raise RequestError(
            f"the shortest prompt that {each.target.name} can be given has {prompts.shortest_tokens} tokens",
            param="prompt-tokens",
        )
    return Contender(
        label=label,
        asker=asker,
        question=lambda shape, length, output: prompts.question(shape, prompt_tokens=length, output_tokens=output),
    )


def _price(each: Bench, prompt_tokens: int, output_tokens: int) -> Decimal | None:
    expected = estimate(
        each.tariff,
        each.target.model,
        [(1, prompt_tokens, output_tokens)],
        at=SYSTEM_CLOCK.utc_now(),
        why_none=each.why_no_price,
    )
    return expected.amount


def _tell_the_cost(prices: Mapping[str, Mapping[int, Decimal | None]], plan: Rounds | None, purse: Purse) -> None:
    """Before anything is billed; without a plan nobody knows how often. Raises RequestError where there is a limit, and
    no price to hold against it."""
    each = [price for by_length in prices.values() for price in by_length.values()]
    known = [price for price in each if price is not None]
    if purse.most is not None and len(known) < len(each):
        raise RequestError(
            "with --max-cost every price must be known",
            param="max-cost",
            hint="say --provider NAME, or --machine-rate A=0.50/h",
        )
    if plan is None:
        if any(known):
            price_of_one = {label: next(iter(by_length.values())) for label, by_length in prices.items()}
            err().print(price_of_all(price_of_one), soft_wrap=True)
    elif known and any(known):
        whole = sum(known, Decimal(0)) * (plan.rounds + 1)
        err().print(f"this will cost about ${whole:.4f}, at the prices known", soft_wrap=True)


def _progress(say: Callable[[str], object], what: str = "requests") -> Callable[[int, int], object]:
    """Tells how far it is, and about how long it still takes."""
    began = time.monotonic()

    def tell(done: int, of: int) -> None:
        left = (time.monotonic() - began) / done * (of - done)
        say(f"{done} of {of} {what}, about {left:.0f} s left")

    return tell


def _accesses(wanted: Wanted) -> dict[str, Access]:
    """Each side as it was said. Sides that would have one name are told apart by what else was said of them."""
    labels = LABELS[: len(wanted.subjects)]
    said = {option: _by_side(wanted, option, labels) for option in wanted.by_side}
    made: dict[str, Access] = {}
    for label, where in zip(labels, wanted.subjects, strict=True):
        flags = tuple(shlex.split(said["serve-with"].get(label, "")))
        model = said["model"].get(label)
        apart = " ".join([label, *([] if model is None else [model]), *flags])
        made[label] = Access(
            where=where,
            model=model,
            key=said["key"].get(label),
            api=wanted.api,
            provider=wanted.provider,
            machine_rate=said["machine-rate"].get(label),
            name=f"{where} ({apart})" if wanted.subjects.count(where) > 1 else None,
            serve_flags=flags,
        )
    return made


def _by_side(wanted: Wanted, option: str, labels: Sequence[str]) -> dict[str, str]:
    """`A=x` is for A, `x` for all that nothing else is said of. Raises RequestError for a side that there is not."""
    found: dict[str, str] = {}
    for value in wanted.by_side[option]:
        match = _LABELLED.fullmatch(value)
        if match is not None and match[1] not in labels:
            raise RequestError(f"--{option} {value}: there is no side {match[1]}", param=option)
        found |= {match[1]: match[2]} if match else {label: value for label in labels if label not in found}
    return found


def _lengths(text: str) -> tuple[int, ...]:
    """From the shortest to the longest, each about four times the one before."""
    low, high = count_range(text, "prompt-tokens")
    steps = max(1, round(math.log(high / low, 4)))
    return tuple(dict.fromkeys([*(round(low * (high / low) ** (step / steps)) for step in range(steps)), high]))


def _rate(text: str) -> MachineRate:
    try:
        return MachineRate.parse(text)
    except ValueError as error:
        raise RequestError(f"{text!r} is no rate: it is {error}", param="machine-rate") from error


def _is_result(path: Path) -> bool:
    """Whether it is a file that begins like JSON; a model may be a file too."""
    try:
        with path.open("rb") as file:
            return file.read(1) == b"{"
    except OSError:
        return False
