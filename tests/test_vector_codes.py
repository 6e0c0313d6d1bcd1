"""Codes of a file of vectors: similarity, saved codes, the command, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from object_store import BUCKET, keys
from reference import hamming

from raysent import binarize, encode_corpus, evaluate
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.models.codes import CODES, build_code
from raysent.models.vector_codes import VectorCode, load_code, read_vectors, rotate
from raysent.pipeline.vectors import encode_file


def clustered_vectors(rows: int = 400, dim: int = 24) -> np.ndarray:
    """Return vectors of a few hidden directions."""
    generator = np.random.default_rng(0)
    return (
        generator.standard_normal((rows, 8)) @ generator.standard_normal((8, dim)) + 0.5
    ).astype(np.float32)


def test_near_vectors_have_near_codes(tmp_path):
    """A vector's code is nearest to that of the same vector with little noise; a saved code gives the same bytes."""
    vectors = clustered_vectors()
    code, kept = rotate(vectors, bits=20)
    assert kept > 0.8
    codes = code.encode_packed(vectors)
    moved = code.encode_packed(vectors[:50] + 1e-4)
    assert (hamming(moved, codes).argmin(axis=1) == np.arange(50)).mean() > 0.8
    code.save(tmp_path / "kept")
    np.testing.assert_array_equal(load_code(tmp_path / "kept").encode_packed(vectors), codes)


def test_a_seed_gives_the_same_rotation_and_another_one_another():
    """So that the codes of two files are comparable where the first is there no more."""
    vectors = clustered_vectors()
    codes = [rotate(vectors, seed=seed)[0].encode_packed(vectors) for seed in (3, 3, 4)]
    np.testing.assert_array_equal(codes[0], codes[1])
    assert (codes[0] != codes[2]).any()


def test_rotation_is_of_rows_that_do_not_measure_it():
    """What is kept is measured on a twentieth of the rows; another vector there leaves the code as it is."""
    vectors = clustered_vectors()
    held_out = np.random.default_rng(0).permutation(len(vectors))[: len(vectors) // 20]
    code, kept = rotate(vectors)
    vectors[held_out] = vectors[held_out][:, ::-1]
    other, kept_of_others = rotate(vectors)
    np.testing.assert_array_equal(other.encode_packed(vectors), code.encode_packed(vectors))
    assert kept != kept_of_others


def test_code_without_a_number_of_bits_has_one_for_each_number():
    """At most the paper's 2,048."""
    code, _ = rotate(clustered_vectors())
    assert code.num_bits == 24
    assert code.config.num_bits(4096) == 2048


@pytest.mark.parametrize("method", sorted(CODES))
def test_saved_codes_of_earlier_versions_are_read(method, tmp_path):
    """Whatever their method; settings of a training stand beside it there."""
    vectors = clustered_vectors()
    config = CODES[method].Config.examples()[0]
    code = build_code(config, dim=24, generator=torch.Generator().manual_seed(1))
    code.fit(torch.from_numpy(vectors))
    VectorCode(config, 24, code).save(tmp_path)
    about = json.loads((tmp_path / "code.json").read_text())
    trained = {"objective": {"type": "reconstruction"}, "batch_size": 64, "epochs": 1, "seed": 0}
    about["config"] = {**trained, **about["config"]}
    del about["digest"]
    (tmp_path / "code.json").write_text(json.dumps(about))
    bits = (code(torch.from_numpy(vectors)) > 0).numpy()
    read = load_code(tmp_path).encode_packed(vectors)
    np.testing.assert_array_equal(np.unpackbits(read, axis=1, count=config.num_bits(24)), bits)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (
            np.ones(3, dtype=np.float32),
            r"vectors: must be numbers \[rows, dim\], neither size 0; given float32 \[3\]",
        ),
        (
            np.ones((100, 4), dtype=np.int64),
            r"must be numbers \[rows, dim\].*given int64 \[100, 4\]",
        ),
        (
            np.full((100, 4), np.nan, dtype=np.float32),
            "must be finite; given NaN or infinity between rows 0 and 8192",
        ),
        (
            clustered_vectors(99),
            "must have at least 100 rows to fit and measure a code; given 99",
        ),
    ],
)
def test_invalid_vectors_raise_one_clear_error(vectors, message):
    """What must hold, and what was given."""
    with pytest.raises(DataError, match=message):
        rotate(vectors)


def test_invalid_codes_raise_one_clear_error(tmp_path):
    """No bits, vectors of another size, a folder of another kind."""
    with pytest.raises(ConfigError, match="^bits: must be at least 1; given 0$"):
        rotate(clustered_vectors(), bits=0)
    code, _ = rotate(clustered_vectors(), bits=20)
    with pytest.raises(DataError, match="must have 24 numbers a row, as the code does; given 25"):
        code.encode_packed(clustered_vectors(dim=25))
    code.save(tmp_path)
    (tmp_path / "code.json").write_text(
        '{"kind": "raysent code", "dim": 12, "config": {"code": {"type": "threshold"}}}'
    )
    with pytest.raises(ArtifactError, match="changed or of another version"):
        load_code(tmp_path)


def test_a_code_whose_numbers_have_changed_is_refused(tmp_path):
    """One bit of a weight is another code; nothing else would show it."""
    code, _ = rotate(clustered_vectors(100), bits=8)
    code.save(tmp_path)
    path = tmp_path / "code.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ArtifactError, match="code.safetensors: changed since the code was saved"):
        load_code(tmp_path)


def test_binarize_writes_codes_and_uses_a_saved_one(raysent):
    """The command reports what the code keeps; another file gets the same code; errors are one line."""
    np.save("vectors.npy", clustered_vectors())
    arguments = ("binarize", "vectors.npy", "-o", "codes.npy", "--set", "bits=20")
    about = json.loads(raysent(*arguments, "--keep", "kept", "--json").out)
    assert (about["rows"], about["bits"]) == (400, 20)
    assert about["similarity_kept"] > 0.8
    assert np.load("codes.npy").shape == (400, 3)
    again = raysent("binarize", "vectors.npy", "-o", "again.npy", "--use", "kept")
    assert "400 codes of 20 bits" in again.out
    np.testing.assert_array_equal(np.load("again.npy"), np.load("codes.npy"))
    np.savez("vectors.npz", vectors=np.load("vectors.npy"))  # as `raysent encode` writes it
    raysent("binarize", "vectors.npz", "-o", "archive.npy", "--use", "kept")
    np.testing.assert_array_equal(np.load("archive.npy"), np.load("codes.npy"))
    code = json.loads(Path("kept/code.json").read_text())["config"]["code"]
    assert (code["type"], code["distribution"], code["whiten"]) == (
        "random_projection",
        "rotation",
        0.25,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "method=pca"), "error: --set method=pca: unknown argument; known: bits"),
        (("--set", "bit=8"), "did you mean 'bits'?"),
        (("--set", "bits=many"), "error: --set bits=many: must be a valid integer"),
        (("--use", "nowhere"), "nowhere"),
        (("--use", "kept", "--seed", "1"), "use: must not stand beside bits or seed"),
        (("--set", "seed=1"), "error: --set seed=1: has an option of its own; write --seed 1"),
    ],
)
def test_wrong_settings_of_binarize_are_one_line(raysent, options, message):
    """A method is no setting: codes that are trained are part of models."""
    np.save("vectors.npy", clustered_vectors())
    ran = raysent("binarize", "vectors.npy", "-o", "codes.npy", *options)
    assert ran.code == 2
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_files_that_hold_no_vectors_are_refused(raysent):
    """Missing, empty, or an archive of something else."""
    assert "no such file" in raysent("binarize", "nothing.npy", "-o", "codes.npy").err
    Path("empty.npy").touch()
    ran = raysent("binarize", "empty.npy", "-o", "codes.npy")
    assert (ran.code, ran.err.count("empty.npy: must be a .npy file of numbers")) == (2, 1)
    np.savez("other.npz", other=np.zeros(3))
    with pytest.raises(
        DataError,
        match=r"^other\.npz: must be a \.npy file of numbers \(.*vectors.*\); write it again$",
    ):
        read_vectors(Path("other.npz"))


def test_files_of_vectors_and_codes_go_into_the_bucket(tmp_path, bucket, monkeypatch):
    """No local folder `s3:` is made."""
    monkeypatch.chdir(tmp_path)
    np.save("v.npy", clustered_vectors())
    Path("text.txt").write_text("one line\n")
    binarize("v.npy", output=f"s3://{BUCKET}/codes.npy")
    encode_file("hash:10", "text.txt", output=f"s3://{BUCKET}/x.npy", progress=False)
    assert set(keys(bucket)) == {"codes.npy", "x.npy"}
    assert not Path("s3:").exists()


def test_settings_beside_a_code_that_is_given_are_refused():
    """They would be ignored."""
    with pytest.raises(ConfigError, match="^use: must not stand beside bits or seed"):
        binarize("v.npy", use="code", bits=64)


def test_processes_are_at_least_one(tmp_path):
    """0 is not the default."""
    with pytest.raises(
        ConfigError, match="^processes: must be a whole number of at least 1; given 0$"
    ):
        encode_file("hash:10", None, output=tmp_path / "x.npy", processes=0)
    with pytest.raises(
        ConfigError, match="^processes: must be a whole number of at least 1; given 0$"
    ):
        evaluate(["hash:10"], processes=0)
    with pytest.raises(
        ConfigError, match="^workers: must be a whole number of at least 1; given 0$"
    ):
        encode_corpus("hash:10", tmp_path, tmp_path / "out", workers=0)
