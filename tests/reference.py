"""Slow and obvious NumPy restatements of the formulas: the oracles of the tests."""

import numpy as np


def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def gru_last_state(vectors, parameters, *, reset="after", backwards=False):
    """Return the state [hidden] after the last of one sentence's word vectors [time, dim].

    Args:
        vectors: Word vectors in reading order.
        parameters: weight_ih, weight_hh, bias_ih, bias_hh; blocks r, z, c.
        reset: Whether the reset gate acts after or before the product with the state.
        backwards: Whether the sentence is read from its end.
    """
    weight_ih, weight_hh, bias_ih, bias_hh = (
        np.asarray(parameter, dtype=np.float64) for parameter in parameters
    )
    hidden = weight_hh.shape[1]
    state = np.zeros(hidden)
    for vector in vectors[::-1] if backwards else vectors:
        x_r, x_z, x_c = np.split(weight_ih @ vector + bias_ih, 3)
        u_r, u_z, u_c = np.split(weight_hh, 3)
        b_r, b_z, b_c = np.split(bias_hh, 3)
        r, z = sigmoid(x_r + u_r @ state + b_r), sigmoid(x_z + u_z @ state + b_z)
        product = r * (u_c @ state + b_c) if reset == "after" else u_c @ (r * state) + b_c
        state = z * state + (1 - z) * np.tanh(x_c + product)
    return state


def bag(vectors, *, pooling="sum"):
    """Return the sum or the mean [dim] of one sentence's word vectors [time, dim]."""
    return vectors.sum(axis=0) if pooling == "sum" else vectors.mean(axis=0)


def context_prediction(
    f, g, positions, documents, *, context_size=1, diagonal="exclude", target="mean"
):
    """Return the loss of vectors f and g [batch, dim], sentence by sentence and candidate by candidate."""
    losses = []
    for i in range(len(f)):
        scores = {}
        for j in range(len(g)):
            if positions[i] == positions[j]:
                if diagonal == "zero":
                    scores[j] = 0.0
                continue
            scores[j] = float(f[i] @ g[j])
        neighbours = [
            j
            for j in range(len(g))
            if documents[i] == documents[j]
            and 1 <= abs(positions[i] - positions[j]) <= context_size
        ]
        if not neighbours:
            continue
        total = np.logaddexp.reduce(list(scores.values()))
        share = 1 / len(neighbours) if target == "mean" else 1.0
        losses.append(sum(share * (total - scores[j]) for j in neighbours))
    return float(np.mean(losses))


def whitened(sample, vectors, *, kept):
    """Return vectors on the first principal axes of a sample, each divided by its standard deviation there."""
    _, spread, axes = np.linalg.svd(sample - sample.mean(axis=0), full_matrices=False)
    return ((vectors - sample.mean(axis=0)) @ axes[:kept].T) / (
        spread[:kept] / np.sqrt(len(sample) - 1)
    )


def without_top_component(vectors):
    """Return vectors [rows, dim] of unit length without the first right singular vector of all of them, by NumPy's SVD."""
    direction = np.linalg.svd(vectors, full_matrices=False)[2][0]
    rest = vectors - np.outer(vectors @ direction, direction)
    return np.stack([unit(vector) for vector in rest])


def unit(vector):
    """Return a vector of length 1."""
    return vector / np.linalg.norm(vector)


def decode_sentence(vector, words, table, decoder, output, *, kind="cond"):
    """Return the summed negative log-likelihood of writing one sentence and its end, word by word.

    Args:
        vector: The encoded sentence [dim].
        words: Ids of the sentence to be written; its end is the word 0.
        table: Word vectors [vocabulary, word dim].
        decoder: weight_ih, weight_hh, bias and, for `cond`, weight_vh; blocks r, z, c.
        output: Weight [vocabulary, hidden] and bias [vocabulary].
        kind: `cond` or `init`.
    """
    weight_ih, weight_hh, bias, *rest = (np.asarray(value, dtype=np.float64) for value in decoder)
    hidden = weight_hh.shape[1]
    state = np.zeros(hidden) if kind == "cond" else np.asarray(vector, dtype=np.float64)
    from_vector = rest[0] @ vector if kind == "cond" else np.zeros(3 * hidden)
    total, before = 0.0, np.zeros(table.shape[1])
    for word in [*words, 0]:
        x_r, x_z, x_c = np.split(weight_ih @ before + bias + from_vector, 3)
        u_r, u_z, u_c = np.split(weight_hh, 3)
        r, z = sigmoid(x_r + u_r @ state), sigmoid(x_z + u_z @ state)
        state = z * state + (1 - z) * np.tanh(x_c + r * (u_c @ state))
        scores = output[0] @ state + output[1]
        total += np.logaddexp.reduce(scores) - scores[word]
        before = table[word]
    return total


def convolution(vectors, weight, bias, *, pooling="sum", activation="linear"):
    """Return one window's filters [filters] over one sentence's word vectors [time, dim].

    Args:
        vectors: Word vectors in reading order.
        weight: [width, filters, dim].
        bias: [filters].
        pooling: `sum`, `mean` or `max`.
        activation: `linear` or `tanh`.
    """
    width = len(weight)
    if len(vectors) < width:
        vectors = np.concatenate([vectors, np.zeros((width - len(vectors), vectors.shape[1]))])
    places = [
        bias + sum(weight[k] @ vectors[t + k] for k in range(width))
        for t in range(len(vectors) - width + 1)
    ]
    values = np.tanh(places) if activation == "tanh" else np.array(places)
    return {"sum": values.sum, "mean": values.mean, "max": values.max}[pooling](axis=0)


def paraphrase_margin(first, second, *, margin=0.4):
    """Return the loss with the most alike negatives of pairs of vectors [pairs, dim], without the penalties."""
    pairs = len(first)
    both = [unit(vector) for vector in [*first, *second]]
    total = 0.0
    for i in range(2 * pairs):
        others = [j for j in range(2 * pairs) if j % pairs != i % pairs]
        nearest = max(float(both[i] @ both[j]) for j in others)
        partner = float(both[i] @ both[(i + pairs) % (2 * pairs)])
        total += max(0.0, margin - partner + nearest)
    return total / pairs


def context_alternatives(f, g, documents, *, context_size=1, num_negatives=5.0, margin=1.0):
    """Return the window classifier's loss and the context margin's, sentence by sentence."""
    classifier, hinges = [], []
    for i in range(len(f)):
        scores = [float(f[i] @ g[j]) for j in range(len(g))]
        near = [
            j
            for j in range(len(g))
            if documents[i] == documents[j] and 1 <= abs(i - j) <= context_size
        ]
        far = [j for j in range(len(g)) if j != i and j not in near]
        if not near:
            continue
        right = np.mean([-np.log(sigmoid(scores[j])) for j in near])
        wrong = np.mean([-np.log(sigmoid(-scores[k])) for k in far])
        classifier.append(right + num_negatives * wrong)
        hinges.append(
            np.mean([[max(0.0, margin - scores[j] + scores[k]) for k in far] for j in near])
        )
    return float(np.mean(classifier)), float(np.mean(hinges))


def _log_softmax(row):
    """Log of exp(row) / sum of exp(row)."""
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


def view_agreement(
    f, g, positions, documents, *, context_size=3, temperature=1.0, includes_itself=True
):
    """Mean over sentences of the sum over neighbours of -log p (equation 3); cosines of both ways."""
    losses = []
    for i in range(len(f)):
        scores = np.array(
            [unit(f[i]) @ unit(g[j]) + unit(g[i]) @ unit(f[j]) for j in range(len(f))]
        )
        log_p = _log_softmax(scores / temperature)
        right = [
            j
            for j in range(len(f))
            if documents[i] == documents[j]
            and abs(positions[i] - positions[j]) <= context_size
            and (i != j or includes_itself)
        ]
        if right:
            losses.append(-np.sum(log_p[right]))
    return np.mean(losses)


def self_agreement(f, positions, documents, *, context_size=3):
    """The same of one view, the sentence itself left out of candidates and neighbours."""
    losses = []
    for i in range(len(f)):
        others = [j for j in range(len(f)) if j != i]
        log_p = _log_softmax(np.array([unit(f[i]) @ unit(f[j]) for j in others]))
        right = [
            place
            for place, j in enumerate(others)
            if documents[i] == documents[j] and abs(positions[i] - positions[j]) <= context_size
        ]
        if right:
            losses.append(-np.sum(log_p[right]))
    return np.mean(losses)


def view_generation(f, rows, documents, negatives, weight, table):
    """Mean over the words of each next sentence of -log s(x.v) - sum over negatives of log s(-x.v)."""
    losses = []
    for i in range(len(f) - 1):
        if documents[i] != documents[i + 1]:
            continue
        x = f[i] @ weight
        for word in rows[i + 1]:
            loss = -np.log(sigmoid(x @ table[word]))
            losses.append(loss - sum(np.log(sigmoid(-x @ table[k])) for k in negatives[i]))
    return np.mean(losses)


def entailment(u, v, layers, labels, *, activation="linear"):
    """Mean cross-entropy of a classifier over [u ; v ; |u - v| ; u * v]."""
    losses = []
    for one, other, label in zip(u, v, labels, strict=True):
        values = np.concatenate([one, other, abs(one - other), one * other])
        for number, (weight, bias) in enumerate(layers):
            values = (
                weight @ (np.tanh(values) if number and activation == "tanh" else values) + bias
            )
        losses.append(-_log_softmax(values)[label])
    return np.mean(losses)


def relatedness(u, v, hidden, output, scores, *, unit_length=True):
    """Mean over pairs of KL, and the predicted scores."""
    losses, predicted = [], []
    for left, right, score in zip(u, v, scores, strict=True):
        one, other = (unit(left), unit(right)) if unit_length else (left, right)
        features = np.concatenate([one * other, abs(one - other)])
        log_p = _log_softmax(output[0] @ sigmoid(hidden[0] @ features + hidden[1]) + output[1])
        target = np.full(5, 1e-6)
        low = int(np.floor(score))
        target[low - 1] += low + 1 - score
        if low < 5:
            target[low] += score - low
        losses.append(np.sum(target * (np.log(target) - log_p)))
        predicted.append(np.exp(log_p) @ np.arange(1, 6))
    return np.mean(losses), np.array(predicted)


def greedy_counts(right, *, max_size=25):
    """Caruana's selection with replacement by NLL, with a sorted start; `right` is [members, rows] of p(right class)."""

    def nll(chosen):
        return -np.mean(
            [
                np.log(np.mean([right[member][row] for member in chosen]))
                for row in range(len(right[0]))
            ]
        )

    order = sorted(range(len(right)), key=lambda member: nll([member]))
    starts = [order[:size] for size in range(1, min(max_size, len(right)) + 1)]
    path = list(min(starts, key=nll))
    best, best_nll = list(path), nll(path)
    while len(path) < max_size:
        path.append(min(order, key=lambda member: nll([*path, member])))
        if nll(path) < best_nll:
            best, best_nll = list(path), nll(path)
    return [best.count(member) for member in range(len(right))]


def penalised_nll(weights, log_p, labels, strength):
    """Mean NLL of the logarithmic pool and the pull towards equal shares; log_p is [members][rows][classes]."""
    members, losses = len(log_p), []
    for row, label in enumerate(labels):
        scores = sum(weights[m] * np.asarray(log_p[m][row]) for m in range(members))
        losses.append(-_log_softmax(scores)[label])
    return np.mean(losses) + strength * members / 2 * sum((w - 1 / members) ** 2 for w in weights)


def calibration_error(log_p, labels, *, num_bins):
    """Mean distance of confidence and accuracy over bins of equally many rows."""
    found = sorted(
        (np.exp(row.max()), row.argmax() == label) for row, label in zip(log_p, labels, strict=True)
    )
    bins = np.array_split(np.array(found), num_bins)
    return sum(abs(np.mean(one[:, 0]) - np.mean(one[:, 1])) * len(one) for one in bins) / len(found)


def nearest_by_cosine(vectors, query, k):
    """Return (row, cosine) of the k vectors with the highest cosine, one at a time; the earlier row where equal."""
    found = []
    for row, vector in enumerate(np.asarray(vectors, dtype=np.float64)):
        lengths = np.linalg.norm(vector) * np.linalg.norm(query)
        found.append((row, float(vector @ query) / lengths if lengths else 0.0))
    return sorted(found, key=lambda one: (-round(one[1], 9), one[0]))[:k]


def nearest_by_bits(bits, query, k):
    """Return (row, differing bits) of the k codes with the fewest; the earlier row where equal."""
    found = [
        (row, sum(a != b for a, b in zip(code, query, strict=True)))
        for row, code in enumerate(bits)
    ]
    return sorted(found, key=lambda one: (one[1], one[0]))[:k]


def image_recalls(similarity, image_of):
    """Return R@1, R@5, R@10 and the median rank of captions by images, then of images by captions."""
    by_image, by_caption = [], []
    for image in range(similarity.shape[1]):
        order = sorted(
            range(len(similarity)), key=lambda caption: (-similarity[caption, image], caption)
        )
        by_image.append(
            min(place for place, caption in enumerate(order) if image_of[caption] == image)
        )
    for caption, row in enumerate(similarity):
        order = sorted(range(len(row)), key=lambda image: (-row[image], image))
        by_caption.append(order.index(image_of[caption]))
    return [
        [
            *(100 * sum(rank < cutoff for rank in ranks) / len(ranks) for cutoff in (1, 5, 10)),
            int(np.median(ranks)) + 1,
        ]
        for ranks in (by_image, by_caption)
    ]


def ranking_loss(images, captions, others, *, margin, normalizes_images):
    """Return the sum of hinges of pairs (row, row), each against other captions' and other images' rows, both ways."""
    if normalizes_images:
        images = np.stack([unit(image) for image in images])
    captions = np.stack([unit(caption) for caption in captions])
    total = 0.0
    for row, other_captions, other_images in others:
        right = images[row] @ captions[row]
        total += sum(
            max(0.0, margin - right + images[row] @ captions[other]) for other in other_captions
        )
        total += sum(
            max(0.0, margin - right + captions[row] @ images[other]) for other in other_images
        )
    return total


def log_opinion_pool(log_probabilities, scores):
    """Return log p(y) proportional to the sum of w_m log p_m(y), w_m = s_m / sum of s [rows, classes], row by row."""
    weights = [score / sum(scores) for score in scores]
    rows = []
    for row in range(len(log_probabilities[0])):
        total = sum(
            weight * np.float64(member[row])
            for weight, member in zip(weights, log_probabilities, strict=True)
        )
        rows.append(total - np.log(np.sum(np.exp(total - total.max()))) - total.max())
    return np.array(rows)


def distillation(
    student, targets, probabilities=(), *, weights=(), lambda_similarity=1.0, lambda_tasks=1.0
):
    """Return the loss of students' vectors [batch, dim], sentence by sentence, without a map.

    Args:
        student: Vectors [batch, dim].
        targets: The teacher's vectors [batch, dim].
        probabilities: For each task the teacher's probabilities [batch, classes].
        weights: For each task the probe's matrix [classes, dim] and bias [classes].
        lambda_similarity: Weight of the cosines between sentences.
        lambda_tasks: Weight of the divergences.
    """

    def cosine(a, b):
        return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))

    batch = len(student)
    loss = np.mean([1 - cosine(s, t) for s, t in zip(student, targets, strict=True)])
    pairs = [(i, j) for i in range(batch) for j in range(batch) if i != j]
    gaps = [cosine(student[i], student[j]) - cosine(targets[i], targets[j]) for i, j in pairs]
    loss += lambda_similarity * np.mean(np.square(gaps))
    divergences = []
    for expected, (matrix, bias) in zip(probabilities, weights, strict=True):
        for vector, row in zip(student, expected, strict=True):
            scores = np.exp(matrix @ vector + bias)
            divergences.append(
                np.sum(row * np.log(row / (scores / scores.sum()))) / len(probabilities)
            )
    return loss + lambda_tasks * np.sum(divergences) / batch if divergences else loss


def threshold_bits(vectors, threshold):
    """Return a bit for each number of vectors [rows, dim]: 1 where it is above the threshold (Shen et al., equation 1)."""
    return np.array([[float(number > threshold) for number in vector] for vector in vectors])


def hamming(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return how many bits differ of packed codes, uint8 [rows, bytes] and [columns, bytes]: [rows, columns]."""
    return np.unpackbits(first[:, None] ^ second[None], axis=2).sum(axis=2, dtype=np.int64)


def contrast(
    anchors, candidates, is_positive, anchor_texts, candidate_texts, *, temperature, itself=False
):
    """Return the contrastive loss of vectors, anchor by anchor and candidate by candidate.

    Args:
        anchors: Vectors [anchors, dim].
        candidates: Vectors [candidates, dim].
        is_positive: Function of an anchor's and a candidate's number.
        anchor_texts: The text of each anchor.
        candidate_texts: The text of each candidate.
        temperature: Divides the cosines.
        itself: Whether candidate i is anchor i.
    """
    losses = []
    for i, anchor in enumerate(anchors):
        places = [j for j in range(len(candidates)) if not (itself and i == j)]
        positives = [j for j in places if is_positive(i, j)]
        known = {anchor_texts[i], *(candidate_texts[j] for j in positives)}
        scores = {}
        for j in places:
            if j in positives or candidate_texts[j] not in known:
                cosine = (
                    anchor @ candidates[j] / np.linalg.norm(anchor) / np.linalg.norm(candidates[j])
                )
                scores[j] = cosine / temperature
        if positives:
            total = np.log(sum(np.exp(score) for score in scores.values()))
            losses.append(np.mean([total - scores[j] for j in positives]))
    return np.mean(losses)
