"""Messages by webhook and mail: sent once, signed, beside the turn, by whoever can.

The server is a real one of HTTP on this host. ``fake_sendmail`` is a script that writes down what
it is given.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.messages import deliver, mail, sender_process, webhook
from hpcdet.control.messages.not_sent import NotSent
from hpcdet.control.turn.controller import advance
from hpcdet.control.upkeep import notify
from hpcdet.errors import ConfigError
from hpcdet.read.views import describe, views
from hpcdet.store.config import resolved_config
from hpcdet.store.decisions import outbox
from hpcdet.store.decisions.outbox import Message
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.worker import sentinel
from tests.control.worlds import begun, later
from tests.paper import Waves, World

SECRET = "the-key-of-the-receiver"
HOOK: dict[str, Any] = {"url": {"env": "HOOK_URL"}, "secret": {"env": "HOOK_SECRET"}}


@dataclass
class Receiver:
    """A web server: what was posted to it, and how it answers.

    Attributes:
        answer: a status; 0: it hangs up without one; -1: it says nothing; -2: a byte now and then.
    """

    answer: int = 204
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    server: ThreadingHTTPServer | None = None
    let_go: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.server_address[1]}/hook/t0ken-in-the-path"

    @property
    def ids(self) -> list[str]:
        return [json.loads(body)["id"] for _, _, body in self.got]


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.got.append((self.path, dict(self.headers), body))
            if receiver.answer == 0:
                self.connection.close()
            elif receiver.answer == -1:
                receiver.let_go.wait(30)
            elif receiver.answer == -2:
                while not receiver.let_go.wait(0.05):
                    self.wfile.write(b"H")
            else:
                self.send_response(receiver.answer)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

        def do_GET(self) -> None:
            receiver.got.append((self.path, dict(self.headers), b""))

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    made = Receiver()
    made.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(made))
    made.server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,))
    thread.start()
    monkeypatch.setenv("HOOK_URL", made.url)
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    yield made
    made.let_go.set()
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def fake_sendmail(folder: Path, code: int = 0) -> Path:
    """A script in the place of sendmail: each mail becomes a file, its arguments another."""
    script = folder / "fake-sendmail"
    script.write_text(
        f'#!/bin/sh\necho "$@" >>"{folder}/arguments"\n'
        f'n=$(ls "{folder}" | grep -c "^mail-")\ncat >"{folder}/mail-$n"\nexit {code}\n'
    )
    script.chmod(0o755)
    return script


def experiment(folder: Path, **wishes: Any) -> ExperimentPaths:
    """An experiment of which messages are to be sent."""
    paths = ExperimentPaths(folder / "digits-7f3a")
    files.make_folder(paths.code)
    config = {"schema": 1, "name": "digits", "notify": {"webhook": HOOK, **wishes}}
    files.write_once(paths.config, resolved_config.dump(config))
    site = {
        "schema": 1,
        "name": "x",
        "scheduler": "local",
        "sendmail": str(folder / "fake-sendmail"),
    }
    paths.site.write_text(json.dumps(site))
    return paths


def put(paths: ExperimentPaths, what: str, why: str = "it is over", name: str = "digits") -> None:
    wishes = resolved_config.load(paths.config).notify
    notify.leave(paths, wishes, what, "end", why, name)


def whys(paths: ExperimentPaths) -> list[str]:
    return [one.failed.why if one.failed else "" for one in outbox.pending(paths)]


def later_on_this_host(paths: ExperimentPaths) -> None:
    """Failures become old enough for another try."""
    past = datetime.now(UTC) - timedelta(hours=2)
    for file in paths.messages.glob("*.failed.json"):
        found = json.loads(file.read_text())
        file.write_text(json.dumps({**found, "at": past.isoformat()}))


def test_a_message_is_signed_and_sent_once(receiver: Receiver, tmp_path: Path) -> None:
    paths = experiment(tmp_path)
    put(paths, "end COMPLETED")
    put(paths, "end COMPLETED")  # again, after a crash
    [one] = outbox.pending(paths)
    deliver.send_all(paths)
    deliver.send_all(paths)
    [(path, headers, body)] = receiver.got
    assert path == "/hook/t0ken-in-the-path"
    wanted = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers["X-Hpcdet-Signature"] == f"sha256={wanted}"
    assert headers["X-Hpcdet-Delivery"] == one.message.id == json.loads(body)["id"]
    assert (headers["X-Hpcdet-Event"], headers["Content-Type"]) == ("end", "application/json")
    said = json.loads(body)
    assert (said["experiment"], said["why"]) == ("digits-7f3a", "it is over")
    assert said["text"] == "digits-7f3a: end: it is over"
    assert outbox.pending(paths) == []


def test_no_file_holds_the_secrets(receiver: Receiver, tmp_path: Path) -> None:
    paths = experiment(tmp_path)
    put(paths, "end")
    for answer in (500, 0, 204):
        receiver.answer = answer
        deliver.send_all(paths)
        later_on_this_host(paths)
    assert len(receiver.got) == 3
    for file in paths.root.rglob("*"):
        data = file.read_bytes() if file.is_file() else b""
        assert SECRET.encode() not in data and b"t0ken" not in data, file


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (500, "HTTP 500"),
        (403, "HTTP 403"),
        (302, "HTTP 302: redirects are not followed"),
        (307, "HTTP 307: redirects are not followed"),
        (0, "it does not answer as HTTP"),
        (-1, "no answer in time"),
        (-2, "no answer in time"),
    ],
)
def test_what_is_not_taken_waits_and_is_sent_later(
    receiver: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: int,
    why: str,
) -> None:
    monkeypatch.setattr(webhook, "CONNECT_S", 0.3)
    monkeypatch.setattr(webhook, "WHOLE_S", 0.6)
    paths = experiment(tmp_path)
    put(paths, "first")
    put(paths, "second")
    receiver.answer = answer
    deliver.send_all(paths)
    assert len(receiver.got) == 1, "the second waits for the first; redirects are not followed"
    first, second = whys(paths)
    assert why in first and second == ""
    deliver.send_all(paths)
    assert len(receiver.got) == 1, "it was tried a moment ago"
    later_on_this_host(paths)
    receiver.let_go.set()
    receiver.answer = 200
    deliver.send_all(paths)
    assert outbox.pending(paths) == []
    assert receiver.ids[0] == receiver.ids[1] != receiver.ids[2]


def test_nobody_listens_or_nobody_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = Message("1", "end", "end")
    for url, why in (
        ("http://127.0.0.1:1/x", "refused"),
        ("https://no-such-host.invalid/s3cret", "its host is not known here"),
        ("http://example.org/s3cret", "not https"),
        ("ftp://127.0.0.1/s3cret", "not https"),
        ("https://me:s3cret@127.0.0.1/", "user name or password"),
        ("https://127.0.0.1/a\r\nX-Other: s3cret", "no address"),
        ("https:///s3cret", "no address"),
    ):
        with pytest.raises(NotSent, match=why) as caught:
            webhook.post(url, SECRET, message, "digits-7f3a")
        assert "s3cret" not in str(caught.value)


def test_proxies_of_the_environment_are_not_used(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    webhook.post(receiver.url, None, Message("1", "end", "end"), "digits-7f3a")
    assert "X-Hpcdet-Signature" not in receiver.got[0][1]


def test_certificates_are_verified(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    certified(key, certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    assert receiver.server is not None
    receiver.server.socket = context.wrap_socket(receiver.server.socket, server_side=True)
    port = receiver.server.server_address[1]
    message = Message("1", "end", "end")
    with pytest.raises(NotSent, match="certificate is not trusted"):
        webhook.post(f"https://localhost:{port}/", SECRET, message, "digits-7f3a")
    assert not receiver.got
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    webhook.post(f"https://localhost:{port}/", SECRET, message, "digits-7f3a")
    assert len(receiver.got) == 1
    with pytest.raises(NotSent, match="certificate is not trusted"):  # of another name
        webhook.post(f"https://127.0.0.1:{port}/", SECRET, message, "digits-7f3a")


def certified(key: Path, certificate: Path) -> None:
    """Make a key and a certificate of ``localhost``."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form, no = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(private.private_bytes(pem, form, no))
    certificate.write_bytes(made.public_bytes(pem))


# -- who sends, and deaths ---------------------------------------------------------------------


def test_what_one_host_cannot_send_another_one_sends_at_once(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = experiment(tmp_path)
    put(paths, "end")
    with monkeypatch.context() as node:
        node.delenv("HOOK_URL")
        node.setattr(outbox.socket, "gethostname", lambda: "n17")
        deliver.send_all(paths)
    [why] = whys(paths)
    assert "HOOK_URL is not set" in why
    deliver.send_all(paths)
    assert len(receiver.got) == 1 and outbox.pending(paths) == []


def dies(paths: ExperimentPaths, at: str) -> None:
    """Send in another process, which SIGKILL ends as it enters a function."""
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from hpcdet.control.messages import deliver, webhook\n"
        "from hpcdet.store.decisions import outbox\n"
        "from hpcdet.store.folder.layout import ExperimentPaths\n"
        "def die(*a, **k): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"{at} = die\n"
        "deliver.send_all(ExperimentPaths(Path(sys.argv[1])))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, paths.root], timeout=60)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("at", "sent"),
    [
        ("outbox.Pending.claim", 0),
        ("webhook.post", 0),
        ("outbox.Pending.mark_sent", 1),
    ],
)
def test_a_sender_that_is_killed_is_followed_by_another(
    receiver: Receiver, tmp_path: Path, at: str, sent: int
) -> None:
    paths = experiment(tmp_path)
    put(paths, "end")
    dies(paths, at)
    assert len(receiver.got) == sent
    deliver.send_all(paths)
    claims = [*paths.messages.glob("*.claim-1.json")]
    assert len(receiver.got) == (1 if not claims else sent), "a live sender is not overtaken"
    for claim in claims:  # it was gone long ago
        os.utime(claim, (time.time() - outbox.STALE_S - 1,) * 2)
    deliver.send_all(paths)
    assert outbox.pending(paths) == []
    assert len(receiver.got) == sent + 1 and len(set(receiver.ids)) == 1
    deliver.send_all(paths)
    assert len(receiver.got) == sent + 1


def test_two_senders_send_it_once(receiver: Receiver, tmp_path: Path) -> None:
    paths = experiment(tmp_path)
    for number in range(5):
        put(paths, f"failure {number}")
    program = [sys.executable, "-m", "hpcdet.control.messages.deliver", str(paths.root)]
    for process in [subprocess.Popen(program) for _ in range(3)]:
        assert process.wait(60) == 0
    deliver.send_all(paths)
    assert len(receiver.got) == len(set(receiver.ids)) == 5
    assert outbox.pending(paths) == []


def test_nothing_is_sent_for_what_others_may_write(receiver: Receiver, tmp_path: Path) -> None:
    paths = experiment(tmp_path)
    put(paths, "end")
    paths.root.chmod(0o777)
    with pytest.raises(ConfigError):
        deliver.send_all(paths)
    assert not receiver.got


def test_a_channel_that_is_not_set_any_more_gets_nothing(
    receiver: Receiver, tmp_path: Path
) -> None:
    paths = experiment(tmp_path)
    put(paths, "end")
    paths.config.unlink()
    files.write_once(paths.config, resolved_config.dump({"schema": 1, "name": "digits"}))
    deliver.send_all(paths)
    assert outbox.pending(paths) == [] and not receiver.got


# -- mail ---------------------------------------------------------------------------------------


def test_a_mail_is_handed_to_sendmail(receiver: Receiver, tmp_path: Path) -> None:
    fake_sendmail(tmp_path)
    paths = experiment(tmp_path, email=["ada@example.org", "lee"])
    put(paths, "end", "COMPLETED: 4 of 4 trials succeeded")
    deliver.send_all(paths)
    found = message_from_bytes((tmp_path / "mail-0").read_bytes(), policy=policy.default)
    assert (tmp_path / "arguments").read_text() == "-t -i\n"
    assert found["To"] == "ada@example.org, lee"
    said = "hpcdet digits-7f3a (digits): end: COMPLETED: 4 of 4 trials succeeded"
    assert found["Subject"] == said
    assert "4 of 4 trials" in found.get_content()
    assert found["X-Hpcdet-Delivery"] == receiver.ids[0]
    assert outbox.pending(paths) == []


def test_no_name_adds_a_header(tmp_path: Path) -> None:
    name = "x\nBcc: all@example.org\r\n\r\nhello\x00\u2028Ünïcode 𝕏"
    message = Message("1", "end", "end", f"why\nCc: {name}", name)
    data = mail.encoded(message, "digits-7f3a", ["ada@example.org"])
    assert b"\r" not in data
    head = data.partition(b"\n\n")[0]
    names = {line.partition(b":")[0] for line in head.split(b"\n") if line[:1] not in b" \t"}
    assert names == {
        *(b"Subject", b"To", b"Message-ID", b"Auto-Submitted", b"X-Hpcdet-Delivery"),
        *(b"Content-Type", b"Content-Transfer-Encoding", b"MIME-Version"),
    }
    assert "Ünïcode 𝕏" in message_from_bytes(data, policy=policy.default)["Subject"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda folder: fake_sendmail(folder, code=75), "ended with 75"),
        (lambda folder: None, "No such file"),
    ],
)
def test_a_mail_that_is_not_taken_waits(
    receiver: Receiver, tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    make(tmp_path)
    paths = experiment(tmp_path, email="ada@example.org")
    put(paths, "end")
    deliver.send_all(paths)
    assert len(receiver.got) == 1, "one channel does not hold up the other"
    [one] = outbox.pending(paths)
    assert one.channel == "email" and one.failed is not None and why in one.failed.why
    fake_sendmail(tmp_path)
    later_on_this_host(paths)
    deliver.send_all(paths)
    assert outbox.pending(paths) == [] and len(receiver.got) == 1


def test_a_sendmail_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = fake_sendmail(tmp_path)
    script.write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setattr(mail, "LIMIT_S", 0.2)
    with pytest.raises(NotSent, match="did not end"):
        mail.hand_over(str(script), Message("1", "end", "end"), "digits-7f3a", ["ada"])


# -- beside the turn ----------------------------------------------------------------------------


def world_of(tmp_path: Path, **wishes: Any) -> World:
    """A world of one trial, with the files that a sender reads."""
    asked = {"webhook": HOOK, **wishes}
    world = World.make(tmp_path, Waves(count=1, width=1), max_restarts=0, notify=asked)
    config = {"schema": 1, "name": "paper", "notify": asked}
    files.write_once(world.paths.config, resolved_config.dump(config))
    site = {"name": "paper", "scheduler": "local", "sendmail": str(tmp_path / "fake-sendmail")}
    world.paths.site.write_text(json.dumps({"schema": 1, **site}))
    return world


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every sender is started when it is asked for, and has ended with the test."""
    monkeypatch.setattr(sender_process, "_next", {})
    yield
    sender_process.finish(60)


def test_the_hook_the_webhook_and_mails_hear_the_same(
    receiver: Receiver, tmp_path: Path, at_once: None
) -> None:
    fake_sendmail(tmp_path)
    world = world_of(tmp_path, command='echo "$HPCDET_EVENT" >> heard', email="ada@example.org")
    play, holder, [worker] = begun(world)
    play.fail(play.claim(worker))
    advance(world.paths, holder)
    advance(world.paths, holder)
    sender_process.finish(60)
    heard = (world.paths.root / "heard").read_text().split()
    assert heard == [json.loads(body)["event"] for _, _, body in receiver.got] == ["failure", "end"]
    mails = [message_from_bytes(file.read_bytes()) for file in sorted(tmp_path.glob("mail-*"))]
    assert [one["X-Hpcdet-Delivery"] for one in mails] == receiver.ids
    assert outbox.pending(world.paths) == []


def test_events_are_filtered_for_all(receiver: Receiver, tmp_path: Path, at_once: None) -> None:
    world = world_of(tmp_path, on=["end"])
    play, holder, [worker] = begun(world)
    play.fail(play.claim(worker))
    advance(world.paths, holder)
    advance(world.paths, holder)
    sender_process.finish(60)
    assert [json.loads(body)["event"] for _, _, body in receiver.got] == ["end"]


def test_a_turn_does_not_wait_for_a_silent_server(
    receiver: Receiver, tmp_path: Path, at_once: None
) -> None:
    receiver.answer = -1
    world = world_of(tmp_path)
    play, holder, [worker] = begun(world)
    play.fail(play.claim(worker))
    advance(world.paths, holder)
    turn = later(world, holder, 1)
    assert turn.closed or later(world, holder, 1).closed
    process = sender_process._running[world.paths.root]
    assert process.poll() is None, "it is still being sent, and the experiment is closed"
    receiver.let_go.set()


def test_a_crash_between_leaving_a_message_and_recording_it_makes_no_second(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_process, "tend", lambda *_, **__: None)
    world = world_of(tmp_path)
    play, holder, [worker] = begun(world)
    play.fail(play.claim(worker))
    with monkeypatch.context() as crash:
        record = holder.record

        def died(kind: str, **fields: Any) -> None:
            if kind == "notify":
                raise OSError("the disk is full")
            record(kind, **fields)

        crash.setattr(holder, "record", died)
        with pytest.raises(OSError, match="full"):
            advance(world.paths, holder)
    assert [one.message.event for one in outbox.pending(world.paths)] == ["failure"]
    world.clock.now += 1000
    other = world.holder()
    advance(world.paths, other)
    advance(world.paths, other)
    assert sorted(one.message.event for one in outbox.pending(world.paths)) == ["end", "failure"]


def test_status_says_what_is_not_sent(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answer = 500
    paths = experiment(tmp_path)
    put(paths, "end")
    deliver.send_all(paths)
    status = views.status(paths)
    [one] = status.unsent
    assert (one.event, one.channel, one.tries, one.why) == ("end", "webhook", 1, "HTTP 500")
    assert "  1 message not sent yet: webhook: HTTP 500" in describe.headline(status, "digits-7f3a")


def test_after_the_end_whoever_turns_the_crank_sends_what_is_left(
    receiver: Receiver, tmp_path: Path, at_once: None
) -> None:
    receiver.answer = 503
    world = world_of(tmp_path, on=["end"])
    play, holder, [worker] = begun(world)
    play.finish(play.claim(worker))
    advance(world.paths, holder)
    assert later(world, holder, 1).closed
    sender_process.finish(60)
    assert whys(world.paths) == ["HTTP 503"]
    receiver.answer = 200
    later_on_this_host(world.paths)
    sender_process._next.clear()
    assert advance(world.paths, world.holder("worker")).closed
    sender_process.finish(60)
    assert len(receiver.got) == 1, "of workers there may be many"
    assert advance(world.paths, world.holder("once")).closed
    sender_process.finish(60)
    assert outbox.pending(world.paths) == [] and len(set(receiver.ids)) == 1


def test_a_sentinel_tells_once_and_waits_for_it(receiver: Receiver, tmp_path: Path) -> None:
    paths = experiment(tmp_path)
    for _ in range(2):
        sentinel._tell(paths, 1, "all tasks have ended")
    [(_, headers, body)] = receiver.got
    assert headers["X-Hpcdet-Event"] == "stuck"
    assert "all tasks have ended; next: hpcdet resume digits-7f3a" in json.loads(body)["why"]
    assert outbox.pending(paths) == []


# -- odd texts, answers, disks and clocks -------------------------------------------------------


@pytest.mark.parametrize(
    "why",
    ["caf\udce9.csv", "half \ud800", "nul \0", "long " * 1_000_000],
    ids=["bytes", "half", "nul", "long"],
)
def test_whatever_an_error_says_is_told_by_each_channel(
    receiver: Receiver, tmp_path: Path, why: str
) -> None:
    fake_sendmail(tmp_path)
    paths = experiment(tmp_path, email="ada")
    put(paths, "end", why)
    deliver.send_all(paths)
    assert outbox.pending(paths) == []
    assert why[:3] in json.loads(receiver.got[0][2])["why"]
    assert why[:3] in message_from_bytes((tmp_path / "mail-0").read_bytes()).get_payload()
    hook = f'printf %s "$HPCDET_WHY" >{tmp_path}/why'
    assert notify.run_hook(paths, hook, "end", why) == 0
    assert (tmp_path / "why").read_text().startswith(why[:3])


def test_a_secret_may_be_any_bytes(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environb, b"HOOK_SECRET", b"\xff\xfe")
    put(paths := experiment(tmp_path), "end")
    deliver.send_all(paths)
    [(_, headers, body)] = receiver.got
    wanted = hmac.new(b"\xff\xfe", body, hashlib.sha256).hexdigest()
    assert headers["X-Hpcdet-Signature"] == f"sha256={wanted}"


def test_a_message_that_alone_is_refused_holds_up_no_other(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answer = 413
    put(paths := experiment(tmp_path), "first")
    put(paths, "second")
    deliver.send_all(paths)
    assert len(receiver.got) == 2 and whys(paths) == ["HTTP 413", "HTTP 413"]


def test_an_error_of_a_channel_is_recorded_and_frees_the_message(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(paths := experiment(tmp_path), "end")
    with monkeypatch.context() as broken:
        broken.setattr(webhook, "body", lambda *_: SECRET + 1)  # type: ignore[operator]
        deliver.send_all(paths)
    assert whys(paths) == ["TypeError"] and not [*paths.messages.glob("*.claim-*")]


def test_a_disk_that_fills_up_meanwhile_has_nothing_sent_twice(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(paths := experiment(tmp_path), "end")
    sent = webhook.post

    def fills(*given: Any) -> None:
        sent(*given)
        monkeypatch.setattr(outbox.Sent, "write_once", full)

    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(webhook, "post", fills)
    deliver.send_all(paths)
    assert outbox.pending(paths) == [] and len(receiver.got) == 1
    assert not [*paths.messages.glob("*.claim-*")]


def test_a_claim_from_before_the_clock_was_set_back_is_no_senders(
    receiver: Receiver, tmp_path: Path
) -> None:
    put(paths := experiment(tmp_path), "end")
    [one] = outbox.pending(paths)
    claim = one.claim()
    assert claim is not None and one.claim() is None
    os.utime(claim, (time.time() + 86_400,) * 2)
    deliver.send_all(paths)
    assert len(receiver.got) == 1 and outbox.pending(paths) == []
