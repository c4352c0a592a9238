"""`taximeter statusline`: one line for prompts and editors, at once.

It reads a few sums that the ledger keeps, by itself: what describes the ledger's tables takes longer to load than this
line may take. Owns: the line, its own way to it, and that there is one of it at a time. Refuses to know: logs (`import`
reads them), and nearly all of Taximeter: what is imported here is waited for at every prompt.
"""

from __future__ import annotations

import os
import select
import sys
import time

from taximeter import places

try:
    import _sqlite3 as sqlite3  # the driver alone: what Python puts around it loads calendars, and takes as long again
except ImportError:
    import sqlite3

TYPE_CHECKING = False  # as type checkers read it; `typing` takes as long to load as all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    Ask = Callable[..., Iterator[tuple[object, ...]]]
    Told = Mapping[str, object]
    """What Claude Code says, by `_PLACES`."""
    Sums = tuple[int, int, int]
    """Receipts, how many of them have no cost, and the cost of the others in picodollars."""

PATIENCE_S = 0.015
"""How long it waits for somebody to say something on stdin. One who never does is not waited for."""

_PLACES = ("session_id", "model.display_name", "cost.total_cost_usd", "context_window.used_percentage")
_TELL = ", ".join(
    f"CASE WHEN json_type(?1, '$.{place}') IN ('text', 'integer', 'real') THEN json_extract(?1, '$.{place}') END"
    for place in _PLACES
)

_STEPS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "ledger", "migrations", "versions")
_BLOCK_H = 5
_BACK_H = 31 * 24  # a silence that is longer ago begins no block that anybody would ask for
_MOST_BYTES = 1 << 20
_MOST_SESSIONS = 20
_PICODOLLARS = 10**12
_BUSY_S = 0.01


def statusline() -> None:
    """One line for prompts and editors: what today cost, what the session did, and the five-hour block.

    Reads what Claude Code says on stdin, where it says something. Takes some milliseconds, never waits for anybody, and
    says in a line too when something is wrong.
    """
    told = read_told(0)
    session = _text(told, "session_id")
    try:
        alone = _Alone(session)
        try:
            line = alone.earlier
            if line is None:
                line = _line(told, session, time.time())
                alone.keep(line)
        finally:
            alone.close()
    except Exception as error:  # noqa: BLE001 - a prompt is no place for a traceback; a driver's errors are not loaded here
        line = f"taximeter: {_what_is_wrong(error)}"
    _say(line)


def _what_is_wrong(error: Exception) -> str:
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    if isinstance(error, sqlite3.Error) and text.startswith("no such "):
        return "this ledger is of another version; `taximeter report` says more"
    return text


def _say(line: str) -> None:
    """Print it, in whatever characters there are, if anybody takes it."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]  # where it was closed
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:  # `contextlib` would take a tenth of the line to load
        sys.stdout.write(line.encode(encoding, "replace").decode(encoding) + "\n")
        sys.stdout.flush()
    except (OSError, ValueError):
        pass


def read_told(descriptor: int) -> Told:
    """What somebody says there in JSON, by `_PLACES`; nothing where nobody says anything soon, or anything that can be
    read."""
    until = time.monotonic() + PATIENCE_S
    said = b""
    try:
        if os.isatty(descriptor):
            return {}
        while len(said) < _MOST_BYTES and (left := until - time.monotonic()) > 0:
            if not select.select([descriptor], [], [], left)[0]:
                break
            part = os.read(descriptor, 1 << 16)
            if not part:
                break
            said += part
    except (OSError, ValueError):  # closed, or none at all
        return {}
    return _read(said) if said.strip() else {}


def _read(said: bytes) -> Told:
    """By a database in memory: SQLite is there already, and Python's own reader of JSON takes longer to load than all
    the rest."""
    try:
        reader = sqlite3.connect(":memory:")
        try:
            (found,) = reader.execute(f"SELECT {_TELL}", [said.decode("utf-8-sig", "replace")])
        finally:
            reader.close()
    except sqlite3.Error:
        return {}
    return dict(zip(_PLACES, found, strict=True))


def _line(told: Told, session: str | None, now: float) -> str:
    ledger = _Ledger(_ledger_url())
    try:
        if not ledger.is_there:
            return "taximeter: no receipts yet"
        if newer := _newer(ledger.ask):
            return f"taximeter: {newer}"
        parts = [_text(told, "model.display_name") or "", *_costs(ledger.ask, told, session, now)]
    finally:
        ledger.close()
    context = _number(told, "context_window.used_percentage")
    parts.append("" if context is None else f"context {context:.0f} %")
    return " · ".join(part for part in parts if part)


def _newer(ask: Ask) -> str | None:
    """What to do about a ledger that a newer Taximeter has made: its sums may mean something else by now. The versions
    that are known here are the names of the steps that lead to them."""
    known = max(name[:4] for name in os.listdir(_STEPS) if name[:4].isdigit())
    for (version,) in ask("SELECT version_num FROM schema_version"):
        if str(version) > known:
            return (
                f"a newer version made this ledger (its schema is {version}, {known} is known here): upgrade Taximeter"
            )
    return None


def _costs(ask: Ask, told: Told, session: str | None, now: float) -> list[str]:
    parts = [_session_text(ask, session, told), f"today {_money(_closed(ask, _midnight(now), now))}"]
    began = _block(ask, now)
    if began is not None:
        block = _closed(ask, began, now)
        left_min = round((began + _BLOCK_H * 3600 - now) / 60)
        parts.append(f"block {_money(block)}, {left_min // 60} h {left_min % 60:02} min left")
        parts.append(f"{_dollars(block[2] * 3600 // max(60, round(now - began)))}/h")
    return parts


def _session_text(ask: Ask, session: str | None, told: Told) -> str:
    """What the session cost by the ledger; by its own account where the ledger has not heard of it."""
    if session is None:
        return ""
    found = ask(
        "SELECT receipts, unpriced, cost_dollars, cost_picodollars FROM group_totals"
        " WHERE kind = 'session' AND name = ?",
        session,
    )
    for sums in found:
        return f"session {_money(_sums(sums))}"
    own = _number(told, "cost.total_cost_usd")
    return "" if own is None else f"session {_dollars(round(own * _PICODOLLARS))} by its own account"


def _closed(ask: Ask, since: float, until: float) -> Sums:
    """What was closed from `since` and before `until`: whole hours are kept as sums, what is before them is added
    up."""
    first = -int(-since // 3600) * 3600
    parts = [
        ask(
            "SELECT sum(receipts), sum(unpriced), sum(cost_dollars), sum(cost_picodollars) FROM usage_by_hour"
            " WHERE hour >= ? AND hour < ?",
            _stored(first),
            _stored(until),
        )
    ]
    if since < first:
        parts.append(
            ask(
                "SELECT count(*), count(*) - count(cost_dollars), sum(cost_dollars), sum(cost_picodollars)"
                " FROM current_receipts WHERE closed_at >= ? AND closed_at < ?",
                _stored(since),
                _stored(min(first, until)),
            )
        )
    receipts, unpriced, picodollars = 0, 0, 0
    for (part,) in parts:
        more = _sums(part)
        receipts, unpriced, picodollars = receipts + more[0], unpriced + more[1], picodollars + more[2]
    return receipts, unpriced, picodollars


def _block(ask: Ask, now: float) -> float | None:
    """When the running five-hour block began, as `taximeter report --by block` has it; None while there is none. Goes
    back hour by hour to a silence of five, for there a block must begin."""
    hours: list[int] = []
    # One question whose answer is read as far as it is needed: SQLite looks for the next hour when it is asked for it.
    earlier = ask(
        "WITH RECURSIVE back(hour) AS (SELECT max(hour) FROM usage_by_hour WHERE hour < ? UNION ALL"
        " SELECT (SELECT max(hour) FROM usage_by_hour WHERE hour < back.hour) FROM back WHERE back.hour >= ?)"
        " SELECT hour FROM back",
        _stored(now),
        _stored(now - _BACK_H * 3600),
    )
    for (found,) in earlier:
        hour = None if found is None else _seconds(str(found))
        if hour is None or (hours and hours[-1] - hour >= _BLOCK_H * 3600):
            break
        if not hours and now - hour >= _BLOCK_H * 3600:
            return None
        hours.append(hour)
        if now - hour > _BACK_H * 3600:
            return None
    began: int | None = None
    for hour in reversed(hours):
        if began is None or hour >= began + _BLOCK_H * 3600:
            began = hour
    return began if began is not None and now < began + _BLOCK_H * 3600 else None


class _Ledger:
    """A connection to the ledger, which no question changes."""

    def __init__(self, url: str) -> None:
        scheme, separator, rest = url.partition("://")
        self._connection: Any = None
        self._mark = "?"
        if separator and scheme != "sqlite":
            # Slower: its driver alone takes longer than the line may, and the network what it takes.
            import psycopg  # noqa: PLC0415  # who keeps a file need not have it

            self._connection = psycopg.connect(f"postgresql://{rest}", connect_timeout=1, autocommit=True)
            self._mark = "%s"
        else:
            path = os.path.expanduser(rest.removeprefix("/") if separator else url)
            if not os.path.exists(path):
                return
            try:
                self._connection = _asked_alone(sqlite3.connect(path, timeout=_BUSY_S))
            except sqlite3.OperationalError:
                if not _stands_still(path):
                    raise
                from urllib.parse import quote  # noqa: PLC0415  # hardly ever

                still = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?immutable=1", uri=True)
                self._connection = _asked_alone(still)
            return
        self._connection.execute("BEGIN")

    @property
    def is_there(self) -> bool:
        """Whether there is one yet."""
        return self._connection is not None

    def ask(self, question: str, *values: object) -> Iterator[tuple[object, ...]]:
        """The rows of the answer, as somebody wants them."""
        return iter(self._connection.execute(question.replace("?", self._mark), values))

    def close(self) -> None:
        """Let go of it."""
        if self._connection is not None:
            self._connection.close()


def _asked_alone(connection: Any) -> Any:
    """The connection with one snapshot: the file's locks are taken once instead of for each question."""
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()  # here it shows whether it can be read
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _stands_still(path: str) -> bool:
    """Whether the file is all there is, and nobody can change it here: SQLite needs no log and no locks then, which it
    could not make either."""
    try:
        log_bytes = os.stat(f"{path}-wal").st_size
    except OSError:
        log_bytes = 0
    return not log_bytes and not os.access(os.path.dirname(os.path.abspath(path)), os.W_OK)


def _ledger_url() -> str:
    """As `Settings` finds it, without the rest of them."""
    if url := os.environ.get("TAXIMETER_LEDGER"):
        return url
    home = places.home(os.environ)
    try:
        with open(places.config_path(home), encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        text = ""
    if "ledger" in text:
        import tomllib  # noqa: PLC0415  # few name another ledger

        named = tomllib.loads(text).get("ledger")
        if isinstance(named, str):
            return named
    return places.ledger_path(home)


class _Alone:
    """One at a time: whoever comes while another one is at it gets the session's last line, and does not ask.

    `earlier` is that line, None for who is to find it out and `keep` it.
    """

    def __init__(self, session: str | None) -> None:
        self._session = session or ""
        self._descriptor: int | None = None
        self.earlier: str | None = None
        try:
            import fcntl  # noqa: PLC0415  # not everywhere

            path = os.path.join(places.data_dir(places.home(os.environ)), "statusline")
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.earlier = self._lines().get(self._session, "")
        except (ImportError, OSError):
            return  # where nothing can be kept, each one finds out by itself

    def keep(self, line: str) -> None:
        """For those who come meanwhile."""
        if self._descriptor is None:
            return
        lines = self._lines()
        lines.pop(self._session, None)
        newest = [*lines.items(), (self._session, line)][-_MOST_SESSIONS:]
        text = "".join(f"{name}\t{kept}\n" for name, kept in newest).encode("utf-8", "replace")
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)

    def close(self) -> None:
        """Let the next one."""
        if self._descriptor is not None:
            os.close(self._descriptor)

    def _lines(self) -> dict[str, str]:
        """The last lines by session: one a line, the session first."""
        if self._descriptor is None:
            return {}
        text = os.pread(self._descriptor, _MOST_BYTES, 0).decode("utf-8", "replace")
        pairs = (line.partition("\t") for line in text.splitlines())
        return {session: line for session, _, line in pairs}


def _text(told: Told, place: str) -> str | None:
    """A short printable text at a place."""
    found = told.get(place)
    return found if isinstance(found, str) and found.isprintable() and 0 < len(found) <= 200 else None


def _number(told: Told, place: str) -> float | None:
    """A number at a place, which is not negative."""
    found = told.get(place)
    return float(found) if isinstance(found, int | float) and 0 <= found < 1e12 else None


def _sums(row: tuple[object, ...]) -> Sums:
    receipts, unpriced, dollars, picodollars = (int(str(number or 0)) for number in row)
    return receipts, unpriced, dollars * _PICODOLLARS + picodollars


def _money(sums: Sums) -> str:
    receipts, unpriced, picodollars = sums
    if receipts and receipts == unpriced:
        return f"{receipts:,} unpriced"
    return _dollars(picodollars) + (f" + {unpriced:,} unpriced" if unpriced else "")


def _dollars(picodollars: int) -> str:
    """In cents, and to a hundredth of one below ten of them."""
    decimals = 2 if picodollars >= _PICODOLLARS // 10 or picodollars == 0 else 4
    units = (picodollars + _PICODOLLARS // 10**decimals // 2) * 10**decimals // _PICODOLLARS
    return f"${units // 10**decimals:,}.{units % 10**decimals:0{decimals}}"


def _midnight(now: float) -> float:
    """When today began here."""
    local = time.localtime(now)
    return time.mktime((local.tm_year, local.tm_mon, local.tm_mday, 0, 0, 0, 0, 0, -1))


def _stored(at: float) -> str:
    """An instant as the ledger has it, to the microsecond."""
    whole = int(at // 1)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(whole))}.{int((at - whole) * 1e6):06}"


def _seconds(stored: str) -> int:
    """When an hour of the ledger began. Counted here, for what knows calendars takes a tenth of the line to load.
    Years begin in March, so that a leap day is the last one."""
    year, month, day, hour = (int(stored[first:last]) for first, last in ((0, 4), (5, 7), (8, 10), (11, 13)))
    year -= month < 3
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return (days - 719_468) * 86_400 + hour * 3_600
