"""What the server takes from a client, and what the messages carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from support.features import linear
from support.federations import BATCH_SIZE, SHAPE, question, terms

from lightning_modules.federated import Introduction, LocalClients
from lightning_modules.federated.feddpsd import Federation
from privacy import Budget
from privacy.events import SampledGaussian
from privacy.events.base import Unit
from privacy.identity import Training
from privacy.mechanisms import NoisyGradients, Shape
from privacy.session import PrivacySession


def test_a_bound_on_records_is_not_taken_for_one_on_clients(tmp_path: Path) -> None:
    """One ledger, the same clients with teachers by DP-SGD: first about records, then about whole clients."""
    bound = {SampledGaussian(1.0, 0.001): 1}
    known = [Introduction(name=name, training=name * 16, releases=bound) for name in ("ab", "cd")]
    mechanism, epsilons = NoisyGradients(release="per_sample_full"), []
    for of_clients in (False, True):
        federation = Federation(known, private_data="x", of_clients=of_clients)
        session = PrivacySession(
            mechanism,
            Shape(BATCH_SIZE, 10, "DPSD"),
            budget=Budget(ledger=str(tmp_path / "ledger.jsonl"), scope="run"),
            unit=Unit.CLIENT if of_clients else Unit.RECORD,
        )
        session.open(private_data="x", training=federation.training)
        session.charge(mechanism)
        epsilons.append((session.account.epsilon(), session.account.neighbours()[0]))
        session.close()
    (of_record, unit), (of_client, other) = epsilons
    assert (unit, other) == (Unit.RECORD, Unit.CLIENT) and of_record < of_client
    # A person may be at both: what bounds one at each client bounds none over all.
    by_person = {SampledGaussian(1.0, 0.001, unit=Unit.PERSON): 1}
    for releases in ((by_person, by_person), (bound, by_person)):
        known = [Introduction(name=n, training=n * 16, releases=r) for n, r in zip(("ab", "cd"), releases, strict=True)]
        training = Federation(known, private_data="x", of_clients=False).training
        assert isinstance(training, Training) and training.releases is None


def test_what_the_teachers_rest_on_reaches_the_server_with_their_names() -> None:
    finite, labels = "no record has a gradient that is not finite", "the class frequencies are public"
    known = [
        Introduction(name="north", training="ab" * 16, assumptions=(finite, finite)),
        Introduction(name="south", training="cd" * 16, assumptions=(finite, labels)),
        Introduction(name="west", training="ef" * 16),
    ]
    both, one, alone = Federation(known, private_data="x").assumptions
    assert finite in both and "north, south," in both and "west" not in both
    assert labels in one and "south," in one and "north" not in one
    assert "no run asked a single client" in alone
    assert Federation(known[2:], private_data="x").assumptions == (alone,)


def reached(networks: list[torch.nn.Module]) -> LocalClients:
    clients = LocalClients(teachers=networks)
    clients.introductions(num_classes=10, image_shape=SHAPE)
    clients.begin(terms(NoisyGradients(release="per_sample_full", noise_multiplier=0.0)), folder=None)
    return clients


def test_heads_on_one_extractor_answer_as_each_would_alone() -> None:
    networks: list[torch.nn.Module] = [linear() for _ in range(3)]
    together = reached(networks)
    assert together._share_features
    answers = together.ask(question())
    for index, network in enumerate(networks):
        alone: Any = reached([network]).ask(question())["client-0"]
        assert torch.allclose(alone, answers[f"client-{index}"], atol=1e-9)  # type: ignore[arg-type]
