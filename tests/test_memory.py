"""The memory of processes that train: estimates, refusals before the start, and the allocator."""

import platform
import subprocess
import sys
import weakref

import pytest
from tiny_run import tiny_run

from raysent.config import Document
from raysent.errors import ConfigError
from raysent.sweeps.controller import SweepController
from raysent.sweeps.driver import prepare_space
from raysent.sweeps.space import parse_space
from raysent.sweeps.space.limits import parse_size
from raysent.sweeps.trial import trials_of
from raysent.training import loop
from raysent.training.memory import check_memory, estimate_bytes, show_bytes
from raysent.training.plan import build_model
from raysent.training.run import RunConfig

BASE = {"encoder": {"type": "gru", "hidden_size": 64}, "objective": {"type": "context_prediction"}}


def run_config(**encoder):
    """Return a run with other settings of its encoder."""
    return RunConfig.model_validate({**BASE, "encoder": {**BASE["encoder"], **encoder}})


def space_of(search, **limits):
    """Return a space over the run."""
    values = {
        "base": BASE,
        "search": search,
        "metric": "context_accuracy",
        "limits": {"trials": 2, **limits},
    }
    return parse_space(Document(values=values, source="space.yaml"), name="space")


def test_estimate_covers_the_tensors_of_a_training():
    """Word vectors and weights of two towers, each with two moments and a gradient."""
    words = 2 * 50_000 * 300
    recurrent = 2 * 3 * 64 * (300 + 64 + 2)
    assert estimate_bytes(run_config()) >= 4 * 4 * (words + recurrent)


@pytest.mark.parametrize(
    ("encoder", "name"),
    [
        ({"hidden_size": 10**9}, "encoder.hidden_size"),
        ({"embedding": {"dim": 10**8}}, "encoder.embedding.dim"),
    ],
)
def test_run_that_cannot_fit_is_refused_with_the_setting_to_lower(encoder, name):
    """With about the value that fits."""
    with pytest.raises(
        ConfigError,
        match=rf"^{name}: must let a trial fit into 2 GiB \(test\); .* fits at about \d+$",
    ):
        check_memory(run_config(**encoder), 2 << 30, source="test")


def test_length_of_labelled_texts_is_a_setting_to_lower():
    """The texts of a table may be long."""
    values = {
        **BASE,
        "encoder": {"type": "gru", "embedding": {"dim": 8}, "hidden_size": 8},
        "objective": {"type": "task"},
        "labels": {"task": "docs-library", "max_length": 1 << 20},
        "vocabulary": {"size": 3},
        "training": {"batch_size": 2},
    }
    values.pop("corpus", None)
    config = RunConfig.model_validate(values)
    with pytest.raises(ConfigError, match=r"^labels\.max_length: must let a trial fit"):
        check_memory(config, 600 << 20, source="test")


def test_value_that_is_said_to_fit_fits():
    """The last figure of the error can be set."""
    with pytest.raises(ConfigError) as caught:
        check_memory(run_config(hidden_size=65_536), 2 << 30, source="test")
    check_memory(run_config(hidden_size=int(str(caught.value).split()[-1])), 2 << 30, source="test")


def test_space_is_refused_at_its_largest_edge_before_it_trains():
    """A width of 4,096 under a limit of 2 GiB, with the line of the search that reaches it."""
    search = {"encoder.hidden_size": {"choice": [64, 4096]}}
    with pytest.raises(
        ConfigError,
        match=r"encoder\.hidden_size: must let a trial fit into 2 GiB \(limits\.memory\)",
    ):
        prepare_space(space_of(search, memory="2GiB"))


def test_huge_width_is_refused_on_any_machine():
    """Also without a limit, and before the text is read."""
    with pytest.raises(
        ConfigError,
        match=r"encoder\.hidden_size: must let a trial fit into .* \(memory of the machine\)",
    ):
        prepare_space(space_of({"encoder.hidden_size": {"choice": [64, 10**9]}}))


@pytest.mark.parametrize("name", ["trials", "seeds", "concurrent"])
def test_numbers_of_trials_have_bounds(name):
    """No sweep of 10^18 trials is planned."""
    with pytest.raises(ConfigError, match=rf"limits\.{name}: .*1000000"):
        space_of({}, **{name: 10**18})


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2 << 30), ("1.5 GB", 1_500_000_000), ("512MiB", 512 << 20)]
)
def test_sizes_are_read(text, size):
    """With decimal and binary units."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "2", "GiB", "-1GiB", "0GiB", "1e400GiB", "nanGB", "9" * 5000 + "GiB", "2 gib"]
)
def test_other_sizes_are_refused(text):
    """In one line."""
    with pytest.raises(ConfigError, match=r"limits\.memory: must be a number and one of MB, GB"):
        space_of({}, memory=text)


def test_sizes_are_shown_in_readable_units():
    """From bytes to more than any machine has."""
    assert [show_bytes(size) for size in (12, 1536, 1020 << 20, 3 << 30)] == [
        "12 bytes",
        "1.5 KiB",
        "0.996 GiB",
        "3 GiB",
    ]
    assert show_bytes(10**24).endswith("PiB")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc only")
def test_freed_memory_goes_back_to_the_system():
    """Holes in the heap are returned although blocks behind them live on."""
    script = (
        "from raysent.platforms import trim_heap\n"
        "from raysent.training.memory import resident_bytes\n"
        "import numpy as np\n"
        "kept, before = [], resident_bytes()\n"
        "for size in (2, 4, 8, 16, 30):\n"
        "    blocks = [np.ones(size << 17) for _ in range(20)]\n"
        "    most, kept = resident_bytes(), [*kept, blocks[-1]]\n"
        "    del blocks\n"
        "assert trim_heap()\n"
        "print(most - before, resident_bytes() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    grown, left = map(int, done.stdout.split())
    assert grown > 600 << 20
    assert left < 100 << 20  # 60 of them are kept


def test_training_releases_its_memory(tmp_path, monkeypatch):
    """After a run that ends, and after one that fails; its model is gone by then."""
    models, released = [], []
    monkeypatch.setattr(
        loop,
        "build_model",
        lambda *run, **options: _kept_weakly(build_model(*run, **options), models),
    )
    monkeypatch.setattr(loop, "trim_heap", lambda: released.append(models[-1]() is None))
    run = tiny_run(tmp_path, training__max_steps=1, training__num_reports=1)
    loop.fit(run, tmp_path / "ends")
    assert released == [True]

    def fail(_: object) -> bool:
        raise OSError("disk full")

    with pytest.raises(OSError, match="full"):
        loop.fit(run, tmp_path / "fails", report=fail)
    assert len(released) == 2


def _kept_weakly(model, references):
    """Keep a weak reference to a model, and return the model."""
    references.append(weakref.ref(model))
    return model


def test_journal_records_the_memory_of_a_trial():
    """In each report, from which the trial is rebuilt."""
    events = []

    def write(event, **values):
        events.append({"event": event, **values})

    controller = SweepController(
        space_of({"training.batch_size": {"choice": [40, 80]}}), seed=0, write=write, past=[]
    )
    trial = controller.suggest()
    assert trial is not None
    controller.report(
        trial.name,
        index=1,
        num_reports=2,
        metrics={"context_accuracy": 0.1},
        seconds=1.0,
        memory_bytes=7,
    )
    assert [event["memory_bytes"] for event in events if event["event"] == "report"] == [7]
    assert trials_of(events)[trial.name].reports[0].memory_bytes == 7
