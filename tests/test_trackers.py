"""Trackers: the contract of every one that is found, and one that breaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysent.config import parse_yaml
from raysent.errors import ConfigError
from raysent.storage.layout import TENSORBOARD_FOLDER
from raysent.sweeps import read_events
from raysent.sweeps.journal import Journal
from raysent.sweeps.space import SearchSpace, parse_space
from raysent.sweeps.trackers import TRACKERS, Trackers, make_trackers

EVENTS = list(read_events(Path(__file__).parent / "data" / "version_1" / "finished"))
TEXT = "base: {encoder: {type: gru}, objective: {type: context_prediction}}\ntrackers: %s\n"


def _space(trackers: str) -> SearchSpace:
    return parse_space(parse_yaml(TEXT % trackers, source="s.yaml"), name="toy")


@pytest.mark.parametrize("name", TRACKERS)
def test_tracker_takes_every_event_of_a_sweep(name, tmp_path):
    """It neither raises nor changes what it gets, and can be closed in the middle."""
    before = json.dumps(EVENTS)
    for events in (EVENTS, EVENTS[:9]):
        tracker = TRACKERS[name](_space("[]"), TRACKERS[name].Config(), folder=tmp_path)
        for event in events:
            tracker.on_event(event)
        tracker.close()
    assert json.dumps(EVENTS) == before


def test_tensorboard_has_a_folder_for_each_trial(tmp_path):
    """One file of events for each trial that reported."""
    trackers = make_trackers(_space("[tensorboard]"), tmp_path)
    for event in EVENTS:
        trackers(event)
    trackers.close()
    assert sorted(path.parent.name for path in (tmp_path / TENSORBOARD_FOLDER).glob("*/events*")) == [
        f"{number:04d}" for number in range(6)
    ]


class Listening:
    """Keeps the events that it gets; `fails` makes it fail at a report."""

    def __init__(self, *, fails: bool = False) -> None:
        self.events, self.is_closed, self._fails = [], False, fails

    def on_event(self, event: dict) -> None:
        """Keep the event's name, change the event, and fail at a report."""
        self.events.append(event["event"])
        event["event"] = "changed"
        if self._fails and self.events[-1] == "report":
            raise OSError("no space left")

    def close(self) -> None:
        """Note the call."""
        self.is_closed = True


def test_trackers_get_the_journal_as_it_is_written_and_one_that_breaks_gets_no_more(tmp_path):
    """The others, the journal and the sweep go their way; the failure is a warning."""
    good, bad = Listening(), Listening(fails=True)
    trackers = Trackers([bad, good])
    journal = Journal(tmp_path, listeners=[trackers])
    with pytest.warns(UserWarning, match="tracker Listening: OSError: no space left; it receives no more events"):
        _write_all(journal, EVENTS[:9])
    trackers.close()
    journal.close()
    written = [event["event"] for event in EVENTS[:9]]
    assert good.events == written == [event["event"] for event in read_events(tmp_path)]
    assert bad.events == written[: written.index("report") + 1]
    assert (good.is_closed, bad.is_closed) == (True, False)


def _write_all(journal, events):
    for event in events:
        journal.write(event["event"], **{key: value for key, value in event.items() if key not in ("event", "time")})


@pytest.mark.parametrize(
    ("trackers", "message"),
    [
        ("[tensorbord]", r"^s.yaml:2: trackers.0: unknown tracker; did you mean 'tensorboard'\?$"),
        ("[{type: tensorboard, folder: x}]", r"^s.yaml:2: trackers.0.folder: unknown name$"),
        ("tensorboard", r"^s.yaml:2: trackers: must be a valid list; given 'tensorboard'$"),
        ("[{project: x}]", r"^s.yaml:2: trackers.0.type: is required and is not given$"),
    ],
)
def test_a_wrong_tracker_is_one_line_before_anything_starts(trackers, message):
    """File, line, the setting and what it should be."""
    with pytest.raises(ConfigError, match=message):
        _space(trackers)
