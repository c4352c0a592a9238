"""The task that the running code is part of, and how it ends.

Owns: the groups of the current context, their nesting, and that a task's end is told to its gateway. Refuses to know:
how requests are sent, and by whom. Nothing in here breaks the program it runs in: a gateway that cannot be reached is a
warning in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from taximeter.errors import RequestError, TaximeterError
from taximeter.grouping.door import GatewayDoor, base_of, header_fields
from taximeter.records import MOST_GROUP_NAME_CHARACTERS, MOST_LABELS, Groups, is_group_name

_log = logging.getLogger("taximeter")

_LABEL_KEY: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")  # it becomes a part of a header's name
_Function = TypeVar("_Function", bound=Callable[..., Any])


def task(
    name: str,
    *,
    run: str | None = None,
    session: str | None = None,
    labels: Mapping[str, str] | None = None,
    url: str | None = None,
) -> TaskScope:
    """A block, or a function, whose requests belong to the task `name`.

    Use it with `with`, `async with`, or as a decorator. At its end the task is finished: well, or badly when an
    exception leaves it. Blocks nest: a request belongs to the innermost task, and to the run, the session and the
    labels around it. `url` is the gateway's; without it, it is whoever answered the block's requests with a receipt, or
    TAXIMETER_URL. Raises RequestError for a name that no report could show.
    """
    own = Groups(task=_named("task", name), run=_named("run", run), session=_named("session", session))
    return TaskScope(_with_labels(own, labels or {}), url=None if url is None else base_of(url))


def headers() -> dict[str, str]:
    """What the running code belongs to, as headers for any HTTP client; empty where it belongs to nothing."""
    return header_fields(current_groups())


def current_groups() -> Groups:
    """What the running code belongs to: the blocks it is in, or what `taximeter run` started this program for."""
    scope = _current.get()
    return ambient_groups(os.environ) if scope is None else scope.groups


def ambient_groups(environ: Mapping[str, str]) -> Groups:
    """What this whole program belongs to, by its environment. What makes no sense there is left out."""

    def named(kind: str) -> str | None:
        name = environ.get(f"TAXIMETER_{kind.upper()}", "")
        return name if name and is_group_name(name) else None

    try:
        given = json.loads(environ.get("TAXIMETER_LABELS") or "{}")
    except ValueError:
        given = {}
    labels = cast(dict[str, object], given) if isinstance(given, dict) else {}
    return Groups(
        task=named("task"),
        run=named("run"),
        session=named("session"),
        labels={key: str(value) for key, value in labels.items() if _LABEL_KEY.fullmatch(key)},
    )


def ambient_environment(groups: Groups) -> dict[str, str]:
    """The variables that `ambient_groups` reads."""
    named = {"TASK": groups.task, "RUN": groups.run, "SESSION": groups.session}
    return {
        **{f"TAXIMETER_{word}": name or "" for word, name in named.items()},
        "TAXIMETER_LABELS": json.dumps(dict(groups.labels)) if groups.labels else "",
    }


def groups_named(
    *, task: str | None, run: str | None = None, session: str | None = None, labels: Mapping[str, str] | None = None
) -> Groups:
    """Groups of these names. Raises RequestError for one that no report could show."""
    own = Groups(task=_named("task", task), run=_named("run", run), session=_named("session", session))
    return _with_labels(own, labels or {})


class TaskScope:
    """One block. Made by `task`; `groups` is what its requests belong to."""

    def __init__(self, own: Groups, *, url: str | None = None) -> None:
        self.groups = own
        self._own = own
        self._url = url
        self._outer: TaskScope | None = None
        self._token: Token[TaskScope | None] | None = None
        self._seen: GatewayDoor | None = None
        self._has_failed = False

    @property
    def name(self) -> str:
        """The task's name."""
        return self._own.task or ""

    def fail(self) -> None:
        """The task ends badly, although no exception says so."""
        self._has_failed = True

    def answered_by(self, door: GatewayDoor) -> None:
        """A request of this block got a receipt from there."""
        self._seen = door
        if self._outer is not None:
            self._outer.answered_by(door)

    def __enter__(self) -> Self:
        if self._token is not None:
            raise RuntimeError(f"the block of task {self.name} is running already: each needs its own taximeter.task")
        self._outer = _current.get()
        self.groups = groups_within(current_groups(), self._own)
        self._seen, self._has_failed = None, False
        self._token = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        succeeded = self._leave(error)
        if _loop_is_running():
            # Everything else on this loop would wait for the gateway. The interpreter waits for the thread at its end.
            self._tell_beside(succeeded)
        else:
            self._tell(succeeded)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        succeeded = self._leave(error)
        if not _loop_is_running():  # it is another library's loop
            self._tell_beside(succeeded)
            return
        try:
            await asyncio.to_thread(self._tell, succeeded)
        except RuntimeError:  # as in `_tell_beside`
            self._tell(succeeded)

    def __call__(self, function: _Function) -> _Function:
        """`function`, each call of it a block of its own."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise RequestError(
                f"{function.__qualname__} is a generator: its caller's requests would be counted too",
                hint="use `with taximeter.task(...)` inside of it",
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                async with TaskScope(self._own, url=self._url):
                    return await function(*args, **kwargs)

            return cast(_Function, awaited)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with TaskScope(self._own, url=self._url):
                return function(*args, **kwargs)

        return cast(_Function, called)

    def _leave(self, error: BaseException | None) -> bool:
        """Whether it went well."""
        if self._token is not None:
            with contextlib.suppress(ValueError):  # the context in which it was entered is gone
                _current.reset(self._token)
            self._token = None
        is_exit = isinstance(error, SystemExit) and not error.code
        return (error is None or is_exit) and not self._has_failed

    def _tell_beside(self, succeeded: bool) -> None:
        try:
            threading.Thread(target=self._tell, args=(succeeded,), name="taximeter-finish").start()
        except RuntimeError:  # the interpreter is ending, and starts none any more
            self._tell(succeeded)

    def _tell(self, succeeded: bool) -> None:
        try:
            door = self._door()
            if door is None:
                _log.warning(
                    "nobody was told that task %s ended: set TAXIMETER_URL, or instrument the client that asks",
                    self.name,
                )
                return
            door.finish(self.name, succeeded=succeeded, labels=self.groups.labels)
        except TaximeterError as error:
            _log.warning("the gateway was not told that task %s ended: %s", self.name, error)
        except Exception:  # noqa: BLE001 - somebody else's program goes on
            _log.warning("the gateway was not told that task %s ended", self.name, exc_info=True)

    def _door(self) -> GatewayDoor | None:
        if self._seen is not None and self._url in (None, self._seen.url):
            return self._seen
        url = self._url or os.environ.get("TAXIMETER_URL")
        return GatewayDoor.from_environment(url) if url else None


_current: ContextVar[TaskScope | None] = ContextVar("taximeter_task", default=None)


def current_scope() -> TaskScope | None:
    """The innermost block that the running code is in."""
    return _current.get()


def groups_within(outer: Groups, own: Groups) -> Groups:
    """`own`, and of what it says nothing of, what is around it."""
    return Groups(
        task=own.task or outer.task,
        run=own.run or outer.run,
        session=own.session or outer.session,
        labels={**outer.labels, **own.labels},
    )


def _named(kind: str, name: str | None) -> str | None:
    if name is not None and not (name.strip() and is_group_name(name)):
        raise RequestError(
            f"the name of a {kind} must be 1 to {MOST_GROUP_NAME_CHARACTERS} printable characters", param=kind
        )
    return None if name is None else name.strip()


def _with_labels(groups: Groups, labels: Mapping[str, str]) -> Groups:
    kept = {key.lower(): value.strip() for key, value in labels.items()}
    for key, value in kept.items():
        if not _LABEL_KEY.fullmatch(key):
            raise RequestError(f"the label {key!r} cannot be sent: letters, digits and -_. only", param="labels")
        if not value or not is_group_name(value):
            raise RequestError(
                f"the label {key} must be 1 to {MOST_GROUP_NAME_CHARACTERS} printable characters", param="labels"
            )
    if len(kept) > MOST_LABELS:
        raise RequestError(f"a request has at most {MOST_LABELS} labels", param="labels")
    return Groups(task=groups.task, run=groups.run, session=groups.session, labels=kept)


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
