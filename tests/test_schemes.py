"""Names of models: schemes and folders, which of both a name is, and what an unknown one is answered with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.members import ensemble_members, expand, load_saved, saved_path
from raysent.models import load
from raysent.models.schemes import SCHEMES, find_scheme, is_scheme_name, known_forms
from raysent.models.schemes.hash import HashEncoder
from raysent.storage import content_key, safe_name, write_json
from raysent.storage.layout import ENSEMBLE_FILE


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheme that another package may add: encoders with one seed, named by their size and a comment."""
    scheme = SimpleNamespace(
        FORM="fixed:DIM/COMMENT",
        label=lambda rest: f"fixed:{rest}",
        key=lambda rest: content_key(rest.partition("/")[0]),
        load=lambda rest: HashEncoder(int(rest.partition("/")[0])),
    )
    monkeypatch.setattr(
        SCHEMES, "_found", {**SCHEMES._components(), "fixed": SimpleNamespace(value=scheme)}
    )


def test_each_file_of_a_scheme_has_the_name_of_its_prefix():
    """One is looked up by its file alone."""
    files = {
        component.name: component.module.rpartition(".")[2]
        for component in SCHEMES.components()
        if component.package == "raysent"
    }
    assert files == {name: name for name in files}


@pytest.mark.parametrize("prefix", SCHEMES)
def test_scheme_has_the_form_of_one(prefix: str) -> None:
    """A form that begins with the prefix, and three functions."""
    scheme = SCHEMES[prefix]
    assert prefix == scheme.FORM or scheme.FORM.startswith((f"{prefix}:", f"{prefix}[:"))
    assert all(callable(getattr(scheme, name)) for name in ("label", "key", "load"))


@pytest.mark.parametrize(
    "name", ["runs/one", "C:\\models\\one", "D:models", "my:run", "s3://bucket/run", "hash", ""]
)
def test_path_is_no_scheme_whatever_colons_it_has(name: str) -> None:
    """Only a registered prefix makes a scheme."""
    assert not is_scheme_name(name)
    assert find_scheme(name) is None


def test_hash_keeps_its_label_and_its_earlier_key_its_vectors() -> None:
    """Its key says how it reads text; what was saved under the key of before reads as it did then."""
    [member] = expand(["hash:50"])
    assert (member.name, member.path) == ("hash:50", "hash:50")
    assert member.folder == "hash%3A50"
    earlier = load_saved("hash:50", content_key("hash:50"))
    now = load_saved("hash:50", member.key)
    assert earlier is not None
    assert now is not None
    for words, is_alike in (("plain words", True), ("cafe\u0301", False)):
        assert np.array_equal(earlier.encode([words]), now.encode([words])) == is_alike


@pytest.mark.usefixtures("fixed")
def test_scheme_of_another_package_works_like_hash(tmp_path: Path) -> None:
    """Loaded, named, keyed, and kept in an ensemble by its name and not as a path."""
    one, other = expand(["fixed:4/a", "fixed:4/b"])
    assert one.key == other.key
    assert (one.name, one.folder) == ("fixed:4/a", "fixed%3A4%2Fa")
    assert load("fixed:4/a").encode(["word"]).shape == (1, 4)
    assert saved_path("fixed:4/a", tmp_path) == "fixed:4/a"
    write_json(tmp_path / ENSEMBLE_FILE, {"members": ["x"], "paths": {"x": "fixed:4/a"}})
    assert ensemble_members(tmp_path) == ["fixed:4/a"]
    assert known_forms().startswith("bm25, hash:DIM, hf:PATH, middle:PATH, st:PATH")
    assert known_forms().endswith(" or fixed:DIM/COMMENT")


def load_thing(folder: Path) -> HashEncoder:
    """Return the model of a folder of a kind that this test makes up."""
    assert (folder / "thing.json").is_file()
    return HashEncoder(3)


def test_folder_with_a_colon_is_loaded_as_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its prefix is not registered."""
    monkeypatch.setattr("raysent.models.schemes.LOADERS", {"thing.json": "thing"})
    monkeypatch.setattr("raysent.models.schemes.load_point", lambda *_: load_thing)
    (tmp_path / "my:run").mkdir()
    write_json(tmp_path / "my:run" / "thing.json", {})
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(load("my:run").encode(["a"]), load("hash:3").encode(["a"]))


@pytest.mark.parametrize("find", [load, lambda name: expand([name])])
def test_unknown_prefix_names_the_nearest(find: object) -> None:
    """One line with what could have been meant."""
    with pytest.raises(
        ArtifactError,
        match=r"^hsah:50: no such .*, and 'hsah:': unknown scheme; did you mean 'hash'\?; ",
    ):
        find("hsah:50")  # type: ignore[operator]


@pytest.mark.parametrize("name", ["nowhere", "C:/nowhere"])
def test_missing_folder_names_what_can_be_given(name: str) -> None:
    """The forms of the schemes that are known among them."""
    with pytest.raises(
        ArtifactError,
        match=rf"^{name}: no such folder; name a run, .*, an ensemble, bm25, hash:DIM, hf:PATH, middle:PATH, st:PATH",
    ):
        load(name)


def test_broken_scheme_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that cannot be imported is not an unknown name."""
    monkeypatch.setattr(
        SCHEMES, "_broken", {"other": "cannot be loaded from other 1.0: ImportError: no torch"}
    )
    with pytest.raises(
        ArtifactError,
        match=r"no such folder, and 'other:': cannot be loaded from other 1\.0: ImportError",
    ):
        load("other:mini")


@pytest.mark.parametrize("find", [load, lambda name: expand([name])])
@pytest.mark.parametrize("rest", ["", "0", "-3", "five", "1e3", "9" * 5000])
def test_hash_needs_a_size(find: object, rest: str) -> None:
    """One line, whatever its length, before any task is read."""
    with pytest.raises(
        ConfigError,
        match=rf"^hash:{rest[:20]}.{{0,30}}: the size must be a whole number from 1 to 999999",
    ):
        find(f"hash:{rest}")  # type: ignore[operator]


@pytest.mark.parametrize("name", ["a:b", "a/b", "a\\b"])
def test_folder_of_records_has_a_name_that_every_system_allows(name: str) -> None:
    """Colons and both slashes are written as in addresses."""
    assert safe_name(name) in ("a%3Ab", "a%2Fb", "a%5Cb")


def test_hash_encoder_is_its_definition() -> None:
    """The mean of seeded vectors; an empty sentence is a full stop."""
    vectors = load("hash:50").encode(["The cat", "the CAT", "", ".", "cat"])
    assert vectors.dtype == np.float32
    cat = (
        np.random.RandomState(int("d077f244", 16)).uniform(-1, 1, 50).astype(np.float32)
    )  # md5 of "cat"
    np.testing.assert_array_equal(vectors[4], cat)
    np.testing.assert_array_equal(vectors[0], vectors[1])
    np.testing.assert_array_equal(vectors[2], vectors[3])
