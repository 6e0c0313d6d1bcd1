"""What a user brings: a folder of books, a table of reviews and a file of sentences, small and made by a seed."""

from __future__ import annotations

import csv
import random
from pathlib import Path

# Settings of a sweep of seconds.
SMALL = [
    "--set=encoder.hidden_size=16",
    "--set=encoder.embedding.dim=16",
    "--set=training.batch_size=50",
    "--set=training.epochs=2",
    "--set=vocabulary.size=200",
    "--set=validation={num_candidates: 20, num_sentences: 60}",
]
_SCENES = {
    "harbour": [
        "ship",
        "sail",
        "harbour",
        "captain",
        "anchor",
        "wave",
        "tide",
        "crew",
        "rope",
        "deck",
    ],
    "kitchen": [
        "bread",
        "oven",
        "flour",
        "kettle",
        "cook",
        "table",
        "spoon",
        "soup",
        "butter",
        "salt",
    ],
    "garden": [
        "rose",
        "hedge",
        "spade",
        "seed",
        "gardener",
        "lawn",
        "frost",
        "bee",
        "apple",
        "wall",
    ],
    "court": [
        "judge",
        "witness",
        "lawyer",
        "verdict",
        "prison",
        "letter",
        "oath",
        "jury",
        "crime",
        "clerk",
    ],
}
_VERBS = ["saw", "took", "left", "found", "kept", "lost", "wanted", "watched", "carried", "praised"]
_GOOD = ["easy", "quick", "friendly", "excellent", "clean", "generous", "reliable", "cheerful"]
_BAD = ["slow", "broken", "rude", "terrible", "dirty", "greedy", "useless", "gloomy"]
_THINGS = ["hotel", "camera", "waiter", "novel", "laptop", "train", "teacher", "restaurant"]


def sentence(words: list[str], draw: random.Random) -> str:
    """Return one sentence about a scene."""
    first, second, third = draw.sample(words, 3)
    return f"The {first} {draw.choice(_VERBS)} the {second} near the {third}."


def write_books(folder: Path, *, books: int = 4, paragraphs: int = 60) -> None:
    """Write books of one paragraph a line; a paragraph stays in one scene."""
    draw = random.Random(1)
    folder.mkdir()
    for book in range(books):
        scenes = [draw.choice(list(_SCENES.values())) for _ in range(paragraphs)]
        lines = [" ".join(sentence(scene, draw) for _ in range(5)) for scene in scenes]
        (folder / f"book-{book}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def review(label: str, draw: random.Random) -> str:
    """Return a review; one in ten says the opposite of its label."""
    words = _GOOD if (label == "positive") == (draw.random() > 0.1) else _BAD
    scene = draw.choice(list(_SCENES.values()))
    return f"The {draw.choice(_THINGS)} by the {draw.choice(scene)} was {draw.choice(words)}, and the {draw.choice(scene)} too."


def write_reviews(path: Path, *, rows: int = 600) -> None:
    """Write a table with the columns text and label."""
    draw = random.Random(2)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        for number in range(rows):
            label = "positive" if number % 2 else "negative"
            table.writerow([review(label, draw), label])


def write_sentences(path: Path, *, rows: int = 50) -> None:
    """Write one sentence a line."""
    draw = random.Random(3)
    path.write_text(
        "".join(sentence(draw.choice(list(_SCENES.values())), draw) + "\n" for _ in range(rows))
    )


def write_questions(folder: Path, table: Path, *, passages: int = 240, queries: int = 60) -> None:
    """Write two files of passages, one a line, and a table of what asks for some of them in other words."""
    draw = random.Random(4)
    made = dict.fromkeys(
        sentence(draw.choice(list(_SCENES.values())), draw) for _ in range(passages)
    )
    lines = [f"{line}\n" for line in made]
    folder.mkdir()
    (folder / "one.txt").write_text("".join(lines[::2]))
    (folder / "two.txt").write_text("".join(lines[1::2]))
    with table.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["query", "passage"])
        for line in list(made)[:queries]:
            words = line.rstrip(".").split()
            rows.writerow([f"{words[7]} with {words[4]} and {words[1]}", line])
