"""One model that many threads, tasks and forked processes use at the same time."""

import asyncio
import multiprocessing
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from raysent.config import Document, validate
from raysent.data.vocabulary import PAD_WORD, UNK_WORD, Vocabulary
from raysent.errors import ConfigError
from raysent.kernels.gru_cells import Shape, Workspaces
from raysent.models import ModelConfig, SentenceModel, load

WORDS = [f"w{number}" for number in range(3000)]
DRAW = random.Random(0)
TEXT = [" ".join(DRAW.choices(WORDS, k=DRAW.randint(0, 20))) for _ in range(1200)]
GRU = {
    "type": "gru",
    "hidden_size": 16,
    "bidirectional": True,
    "embedding": {"dim": 8, "dropout": 0.5},
}
ENCODERS = {
    "gru": GRU,
    "bag": {"type": "bag", "embedding": {"dim": 8}},
    "cnn": {"type": "cnn", "embedding": {"dim": 8}},
    "lstm": {"type": "lstm", "hidden_size": 16, "embedding": {"dim": 8}},
}


def build(encoder=GRU) -> SentenceModel:
    """Return a model that has encoded nothing yet."""
    config = validate(
        ModelConfig, Document({"encoder": encoder, "objective": {"type": "context_prediction"}})
    )
    return SentenceModel.build(config, Vocabulary([PAD_WORD, UNK_WORD, *WORDS]), seed=0).eval()


@pytest.fixture(scope="module")
def expected():
    """The vectors of TEXT, from a model that is used alone."""
    return build().encode(TEXT)


@pytest.fixture
def busy_threads():
    """Let threads change places as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def requests(size: int) -> list[slice]:
    """Return slices of TEXT."""
    return [slice(first, first + size) for first in range(0, len(TEXT), size)]


@pytest.mark.usefixtures("busy_threads")
@pytest.mark.parametrize("kind", ENCODERS)
def test_encode_in_threads_gives_the_bits_of_one_thread(kind):
    """Whatever other threads ask for; the object is right when it is used alone afterwards, too."""
    alone, shared = build(ENCODERS[kind]), build(ENCODERS[kind])
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda rows: shared.encode(TEXT[rows]), requests(10)))
    assert all(
        np.array_equal(v, alone.encode(TEXT[rows]))
        for rows, v in zip(requests(10), found, strict=True)
    )
    np.testing.assert_array_equal(shared.encode(TEXT), alone.encode(TEXT))


def test_vector_does_not_depend_on_its_company(expected):
    """Alone, in a batch of any size, and beside other sentences a sentence has the same bits."""
    model = build()
    for size in (1, 7, 100):
        found = [model.encode(TEXT[rows]) for rows in requests(size)[:30]]
        np.testing.assert_array_equal(np.concatenate(found), expected[: 30 * size])
    np.testing.assert_array_equal(model.encode(TEXT, batch_size=3), expected)


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize(
    "more", [{"implementation": "torch"}, {"variant": "authors"}, {"num_layers": 2}, None]
)
def test_company_changes_at_most_the_last_bits_of_other_encoders(more, bfloat16):
    """The same call gives the same bits; alone a vector is that of a batch up to the rounding of products."""
    model = build(ENCODERS["cnn"] if more is None else GRU | more)
    text = TEXT[:60]
    expected = model.encode(text, bfloat16=bfloat16)
    alone = np.concatenate([model.encode([sentence], bfloat16=bfloat16) for sentence in text])
    np.testing.assert_allclose(alone, expected, rtol=0, atol=5e-3 if bfloat16 else 2e-6)
    np.testing.assert_array_equal(model.encode(text, bfloat16=bfloat16), expected)


def test_encode_in_asyncio_tasks(expected):
    """Tasks that encode in the loop's threads get their own vectors."""
    model = build()

    async def main() -> list[np.ndarray]:
        return await asyncio.gather(
            *(asyncio.to_thread(model.encode, TEXT[rows]) for rows in requests(50))
        )

    np.testing.assert_array_equal(np.concatenate(asyncio.run(main())), expected)


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system"
)
def test_encode_in_forked_processes_while_threads_encode(expected):
    """A server's workers are forked from a process whose model is in use; they neither wait without end nor differ."""
    model = build()
    torch.rand(400, 400) @ torch.rand(400, 400)  # start the threads of OpenMP
    context = multiprocessing.get_context("fork")

    def child(queue) -> None:
        queue.put(model.encode(TEXT))

    with ThreadPoolExecutor(2) as threads:
        others = [threads.submit(model.encode, TEXT[rows]) for rows in requests(40)]
        queue = context.Queue()
        processes = [context.Process(target=child, args=(queue,)) for _ in range(2)]
        for process in processes:
            process.start()
        found = [queue.get(timeout=600) for _ in processes]
        for process in processes:
            process.join(600)
    for vectors in found:
        np.testing.assert_array_equal(vectors, expected)
    np.testing.assert_array_equal(np.concatenate([other.result() for other in others]), expected)


@pytest.mark.usefixtures("busy_threads")
def test_encode_of_a_model_in_training_mode_never_drops_words(expected):
    """The mode is restored by the last of the threads, so that no other encodes with dropout."""
    model = build().train()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda rows: model.encode(TEXT[rows]), requests(10)))
    np.testing.assert_array_equal(np.concatenate(found), expected)
    assert model.training


def test_interrupted_encode_leaves_the_model_as_it_was(expected, monkeypatch):
    """After Ctrl-C in the middle of a call the model is in its mode and encodes as before."""
    model = build().train()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model, "_finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.encode(TEXT)
    assert model.training
    np.testing.assert_array_equal(model.encode(TEXT), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": -1}, "batch_size: must be a whole number of at least 1; given -1"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"num_processes": 0}, "num_processes"),
        ({"towers": "g"}, "towers: must be 'both' or 'f'; given 'g'"),
        ({"truncate_dim": 0}, "truncate_dim"),
        ({"device": "abacus"}, "device: must be a device of torch"),
    ],
)
def test_encode_refuses_bad_arguments(arguments, message):
    """With the name of the argument, before anything is computed."""
    with pytest.raises(ConfigError, match=message):
        build().encode(TEXT[:3], **arguments)


@pytest.mark.parametrize("encoder", [build(), load("hash:4")], ids=["model", "hash"])
@pytest.mark.parametrize("bad", ["\ud83d", "\0", "\u0301", "\ufeff", "x" * 300_000, ""])
def test_every_string_has_a_vector(encoder, bad):
    """And no string changes those of others."""
    before = encoder.encode(["w1 w2"])
    assert np.isfinite(encoder.encode([bad])).all()
    np.testing.assert_array_equal(encoder.encode([bad, "w1 w2"])[1:], before)


def test_byte_order_mark_does_not_change_a_vector():
    """Text from files that begin with one has the vectors of its words."""
    model = build()
    np.testing.assert_array_equal(model.encode(["\ufeffw1 w2"]), model.encode(["w1 w2"]))


def test_workspaces_keep_a_bounded_number_of_buffers():
    """However many threads once encoded at the same time."""
    workspaces, shape = Workspaces(), Shape(4, torch.float32, torch.device("cpu"), 8, 8)
    held = [workspaces.acquire(shape) for _ in range(100)]
    assert len({id(workspace) for workspace in held}) == 100
    for workspace in held:
        workspaces.release(workspace)
    assert len(workspaces._free) < 20
    assert workspaces.acquire(shape) is held[-1]
