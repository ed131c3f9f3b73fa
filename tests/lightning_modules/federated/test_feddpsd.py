"""FedDPSD in one process: what moves when a client changes, what is charged, and who may be missing."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.dp_teachers import dp_sgd, private_teacher
from support.ensembles import ensemble_weights
from support.features import linear_spec
from support.federations import BATCH_SIZE, federated, reproducible, small_network, small_networks
from support.runs import checkpoint, configuration, equal, fit, interrupted, leaks

from lightning_modules import FedDPSD
from lightning_modules.federated import (
    Absence,
    FederationError,
    Introduction,
    LocalClients,
    Question,
    connection,
    feddpsd,
)
from lightning_modules.federated.connection import _require_apart
from lightning_modules.teachers.files import TeacherError
from lightning_modules.training.run import check_strategy
from privacy.accounting.composition import compose
from privacy.events import Gaussian, RandomizedResponse, Repeated, SampledGaussian, release_from_dict
from privacy.mechanisms import NoisyGradients, NoisyLabels, Shape
from privacy.processes import ProcessesError

DELTA, SIGMA = 1e-5, 20.0
MU = math.sqrt(BATCH_SIZE) * 2 / SIGMA


def gradients(release: Any = "ensemble", **settings: Any) -> NoisyGradients:
    return NoisyGradients(**{"release": release, "noise_multiplier": SIGMA, **settings})


def releasing(noise_multiplier: float) -> dict[str, Any]:
    settings = {"release": "ensemble", "noise_multiplier": noise_multiplier}
    return {"class_path": "NoisyGradients", "init_args": settings}


def run(folder: str = "run", *arguments: str, epochs: int = 1, **model: Any) -> FedDPSD:
    """A run from the command line, of the three clients of one file."""
    clients = {"class_path": "LocalClients", "init_args": {"teachers": "teachers/ensemble.ckpt"}}
    model = {"clients": clients, "mechanism": releasing(SIGMA), **model}
    config = configuration(folder, class_path="FedDPSD", model=model, epochs=epochs)
    del config["model"]["init_args"]["teacher"]
    module: FedDPSD = fit(config, *arguments).model
    return module


# --- what is charged ---


def noise_of_the_server(noise_multiplier: float) -> float:
    """Standard deviation of what the server added to its clients' mean, in units of σC over their number, at σ = 20."""
    mechanism = Watching(release="ensemble", noise_multiplier=noise_multiplier)
    federated(small_networks(3), mechanism=mechanism, steps=10)
    added = torch.stack([released.double() - given.double().mean(dim=0) for given, released in mechanism.seen])
    return float(added.std()) / (SIGMA * 1e-3 / 3)


@pytest.mark.parametrize("release", ["ensemble", "per_sample_full"])
def test_server_and_clients_charge_each_round(release: str) -> None:
    reached = LocalClients(teachers=small_networks(3))
    module = federated(reached, mechanism=gradients(release))
    ((charge, count),) = module.session.account.counts().items()
    assert (charge.release, charge.queries, count) == (Gaussian(MU), BATCH_SIZE, 2)
    assert any("THE SERVER IS TRUSTED" in text for text in module.assumptions()) is (release == "ensemble")
    for client in reached.clients:
        ((own, number),) = client.session.account.counts().items()
        assert number == 2 and own.queries == BATCH_SIZE
        assert own.release == Gaussian(math.inf if release == "ensemble" else MU)


def test_labels_are_charged_by_each_client_for_its_own_responses() -> None:
    reached = LocalClients(teachers=small_networks(3))
    module = federated(reached, mechanism=NoisyLabels(epsilon=1.0, smallest=3))
    # The server knows its own schedule, which begins with all classes; clients charge for the smallest set, whatever
    # its size, as a server may choose it by what it was answered.
    charged = [(module.session.account, 10), *((client.session.account, 3) for client in reached.clients)]
    for account, size in charged:
        wanted = Repeated(RandomizedResponse(1.0, size), BATCH_SIZE)
        assert {charge.release: count for charge, count in account.counts().items()} == {wanted: 2}


def test_a_guarantee_for_clients_says_so_first() -> None:
    said = federated(small_networks(3), mechanism=gradients("per_sample_full"), unit="client").guarantee()
    assert said.headline().startswith("Client-level")


def stated_by(client: str, folder: str = "run") -> dict[str, Any]:
    """The guarantee that a client has written."""
    content = Path(folder, "clients", client, "guarantee.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(content)["guarantee"]
    return found


def ledgers_of(module: Any) -> set[Path]:
    """Files that the clients of a run in this process have charged."""
    found: set[Path] = {client.teacher.ledger_place().path for client in module.clients.clients}
    assert all(path.is_file() for path in found)
    return found


# --- what one client moves ---


class Watching(NoisyGradients):
    """Keeps what it was given of all clients, and what it released."""

    def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        released = super().answer(shape, *tensors, **settings)
        self.seen = [*getattr(self, "seen", []), (tensors[0], released)]
        return released


class Unclipped(Watching):
    """Takes the clients at their word."""

    def bounded(self, gradients: torch.Tensor, **settings: Any) -> torch.Tensor:
        return gradients.double()


class Shouting(LocalClients):
    """Its last client sends gradients that are a thousand times too long."""

    def ask(self, question: Question) -> dict[str, torch.Tensor | Absence]:
        answers: dict[str, Any] = dict(super().ask(question))
        last = sorted(answers)[-1]
        return {**answers, last: 1e3 * answers[last]}


def moved(kind: type[Watching], reached: type[LocalClients]) -> float:
    """How far the released mean moves, without noise, where the last client is another one, in units of C√B over 3."""
    networks, released = small_networks(5), []  # the student begins as that of seed 3
    for last in (2, 4):
        mechanism = kind(release="ensemble", noise_multiplier=0.0)
        federated(reached(teachers=[*networks[:2], networks[last]]), mechanism=mechanism, steps=1)
        released.append(mechanism.seen[0][1].double())
    return float((released[0] - released[1]).norm()) * 3 / (1e-3 * math.sqrt(BATCH_SIZE))


def test_replacing_a_client_moves_no_more_than_is_charged() -> None:
    for reached in (LocalClients, Shouting):
        assert 0 < moved(Watching, reached) <= 2 * (1 + 1e-5)
    assert moved(Unclipped, Shouting) > 100, "a server that takes clients at their word is noticed"


def test_noise_that_a_client_could_draw_again_is_no_bound() -> None:
    reached = LocalClients(teachers=small_networks(2), noise=reproducible)
    with pytest.raises(FederationError, match="noise of client-0, client-1 can be reproduced"):
        federated(reached, mechanism=gradients("per_sample_full"))


# --- who is missing ---


class Failing(LocalClients):
    """The second of its clients answers what cannot be used."""

    def ask(self, question: Question) -> dict[str, torch.Tensor | Absence]:
        return {**super().ask(question), "client-1": Absence("its answer is not finite")}


def test_a_client_that_fails_is_left_out_named_and_charged() -> None:
    reached = Failing(teachers=small_networks(3))
    with pytest.warns(UserWarning, match="goes on without client-1: its answer is not finite"):
        module = federated(reached, mechanism=gradients())
    assert module.steps_done == 2 and module.absences == {"client-1": 2}
    assert [client.session.calls_made() for client in reached.clients] == [2, 2, 2]
    assert any("client-1 in 2" in text for text in module.guarantee().assumptions)


def test_a_client_without_budget_takes_no_part() -> None:
    reached = LocalClients(teachers=small_networks(2), target_epsilon=1e-3)
    with pytest.warns(UserWarning, match="takes no part"), pytest.raises(FederationError, match="0 clients take part"):
        federated(reached, mechanism=gradients("per_sample_full"))


# --- runs from the command line ---


def test_a_run_trains_and_no_file_holds_a_teacher(place: Path) -> None:
    module = run(images="generator")
    assert module.steps_done == 3 and module.generator is not None
    said = json.loads(Path("run/public/guarantee.json").read_text(encoding="utf-8"))
    assert said["guarantee"]["private_data"] == "Digits/train"
    assert said["published_claim"]["source"].endswith("Theorem 1")
    for number in range(3):
        own = stated_by(f"client-{number}")
        assert own["epsilon"] == "inf" and own["private_data"] == f"Digits/train/client-{number}"
    assert len(ledgers_of(module)) == 3
    private = ensemble_weights()
    assert private and leaks("run", private) == []


def test_an_error_leaves_the_page_of_each_client(place: Path) -> None:
    interrupted(FedDPSD, 2, run)
    for client in ("client-0", "client-1"):
        assert stated_by(client)["queries_of_run"] == 2 * BATCH_SIZE


def test_a_resumed_run_ends_as_an_uninterrupted_one(place: Path) -> None:
    whole = run("whole", epochs=2, mechanism=releasing(0.0))
    run("run", mechanism=releasing(0.0))
    resumed = run("run", "--ckpt_path=run/checkpoints/last.ckpt", epochs=2, mechanism=releasing(0.0))
    assert equal(whole.state_dict(), resumed.state_dict())
    assert checkpoint("run")["absences"] == {}


def client_by_dp_sgd(number: int, *, target_epsilon: float | None, seed: int = 0) -> str:
    """The file of one client's teacher, by DP-SGD or, without a target, by nothing that bounds it."""
    folder = f"client{number}"
    records = {"client": number, "num_clients": 3, "alpha": 5.0, "partition_seed": seed}
    data = {"class_path": "ClientRecords", "init_args": {"dataset": {"class_path": "Digits"}, **records}}
    if target_epsilon is None:
        private_teacher(folder, data=data, network=linear_spec())
    else:
        sampled = {"dataset": data, "batch_size": 300}
        fit(dp_sgd(folder, 2, data=sampled, network=linear_spec(), target_epsilon=target_epsilon))
    return f"{folder}/checkpoints/last.ckpt"


def test_clients_of_different_partitions_of_one_data_set_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record at several of them: what bounds each is not what bounds all of their answers."""
    files = [client_by_dp_sgd(number, target_epsilon=3.0, seed=number) for number in range(2)]
    clients = {"class_path": "LocalClients", "init_args": {"teachers": files}}
    with pytest.raises(FederationError, match=r"seed0-.*, 0\] of 'Digits'.*seed1-.*, 1\] of 'Digits'"):
        run(clients=clients, mechanism=releasing(0.0))
    monkeypatch.setattr(feddpsd, "disjoint", lambda *partitions: True)
    stated = run(clients=clients, mechanism=releasing(0.0)).guarantee().epsilon
    plans = [torch.load(file, weights_only=True)["training"]["releases"] for file in files]
    whole = Counter({release_from_dict(release): 0 for plan in plans for release, _ in plan})
    for plan in plans:
        whole.update({release_from_dict(release): count for release, count in plan})
    assert stated <= 3.0 < 4 < compose(whole, DELTA).epsilon


def test_teachers_by_dp_sgd_bound_what_is_sent_without_noise(tmp_path: Path) -> None:
    """A record lies at one client: the largest of their figures is the federation's."""
    files = [client_by_dp_sgd(number, target_epsilon=epsilon) for number, epsilon in enumerate((1.5, 3.0))]
    clients = {"class_path": "LocalClients", "init_args": {"teachers": files}}
    mechanism = releasing(0.0)
    module = run("bounded", clients=clients, mechanism=mechanism, federation="bounded")
    said, server = module.guarantee(), module.session.account.ledger.path
    assert said.private_data == "bounded/clients" and server and len({server, *ledgers_of(module)}) == 3
    # Each states N of all the digits; three clients of the same federation would be told that δ is too large.
    with pytest.raises(ValueError, match=r"delta must lie below 1/N = .* for the 1000000 records"):
        run("many", clients=clients, mechanism=mechanism, federation="many", num_records=1_000_000)
    assert 2.9 < said.epsilon <= 3.0 and said.relation == "add-or-remove of one training record"
    own = [stated_by(f"client-{number}", "bounded") for number in range(2)]
    assert own[0]["epsilon"] <= 1.5 < own[1]["epsilon"] <= 3.0
    # Nothing of that is about a whole client, and one client that nothing bounds is enough.
    plain = [files[0], client_by_dp_sgd(2, target_epsilon=None)]
    for teachers, unit in ((files, "client"), (plain, "record")):
        silent = gradients(noise_multiplier=0.0)
        made = federated(LocalClients(teachers=teachers), mechanism=silent, unit=unit, federation=unit)
        assert math.isinf(made.guarantee().epsilon)


# --- what is refused ---


def test_one_teacher_is_no_two_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of its would move two rows of every sum, and be charged for one."""
    with pytest.raises(TeacherError, match="teachers 0 and 1 both have the weight"):
        federated([small_network(0), small_network(0)], mechanism=gradients())
    monkeypatch.setattr(connection, "require_own_weights", lambda networks: ())  # as of files
    with pytest.raises(TeacherError, match="client-0 and client-1 have the same teacher"):
        federated([small_network(0), small_network(0)], mechanism=gradients())


def test_two_trainings_on_the_same_records_are_no_two_clients() -> None:
    for name in ("one", "other"):
        private_teacher(name)
    files = [f"{name}/checkpoints/last.ckpt" for name in ("one", "other")]
    with pytest.raises(TeacherError, match="client-0 and client-1 have the same private data, Digits/train"):
        federated(LocalClients(teachers=files), mechanism=gradients())


def test_one_folder_under_two_names_is_no_two_clients() -> None:
    def trained_on(name: str, place: str | None) -> Any:
        partition = {"data": name, "place": place, "class_names": None, "settings": {}, "share": None}
        return SimpleNamespace(private_data=f"{name}/train", training=None, partitions=[partition, None])

    for other in ("another", None):
        _require_apart(["a", "b"], [trained_on("east", "folder"), trained_on("west", other)])
    with pytest.raises(TeacherError, match="a and b were trained on records of one folder, east and west"):
        _require_apart(["a", "b"], [trained_on("east", "folder"), trained_on("west", "folder")])


def test_clients_that_name_one_training_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients on other machines say no more of their records than that."""
    said = [Introduction(name=name, training="ab" * 16) for name in ("north", "south")]
    monkeypatch.setattr(LocalClients, "introductions", lambda self, **shape: said)
    with pytest.raises(FederationError, match="north, south have teachers of one training"):
        federated(small_networks(2), mechanism=gradients())


def test_a_bound_that_clients_state_of_themselves_is_said_to_be_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    own = federated(small_networks(2), mechanism=gradients()).assumptions()
    reached = LocalClients.introductions

    def stated(self: LocalClients, **shape: Any) -> list[Introduction]:
        bound = {SampledGaussian(1.0, 0.01): 10}
        return [
            dataclasses.replace(said, training=f"{place:032x}", releases=bound)
            for place, said in enumerate(reached(self, **shape))
        ]

    monkeypatch.setattr(LocalClients, "introductions", stated)
    said = federated(small_networks(2), mechanism=gradients()).guarantee().assumptions
    assert any("as the client states" in text for text in said)
    assert not any("as the client states" in text for text in own)


def test_too_few_answers_end_the_run() -> None:
    with pytest.warns(UserWarning), pytest.raises(FederationError, match=r"2 answers, and min_clients is 3 \(client-1"):
        federated(Failing(teachers=small_networks(3)), mechanism=gradients(), min_clients=3)


def test_it_runs_in_one_process() -> None:
    two: Any = SimpleNamespace(world_size=2, callbacks=[])
    module = FedDPSD(
        num_classes=10, image_shape=(1, 8, 8), batch_size=8, clients=LocalClients(teachers=small_networks(2))
    )
    with pytest.raises(ProcessesError, match="must be 1 for FedDPSD, got 2"):
        check_strategy(two, module)


def test_the_server_adds_the_noise_that_it_charges() -> None:
    assert 0.85 < noise_of_the_server(SIGMA) < 1.15
    assert noise_of_the_server(SIGMA / 2) < 0.6, "half of it is noticed"


def test_a_ledger_that_was_about_records_makes_no_statement_about_clients(place: Path) -> None:
    """One file for both runs: what they compose to is about records alone."""
    federated(LocalClients(teachers="teachers/ensemble.ckpt"), mechanism=gradients())
    said = federated(LocalClients(teachers="teachers/ensemble.ckpt"), mechanism=gradients(), unit="client").guarantee()
    assert said.unit.startswith("one training record") and said.headline().startswith("Record-level")
    assert "client" not in said.relation
