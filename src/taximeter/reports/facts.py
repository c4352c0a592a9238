"""What a report says in sentences: the total, where it went, what tasks cost, and what is not known.

Owns: the sentences. Refuses to know: where they stand.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from taximeter.figures import money_text, shared_out, sum_text
from taximeter.records import EXACT, Outcome
from taximeter.reports.cells import (
    change_text,
    percentiles_text,
    share_text,
    shares_text,
)
from taximeter.reports.periods import BLOCK
from taximeter.reports.report import Report
from taximeter.reports.sums import TOKEN_GROUPS, Sums
from taximeter.reports.tasks import Costs, TaskFigures

Fact = tuple[str, str]
"""What it is about, and what is to be said."""


def facts(report: Report) -> list[Fact]:
    """From the whole to its parts; what nobody knows anything of is left out, and told by `notes`."""
    total = report.total
    if not total.receipts:
        return []
    return [
        ("cost", _cost(total) + _trend(report)),
        *_fact("dollars", _dollars(total)),
        ("tokens", _tokens(total)),
        *_fact("time", shares_text((phase.value, ns) for phase, ns in total.phases_ns.items())),
        *_percentiles(total),
        *_tasks(report.tasks, report.tasks_before),
        *_failures(total),
        *_running_block(report),
        *_logs(total),
        ("basis", _bases(total)),
    ]


def _uncounted(total: Sums) -> list[str]:
    """How many do not know their tokens: in one line where it is the same for each bucket."""
    counts = {group: total.tokens_of(group)[1] for group in TOKEN_GROUPS}
    if len(set(counts.values())) == 1:
        return (
            [f"{_of(total.uncounted, total.receipts)} unknown counts of tokens, shown as `?`"]
            if total.uncounted
            else []
        )
    told = ((uncounted, group) for group, uncounted in counts.items() if uncounted)
    return [
        f"{_of(uncounted, total.receipts)} an unknown count of tokens `{group}`, shown as `?`"
        for uncounted, group in told
    ]


def notes(report: Report) -> list[str]:
    """What the figures leave out, and why."""
    total = report.total
    if not total.receipts:
        return []
    said: list[str] = []
    if total.unpriced:
        said.append(
            f"{_of(total.unpriced, total.receipts)} no known cost, and {'is' if total.unpriced == 1 else 'are'} in no"
            " amount: `taximeter receipt ID` says why"
        )
    said += _uncounted(total)
    if not total.timed:
        said.append("no request was timed: logs do not tell how long an answer took, nor when its first token came")
    elif not total.first_token.of:
        said.append("no first token was seen: where answers come in one piece, nobody knows")
    if total.off_scale:
        said.append(f"{total.off_scale:,} figures are too large for a sum, and are in their receipts only")
    finished = report.tasks.finished
    if unknown := finished.n - finished.priced:
        said.append(
            f"{unknown:,} of the {finished.n:,} finished tasks {'has' if unknown == 1 else 'have'} no known cost, and"
            f" {'is' if unknown == 1 else 'are'} in no median"
        )
    if finished.at_least:
        said.append(
            f"{finished.at_least:,} of the {finished.n:,} finished tasks cost more than is known: some of their"
            " requests have no known cost"
        )
    return said


def _trend(report: Report) -> str:
    before, length = report.before, _length(report.question.until - report.question.since)
    if not before.receipts:
        return f"; nothing in the {length} before"
    change = change_text(report.total.cost, before.cost) if report.total.unpriced < report.total.receipts else ""
    requests = change_text(Decimal(report.total.receipts), Decimal(before.receipts))
    change = f"{change} against " if change else "against "
    return f"; {change}{_cost(before)} in the {length} before, requests {requests}"


def _cost(sums: Sums) -> str:
    return sum_text(sums.cost, sums.unpriced, of=sums.receipts)


def _dollars(total: Sums) -> str:
    amounts = sorted(((amount, group) for group, amount in total.money_by_group().items() if amount), reverse=True)
    if not amounts or amounts[-1][0] < 0:
        return ", ".join(f"{group} {money_text(amount)}" for amount, group in amounts)
    shares = shared_out([int(amount.scaleb(12, EXACT)) for amount, _ in amounts], 1000)
    return ", ".join(
        f"{group} {money_text(amount)} ({share_text(share)})"
        for (amount, group), share in zip(amounts, shares, strict=True)
    )


def _tokens(total: Sums) -> str:
    parts = [(group, total.tokens_of(group)[0]) for group in TOKEN_GROUPS]
    shares = shares_text(parts)
    at_least = "at least " if total.uncounted else ""
    return f"{at_least}{total.total_tokens:,}" + (f": {shares}" if shares else "")


def _percentiles(total: Sums) -> list[Fact]:
    named = (("first token", total.first_token), ("a token", total.inter_token), ("answer", total.total))
    return [(name, percentiles_text(found, total.receipts)) for name, found in named if found.of]


def _tasks(now: TaskFigures, before: TaskFigures) -> list[Fact]:
    if not now.finished.n:
        return []
    told = [("finished", _costs(now.finished, "task", before.finished))]
    if now.succeeded.n:
        each = (
            f"; {money_text(now.per_success)} for each success, failures paid too"
            if now.per_success is not None
            else ""
        )
        told.append(("succeeded", _costs(now.succeeded, "task", before.succeeded) + (each if now.failed.n else "")))
    if now.failed.n:
        told.append(("failed", _costs(now.failed, "task", before.failed)))
    if now.ended.n:
        told.append(("ended", _costs(now.ended, "task", before.ended) + ", by silence: nobody said how"))
    return told


def _costs(costs: Costs, noun: str, before: Costs) -> str:
    # Of a task that has no requests yet the cost is as unknown as of one whose requests have none.
    known = None if costs.priced else costs.unpriced
    cost = sum_text(costs.cost, costs.unpriced, of=known) if costs.priced or costs.unpriced else "?"
    text = f"{costs.n:,} {noun}{'' if costs.n == 1 else 's'}, {cost}"
    if costs.median is None or costs.p90 is None:
        return text
    text += f"; median {money_text(costs.median)}, p90 {money_text(costs.p90)}"
    change = "" if before.median is None else change_text(costs.median, before.median)
    return text + (f" (median {change})" if change else "")


def _failures(total: Sums) -> list[Fact]:
    if not total.failures:
        return []
    ended = ", ".join(
        f"{count:,} {outcome.value}"
        for outcome, count in sorted(total.outcomes.items())
        if count and outcome is not Outcome.COMPLETED
    )
    cost = sum_text(total.failed_cost, total.failed_unpriced, of=total.failures)
    return [("incomplete", f"{total.failures:,} of {total.receipts:,} requests ({ended}): {cost}")]


def _running_block(report: Report) -> list[Fact]:
    """The block that has not ended yet: how long it lasts, and what it comes to if it goes on so."""
    if report.question.by != "block" or report.question.until < report.made_at:
        return []
    block = report.rows[-1]
    if block.since is None or block.since + BLOCK <= report.made_at or block.since == report.question.since:
        return []
    left, gone = block.since + BLOCK - report.made_at, report.made_at - block.since
    cost, gone_s = block.sums.cost, max(60, round(gone.total_seconds()))
    an_hour, more = cost * 3600 / gone_s, cost * round(left.total_seconds()) / gone_s
    minutes = round(left.total_seconds() / 60)
    text = f"{minutes // 60} h {minutes % 60:02} min left of the running block"
    unpriced = block.sums.unpriced
    if unpriced == block.sums.receipts:
        return [("block", f"{text}, of which no cost is known")]
    text += f", {money_text(an_hour)} an hour; {money_text(cost + more)} at its end if it goes on so (modelled)"
    return [("block", text + (f"; {unpriced:,} unpriced in neither" if unpriced else ""))]


def _logs(total: Sums) -> list[Fact]:
    if not total.reported:
        return []
    return [("logs say", f"{money_text(total.cost_reported)} for {total.reported:,} of {total.receipts:,} requests")]


def _bases(total: Sums) -> str:
    known = (
        ("money", total.cost_basis),
        ("tokens", total.usage_basis),
        ("time", total.time_basis),
        ("ITL", total.inter_token_basis),
    )
    return ", ".join(f"{name} {basis.value}" for name, basis in known if basis is not None) or "nothing is known"


def _fact(about: str, text: str) -> list[Fact]:
    return [(about, text)] if text else []


def _of(count: int, whole: int) -> str:
    return f"{count:,} of {whole:,} requests {'has' if count == 1 else 'have'}"


def _length(span: timedelta) -> str:
    """A span as people say it."""
    days, rest = divmod(round(span.total_seconds() / 3600), 24)
    parts = [(days, "day"), (rest, "hour")]
    return " ".join(f"{count:,} {unit}{'' if count == 1 else 's'}" for count, unit in parts if count) or "time"
