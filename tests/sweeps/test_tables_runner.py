"""The runner: each fit once, failures alone, two runners on one folder, kills and what they leave."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import yaml
from support.sweep_fits import SPEC, Fits

from lightning_modules.cli import main
from sweeps.runner.plan import estimate
from sweeps.runner.store import Store
from sweeps.runner.tables.records import plan_of, run_table
from sweeps.runner.tables.spec import TableSpec
from sweeps.runner.work import work


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableSpec:
    monkeypatch.chdir(tmp_path)
    Path("teacher.yaml").write_text("a: 1")
    Path("student.yaml").write_text("a: 2")
    Path("t.yaml").write_text(yaml.safe_dump(SPEC, sort_keys=False))
    return TableSpec.read("t.yaml")


def test_each_fit_is_made_once_and_finds_its_parent(spec: TableSpec) -> None:
    fits, said = Fits(), []
    outcome = run_table(spec, preset="smoke", run=fits, say=said.append)
    assert fits.sizes == ["teacher", "1", "2", "3"]
    teacher = fits.asked[0]["trainer.default_root_dir"]
    assert all(asked["model.teacher"] == f"{teacher}/checkpoints/last.ckpt" for asked in fits.asked[1:])
    assert outcome.finished and outcome.done == 4 and outcome.failed == 0
    assert said[0] == "[t smoke] 0 done, 0 running, 4 left, about 2 min to go"
    records = sorted(path.name for path in Path("results/tables/t/smoke/records").iterdir())
    assert records == ["1_seed0.json", "2_seed0.json", "3_seed0.json"]

    again = Fits()
    run_table(spec, preset="smoke", run=again, say=said.append)
    assert again.asked == []


@pytest.mark.parametrize("asked", [True, False])
def test_a_teachers_figure_is_its_own_fits_where_a_table_shows_it(spec: TableSpec, asked: bool) -> None:
    class Better(Fits):
        """Of which the teacher is better than its students."""

        def __call__(self, arguments: list[str]) -> None:
            super().__call__(arguments)
            if "size" not in self.asked[-1]:
                path = Path(self.asked[-1]["trainer.default_root_dir"]) / "result.json"
                path.write_text(json.dumps({**json.loads(path.read_text()), "accuracy": 0.75}))

    if asked:
        Path("t.yaml").write_text(yaml.safe_dump({**SPEC, "measures": ["teacher_accuracy"]}, sort_keys=False))
    run_table(TableSpec.read("t.yaml"), preset="smoke", run=Better(), say=lambda _: None)
    for path in Path("results/tables/t/smoke/records").iterdir():
        record = json.loads(path.read_text())
        assert record["accuracy"] == 0.5 and record.get("teacher_accuracy") == (0.75 if asked else None)


def test_only_what_is_missing_is_made(spec: TableSpec) -> None:
    run_table(spec, preset="smoke", run=Fits(), say=lambda _: None)
    fits = Fits()
    run_table(spec, preset="smoke", run=fits, seeds=[0, 1], say=lambda _: None)
    assert fits.sizes == ["1", "2", "3"] and {asked["seed_everything"] for asked in fits.asked} == {"1"}


@pytest.mark.parametrize("error", [ValueError("no such thing"), SystemExit(2)])
def test_a_broken_cell_leaves_the_others_intact_and_is_tried_again_later(spec: TableSpec, error: BaseException) -> None:
    fits, said = Fits(), []
    fits.errors["2"] = error
    outcome = run_table(spec, preset="smoke", run=fits, say=said.append)
    assert (outcome.done, outcome.failed, outcome.left) == (3, 1, 0)
    note = json.loads(next(Path("runs/tables").glob("*/failed.json")).read_text())
    assert str(error) in note["error"] and any(str(error) in line for line in said)
    assert "error" in json.loads(Path("results/tables/t/smoke/records/2_seed0.json").read_text())

    healed = Fits()
    outcome = run_table(spec, preset="smoke", run=healed, say=said.append)
    assert healed.sizes == ["2"] and outcome.failed == 0
    assert not list(Path("runs/tables").glob("*/failed.json"))
    assert "error" not in json.loads(Path("results/tables/t/smoke/records/2_seed0.json").read_text())


def test_without_a_parent_there_are_no_children(spec: TableSpec) -> None:
    fits = Fits()
    fits.errors["teacher"] = RuntimeError("out of memory")
    outcome = run_table(spec, preset="smoke", run=fits, say=lambda _: None)
    assert fits.sizes == ["teacher"] and outcome.failed == 4


def test_a_fit_that_writes_no_record_has_failed(spec: TableSpec) -> None:
    outcome = run_table(spec, preset="smoke", run=lambda _: None, say=lambda _: None)
    assert outcome.done == 0 and outcome.failed == 4


def interruption() -> SystemExit:
    """As Lightning ends a fit that was interrupted."""
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise SystemExit(1)  # noqa: B904 - Lightning does not say where it comes from either
    except SystemExit as error:
        return error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), interruption()])
def test_an_interruption_ends_everything_and_the_next_run_goes_on_from_the_checkpoint(
    spec: TableSpec, error: BaseException
) -> None:
    fits = Fits()
    fits.errors["2"] = error
    with pytest.raises(KeyboardInterrupt):
        run_table(spec, preset="smoke", run=fits, say=lambda _: None)
    assert fits.sizes == ["teacher", "1", "2"] and not list(Path("runs/tables").glob("*/failed.json"))
    again = Fits()
    outcome = run_table(spec, preset="smoke", run=again, say=lambda _: None)
    assert again.sizes == ["2", "3"] and outcome.done == 4
    assert again.asked[0]["ckpt_path"] == f"{again.asked[0]['trainer.default_root_dir']}/checkpoints/last.ckpt"
    assert "ckpt_path" not in again.asked[1]


def test_two_runners_on_one_folder_repeat_nothing(spec: TableSpec) -> None:
    plan = plan_of(spec.cells("smoke"), Store("runs/tables"))
    runners = [Fits(), Fits()]
    for fits in runners:
        fits.seconds = 0.2
    threads = [threading.Thread(target=work, args=(plan, fits), kwargs={"since": 0.0}) for fits in runners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(runners[0].sizes + runners[1].sizes) == ["1", "2", "3", "teacher"]
    # Both came to the end, which neither could have without waiting for the other.
    assert plan.progress(since=0.0).finished and all(fits.sizes for fits in runners)


def test_without_claims_two_runners_would_repeat_cells(spec: TableSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeps.runner.store.fcntl.flock", lambda *_: None)
    plan = plan_of(spec.cells("smoke"), Store("runs/tables"))
    runners = [Fits(), Fits()]
    for fits in runners:
        fits.seconds = 0.2
    threads = [threading.Thread(target=work, args=(plan, fits), kwargs={"since": 0.0}) for fits in runners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runners[0].sizes + runners[1].sizes) > 4


def test_the_claim_of_a_killed_process_is_free_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    reading, writing = os.pipe()
    holder = os.fork()
    if holder == 0:
        with store.claim("fit") as mine:
            os.write(writing, b"1" if mine else b"0")
            time.sleep(60)
            os._exit(1)
    try:
        assert os.read(reading, 1) == b"1"
        assert store.state("fit") == "running"
        with store.claim("fit") as mine:
            assert not mine
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    assert store.state("fit") == "left"
    with store.claim("fit") as mine:
        assert mine


def test_estimates_come_from_the_spec_until_alike_fits_are_measured(spec: TableSpec) -> None:
    cells = spec.cells("smoke")
    fit = cells[0].fit.task()
    assert estimate(fit, []) == (10, "spec")
    near = {"table": "t", "preset": "smoke", "fit": "student", "labels": {"size": "1"}, "seconds": 30.0}
    far = {**near, "labels": {"size": "2"}, "seconds": 50.0}
    other = {**near, "preset": "paper", "seconds": 1e6}
    assert estimate(fit, [near, far, other]) == (30.0, "1 measured")
    assert estimate(fit, [far, other]) == (50.0, "1 measured")


def test_dry_run_shows_cost_and_runs_nothing(spec: TableSpec, capsys: pytest.CaptureFixture[str]) -> None:
    main(["tables", "run", "t.yaml", "--dry-run"])
    shown = capsys.readouterr().out
    assert "3 cells, 4 fits" in shown and "shared by cells" in shown and "size 2, seed 0" in shown
    assert "to do: 2 min" in shown and not Path("runs").exists()


def test_list_names_what_make_runs(capsys: pytest.CaptureFixture[str]) -> None:
    main(["tables", "list"])
    shown = capsys.readouterr().out
    assert "table-dpdfd-table1 " in shown and "figure-dpdfd-fig2 " in shown and "smoke (4)" in shown


def test_a_small_table_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DPDFD Fig. 2 at `smoke` through the command a user types: two of its cells, then nothing more to do."""
    monkeypatch.chdir(tmp_path)
    from sweeps.runner.tables.spec import _locate

    values = yaml.safe_load(_locate("dpdfd-fig2").read_text())
    values["presets"]["smoke"]["axes"]["C"] = ["1e-3"]
    Path("dpdfd-fig2.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    main(["tables", "run", "dpdfd-fig2.yaml"])
    text = Path("results/tables/dpdfd-fig2/smoke/table.md").read_text()
    assert "| Digits | normalize | 1e-3 | – |" in text and "| Digits | clip | 1e-3 | – |" in text
    for path in Path("results/tables/dpdfd-fig2/smoke/records").iterdir():
        record = json.loads(path.read_text())
        assert record["method"] == "DPDFD" and record["steps"] == 10 and record["seed"] == 0
        assert record["epsilon_record"] > record["epsilon_published"] > 0
    made = {path: path.stat().st_mtime_ns for path in Path("runs/tables").glob("*/result.json")}
    assert len(made) == 3
    main(["tables", "run", "dpdfd-fig2.yaml"])
    assert {path: path.stat().st_mtime_ns for path in Path("runs/tables").glob("*/result.json")} == made


def test_a_missing_data_set_is_an_error_of_its_cells_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="fits failed"):
        main(["tables", "run", "dpdfd-fig2", "--preset", "cpu", "--seeds", "0"])
    assert "failed" in Path("results/tables/dpdfd-fig2/cpu/table.md").read_text()


@pytest.mark.slow
def test_worker_processes_make_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    main(["tables", "run", "dpdfd-sigma", "--jobs", "2"])
    assert len(list(Path("results/tables/dpdfd-sigma/smoke/records").iterdir())) == 3
    assert "failed" not in Path("results/tables/dpdfd-sigma/smoke/table.md").read_text()


@pytest.mark.slow
def test_two_workers_of_dask_make_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    monkeypatch.chdir(tmp_path)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        main(["tables", "run", "dpdfd-sigma", "--jobs", "2", "--dask", cluster.scheduler_address])
    assert len(list(Path("results/tables/dpdfd-sigma/smoke/records").iterdir())) == 3
    assert "failed" not in Path("results/tables/dpdfd-sigma/smoke/table.md").read_text()
    lines = [line for log in Path("runs/tables").glob("*.log") for line in log.read_text().splitlines()]
    made = [line for line in lines if line.startswith("[dpdfd-sigma smoke]") and "): " in line]
    assert len(made) == len({line.rsplit("/", 1)[-1] for line in made}) == 4
    # All charges are in the ledger of whoever asked, none in one of a worker's own.
    assert [path.name for path in tmp_path.rglob("*.jsonl")] == ["Digits-train.jsonl"]
