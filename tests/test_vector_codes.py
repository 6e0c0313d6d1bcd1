"""Codes of a file of vectors: similarity, saved codes, the command, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from object_store import BUCKET, keys
from reference import hamming

from raysent import binarize, encode_corpus, evaluate
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.models.codes import CODES
from raysent.models.vector_codes import VectorCodeConfig, load_code, make_code, read_vectors
from raysent.pipeline.vectors import encode_file


def clustered_vectors(rows: int = 400, dim: int = 24) -> np.ndarray:
    """Return vectors of a few hidden directions."""
    generator = np.random.default_rng(0)
    return (
        generator.standard_normal((rows, 8)) @ generator.standard_normal((8, dim)) + 0.5
    ).astype(np.float32)


def settings(method: str, *, bits: int = 20, **others: object) -> VectorCodeConfig:
    """Return the configuration of a small code."""
    code = {"type": method} if method == "threshold" else {"type": method, "bits": bits}
    return VectorCodeConfig.model_validate({"code": code, "epochs": 3, "batch_size": 16, **others})


@pytest.mark.parametrize("method", sorted(CODES))
def test_near_vectors_have_near_codes(method, tmp_path):
    """A vector's code is nearest to that of the same vector with little noise; a saved code gives the same bytes."""
    vectors = clustered_vectors()
    # The vectors have eight directions; more components than that are noise.
    made, found = make_code(
        vectors, settings(method, bits=8 if method == "principal_components" else 20)
    )
    assert set(found) == {"reconstruction_mse", "reconstruction_r2", "similarity_kept"}
    assert found["similarity_kept"] > 0.3
    codes = made.encode_packed(vectors)
    moved = made.encode_packed(vectors[:50] + 1e-4)
    assert (hamming(moved, codes).argmin(axis=1) == np.arange(50)).mean() > 0.8
    made.save(tmp_path / "kept")
    np.testing.assert_array_equal(load_code(tmp_path / "kept").encode_packed(vectors), codes)


def test_threshold_at_the_mean_equals_a_comparison():
    """A bit is 1 where a number is above its mean over the training vectors."""
    vectors = clustered_vectors(100)
    config = VectorCodeConfig.model_validate(
        {"code": {"type": "threshold", "threshold": "mean"}, "seed": 3}
    )
    made, _ = make_code(vectors, config)
    train = np.random.default_rng(3).permutation(100)[5:]
    expected = vectors > vectors[np.sort(train)].mean(axis=0)
    np.testing.assert_array_equal(
        np.unpackbits(made.encode_packed(vectors), axis=1, count=24), expected
    )


def test_training_lowers_the_error():
    """More epochs restore held-out vectors better, and the same seed gives the same code."""
    vectors = clustered_vectors(1000)
    errors = [
        make_code(vectors, settings("autoencoder", epochs=n))[1]["reconstruction_mse"]
        for n in (1, 8, 8)
    ]
    assert errors[1] < errors[0]
    assert errors[1] == errors[2]


def test_related_rows_are_read_as_pairs():
    """Their codes are nearer with a semantic term; the metric says so; rows that do not exist are refused."""
    vectors = clustered_vectors(800)
    related = np.stack([np.arange(0, 800, 2), np.arange(1, 800, 2)], axis=1)
    vectors[1::2] = vectors[::2] + 0.7 * vectors[1::2]
    found = {
        weight: make_code(
            vectors,
            settings("autoencoder", epochs=30, objective={"lambda_sp": weight}),
            related=related,
        )[1]
        for weight in (0.0, 3.0)
    }
    assert found[3.0]["related_auc"] > max(0.8, found[0.0]["related_auc"])
    with pytest.raises(DataError, match=r"^related: must be rows from 0 to 799; given 0 to 800$"):
        make_code(vectors, settings("autoencoder"), related=related + np.array([0, 1]))
    with pytest.raises(
        DataError, match=r"^related: must be row numbers \[pairs, 2\]; given int64 \[800\]$"
    ):
        make_code(vectors, settings("autoencoder"), related=np.arange(800))


def test_code_without_a_number_of_bits_has_one_for_each_number():
    """At most the paper's 2,048."""
    made, _ = make_code(
        clustered_vectors(), VectorCodeConfig.model_validate({"code": {"type": "autoencoder"}})
    )
    assert made.num_bits == 24
    assert made.config.code.num_bits(4096) == 2048


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
            "must have at least 100 rows to train and evaluate a code; given 99",
        ),
    ],
)
def test_invalid_vectors_raise_one_clear_error(vectors, message):
    """What must hold, and what was given."""
    with pytest.raises(DataError, match=message):
        make_code(vectors, settings("autoencoder"))


def test_invalid_codes_raise_one_clear_error(tmp_path):
    """Too many bits, vectors of another size, a folder of another kind."""
    with pytest.raises(
        ConfigError, match="must be at most 24, the size of the vectors, for principal_components"
    ):
        make_code(clustered_vectors(), settings("principal_components", bits=25))
    made, _ = make_code(clustered_vectors(), settings("random_projection"))
    with pytest.raises(DataError, match="must have 24 numbers a row, as the code does; given 25"):
        made.encode_packed(clustered_vectors(dim=25))
    made.save(tmp_path)
    (tmp_path / "code.json").write_text(
        '{"kind": "raysent code", "dim": 12, "config": {"code": {"type": "threshold"}}}'
    )
    with pytest.raises(ArtifactError, match="changed or of another version"):
        load_code(tmp_path)


def test_a_code_whose_numbers_have_changed_is_refused(tmp_path):
    """One bit of a weight is another code; nothing else would show it."""
    code, _ = make_code(clustered_vectors(100), settings("principal_components", bits=8))
    code.save(tmp_path)
    path = tmp_path / "code.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ArtifactError, match="code.safetensors: changed since the code was saved"):
        load_code(tmp_path)


def test_binarize_writes_codes_and_uses_a_saved_one(raysent):
    """The command reports the code's scores; another file gets the same code; errors are one line."""
    np.save("vectors.npy", clustered_vectors())
    arguments = (
        "binarize",
        "vectors.npy",
        "-o",
        "codes.npy",
        "--set",
        "method=random_projection",
        "--set",
        "bits=20",
    )
    about = json.loads(raysent(*arguments, "--keep", "kept", "--json").out)
    assert (about["rows"], about["bits"]) == (400, 20)
    assert np.load("codes.npy").shape == (400, 3)
    assert (
        "400 codes of 20 bits"
        in raysent("binarize", "vectors.npy", "-o", "again.npy", "--use", "kept").out
    )
    np.testing.assert_array_equal(np.load("again.npy"), np.load("codes.npy"))
    np.savez("vectors.npz", vectors=np.load("vectors.npy"))  # as `raysent encode` writes it
    raysent("binarize", "vectors.npz", "-o", "archive.npy", "--use", "kept")
    np.testing.assert_array_equal(np.load("archive.npy"), np.load("codes.npy"))
    np.savez("other.npz", other=np.zeros(3))
    with pytest.raises(
        DataError,
        match=r"^other\.npz: must be a \.npy file of numbers \(.*vectors.*\); write it again$",
    ):
        read_vectors(Path("other.npz"))
    raysent("binarize", "vectors.npy", "-o", "default.npy", "--keep", "default")
    code = json.loads(Path("default/code.json").read_text())["config"]["code"]
    assert (code["type"], code["distribution"], code["whiten"]) == (
        "random_projection",
        "rotation",
        0.25,
    )
    for options, message in (
        (("--set", "method=pca"), "error: method=pca: unknown type 'pca'"),
        (
            ("--set", "method=autoencoder", "--set", "objective.lamda_sp=1"),
            "did you mean 'lambda_sp'?",
        ),
        (
            ("--set", "seed=1", "--set", "seed.x=1"),
            "error: --set seed.x=1: seed.x: 'seed' must be a mapping",
        ),
        (("--set", "objective.lambda_sp=1"), "objective.lambda_sp: needs a method that is trained"),
        (("--use", "nowhere"), "nowhere"),
    ):
        ran = raysent("binarize", "vectors.npy", "-o", "codes.npy", *options)
        assert ran.code == 2
        assert message in ran.err
    assert "no such file" in raysent("binarize", "nothing.npy", "-o", "codes.npy").err
    Path("empty.npy").touch()
    ran = raysent("binarize", "empty.npy", "-o", "codes.npy")
    assert (ran.code, ran.err.count("empty.npy: must be a .npy file of numbers")) == (2, 1)


def test_files_of_vectors_and_codes_go_into_the_bucket(tmp_path, bucket, monkeypatch):
    """No local folder `s3:` is made."""
    monkeypatch.chdir(tmp_path)
    np.save("v.npy", clustered_vectors())
    Path("text.txt").write_text("one line\n")
    binarize("v.npy", output=f"s3://{BUCKET}/codes.npy", progress=False)
    encode_file("hash:10", "text.txt", output=f"s3://{BUCKET}/x.npy", progress=False)
    assert set(keys(bucket)) == {"codes.npy", "x.npy"}
    assert not Path("s3:").exists()


def test_settings_beside_a_code_that_is_given_are_refused():
    """They would be ignored."""
    with pytest.raises(ConfigError, match="^use: must not stand beside method, bits or set"):
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
