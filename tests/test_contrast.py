"""Contrast: each kind of positives against a slow restatement and sentence-transformers' losses, cached, resumed."""

import dataclasses

import numpy as np
import pytest
import torch
from reference import contrast as reference
from small_bert import write_bert
from tiny_run import check_resumed, tiny_run
from toy_batches import build_context, sentences

import raysent
from raysent.config import Document, validate
from raysent.data.batches import Batch, LabelBatch, LabelStream, PairStream
from raysent.data.pairs import Pairs, PairsConfig, number_texts, read_pairs
from raysent.data.vocabulary import PAD_WORD, UNK_WORD, Sentences, Vocabulary
from raysent.errors import ConfigError, DataError
from raysent.evaluation.task_set import TaskSet
from raysent.models import SentenceModel
from raysent.models.objectives import OBJECTIVES, build_objective
from raysent.models.objectives.contrast import Config, Objective
from raysent.pipeline.arguments import space_of, with_labels_of
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.memory import estimate_bytes
from raysent.training.plan import build_model, open_stream
from raysent.training.run import RunConfig
from raysent.training.workers import Workers, dropout_generator

SIZE = 9


class Given:
    """Reads sentences into given vectors with a gradient, others at each reading."""

    def __init__(self, num_columns=4, size=SIZE, dim=6):
        generator = torch.Generator().manual_seed(0)
        self.vectors = [
            torch.randn(size, dim, generator=generator).requires_grad_() for _ in range(num_columns)
        ]
        self.num_read = 0

    def __call__(self, sentences, *, is_training=True):
        """The next column."""
        self.num_read += 1
        return (self.vectors[self.num_read - 1],)


def some_texts(repeated, seed=0):
    """Sentences of which some repeat others."""
    all_of_them = sentences(np.full(SIZE, 3), seed)
    ids = all_of_them.ids.reshape(SIZE, 3)
    for place, original in repeated.items():
        ids[place] = ids[original]
    return Sentences(ids.reshape(-1), all_of_them.lengths)


def texts_of(column):
    """The words of each sentence, as text."""
    return [" ".join(map(str, one.ids)) for one in column.split(1)]


def batch_of(positives):
    """A batch with repeated sentences, documents, and further columns."""
    column = some_texts({4: 1, 7: 2})
    if positives == "pairs":
        second, third, fourth = (some_texts({}, seed) for seed in (5, 6, 7))
        repeating = Sentences(np.concatenate([second.ids[:9], third.ids[9:]]), third.lengths)
        return Pairs(column, second, positives=(repeating,), negatives=(fourth,))
    return Batch(column, np.arange(SIZE), np.array([0] * 4 + [1] * 3 + [2] * 2))


def restated(positives, batch, vectors, *, symmetric=False, temperature=0.3):
    """The loss of `batch_of` by loops."""
    texts = [texts_of(part) for part in batch.parts]
    options = {"temperature": temperature}
    if positives == "context":

        def near(i, j):
            return abs(i - j) == 1 and batch.documents[i] == batch.documents[j]

        return reference(vectors[0], vectors[0], near, texts[0], texts[0], itself=True, **options)

    def same(i, j):
        return texts[0][i] == texts[0][j % SIZE]

    if positives == "self":
        forward = reference(vectors[0], vectors[1], same, texts[0], texts[0], **options)
        return (
            (forward + reference(vectors[1], vectors[0], same, texts[0], texts[0], **options)) / 2
            if symmetric
            else forward
        )

    def partner(i, j):
        column, row = divmod(j, SIZE)
        return same(i, row) and (column == 0 or (column == 1 and texts[2][row] != texts[1][row]))

    others = texts[1] + texts[2] + texts[3]
    return reference(vectors[0], np.concatenate(vectors[1:4]), partner, texts[0], others, **options)


@pytest.mark.parametrize(
    ("positives", "symmetric"),
    [("self", False), ("self", True), ("context", False), ("pairs", False)],
)
def test_loss_and_gradient_equal_their_restatement(positives, symmetric):
    """Loops over anchors and candidates; the gradient by finite differences of them."""
    batch, read = batch_of(positives), Given()
    loss = Objective(Config(positives=positives, temperature=0.3, symmetric=symmetric))(read, batch)
    loss.backward()
    values = [vector.detach().double().numpy() for vector in read.vectors]
    assert loss.item() == pytest.approx(
        restated(positives, batch, values, symmetric=symmetric), rel=1e-5
    )
    for column, row, place in ((0, 1, 2), (0, 4, 0), (min(1, read.num_read - 1), 7, 3)):
        ends = []
        for step in (1e-5, -1e-5):
            moved = [value.copy() for value in values]
            moved[column][row, place] += step
            ends.append(restated(positives, batch, moved, symmetric=symmetric))
        expected = (ends[0] - ends[1]) / 2e-5
        assert read.vectors[column].grad[row, place].item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("positives", "symmetric"), [("self", True), ("context", False), ("pairs", False)]
)
def test_prefixes_add_the_loss_of_the_first_numbers(positives, symmetric):
    """As their restatement says, with the gradient by finite differences; weights are 1 where none are given."""
    batch, read = batch_of(positives), Given()
    given = {"positives": positives, "temperature": 0.3, "symmetric": symmetric, "prefixes": [2, 4]}
    loss = Objective(Config(**given, prefix_weights=[0.5, 2.0]))(read, batch)
    loss.backward()

    def restate(vectors, weights=(0.5, 2.0)):
        sizes = zip((2, 4, 6), (*weights, 1.0), strict=True)
        cut = [(weight, [vector[:, :size] for vector in vectors]) for size, weight in sizes]
        return sum(
            weight * restated(positives, batch, some, symmetric=symmetric) for weight, some in cut
        )

    values = [vector.detach().double().numpy() for vector in read.vectors]
    assert loss.item() == pytest.approx(restate(values), rel=1e-5)
    assert Objective(Config(**given))(Given(), batch).item() == pytest.approx(
        restate(values, (1.0, 1.0)), rel=1e-5
    )
    for row, place in ((1, 0), (4, 3), (2, 5)):
        moved = [[value.copy() for value in values] for _ in range(2)]
        moved[0][0][row, place] += 1e-5
        moved[1][0][row, place] -= 1e-5
        expected = (restate(moved[0]) - restate(moved[1])) / 2e-5
        assert read.vectors[0].grad[row, place].item() == pytest.approx(expected, abs=1e-4)


def test_prefixes_equal_the_matryoshka_loss():
    """Of sentence-transformers, on pairs, with the same sizes and weights."""
    from sentence_transformers.sentence_transformer import losses

    columns = [sentences(np.full(SIZE, 4), seed) for seed in range(2)]
    objective = Objective(Config(positives="pairs", prefixes=[2, 4], prefix_weights=[0.5, 2.0]))
    model = torch.nn.Module()
    model.forward, model.get_embedding_dimension = (lambda one: one), (lambda: 6)
    ranking = losses.MultipleNegativesRankingLoss(model, scale=20.0)
    theirs = losses.MatryoshkaLoss(
        model, ranking, matryoshka_dims=[6, 4, 2], matryoshka_weights=[1.0, 2.0, 0.5]
    )
    features = [{"sentence_embedding": column} for column in Given().vectors[:2]]
    expected = theirs(features, torch.zeros(SIZE, dtype=torch.long))
    torch.testing.assert_close(objective(Given(), Pairs(*columns)), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("positives", ["self", "context", "pairs"])
def test_rows_of_workers_add_up_to_the_whole(positives):
    """Each worker has the loss of its own rows, and knows the texts of all."""
    batch, objective = batch_of(positives), Objective(Config(positives=positives))
    whole = objective(Given(), batch)
    texts = number_texts(*batch.parts)
    parts = [
        objective(Given(), dataclasses.replace(batch, rows=rows, texts=texts))
        for rows in (slice(0, 5), slice(5, SIZE))
    ]
    torch.testing.assert_close(torch.stack(parts).sum(), whole)


def test_sentence_without_a_positive_has_no_gradient():
    """Nor is the loss NaN where no sentence has one."""
    batch = Batch(sentences(np.full(SIZE, 3)), np.arange(SIZE), np.arange(SIZE))
    read = Given()
    loss = Objective(Config())(read, batch)
    loss.backward()
    assert loss.item() == 0
    assert not read.vectors[0].grad.any()


def _their_loss(name, columns, **settings):
    """The loss of sentence-transformers on given vectors."""
    from sentence_transformers.sentence_transformer import losses

    features = [{"sentence_embedding": column} for column in columns]
    model = torch.nn.Module()
    model.forward = lambda one: one
    return getattr(losses, name)(model, **settings)(
        features, torch.zeros(len(columns[0]), dtype=torch.long)
    )


@pytest.mark.parametrize("num_negatives", [0, 1, 2])
def test_pairs_equal_multiple_negatives_ranking(num_negatives):
    """Hard negatives of all rows are candidates of each anchor; so is SimCSE, whose columns are two readings."""
    columns = [sentences(np.full(SIZE, 4), seed) for seed in range(4)]
    read = Given()
    batch = Pairs(columns[0], columns[1], negatives=tuple(columns[2 : 2 + num_negatives]))
    loss = Objective(Config(positives="pairs"))(read, batch)
    theirs = _their_loss(
        "MultipleNegativesRankingLoss", Given().vectors[: 2 + num_negatives], scale=20.0
    )
    torch.testing.assert_close(loss, theirs, atol=1e-5, rtol=0)
    if not num_negatives:
        unsupervised = Objective(Config(positives="self"))(Given(), batch_without_repeats())
        torch.testing.assert_close(unsupervised, theirs, atol=1e-5, rtol=0)
        both = Objective(Config(positives="pairs", symmetric=True))(Given(), batch)
        directions = {
            "directions": ("query_to_doc", "doc_to_query"),
            "partition_mode": "per_direction",
        }
        theirs = _their_loss(
            "MultipleNegativesRankingLoss", Given().vectors[:2], scale=20.0, **directions
        )
        torch.testing.assert_close(both, theirs, atol=1e-5, rtol=0)


def batch_without_repeats():
    """Different sentences."""
    return Batch(sentences(np.full(SIZE, 4)), np.arange(SIZE), np.zeros(SIZE, dtype=np.int64))


_ENCODERS = {
    "bag": {"type": "bag", "embedding": {"dim": 6}},
    "gru": {"type": "gru", "hidden_size": 8, "embedding": {"dim": 6}},
    "cnn": {"type": "cnn", "num_filters": 4, "embedding": {"dim": 6}},
    "lstm": {"type": "lstm", "hidden_size": 8, "embedding": {"dim": 6}},
    "concat": {
        "type": "concat",
        "members": {
            "one": {"type": "gru", "hidden_size": 8, "embedding": {"dim": 6}},
            "two": {"type": "bag", "embedding": {"dim": 5}},
        },
    },
}


def gradients_of(config, *, is_dense=True):
    """The gradients of a run's first step by name, and its loss."""
    data = open_training_data(config)
    model, stream = build_model(config, data), open_stream(config, data, Workers())
    model.use_sparse_gradients(not is_dense)
    generator = dropout_generator(0, 0, 0)
    loss = model.loss(stream.batch(0), generator=generator, reader=model.step_reader(generator))
    loss.backward()
    grads = {
        name: parameter.grad.to_dense()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return grads, loss.item()


@pytest.mark.parametrize("encoder", _ENCODERS)
def test_cached_gradient_equals_that_of_the_whole_batch(tmp_path, encoder):
    """Micro-batches that do not divide the batch; tables with dense and with sparse gradients."""
    found = []
    for cached in (False, True):
        objective = {"type": "contrast", "cached": cached, "micro_batch": 7}
        config = tiny_run(tmp_path, encoder=_ENCODERS[encoder], objective=objective)
        found.append([gradients_of(config), gradients_of(config, is_dense=False)])
    for (whole, loss), (cached_whole, cached_loss) in zip(*found, strict=True):
        assert cached_loss == pytest.approx(loss, rel=1e-6)
        assert whole.keys() == cached_whole.keys()
        for name, gradient in whole.items():
            torch.testing.assert_close(cached_whole[name], gradient, atol=1e-5, rtol=1e-5)


def test_cached_reading_has_the_same_dropout_twice(tmp_path):
    """The gradient belongs to the loss: a small step against it lowers the same loss."""
    encoder = {**_ENCODERS["bag"], "dropout": 0.3}
    objective = {"type": "contrast", "positives": "self", "cached": True, "micro_batch": 24}
    whole = tiny_run(tmp_path, encoder=encoder, objective={"type": "contrast", "positives": "self"})
    cached = tiny_run(tmp_path, encoder=encoder, objective=objective)
    for one, other in zip(
        gradients_of(whole)[0].values(), gradients_of(cached)[0].values(), strict=True
    ):
        torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-5)


def test_cached_run_needs_the_memory_of_a_micro_batch(tmp_path):
    """The estimate counts the states of `micro_batch` sentences."""
    base = {"encoder": {**_ENCODERS["gru"], "hidden_size": 600}, "training__batch_size": 2000}
    whole, cached = (
        estimate_bytes(tiny_run(tmp_path, objective={"type": "contrast", "cached": cached}, **base))
        for cached in (False, True)
    )
    assert cached < whole / 2


def test_two_readings_differ_and_a_resumed_run_draws_the_same(tmp_path):
    """Dropout of word vectors and of the sentence's vector; the same bits after a stop."""
    encoder = {
        "type": "gru",
        "hidden_size": 8,
        "dropout": 0.2,
        "embedding": {"dim": 6, "dropout": 0.2},
    }
    config = tiny_run(
        tmp_path, encoder=encoder, objective={"type": "contrast", "positives": "self"}
    )
    data = open_training_data(config)
    model, batch = build_model(config, data), open_stream(config, data, Workers()).batch(0)
    read = model.step_reader(dropout_generator(0, 0, 0)).block(0)
    one, other, again = (
        read(part)[0] for part in (batch.sentences, Sentences(*batch.sentences), batch.sentences)
    )
    assert not torch.equal(one, other)
    assert one is again or torch.equal(one, again)
    check_resumed(config, tmp_path)


@pytest.mark.parametrize("cached", [False, True])
def test_run_learns_from_neighbours_and_resumes(tmp_path, cached):
    """The loss falls, and a resumed run has the same bits."""
    config = tiny_run(
        tmp_path,
        objective={"type": "contrast", "cached": cached, "micro_batch": 10},
        training__epochs=6.0,
    )
    losses = []
    fit(
        config,
        tmp_path / "run",
        report=lambda report: losses.append(report.metrics["loss"]) or True,
    )
    assert losses[-1] < 0.8 * losses[0]
    check_resumed(config, tmp_path)


def write_pairs(folder, num_rows=60):
    """Questions, answers, and answers that are wrong; some cells are empty."""
    rows = ["question,answer,another,wrong"]
    for number in range(num_rows):
        word = f"w{number % 40}"
        wrong = "" if number % 3 == 0 else f"w{(number + 7) % 40} no"
        rows.append(f"{word} what,{word} yes {number},{word} also,{wrong}")
    path = folder / "pairs.csv"
    path.write_text("\n".join(rows) + "\n")
    return {
        "path": str(path),
        "first": "question",
        "second": "answer",
        "positives": ["another"],
        "negatives": ["wrong"],
    }


def test_pairs_have_further_columns_and_empty_cells_repeat_the_second(tmp_path):
    """Read, divided, encoded and shared by workers."""
    pairs = read_pairs(PairsConfig(**write_pairs(tmp_path)))
    assert pairs.negatives[0][:2] == ["w0 yes 0", "w8 no"]
    assert pairs.positives[0][1] == "w1 also"
    words = Vocabulary(
        [PAD_WORD, UNK_WORD, *(f"w{n}" for n in range(40)), "what", "yes", "also", "no"]
    )
    encoded = pairs.encode(words, max_length=5)
    assert len(encoded.parts) == 4
    streams = [
        PairStream(encoded, batch_size=10, seed=0, rank=rank, world_size=2, gathers=True).batch(0)
        for rank in (0, 1)
    ]
    whole = PairStream(encoded, batch_size=10, seed=0).batch(0)
    for column in range(4):
        both = [stream.parts[column].ids for stream in streams]
        np.testing.assert_array_equal(np.concatenate(both), whole.parts[column].ids)
    np.testing.assert_array_equal(streams[1].texts, number_texts(*whole.parts))


def test_run_on_pairs_with_hard_negatives_learns(tmp_path):
    """The most similar held-out sentence is a partner more often than at random."""
    config = tiny_run(
        tmp_path,
        pairs=write_pairs(tmp_path, 200),
        encoder=_ENCODERS["bag"],
        objective={"type": "contrast", "positives": "pairs"},
        training={"batch_size": 16, "epochs": 8.0, "num_reports": 4, "learning_rate": 0.01},
    )
    assert config.num_encoded == 4
    assert config.metrics == ("accuracy",)
    outcome = fit(config, tmp_path / "run")
    assert outcome.metrics["accuracy"] > 0.5
    check_resumed(config, tmp_path)


def test_key_of_a_run_on_pairs_is_that_without_further_columns(tmp_path):
    """Runs of pairs that were trained before have their key."""
    given = {
        name: value
        for name, value in write_pairs(tmp_path).items()
        if name not in ("positives", "negatives")
    }
    objective = {"type": "paraphrase_margin"}
    plain = tiny_run(tmp_path, pairs=given, objective=objective)
    values = plain.model_dump()
    assert values["pairs"].pop("negatives") == []
    assert RunConfig.model_validate(values).key == plain.key
    with pytest.raises(
        ValueError, match=r"pairs\.negatives must be left out with objective paraphrase_margin"
    ):
        tiny_run(tmp_path, pairs={**given, "negatives": ["wrong"]}, objective=objective)


def test_settings_that_do_not_fit_raise_one_clear_error(tmp_path):
    """`self` without dropout, and two directions where there is one."""
    with pytest.raises(
        ValueError, match=r"encoder\.dropout or encoder\.embedding\.dropout must be above 0"
    ):
        tiny_run(tmp_path, objective={"type": "contrast", "positives": "self"})
    for values, message in (
        ({"symmetric": True}, "symmetric must be false with positives: context"),
        ({"prefixes": [4, 2]}, r"prefixes must rise; given \[4, 2\]"),
        (
            {"prefixes": [2], "prefix_weights": [1.0, 1.0]},
            "as many as prefixes: 1 prefixes; given 2",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            validate(Config, Document(values))
    with pytest.raises(
        ValueError, match="prefixes must be below the size of the encoder's one block"
    ):
        tiny_run(tmp_path, objective={"type": "contrast", "prefixes": [8]})


def test_model_that_was_trained_to_be_cut_says_so(tmp_path):
    """Its record, the sizes that the server takes, the card of an export, and what the export encodes."""
    from sentence_transformers import SentenceTransformer

    objective = {"type": "contrast", "prefixes": [2, 4]}
    fit(
        tiny_run(tmp_path, encoder=_ENCODERS["bag"], objective=objective, training__max_steps=2),
        tmp_path / "run",
    )
    model = SentenceModel.load(tmp_path / "run")
    assert model.record.config.objective.prefixes == [2, 4]
    assert list(model.cut_sizes) == [2, 4, 6]
    raysent.export(tmp_path / "run", tmp_path / "exported")
    assert "cut to their first 2, 4 numbers" in (tmp_path / "exported" / "README.md").read_text()
    theirs = SentenceTransformer(
        str(tmp_path / "exported"), trust_remote_code=True, truncate_dim=4, device="cpu"
    )
    ours = model.encode(["w1 w2", "w3"], truncate_dim=4)
    np.testing.assert_allclose(theirs.encode(["w1 w2", "w3"]), ours, atol=1e-6)


def test_saved_model_has_one_encoder_and_trains_on(tmp_path):
    """Nothing of the objective is saved."""
    fit(tiny_run(tmp_path, objective={"type": "contrast"}, training__max_steps=2), tmp_path / "run")
    model = SentenceModel.load(tmp_path / "run")
    assert model.encode(["w1 w2"]).shape == (1, 8)
    assert not [name for name in model.tensors() if name.startswith(("g.", "objectives."))]


def test_components_say_what_objectives_read():
    """Contrast in all its kinds; others what their batches are made of."""
    table = raysent.components("objectives").set_index("name").summary
    assert table["contrast"].endswith("; reads running text, pairs, or labels of a task.")
    assert table["entailment"].endswith("; reads pairs.")


# -- labels -----------------------------------------------------------------------------------------------------------


def write_task(folder, num_rows=240, *, has_parts=True):
    """A task of three classes, each with words of its own."""
    generator = np.random.default_rng(0)
    lines = ["text,label,split"]
    for number in range(num_rows):
        label = number % 3
        words = " ".join(f"w{generator.integers(0, 13) + 13 * label}" for _ in range(5))
        lines.append(
            f"{words} {number},class{label},{('train', 'train', 'validation', 'test')[number // 3 % 4]}"
        )
    lines = lines if has_parts else [line.rpartition(",")[0] for line in lines]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    (folder / "rows.yaml").write_text("path: rows.csv\ntext: text\nlabel: label\n")
    return str(folder / "rows.yaml")


def labels_run(folder, **changes):
    """A run on the training rows of `write_task`."""
    values = {
        "labels": {"task": write_task(folder)},
        "encoder": {"type": "bag", "pooling": "mean", "embedding": {"dim": 8}},
        "objective": {"type": "contrast", "positives": "labels", "temperature": 0.1},
        "training": {"batch_size": 31, "epochs": 8.0, "num_reports": 4, "learning_rate": 0.02},
    }
    return tiny_run(folder, **{**values, **changes})


def test_labels_equal_their_restatement_and_two_columns_of_a_class():
    """Rows of the same class; with two rows a class the same as pairs against all other rows."""
    labels = np.array([0, 0, 1, 1, 2, 2, 0, 3, 1])
    column = some_texts({4: 1, 7: 2})
    batch, read = (
        LabelBatch(column, np.arange(SIZE), np.zeros(SIZE, dtype=np.int64), labels),
        Given(),
    )
    loss = Objective(Config(positives="labels", temperature=0.3))(read, batch)
    loss.backward()
    values, texts = read.vectors[0].detach().double().numpy(), texts_of(column)

    def restate(vectors):
        return reference(
            vectors,
            vectors,
            lambda i, j: labels[i] == labels[j],
            texts,
            texts,
            temperature=0.3,
            itself=True,
        )

    assert loss.item() == pytest.approx(restate(values), rel=1e-5)
    moved = [values.copy(), values.copy()]
    moved[0][2, 1] += 1e-5
    moved[1][2, 1] -= 1e-5
    expected = (restate(moved[0]) - restate(moved[1])) / 2e-5
    assert read.vectors[0].grad[2, 1].item() == pytest.approx(expected, abs=1e-4)


def test_two_rows_a_class_equal_pairs_in_all_directions():
    """Supervised contrast with one positive each is sentence-transformers' ranking loss over both columns."""
    batch = LabelBatch(
        sentences(np.full(8, 4)),
        np.arange(8),
        np.zeros(8, dtype=np.int64),
        np.concatenate([np.arange(4)] * 2),
    )
    loss = Objective(Config(positives="labels"))(Given(size=8), batch)
    vectors = Given(size=8).vectors[0]
    one, other = vectors[:4], vectors[4:]
    scores = [
        torch.cat([row, _their_scores(first, first)], dim=1)
        for row, first in ((_their_scores(one, other), one), (_their_scores(other, one), other))
    ]
    for matrix in scores:
        matrix[torch.arange(4), torch.arange(4) + 4] = -torch.inf
    expected = torch.stack(
        [torch.nn.functional.cross_entropy(matrix, torch.arange(4)) for matrix in scores]
    ).mean()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)


def _their_scores(one, other):
    """Cosines by sentence-transformers, scaled."""
    from sentence_transformers.util import cos_sim

    return cos_sim(one, other) * 20.0


def test_label_batches_are_balanced_and_divided_among_workers(tmp_path):
    """A function of the step; no row twice in a batch, and all rows of a large class within some epochs."""
    labels = np.array([0] * 40 + [1] * 9 + [2] * 3 + [3])
    texts = sentences(np.full(len(labels), 3))
    stream = LabelStream(texts, labels, batch_size=16, seed=1)
    with pytest.raises(DataError, match="workers 15: must be at most 14, the rows of a batch"):
        LabelStream(texts, labels, batch_size=16, seed=1, world_size=15)
    seen = set()
    for step in range(20):
        batch = stream.batch(step)
        assert np.bincount(batch.labels).tolist() == [6, 5, 3]
        assert len(set(batch.positions.tolist())) == 14
        seen |= set(batch.positions.tolist())
        np.testing.assert_array_equal(
            batch.positions, LabelStream(texts, labels, batch_size=16, seed=1).batch(step).positions
        )
    assert seen >= set(range(40))
    parts = [
        LabelStream(
            texts, labels, batch_size=16, seed=1, rank=rank, world_size=2, gathers=True
        ).batch(3)
        for rank in (0, 1)
    ]
    whole = stream.batch(3)
    np.testing.assert_array_equal(
        np.concatenate([part.sentences.ids for part in parts]), whole.sentences.ids
    )
    for part in parts:
        np.testing.assert_array_equal(part.labels, whole.labels)
        np.testing.assert_array_equal(part.texts, number_texts(whole.sentences))


def test_run_reads_training_rows_alone_learns_and_says_so(tmp_path):
    """Other rows' words are unknown to it; its record names the task, and so do scores, cards and what continues it."""
    config = labels_run(tmp_path)
    data = open_training_data(config)
    numbers = {int(text.split()[-1]) for text in data.labels.train}
    assert numbers == {number for number in range(240) if number // 3 % 4 < 2}
    check_resumed(config, tmp_path)
    model = SentenceModel.load(tmp_path / "whole")
    assert list(model.learned_tasks) == ["rows"]
    after, before = (
        raysent.evaluate([name], tasks=[config.labels.task], output=tmp_path / folder)
        for name, folder in (
            (str(tmp_path / "whole"), "one"),
            (f"start:{tmp_path / 'whole'}", "two"),
        )
    )
    assert bool(after.learned.iloc[0]) is True
    assert "learned" not in before
    assert after.test.iloc[0] > 90
    further = tiny_run(
        tmp_path, initial=str(tmp_path / "whole"), encoder=None, objective={"type": "contrast"}
    )
    fit(further, tmp_path / "further")
    for name in (str(tmp_path / "further"), f"start:{tmp_path / 'further'}"):
        assert raysent.load(name).learned_tasks == dict(model.learned_tasks)


def test_own_rows_come_before_those_of_the_start(tmp_path):
    """A run on more rows of the task that its start learned records its own; the start's other tasks follow."""
    config = labels_run(tmp_path, training__max_steps=1)
    fit(config, tmp_path / "first")
    model = SentenceModel.load(tmp_path / "first")
    given = {"other": "rows", **model.learned_tasks}
    model.learned_tasks = given
    model.save(tmp_path / "first")
    further = labels_run(
        tmp_path, encoder=None, initial=str(tmp_path / "first"), training__max_steps=1
    )
    write_task(tmp_path, 300)
    data = open_training_data(further)
    assert data.labels.row_hash != given["rows"]
    learned = build_model(further, data).learned_tasks
    assert list(learned.items()) == [("rows", data.labels.row_hash), ("other", "rows")]


def test_labels_that_are_not_there_are_refused(tmp_path):
    """No labels named, and too small a batch."""
    with pytest.raises(ValueError, match=r"labels\.task must name a task for objective contrast"):
        labels_run(tmp_path, labels=None)
    with pytest.raises(DataError, match=r"training\.batch_size: must be at least 6"):
        fit(labels_run(tmp_path, training__batch_size=5), tmp_path / "run")


def test_sweep_space_takes_the_task_that_is_named(tmp_path):
    """Its labels are learned and it ranks trials; a second task, or none, is not guessed."""
    space, task = space_of("labels"), TaskSet.resolve([write_task(tmp_path)])
    named = with_labels_of(space, task)
    config = named.config(named.first_params())
    assert config.labels.task == config.validation.downstream.tasks[0] == task.tasks[0].spec
    assert with_labels_of(space, dataclasses.replace(task, are_named=False)) is space
    other = TaskSet.resolve(["docs-library"])
    assert with_labels_of(named, other) is named
    with pytest.raises(
        ConfigError,
        match=r"labels\.task: must name the task whose labels are learned; given rows, docs",
    ):
        with_labels_of(space, TaskSet((*task, *other)))
    with pytest.raises(
        ConfigError, match=r"labels\.task: must name the task whose training rows are learned"
    ):
        open_training_data(space.config(space.first_params()))


def test_encoder_without_a_type_changes_that_of_the_start(tmp_path):
    """Dropout for second readings; the rest is the model's."""
    fit(tiny_run(tmp_path, training__max_steps=1), tmp_path / "run")
    changes = {"initial": str(tmp_path / "run"), "encoder": {"dropout": 0.1}}
    config = tiny_run(tmp_path, **changes, objective={"type": "contrast", "positives": "self"})
    assert (config.encoder.type, config.encoder.hidden_size, config.encoder.dropout) == (
        "gru",
        8,
        0.1,
    )
    assert fit(config, tmp_path / "further").status == "finished"


def test_cached_pretrained_encoder_has_the_same_gradient(tmp_path):
    """Dropout inside its layers is drawn again as it was."""
    pytest.importorskip("transformers")
    encoder = {"type": "pretrained", "path": str(write_bert(tmp_path / "bert")), "dropout": 0.1}
    found = []
    for cached in (False, True):
        objective = {"type": "contrast", "positives": "self", "cached": cached, "micro_batch": 24}
        config = tiny_run(tmp_path, encoder=encoder, objective=objective, corpus__max_length=12)
        found.append(gradients_of(config)[0])
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, atol=1e-5, rtol=1e-4)


def test_task_equals_its_restatement_and_learns(tmp_path):
    """Cross-entropy of a linear layer with smoothed classes; a probe on the vectors of the trained model tells them."""
    batch, read = (
        LabelBatch(
            some_texts({}), np.arange(SIZE), np.zeros(SIZE, dtype=np.int64), np.arange(SIZE) % 3
        ),
        Given(),
    )
    context = build_context(dim=6)
    objective = build_objective(OBJECTIVES["task"].Config(label_smoothing=0.2), context)
    loss = objective(read, batch)
    weight, bias = (value.detach().double().numpy() for value in objective.layer.parameters())
    losses = []
    for vector, label in zip(
        Given().vectors[0].detach().double().numpy(), batch.labels, strict=True
    ):
        logits = weight @ vector + bias
        log_probabilities = logits - np.log(np.exp(logits).sum())
        target = 0.2 / 3 + 0.8 * (np.arange(3) == label)
        losses.append(-(target * log_probabilities).sum())
    assert loss.item() == pytest.approx(np.mean(losses), rel=1e-5)
    check_resumed(labels_run(tmp_path, objective={"type": "task"}), tmp_path)
    model = SentenceModel.load(tmp_path / "whole")
    assert list(model.learned_tasks) == ["rows"]
    scores = raysent.evaluate(
        [str(tmp_path / "whole")], tasks=[str(tmp_path / "rows.yaml")], output=tmp_path / "scores"
    )
    assert scores.test.iloc[0] > 90
