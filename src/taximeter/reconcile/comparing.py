"""Two sums, and the causes of their difference.

Owns: the order in which causes are looked for, and that their amounts add up to the whole difference. Refuses to know:
files, and where receipts are kept.

A difference is theirs less ours. What can be computed (a discount, tokens that no receipt has, receipts without a
price) is; what is left goes to the first cause that can be, and to none where there is no sign of any.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Final

from taximeter.errors import PricingError
from taximeter.pricing.catalog import Catalog
from taximeter.pricing.charge import charge, surcharge
from taximeter.pricing.overlay import tier_name
from taximeter.pricing.terms import geography_of, tier_of
from taximeter.reconcile.books import Books, Key, Ours
from taximeter.reconcile.reading import Bucket, Kind, Row, long_prompt_tokens
from taximeter.records import EXACT, Basis, PriceList, Terms, Usage, exact_sum

DOLLARS: Final = "USD"
NO_MODEL: Final = "(no model)"
ALL_MODELS: Final = "(all models)"
_NOTHING: Final = Decimal(0)
_FLOAT_DUST: Final = Decimal("1e-9")  # a report's amounts are binary fractions at some providers
_PICODOLLAR: Final = Decimal("1e-12")


class Cause(StrEnum):
    """Why two sums differ."""

    UNFINISHED = "unfinished"  # the bucket is not over yet
    DISCOUNT = "discount"  # theirs is after discounts, ours are list prices
    NOT_TOKENS = "not_tokens"  # what is charged is of no model: code execution, sessions, storage
    NO_RECEIPTS = "no_receipts"  # we have none of this model then: it was asked past the gateway, or they are lost
    MISSING = "missing_receipts"  # theirs has more tokens than our receipts
    UNPRICED = "unpriced"  # our receipts have no cost, or the report's tokens no price here
    ESTIMATED = "estimated"  # our receipts have a lower bound of the tokens, or an assumed price
    OTHER_TIER = "other_tier"  # the same tokens at other rates: another tier, or prompts beyond a threshold
    NOT_REPORTED = "not_reported"  # the report has nothing of it
    CUT_OFF = "cut_off"  # the report has as many groups as there can be, and not this one
    ROUNDING = "rounding"  # less than the last digit that was written
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One model in one bucket. `causes` add up to `difference`, which is theirs less ours."""

    start: datetime
    end: datetime
    model: str
    theirs: Decimal
    ours: Decimal
    causes: Mapping[Cause, Decimal]
    requests: int | None
    receipts: int
    unpriced: int
    estimated: int

    @property
    def difference(self) -> Decimal:
        return EXACT.subtract(self.theirs, self.ours)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """A whole report beside our receipts. Amounts of a usage report are its tokens at our prices: *derived*.
    `other_currencies` are in no sum, and `unpriced_rows` are rows of the report that have no price here, by reason."""

    provider: str
    kind: Kind
    lines: Sequence[Line]
    other_currencies: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    unpriced_rows: Mapping[str, int] = field(default_factory=dict[str, int])
    notes: Sequence[str] = ()

    @property
    def theirs(self) -> Decimal:
        return exact_sum(line.theirs for line in self.lines)

    @property
    def ours(self) -> Decimal:
        return exact_sum(line.ours for line in self.lines)

    @property
    def difference(self) -> Decimal:
        return EXACT.subtract(self.theirs, self.ours)

    @property
    def causes(self) -> Mapping[Cause, Decimal]:
        """What the whole difference is made of, in the order of `Cause`."""
        sums: defaultdict[Cause, Decimal] = defaultdict(Decimal)
        for line in self.lines:
            for cause, amount in line.causes.items():
                sums[cause] = EXACT.add(sums[cause], amount)
        return {cause: sums[cause] for cause in Cause if cause in sums}


class _Rest:
    """A difference while its causes are found."""

    def __init__(self, difference: Decimal) -> None:
        self.left = difference
        self.causes: dict[Cause, Decimal] = {}

    def take(self, cause: Cause, amount: Decimal | None = None) -> None:
        """So much of it, or all that is left, is for that cause."""
        amount = self.left if amount is None else amount
        if amount:
            self.causes[cause] = EXACT.add(self.causes.get(cause, _NOTHING), amount)
            self.left = EXACT.subtract(self.left, amount)


def reconcile(books: Sequence[Books], *, catalog: Catalog, now: datetime) -> list[Reconciliation]:
    """Each report beside the receipts that were found for it, usage before costs: what is known of the tokens of a
    model in a bucket explains the same difference in a report of costs."""
    hints: dict[str, Mapping[Key, Mapping[Cause, Decimal]]] = {}
    done: list[Reconciliation] = []
    for book in sorted(books, key=lambda each: each.statement.kind is not Kind.USAGE):
        provider = book.statement.provider
        found = _Comparison(book, catalog, now, hints.get(provider, {})).all()
        if book.statement.kind is Kind.USAGE:
            hints[provider] = {(line.start, line.model): line.causes for line in found.lines}
        done.append(found)
    return done


class _Comparison:
    def __init__(
        self, book: Books, catalog: Catalog, now: datetime, hints: Mapping[Key, Mapping[Cause, Decimal]]
    ) -> None:
        self._statement = statement = book.statement
        self._ours = book.found
        self._names = book.names
        self._catalog = catalog
        self._now = now
        self._hints = hints
        self._others: defaultdict[str, Decimal] = defaultdict(Decimal)
        self._unpriced: Counter[str] = Counter()
        rows = [row for bucket in statement.buckets for row in bucket.rows]
        # Where searches have rows of their own, ours are set against those.
        self._has_search_rows = any(_is_of_searches(row) for row in rows)
        # One that divides by nothing has sums over all models, and so have we then.
        self._is_divided = not rows or any(row.model is not None or row.of is not None for row in rows)
        if not self._is_divided:
            self._ours, self._hints = _over_all_models(self._ours), _hints_over_all_models(self._hints)

    def all(self) -> Reconciliation:
        lines: list[Line] = []
        for bucket in self._statement.buckets:
            theirs: defaultdict[str, list[Row]] = defaultdict(list)
            for row in bucket.rows:
                theirs[self._key(row)].append(row)
            models = dict.fromkeys([*theirs, *(model for start, model in self._ours if start == bucket.start)])
            if self._has_search_rows:
                models.setdefault(NO_MODEL)
            lines += [self._line(bucket, model, theirs.get(model, [])) for model in sorted(models)]
        statement = self._statement
        notes = list(statement.notes)
        if not statement.is_whole:
            notes.append("the report has further pages, which were not given")
        if cut := sum(bucket.is_cut for bucket in statement.buckets):
            notes.append(f"{cut} buckets have as many groups as there can be: others may be missing from them")
        if not self._is_divided:
            notes.append("the report is not divided by model: asked for by model it says more")
        return Reconciliation(
            provider=statement.provider,
            kind=statement.kind,
            lines=lines,
            other_currencies=dict(self._others),
            unpriced_rows=dict(self._unpriced),
            notes=notes,
        )

    def _key(self, row: Row) -> str:
        if not self._is_divided:
            return ALL_MODELS
        return NO_MODEL if row.model is None else self._names.of(row.model)

    def _line(self, bucket: Bucket, model: str, rows: Sequence[Row]) -> Line:
        ours = self._ours.get((bucket.start, model), Ours())
        amount = ours.cost
        if self._has_search_rows:
            extras = [each.extras for (start, _), each in self._ours.items() if start == bucket.start]
            amount = exact_sum(extras) if model == NO_MODEL else EXACT.subtract(ours.cost, ours.extras)
        theirs = exact_sum(self._amount(bucket, row) or _NOTHING for row in rows)
        rest = _Rest(EXACT.subtract(theirs, amount))
        self._explain(rest, bucket, model, rows, ours, has_ours=bool(ours.receipts or amount or +ours.tokens))
        requests = [row.requests for row in rows if row.requests is not None]
        return Line(
            start=bucket.start,
            end=bucket.end,
            model=model,
            theirs=theirs,
            ours=amount,
            causes=rest.causes,
            requests=sum(requests) if requests else None,
            receipts=ours.receipts,
            unpriced=ours.unpriced.total(),
            estimated=ours.estimated,
        )

    def _amount(self, bucket: Bucket, row: Row) -> Decimal | None:
        """A row in dollars: as it says, or its tokens at our prices; None where it is neither."""
        if row.usage is not None:
            try:
                return self._priced(bucket, row, row.usage)
            except PricingError as error:
                self._unpriced[error.message] += 1
                return None
        if row.currency != DOLLARS:
            if row.amount is not None and row.currency is not None:
                self._others[row.currency] = EXACT.add(self._others[row.currency], row.amount)
            return None
        return row.amount

    def _priced(self, bucket: Bucket, row: Row, usage: Usage) -> Decimal:
        cost = charge(usage, self._prices(bucket, row))
        place = geography_of(Terms(geography=row.geography), provider=self._statement.provider, at=bucket.start)
        if place is not None:
            cost = surcharge(cost, unit=place.unit, factor=place.factor, basis=place.basis)
        return cost.total

    def _has_price(self, bucket: Bucket, row: Row) -> bool:
        try:
            self._prices(bucket, row)
        except PricingError:
            return False
        return True

    def _prices(self, bucket: Bucket, row: Row) -> PriceList:
        if row.model is None:
            raise PricingError("tokens of no model have no price: ask for the report by model")
        tier = row.tier if row.tier == "fast" else tier_of(Terms(tier=row.tier))
        return self._catalog.price_list(
            f"{self._statement.provider}/{self._names.of(row.model).partition('/')[2] or row.model}",
            at=bucket.start,
            tier=tier,
            input_tokens=long_prompt_tokens(row),
        )

    def _explain(
        self, rest: _Rest, bucket: Bucket, model: str, rows: Sequence[Row], ours: Ours, *, has_ours: bool
    ) -> None:
        rest.take(Cause.DISCOUNT, exact_sum(_discount(row) for row in rows))
        if bucket.end > self._now:
            rest.take(Cause.UNFINISHED)
        elif not has_ours:
            rest.take(Cause.NOT_TOKENS if model == NO_MODEL else Cause.NO_RECEIPTS)
        elif not rows:
            rest.take(Cause.CUT_OFF if bucket.is_cut else Cause.NOT_REPORTED)
        elif self._statement.kind is Kind.USAGE:
            self._explain_tokens(rest, bucket, rows, ours)
        else:
            self._explain_amounts(rest, bucket, model, rows, ours)

    def _explain_tokens(self, rest: _Rest, bucket: Bucket, rows: Sequence[Row], ours: Ours) -> None:
        """Both sides have tokens: what more of them cost can be computed."""
        reported: Counter[str] = Counter()
        for row in rows:
            if row.usage is not None:
                reported.update({leaf: count for leaf, count in row.usage.leaves().items() if count})
        rest.take(Cause.UNPRICED, self._worth(bucket, rows, ours.unpriced_tokens))
        more = {leaf: reported[leaf] - ours.tokens[leaf] for leaf in {*reported, *ours.tokens}}
        requests = sum(row.requests for row in rows if row.requests is not None)
        is_estimate = ours.estimated > 0 and requests <= ours.receipts
        rest.take(Cause.ESTIMATED if is_estimate else Cause.MISSING, self._worth(bucket, rows, more))
        lines = (ours.receipts + len(rows)) * len(Usage.INPUT_LEAVES + Usage.OUTPUT_LEAVES)
        if abs(rest.left) <= lines * _PICODOLLAR:
            rest.take(Cause.ROUNDING)
        elif any(more.values()) and self._worth(bucket, rows, more) == 0:
            rest.take(Cause.UNPRICED)  # for what is more there is no price
        elif not all(self._has_price(bucket, row) for row in rows):
            rest.take(Cause.UNPRICED)  # theirs is without these rows
        else:
            rest.take(Cause.OTHER_TIER)

    def _worth(self, bucket: Bucket, rows: Sequence[Row], tokens: Mapping[str, int]) -> Decimal:
        """What so many more tokens, or fewer, cost at the rates of the first row that has a price; nothing where none
        has one for all of them."""
        for row in rows:
            try:
                prices = self._prices(bucket, row)
                more, fewer = (
                    charge(
                        _usage_of({leaf: sign * count for leaf, count in tokens.items() if sign * count > 0}), prices
                    )
                    for sign in (1, -1)
                )
            except PricingError:
                continue
            return EXACT.subtract(more.total, fewer.total)
        return _NOTHING

    def _explain_amounts(self, rest: _Rest, bucket: Bucket, model: str, rows: Sequence[Row], ours: Ours) -> None:
        """Theirs are amounts alone: what the usage report says of the same bucket is known, the rest is guessed."""
        if model == NO_MODEL:
            # Code execution and the like beside searches, the only other thing that receipts have.
            rest.take(Cause.NOT_TOKENS, exact_sum(_listed(row) for row in rows if not _is_of_searches(row)))
        tolerance = exact_sum(max(row.digit / 2, _FLOAT_DUST) for row in rows)
        if abs(rest.left) <= tolerance:
            rest.take(Cause.ROUNDING)
            return
        for cause, amount in self._hints.get((bucket.start, model), {}).items():
            rest.take(cause, amount)
        tiers = {tier_name(row.tier) for row in rows if row.tier is not None}
        if abs(rest.left) <= tolerance:
            rest.take(Cause.ROUNDING)
        elif rest.left > 0 and ours.unpriced:
            rest.take(Cause.UNPRICED)
        elif tiers and ours.tiers and tiers != set(ours.tiers):
            rest.take(Cause.OTHER_TIER)
        elif ours.estimated:
            rest.take(Cause.ESTIMATED)
        else:
            rest.take(Cause.UNEXPLAINED)


def _over_all_models(ours: Mapping[Key, Ours]) -> Mapping[Key, Ours]:
    together: dict[Key, Ours] = {}
    for (start, _), each in ours.items():
        together.setdefault((start, ALL_MODELS), Ours()).merge(each)
    return together


def _hints_over_all_models(hints: Mapping[Key, Mapping[Cause, Decimal]]) -> Mapping[Key, Mapping[Cause, Decimal]]:
    together: dict[Key, dict[Cause, Decimal]] = {}
    for (start, _), causes in hints.items():
        sums = together.setdefault((start, ALL_MODELS), {})
        for cause, amount in causes.items():
            sums[cause] = EXACT.add(sums.get(cause, _NOTHING), amount)
    return together


def _is_of_searches(row: Row) -> bool:
    return row.model is None and "search" in (row.of or "").lower()


def _listed(row: Row) -> Decimal:
    """What a row was before discounts."""
    amount = row.amount if row.list_amount is None else row.list_amount
    return _NOTHING if amount is None or row.currency != DOLLARS else amount


def _discount(row: Row) -> Decimal:
    if row.amount is None or row.list_amount is None or row.currency != DOLLARS:
        return _NOTHING
    return EXACT.subtract(row.amount, row.list_amount)


def _usage_of(tokens: Mapping[str, int]) -> Usage:
    leaves = dict.fromkeys(Usage.INPUT_LEAVES + Usage.OUTPUT_LEAVES, 0) | dict(tokens)
    return Usage(**leaves, basis=Basis.DERIVED)  # pyright: ignore[reportArgumentType]  # names of leaves only
