"""What is asked: shapes, files, receipts."""

from __future__ import annotations

import contextlib
import itertools
import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.errors import RequestError
from taximeter.measurement.load.workload import (
    NAMED,
    Ask,
    Workload,
    fixed,
    from_file,
    named,
    of_receipts,
    repeats,
)
from taximeter.records import Dialect, Outcome, Receipt, Request, Usage


def first(workload: Workload, count: int, seed: int = 1) -> list[Ask]:
    return list(itertools.islice(workload.asks(np.random.default_rng(seed)), count))


@pytest.mark.parametrize(("name", "prompt", "output"), [("chat", 200, 150), ("rag", 2000, 150), ("agent", 4000, 80)])
def test_named_shapes_have_the_medians_they_say(name: str, prompt: int, output: int) -> None:
    asks = first(named(name), 4000)
    assert np.median([ask.prompt_tokens or 0 for ask in asks]) == pytest.approx(prompt, rel=0.06)
    assert np.median([ask.output_tokens or 0 for ask in asks]) == pytest.approx(output, rel=0.06)
    assert all(ask.shared_tokens < (ask.prompt_tokens or 0) for ask in asks)
    assert first(named(name), 50) == first(named(name), 50)
    assert name in NAMED


@settings(max_examples=40)
@given(
    name=st.sampled_from(NAMED), context=st.integers(40, 20_000), shortest=st.integers(1, 30), seed=st.integers(0, 99)
)
def test_what_is_fitted_fits(name: str, context: int, shortest: int, seed: int) -> None:
    for ask in first(named(name).fitted(context, shortest_prompt_tokens=shortest), 30, seed):
        assert ask.prompt_tokens is not None
        assert ask.output_tokens is not None
        assert shortest <= ask.prompt_tokens
        assert ask.output_tokens >= 1
        assert ask.prompt_tokens + ask.output_tokens <= context
        assert ask.shared_tokens <= ask.prompt_tokens


def test_fitting_says_how_many_were_cut() -> None:
    lengths = Workload(
        name="x",
        says="lengths",
        listed=(Ask(prompt_tokens=10, output_tokens=5), Ask(prompt_tokens=500, output_tokens=5)),
    )
    assert lengths.fitted(100).says == "lengths; 1 of 2 made to fit"
    assert lengths.fitted(1000) == lengths
    assert first(fixed(512, 64), 2) == [Ask(prompt_tokens=512, output_tokens=64)] * 2


def receipts(count: int, **labels: str) -> list[Receipt]:
    at = datetime(2026, 10, 29, tzinfo=UTC)
    return [
        Receipt(
            id=f"rcpt_{number}",
            request=Request(
                id=f"req_{number}", received_at=at, received_ns=0, dialect=Dialect.OPENAI_CHAT, model="m", labels=labels
            ),
            closed_at=at,
            outcome=Outcome.COMPLETED,
            timing=None,
            usage=Usage(
                input_fresh_tokens=100 + number,
                input_cache_read_tokens=100 + number,
                output_text_tokens=10 * number + 1,
            ),
            uncosted_reason="no price",
            unmeasured_reason="no timing",
        )
        for number in range(count)
    ]


def test_lengths_of_receipts_are_drawn_as_pairs() -> None:
    """The longer the prompt, the longer the answer: so it is in the receipts, and so it is in what is drawn."""
    workload = of_receipts(receipts(30))
    assert workload.stands_on == 30
    assert "30 receipts" in workload.says
    assert "50 % of their prompts came from a cache" in workload.says
    for ask in first(workload, 100):
        assert ask.prompt_tokens is not None
        assert ask.output_tokens == 10 * (ask.prompt_tokens // 2 - 100) + 1


def test_receipts_of_measurements_say_nothing_of_ones_use() -> None:
    assert of_receipts(receipts(20) + receipts(50, shape="chat")).stands_on == 20
    with pytest.raises(RequestError, match="19 receipts"):
        of_receipts(receipts(19))


def written(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", "utf-8")
    return path


def test_a_file_of_prompts(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    path = written(tmp_path, {"prompt": "one", "max_tokens": 5}, {"messages": messages}, {"prompt": "one"})
    workload = from_file(path)
    asks = first(workload, 4)
    assert asks == [
        Ask(text="one", output_tokens=5),
        Ask(messages=tuple(messages)),
        Ask(text="one"),
        Ask(text="one", output_tokens=5),
    ]
    assert (workload.stands_on, workload.recorded_ns, repeats(asks)) == (3, None, 2)


def test_a_trace_is_in_the_order_of_its_times(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"timestamp": 2000, "input_length": 30, "output_length": 3, "hash_ids": [1]},
        {"timestamp": 500.5, "prompt_tokens": 10, "output_tokens": 1},
    )
    workload = from_file(path)
    assert [ask.prompt_tokens for ask in first(workload, 2)] == [10, 30]
    assert workload.recorded_ns == (0, 1_499_500_000)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "no requests"),
        (["text"], "line 1: it is no object"),
        ([{"prompt_tokens": 5}], "line 1: it needs"),
        ([{"prompt": ""}], "line 1: it needs"),
        ([{"prompt_tokens": 5, "output_tokens": 0}], "whole number"),
        ([{"prompt_tokens": True, "output_tokens": 1}], "whole number"),
        ([{"messages": ["hi"]}], "role"),
        ([{"prompt": "a", "timestamp": "now"}], "milliseconds"),
        ([{"prompt": "a", "timestamp": 1}, {"prompt": "b"}], "1 of 2 lines"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, lines: list[object], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        from_file(written(tmp_path, *lines))


def test_what_is_no_workload_says_what_is(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        from_file(tmp_path / "chatt")
    assert "chat, rag, agent, ledger" in (caught.value.hint or "")


@settings(max_examples=100)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["prompt", "messages", "timestamp", "output_tokens", "role"]), inner, max_size=4
            )
        ),
        max_leaves=8,
    )
)
def test_no_line_breaks_it(tmp_path_factory: pytest.TempPathFactory, line: object) -> None:
    path = written(tmp_path_factory.mktemp("lines"), line)
    with contextlib.suppress(RequestError):
        assert from_file(path).listed
