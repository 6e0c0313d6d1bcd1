"""Damaged journals and ledgers: found, named, and never trusted with money."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import damaged_lines as damage
import pytest

from raysent.errors import ArtifactError
from raysent.storage import Lines, check_lines
from raysent.storage.layout import JOURNAL_FILE, LEDGER_FILE, WRITTEN_FILE
from raysent.sweeps import load_record, read_events
from raysent.sweeps.cost_tracker import read_ledger, spent_usd
from raysent.sweeps.integrity import check_run, verify_run
from raysent.sweeps.record import check_versions, compare_versions

VERSION_2 = Path(__file__).parent / "data" / "version_2"


@pytest.fixture
def run(tmp_path) -> Path:
    """A run folder with the journal and the ledger of a sweep that has ended."""
    damage.write_sweep(tmp_path)
    return tmp_path


def _problems(folder: Path) -> list[str]:
    return [str(problem) for problem in check_run(folder).problems]


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize("typed", ["report", "cost report"])
def test_lost_ledger_is_noticed_by_whoever_reads_it(tmp_path, raysent, typed, is_removed):
    """A sweep with charges whose ledger is empty or gone: one line, and exit code 2 where it is continued."""
    shutil.copytree(VERSION_2 / "finished", tmp_path / "run")
    (tmp_path / "run" / LEDGER_FILE).unlink()
    if not is_removed:
        (tmp_path / "run" / LEDGER_FILE).touch()
    lines = raysent(*typed.split(), "run").err.splitlines()
    assert sum("run/ledger.jsonl:1: missing" in line for line in lines) == 1
    resumed = raysent("resume", "run")
    assert resumed.code == 2
    assert "ledger.jsonl:1: missing" in resumed.err


def test_damage_is_found_or_harmless_and_never_accepted():
    """Flips, cuts, doubled, copied, swapped and removed lines of one or both files."""
    outcomes = sum(damage.run(140, seed=1).values(), Counter())
    assert outcomes["ACCEPTED"] == 0
    assert outcomes["found"] > 130


def test_whole_run_has_its_spending(run):
    """The ledger's sum; `written.json` counts the lines."""
    found = check_run(run)
    assert (found.problems, found.spent_usd) == ((), spent_usd(run))
    written = json.loads((run / WRITTEN_FILE).read_text())
    assert written[JOURNAL_FILE] == len(_lines(run / JOURNAL_FILE))
    assert found.num_events == len(list(read_events(run)))
    verify_run(run)


@pytest.mark.parametrize("loss", ["deleted", "cut", "changed"])
def test_spending_of_a_ledger_that_lost_lines_is_known_from_the_journal(run, loss):
    """The sweep is not resumed with less spending."""
    path, spent = run / LEDGER_FILE, spent_usd(run)
    lines = _lines(path)
    if loss == "deleted":
        path.unlink()
    else:
        path.write_bytes(b"".join(lines[:5]) + (b"x" + lines[5] if loss == "changed" else b""))
    found = check_run(run)
    assert found.spent_usd == pytest.approx(spent)
    assert [problem.file for problem in found.problems] == [LEDGER_FILE]
    with pytest.raises(
        ArtifactError,
        match=rf"{LEDGER_FILE}:\d+: .*; {spent:.2f} usd were spent; see 'raysent doctor",
    ):
        verify_run(run)


def test_spending_is_unknown_where_both_files_are_damaged(run):
    """The sweep is not resumed."""
    for file in (JOURNAL_FILE, LEDGER_FILE):
        lines = _lines(run / file)
        (run / file).write_bytes(b"".join(lines[:3] + lines[5:]))
    assert check_run(run).spent_usd is None
    with pytest.raises(
        ArtifactError, match=r"journal.jsonl:4: .*; what was spent is unknown; see 'raysent doctor"
    ):
        verify_run(run)


def test_journal_cut_at_a_lines_end_is_found_by_the_ledger(run):
    """Also without `written.json`, which a killed session does not leave."""
    path = run / JOURNAL_FILE
    path.write_bytes(b"".join(_lines(path)[:-6]))
    (run / WRITTEN_FILE).unlink()
    assert _problems(run) == [
        f"journal.jsonl:{len(_lines(path)) + 1}: missing: {len(_lines(path)) + 5} lines were written"
    ]


def test_both_files_cut_at_one_moment_are_found_by_the_folders_of_trials(run):
    """A trial that the journal lacks, or two reports; one report more is what any killed driver leaves."""
    (run / WRITTEN_FILE).unlink()  # as a killed session
    trials = [event["trial"] for event in read_events(run) if event["event"] == "suggested"]
    ended = {event["trial"] for event in read_events(run) if event["event"] == "ended"}
    assert set(trials) == ended
    for trial in trials:
        (run / "trials" / trial).mkdir(parents=True)
        (run / "trials" / trial / "reports.jsonl").write_text("{}\n" * 9)
    assert check_run(run).problems == ()  # a trial that has ended says nothing
    lines = _lines(run / JOURNAL_FILE)
    end = next(number for number, line in enumerate(lines) if b'"event": "ended"' in line)
    events = check_lines(b"".join(lines[:end])).entries
    seen = json.loads(lines[end - 1])["seen"]["ledger"][0]
    (run / JOURNAL_FILE).write_bytes(b"".join(lines[:end]))
    (run / LEDGER_FILE).write_bytes(b"".join(_lines(run / LEDGER_FILE)[:seen]))
    known = {event["trial"]: 0 for event in events if event["event"] == "suggested"}
    known |= {event["trial"]: event["index"] for event in events if event["event"] == "report"}
    num_more = {}
    for trial, index in known.items():
        path = run / "trials" / trial / "reports.jsonl"
        path.write_text("{}\n" * (index + 1))
        num_more[trial] = index + 2
    first = sorted(set(trials) - set(known))[0]
    assert _problems(run)[0].endswith(f"missing: trial {first} has a folder and no event")
    assert check_run(run).spent_usd is None
    with pytest.raises(
        ArtifactError,
        match="has a folder and no event; what was spent is unknown; see 'raysent doctor",
    ):
        verify_run(run)
    for trial in set(trials) - set(known):
        shutil.rmtree(run / "trials" / trial)
    assert _problems(run) == []
    trial, num = min(num_more.items())
    (run / "trials" / trial / "reports.jsonl").write_text("{}\n" * num)
    assert _problems(run)[0].endswith(
        f"missing: trial {trial} made {num} reports; the journal has {num - 2}"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"usd": -1e6},
            r"ledger.jsonl:\d+: usd: must be a number from 0, or the refund of a machine's .*; it is -1000000",
        ),
        ({"usd": "1"}, "usd: must be a finite number; it is '1'"),
        ({"worst_usd_per_hour": -1.0}, "worst_usd_per_hour: must be a number from 0; it is -1.0"),
        ({"entry": "gift"}, "must be an entry of kind node or trial; it is 'gift'"),
        ({"node": None}, "node: must be text; it is None"),
    ],
)
def test_ledger_entry_that_no_ledger_has_is_refused(run, changes, message):
    """Also with a right hash; a negative amount must be a refund."""
    entry = next(entry for entry in read_ledger(run) if entry["entry"] == "node")
    Lines(run / LEDGER_FILE).append({**entry, **changes})
    with pytest.raises(ArtifactError, match=message):
        spent_usd(run)
    assert check_run(run).problems


def test_refund_of_a_machine_is_its_charges_and_no_more(run):
    """A spot machine that was interrupted in its first hour costs nothing; a second refund is none."""
    base = {**read_ledger(run)[0], "node": "b", "market": "spot", "is_open": True, "why": ""}
    refund = {**base, "usd": -1.5, "is_open": False, "why": "taken back in its first hour: free"}
    lines = Lines(run / LEDGER_FILE)
    lines.append({**base, "usd": 1.0}, {**base, "usd": 0.5}, refund)
    before = spent_usd(run)
    lines.append(refund)
    with pytest.raises(ArtifactError, match="or the refund of a machine's 0; it is -1.5"):
        spent_usd(run)
    assert before == pytest.approx(spent_usd_of_first(run))


def spent_usd_of_first(run: Path) -> float:
    """Return the spending that the session wrote down."""
    return float(json.loads((run / WRITTEN_FILE).read_text())["spent_usd"])


def test_doctor_says_what_is_damaged(tmp_path, raysent):
    """Exit code 1; JSON has the same; no file is changed."""
    shutil.copytree(VERSION_2 / "finished", tmp_path / "run")
    assert raysent("doctor", "run").code == 0
    path = tmp_path / "run" / JOURNAL_FILE
    data = path.read_bytes()
    path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    found = raysent("doctor", "run")
    assert (found.code, "journal.jsonl:" in found.err) == (1, True)
    found = raysent("doctor", "run", "--json")
    assert (found.code, len(json.loads(found.out)["problems"])) == (1, 1)
    assert path.read_bytes() != data


@pytest.mark.parametrize(
    ("present", "verdict"),
    [
        ({"torch": "2.3.0+cpu", "ray": "2.9.0"}, "same"),
        ({"torch": "2.3.1+cpu", "ray": "2.10.0"}, "compatible"),
        ({"torch": "2.4.0+cpu", "ray": "2.9.0"}, "different numerics"),
        ({"torch": "2.3.0+cu121", "ray": "2.9.0"}, "different numerics"),
    ],
)
def test_versions_are_compared_by_what_they_change(present, verdict):
    """Another PyTorch gives other bits; another Ray does not."""
    assert compare_versions({"torch": "2.3.0+cpu", "ray": "2.9.0"}, present)[0] == verdict


def test_resume_with_other_numerics_is_refused_until_they_are_accepted(tmp_path):
    """One line names the versions; accepted ones are those of the record that goes on."""
    for name in ("sweep.json", JOURNAL_FILE):
        shutil.copy(VERSION_2 / "finished" / name, tmp_path)
    recorded = load_record(tmp_path)
    record = replace(recorded, versions={**recorded.versions, "torch": version("torch")})
    assert check_versions(tmp_path, record, is_accepted=False) is record
    old = replace(record, versions={**record.versions, "torch": "1.0.0"})
    with pytest.raises(
        ArtifactError,
        match=r"torch 1.0.0 then, .* now: .*; install those versions, or resume with acc",
    ):
        check_versions(tmp_path, old, is_accepted=False)
    accepted = check_versions(tmp_path, old, is_accepted=True)
    assert accepted.versions["torch"] == version("torch")
