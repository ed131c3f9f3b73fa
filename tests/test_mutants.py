"""Each promise about privacy, broken on purpose in a copy of the code, and the tests that notice.

Where the code moves, its mutant moves with it: a promise may change its place, and not lose its test.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = "tests"
MODULES, LEDGER = f"{TESTS}/lightning_modules", f"{TESTS}/privacy/test_ledger.py"
#: Promise, file, what stands there, what breaks it, and the tests that must fail.
# fmt: off
MUTANTS: list[tuple[str, str, str, str, str]] = [
    ("a charge is synced before its noise is drawn", "privacy/journal.py",
     "os.fsync(self._descriptor)\n            self._offset += len(data)", "self._offset += len(data)",
     f"{MODULES}/test_every_setting.py -k on_the_disk"),
    ("a release is charged", "privacy/session.py",
     "self.account.ledger.charge(*self._priced(mechanism, tensors, settings), afford=self.account.grant)\n"
     "            return",
     "pass\n            return",
     f"{MODULES}/test_every_setting.py -k on_the_disk"),
    ("a plan that is stopped early counts whole", "privacy/account.py",
     "queried += ledger.counts() + ledger.unmade()", "queried += ledger.counts()",
     f"{TESTS}/privacy/test_plan.py {TESTS}/privacy/test_account.py"),
    ("a plan never shrinks", "privacy/plan.py",
     "Counter(self.charges) | Counter(other.charges)", "Counter(self.charges)", f"{TESTS}/privacy/test_plan.py"),
    ("a bound holds for its own training", "privacy/account.py",
     "bound = self.ledger.releases_of(training)",
     "bound = next(filter(None, self.ledger.releases_by_training().values()), None)",
     f"{TESTS}/privacy/test_identity_mutations.py {TESTS}/privacy/test_account.py"),
    ("units compose only where a lemma says so", "privacy/events/base.py",
     "if len(units) > 1:", "if False:", f"{TESTS}/privacy/test_neighbours.py"),
    ("relations compose only where a lemma says so", "privacy/events/base.py",
     "if len(single) > 1:", "if False:", f"{TESTS}/privacy/test_neighbours.py"),
    ("figures are rounded up", "privacy/checks.py",
     "if float(text) < value:", "if False:", f"{TESTS}/privacy/test_guarantee.py"),
    ("sums of pure bounds are rounded up", "privacy/events/base.py",
     "else rounded_up", "else min", f"{TESTS}/privacy/accounting/test_composition.py"),
    ("noise comes from the operating system", "privacy/mechanisms/base.py",
     "os.urandom(8 * count)", "bytes(8 * count)", f"{TESTS}/privacy/mechanisms/test_noise.py"),
    ("noise that can be drawn again voids", "privacy/session.py",
     "if not mechanism.source.secure:", "if False:", f"{TESTS}/privacy/mechanisms {TESTS}/privacy/test_guarantee.py"),
    ("rows are bounded in float64", "privacy/mechanisms/bounding.py",
     "rows.detach().to(torch.float64), norm_bound", "rows.detach(), norm_bound",
     f"{TESTS}/privacy/mechanisms"),
    ("norms keep a margin for rounding", "privacy/mechanisms/bounding.py",
     "norm_bound * (1.0 - max(1e-12, (rows.shape[1] + 8) * 2.0**-52))", "norm_bound",
     f"{TESTS}/privacy/mechanisms"),
    ("a private teacher is not copied", "lightning_modules/teachers/private_teacher.py",
     "def __reduce__(self) -> NoReturn:", "def _reduce(self) -> NoReturn:",
     f"{MODULES}/test_secrecy.py"),
    ("weights are published with a finite epsilon only", "lightning_modules/training/run.py",
     "{} if math.isinf(guarantee.epsilon) else networks", "networks", f"{MODULES}/test_identity.py -k in_public"),
    ("splits depend on the id alone", "datamodules/records.py",
     "for record in ids.tolist()]", "for record in range(len(ids))]", f"{TESTS}/datamodules/test_records.py"),
    ("nothing is unpickled", "lightning_modules/teachers/files.py",
     'map_location="cpu", weights_only=True)', 'map_location="cpu", weights_only=False)',
     f"{MODULES}/teachers/test_files.py -k run_code"),
    ("no code is imported that a file names", "lightning_modules/named_code.py",
     "def unknown_code(", "def unknown_code(*_, **__): return None\n\n\ndef _unknown_code(",
     f"{MODULES}/publishing/test_named_code.py"),
    ("a line that nobody could read is not written", "privacy/journal.py",
     "            self.take(json.loads(data), dry=True)\n", "", LEDGER),
    ("a file that was cut is noticed", "privacy/ledger.py",
     "if not 1 <= lines <= len(hashes) or hashes[lines - 1] != digest:", "if False:",
     f"{TESTS}/privacy/test_identity_mutations.py"),
    ("a ledger that is not there is missed", "privacy/ledger_place.py",
     'if (header_of(ledger) or {}).get("ledger") != header["ledger"]:', "if False:",
     f"{TESTS}/privacy/test_ledger_place.py"),
    ("a ledger that was given is found without the setting", "privacy/ledger_place.py",
     "for sign in self.signs or ([] if self.path is None else [self.path]):", "for sign in self.signs:",
     f"{TESTS}/privacy/test_ledger_place.py -k given_is_found"),
    ("where a file leads is known by the teacher", "privacy/ledger_place.py",
     "for path in {_led_from(*file) for file in files.items()}:", "for path in files:",
     f"{MODULES}/teachers/test_unnamed_data.py"),
    ("a link to a ledger that is away is no missing ledger", "privacy/ledger_place.py",
     "if not os.path.lexists(file)", "if not os.path.exists(file)", f"{TESTS}/privacy/test_ledger_place.py"),
    ("several ledgers of the same data are refused", "privacy/ledger_place.py",
     "if len(found) > 1:", "if False:", f"{TESTS}/privacy/test_ledger_place.py"),
    ("other records are not covered together", "privacy/ledger.py",
     "before.get(name, now) != now", "False", f"{LEDGER} -k division"),
    ("an older checkpoint does not go on", "privacy/ledger.py",
     "if self.saved(training) != after:", "if False:", f"{LEDGER} -k older_one"),
    ("weights keep their identity", "privacy/ledger.py",
     "found = ledger._state.fingerprints.get(fingerprint)", "found = None", f"{LEDGER} -k keep_their_identity"),
    ("all processes know a plan", "privacy/processes.py",
     "blocks={})", "blocks={}, plans={})",
     f"{TESTS}/privacy/test_processes.py -k known_to_all"),
    ("an interrupted direct fit leaves its page", "lightning_modules/private_fit.py",
     'if self.begun and self.session.account.counts(scope="run"):', "if False:",
     f"{MODULES}/test_direct_training.py -k was_interrupted"),
    ("filters share delta", "privacy/accounting/composition.py",
     "delta / (2 * len(ORDERS))", "delta / 2", f"{TESTS}/privacy/accounting/test_fully_adaptive.py"),
    ("an adaptive budget is one for all runs", "privacy/ledger.py",
     "if budget != now and self.counts(run=run)", "if False", f"{TESTS}/privacy/test_guarantee.py"),
    ("the same pictures are one budget", "privacy/ledger_place.py",
     "(each.resolve(), *each.resolve().parents))", "(each.resolve(),))", f"{TESTS}/privacy/test_ledger_place.py"),
    ("a server's starts are limited", "lightning_modules/federated/client.py",
     "if self.starts == self.max_starts:", "if False:", f"{MODULES}/federated/test_client.py"),
    ("nothing that a record left acts on a later one", "lightning_modules/teachers/record_clipping.py",
     "copied: Any = copy.deepcopy(self.network, {id(tensor): tensor for tensor in shared})",
     "copied: Any = self.network", f"{MODULES}/teachers/test_record_clipping.py -k remembered"),
    ("gradients are clipped", "lightning_modules/teachers/record_clipping.py",
     "factors = (limit / norms.clamp_min(1e-300)).clamp(max=1.0) if stability",
     "factors = 1.0 + 0 * norms if stability",
     f"{MODULES}/teachers/test_record_clipping.py -k held"),
    ("an export that was altered is refused", "privacy/exported.py",
     "if not math.isclose(of_training", "if False and not math.isclose(of_training",
     f"{MODULES}/publishing/test_export.py"),
]
# fmt: on


@pytest.mark.slow
@pytest.mark.parametrize(("promise", "file", "there", "broken", "tests"), MUTANTS, ids=[one[0] for one in MUTANTS])
def test_a_broken_promise_is_noticed(
    promise: str, file: str, there: str, broken: str, tests: str, tmp_path: Path
) -> None:
    for folder in ("datamodules", "lightning_modules", "privacy", "sweeps", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert text.count(there) == 1, "the promise has moved: so must its mutant"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", *tests.split(), "--last-failed"]
    # Not as a worker of this run, which would share its teacher with workers of earlier ones.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    environment = {**own, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    # The test that fails passes in the same copy of whole code.
    for content, outcome in ((text.replace(there, broken), "failed"), (text, "passed")):
        (tmp_path / file).write_text(content, encoding="utf-8")
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert re.search(rf"^1 {outcome}.* in ", done.stdout, re.MULTILINE), done.stdout[-2000:]
