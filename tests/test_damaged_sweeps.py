"""Damaged journals and ledgers: found, named, and never trusted with money."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from raysent.config import parse_yaml
from raysent.cost import CostConfig
from raysent.errors import ArtifactError
from raysent.storage import Lines
from raysent.storage.layout import JOURNAL_FILE, LEDGER_FILE
from raysent.sweeps import SweepController, check_journal, check_ledger, read_events
from raysent.sweeps.cost_tracker import CostTracker, read_ledger, spent_usd
from raysent.sweeps.journal import Journal
from raysent.sweeps.space import parse_space

VERSION_2 = Path(__file__).parent / "data" / "version_2"
SPACE = """
base: {encoder: {type: gru}, objective: {type: context_prediction}}
search: {encoder.hidden_size: {randint: [10, 100]}}
limits: {trials: 4, sampler: random}
"""
NUM_REPORTS = 3


@pytest.fixture
def run(tmp_path) -> Path:
    """A run folder with the journal and the ledger of a small sweep that has ended, by the classes of a real one."""
    now = [0.0]
    journal = Journal(tmp_path)
    config = CostConfig(usd_per_hour=3600.0, poll="1s")
    with CostTracker(
        tmp_path, config, nodes=lambda: {"a": {}}, clock=lambda: now[0]
    ) as cost_tracker:
        space = parse_space(parse_yaml(SPACE), name="toy")
        controller = SweepController(space, seed=1, write=journal.write, one_line=journal.one_line)
        journal.write("session", trials=4, spent_usd=0.0, budget=None)
        while (trial := controller.suggest(cost_tracker.funds())) is not None:
            for index in range(1, NUM_REPORTS + 1):
                now[0] += 2
                cost_tracker.funds()
                continues = controller.report(
                    trial.name,
                    index=index,
                    num_reports=NUM_REPORTS,
                    metrics={"context_accuracy": 0.1 * index + 0.01 * trial.number},
                    seconds=2.0 * index,
                    usd=2.0 * index,
                    funds=cost_tracker.funds(),
                )
                if not continues:
                    break
            controller.end(trial.name, status="finished" if index == NUM_REPORTS else "stopped")
    journal.write("completed", reason="")
    journal.close()
    return tmp_path


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize("typed", ["report", "cost report"])
def test_lost_ledger_is_noticed_by_whoever_reads_it(tmp_path, raysent, typed, is_removed):
    """A sweep with charges whose ledger is empty or gone: one line, and exit code 2 where it is continued."""
    shutil.copytree(VERSION_2 / "finished", tmp_path / "run")
    shutil.copy(VERSION_2 / "text.txt", tmp_path)
    (tmp_path / "run" / LEDGER_FILE).unlink()
    if not is_removed:
        (tmp_path / "run" / LEDGER_FILE).touch()
    what = "run/ledger.jsonl: must have all that was spent; it sums up to 0 usd, and the journal"
    lines = raysent(*typed.split(), "run").err.splitlines()
    assert sum(what in line for line in lines) == 1
    resumed = raysent("resume", "run", "--set", "accept_versions=true")
    assert resumed.code == 2
    assert f"error: {what}" in resumed.err


def test_whole_run_has_its_spending(run):
    """What the journal has seen is no more than the ledger's sum."""
    assert spent_usd(run) > 1
    check_ledger(run, list(read_events(run)))


@pytest.mark.parametrize("first", [0, 5])
def test_ledger_that_lost_its_last_lines_is_refused(run, first):
    """The sweep is not resumed with less spending; without funds in its journal, nothing could tell."""
    path = run / LEDGER_FILE
    path.write_bytes(b"".join(_lines(path)[:first]))
    with pytest.raises(
        ArtifactError,
        match=r"ledger.jsonl: must have all that was spent; it sums up to .* usd, and the journal says",
    ):
        check_ledger(run, list(read_events(run)))
    check_ledger(run, [{"event": "completed"}])


def test_journal_that_lost_its_last_lines_is_noticed_by_the_folders_of_trials(run):
    """A trial that it lacks, or two reports; one report more is what any killed driver leaves."""
    events = list(read_events(run))
    trials = [event["trial"] for event in events if event["event"] == "suggested"]
    for trial in trials:
        (run / "trials" / trial).mkdir(parents=True)
        (run / "trials" / trial / "reports.jsonl").write_text("{}\n" * 9)
    check_journal(run, events)  # a trial that has ended says nothing
    end = next(place for place, event in enumerate(events) if event["event"] == "ended")
    kept = events[:end]
    known = {event["trial"]: 0 for event in kept if event["event"] == "suggested"}
    known |= {event["trial"]: event["index"] for event in kept if event["event"] == "report"}
    for trial, index in known.items():
        (run / "trials" / trial / "reports.jsonl").write_text("{}\n" * (index + 1))
    first = min(set(trials) - set(known))
    with pytest.raises(
        ArtifactError,
        match=rf"journal.jsonl: must have its last lines; trial {first} has a folder and no event; re",
    ):
        check_journal(run, kept)
    for trial in set(trials) - set(known):
        shutil.rmtree(run / "trials" / trial)
    check_journal(run, kept)
    check_ledger(run, kept)  # it has more than the journal has seen, as a killed driver's
    trial, index = min(known.items())
    (run / "trials" / trial / "reports.jsonl").write_text("{}\n" * (index + 2))
    with pytest.raises(
        ArtifactError, match=rf"trial {trial} made {index + 2} reports; it has {index};"
    ):
        check_journal(run, kept)


@pytest.mark.parametrize("num_lines", [0, 1, 9])
def test_resume_and_doctor_refuse_a_journal_without_its_end(tmp_path, raysent, num_lines):
    """A trial that has reported would come out without its reports."""
    shutil.copytree(VERSION_2 / "finished", tmp_path / "run")
    shutil.copy(VERSION_2 / "text.txt", tmp_path)
    path = tmp_path / "run" / JOURNAL_FILE
    path.write_bytes(b"".join(_lines(path)[:num_lines]))
    for command in (("resume", "run", "--set", "accept_versions=true"), ("doctor", "run")):
        refused = raysent(*command)
        assert refused.code in (1, 2)
        assert refused.err.count("journal.jsonl: must have its last lines; trial 0") == 1


def test_refund_after_an_event_is_no_missing_line(run):
    """What an interrupted machine cost was spent when the journal saw it, and is given back later."""
    base = {**read_ledger(run)[0], "node": "b", "market": "spot", "is_open": True, "why": ""}
    refund = {**base, "usd": -50.0, "is_open": False, "why": "taken back in its first hour: free"}
    Lines(run / LEDGER_FILE).append({**base, "usd": 50.0})
    seen = {"event": "decision", "funds": {"spent_usd": spent_usd(run)}}
    Lines(run / LEDGER_FILE).append(refund)
    assert spent_usd(run) < seen["funds"]["spent_usd"]
    check_ledger(run, [seen])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"usd": -1e6},
            r"ledger.jsonl:\d+: usd: must be a number from 0, or the refund of a machine's .*; it is -1000000",
        ),
        ({"usd": "1"}, "usd: must be a finite number; it is '1'"),
        ({"worst_usd_per_hour": -1.0}, "worst_usd_per_hour: must be a number from 0; it is -1.0"),
        ({"entry": "gift"}, "must be an entry of kind node, all or trial; it is 'gift'"),
        ({"node": None}, "node: must be text; it is None"),
    ],
)
def test_ledger_entry_that_no_ledger_has_is_refused(run, changes, message):
    """Also with a right checksum; a negative amount must be a refund."""
    entry = next(entry for entry in read_ledger(run) if entry["entry"] == "node")
    Lines(run / LEDGER_FILE).append({**entry, **changes})
    for read in (spent_usd, lambda folder: check_ledger(folder, [])):
        with pytest.raises(ArtifactError, match=message):
            read(run)


def test_refund_of_a_machine_is_its_charges_and_no_more(run):
    """A spot machine that was interrupted in its first hour costs nothing; a second refund is none."""
    whole = spent_usd(run)
    base = {**read_ledger(run)[0], "node": "b", "market": "spot", "is_open": True, "why": ""}
    refund = {**base, "usd": -1.5, "is_open": False, "why": "taken back in its first hour: free"}
    lines = Lines(run / LEDGER_FILE)
    lines.append({**base, "usd": 1.0}, {**base, "usd": 0.5}, refund)
    assert spent_usd(run) == pytest.approx(whole)
    lines.append(refund)
    with pytest.raises(ArtifactError, match="or the refund of a machine's 0; it is -1.5"):
        spent_usd(run)


@pytest.mark.parametrize("file", [JOURNAL_FILE, LEDGER_FILE])
def test_doctor_says_what_is_damaged(tmp_path, raysent, file):
    """Exit code 1; JSON has the same; no file is changed."""
    shutil.copytree(VERSION_2 / "finished", tmp_path / "run")
    whole = raysent("doctor", "run", "--json")
    assert whole.code == 0
    path = tmp_path / "run" / file
    data = path.read_bytes()
    place = data.index(b'"time"')
    path.write_bytes(data[:place] + data[place:].replace(b"t", b"T", 1))
    told = raysent("doctor", "run")
    assert (told.code, told.err.count("another program changed"), told.err.count(f"{file}:")) == (
        1,
        1,
        1,
    )
    told = raysent("doctor", "run", "--json")
    facts = json.loads(told.out)
    assert (told.code, len(facts["problems"])) == (1, 1)
    named = {JOURNAL_FILE: "num_events", LEDGER_FILE: "num_entries"}
    assert facts[named.pop(file)] is None
    (other,) = named.values()
    assert facts[other] == json.loads(whole.out)[other]
    assert path.read_bytes() != data
