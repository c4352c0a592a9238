"""`taximeter ask`: one question, its answer as it is written, and the receipt.

Owns: turning arguments into a request and events into text. The house it opens is the one that `taximeter serve`
opens: the same engine, the same relay, the same ledger.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from taximeter.cli.console import (
    JsonFlag,
    KVFormatOption,
    MachineRateOption,
    PricedAsOption,
    ThreadsOption,
    WeightsOption,
    err,
    out,
    print_json,
    printable,
    waiting,
)
from taximeter.clock import SYSTEM_CLOCK
from taximeter.collecting import without_collecting
from taximeter.errors import RequestError
from taximeter.records import (
    MOST_GROUP_NAME_CHARACTERS,
    ChoiceFinished,
    Dialect,
    Message,
    ModelInfo,
    Prompt,
    Receipt,
    Request,
    Sampling,
    TokensGenerated,
    is_group_name,
    new_id,
)
from taximeter.settings import Settings

if TYPE_CHECKING:
    from taximeter.gateway import Exchange
    from taximeter.serve import House


def ask(
    prompt: Annotated[
        str | None, typer.Argument(help="What to ask; `-`, or nothing before a pipe, reads stdin.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="A known name, a path, or hf:owner/repo/file.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="What the model is told before the question.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="The answer's limit.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, max=100, help="0 always picks the likeliest token.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0.000001, max=1, help="Only the likeliest tokens of this mass.")] = 1.0,
    seed: Annotated[
        int | None, typer.Option(min=-(2**63), max=2**63 - 1, help="Makes a sampled answer repeatable.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="A name for what this request is part of.")] = None,
    machine_rate: MachineRateOption = None,
    priced_as: PricedAsOption = None,
    weights: WeightsOption = None,
    kv_format: KVFormatOption = None,
    threads: ThreadsOption = None,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the passes' time went.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Ask a model, and print its answer and the receipt."""
    settings = Settings.load(
        model=model,
        machine_rate=machine_rate,
        priced_as=priced_as,
        weights=weights,
        kv_format=kv_format,
        threads=threads,
    )
    question, task = _question(prompt), _task(task)
    sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)

    def to_request(info: ModelInfo) -> tuple[Request, Prompt]:
        asked = to_prompt(question, system, info)
        now = SYSTEM_CLOCK.utc_now()
        request = Request(
            id=new_id("req", now),
            received_at=now,
            received_ns=SYSTEM_CLOCK.monotonic_ns(),
            dialect=Dialect.COMMAND_LINE,
            model=info.id,
            sampling=sampling,
            max_output_tokens=max_tokens,
            stream=not as_json,
            prompt_fingerprint=asked.fingerprint(),
            task=task,
        )
        return request, asked

    import asyncio  # noqa: PLC0415  # as in `main`: --help stays fast

    text: list[str] = []
    house = _open(settings, profile=profile)
    if not as_json:
        _say_if_slow()
    receipt = asyncio.run(_ask(house, to_request, text.append if as_json else _Printer()))
    if as_json:
        spent = {"profile_ns": dict(house.profile_ns())} if profile else {}
        print_json({"text": "".join(text), "receipt": receipt, **spent})
    elif profile:
        _print_profile(house.profile_ns())


async def _ask(
    house: House, to_request: Callable[[ModelInfo], tuple[Request, Prompt]], write: Callable[[str], object]
) -> Receipt:
    try:
        request, prompt = to_request(house.backend.models()[0])
        exchange = await house.relay.open(request, prompt)
        try:
            async for event in exchange:
                if isinstance(event, (TokensGenerated, ChoiceFinished)):
                    write(event.text)
        finally:
            # Ctrl-C, a closed pipe and a broken answer have a receipt too.
            await exchange.abort()
            if isinstance(write, _Printer):
                write.end(exchange)
        return exchange.receipt
    finally:
        await house.aclose()


def _print_profile(spent_ns: Mapping[str, int]) -> None:
    from rich.table import Table  # noqa: PLC0415  # as in `console`

    total_ns = sum(spent_ns.values())
    if not total_ns:
        out().print("\nThe reference path does not count where its time goes.")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("all passes")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    for work, ns in sorted(spent_ns.items(), key=lambda item: -item[1]):
        table.add_row(work, f"{ns / 1e6:,.1f}", f"{ns / total_ns:.0%}")
    out().print()
    out().print(table)


def _open(settings: Settings, *, profile: bool) -> House:
    with without_collecting(), waiting(f"loading {settings.model}"):
        # The engine: time that --help and mistyped flags need not wait for.
        from taximeter.opening import begin_loading  # noqa: PLC0415

        with contextlib.closing(begin_loading(settings, profile=profile)) as loadings:
            # All the rest, while weights are being packed.
            from taximeter.serve import House  # noqa: PLC0415

            return House.of(settings, loadings)


def _say_if_slow() -> None:
    from taximeter.engine.backend import kernel_level  # noqa: PLC0415

    level, slow_because = kernel_level()
    if slow_because is not None:
        err().print(f"{level} kernels: the slow reference path is in use, because {slow_because}", soft_wrap=True)


class _Printer:
    """Writes the answer as it comes, then the receipt below it."""

    def __init__(self) -> None:
        self._last = "\n"

    def __call__(self, text: str) -> None:
        text = printable(text)
        if not text:
            return
        sys.stdout.write(text)
        sys.stdout.flush()
        self._last = text[-1]

    def end(self, exchange: Exchange) -> None:
        from taximeter.cli.receipt_view import ReceiptView  # noqa: PLC0415

        if self._last != "\n":
            sys.stdout.write("\n")
        sys.stdout.write("\n")
        sys.stdout.flush()
        out().print(ReceiptView(exchange.receipt))


def _question(prompt: str | None) -> str:
    """The argument, or all of stdin. Raises RequestError when there is neither."""
    if prompt is None and sys.stdin.isatty():
        raise RequestError("there is no prompt", param="prompt", hint='taximeter ask "..."; or pipe it in')
    question = _stdin_text() if prompt is None or prompt == "-" else prompt
    if not question.strip():
        raise RequestError("the prompt is empty", param="prompt", hint='taximeter ask "..."; or pipe it in')
    return question


def _task(name: str | None) -> str | None:
    """The name as the HTTP header takes it. Raises RequestError for one that no report could show."""
    name = (name or "").strip()
    if not is_group_name(name):
        raise RequestError(f"--task must be at most {MOST_GROUP_NAME_CHARACTERS} printable characters", param="task")
    return name or None


def _stdin_text() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError("the prompt on stdin is not UTF-8", param="prompt") from error


def to_prompt(question: str, system: str | None, info: ModelInfo) -> Prompt:
    """A conversation for a model that chats, else a text to go on with. Raises RequestError for a system prompt that
    would have no place."""
    if info.chat:
        turns = [] if system is None else [Message(role="system", content=system)]
        return Prompt(messages=(*turns, Message(role="user", content=question)))
    if system is not None:
        raise RequestError(
            f"{info.id} does not chat, so there is nobody to tell --system to",
            param="system",
            hint="put it in front of the prompt: the model goes on from there",
        )
    return Prompt(text=question)
