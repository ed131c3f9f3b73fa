"""Clients on other machines: in processes of their own, with ledgers of their own, that may fail in every way."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.federations import question, terms
from support.remote_clients import (
    Client,
    InThread,
    certificates,
    federation,
    free_port,
    remote,
    started,
    teacher_files,
    wait_until,
)
from support.runs import fit, networks

from lightning_modules.cli import main
from lightning_modules.federated import Absence, FederationError, Node, RemoteClients
from lightning_modules.federated.messages import pack, unpack

slow = pytest.mark.slow


@slow
def test_the_student_is_that_of_clients_in_one_process() -> None:
    rounds, port, files = 6, free_port(), teacher_files(3)
    Path("here").mkdir()  # a ledger is found beside the teacher's file: each client on a machine of its own has its own
    here = [shutil.copy(file, "here") for file in files]
    local = fit(federation({"class_path": "LocalClients", "init_args": {"teachers": here[:2]}}, rounds=rounds))
    before = {name: value.clone() for name, value in networks(local).items()}
    Path("run").rename("local")
    with started([lambda i=i: Client(f"client-{i}", files[i], port) for i in range(2)]) as clients:  # type: ignore[misc]
        apart = fit(federation(remote(port), rounds=rounds))
        assert [client.status() for client in clients] == [0, 0], clients[0].said + clients[1].said
    for name, value in networks(apart).items():
        assert torch.allclose(value, before[name], rtol=1e-5, atol=1e-7), name
    assert not apart.model.absences
    same = federation({"class_path": "LocalClients", "init_args": {"teachers": [here[0], here[2]]}}, rounds=rounds)
    others = networks(fit(same, "--trainer.default_root_dir=others"))
    assert not all(torch.allclose(value, before[name], rtol=1e-5, atol=1e-7) for name, value in others.items()), (
        "students of other teachers are told apart"
    )
    for client in clients:
        assert client.charged() == rounds, "a settled ledger counts what was answered"
        said = client.guarantee()
        assert said["run"] == f"server-{apart.model.session.ledger.run}"
        assert said["queries"] == rounds * 8 and said["epsilon"] == "inf"


@slow
def test_a_client_that_is_killed_is_left_out_charged_and_may_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds, port, files = 12, free_port(), teacher_files(2)
    own = ("--target_epsilon", "1e6")
    model = {"mechanism": {"release": "per_sample_full", "noise_multiplier": 5.0}}
    makers = [lambda i=i: Client(f"client-{i}", files[i], port, *own) for i in range(2)]  # type: ignore[misc]
    answered: list[int] = []
    with started(makers) as clients:
        again: list[Client] = []
        ask = RemoteClients.ask

        def watched(self: RemoteClients, question: Any) -> Any:
            if question.number == 4:
                clients[1].kill()
            if question.number == 7:
                again.append(makers[1]())
                clients.append(again[0])  # ended with the others
                wait_until(lambda: sum(one.connected for one in [*self._new, *self._met]) == 2)
            found = ask(self, question)
            answered.append(sum(isinstance(answer, torch.Tensor) for answer in found.values()))
            return found

        monkeypatch.setattr(RemoteClients, "ask", watched)
        with pytest.warns(UserWarning, match=r"Round 4 goes on without client-1: (no answer|it is not con)"):
            cli = fit(federation(remote(port), rounds=rounds, **model))
        assert clients[0].status() == again[0].status() == 0, again[0].said
    assert answered == [2] * 4 + [1] * 3 + [2] * 5
    assert cli.model.absences == {"client-1": 3}
    assert clients[0].charged() == rounds
    # A block that was reserved when it was killed counts as a whole; what came back began another.
    assert clients[1].charged() == 100 + 5
    assert clients[1].guarantee()["queries"] == 105 * 8
    assert "rounds that clients were left out of: client-1 in 3" in Path("run/public/guarantee.md").read_text()


def _node(number: int, *, name: str | None = None, kind: type[Node] = Node, **settings: Any) -> Node:
    given = {"trusts_server": True, "num_records": 300, "ledger": f"ledger{number}.jsonl", **settings}
    return kind(
        name=name or f"client-{number}", teacher=f"teacher{number}.pt", folder=Path(f"own{number}").resolve(), **given
    )


def _rounds(clients: RemoteClients, count: int = 2, **changed: Any) -> list[dict[str, Any]]:
    out = clients.begin(terms(**changed), folder=None)
    assert not out
    return [dict(clients.ask(question(number))) for number in range(count)]


class Odd(Node):
    """From question 1 on it sends what its name says, once its session has charged the answer."""

    def answer(self, message: bytes) -> bytes:
        kind, values, _ = unpack(said := super().answer(message))
        if not values.get("number"):
            return said
        if self.name == "late":
            time.sleep(2.5)
        if self.name == "nan":
            return pack(kind, {"answer": torch.full((8, 10), torch.nan)}, **values)
        return b"not a message" if self.name == "garbled" else said


def test_answers_that_cannot_be_used_are_left_out_and_charged() -> None:
    reasons = {"garbled": "a message cannot be read", "late": "no answer within 1.5 s", "nan": "is not finite"}
    names = [*reasons, "sound"]
    teacher_files(len(names))
    port = free_port()
    clients = RemoteClients(**remote(port, count=len(names))["init_args"])
    each = [InThread(_node(number, name=name, kind=Odd), port, patience=3.0) for number, name in enumerate(names)]
    try:
        clients.introductions(num_classes=10, image_shape=(1, 8, 8))
        assert not clients.begin(terms(), folder=None)
        assert all(isinstance(answer, torch.Tensor) for answer in clients.ask(question(0)).values())
        for client in clients._met:
            client.timeout = 1.5
        found = clients.ask(question(1))
        assert isinstance(found.pop("sound"), torch.Tensor)
        assert all(reasons[name] in answer.reason for name, answer in found.items())  # type: ignore[union-attr]
    finally:
        clients.end()
    assert all(one.ended() for one in each if one.node.name != "late")
    for one in each:
        assert one.node._client is not None and one.node._client.session.calls_made() == 2, "it was answered"


def test_a_connection_is_by_tls_and_the_server_is_checked(tmp_path: Path) -> None:
    teacher_files(3)
    port, files = free_port(), certificates(tmp_path)
    settings = {**remote(port)["init_args"], "insecure": False, "certificates": files}
    honest = [InThread(_node(number), port, insecure=False, root_certificates=files[0]) for number in range(2)]
    in_clear = InThread(_node(2), port, patience=1.0)
    unchecked = InThread(_node(2), port, insecure=False, patience=1.0)
    clients = RemoteClients(**settings)
    try:
        known = clients.introductions(num_classes=10, image_shape=(1, 8, 8))
        assert [one.name for one in known] == ["client-0", "client-1"]
        for found in _rounds(clients):
            assert set(found) == {"client-0", "client-1"}
            assert all(isinstance(answer, torch.Tensor) for answer in found.values())
        for outside in (in_clear, unchecked):
            assert outside.ended() and isinstance(outside.error, FederationError)
    finally:
        clients.end()
    assert all(one.ended() and one.error is None for one in honest)
    assert list(Path("own0").glob("*/guarantee.md")) and not Path("own2").exists()


def test_a_name_that_is_taken_and_one_client_too_many_are_not_asked() -> None:
    teacher_files(4)
    port = free_port()
    clients = RemoteClients(**remote(port)["init_args"])
    first = [InThread(_node(number), port) for number in range(2)]
    others: list[InThread] = []
    try:
        clients.introductions(num_classes=10, image_shape=(1, 8, 8))
        others += [InThread(_node(2, name="client-1"), port), InThread(_node(3), port)]
        wait_until(lambda: len(clients._new) == 2)
        with pytest.warns(UserWarning) as caught:
            assert all(set(found) == {"client-0", "client-1"} for found in _rounds(clients))
        said = "\n".join(str(warning.message) for warning in caught)
        assert "there is one named client-1, and names must differ" in said
        assert "client-3 comes besides the 2 clients of this run" in said
    finally:
        clients.end()
    assert all(one.ended() for one in [*first, *others])
    assert not Path("own2").exists() and not Path("own3").exists(), "nothing began there"


def test_a_client_that_does_not_agree_takes_no_part_and_the_others_do() -> None:
    teacher_files(2)
    port = free_port()
    clients = RemoteClients(**remote(port)["init_args"])
    both = [InThread(_node(0), port), InThread(_node(1, trusts_server=False), port)]
    try:
        clients.introductions(num_classes=10, image_shape=(1, 8, 8))
        asked = terms(noise_by="server", mechanism={**terms().mechanism, "noise_multiplier": 0.0})
        with pytest.warns(UserWarning, match="client-1 takes no part: client-1 does not send gradients without noise"):
            assert set(clients.begin(asked, folder=None)) == {"client-1"}
        found = clients.ask(question())
        assert isinstance(found["client-0"], torch.Tensor) and isinstance(found["client-1"], Absence)
    finally:
        clients.end()
    assert all(one.ended() for one in both)


def test_a_server_that_comes_back_goes_on_with_the_run() -> None:
    """Its connection is cut without a word, as by a crash; clients reach the next one and count on."""
    teacher_files(2)
    port = free_port()
    both = [InThread(_node(number), port) for number in range(2)]
    for attempt in range(2):
        clients = RemoteClients(**remote(port)["init_args"])
        try:
            clients.introductions(num_classes=10, image_shape=(1, 8, 8))
            assert len(_rounds(clients)) == 2
        finally:
            if attempt == 0:
                clients._server.stop(grace=None).wait(5)
            else:
                clients.end()
    assert all(one.ended() and one.error is None for one in both)
    for one in both:
        assert one.node._client is not None and one.node._client.session.calls_made() == 4


def test_too_few_clients_are_said() -> None:
    settings = remote(free_port())
    settings["init_args"]["wait"] = 0.3
    begun = time.monotonic()
    with pytest.raises(
        FederationError, match=r"0 of 2 clients have connected to .* within clients.wait=0.3 s \(none\)"
    ):
        fit(federation(settings, rounds=1))
    assert time.monotonic() - begun < 60


def test_an_address_that_is_taken_is_said() -> None:
    settings = remote(free_port())
    first = RemoteClients(**settings["init_args"])
    first._listen()
    try:
        with pytest.raises(FederationError, match="cannot be listened on"):
            fit(federation(settings, rounds=1))
    finally:
        first.end()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"insecure": False}, "either certificates"),
        ({"certificates": ["a", "b"]}, "either certificates"),
    ],
)
def test_settings_are_checked_at_once(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RemoteClients(**{"num_clients": 2, "insecure": True, **changed})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target_epsilon=1", "--delta=2"], "delta"),
        (["--target_epsilon=1", "--insecure=true", "--root_certificates=a.pem"], "leave one of the two out"),
    ],
)
def test_settings_of_a_client_are_checked_at_once(options: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        main(["client", "--server=a:1", "--name=one", "--teacher=t.pt", *options])
