"""The cells of the cloud of this computer: kills of the command, errors of AWS, two people with one cluster file.

After each cell the cloud lists no machine that nothing uses, none was ended while it was used, and the ledger has the
seconds that the cloud has. A cell returns how it ended; what is wrong raises.
"""

from __future__ import annotations

import contextlib
import datetime
import queue
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chaos.lab import ALIVE, BUCKET, SPEED, Command, Desk, Lab, kind_of, wait_for
from raysent.cost import machine_charges
from raysent.cost.budget import ALONE_S, FIRST_LEASE_S, GRACE_S
from raysent.storage import read_json_lines

# The processor of this computer is shared by all machines of the lab.
PATIENCE_S = 600.0
# Machines look every minute whether they end, and take a while.
LOOK_S = 120.0
# A request that is answered after the command was killed.
UNANSWERED_S = 6.0
# Without a renewal for this long, a machine's permit would have run out.
HOLD_S = 65.0
# Clusters whose heads stay for one sweep after another.
NUM_KEPT = 2
BUDGET_USD = 3.0
_PLAN = {
    "hourly": re.compile(r"together at most ([\d.]+) usd an hour"),
    "bound": re.compile(r"exceeds that by at most ([\d.]+)"),
    "first": re.compile(r"the first worker need ([\d.]+)"),
}
_ENDED_AT = re.compile(r"\((\S+ \S+) UTC\)")
# Trials that last longer than `HOLD_S`.
_LONG = ("base.training.epochs=400", "base.training.num_reports=8", "limits.trials=2")


@dataclass(frozen=True)
class Outcome:
    """How a cell ended.

    Attributes:
        how: In words.
        bill: Of a whole sweep, what its plan said and what it cost: `hourly`, `bound`, `first`, `ledger`, `cloud`.
    """

    how: str
    bill: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes:
        name: What happens, and when.
        run: Runs it with a lab and the name of its cluster.
        is_quick: Whether it is one of the few that `make chaos` runs.
    """

    name: str
    run: Callable[[Shared, str], Outcome]
    is_quick: bool = False


class Shared:
    """The lab of all cells, and clusters whose heads stay for one cell after another.

    Attributes:
        lab: The cloud.
    """

    def __init__(self, lab: Lab) -> None:
        """Launch nothing yet."""
        self.lab = lab
        self._kept: queue.Queue[Desk | None] = queue.Queue()
        self._num_kept = 0
        for _ in range(NUM_KEPT):
            self._kept.put(None)

    @contextlib.contextmanager
    def kept_cluster(self) -> Iterator[Desk]:
        """Hold a cluster whose head runs and has no worker; one with which a cell has failed is not used again."""
        desk = self._kept.get()
        try:
            desk = desk or self._launched()
            yield desk
            desk.fault()
            wait_for(lambda: not desk.alive("worker"), within_s=LOOK_S, what="no worker is left")
        except BaseException:
            if desk is not None:
                desk.fault()
                self.lab.client("ec2").terminate_instances(InstanceIds=desk.alive() or ["i-0"])
            desk = None
            raise
        finally:
            self._kept.put(desk)

    def _launched(self) -> Desk:
        self._num_kept += 1
        desk = Desk(self.lab, f"kept{self._num_kept}")
        with self.lab.launching:
            command = desk.start("cluster", "up", "cluster.yaml", "--keep", "6h", "--yes")
            assert command.end(within_s=PATIENCE_S) == 0, command.text
        return desk


@dataclass(frozen=True)
class Stage:
    """A stage of a launch and a sweep.

    Attributes:
        name: Its name.
        has_come: Returns whether it has come, for a desk and its command.
        faults: What the cloud does meanwhile.
    """

    name: str
    has_come: Callable[[Desk, Command], Any]
    faults: tuple[dict[str, Any], ...] = ()


def _waits(action: str) -> tuple[dict[str, Any], ...]:
    return ({"action": action, "delay_s": UNANSWERED_S},)


def _is_answered(desk: Desk, action: str, who: str = "command") -> bool:
    return any(call[4] != "waits" for call in desk.calls(action, who))


def has_report(desk: Desk, run: str = "one") -> bool:
    """Return whether a trial of a sweep has reported."""
    return any(event["event"] == "report" for event in desk.events(desk.remote(run)))


def _code(desk: Desk, remote: str) -> int | None:
    return desk.job(remote).get("code")


def _is_submitted(desk: Desk) -> bool:
    return bool(desk.machine_files("home/raysent-fleet/holders/*"))


def _has_joined(desk: Desk) -> bool:
    workers = set(desk.alive("worker"))
    logs = desk.machine_files("home/node-agent.log")
    return any(log.parent.parent.name in workers for log in logs)


def _has_drained(desk: Desk) -> bool:
    logs = desk.machine_files("home/raysent-fleet/launches.jsonl")
    return any('"released"' in log.read_text() for log in logs)


STAGES = (
    Stage(
        "head asked for, not answered",
        lambda desk, _: desk.calls("RunInstances"),
        _waits("RunInstances"),
    ),
    Stage("head asked for", lambda desk, _: _is_answered(desk, "RunInstances")),
    Stage("head runs", lambda desk, _: desk.machine_files("ready")),
    Stage("head has its first lease", lambda desk, _: desk.machine_files("home/*/lease")),
    Stage("set-up", lambda _, command: "stage 6 of 7" in command.text),
    Stage("Ray up", lambda _, command: "Ray runs on the head" in command.text),
    Stage("job recorded, files not sent", lambda desk, _: desk.job(desk.remote("one"))),
    Stage("files sent", lambda desk, _: desk.machine_files("files_sent")),
    Stage("submitted", lambda desk, _: _is_submitted(desk)),
    Stage("first worker asked for", lambda desk, _: _is_answered(desk, "RunInstances", "head")),
    Stage("first worker joined", lambda desk, _: _has_joined(desk)),
    Stage("first event", lambda desk, _: desk.events(desk.remote("one"))),
    Stage("first report", lambda desk, _: has_report(desk)),
    Stage("drain", lambda desk, _: _has_drained(desk)),
    Stage("end", lambda desk, _: _code(desk, desk.remote("one")) is not None),
    Stage(
        "down asked for, not answered",
        lambda desk, _: desk.calls("TerminateInstances"),
        _waits("TerminateInstances"),
    ),
    Stage("down", lambda desk, _: _is_answered(desk, "TerminateInstances")),
)


def killed(stage: Stage, shared: Shared, name: str) -> Outcome:
    """Kill the command at a stage of its launch or its sweep."""
    desk = Desk(shared.lab, name)
    has_come = lambda: stage.has_come(desk, command)  # noqa: E731
    with shared.lab.launching:
        desk.fault(*stage.faults)
        command = desk.sweep("one")
        _reach(lambda: has_come() or _is_submitted(desk), command, what=stage.name)
        if has_come():
            command.kill()
    if command.process.poll() is None:
        _reach(has_come, command, what=stage.name)
        command.kill()
    killed_at = time.monotonic()
    time.sleep(UNANSWERED_S + 1)  # what was asked for is still done
    desk.fault()
    assert desk.instances(), "the cloud has launched no head"
    longest_s = max(FIRST_LEASE_S, ALONE_S) / SPEED + LOOK_S
    left = lambda: _is_submitted(desk) or not desk.alive()  # noqa: E731
    wait_for(left, within_s=longest_s, what="no machine is left, or the sweep runs")
    remote = desk.remote("one")
    if _code(desk, remote) is None and not desk.alive():
        seconds = time.monotonic() - killed_at
        return Outcome(f"the head ended itself {seconds:.0f} s after the kill")
    wait_for(lambda: _code(desk, remote) is not None, within_s=PATIENCE_S, what="the sweep's end")
    ended_at = time.monotonic()
    within_s = GRACE_S / SPEED + LOOK_S
    wait_for(lambda: not desk.alive(), within_s=within_s, what="no machine is left")
    seconds = time.monotonic() - ended_at
    attached = desk.start("attach", f"s3://{BUCKET}/{remote}", cwd=desk.home)
    assert attached.end(within_s=PATIENCE_S) == 0, attached.text
    assert _code(desk, remote) == 0, desk.job(remote)
    check_undisturbed(desk, remote)
    bill = check_bill(desk, next((desk.home / "runs").iterdir()), remote, command.text)
    how = f"sweep to its end; no machine {seconds:.0f} s later; `attach` from another folder"
    return Outcome(how, bill)


def _reach(has_come: Callable[[], Any], command: Command, *, what: str) -> None:
    """Wait until a stage has come while the command runs."""

    def is_over() -> bool:
        ended = command.process.poll() is not None
        return bool(has_come()) or ended

    wait_for(is_over, within_s=PATIENCE_S, what=what, every_s=0.2)
    assert has_come(), f"{what}: the command has ended before:\n{command.text[-2000:]}"


def check_undisturbed(desk: Desk, remote: str, *, num_lost: int = 0) -> None:
    """The sweep ran through in one session, and no trial began twice: no machine was ended under it."""
    events = desk.events(remote)
    counts = Counter(event["event"] for event in events)
    started = Counter(event["trial"] for event in events if event["event"] == "started")
    assert counts["session"] <= 1, counts
    assert counts["ended"] == counts["suggested"] > 0, counts
    assert sum(started.values()) - len(started) <= num_lost, started


def check_bill(
    desk: Desk, run: Path, remote: str, plan_text: str, *, num_lost: int = 0
) -> dict[str, float]:
    """The ledger has the cloud's seconds of each worker, to 2 %; of the head to the end of its sweep.

    Args:
        desk: The desk.
        run: The run that was downloaded.
        remote: Its address.
        plan_text: What the command printed before the launch.
        num_lost: Workers that the cloud took away.
    """
    charges = machine_charges(read_json_lines(run / "ledger.jsonl"))
    listed = {instance["InstanceId"]: instance for instance in desk.instances()}
    workers = {
        name
        for name, instance in listed.items()
        if kind_of(instance) == "worker" and _tag(instance, "raysent-sweep") == Path(remote).name
    }
    assert workers
    assert workers <= charges.keys() <= listed.keys()
    cloud_usd = 0.0
    for name, charge in charges.items():
        seconds = max(60.0, seconds_billed(listed[name]))
        if name not in workers:
            assert charge.seconds <= seconds + 2, name
            cloud_usd += charge.usd
            continue
        # The cloud's times are whole seconds.
        assert charge.seconds == pytest.approx(seconds, rel=0.02, abs=2.0), name
        cloud_usd += charge.usd * seconds / charge.seconds
    plan = {
        name: float(found[1]) for name, form in _PLAN.items() if (found := form.search(plan_text))
    }
    assert cloud_usd <= BUDGET_USD + plan["bound"]
    ledger_usd = sum(charge.usd for charge in charges.values())
    return {**plan, "ledger": round(ledger_usd, 4), "cloud": round(cloud_usd, 4)}


def _tag(instance: dict[str, Any], name: str) -> str:
    return next((tag["Value"] for tag in instance["Tags"] if tag["Key"] == name), "")


def seconds_billed(instance: dict[str, Any]) -> float:
    """Return how long a machine ran, by the cloud's own list."""
    until = datetime.datetime.now(datetime.UTC)
    if instance["State"]["Name"] not in ALIVE:
        ended = _ENDED_AT.search(instance["StateTransitionReason"])
        assert ended, instance["StateTransitionReason"]
        until = datetime.datetime.fromisoformat(ended[1]).replace(tzinfo=datetime.UTC)
    return float((until - instance["LaunchTime"]).total_seconds())


@dataclass(frozen=True)
class Trouble:
    """How AWS fails.

    Attributes:
        name: In a word.
        launch: What it answers to launches.
        rest: What it answers besides, after the launch.
        is_lasting: Whether it stays so: a capacity, a permission, a quota.
        hold_s: How long it lasts while a sweep trains.
    """

    name: str
    launch: tuple[dict[str, Any], ...] = ()
    rest: tuple[dict[str, Any], ...] = ()
    is_lasting: bool = False
    hold_s: float = HOLD_S


def _refused(code: str, **more: Any) -> tuple[dict[str, Any], ...]:
    return ({"action": "RunInstances", "code": code, **more},)


def _all(code: str) -> tuple[dict[str, Any], ...]:
    actions = ("RunInstances", "Describe*", "TerminateInstances", "CreateTags")
    return tuple({"action": action, "code": code} for action in actions)


# AWS answers a request that is only tried out by the same permissions.
_DENIED_TRIAL = ({"action": "dry run: RunInstances", "code": "UnauthorizedOperation"},)
_STALE = ({"action": "DescribeInstances", "younger_than_s": 25.0},)
_NO_LIST = ({"action": "DescribeInstances", "younger_than_s": 1e9},)
_HANGING_EC2 = (
    {"action": "RunInstances", "delay_s": 20.0},
    {"action": "Describe*", "delay_s": 5.0},
)
_HANGING_S3 = tuple(
    {"action": f"{method} /{BUCKET}*", "delay_s": 60.0} for method in ("GET", "PUT")
)
TROUBLES = (
    Trouble("capacity", _refused("InsufficientInstanceCapacity"), is_lasting=True),
    Trouble("throttling", _refused("RequestLimitExceeded"), _all("RequestLimitExceeded")),
    Trouble(
        "permission",
        (*_refused("UnauthorizedOperation"), *_DENIED_TRIAL),
        _refused("UnauthorizedOperation"),
        is_lasting=True,
    ),
    Trouble("quota", _refused("VcpuLimitExceeded"), _refused("VcpuLimitExceeded"), is_lasting=True),
    Trouble("expired credentials", _refused("RequestExpired"), _all("RequestExpired")),
    Trouble("stale lists", _STALE, _NO_LIST),
    Trouble("hanging EC2", _HANGING_EC2, ({"action": "Describe*", "delay_s": 60.0},)),
    # A request is repeated for a minute, then the sweep ends in a line and can be resumed.
    Trouble("hanging S3", _HANGING_S3, _HANGING_S3, hold_s=45.0),
)
_REFUSES = ("capacity", "throttling", "permission", "quota", "expired credentials")


def refused_head(trouble: Trouble, shared: Shared, name: str) -> Outcome:
    """AWS refuses the head: one line, exit code 2, and nothing is left."""
    desk = Desk(shared.lab, name)
    desk.fault(*trouble.launch)
    command = desk.sweep("one")
    outcome = _refused_with_a_line(desk, command)
    said = "ec2:RunInstances" if trouble.name == "permission" else trouble.launch[0]["code"]
    assert said in command.text, command.text
    return outcome


def _refused_with_a_line(desk: Desk, command: Command) -> Outcome:
    assert command.end(within_s=PATIENCE_S) == 2, command.text
    last = command.text.strip().splitlines()[-1]
    assert last.startswith("error: "), command.text
    assert "Traceback" not in command.text, command.text
    assert desk.alive() == []
    return Outcome("exit code 2 and one line; no machine")


def hindered_head(trouble: Trouble, shared: Shared, name: str) -> Outcome:
    """AWS answers late or by an old list while the head is launched; then Ctrl-C leaves nothing."""
    desk = Desk(shared.lab, name)
    with shared.lab.launching:
        desk.fault(*trouble.launch)
        command = desk.sweep("one")
        is_launched = lambda: "the head is launched" in command.text  # noqa: E731
        is_over = lambda: is_launched() or command.process.poll() is not None  # noqa: E731
        wait_for(is_over, within_s=PATIENCE_S, what="head launched, or the command's end")
        if not is_launched():
            return _refused_with_a_line(desk, command)
        if trouble.name != "stale lists":
            desk.fault()
        _reach(lambda: "Ray runs on the head" in command.text, command, what="Ray up")
        desk.fault()
        command.interrupt()
        assert command.end(within_s=PATIENCE_S) == 130, command.text
    assert desk.alive() == []
    return Outcome("Ray came up all the same; Ctrl-C then ended the head, exit code 130")


def hindered_worker(trouble: Trouble, shared: Shared, name: str) -> Outcome:
    """AWS refuses workers, answers late or by an old list, from the submission on."""
    with shared.kept_cluster() as desk:
        num_before = len(desk.calls("RunInstances", "head"))
        dry_text = _dry_run(desk)
        command = desk.sweep(name)
        _reach(lambda: desk.job(desk.remote(name)), command, what="job recorded")
        faults = trouble.launch
        if trouble.name == "capacity":
            faults = tuple({**fault, "types": ["c6i.xlarge"]} for fault in faults)
        desk.fault(*faults, who=("head",))
        launches = lambda: desk.calls("RunInstances", "head")[num_before:]  # noqa: E731
        if not trouble.is_lasting:
            _reach(launches, command, what="a worker asked for")
            if trouble.name in ("stale lists", "hanging EC2", "hanging S3"):
                time.sleep(30)
            desk.fault()
        code = command.end(within_s=PATIENCE_S)
        desk.fault()
        asked = Counter(call[3] for call in launches() if not call[4])
        remote = desk.remote(name)
        if trouble.name in ("permission", "quota"):
            assert code not in (0, None), command.text
            assert "AWS will launch no machine" in command.text, command.text[-2000:]
            assert not asked
            return Outcome(f"exit code {code}: 'AWS will launch no machine', with its reason")
        assert code == 0, command.text[-3000:]
        types = {"c5.xlarge"} if trouble.name == "capacity" else {"c6i.xlarge"}
        assert asked.keys() == types, asked
        check_undisturbed(desk, remote)
        wait_for(lambda: not desk.alive("worker"), within_s=LOOK_S, what="no worker is left")
        bill = check_bill(desk, desk.work / name, remote, command.text)
        _check_dry_run(dry_text, command.text)
        how = {
            "capacity": "the next spot type came",
            "throttling": "asked again; the first spot type came, none on demand",
            "expired credentials": "asked again; the first spot type came",
        }.get(trouble.name, f"{sum(asked.values())} workers, as without it")
        return Outcome(f"{how}; sweep to its end", bill)


def hindered_sweep(trouble: Trouble, shared: Shared, name: str) -> Outcome:
    """AWS fails from the first report on; where it refuses launches for long, it takes a worker away first."""
    with shared.kept_cluster() as desk:
        dry_text = _dry_run(desk, *_LONG)
        command = desk.sweep(name, *[word for text in _LONG for word in ("--set", text)])
        _reach(lambda: has_report(desk, name), command, what="first report")
        remote = desk.remote(name)
        workers = set(desk.alive("worker"))
        num_lost = 1 if trouble.is_lasting else 0
        faults = trouble.rest
        if trouble.name == "capacity":
            faults = _refused("InsufficientInstanceCapacity", types=["c6i.xlarge"])
        desk.fault(*faults, who=("head", "command"))
        if num_lost:
            taken = min(workers)
            workers.remove(taken)
            shared.lab.client("ec2").terminate_instances(InstanceIds=[taken])
        _check_none_ends(desk, workers, remote, for_s=trouble.hold_s)
        desk.fault()
        assert command.end(within_s=PATIENCE_S) == 0, command.text[-3000:]
        check_undisturbed(desk, remote, num_lost=num_lost)
        wait_for(lambda: not desk.alive("worker"), within_s=LOOK_S, what="no worker is left")
        bill = check_bill(desk, desk.work / name, remote, command.text)
        _check_dry_run(dry_text, command.text)
        how = f"no worker that trained ended in {trouble.hold_s:.0f} s; sweep to its end"
        return Outcome(f"a worker was taken; {how}" if num_lost else how, bill)


def _check_none_ends(desk: Desk, workers: set[str], remote: str, *, for_s: float) -> None:
    """No worker ends for a while, unless the sweep has released it or is at its end."""
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        gone = workers - set(desk.alive("worker"))
        if gone:
            events = [event["event"] for event in desk.events(remote)]
            is_over = events.count("ended") == events.count("suggested")
            is_released = all(
                any(name in log.read_text() for log in desk.machine_files("home/*/launches.jsonl"))
                and _has_drained(desk)
                for name in gone
            )
            assert is_over or is_released, f"{gone} ended while the sweep ran"
            workers = workers - gone
        time.sleep(1)


def _dry_run(desk: Desk, *settings: str) -> str:
    """Return what a dry run prints."""
    words = ["sweep", "space.yaml", "--cluster", "cluster.yaml", "--budget", f"{BUDGET_USD:g}usd"]
    words += [word for text in settings for word in ("--set", text)]
    command = desk.start(*words, "--dry-run")
    assert command.end(within_s=PATIENCE_S) == 0, command.text
    return command.text


def _check_dry_run(dry_text: str, text: str) -> None:
    """The dry run said what the sweep said before it began."""
    for form in _PLAN.values():
        assert form.findall(dry_text) == form.findall(text) != [], (form.pattern, dry_text)


def colleagues(shared: Shared, name: str) -> Outcome:
    """`sweep`, `down` and `up --update` with the same file, in a data folder that did not launch its cluster."""
    theirs = Desk(shared.lab, f"{name}a", cluster="team")
    mine = Desk(shared.lab, f"{name}b", cluster="team")
    machines = {theirs.launch_idle(kind, sweep="theirs") for kind in ("head", "worker")}
    for command in (
        mine.sweep("one"),
        mine.start("cluster", "down", "cluster.yaml"),
        mine.start("cluster", "up", "cluster.yaml", "--update", "--yes"),
    ):
        assert command.end(within_s=PATIENCE_S) == 2, command.text
        assert "was not launched from here" in command.text
    assert set(mine.alive()) == machines
    return Outcome("three times exit code 2 and one line; both machines run")


def _cells() -> list[Cell]:
    quick = {"head runs", "Ray up", "first report"}
    cells = [
        Cell(f"killed: {stage.name}", partial(killed, stage), stage.name in quick)
        for stage in STAGES
    ]
    for trouble in TROUBLES:
        head = refused_head if trouble.name in _REFUSES else hindered_head
        is_quick = trouble.name == "capacity"
        cells += [
            Cell(f"{trouble.name}: head asked for", partial(head, trouble), is_quick),
            Cell(
                f"{trouble.name}: worker asked for",
                partial(hindered_worker, trouble),
                trouble.name == "throttling",
            ),
            Cell(f"{trouble.name}: first report", partial(hindered_sweep, trouble)),
        ]
    return [*cells, Cell("two people: one cluster file", colleagues, is_quick=True)]


CELLS = tuple(_cells())


def in_order(cells: list[Cell]) -> list[Cell]:
    """Return cells in the order in which they are run: those that wait for a lease early, beside others."""
    kills = [cell for cell in cells if cell.name.startswith("killed")]
    others = [cell for cell in cells if cell not in kills]
    turns = [cell for pair in zip(kills, others, strict=False) for cell in pair]
    return turns + kills[len(others) :] + others[len(kills) :]


def cluster_name(cell: Cell) -> str:
    """Return the name of a cell's own cluster and run."""
    return f"c{CELLS.index(cell):02d}"
