"""What the wrapper lets through, and the command line, without a browser."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from dpacct import Budget, InvalidParameter, Ledger
from dpacct_cli.commands.app import listen

pytest.importorskip("shiny")
from dpacct_cli.app_page import parts, serve

HERE, LOCAL = b"127.0.0.1:8765", b"localhost:8765"
Headers = list[tuple[bytes, bytes]]


def asked(kind: str, headers: Headers) -> list[dict[str, Any]]:
    """What a client of the wrapper gets. An inner application answers 200, or accepts."""
    sent: list[dict[str, Any]] = []

    async def inner(scope: Any, _receive: Any, send: Any) -> None:
        answer = {"http": ("http.response.start", 200), "websocket": ("websocket.accept", 0)}
        name, status = answer[scope["type"]]
        await send({"type": name, "status": status, "headers": []})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {}

    inner_app: Any = inner
    wrapper = serve.OnlyHere(inner_app, "<script>x</script>", 8765)
    asyncio.run(wrapper({"type": kind, "headers": headers}, receive, send))
    return sent


FOREIGN: list[Headers] = [
    [],
    [(b"host", b"evil.example:8765")],
    [(b"host", b"127.0.0.1")],
    [(b"host", b"127.0.0.1:8766")],
    [(b"host", b"127.0.0.1:8765.evil.example")],
    [(b"host", HERE), (b"host", b"evil.example")],
    [(b"host", HERE), (b"origin", b"https://evil.example")],
    [(b"host", HERE), (b"origin", b"null")],
    [(b"host", HERE), (b"origin", b"")],
    [(b"host", HERE), (b"origin", b"https://127.0.0.1:8765")],
    [(b"host", HERE), (b"origin", b"http://127.0.0.1:9999")],
    [(b"host", HERE), (b"origin", b"http://" + HERE), (b"origin", b"null")],
]


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("headers", FOREIGN)
def test_foreign_hosts_and_origins_are_refused(kind: str, headers: Headers):
    (first, *_) = asked(kind, headers)
    if kind == "http":
        assert first["status"] == 403
    else:
        assert first == {"type": "websocket.close", "code": 1008}


@pytest.mark.parametrize("host", [HERE, LOCAL])
def test_the_page_itself_is_served_with_its_policy(host: bytes):
    for headers in ([(b"host", host)], [(b"host", host), (b"origin", b"http://" + host)]):
        (first,) = asked("http", headers)
        assert first["status"] == 200
        policy = dict(first["headers"])[b"content-security-policy"].decode()
        assert policy.startswith("default-src 'self'; ")
        scripts = policy.split("script-src ")[1].partition(";")[0]
        assert "unsafe" not in scripts
        assert "frame-ancestors 'none'" in policy
    (first,) = asked("websocket", [(b"host", host), (b"origin", b"http://" + host)])
    assert first["type"] == "websocket.accept"


def test_a_websocket_without_an_origin_is_refused():
    (first,) = asked("websocket", [(b"host", HERE)])
    assert first["type"] == "websocket.close"


def test_a_ledger_is_named_by_its_place_alone(tmp_path: Path):
    files = [str(tmp_path / "a.ledger"), str(tmp_path / "b.ledger")]
    assert parts.path_of(files, {"ledger": "1"}) == files[1]
    for wrong in ("2", "-1", "", None, 0, files[0], "/etc/passwd", "1 ", "\u0661"):
        with pytest.raises(InvalidParameter, match="not one of those"):
            parts.path_of(files, {"ledger": wrong})


def test_names_of_files_stay_text(tmp_path: Path):
    page = serve.page([str(tmp_path / "<script>.ledger")])
    assert "&lt;script&gt;.ledger</option>" in page
    assert page.count("<script") == 1


def test_the_page_names_no_other_place():
    for file in serve.HERE.glob("*.*"):
        assert "//" not in file.read_text(encoding="utf-8").replace("ws://", "").replace(
            "http://{name}", ""
        ).replace("// ", "")


def test_a_change_of_a_ledger_is_seen(tmp_path: Path):
    file = tmp_path / "a.ledger"
    with Ledger.open(file, Budget(8, 1e-5)) as ledger:
        before = serve.look([str(file)])
        assert serve.look([str(file)]) == before
        ledger.start_run("x")
        assert serve.look([str(file)]) != before


def test_it_listens_here_alone_and_says_what_is_taken():
    with listen(None) as first:
        host, port = first.getsockname()
        assert host == "127.0.0.1"
        with listen(None) as second:
            assert second.getsockname()[1] != port
        with pytest.raises(InvalidParameter, match="not free"):
            listen(str(port))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with listen(str(port)) as chosen:
        assert chosen.getsockname()[1] == port


@pytest.mark.parametrize("port", ["0", "80", "70000", "x", "1.5"])
def test_a_port_out_of_range_is_refused(dpacct: Any, port: str):
    ran = dpacct(f"app --no-open --port {port}")
    assert ran.code == 2
    assert "--port is " in ran.err


def test_a_ledger_that_is_missing_is_refused_before_anything_is_served(dpacct: Any, tmp_path: Path):
    ran = dpacct(f"app --no-open '{tmp_path / 'none.ledger'}'")
    assert ran.code == 2
    assert "there is no such file" in ran.err


def test_without_shiny_the_extra_is_named(dpacct: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dpacct.packages.metadata.version", lambda _: "1.7")
    ran = dpacct("app --no-open")
    assert ran.code == 1
    assert "shiny 1.7 is too old" in ran.err
    assert "install" in ran.err


def test_a_tab_goes_on_after_its_process_has_died():
    shown: list[str] = []

    async def put(name: str, html: str) -> None:
        shown.append(f"{name} {html}")

    async def ask() -> None:
        worker = serve.Worker("sweep", put)
        for fields in (None, {"noise_multiplier": ""}):
            worker.begin(fields=fields)
            assert worker.asked is not None
            await worker.asked
        worker.begin(fields={})
        worker.end()
        assert worker.spare is not None
        await (await worker.spare).communicate()

    asyncio.run(ask())
    assert shown[0] == f"heat {serve.FAILED}"
    assert "Noise multiplier is empty." in shown[-1]


def test_the_page_shows_no_password_of_an_address():
    shown = serve.page(["postgresql://ann:secret1@host/db?password=secret2#census", "a/b.ledger"])
    assert "secret" not in shown
    assert ">census</option>" in shown
    assert ">b.ledger</option>" in shown


@pytest.mark.parametrize("sent", [5, None, "x", (), [1, 2], {"ledger": "0"}])
def test_fields_are_a_table_whatever_a_message_holds(sent: Any) -> None:
    given = {"ledgers": lambda: sent}
    assert serve.fields_of(given, "ledgers") == (sent if isinstance(sent, dict) else {})
