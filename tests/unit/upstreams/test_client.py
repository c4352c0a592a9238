"""The HTTP client, over real sockets: proxies, time-outs, connections."""

from __future__ import annotations

import asyncio

import pytest

from taximeter.errors import UpstreamError
from taximeter.upstreams.client import Client, outgoing_headers
from taximeter.upstreams.config import Upstream
from taximeter.upstreams.incoming import Incoming
from tests.fakes import WAIT_S
from tests.upstream_harness import Do, ScriptedUpstream, an_upstream, head, whole

HEADERS = [(b"content-type", b"application/json")]


async def asked(client: Client, upstream: Upstream, path: str = "/v1/x") -> tuple[Incoming, bytes]:
    incoming = await client.send(upstream, "POST", path, HEADERS, b"{}")
    body = b"".join([read.data async for read in incoming])
    incoming.close()
    return incoming, body


async def test_its_own_proxy_is_asked_for_the_whole_address() -> None:
    """With the password that is in its URL, which goes no further."""
    with ScriptedUpstream(whole(b"{}")).listening() as proxy:
        upstream = an_upstream("http://api.invalid", proxy=proxy.url.replace("//", "//me:pass@"))
        client = Client()
        await asked(client, upstream)
        await client.aclose()
    [through] = proxy.books
    assert through.path == "http://api.invalid/v1/x"
    assert through.headers["proxy-authorization"].startswith("Basic ")


@pytest.mark.parametrize("written", ["{url}", "{host}"], ids=["with a scheme", "without"])
async def test_the_environments_proxy_is_used(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `http_proxy` has it, also without its scheme."""
    with ScriptedUpstream(whole(b"{}")).listening() as proxy:
        host = proxy.url.removeprefix("http://")
        monkeypatch.setenv("http_proxy", written.format(url=proxy.url, host=host))
        monkeypatch.delenv("no_proxy", raising=False)
        client = Client()
        await asked(client, an_upstream("http://api.invalid"))
        await client.aclose()
    assert [each.path for each in proxy.books] == ["http://api.invalid/v1/x"]


async def test_but_not_where_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """`no_proxy`."""
    with ScriptedUpstream(whole(b"{}")).listening() as up:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        client = Client()
        await asked(client, an_upstream(up.url))
        await client.aclose()
    assert [each.path for each in up.books] == ["/v1/x"]


async def test_a_proxy_that_is_down_says_nothing_of_its_password() -> None:
    """Nor of its address."""
    client = Client()
    upstream = an_upstream("http://api.invalid", proxy="http://me:secret-pass@127.0.0.1:9")
    with pytest.raises(UpstreamError) as caught:
        await asked(client, upstream)
    await client.aclose()
    assert "the proxy cannot be reached" in str(caught.value)
    assert "secret-pass" not in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)


async def test_a_name_that_is_not_known() -> None:
    """In words."""
    client = Client()
    with pytest.raises(UpstreamError, match="up gave no answer: its name is not known"):
        await asked(client, an_upstream("http://api.invalid"))
    await client.aclose()


async def test_one_that_speaks_no_tls() -> None:
    """https:// to a server of plain HTTP."""
    with ScriptedUpstream([Do.CLOSE]).listening() as up:
        client = Client()
        upstream = an_upstream(up.url.replace("http://", "https://"), connect_timeout_s=0.2)
        with pytest.raises(UpstreamError, match=r"up took no connection in 0.2 s"):
            await asked(client, upstream)
        await client.aclose()


async def test_connections_are_used_again_and_let_go() -> None:
    """One for answers in a row; one for each at the same time; what is not read to its end takes its own along."""
    with ScriptedUpstream(whole(b"{}")).listening() as up:
        client, upstream = Client(), an_upstream(up.url)
        for _ in range(3):
            await asked(client, upstream)
        assert {each.connection for each in up.books} == {0}
        await asyncio.gather(*[asked(client, upstream) for _ in range(3)])
        assert up.connections == 3
        up.answers = [[head(content_length="10"), Do.SILENCE]]
        incoming = await client.send(upstream, "POST", "/v1/x", HEADERS, b"{}")
        incoming.close()
        assert await asyncio.to_thread(up.left.acquire, timeout=WAIT_S)
        await client.aclose()
        await asyncio.to_thread(up.wait_for_connections, 0)


async def test_giving_up_closes_the_connection() -> None:
    """Before the head, in the middle of connecting: nothing stays open."""
    with ScriptedUpstream([Do.SILENCE]).listening() as up:
        client = Client()
        sending = asyncio.create_task(client.send(an_upstream(up.url), "POST", "/v1/x", HEADERS, b"{}"))
        assert await asyncio.to_thread(up.held.acquire, timeout=WAIT_S)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert await asyncio.to_thread(up.left.acquire, timeout=WAIT_S)
        await asyncio.to_thread(up.wait_for_connections, 0)
        await client.aclose()


async def test_no_cookies_and_no_netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """What one request was given is not sent with another, and nobody's password file is read."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password hunter2\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with ScriptedUpstream(whole(b"{}", set_cookie="a=b")).listening() as up:
        client, upstream = Client(), an_upstream(up.url)
        for _ in range(2):
            incoming, _ = await asked(client, upstream)
            assert (b"set-cookie", b"a=b") in incoming.headers
        await client.aclose()
    for each in up.books:
        assert not {"cookie", "authorization", "user-agent", "accept"} & each.headers.keys()


def test_bytes_of_headers_cross() -> None:
    """UTF-8 as it is."""
    sent = outgoing_headers(an_upstream("http://x"), [(b"x-name", "Zoë".encode()), (b"x-odd", b"\xff"), (b"te", b"x")])
    assert sent["x-name"].encode() == "Zoë".encode()
    assert "te" not in sent
