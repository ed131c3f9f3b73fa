"""The accountants inside Opacus itself."""

from __future__ import annotations

import io

import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant as OpacusRDPAccountant
from opacus.accountants import create_accountant
from opacus.accountants.utils import get_noise_multiplier
from torch.utils.data import DataLoader, TensorDataset

from privacy.accountants import ACCOUNTANTS, ExactAccountant, LabelDPAccountant, RDPAccountant
from privacy.events import RandomizedResponse

NAMES = [cls.mechanism() for cls in ACCOUNTANTS]
pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG", "ignore:Full backward hook", "ignore:Optimal order")


@pytest.mark.parametrize("cls", ACCOUNTANTS)
def test_registered_by_name(cls: type) -> None:
    assert type(create_accountant(cls.mechanism())) is cls
    assert PrivacyEngine(accountant=cls.mechanism()).get_epsilon(1e-5) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_opacus_calibrates_with_it(name: str) -> None:
    noise = get_noise_multiplier(
        target_epsilon=3.0, target_delta=1e-5, sample_rate=0.02, steps=300, accountant=name, poisson=True
    )
    accountant = create_accountant(name)
    accountant.history = [(noise, 0.02, 300)]
    assert 2.98 <= accountant.get_epsilon(1e-5) <= 3.0


def make(
    name: str,
) -> tuple[PrivacyEngine, torch.nn.Module, torch.optim.Optimizer, DataLoader[tuple[torch.Tensor, ...]]]:
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(200, 4, generator=generator), torch.randint(0, 2, (200,), generator=generator))
    model = torch.nn.Linear(4, 2)
    engine = PrivacyEngine(accountant=name)
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=20),
        target_epsilon=4.0,
        target_delta=1e-3,
        epochs=2,
        max_grad_norm=1.0,
    )
    return engine, model, optimizer, loader


@pytest.mark.parametrize("name", NAMES)
def test_training_counts_steps_and_ends_below_the_target(name: str) -> None:
    engine, model, optimizer, loader = make(name)
    for _ in range(2):
        for images, labels in loader:
            optimizer.zero_grad()
            if len(images):
                torch.nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
    assert len(engine.accountant) == 20
    assert 3.5 < engine.get_epsilon(1e-3) <= 4.0

    file = io.BytesIO()
    torch.save(engine.accountant.state_dict(), file)
    file.seek(0)
    resumed = create_accountant(name)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.get_epsilon(1e-3) == engine.get_epsilon(1e-3)


def test_renyi_reading_agrees_with_opacus_and_is_never_above() -> None:
    theirs, ours = OpacusRDPAccountant(), RDPAccountant()
    for history in ([(0.6, 256 / 60_000, 2344)], [(1.1, 0.01, 10_000)], [(1.0, 0.05, 10), (2.0, 0.01, 500)]):
        theirs.history, ours.history = list(history), list(history)
        assert ours.get_epsilon(1e-5) <= theirs.get_epsilon(1e-5) * (1 + 1e-6)
        assert ours.get_epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-2)
        alphas = [1.5, 2.0, 3.0, 7.5, 20.0, 63.0]
        assert ours.get_epsilon(1e-5, alphas=alphas) == pytest.approx(theirs.get_epsilon(1e-5, alphas), rel=2e-3)


def test_exact_reading_agrees_with_prv() -> None:
    prv, exact = create_accountant("prv"), ExactAccountant()
    prv.history = exact.history = [(1.0, 0.01, 1000)]
    assert exact.get_epsilon(1e-5) == pytest.approx(prv.get_epsilon(1e-5), abs=0.011)
    assert exact.get_epsilon(1e-5) <= prv.get_epsilon(1e-5)


def test_label_accountant_reads_the_designs_figures() -> None:
    accountant = LabelDPAccountant()
    accountant.history = [(2.0, 0.01, 1000)]
    assert accountant.get_epsilon(1e-5) == pytest.approx(23.391, abs=1e-3)
    answers = LabelDPAccountant()
    answers.respond(1.0, 10, 50)
    answers.charge(RandomizedResponse(1.0, 2), 50)
    assert answers.get_epsilon(1e-5) == pytest.approx(58.7973, abs=1e-4)
    # Negative control: record-level sampling amplification must not leak into labels.
    assert accountant.get_epsilon(1e-5) > 5 * _record_epsilon()


def _record_epsilon() -> float:
    record = ExactAccountant()
    record.history = [(2.0, 0.01, 1000)]
    return record.get_epsilon(1e-5)
