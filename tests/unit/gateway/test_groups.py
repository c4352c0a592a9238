"""What a request belongs to: the beginning of its path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.errors import RequestError
from taximeter.gateway.groups import groups_of, split_path
from taximeter.grouping.door import header_fields, path_prefix
from taximeter.records import Groups, is_group_name
from tests.gateway_harness import CHAT, a_chat, app_of, fake_house, post

NAMES = st.text(min_size=1, max_size=30).filter(lambda text: is_group_name(text) and text == text.strip())
KEYS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=10)
GROUPS = st.builds(
    Groups,
    task=st.none() | NAMES,
    run=st.none() | NAMES,
    session=st.none() | NAMES,
    labels=st.dictionaries(KEYS, NAMES, max_size=4),
)


@given(GROUPS, st.sampled_from(["/v1/chat/completions", "/v1/messages", "/v1"]))
def test_a_path_says_what_headers_would(groups: Groups, path: str) -> None:
    """Whatever the names are, also slashes, percent signs and `v1`: what a client writes, the gateway reads."""
    rest, named = split_path(f"{path_prefix(groups)}{path}".encode())
    assert rest == path.encode()
    assert groups_of(named) == groups
    assert groups_of([(name.encode(), value.encode()) for name, value in header_fields(groups).items()]) == groups


@given(st.binary(max_size=80))
def test_any_other_path_is_left_alone(path: bytes) -> None:
    """Whatever it is, it is either split or given back whole, or refused with a reason."""
    try:
        rest, named = split_path(path)
    except RequestError:
        return
    assert (rest == path) == (not named)


async def test_a_base_url_with_a_task_in_it_reaches_the_api() -> None:
    """And the header of a single request wins over it."""
    house, _, ledger = fake_house()
    app = app_of(house)
    reply = await post(app, f"/task/nightly%2Fbuild/run/7/label/Team/search{CHAT}", a_chat())
    assert reply.status == 200
    asked = ledger.kept[-1].request
    assert (asked.task, asked.run, asked.labels) == ("nightly/build", "7", {"team": "search"})
    await post(app, f"/task/nightly{CHAT}", a_chat(), x_taximeter_task="other")
    assert ledger.kept[-1].request.task == "other"


async def test_a_refused_request_belongs_to_its_task_too() -> None:
    """It is a failure of that task, and shows there."""
    house, _, ledger = fake_house()
    reply = await post(app_of(house), f"/task/nightly{CHAT}", a_chat(temperature=9))
    assert reply.status == 400
    assert ledger.kept[-1].request.task == "nightly"


@pytest.mark.parametrize("path", ["/task/x%0Ay", "/label/a%20b/c", "/label/%C3%A4/c", "/task/" + "x" * 201])
async def test_a_path_that_no_report_could_show_is_refused(path: str) -> None:
    """With what is wrong, and before anything is asked."""
    house, backend, _ = fake_house()
    reply = await post(app_of(house), path + CHAT, a_chat())
    assert reply.status == 400
    assert backend.submitted == []


@pytest.mark.parametrize("path", ["/task", "/task/x", "/task/x/healthz", "/tasks/x/v1/models", "/label/x/v1/models"])
async def test_what_is_no_prefix_is_no_page(path: str) -> None:
    """Only the API lies behind one."""
    house, _, _ = fake_house()
    assert (await post(app_of(house), path, b"{}")).status == 404
