"""``serve``: who is let in, what is answered, and that nothing is written."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from hpcdet.serve import openapi
from hpcdet.serve.access import AT_ONCE, Access
from hpcdet.serve.endpoints import ADDRESSES
from hpcdet.store.folder.private_folders import LONGEST_SOCKET
from tests.builders import sweep
from tests.commands import Cli
from tests.interactive import another_user_tries, listeners, no_sshd, private_sshd, tunnel
from tests.serve.conftest import Served, serving

AS_VERBS = {
    "experiments/digits-7f3a": "show digits-7f3a",
    "experiments/digits-7f3a/trials": "",
    "experiments/digits-7f3a/metrics?trial=1": "metrics digits-7f3a/1 --x step",
    "experiments/digits-7f3a/metrics?x=wall": "metrics digits-7f3a --x wall",
    "experiments/digits-7f3a/logs?trial=1": "logs digits-7f3a/1",
    "experiments/digits-7f3a/logs?grep=epoch&rank=0": "logs digits-7f3a -g epoch --rank 0",
    "experiments/digits-7f3a/events?trial=3": "events digits-7f3a/3",
    "experiments/digits-7f3a/checkpoints": "ckpt ls digits-7f3a",
    "compare?ids=digits-7f3a/1,digits-91c0": "compare digits-7f3a/1 digits-91c0",
    "models": "registry ls",
    "usage?by=user,state": "usage --by user,state",
}
OF_THE_MOMENT = {"last_heard", "last_turn_s", "health_why", "wall_s"}


def fixed(value: object) -> object:
    """A value without what passes while two processes look."""
    if isinstance(value, dict):
        return {key: fixed(each) for key, each in value.items() if key not in OF_THE_MOMENT}
    return [fixed(each) for each in value] if isinstance(value, list) else value


# -- what is answered ------------------------------------------------------------------------


@pytest.mark.parametrize("address", AS_VERBS)
def test_the_api_answers_what_the_command_line_prints(
    served: Served, cli: Cli, address: str
) -> None:
    answer = served.ask(f"/api/v1/{address}")
    assert answer.status == 200, answer.body
    assert set(answer.json) == {"schema", "generated_at", "items", "warnings"}
    words = AS_VERBS[address]
    if not words:
        rows = cli("ls", "--trials", "-C", served.root, "-o", "json").items
        expected = [row for row in rows if row["id"].startswith("digits-7f3a/")]
    else:
        said = cli(*shlex.split(words), "-C", served.root, "-o", "json")
        expected = said.items
        assert answer.json["schema"] == json.loads(said.out)["schema"]
    assert fixed(answer.json["items"]) == fixed(expected)


def test_lists_are_filtered_sorted_and_come_in_pieces(served: Served) -> None:
    ids = [row["id"] for row in served.items("experiments?sort=id")]
    assert ids == ["digits-7f3a", "digits-91c0"]
    assert served.items("experiments?q=91C&state=COMPLETED,ERROR")[0]["id"] == "digits-91c0"
    assert served.items("experiments?user=eve") == []
    first = served.ask("/api/v1/experiments?sort=-id&limit=1").json
    assert [row["id"] for row in first["items"]] == ["digits-91c0"] and first["next"] == "1"
    second = served.ask(f"/api/v1/experiments?sort=-id&limit=1&cursor={first['next']}").json
    assert [row["id"] for row in second["items"]] == ["digits-7f3a"] and "next" not in second
    rows = served.items("experiments/digits-7f3a/metrics?trial=1&name=loss&points=3")
    whole = served.items("experiments/digits-7f3a/metrics?trial=1&name=loss")
    assert len(whole) > 3 == len(rows)
    assert (rows[0], rows[-1]) == (whole[0], whole[-1])


def test_metrics_come_trial_by_trial(served: Served) -> None:
    address = "experiments/digits-7f3a/metrics?limit=1&cursor="
    found, cursor = [], "0"
    for number in (1, 2, 3):
        answer = served.ask(f"/api/v1/{address}{cursor}").json
        assert {row["trial"] for row in answer["items"]} == {number}
        found += answer["items"]
        cursor = answer.get("next", "")
    assert cursor == "" and found == served.items("experiments/digits-7f3a/metrics")
    assert served.items(f"{address}0&trial=2") == [row for row in found if row["trial"] == 2]
    assert served.ask(f"/api/v1/{address}4&x=").status == 400, "wrong, though no trial is left"


def test_what_the_client_has_is_not_sent_again(served: Served) -> None:
    address = "/api/v1/experiments/digits-7f3a/trials"
    tag = served.ask(address).headers["etag"]
    again = served.ask(address, if_none_match=tag)
    assert (again.status, again.body, again.headers["etag"]) == (304, "", tag)
    assert served.ask(address, if_none_match='W/"other"').status == 200
    assert served.ask(address, method="HEAD").body == ""


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("experiments/nope", 404, "no such experiment"),
        ("experiments/..%2f..%2fetc", 404, "no such"),
        ("experiments/%2fetc%2fpasswd", 404, "no such"),
        ("experiments/digits", 404, "2 experiments fit"),
        ("experiments/digits-7f3a/nothing", 404, "no such address"),
        ("experiments/digits-7f3a/trials?states=X", 400, "there are: state"),
        ("experiments/digits-7f3a/trials?state=DONE", 400, "no state"),
        ("experiments/digits-7f3a/metrics?trial=99", 404, "no trial 99"),
        ("experiments/digits-7f3a/metrics?trial=-1", 400, "no whole number"),
        ("experiments/digits-7f3a/metrics?x=miles", 400, "step, epoch, wall"),
        ("experiments/digits-7f3a/logs?grep=(", 400, "regular expression"),
        ("experiments/digits-7f3a/logs?grep=(a%2B)%2B$", 400, "in so many ways"),
        ("experiments/digits-7f3a/logs?grep=.*a.*b.*c", 400, "one repeat between two"),
        ("experiments?limit=99999999999999999999", 400, "no whole number"),
        ("experiments?limit=0", 400, "no whole number from 1 to"),
        ("experiments/digits-7f3a/metrics?limit=0", 400, "no whole number from 1 to"),
        ("experiments?sort=height", 400, "no such key"),
        ("experiments?q=" + "x" * 1001, 400, "more than 1000"),
        ("compare?ids=digits-7f3a", 400, "at least two"),
        ("compare?ids=digits-7f3a/x,digits-91c0", 404, "no such trial"),
        ("models?name=nope", 404, "nope"),
        ("models?name=..%2f..%2fetc", 404, "no such model"),
        ("models?name=" + "x" * 300, 404, "no such model"),
        ("usage?by=,", 400, "no value"),
        ("compare?ids=", 400, "name one, or leave it out"),
        ("usage?by=shoe", 400, "keys: user"),
        ("nothing", 404, "openapi.json"),
    ],
)
def test_what_is_wrong_is_told(served: Served, address: str, status: int, said: str) -> None:
    answer = served.ask(f"/api/v1/{address}")
    assert answer.status == status, answer.body
    assert set(answer.json["error"]) == {"code", "message", "where", "hint"}
    assert said in " ".join(answer.json["error"].values())


def test_a_damaged_or_removed_experiment_is_an_error_of_its_own(tmp_path: Path) -> None:
    for name in ("digits-7f3a", "other-1111"):
        sweep(tmp_path / name)
    with serving(tmp_path) as served:
        (tmp_path / "digits-7f3a" / "experiment.yaml").write_text("a: [")
        answer = served.ask("/api/v1/experiments/digits-7f3a/trials")
        assert (answer.status, answer.json["error"]["code"]) == (500, "INTEGRITY")
        listed = served.ask("/api/v1/experiments").json
        assert [row["id"] for row in listed["items"]] == ["other-1111"]
        assert "digits-7f3a" in listed["warnings"][0]
        (tmp_path / "other-1111").rename(tmp_path / ".gone")
        assert served.ask("/api/v1/experiments/other-1111/trials").status == 404


def damage(root: Path, names: str) -> None:
    for file in root.rglob(names):
        if file.is_file():
            file.write_bytes(b"\x00\xff{not json\n" * 3)


BAD: dict[str, Callable[[Path], object]] = {
    "empty": lambda root: shutil.rmtree(root / "digits-7f3a"),
    "damaged journals": lambda root: damage(root, "journal.jsonl"),
    "damaged records": lambda root: damage(root / "digits-7f3a", "*"),
    "without the root": shutil.rmtree,
}


@pytest.mark.parametrize("bad", BAD)
def test_of_bad_input_every_address_tells(tmp_path: Path, bad: str) -> None:
    root = tmp_path / "root"
    sweep(root / "digits-7f3a")
    apis = [f"/api/v1{one.path.replace('{id}', 'digits-7f3a')}" for one in ADDRESSES]
    pages = ["/", "/e/digits-7f3a", "/e/digits-7f3a/1", "/compare", "/models", "/usage"]
    with serving(root) as served:
        BAD[bad](root)
        for address in (*apis, *pages):
            ids = "?ids=digits-7f3a/1,digits-7f3a/2" if address.endswith("compare") else ""
            answer = served.ask(address + ids)
            if answer.status != 200:
                assert answer.json["error"]["code"] in ("NOT_FOUND", "INTEGRITY"), address
        assert served.process.poll() is None


def test_the_description_names_every_address_and_its_parameters(served: Served) -> None:
    answer = served.ask("/api/v1/openapi.json")
    assert answer.body == openapi.description()
    paths = answer.json["paths"]
    assert set(paths) == {f"/api/v1{one.path}" for one in ADDRESSES}
    for one in ADDRESSES:
        operation = paths[f"/api/v1{one.path}"]["get"]
        assert set(one.parameters) == {
            p["name"] for p in operation["parameters"] if p["in"] == "query"
        }
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert schema["properties"]["schema"]["const"] == f"hpcdet.{one.verb}/1"


# -- who is let in ---------------------------------------------------------------------------


def test_only_who_shows_the_token_to_this_host_and_reads_is_answered(served: Served) -> None:
    address = "/api/v1/experiments"
    for token in ("", "x", served.told["token"][:-1], served.told["token"] + "x", "é"):
        assert served.ask(address, token=token.encode().decode("latin-1")).status == 403
    for host in ("evil.example", "localhost.evil.example", "", "localhost:1:2", "10.0.0.1:80"):
        assert served.ask(address, host=host).status == 421, host
    for host in ("localhost:8765", "127.0.0.1", "[::1]:8765", "LOCALHOST"):
        assert served.ask(address, host=host).status == 200, host
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        refused = served.ask(address, method=method)
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD"), method
        assert served.ask(address, method=method, token="").status == 403
    assert (
        served.ask(f"{address}?token={served.told['token']}", method="POST", token="").status == 403
    )


def test_the_token_of_the_address_becomes_a_cookie(served: Served) -> None:
    token = served.told["token"]
    first = served.ask(f"/api/v1/experiments?limit=1&token={token}", token="")
    assert (first.status, first.headers["location"]) == (303, "/api/v1/experiments?limit=1")
    name, _, rest = first.headers["set-cookie"].partition("=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in rest.split(";")}
    assert served.ask("/api/v1/usage", token="", cookie=f"a=b; {name}={token}").status == 200
    assert served.ask("/api/v1/usage", token="", cookie=f"other={token}").status == 403
    away = served.ask(f"//evil.example/x?token={token}", token="")
    assert away.headers["location"].startswith("/evil.example")
    assert served.ask("/?token=wrong", token="").status == 403


def test_every_answer_forbids_what_no_page_needs(served: Served) -> None:
    for answer in (served.ask("/api/v1/usage"), served.ask("/x"), served.ask("/", token="")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_another_user_reaches_nothing(served: Served) -> None:
    path = Path(served.told["socket"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert all(" got " not in line for line in another_user_tries(str(path)))
    assert listeners({served.process.pid}) == []
    argv = Path(f"/proc/{served.process.pid}/cmdline").read_bytes()
    assert served.told["token"].encode() not in argv


@pytest.mark.skipif(bool(no_sshd()), reason=no_sshd())
def test_the_printed_line_of_ssh_leads_there(served: Served, tmp_path: Path) -> None:
    with private_sshd(tmp_path / "sshd") as sshd:
        line = shlex.split(served.told["ssh"])
        with tunnel(line, sshd, tmp_path / "here") as entrance:
            answer = served.ask("/api/v1/experiments", path=entrance, host="localhost:8765")
            assert len(answer.json["items"]) == 2
            assert served.ask("/api/v1/experiments", path=entrance, token="").status == 403


# -- its life --------------------------------------------------------------------------------


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        + str(path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_it_ends_unasked_and_leaves_nothing_behind(tmp_path: Path) -> None:
    sweep(tmp_path / "root" / "digits-7f3a")
    before = digests(tmp_path / "root")
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    with serving(tmp_path / "root", "--idle", "2s", XDG_RUNTIME_DIR=str(runtime)) as served:
        assert Path(served.told["socket"]).is_relative_to(runtime) and served.told["idle_s"] == 2
        for address in AS_VERBS:
            served.ask(f"/api/v1/{address}")
        assert served.process.wait(60) == 0
    assert list(runtime.iterdir()) == []
    assert digests(tmp_path / "root") == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it(tmp_path: Path, number: int) -> None:
    with serving(tmp_path) as served:
        served.process.send_signal(number)
        assert served.process.wait(60) in (0, 130, 143)
        assert not Path(served.told["socket"]).parent.exists()


def test_a_port_is_loopback_and_warned_of(tmp_path: Path) -> None:
    with serving(tmp_path, "--port", "0") as served:
        assert served.told["socket"] is None and served.told["port"] > 0
        with socket.create_connection(("127.0.0.1", served.told["port"])) as tcp:
            tcp.sendall(b"GET /api/v1/usage HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert tcp.recv(100).startswith(b"HTTP/1.1 403")
        taken = ["serve", "--port", str(served.told["port"])]
        argv = [sys.executable, "-m", "hpcdet", "-C", str(tmp_path), *taken]
        refused = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert refused.returncode == 2 and "--port 0 takes a free one" in refused.stderr


def test_connections_that_say_nothing_keep_nobody_out(tmp_path: Path) -> None:
    with serving(tmp_path, "--port", "0") as served, contextlib.ExitStack() as held:
        place = ("127.0.0.1", served.told["port"])
        silent = [held.enter_context(socket.create_connection(place)) for _ in range(40)]
        silent[0].sendall(b"GET / HTTP/1.1\r\n")  # and no end of the headers
        connection = http.client.HTTPConnection(*place)
        with contextlib.closing(connection):
            shown = {"Authorization": f"Bearer {served.told['token']}"}
            connection.request("GET", "/api/v1/experiments", headers=shown)
            assert connection.getresponse().status == 200
        for one in silent:
            one.settimeout(120)
            assert one.recv(1) == b""  # it is closed


def test_so_many_requests_are_answered_at_a_time() -> None:
    sent: list[int] = []
    head = [(b"host", b"localhost"), (b"authorization", b"Bearer x")]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": head}

    async def send(message: Any) -> None:
        sent.extend([message["status"]] if "status" in message else [])

    async def ask() -> None:
        free = asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await free.wait()
            await Response()(scope, receive, send)

        app = Access(slow, "x", "cookie")
        running = [asyncio.create_task(app(scope, receive, send)) for _ in range(AT_ONCE)]
        await asyncio.sleep(0)
        await app(scope, receive, send)
        assert sent == [503]
        free.set()
        await asyncio.gather(*running)
        await app(scope, receive, send)
        assert sent == [503, *[200] * (AT_ONCE + 1)]

    async def receive() -> Any:
        raise AssertionError("there is no body")

    asyncio.run(ask())


def test_a_runtime_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    open_to_all = tmp_path / "run"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with serving(tmp_path, XDG_RUNTIME_DIR=str(open_to_all)) as served:
        assert not Path(served.told["socket"]).is_relative_to(open_to_all)


def test_a_runtime_folder_with_a_long_path_or_of_another_user_is_not_used(tmp_path: Path) -> None:
    long, anothers = tmp_path / ("x" * 100), tmp_path / "run"
    for folder in (long, anothers):
        folder.mkdir(mode=0o700)
    if os.getuid() == 0:
        os.chown(anothers, 65534, 65534)
    for folder in (long, anothers) if os.getuid() == 0 else (long,):
        with serving(tmp_path, XDG_RUNTIME_DIR=str(folder), TMPDIR=str(long)) as served:
            path = Path(served.told["socket"])
            assert not path.is_relative_to(folder) and len(os.fsencode(path)) <= LONGEST_SOCKET
            assert served.ask("/api/v1/experiments").status == 200


def test_a_root_that_is_not_there_is_refused(cli: Cli, tmp_path: Path) -> None:
    assert "no such folder" in cli("serve", "-C", tmp_path / "nowhere", code=3).err
