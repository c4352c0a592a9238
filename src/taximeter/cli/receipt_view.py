"""A receipt as people read it: one block to look at or to paste, and one line for a log.

Pure: a `Receipt` in, something rich can print out. Owns: layout and glyphs; the JSON has every digit. Refuses to know:
where it is printed; a console without colours gets none, and one that cannot show Unicode gets ASCII.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from taximeter.figures import SHORT_ID, count_text, duration_text, money_text, ms_text, rate_text, shared_out
from taximeter.records import Attempt, Basis, Cost, CostLine, Outcome, Phase, PriceList, Receipt, Timing, Usage

_WIDTH: Final = 68
_MIN_WIDTH: Final = 40
_LABEL_WIDTH: Final = 9
_AMOUNT_WIDTH: Final = 13

_OUTCOME_STYLES: Final = {Outcome.COMPLETED: "green", Outcome.ABORTED: "yellow", Outcome.INTERRUPTED: "yellow"}
_BAD: Final = "red"
_READ: Final = "cyan"  # the prompt's side of every bar
_WRITTEN: Final = "magenta"  # the answer's
_PHASE_STYLES: Final = {
    Phase.GATEWAY: "blue",
    Phase.QUEUE: "yellow",
    Phase.PREFILL: _READ,
    Phase.DECODE: _WRITTEN,
    Phase.STALLED: _BAD,
    Phase.UPSTREAM: "green",
}
_LEAF_NAMES: Final = {
    "input_fresh_tokens": "fresh",
    "input_cache_read_tokens": "cached",
    "input_cache_write_5m_tokens": "written to cache",
    "input_cache_write_30m_tokens": "written to cache for 30 min",
    "input_cache_write_1h_tokens": "written to cache for 1 h",
    "input_cache_write_12h_tokens": "written to cache for 12 h",
    "input_cache_write_unknown_tokens": "written to cache for a time unsaid",
    "input_image_tokens": "image",
    "input_audio_tokens": "audio",
    "input_audio_cache_read_tokens": "cached audio",
    "output_text_tokens": "text",
    "output_reasoning_tokens": "reasoning",
    "output_image_tokens": "image",
    "output_audio_tokens": "audio",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Glyphs:
    phases: Mapping[Phase, str]
    full: str
    empty: str
    corner: str
    line: str
    mark: str
    times: str


_UNICODE: Final = _Glyphs(
    phases=dict(zip(Phase, "░▒▓█╳▞", strict=True)), full="█", empty="░", corner="└", line="─", mark="┴", times="×"
)
_ASCII: Final = _Glyphs(
    phases=dict(zip(Phase, ".~=#x%", strict=True)), full="#", empty=".", corner="'", line="-", mark="^", times="x"
)


class ReceiptView:
    """The whole receipt, for `Console.print`."""

    def __init__(self, receipt: Receipt) -> None:
        self._receipt = receipt

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        width = max(_MIN_WIDTH, min(_WIDTH, options.max_width))
        for line in _Page(self._receipt, width, _ASCII if options.ascii_only else _UNICODE).lines():
            line.no_wrap = True
            line.overflow = "ignore"
            yield line


def receipt_line(receipt: Receipt) -> Text:
    """The receipt in one line: when, what, how long, how much."""
    what, how_it_ended, why = _line_parts(receipt)
    line = Text(what)
    line.append(how_it_ended, style=outcome_style(receipt.outcome)).append(why)
    return line.append(f"  {receipt.id[:SHORT_ID]}", style="dim")


def receipt_text(receipt: Receipt) -> str:
    """The same line for what shows no colours: a busy server writes thousands of them to its log."""
    return f"{''.join(_line_parts(receipt))}  {receipt.id[:SHORT_ID]}"


def _line_parts(receipt: Receipt) -> tuple[str, str, str]:
    """What was asked and served; how it ended, where that was not well; and why."""
    parts = [f"{receipt.request.received_at:%H:%M:%S}", receipt.model_served or receipt.request.model]
    if receipt.usage is not None:
        cached = receipt.usage.input_cache_read_tokens
        parts.append(f"{count_text(receipt.usage.input_tokens)} in" + (f" ({cached:,} cached)" if cached else ""))
        parts.append(f"{count_text(receipt.usage.output_tokens)} out")
    if receipt.timing is not None:
        if receipt.timing.first_token_ns is not None:
            parts.append(f"TTFT {duration_text(receipt.timing.first_token_ns)}")
        parts.append(duration_text(receipt.timing.total_ns))
    if receipt.cost is not None:
        parts.append(money_text(receipt.cost.total))
    what = "  ".join(parts)
    if receipt.outcome is Outcome.COMPLETED:
        return what, "", ""
    return what, f"  {receipt.outcome}", f": {receipt.error}" if receipt.error else ""


def outcome_style(outcome: Outcome) -> str:
    """The colour of an outcome."""
    return _OUTCOME_STYLES.get(outcome, _BAD)


class _Page:
    """Lines of one receipt at one width. Every line starts at the left edge and none is wider than `width`."""

    def __init__(self, receipt: Receipt, width: int, glyphs: _Glyphs) -> None:
        self._receipt = receipt
        self._width = width
        self._glyphs = glyphs
        self._bar_cells = width - _LABEL_WIDTH - _AMOUNT_WIDTH

    def lines(self) -> Iterator[Text]:
        inside = (self._tokens(), self._time(), self._tries(), self._limits(), self._money())
        for line in self._head():
            yield from self._folded(line, 0)
        for part in inside:
            for number, line in enumerate(part):
                if number == 0:
                    yield Text()
                yield from self._folded(line, _LABEL_WIDTH + 2)
        yield Text()
        for line in self._foot():
            yield from self._folded(line, 0)

    def _head(self) -> Iterator[Text]:
        receipt = self._receipt
        reasons = ", ".join(dict.fromkeys(receipt.finish_reasons))
        outcome = Text(f"{receipt.outcome}", style=outcome_style(receipt.outcome))
        if reasons:
            outcome.append(f": {reasons}", style="default")
        yield from self._apart(Text(receipt.model_served or receipt.request.model, style="bold"), outcome)
        by = [receipt.served_by or "served by nobody"]
        if receipt.source is not None:
            by.append(f"imported from {receipt.source}")
        if receipt.work is not None and receipt.work.kernels is not None:
            by.append(receipt.work.kernels)
        when = f"{receipt.request.received_at:%Y-%m-%d %H:%M:%S} UTC"
        yield from self._apart(Text(", ".join(by)), Text(when))
        names = {name: getattr(receipt.request, name) for name in ("task", "run", "session", "key")}
        groups = [f"{name} {value}" for name, value in names.items() if value]
        groups += [f"{key}={value}" for key, value in receipt.request.labels.items()]
        if groups:
            yield Text(", ".join(groups), style="dim")
        if terms := _terms_text(receipt):
            yield Text(terms, style="dim")
        if receipt.upstream_request_id is not None:
            yield Text(f"request {receipt.upstream_request_id} at {receipt.served_by}", style="dim")
        if receipt.supersedes is not None:
            yield Text(f"corrects {receipt.supersedes}", style="dim")
        if receipt.error is not None:
            yield from self._wrapped(receipt.error, style=_BAD)

    def _tokens(self) -> Iterator[Text]:
        usage = self._receipt.usage
        if usage is None:
            yield from self._unknown("tokens", self._receipt.unmeasured_reason)
            return
        for total, word, leaves, style in (
            (usage.input_tokens, "in", usage.INPUT_LEAVES, _READ),
            (usage.output_tokens, "out", usage.OUTPUT_LEAVES, _WRITTEN),
        ):
            line = self._label("tokens" if word == "in" else "")
            line.append(f"{count_text(total):>7} ", style="bold")
            line.append(f"{word:<5}", style=style)
            line.append(_leaves_text(usage, leaves), style="dim")
            line.rstrip()
            yield line
        for model, leaves in usage.by_model.items():
            parts = [f"{count:,} {_LEAF_NAMES.get(leaf, leaf)}" for leaf, count in leaves.items() if count]
            yield self._note(f"of these by {model}: {' + '.join(parts) or 'none'}")
        for name, units in usage.other_units.items():
            yield self._label("").append(f"{units:>7,} ").append(name.replace("_", " "))
        for leaf, reason in usage.unknown_reasons.items():
            yield from self._explained("", f"{_LEAF_NAMES.get(leaf, leaf)} unknown: {reason}")

    def _time(self) -> Iterator[Text]:
        timing = self._receipt.timing
        if timing is None:
            yield from self._unknown("time", self._receipt.unmeasured_reason)
            return
        phases = {phase: spent_ns for phase, spent_ns in timing.phases().items() if spent_ns}
        cells = shared_out(list(phases.values()), self._bar_cells)
        bar = self._bar(
            (self._glyphs.phases[phase], count, _PHASE_STYLES[phase])
            for phase, count in zip(phases, cells, strict=True)
        )
        yield self._row("time", bar, duration_text(timing.total_ns))
        if timing.first_token_ns is not None:
            yield from self._first_token(timing, timing.first_token_ns)
        names = max((len(phase) for phase in phases), default=0)
        times = max((len(ms_text(spent_ns)) for spent_ns in phases.values()), default=0)
        for (phase, spent_ns), tenths in zip(phases.items(), shared_out(list(phases.values()), 1000), strict=True):
            line = self._label("").append(self._glyphs.phases[phase], style=_PHASE_STYLES[phase])
            share = f"{tenths / 10:>5.1f}" if tenths else " <0.1"
            line.append(f" {phase:<{names}}  {ms_text(spent_ns):>{times}} ms  {share} %")
            if doing := self._doing(phase):
                line.append(f"  {doing}", style="dim")
            if phase in timing.reported_phases:
                line.append("  reported", style="dim")
            yield line

    def _first_token(self, timing: Timing, first_token_ns: int) -> Iterator[Text]:
        """Where on the bar above the first token came, and the pace from then to the end; the words stand on the side
        that has room."""
        at_cell = min(self._bar_cells - 1, first_token_ns * self._bar_cells // max(1, timing.total_ns))
        right_cells = self._width - _LABEL_WIDTH - at_cell - 1
        first = f"first token {duration_text(first_token_ns)}"
        pace_ns = self._receipt.inter_token_ns
        pace = "" if pace_ns is None else f"then {duration_text(pace_ns)} a token"
        both = f"{first}, {pace}" if pace else first
        places = ((both, "", ""), ("", both, ""), (first, pace, ""), (first, "", pace), ("", first, pace))
        left, right, below = next(
            (place for place in places if len(place[0]) < max(1, at_cell) and len(place[1]) < right_cells),
            ("", "", both),
        )
        line = self._label("")
        if left:
            line.append(f"{left} ".rjust(at_cell))
        elif at_cell:
            line.append(self._glyphs.corner + self._glyphs.line * (at_cell - 1), style="dim")
        line.append(self._glyphs.mark, style="dim").append(f" {right}" if right else "")
        yield line
        if below:
            yield self._label("").append(below)
        if timing.first_answer_ns is not None and timing.first_answer_ns > first_token_ns:
            yield self._note(f"the answer begins after {duration_text(timing.first_answer_ns)}, reasoning comes first")

    def _doing(self, phase: Phase) -> str:
        """What was done in a phase, as far as it is known."""
        work = self._receipt.work
        counted = work and {
            Phase.PREFILL: (work.prefill_passes, "pass", "passes"),
            Phase.DECODE: (work.decode_passes, "pass", "passes"),
            Phase.STALLED: (work.preemptions, "preemption", "preemptions"),
        }.get(phase)
        if not counted:
            return ""
        count, one, many = counted
        return f"{count:,} {one if count == 1 else many}"

    def _tries(self) -> Iterator[Text]:
        """Who was asked, where it was not the first one at once."""
        tries = self._receipt.tries
        if len(tries) > 1 or any(attempt.error for attempt in tries):
            for label, attempt in zip(["tries", *[""] * len(tries)], tries, strict=False):
                yield self._label(label).append(_try_text(attempt))

    def _limits(self) -> Iterator[Text]:
        """How near the work came to what the machine can do, and what energy it took, as far as that was counted."""
        work = self._receipt.work
        if work is None:
            return
        if "ceiling" in work.unknown_reasons:
            yield from self._explained("limits", f"unknown: {work.unknown_reasons['ceiling']}")
        lines: list[str] = []
        if work.ceiling is not None and work.prefill_peak_ratio is not None:
            peak = work.ceiling.operations_per_s
            lines.append(
                f"prefill {_share_text(work.prefill_peak_ratio)} of the {work.ceiling.unit} peak, "
                f"{_giga_text(work.prefill_peak_ratio * peak)} of {_giga_text(peak)} Gop/s"
            )
        if work.ceiling is not None and work.decode_bus_ratio is not None:
            bus = work.ceiling.read_bytes_per_s
            lines.append(
                f"decode {_share_text(work.decode_bus_ratio)} of the memory bus, "
                f"{_giga_text(work.decode_bus_ratio * bus)} of {_giga_text(bus)} GB/s"
            )
        for label, line in zip(("limits", ""), lines, strict=False):
            yield self._label(label).append(line)
        if work.energy_uj is not None:
            yield self._label("energy").append(f"{work.energy_uj / 1e6:,.3f} J of the processor's")

    def _money(self) -> Iterator[Text]:
        receipt = self._receipt
        if receipt.cost is None:
            yield from self._unknown("money", receipt.uncosted_reason)
        elif receipt.cost.price_list is None:
            yield from self._machine_money(receipt.cost)
        else:
            yield from self._priced_money("money", receipt.cost, beside=receipt.cost_priced_as)
            yield from self._bill(receipt.cost, receipt.cost.price_list)
        if receipt.cost_priced_as is not None:
            yield from self._priced_money("versus", receipt.cost_priced_as, beside=receipt.cost)
        if receipt.cost_reported is not None:
            yield self._note(f"{receipt.source or 'its log'} itself says {money_text(receipt.cost_reported)}")

    def _machine_money(self, cost: Cost) -> Iterator[Text]:
        """The bar is the machine's bill while the request was there; its filled part is on this receipt."""
        amount = self._amount(cost, self._receipt.cost_priced_as)
        for line in cost.lines:  # one, for the machine's time
            hourly = f"at {rate_text(line.rate.amount)}/h"
            total_ns = 0 if self._receipt.timing is None else self._receipt.timing.total_ns
            if not 0 < line.quantity <= total_ns:
                yield self._row("money", Text(), amount)
                yield self._note(f"{duration_text(line.quantity)} of the machine {hourly}")
                continue
            paid, rest = shared_out([line.quantity, total_ns - line.quantity], self._bar_cells)
            bar = self._bar([(self._glyphs.full, paid, _WRITTEN), (self._glyphs.empty, rest, "dim")])
            yield self._row("money", bar, amount)
            share = f"{line.quantity / total_ns:.1%}".replace("%", " %")
            yield self._note(f"{share} of the machine for {duration_text(total_ns)}, {hourly}")

    def _priced_money(self, label: str, cost: Cost, *, beside: Cost | None) -> Iterator[Text]:
        """The bar is the bill of a price list, split into what was read and what was written."""
        assert cost.price_list is not None  # noqa: S101  # the caller's branch
        sides = {"input": cost.input or Decimal(0), "output": cost.output or Decimal(0)}
        sides["other"] = cost.total - sum(sides.values())
        amounts = [int(amount.scaleb(12)) for amount in sides.values()]
        cells = shared_out(amounts, self._bar_cells)
        glyphs = (self._glyphs.phases[Phase.PREFILL], self._glyphs.full, self._glyphs.phases[Phase.UPSTREAM])
        bar = self._bar(zip(glyphs, cells, (_READ, _WRITTEN, "default"), strict=True))
        yield self._row(label, bar, self._amount(cost, beside))
        split = ", ".join(
            f"{name} {percent or '<1'} %"
            for name, percent, amount in zip(sides, shared_out(amounts, 100), amounts, strict=True)
            if amount
        )
        tier = "" if cost.price_list.tier == "standard" else f" {cost.price_list.tier}"
        yield self._note(f"{cost.price_list.model}{tier}" + (f": {split}" if split else ""))

    def _bill(self, cost: Cost, prices: PriceList) -> Iterator[Text]:
        """Every line of the bill, and whose prices these are."""
        smallest = min((line.amount for line in cost.lines if line.amount), default=None)
        for line in cost.lines:
            text = Text(_line_text(line), style="dim")
            amount = money_text(line.amount, beside=smallest)
            if len(text) + 1 + max(len(amount), _AMOUNT_WIDTH) <= self._width - _LABEL_WIDTH:
                padding = " " * (self._width - _LABEL_WIDTH - len(text) - len(amount))
                yield self._label("").append_text(text).append(padding).append(amount, style="dim")
            else:
                yield self._label("").append_text(text).append(f"  {amount}", style="dim")
        dates = [f"since {prices.valid_from:%Y-%m-%d}"] if prices.valid_from is not None else []
        dates += [f"checked on {prices.checked_on}"] if prices.checked_on is not None else []
        yield self._note(", ".join([f"prices of {prices.source}", *dates]))

    def _amount(self, cost: Cost, beside: Cost | None) -> str:
        in_line = money_text(cost.total, beside=None if beside is None else beside.total)
        return in_line if len(in_line) < _AMOUNT_WIDTH else money_text(cost.total)

    def _foot(self) -> Iterator[Text]:
        basis = Text(_basis_text(self._receipt), style="dim")
        yield from self._apart(Text(self._receipt.id, style="dim"), basis)

    def _apart(self, left: Text, right: Text) -> Iterator[Text]:
        """`left` at the left edge, `right` at the right one; below each other where they do not fit."""
        gap = self._width - len(left) - len(right)
        if gap >= 2:
            yield Text.assemble(left, " " * gap, right)
        else:
            yield left
            yield right

    def _folded(self, line: Text, indent: int) -> Iterator[Text]:
        """A line that is too wide goes on in the next, `indent` cells in, from a word's beginning where it can."""
        while len(line) > self._width:
            space = line.plain.rfind(" ", indent + 1, self._width + 1)
            cut = space if line.plain[:space].strip() and space > 0 else self._width
            head, rest = line.divide([cut])
            head.rstrip()
            yield head
            start = len(rest) - len(rest.plain.lstrip())
            line = Text.assemble(" " * indent, rest[start:])
        yield line

    def _label(self, text: str) -> Text:
        return Text.assemble((f"{text:<{_LABEL_WIDTH}}", "bold"))

    def _row(self, label: str, bar: Text, amount: str) -> Text:
        padding = " " * (self._bar_cells - len(bar))
        return Text.assemble(self._label(label), bar, padding, (f"{amount:>{_AMOUNT_WIDTH}}", "bold"))

    def _note(self, text: str) -> Text:
        return self._label("").append(text, style="dim")

    def _bar(self, segments: Iterator[tuple[str, int, str]] | Sequence[tuple[str, int, str]]) -> Text:
        return Text.assemble(*((glyph * cells, style) for glyph, cells, style in segments))

    def _unknown(self, label: str, reason: str | None) -> Iterator[Text]:
        return self._explained(label, f"unknown: {reason}")

    def _explained(self, label: str, text: str) -> Iterator[Text]:
        for line in self._wrapped(text, width=self._width - _LABEL_WIDTH):
            yield self._label(label).append_text(line)
            label = ""

    def _wrapped(self, text: str, *, style: str = "", width: int | None = None) -> list[Text]:
        lines: list[str] = [""]
        for word in text.split():
            if lines[-1] and len(lines[-1]) + 1 + len(word) > (width or self._width):
                lines.append("")
            lines[-1] += f" {word}" if lines[-1] else word
        return [Text(line, style=style) for line in lines]


def _terms_text(receipt: Receipt) -> str:
    """What it was served under, and what was asked for where that is something else."""
    asked, terms = receipt.request.tier, receipt.terms
    served = None if terms is None else terms.tier
    tier = [f"tier {served}"] if served else []
    if asked is not None and asked != served:
        tier = [f"tier {asked} asked for, {served or 'which one was served is not said'}{' served' if served else ''}"]
    more = [] if terms is None else [("speed", terms.speed), ("geography", terms.geography)]
    return ", ".join([*tier, *(f"{name} {word}" for name, word in more if word)])


def _try_text(attempt: Attempt) -> str:
    said = attempt.error or f"answered with status {attempt.status}"
    if not said.startswith(attempt.upstream):  # many errors name it themselves
        said = f"{attempt.upstream}: {said}"
    if attempt.error is not None and not attempt.duration_ns:
        return said
    start, end = attempt.started_ns, attempt.started_ns + attempt.duration_ns
    return f"{said}, {ms_text(start)} to {ms_text(end)} ms"


def _line_text(line: CostLine) -> str:
    """A line of a bill: how much of what, at which rate."""
    name = line.unit.removesuffix("_tokens").replace("_", " ")
    per = {1: " each", 1_000: "/k", 1_000_000: "/M"}.get(line.rate.per, f" for {line.rate.per:,}")
    of = "" if line.model is None else f" of {line.model}"
    return f"{line.quantity:,} {name}{of} at {rate_text(line.rate.amount)}{per}"


def _share_text(ratio: float) -> str:
    return f"{ratio:.1%}".replace("%", " %")


def _giga_text(amount: float) -> str:
    """In 10⁹, three digits of it."""
    return f"{amount / 1e9:,.0f}" if amount >= 100e9 else f"{amount / 1e9:.3g}"


def _leaves_text(usage: Usage, names: Sequence[str]) -> str:
    """How a total divides, when it does."""
    leaves = usage.leaves()
    shown = {name: leaves[name] for name in names if leaves[name] != 0}
    if not shown or list(shown) == [names[0]]:
        return _LEAF_NAMES[names[0]] if names is usage.INPUT_LEAVES and shown else ""
    return " + ".join(f"{count_text(count)} {_LEAF_NAMES[name]}" for name, count in shown.items())


def _basis_text(receipt: Receipt) -> str:
    """How the figures are known: `tokens and time measured, money assumed`."""
    known: dict[Basis, list[str]] = {}
    figures: tuple[tuple[Literal["tokens", "time", "money"], Usage | Timing | Cost | None], ...] = (
        ("tokens", receipt.usage),
        ("time", receipt.timing),
        ("money", receipt.cost),
    )
    for name, figure in figures:
        if figure is not None:
            known.setdefault(figure.basis, []).append(name)
    return ", ".join(f"{' and '.join(names)} {basis}" for basis, names in known.items())
