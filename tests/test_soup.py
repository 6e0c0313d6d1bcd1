"""Soups: the greedy rule against a slow restatement, which trainings share a start, and where a soup is a candidate."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_bert import write_bert
from test_best import write_reviews
from tiny_run import tiny_run

import raysent as api
from raysent.ensembles import best, read_answers, save_best, soup
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.models import SentenceModel
from raysent.storage.layout import SWEEP_FILE
from raysent.training.loop import fit

CONTRAST = {"objective": {"type": "contrast", "positives": "context"}}
BAG = {"encoder": {"type": "bag", "embedding": {"dim": 6}}}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Five models as of trainings that began with one model, and others."""
    folder = tmp_path_factory.mktemp("soup")
    fit(tiny_run(folder, **BAG, training__max_steps=1), folder / "start")
    from_it = {"initial": str(folder / "start"), "encoder": {}, "training__max_steps": 3}
    fit(tiny_run(folder, **from_it, **CONTRAST), folder / "trained")
    for number in range(5):
        model = SentenceModel.load(folder / "trained")
        generator = torch.Generator().manual_seed(number)
        for value in model.kept_tensors().values():
            value.add_(0.1 * torch.randn(value.shape, generator=generator))
        model.save(folder / f"{number}")
        shutil.copy(folder / "trained" / "run.json", folder / f"{number}")
    fit(tiny_run(folder, **from_it), folder / "two-towers")
    for name in ("scratch", "same"):
        fit(tiny_run(folder, **BAG, **CONTRAST, training__max_steps=1), folder / name)
    bert = str(write_bert(folder / "bert", max_position_embeddings=60))
    for number in range(2):
        values = {
            "encoder": {"type": "pretrained", "path": bert, "dropout": 0.1 * number},
            **CONTRAST,
        }
        fit(
            tiny_run(folder, **values, seed=number, training__max_steps=1),
            folder / f"bert-{number}",
        )
    return folder


def values_of(path):
    """All numbers of a model's encoder."""
    tensors = SentenceModel.load(Path(path)).kept_tensors()
    return np.concatenate(
        [tensors[name].numpy().ravel() for name in sorted(tensors) if "objectives." not in name]
    )


@dataclass(frozen=True)
class Near(Evaluator):
    """The validation score is how near the weights are to a point."""

    point: np.ndarray | None = None

    def records(self, members, tasks=None):
        """One for each member."""
        del tasks
        return {
            one: [SimpleNamespace(validation=-np.linalg.norm(values_of(one.path) - self.point))]
            for one in members
        }


def restated(folders, point):
    """Which trainings the greedy rule takes, and their mean."""
    values = {name: values_of(folder) for name, folder in folders.items()}

    def score(names):
        return -np.sqrt(sum((sum(values[name][i] for name in names) / len(names) - point[i]) ** 2
                            for i in range(len(point))))  # fmt: skip

    taken, *others = sorted(values, key=lambda name: -score([name]))
    taken = [taken]
    for name in others:
        if score([*taken, name]) > score(taken):
            taken = [*taken, name]
    return taken, sum(values[name] for name in taken) / len(taken)


@pytest.mark.parametrize("wanted", [[0, 3], [1, 2, 4], [2]])
def test_soup_is_that_of_the_restatement(place, tmp_path, wanted):
    """Its name says of which trainings it is made, best first; none where no mean is nearer than the best alone."""
    folders = {f"{number}": place / f"{number}" for number in range(5)}
    point = np.mean([values_of(folders[f"{number}"]) for number in wanted], axis=0)
    evaluator = Near(tmp_path / "evaluation", point=point)
    found = soup.save_soup(
        evaluator.records(expand(list(folders.values()))), evaluator, run=tmp_path
    )
    taken, mean = restated(folders, point)
    if len(wanted) == 1:
        assert (found, taken) == (None, ["2"])
        assert not list(tmp_path.glob("soup/*/model.json"))
        return
    member, records = found
    assert member.name == "-".join(["soup", *taken])
    assert {*taken} >= {f"{number}" for number in wanted}
    np.testing.assert_allclose(values_of(member.path), mean, rtol=1e-5, atol=1e-6)
    assert records[0].validation > max(
        -np.linalg.norm(values_of(one) - point) for one in folders.values()
    )
    assert [str(one.parent) for one in tmp_path.glob("soup/*/model.json")] == [member.path]


def test_only_trainings_from_one_start_are_averaged(place):
    """Of one folder's model, or one pretrained folder's, with the same encoders whatever their dropout is."""
    names = ["0", "1", "two-towers", "scratch", "same", "bert-0", "bert-1"]
    start = {name: soup._start_of(expand([place / name])[0]) for name in names}
    assert start["0"] == start["1"] != ""
    assert start["bert-0"] == start["bert-1"] not in ("", start["0"])
    assert start["two-towers"] not in ("", start["0"])
    assert start["scratch"] == start["same"] == ""
    assert soup._start_of(expand(["hash:4"])[0]) == ""


def test_soup_is_a_candidate_of_the_answer(place, tmp_path, monkeypatch):
    """Scored as any model, with the time of one; the answer's folder holds it where it is needed."""
    monkeypatch.setattr(soup, "_validation", lambda records: len(records[0].model))
    task = write_reviews(tmp_path / "reviews.csv", rows=80, signal=0.8)
    run = tmp_path / "run"
    run.mkdir()
    (run / SWEEP_FILE).touch()
    models, evaluator = [place / "0", place / "1"], Evaluator(run / "evaluation", divides=True)
    last = len(models) + len(evaluator.baselines(expand(models), [task]))

    def choose(candidates, *_, **__):
        return next(number for number, one in enumerate(candidates) if one.members == (last,)), None

    monkeypatch.setattr(best, "choose", choose)
    save_best(models, evaluator, run=run, tasks=[task])
    ((folder, answer),) = read_answers(run)
    assert answer.answer.title.endswith("soup-0-1")
    assert "soup-0-1" in (folder / "README.md").read_text()
    (path,) = (run / "soup").glob("1-*")
    np.testing.assert_array_equal(values_of(folder / "members" / "soup-0-1"), values_of(path))
    np.testing.assert_allclose(
        values_of(path), (values_of(place / "0") + values_of(place / "1")) / 2, atol=1e-6
    )
    scores = api.evaluate(
        [path], tasks=[task], baselines=False, output=tmp_path / "scores", progress=False
    )
    assert answer.answer.test == pytest.approx(scores.test.iloc[0])
    assert not (run / "evaluation" / "soup-0-1").exists()
