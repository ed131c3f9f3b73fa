"""What the server takes from a client, and what the messages carry."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.federations import BATCH_SIZE, small_network, terms

from lightning_modules.federated import Introduction, LocalClients, Terms
from lightning_modules.federated.federation import Federation
from privacy import Budget
from privacy.annotators import GradientAnnotator
from privacy.events import SampledGaussian
from privacy.neighbours import Unit


def test_messages_survive_json() -> None:
    said = Introduction(name="one", num_records=7, training="ab" * 16, releases={SampledGaussian(1.0, 0.1): 3})
    said = replace(said, assumptions=("no record has a gradient that is not finite",))
    assert Introduction.from_dict(json.loads(json.dumps(said.to_dict()))) == said
    asked = terms(server_mu=0.5, loss={"loss": "kd"})
    assert Terms.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teachers": []}, "teachers must be a file for each client"),
        ({"teachers": ["a.ckpt"], "names": ["one", "two"]}, "names must be one for each of 1 teachers, got 2"),
        ({"teachers": ["a.ckpt", "b.ckpt"], "names": ["one", "one"]}, "names must differ"),
        ({"teachers": ["a.ckpt", small_network(0)]}, "not some of each"),
    ],
)
def test_clients_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocalClients(**settings)  # type: ignore[arg-type]


def test_a_bound_on_records_is_not_taken_for_one_on_clients(tmp_path: Path) -> None:
    """One ledger, the same clients with teachers by DP-SGD: first about records, then about whole clients."""
    bound = {SampledGaussian(1.0, 0.001): 1}
    known = [Introduction(name=name, training=name * 16, releases=bound) for name in ("ab", "cd")]
    figures = []
    for of_clients in (False, True):
        federation = Federation(known, private_data="x", of_clients=of_clients)
        annotator = GradientAnnotator(
            release="per_sample_full", budget=Budget(ledger=str(tmp_path / "ledger.jsonl"), scope="run")
        )
        if of_clients:
            annotator.protect_clients()
        annotator.bind(batch_size=BATCH_SIZE, num_classes=10, paper="DPSD")
        annotator.open(private_data="x", training=federation.training)
        annotator.account.charge(annotator.charge)
        figures.append((annotator.account.epsilon(), annotator.account.neighbours()[0]))
        annotator.close()
    (of_record, unit), (of_client, other) = figures
    assert (unit, other) == (Unit.RECORD, Unit.CLIENT) and of_record < of_client


def test_what_the_teachers_rest_on_reaches_the_server_with_their_names() -> None:
    finite, labels = "no record has a gradient that is not finite", "the class frequencies are public"
    known = [
        Introduction(name="north", training="ab" * 16, assumptions=(finite, finite)),
        Introduction(name="south", training="cd" * 16, assumptions=(finite, labels)),
        Introduction(name="west", training="ef" * 16),
    ]
    both, one = Federation(known, private_data="x").assumptions
    assert finite in both and "north, south," in both and "west" not in both
    assert labels in one and "south," in one and "north" not in one
    assert Federation(known[2:], private_data="x").assumptions == ()
