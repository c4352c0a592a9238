"""Receipts that have most of themselves in common: calls read from somebody's log, a hundred thousand of them a second.

A *form* is one receipt that stands for all of them; a *call* has what its own receipt says otherwise: names, times,
tokens. Many calls go together by columns: see `calls`. The form's document is kept once, a call is a row of `receipts`
and has no document: `derive` makes its receipt from the two. Owns: which parts a call may say, and what its cost is by
the form's rates. Refuses to know: SQL, and whose log it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, NamedTuple, Self

from taximeter.ledger import rows
from taximeter.ledger.columns import PHASE_COLUMNS, TOKEN_COLUMNS
from taximeter.ledger.documents import document
from taximeter.ledger.sql import instant
from taximeter.records import (
    PICODOLLARS_PER_DOLLAR,
    Basis,
    Cost,
    CostLine,
    Rate,
    Receipt,
    Timing,
    Usage,
    weakest,
)

NO_PRICE = 10**19
"""A price that no column holds for a single token, and that costs nothing where there is none."""

_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


class Call(NamedTuple):
    """One call of a form. A tuple, because there are millions of them.

    `received_at` and `closed_at` are UTC as the ledger has it, `2026-10-29 12:00:00.000000`. `tokens` are those of the
    form's `leaves`, in their order. `total_ns` and `first_token_ns` are given where the form has a timing, all of which
    is then *upstream*. `reported` is what the log says that the call cost. `supersedes` is the receipt that it
    corrects.
    """

    form: Form
    id: str
    request_id: str
    received_at: str
    closed_at: str
    tokens: tuple[int, ...]
    total_ns: int | None = None
    first_token_ns: int | None = None
    reported: Decimal | None = None
    upstream_request_id: str | None = None
    supersedes: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What calls have in common. `rates` are the picodollars of one token of each of the `leaves` (`NO_PRICE` where it
    has none), and None where no call has a cost. `belongings` are in columns, in the order of `BELONGING_COLUMNS`; the
    `document` has all else, and is the same for many forms. `digest` stands for it."""

    prototype: Receipt
    leaves: tuple[str, ...]
    rates: tuple[int, ...] | None
    belongings: rows.Row
    document: str
    digest: str

    @classmethod
    def of(cls, prototype: Receipt, leaves: Iterable[str]) -> Self:
        """The form of which `prototype` is a call, settled as it would be appended; calls say the tokens of `leaves`.

        Raises ValueError where a call's receipt could not be derived: without a usage, or with a cost that is more than
        the tokens of the leaves times whole picodollars. Such receipts are appended as they are.
        """
        leaves = tuple(leaves)
        usage, cost = prototype.usage, prototype.cost
        if usage is None or prototype.work is not None or prototype.cost_priced_as is not None:
            raise ValueError("a form needs a usage, and is of nothing that our own engine did")
        constant = {name: count for name, count in usage.leaves().items() if name not in leaves}
        if len(leaves) + len(constant) != len(TOKEN_COLUMNS) or any(constant.values()):
            raise ValueError(f"calls of a form say all the tokens there are, and these leave out {constant}")
        if usage.other_units or usage.by_model or usage.prompts_tokens or usage.reported is not None:
            raise ValueError("calls of a form have nothing but tokens")
        if any(usage.leaves()[name] is None for name in leaves):
            raise ValueError("what a call says is known")
        timing = prototype.timing
        if timing is not None:
            timing = Timing(upstream_ns=0, total_ns=0, basis=timing.basis)
        shared = replace(
            prototype,
            id="",
            request=replace(prototype.request, id="", received_at=_NEVER, received_ns=0, **_NOBODYS),
            closed_at=_NEVER,
            timing=timing,
            usage=replace(usage, **dict.fromkeys(leaves, 0)),
            cost=None if cost is None else replace(cost, lines=_rates_of(cost, leaves, usage.basis)),
            supersedes=None,
            cost_reported=None,
            upstream_request_id=None,
        )
        rates = None if shared.cost is None else _picodollars_of(shared.cost, leaves)
        text = document(shared)
        digest = sha256(text.encode()).hexdigest()[:32]
        request = prototype.request
        groups = (request.task, request.run, request.session, request.key, prototype.source)
        return cls(shared, leaves, rates, _belongings(*groups, request.labels), text, digest)

    def belonging_to(
        self,
        *,
        task: str | None = None,
        run: str | None = None,
        session: str | None = None,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Form:
        """The same for calls that belong elsewhere: for a tenth of what `of` takes. Raises ValueError as `of`."""
        belongings = _belongings(task, run, session, key, self.prototype.source, labels or {})
        return Form(self.prototype, self.leaves, self.rates, belongings, self.document, self.digest)


_NOBODYS: dict[str, Any] = {"task": None, "run": None, "session": None, "key": None, "labels": {}}


def _belongings(
    task: str | None,
    run: str | None,
    session: str | None,
    key: str | None,
    source: str | None,
    labels: Mapping[str, str],
) -> rows.Row:
    """Raises ValueError for names that columns do not give back as they are."""
    stored = rows.stored_belongings(task, run, session, key, source, labels)
    if stored[:-1] != (task, run, session, key, source) or rows.labels_from(stored[-1]) != labels:
        raise ValueError("a form's names fit into columns: short ones, without NUL and half surrogate pairs")
    return stored


def _rates_of(cost: Cost, leaves: tuple[str, ...], of_usage: Basis) -> tuple[CostLine, ...]:
    """What a token of each leaf costs, as a line for none of them: as the prototype was charged, else as its price list
    says. Raises ValueError for a cost that a call's tokens do not make."""
    prices = cost.price_list
    if prices is None or prices.rate("requests") is not None:
        raise ValueError("a form's cost is by a price list, for tokens only")
    basis = weakest((of_usage, prices.basis, Basis.DERIVED))
    if cost.basis is not weakest((basis, *(line.basis for line in cost.lines))):
        raise ValueError("a form's cost is known as well as its lines are")
    lines: dict[str, CostLine] = {}
    for line in cost.lines:
        rate = _picodollars(line.rate)
        exact = rate is not None and rows.picodollars_of(line.amount) == rate * line.quantity
        if line.unit not in leaves or line.unit in lines or line.model is not None or not exact:
            raise ValueError(f"{line.quantity} {line.unit} are no tokens of a call at whole picodollars")
        lines[line.unit] = replace(line, quantity=0, amount=Decimal(0))
    for leaf in leaves:
        rate = prices.rate(leaf)
        if leaf not in lines and rate is not None:
            lines[leaf] = CostLine(unit=leaf, quantity=0, rate=rate, amount=Decimal(0), basis=basis)
    return tuple(lines.values())


def _picodollars_of(cost: Cost, leaves: tuple[str, ...]) -> tuple[int, ...]:
    """Of one token of each leaf."""
    rates = {line.unit: _picodollars(line.rate) for line in cost.lines}
    known = (rates.get(leaf) for leaf in leaves)
    return tuple(NO_PRICE if rate is None else rate for rate in known)


def _picodollars(rate: Rate | None) -> int | None:
    """Of one unit; None where it is not whole."""
    if rate is None:
        return None
    numerator, denominator = rate.amount.as_integer_ratio()
    whole, rest = divmod(numerator * PICODOLLARS_PER_DOLLAR, denominator * rate.per)
    return None if rest else whole


def derive(form: Receipt, row: Mapping[str, Any]) -> Receipt:
    """The receipt of a call, from its form's document and its row of `receipts`."""
    assert form.usage is not None  # noqa: S101 - see `Form.of`
    request = replace(
        form.request,
        id=row["request_id"],
        received_at=instant(row["received_at"]),
        **{name: row[name] for name in ("task", "run", "session", "key")},
        labels=dict(rows.labels_from(row["labels"])),
    )
    tokens = {name: row[name] for name in TOKEN_COLUMNS if row[name] is not None}
    usage = replace(form.usage, **tokens)
    timing = form.timing
    if timing is not None:
        phases = {name: row[name] for name in PHASE_COLUMNS}
        timing = replace(timing, **phases, total_ns=row["total_ns"], first_token_ns=row["first_token_ns"])
    reported = row["reported_picodollars"]
    return replace(
        form,
        id=row["id"],
        request=request,
        closed_at=instant(row["closed_at"]),
        timing=timing,
        usage=usage,
        cost=None if form.cost is None else replace(form.cost, lines=tuple(_lines(form.cost, usage))),
        supersedes=row["supersedes"],
        cost_reported=None if reported is None else rows.join_money(reported),
        upstream_request_id=row["upstream_request_id"],
    )


def _lines(cost: Cost, usage: Usage) -> Iterator[CostLine]:
    """The bill, as `charge` writes it."""
    lines = {line.unit: line for line in cost.lines}
    for unit, quantity in usage.leaves().items():
        if quantity:
            line = lines[unit]
            amount = rows.join_money(quantity * (_picodollars(line.rate) or 0))
            yield replace(line, quantity=quantity, amount=amount)
