"""Models from names: what a name stands for, short names, hashes of content, and what models cost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from model_folders import write_model
from object_store import BUCKET

from raysent.errors import ArtifactError
from raysent.evaluation import members as module
from raysent.evaluation.members import (
    Member,
    ensemble_members,
    expand,
    is_model,
    model_folder,
    model_key,
    saved_path,
)
from raysent.evaluation.records import Costs, costs_of
from raysent.models.schemes import SCHEMES
from raysent.models.schemes.hash import HashEncoder
from raysent.storage import safe_name, save_tensors, write_json

INCOMPLETE = "no such file; the model is incomplete, restore it or train again"


def write_trial(trial: Path, *, model: str = ".", values: bytes | None = None) -> None:
    """Write a trial that has ended with a model."""
    write_model(trial / model, values)
    (trial / "outcome.json").write_text("{}")


def write_ensemble(folder: Path, paths: dict[str, str]) -> Path:
    """Write the file of an ensemble of these members."""
    write_json(folder / "ensemble.json", {"members": list(paths), "paths": paths})
    return folder


def write_composition(folder: Path, *names: str) -> Path:
    """Write a composition of models that differ in their names alone."""
    for name in names:
        write_model(folder / "members" / name)
        (folder / "members" / name / "vocabulary.txt").write_text(name)
    write_json(folder / "composition.json", {"kind": "raysent composition", "members": list(names)})
    return folder


def test_expand_replaces_a_sweep_by_its_trained_trials(tmp_path):
    """Trials without a model are left out; the model may be in `model/`."""
    write_trial(tmp_path / "sweep/trials/0001")
    write_trial(tmp_path / "sweep/trials/0002", model="model", values=b"other")
    (tmp_path / "sweep/trials/0003").mkdir()
    members = expand([tmp_path / "sweep", "hash:8"])
    assert [member.name for member in members] == ["0001", "0002", "hash:8"]
    assert len({member.key for member in members}) == 3


def test_expand_gives_trials_of_two_sweeps_different_names(tmp_path):
    """The sweep's name comes before a trial's if two have the same; a model named twice is taken once."""
    for sweep in ("a", "b"):
        write_trial(tmp_path / sweep / "trials/1")
    members = expand([tmp_path / "a", tmp_path / "b", tmp_path / "a" / "trials/1"])
    assert [member.name for member in members] == ["a-1", "b-1"]


def test_expand_rejects_an_incomplete_model(tmp_path):
    """The error names the missing file."""
    (write_model(tmp_path / "model") / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match=rf"model.safetensors: {INCOMPLETE}$"):
        expand([tmp_path / "model"])


def test_expand_needs_a_model():
    """The error names what counts as a model."""
    with pytest.raises(
        ArtifactError,
        match=r"^MODEL: needs at least one run or model, such as a folder, bm25, hash:DIM, .*; given none$",
    ):
        expand([])


def test_expand_keeps_ensembles_and_compositions_whole(tmp_path):
    """Each is one model, as is a model itself; a name given twice is taken once."""
    both = write_composition(tmp_path / "both", "a", "b")
    ensemble = write_ensemble(tmp_path / "ensemble", {"hash:8": "hash:8"})
    model = write_model(tmp_path / "model")
    members = expand([both, ensemble, str(model), model, "hash:8", "hash:8"])
    assert [member.path for member in members] == [str(both), str(ensemble), str(model), "hash:8"]
    assert [member.name for member in members] == ["both", "ensemble", "model", "hash:8"]


def test_expand_takes_trials_in_the_order_of_their_names(tmp_path):
    """Whatever order the file system gives."""
    for name in ("2", "10", "1"):
        write_trial(tmp_path / "sweep/trials" / name)
    assert [member.name for member in expand([tmp_path / "sweep"])] == ["1", "10", "2"]


def test_expand_takes_encoders_in_memory(tmp_path):
    """One that was loaded stands for its folder; of others each has its own key, and is kept."""
    model = write_model(tmp_path / "model")
    loaded, one, other = HashEncoder(4), HashEncoder(4), HashEncoder(8)
    loaded.source = str(model)
    members = expand([loaded, one, other, one, model])
    assert members[0] == Member("model", str(model), model_key(str(model)))
    assert members[0].encoder is None
    assert [(member.name, member.path) for member in members[1:]] == [
        ("HashEncoder", "HashEncoder"),
        ("HashEncoder-2", "HashEncoder-2"),
    ]
    assert [member.encoder for member in members[1:]] == [one, other]
    assert len({member.key for member in members}) == 3
    assert members[1].key != expand([one])[0].key


def test_expand_opens_what_an_encoder_was_loaded_from(tmp_path, bucket):
    """Its address in a bucket is no local path; the name of the folder there gives the same member."""
    model = write_model(tmp_path / "model")
    for path in (path for path in model.iterdir() if path.is_file()):
        bucket.upload_file(str(path), BUCKET, f"m/{path.name}")
    loaded = HashEncoder(4)
    loaded.source = f"s3://{BUCKET}/m"
    assert expand([loaded]) == expand([loaded.source])


def test_expand_takes_encoders_that_cannot_be_hashed():
    """Such as those of a plain dataclass; each is still taken once."""

    class Unhashable(HashEncoder):
        __hash__ = None

    one = Unhashable(4)
    assert [member.encoder for member in expand([one, "hash:8", one])] == [one, None]


def test_expand_gives_models_of_one_name_that_of_the_folder_above(tmp_path, monkeypatch):
    """Numbered where that is equal too; what a scheme makes of a model has its name, and others keep the short one."""
    for folder in ("a/runs/x", "b/runs/x", "b/other/x", "c/y"):
        write_model(tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    names = [
        "a/runs/x",
        "b/runs/x",
        "b/other/x",
        "c/y",
        "words:a/runs/x",
        "words:b/runs/x",
        "words:b/other/x",
    ]
    assert [member.name for member in expand(names)] == [
        "runs-x",
        "runs-x-2",
        "other-x",
        "y",
        "words:runs-x",
        "words:runs-x-2",
        "words:other-x",
    ]
    monkeypatch.chdir("c/y")
    assert expand(["."])[0].name == "y"


def test_folder_name_has_no_sign_that_a_system_refuses_and_is_of_one_name():
    """Colons and slashes are written as in addresses, and so is the sign of that; everything else stays."""
    assert safe_name("words:a/B\\c-d.e") == "words%3Aa%2FB%5Cc-d.e"
    assert Member("hash:8", "hash:8", "key").folder == "hash%3A8"
    names = [*("hash:8", "hash-8", "hash%3A8", "hash/8", "hash%8"), *("a:-b", "a-:b", "a--b")]
    assert len({safe_name(name) for name in names}) == len(names)


def test_numbered_names_are_not_those_of_other_members(tmp_path, monkeypatch):
    """The second `x` is `x-2`, so the folder of that name is another one."""
    for folder in ("a/a/x", "b/a/x", "a-x-2"):
        write_model(tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    assert [member.name for member in expand(["a/a/x", "b/a/x", "a-x-2"])] == [
        "a-x",
        "a-x-2",
        "a-x-2-2",
    ]


def test_is_model_knows_models_sweeps_ensembles_and_schemes(tmp_path):
    """By the files alone; a folder of something else is none of them."""
    (tmp_path / "sweep/trials").mkdir(parents=True)
    (tmp_path / "other/model").mkdir(parents=True)
    ensemble = write_ensemble(tmp_path / "ensemble", {"hash:8": "hash:8"})
    trial = write_model(tmp_path / "trial/model").parent
    for name in (
        "hash:8",
        str(tmp_path / "sweep"),
        str(ensemble),
        str(trial),
        str(trial / "model"),
    ):
        assert is_model(name), name
    for name in ("other", "nothing"):
        assert not is_model(str(tmp_path / name)), name
    assert model_folder(trial) == trial / "model"
    assert model_folder(trial / "model") == trial / "model"
    assert model_folder(tmp_path / "other") is None


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "vocabulary.txt"])
def test_model_key_depends_on_the_content_of_each_file(tmp_path, name):
    """And on nothing else: a copy has the same key."""
    model = write_model(tmp_path / "model")
    copy = shutil.copytree(model, tmp_path / "copy")
    (copy / "outcome.json").write_text("{}")
    assert model_key(str(copy)) == model_key(str(model))
    (copy / name).write_bytes((copy / name).read_bytes() + b" ")
    assert model_key(str(copy)) != model_key(str(model))


def test_model_key_of_models_together_depends_on_each_and_their_order(tmp_path):
    """Of a composition, of an ensemble, and of a scheme."""
    assert model_key("hash:8") == SCHEMES["hash"].key("8") != model_key("hash:16")
    ensembles = [["hash:8", "hash:16"], ["hash:16", "hash:8"], ["hash:8"], ["hash:8", "hash:32"]]
    keys = {
        model_key(str(write_ensemble(tmp_path / str(place), {name: name for name in names})))
        for place, names in enumerate(ensembles)
    }
    assert len(keys) == 4
    compositions = [("a", "b"), ("b", "a"), ("a",), ("a", "c")]
    keys |= {
        model_key(str(write_composition(tmp_path / "-".join(["of", *names]), *names)))
        for names in compositions
    }
    assert len(keys) == 8


@pytest.mark.parametrize(
    "about", [[], {"members": ["a"]}, {"members": ["a"], "paths": {}}, {"paths": {}}]
)
def test_ensemble_members_refuses_another_file(tmp_path, about):
    """With the file's name and what to do."""
    write_json(tmp_path / "ensemble.json", about)
    message = f"^{tmp_path}/ensemble.json: not an ensemble of this version; make it again$"
    with pytest.raises(ArtifactError, match=message):
        ensemble_members(tmp_path)


def test_ensemble_members_are_brought_up_to_date(tmp_path, monkeypatch):
    """An address is opened; a folder beside the ensemble is refreshed, one inside came with the ensemble."""
    refreshed = []
    monkeypatch.setattr(module, "refresh", refreshed.append)
    monkeypatch.setattr(
        module, "open_folder", lambda name: Path("/opened") / name.removeprefix("s3://")
    )
    folder = tmp_path / "runs/ensemble"
    paths = {"inside": "members/a", "beside": "../a", "remote": "s3://bucket/a", "hash:8": "hash:8"}
    assert ensemble_members(write_ensemble(folder, paths)) == [
        str(folder / "members/a"),
        str(tmp_path / "runs/a"),
        "/opened/bucket/a",
        "hash:8",
    ]
    assert refreshed == [tmp_path / "runs/a"]


def test_saved_path_is_relative_to_members_inside_or_beside(tmp_path):
    """A member elsewhere has an absolute path, so that the ensemble's folder alone can be moved."""
    folder = tmp_path / "runs/ensemble"
    paths = {
        "inside": folder / "trials/0",
        "beside": tmp_path / "runs/a",
        "elsewhere": tmp_path / "other/a",
    }
    saved = {name: saved_path(str(path), folder) for name, path in paths.items()}
    assert saved == {
        "inside": "trials/0",
        "beside": "../a",
        "elsewhere": str(paths["elsewhere"].resolve()),
    }
    assert saved_path("hash:8", folder) == "hash:8"
    folder.mkdir(parents=True)
    about = {"members": [*saved, "hash:8"], "paths": {**saved, "hash:8": "hash:8"}}
    (folder / "ensemble.json").write_text(json.dumps(about))
    assert ensemble_members(folder) == [*(str(path.resolve()) for path in paths.values()), "hash:8"]


def test_costs_are_counted_in_the_models_file(tmp_path):
    """Three parameters; nothing without a model."""
    model = write_model(tmp_path / "model")
    assert costs_of(model) == Costs(3, sum(file.stat().st_size for file in model.iterdir()))
    assert costs_of(tmp_path / "nothing") == Costs()


def test_costs_of_a_model_count_its_own_files_and_hours(tmp_path):
    """Weights, configuration and vocabulary; hours from the folder of the model, or of the run that holds it."""
    model = write_model(tmp_path / "trial/model")
    save_tensors(model / "model.safetensors", {"a": torch.ones(2, 3), "b": torch.ones(())})
    (model / "vocabulary.txt").write_text("abc")
    num_bytes = (model / "model.safetensors").stat().st_size + 2 + 3
    (model / "model.parts").mkdir()
    (model / "notes.txt").write_text("not the model")
    assert costs_of(model.parent) == Costs(7, num_bytes, None)
    write_json(model.parent / "outcome.json", {"seconds": 9000})
    assert costs_of(model.parent) == costs_of(model) == Costs(7, num_bytes, 2.5)
    write_json(model / "outcome.json", {"seconds": 1800.0})
    assert costs_of(model.parent) == Costs(7, num_bytes, 0.5)
    (model / "model.safetensors").unlink()
    assert costs_of(model.parent) == Costs(None, 5, 0.5)


@pytest.mark.parametrize("outcome", [[], {}, {"seconds": None}, {"seconds": "9000"}])
def test_costs_of_a_model_have_no_hours_without_seconds(tmp_path, outcome):
    """An outcome of another kind is no error: the hours are unknown."""
    model = write_model(tmp_path / "model")
    write_json(model / "outcome.json", outcome)
    assert costs_of(model).training_hours is None


def test_costs_of_models_together_are_their_sum(tmp_path):
    """Of an ensemble and of a composition; what is unknown for one is unknown for all."""
    both = write_composition(tmp_path / "both", "aa", "b")
    one, other = both / "members/aa", both / "members/b"
    ensemble = write_ensemble(
        tmp_path / "ensemble", {"aa": "../both/members/aa", "b": "../both/members/b"}
    )
    total = costs_of(one).num_bytes + costs_of(other).num_bytes
    assert costs_of(one).num_bytes == costs_of(other).num_bytes + 1
    write_json(one / "outcome.json", {"seconds": 3600.0})
    assert costs_of(both) == costs_of(ensemble) == Costs(6, total, None)
    write_json(other / "outcome.json", {"seconds": 1800.0})
    assert costs_of(both) == costs_of(ensemble) == Costs(6, total, 1.5)
    assert Costs(1, None, 2.0) + Costs(3, 4, None) == Costs(4, None, None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        (100).to_bytes(8, "little") + b'{"a": {"shape": [2',
        (2).to_bytes(8, "little") + b"[]",
        (8).to_bytes(8, "little") + b'{"a": 3}',
        (9).to_bytes(8, "little") + b'{"a": {}}',
    ],
    ids=["empty", "cut", "list", "number", "no shape"],
)
def test_costs_of_a_damaged_file_are_an_error(tmp_path, content):
    """A file whose header is no table of shapes, with its name and what to do."""
    model = write_model(tmp_path / "model", content)
    message = (
        f"^{model}/model.safetensors: truncated or not safetensors .*; restore it or train again$"
    )
    with pytest.raises(ArtifactError, match=message):
        costs_of(model)


def test_costs_leave_out_the_metadata_of_the_file(tmp_path):
    """A file of another program may have texts beside its tensors."""
    tensors = {"a": {"dtype": "F32", "shape": [5, 2], "data_offsets": [0, 40]}}
    tensors |= {"b": {"dtype": "F32", "shape": [], "data_offsets": [40, 44]}}
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    model = write_model(tmp_path / "model", len(header).to_bytes(8, "little") + header + bytes(44))
    assert costs_of(model).num_parameters == 11


@pytest.mark.parametrize("old", ["/runs-gone/a/model", "/tiny-gone"])
def test_member_that_was_moved_beside_what_was_saved_is_found_by_the_end_of_its_path(tmp_path, old):
    """The whole old path counts, its first folder too."""
    place = tmp_path / "moved" / old.removeprefix("/")
    write_model(place)
    saved = tmp_path / "moved/saved/both"
    saved.mkdir(parents=True)
    key = model_key(str(place))
    assert module._moved(old, key, saved) == str(place)
    assert module._moved(old, "another key", saved) == old
