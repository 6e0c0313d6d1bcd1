"""Downloads from the hub: whole, or refused in one line with nothing left that the next command takes for a model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from backbones import write_sentence_transformer
from hub_server import hub_server
from small_bert import write_bert

from raysent.errors import ArtifactError
from raysent.models import hub as hub_module
from raysent.models import known, load
from raysent.models.hub import cached_folder, first_lacking, hub_answers
from raysent.models.known import KnownEncoder, download, find_encoder, find_local
from raysent.storage import file_sha256

constants = pytest.importorskip("huggingface_hub.constants")
pytest.importorskip("sentence_transformers", reason="pip install raysent[pretrained]")

TEXT = ["A cat runs.", "", "The dog after the cat"]
NAME = "owner/tiny-en"
WEIGHTS = "model.safetensors"
# What the folder of a real model has beside its own files.
BESIDE = {
    "train_script.py": b"raise RuntimeError('run')\n",
    "data_config.json": b"[]\n",
    "pytorch_model.bin": b"the same weights in another form",
    "tf_model.h5": b"and in another one",
    "onnx/model.onnx": b"and another",
    "openvino/openvino_model.xml": b"<net/>",
    ".gitattributes": b"*.bin filter=lfs\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small encoder as the hub has it, with a dense layer, whose weights are a file of their own."""
    base = tmp_path_factory.mktemp("encoders")
    made = write_sentence_transformer(
        base / "tiny-en", write_bert(base / "bert"), dense=8, normalize=True
    )
    for path, content in BESIDE.items():
        (made / path).parent.mkdir(exist_ok=True)
        (made / path).write_bytes(content)
    return made


@pytest.fixture
def hub(folder, tmp_path, monkeypatch):
    """A hub that has the encoder, which this process asks; its cache is empty."""
    with hub_server(owner__tiny_en=folder) as server:
        server.models = {NAME: folder}
        use_hub(server.url, tmp_path / "cache", monkeypatch)
        yield server


def use_hub(url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process ask a hub, not wait before it tries again, and keep what it gets in a cache."""
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    without_waits = SimpleNamespace(sleep=lambda _: None, time=time.time)
    monkeypatch.setattr("huggingface_hub.file_download.time", without_waits)
    monkeypatch.setattr(hub_module, "ANSWER_S", 1.0)
    monkeypatch.setenv("RAYSENT_CACHE", str(cache / "raysent"))


@pytest.fixture
def encoder(folder, monkeypatch):
    """The same encoder as the only one that is known, by its name alone."""
    made = KnownEncoder(name=NAME, languages=["en"], license="mit", megabytes=1, dimensions=8)
    monkeypatch.setattr(known, "known_encoders", lambda: (made,))
    return made


def refusal(name: str = NAME) -> str:
    """Return the line by which a name is refused."""
    with pytest.raises(ArtifactError) as error:
        find_encoder(name)
    line = str(error.value)
    assert "\n" not in line
    return line


def check_nothing_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that a command without a network takes nothing in the cache for the model."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for has_weights in (False, True):
        assert cached_folder(NAME, None, has_weights=has_weights) is None
    assert "HF_HUB_OFFLINE is set" in refusal()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def test_whole_download_is_announced_and_recorded(hub, encoder, folder, tmp_path, monkeypatch):
    """A line before it, no weights twice, none of other libraries, the hash and the commit; then without the hub."""
    lines: list[str] = []
    assert hub_answers()
    files = download(encoder, say=lines.append)
    assert lines == [f"downloading {NAME} from the hub: 1 MB, licence mit"]
    assert files.revision == hub.commit(NAME)
    fetched = hub.downloaded()
    assert set(BESIDE) & set(fetched) == {"train_script.py", "data_config.json"}
    assert fetched[-2:] == ["modules.json", "config.json"]
    assert fetched[0].endswith(WEIGHTS)
    records = json.loads((tmp_path / "cache/raysent/encoders.json").read_text())
    digest = file_sha256(folder / WEIGHTS)
    assert records[NAME] == {"sha256": digest, "revision": hub.commit(NAME)}

    hub.requests.clear()
    assert find_encoder(f"{NAME}@{files.revision}") == files
    assert find_local(encoder) == files
    # A script beside a model, which nothing names, is no code of the model's.
    vectors = load(NAME).encode(TEXT)
    np.testing.assert_array_equal(vectors, load(f"st:{folder}").encode(TEXT))
    assert hub.requests == []
    # A copy is recognised by the hash, whatever it is called.
    monkeypatch.setenv("RAYSENT_MODELS", str(shutil.copytree(folder, tmp_path / "copies/any")))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "none"))
    copied = find_local(encoder)
    assert copied is not None
    assert copied.folder == tmp_path / "copies/any"


def test_description_alone_is_fetched_without_weights(hub):
    """For a plan; the weights come when the model is read."""
    files = find_encoder(NAME, has_weights=False)
    assert not list(files.folder.rglob("*.safetensors"))
    assert cached_folder(NAME, None, has_weights=True) is None
    assert find_encoder(NAME).folder == files.folder
    assert (files.folder / WEIGHTS).is_file()
    assert (files.folder / "2_Dense" / WEIGHTS).is_file()


def test_line_before_a_download_is_printed_by_every_command(hub, capsys):
    """Of a model that is named too, with its size and its licence, or that there is none."""
    hub.license = None
    load(NAME)
    assert capsys.readouterr().err.startswith(
        f"downloading {NAME} from the hub: 1 MB, no licence named\n"
    )


@pytest.mark.parametrize("path", [WEIGHTS, f"2_Dense/{WEIGHTS}", "tokenizer.json", "config.json"])
def test_connection_that_is_cut_off_leaves_nothing(hub, folder, path, monkeypatch):
    """In the middle of any file, for good; the same command again takes what is there, and fetches the rest."""
    hub.cut[path] = (folder / path).stat().st_size // 2
    assert "cut off" in refusal() or "cannot be reached" in refusal()
    check_nothing_is_believed(monkeypatch)
    hub.cut, hub.is_gone = {}, False
    before = hub.downloaded()
    hub.requests.clear()
    files = find_encoder(NAME)
    assert first_lacking(files.folder, has_weights=True) is None
    assert set(before) & set(hub.downloaded()) == {path}
    np.testing.assert_array_equal(load(NAME).encode(TEXT), load(f"st:{folder}").encode(TEXT))


def test_file_that_comes_damaged_is_removed(hub, folder, monkeypatch):
    """Of the same size, so that only its hash says so; large files by SHA-256, small ones by Git's."""
    for path in (WEIGHTS, "tokenizer.json"):
        content = bytearray((folder / path).read_bytes())
        content[-2] ^= 1
        hub.altered = {path: bytes(content)}
        assert f"{path} came damaged, and was removed; give the same command again" in refusal()
        check_nothing_is_believed(monkeypatch)
    hub.altered = {}
    assert find_encoder(NAME).revision == hub.commit(NAME)


def test_file_that_is_not_the_known_one_is_refused(hub, encoder, folder, tmp_path, monkeypatch):
    """By a line with the way out: a commit that is named, or the folder removed; a right copy elsewhere is taken."""
    wrong = encoder.model_copy(update={"files": {WEIGHTS: "0" * 64}})
    monkeypatch.setattr(known, "known_encoders", lambda: (wrong,))
    for _ in range(2):  # what is in the cache is no more believed
        line = refusal()
        assert f"{NAME}: {WEIGHTS} in " in line
        assert f"take the files as they are by {NAME}@COMMIT" in line
    with pytest.raises(
        ArtifactError, match=r"is not the one that is known by its SHA-256, 000000000000…;"
    ):
        download(wrong, say=lambda _: None)
    assert find_local(wrong) is None
    assert find_encoder(f"{NAME}@{hub.commit(NAME)}").revision == hub.commit(NAME)
    other = write_sentence_transformer(
        tmp_path / "right", write_bert(tmp_path / "bert", seed=3), pooling="mean"
    )
    right = wrong.model_copy(update={"files": {WEIGHTS: file_sha256(other / WEIGHTS)}})
    monkeypatch.setattr(known, "known_encoders", lambda: (right,))
    monkeypatch.setenv("RAYSENT_MODELS", str(other))
    assert find_encoder(NAME).folder == other


def test_weights_that_changed_in_the_cache_are_refused(hub, encoder):
    """After the first download the same commit has the same hash."""
    files = download(encoder, say=lambda _: None)
    weights = (files.folder / WEIGHTS).resolve()
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(1, 1))
    assert find_local(encoder) is None
    # With the hub at hand it is fetched again.
    assert find_encoder(NAME).folder == files.folder
    assert find_local(encoder) == files


def test_full_disk_is_one_line(hub, monkeypatch):
    """Before the first byte where the size says so; and in the middle of a file."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 100))
    assert "and 0 MB are free in " in refusal()
    assert hub.downloaded() == []
    monkeypatch.undo()


FULL = """
import resource, signal, sys
import raysent
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
try:
    raysent.load("owner/tiny-en")
except raysent.RaysentError as error:
    print(error)
"""


def test_disk_that_fills_up_in_the_middle_is_one_line(hub, folder, tmp_path, monkeypatch):
    """In a process of its own, whose files may have 4,000 bytes; nothing is left of the file."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "0",
    }
    ended = subprocess.run(
        [sys.executable, "-c", FULL], env=environment, capture_output=True, text=True, check=True
    )
    (line,) = ended.stdout.splitlines()
    assert "the disk is full; free some space or name another folder" in line
    assert (folder / WEIGHTS).stat().st_size > 4000
    assert not list((tmp_path / "cache").rglob("*.incomplete"))
    check_nothing_is_believed(monkeypatch)


def test_without_a_network_it_is_one_line(hub, tmp_path, monkeypatch):
    """Switched off, refused, or silent: within seconds, with what to do; a name that is not there, and a revision."""
    assert "the hub has none of this name, or it is private" in refusal("owner/other")
    assert "the hub has no revision 'v9' of it" in refusal(f"{NAME}@v9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not hub_answers()
    assert "HF_HUB_OFFLINE is set" in refusal()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.hangs = True
    began = time.monotonic()
    assert f"{hub.url} does not answer in time" in refusal()
    assert not hub_answers()
    assert time.monotonic() - began < 20
    with hub_server() as other:
        closed = other.url
    use_hub(closed, tmp_path / "cache", monkeypatch)
    assert f"{closed} cannot be reached" in refusal()
    assert not hub_answers()


def test_large_model_is_downloaded_by_its_name_alone(hub, encoder):
    """What was not named is never above the limit, whatever was thought of its size."""
    hub.sizes = {WEIGHTS: 501_000_000}
    with pytest.raises(ArtifactError) as error:
        download(encoder, say=lambda _: None)
    assert str(error.value) == (
        f"tiny-en: it has 501 MB, and more than 500 are downloaded by name alone: --with {NAME}"
    )
    assert hub.downloaded() == []
    hub.sizes = {}
    assert find_encoder("tiny-en").known is encoder


def test_parts_that_another_library_left_are_completed(hub, encoder, monkeypatch):
    """A transformer without its modules would be read with other vectors; offline it is said to be missing."""
    from huggingface_hub import hf_hub_download

    for path in ("config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS):
        hf_hub_download(NAME, path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find_local(encoder) is None
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.requests.clear()
    assert (find_encoder(NAME).folder / "modules.json").is_file()
    assert WEIGHTS not in hub.downloaded()


LACKING = {
    "weights": ("model.safetensors", "model.safetensors"),
    "weights of a dense layer": ("2_Dense/model.safetensors", "2_Dense/model.safetensors"),
    "settings of pooling": ("1_Pooling/config.json", "1_Pooling/config.json"),
    "tokenizer": ("tokenizer.json", "tokenizer.json"),
}


@pytest.mark.parametrize("part", LACKING)
def test_folder_says_what_it_lacks(folder, part, tmp_path):
    """By its own description, weights in several files among it."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    removed, lacking = LACKING[part]
    (copy / "pytorch_model.bin").unlink()
    (copy / "vocab.txt").unlink(missing_ok=True)
    assert first_lacking(copy, has_weights=True) is None
    (copy / removed).unlink()
    assert first_lacking(copy, has_weights=True) == lacking
    if part == "weights":
        index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
        (copy / "model.safetensors.index.json").write_text(json.dumps(index))
        (copy / "model-1.safetensors").touch()
        assert first_lacking(copy, has_weights=True) == "model-2.safetensors"
        assert first_lacking(copy, has_weights=False) is None


def test_command_downloads_and_needs_the_hub_once(hub, tmp_path, monkeypatch, raysent):
    """A line before it, then vectors; and again without a network, by the short name too."""
    ended = raysent("encode", NAME, "-o", "a.npy", stdin=b"a cat\n")
    assert ended.code == 0
    assert f"downloading {NAME} from the hub: 1 MB, licence mit" in ended.err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    again = raysent("encode", f"st:{NAME}@{hub.commit(NAME)}", "-o", "b.npy", stdin=b"a cat\n")
    assert again.code == 0
    assert "downloading" not in again.err
    np.testing.assert_array_equal(np.load("b.npy"), np.load("a.npy"))
