"""The HTTP client, over real sockets: proxies, time-outs, connections."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from uvicorn.loops.auto import auto_loop_factory

from taximeter.errors import UpstreamError
from taximeter.upstreams.client import Client, outgoing_headers
from taximeter.upstreams.config import Upstream
from taximeter.upstreams.dispatch import Stale
from taximeter.upstreams.incoming import Incoming
from tests.fakes import WAIT_S
from tests.upstream_harness import Do, ScriptedUpstream, Steps, an_upstream, head, whole

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


SAID = b'{"said": 1}'
CHUNKED = head(transfer_encoding="chunked") + b"3\r\n" + SAID[:3] + b"\r\n8;ext=1\r\n" + SAID[3:] + b"\r\n"


@pytest.mark.parametrize(
    ("steps", "connections"),
    [
        ([b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", head(content_length="11") + SAID], {0}),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + head(content_length="11") + SAID], {0}),
        ([CHUNKED + b"0\r\nx-checksum: 1\r\nserver-timing: t\r\n\r\n"], {0}),
        ([bytes([each]) for each in CHUNKED + b"0\r\n\r\n"], {0}),
        ([head(content_length="11", connection="close") + SAID, Do.CLOSE], {0, 1}),
        ([head() + SAID, Do.CLOSE], {0, 1}),
        ([head(content_length="11") + SAID + b"HTTP/1.1 408 Unasked\r\ncontent-length: 0\r\n\r\n"], {0, 1}),
    ],
    ids=["hints", "continue", "trailers", "byte by byte", "close", "until it closes", "something unasked behind it"],
)
async def test_answers_of_all_kinds(steps: Steps, connections: set[int]) -> None:
    """They are read to their own end, and a connection is used again where that is sure."""
    with ScriptedUpstream(steps).listening() as up:
        client, upstream = Client(), an_upstream(up.url)
        for _ in range(2):
            incoming, body = await asked(client, upstream)
            assert (incoming.status, body, incoming.is_over) == (200, SAID, True)
            assert [name for name, _ in incoming.headers] == [b"content-type"]
        assert {each.connection for each in up.books} == connections
        await client.aclose()


async def test_a_connection_that_was_closed_meanwhile_is_not_used() -> None:
    """The other end closed it while nobody used it: that is noticed, and no request is sent into it."""
    with ScriptedUpstream([head(content_length="2") + b"{}", Do.CLOSE], whole(b"{}")).listening() as up:
        client, upstream = Client(), an_upstream(up.url)
        await asked(client, upstream)
        await asyncio.to_thread(up.wait_for_connections, 0)
        await asyncio.sleep(0)  # a turn in which this end hears of it
        await asked(client, upstream)
        assert len(up.books) == 2
        await client.aclose()


async def test_one_that_closes_when_used_again_is_stale() -> None:
    """Not a byte came: that says nothing of the upstream. After the first byte it does."""
    answers = [whole(b"{}"), [Do.CLOSE], whole(b"{}"), [b"HTTP/1.1 200", Do.CLOSE]]
    with ScriptedUpstream(*answers).listening() as up:
        client, upstream = Client(), an_upstream(up.url)
        await asked(client, upstream)
        with pytest.raises(Stale):
            await asked(client, upstream)
        await asked(client, upstream)
        with pytest.raises(UpstreamError, match="it closed the connection") as caught:
            await asked(client, upstream)
        assert not isinstance(caught.value, Stale)
        await client.aclose()


async def test_a_head_without_end_is_not_kept() -> None:
    """Many short headers as well as one that is long."""
    with ScriptedUpstream([b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000, Do.SILENCE]).listening() as up:
        client = Client()
        with pytest.raises(UpstreamError, match="not HTTP"):
            await asked(client, an_upstream(up.url))
        await asyncio.to_thread(up.wait_for_connections, 0)
        await client.aclose()


async def test_who_reads_slowly_slows_the_upstream() -> None:
    """Of a long answer no more than a part waits here; all of it comes in the end, and the connection serves again."""
    long = b"x" * (16 * 1024 * 1024)
    with ScriptedUpstream(whole(long)).listening() as up:
        client, upstream = Client(), an_upstream(up.url)
        incoming = await client.send(upstream, "POST", "/v1/x", HEADERS, b"{}")
        first = await incoming.read()
        assert first is not None
        for _ in range(50):
            await asyncio.sleep(0)
        assert not up.books[0].is_done
        assert incoming._answer._unread_bytes < len(long) / 4
        rest = b"".join([read.data async for read in incoming])
        incoming.close()
        assert first.data + rest == long
        up.answers = [whole(b"{}")]
        await asked(client, upstream)
        assert {each.connection for each in up.books} == {0}
        await client.aclose()


async def test_a_long_body_that_is_refused_at_once() -> None:
    """The answer comes before all of the body has gone: it is read, and the connection is not used again."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head(413, content_length="2") + b"{}")
        await asyncio.Event().wait()

    async with serving(refuse) as port:
        client, upstream = Client(), an_upstream(f"http://127.0.0.1:{port}")
        incoming = await client.send(upstream, "POST", "/v1/x", HEADERS, b"x" * (64 * 1024 * 1024))
        assert incoming.status == 413
        assert b"".join([read.data async for read in incoming]) == b"{}"
        assert not client._sites[upstream.url, None].idle
        await client.aclose()


async def test_a_header_that_would_end_its_line_is_not_sent() -> None:
    """Whatever made it: nobody adds a request to another one."""
    with ScriptedUpstream(whole(b"{}")).listening() as up:
        client = Client()
        upstream = an_upstream(up.url, headers={"x-a": "b\r\nx-evil: 1"})
        with pytest.raises(UpstreamError, match="line end"):
            await asked(client, upstream)
        with pytest.raises(UpstreamError, match="line end"):
            await asked(client, an_upstream(up.url), "/v1/x HTTP/1.1\r\nx-evil: 1\r\n")
        await client.aclose()
    assert up.books == []


TLS = Path(__file__).parents[2] / "golden" / "tls"


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


@asynccontextmanager
async def serving(serve: Serve, keys: ssl.SSLContext | None = None) -> AsyncGenerator[int]:
    """A server on a port of its own, which is given. At the end its connections are closed."""
    open_now: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now[task] = writer
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(each, "127.0.0.1", 0, ssl=keys)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)
        for writer in open_now.values():
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in open_now.values()), return_exceptions=True)


@asynccontextmanager
async def safely() -> AsyncGenerator[int]:
    """A server that answers over TLS, each time with how often that connection asked before."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served = 0
        while await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(2)
            writer.write(head(content_length="1") + b"%d" % served)
            served += 1

    keys = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    keys.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    async with serving(serve, keys) as port:
        yield port


@asynccontextmanager
async def carrying(port: int, heads: list[bytes]) -> AsyncGenerator[str]:
    """A proxy that carries bytes to `port`, whatever it is asked for; gives its URL, and what it read to `heads`."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            writer.write(await reader.read(65536))
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        there, back = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Established\r\ncontent-length: 0\r\n\r\n")
        try:
            await asyncio.gather(carry(reader, back), carry(there, writer))
        finally:
            back.close()
            with contextlib.suppress(OSError):
                await back.wait_closed()

    async with serving(serve) as own:
        yield f"http://me:pass@127.0.0.1:{own}"


def over_each_loop(main: Callable[[], Coroutine[None, None, None]]) -> None:
    """TLS is each event loop's own: ours is uvloop's where there is one."""
    for factory in (asyncio.new_event_loop, auto_loop_factory()):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())


def test_it_is_safe_where_the_address_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS, by address and by name, with connections that are used again."""

    async def main() -> None:
        async with safely() as port:
            for name in ("127.0.0.1", "localhost"):
                client = Client()
                said = [(await asked(client, an_upstream(f"https://{name}:{port}")))[1] for _ in range(2)]
                assert said == [b"0", b"1"]
                await client.aclose()

    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "certificate.pem"))
    over_each_loop(main)


def test_a_certificate_that_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In words, and nothing is sent."""

    async def main() -> None:
        async with safely() as port:
            client = Client()
            with pytest.raises(UpstreamError, match="is its certificate one that this machine trusts"):
                await asked(client, an_upstream(f"https://127.0.0.1:{port}"))
            await client.aclose()

    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    over_each_loop(main)


def test_a_proxy_carries_what_is_safe_and_reads_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """https:// goes through CONNECT, with the proxy's password; of the request it sees the name and the port."""

    async def main() -> None:
        heads: list[bytes] = []
        async with safely() as port, carrying(port, heads) as proxy:
            client = Client()
            upstream = an_upstream(f"https://localhost:{port}", proxy=proxy)
            assert [(await asked(client, upstream))[1] for _ in range(2)] == [b"0", b"1"]
            await client.aclose()
        [seen] = heads
        assert seen.startswith(b"CONNECT localhost:%d HTTP/1.1\r\n" % port)
        assert b"proxy-authorization: Basic bWU6cGFzcw==\r\n" in seen
        assert b"content-type" not in seen

    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "certificate.pem"))
    over_each_loop(main)


async def test_a_proxy_that_refuses_says_so() -> None:
    """407, and nothing of what was to be sent."""
    with ScriptedUpstream([head(407, content_length="0")]).listening() as proxy:
        client = Client()
        with pytest.raises(UpstreamError, match="the proxy answered with status 407"):
            await asked(client, an_upstream("https://api.invalid", proxy=proxy.url))
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
    assert sent == [(b"x-name", "Zoë".encode()), (b"x-odd", b"\xff"), (b"accept-encoding", b"identity")]
