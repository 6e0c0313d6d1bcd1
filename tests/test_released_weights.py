"""The weights that authors released: the same vectors as their code, restated here; wrong files; no code of a pickle."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import raysent
from raysent.errors import RaysentError

WORDS = ["UNK", "the", "cat", "sat", "on", "mat", "."]
SENTENCES = ["the cat sat on the mat .", "cat", "the dog sat .", "on on on"]


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def _write_skip_thoughts(folder: Path, *, dim: int = 5, hidden: int = 6) -> dict[str, np.ndarray]:
    """Write a release of small random weights; returns all arrays."""
    generator = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for file, table, prefixes, size in (
        ("uni_skip.npz", "utable", ("encoder",), hidden),
        ("bi_skip.npz", "btable", ("encoder", "encoder_r"), hidden // 2),
    ):
        shapes = {"W": (dim, 2 * size), "U": (size, 2 * size), "b": (2 * size,)}
        shapes |= {"Wx": (dim, size), "Ux": (size, size), "bx": (size,)}
        own = {
            f"{prefix}_{name}": generator.normal(size=shape).astype(np.float32)
            for prefix in prefixes
            for name, shape in shapes.items()
        }
        decoder = np.array([None])  # an object, which only unpickling reads
        np.savez(folder / file, **own, decoder_f_W=decoder)
        vectors = generator.normal(size=(len(WORDS), dim)).astype(np.float32)
        np.save(folder / f"{table}.npy", vectors)
        arrays |= {f"{table}_{name}": value for name, value in own.items()} | {table: vectors}
    (folder / "dictionary.txt").write_text("".join(f"{word}\n" for word in WORDS))
    return arrays


def _states(arrays: dict[str, np.ndarray], prefix: str, words: np.ndarray) -> np.ndarray:
    """Return the last state, step by step as the released code's `gru_layer` computes it."""
    w, u, b, wx, ux, bx = (arrays[f"{prefix}_{name}"] for name in ("W", "U", "b", "Wx", "Ux", "bx"))
    state = np.zeros(len(bx))
    for word in words:
        gates = _sigmoid(state @ u + word @ w + b)
        reset, update = gates[: len(bx)], gates[len(bx) :]
        candidate = np.tanh((state @ ux) * reset + word @ wx + bx)
        state = update * state + (1 - update) * candidate
    return state


def _skip_thoughts(arrays: dict[str, np.ndarray], sentence: str) -> np.ndarray:
    """Return the vector of combine-skip as the released `encode` makes it."""
    rows = [WORDS.index(word) if word in WORDS else 0 for word in sentence.split()]
    uni = _states(arrays, "utable_encoder", arrays["utable"][rows])
    forward = _states(arrays, "btable_encoder", arrays["btable"][rows])
    backward = _states(arrays, "btable_encoder_r", arrays["btable"][rows[::-1]])
    both = np.concatenate([forward, backward])
    return np.concatenate([uni / np.linalg.norm(uni), both / np.linalg.norm(both)])


def test_skip_thoughts_gives_the_vectors_of_the_released_code(tmp_path: Path):
    """Unknown words, one word, both directions, and unit length of each part; the decoder is not read."""
    arrays = _write_skip_thoughts(tmp_path)
    model = raysent.load(f"skip-thoughts:{tmp_path}")
    expected = np.stack([_skip_thoughts(arrays, sentence) for sentence in SENTENCES])
    np.testing.assert_allclose(model.encode(SENTENCES), expected, atol=2e-6)
    (tmp_path / "uni_skip.npz").unlink()
    np.testing.assert_allclose(raysent.load(f"skip-thoughts:{tmp_path}").encode(SENTENCES), expected[:, 6:], atol=2e-6)


def _write_infersent(folder: Path, *, version: int, marks: bool = True, dim: int = 4, hidden: int = 3) -> nn.LSTM:
    """Write a release of small random weights; returns the LSTM."""
    torch.manual_seed(version)
    lstm = nn.LSTM(dim, hidden, bidirectional=True)
    torch.save(
        {f"enc_lstm.{name}": value for name, value in lstm.state_dict().items()}, folder / f"infersent{version}.pkl"
    )
    marked = [*(("<s>", "</s>") if version == 1 else ("<p>", "</p>"))] if marks else []
    vectors = np.random.default_rng(1).normal(size=(len(WORDS) + len(marked), dim))
    lines = [" ".join([word, *map(repr, row.tolist())]) for word, row in zip([*WORDS, *marked], vectors, strict=True)]
    (folder / "vectors.txt").write_text("\n".join(lines) + "\n")
    return lstm


def _infersent(lstm: nn.LSTM, folder: Path, sentence: str, *, version: int) -> np.ndarray:
    """Return a sentence's vector as the released `prepare_samples` and `forward` make it, in a batch of one."""
    table = {
        row.split()[0]: np.array(row.split()[1:], float) for row in (folder / "vectors.txt").read_text().splitlines()
    }
    begin, end = ("<s>", "</s>") if version == 1 else ("<p>", "</p>")
    words = [word for word in [begin, *sentence.split(), end] if word in table]
    rows = torch.tensor(np.stack([table[word] for word in words]), dtype=torch.float32)
    with torch.no_grad():
        return lstm(rows[:, None])[0].max(dim=0).values[0].numpy()


@pytest.mark.parametrize(("version", "marks"), [(1, True), (2, True), (1, False)])
def test_infersent_gives_the_vectors_of_the_released_code(tmp_path: Path, version: int, marks: bool):
    """Words without a vector are left out, the marks of the version are read where the file of vectors has them."""
    lstm = _write_infersent(tmp_path, version=version, marks=marks)
    model = raysent.load(f"infersent:{tmp_path}")
    expected = np.stack([_infersent(lstm, tmp_path, sentence, version=version) for sentence in SENTENCES])
    np.testing.assert_allclose(model.encode(SENTENCES), expected, atol=2e-6)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.encode(SENTENCES), model.encode(SENTENCES))
    assert np.isfinite(model.encode(["", "unheard"])).all()


class _Runs:
    """An object whose unpickling writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_no_code_of_a_pickle_is_run(tmp_path: Path):
    """It is refused in one line, and what it would have written is not there."""
    _write_infersent(tmp_path, version=1)
    weights, content = tmp_path / "infersent1.pkl", {"enc_lstm.weight": _Runs(tmp_path / "ran")}
    for write in (lambda: weights.write_bytes(pickle.dumps(content)), lambda: torch.save(content, weights)):
        write()
        with pytest.raises(RaysentError, match=r"infersent1\.pkl: must hold tensors alone"):
            raysent.load(f"infersent:{tmp_path}")
        assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(content))
    assert (tmp_path / "ran").exists()


def test_mistakes_are_one_line(tmp_path: Path):
    """What is missing, of another kind or of another size, with the file."""
    uni, words = tmp_path / "uni_skip.npz", tmp_path / "dictionary.txt"
    with pytest.raises(RaysentError, match="must hold uni_skip.npz or bi_skip.npz; found neither"):
        raysent.load(f"skip-thoughts:{tmp_path}")
    with pytest.raises(RaysentError, match="no such folder; name a folder of the files that Skip-Thoughts' authors"):
        raysent.load(f"skip-thoughts:{tmp_path / 'none'}")
    _write_skip_thoughts(tmp_path)
    text = words.read_text()
    words.write_text(text + "more\n")
    with pytest.raises(
        RaysentError, match=r"utable\.npy: must hold a vector for each of the 8 words .* given \(7, 5\)"
    ):
        raysent.load(f"skip-thoughts:{tmp_path}")
    words.write_text(text.replace("UNK", "unk"))
    with pytest.raises(RaysentError, match="must have the word UNK"):
        raysent.load(f"skip-thoughts:{tmp_path}")
    words.write_text(text)
    np.savez(uni, encoder_W=np.zeros((5, 12)))
    with pytest.raises(RaysentError, match=r"uni_skip\.npz: must hold encoder_U; it is no release of Skip-Thoughts"):
        raysent.load(f"skip-thoughts:{tmp_path}")
    uni.write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(RaysentError, match=r"uni_skip\.npz: must be an archive of arrays"):
        raysent.load(f"skip-thoughts:{tmp_path}")
    np.save(tmp_path / "utable.npy", np.array([None]))
    with pytest.raises(RaysentError, match=r"utable\.npy: must be an array of numbers"):
        raysent.load(f"skip-thoughts:{tmp_path}")
    with pytest.raises(RaysentError, match=r"must hold one file of weights \(\.pkl\); given none"):
        raysent.load(f"infersent:{tmp_path}")
    words.unlink()
    _write_infersent(tmp_path, version=1)
    torch.save({"weight": torch.zeros(2)}, tmp_path / "infersent1.pkl")
    with pytest.raises(RaysentError, match=r"must hold the parameters enc_lstm\.\*; it is no release of InferSent"):
        raysent.load(f"infersent:{tmp_path}")
