"""Languages: which one a text is in, its sentences, and sub-words that leave nothing unknown."""

from __future__ import annotations

import errno
import itertools
import json
import pickle
import re
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import sentencex
from tokenizers import Regex, models, pre_tokenizers, trainers

from raysent.data.corpus import CorpusConfig, corpus_word_vectors, prepare, vocabulary_type
from raysent.data.languages import find_language
from raysent.data.pairs import PairCorpus, PairsConfig
from raysent.data.sentences import split_sentences
from raysent.data.vocabulary import (
    UNK_ID,
    SubwordVocabulary,
    Vocabulary,
    VocabularyConfig,
    train_subwords,
)
from raysent.errors import ArtifactError, ConfigError
from raysent.exports.folder import export
from raysent.models import ModelConfig, SentenceModel, load
from raysent.training.loop import fit
from tests.tiny_run import tiny_run

# Two sentences each, some with an abbreviation or a date that the library knows.
TEXTS = {
    "ar": "جلس القط على الحصيرة. هل رأيته اليوم؟",
    "cs": "Kočka spala na okně. Přišel p. Novák a dal jí mléko.",
    "da": "Katten sover på stolen. Kl. 3 spiser den fisk.",
    "de": "Am 3. Mai war Dr. Müller z.B. in Köln. Die Katze schlief auf dem Stuhl.",
    "el": "Η γάτα κοιμάται στην καρέκλα. Πού είναι ο σκύλος;",
    "es": "El Sr. García compró pan. ¿Dónde está el gato?",
    "fi": "Kissa nukkuu tuolilla. Esim. eilen se söi kalaa.",
    "fr": "Le chien n'est pas là. Le chat dort sur la chaise.",
    "hi": "बिल्ली कुर्सी पर सो रही है। कुत्ता कहाँ है?",
    "it": "Il dott. Rossi è qui. Il gatto dorme sulla sedia.",
    "ja": "猫は椅子で寝ています。犬はどこですか？",
    "ko": "고양이가 의자에서 잔다. 개는 어디에 있니?",
    "nl": "De heer dr. Jansen is er. De kat slaapt op de stoel.",
    "pl": "Kot śpi na krześle. Pies pije np. mleko.",
    "pt": "O Sr. Silva chegou. O gato dorme na cadeira.",
    "ru": "Кошка спит на стуле. Где сейчас собака и т.д.?",
    "sv": "Katten sover på stolen. Var är hunden nu?",
    "th": "แมวนอนอยู่บนเก้าอี้ หมาอยู่ที่ไหน",
    "tr": "Kedi sandalyede uyuyor. Dr. Yılmaz ona süt verdi.",
    "zh": "猫在椅子上睡觉。狗在哪里？",
}
_PARTS = [
    "猫在椅子上睡觉",
    "我喜欢这只小狗",
    "今天下雨了",
    "他们去公园散步",
    "老师给学生讲故事",
    "妈妈在厨房做饭",
]


def chinese(num_documents: int) -> list[str]:
    """Return made reviews of several sentences."""
    draw = np.random.default_rng(0)
    return [
        "".join(f"{_PARTS[part]}。" for part in draw.integers(0, len(_PARTS), 4))
        for _ in range(num_documents)
    ]


def write(folder: Path, texts: list[str], name: str = "text.jsonl") -> CorpusConfig:
    """Write texts as documents and return a corpus of them."""
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    (folder / name).write_text("".join(lines))
    return CorpusConfig(
        path=str(folder / name), cache_dir=str(folder / "cache"), validation_fraction=0.2
    )


@pytest.mark.parametrize("code", TEXTS)
def test_sentences_are_those_of_the_library_in_the_language(code) -> None:
    """Both sentences of each text, and the library's own rules beyond."""
    found = split_sentences(TEXTS[code], code)
    assert found == [piece.strip() for piece in sentencex.segment(code, TEXTS[code])]
    assert len(found) == (1 if code == "th" else 2)
    assert find_language(3 * TEXTS[code], default="en") in {code, "no" if code == "da" else code}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "de",
            [
                "Frau Dr. Weber wohnt seit dem 3. Mai in Bonn, z.B. bei uns.",
                "„Kommst du?“, fragte sie.",
                "Ja!",
            ],
        ),
        (
            "es",
            [
                "La Sra. Ruiz vive aquí desde 1901.",
                "¿Dónde está el gato?",
                "¡Duerme con el Dr. Gil!",
            ],
        ),
        ("it", ["Il sig. Bianchi legge il giornale.", "Che ore sono?", "Sono le 3.30 circa."]),
        ("ja", ["猫は3.5キロです。", "犬はどこですか？", "庭にいます！"]),
        ("pl", ["Ola ma np. kota i psa.", "Gdzie on jest?", "Śpi na stole nr 3!"]),
        ("ru", ["Он родился в 1901 г. в Москве.", "Где живёт А. С. Иванов?", "Не знаю."]),
    ],
)
def test_sentences_of_running_text_are_those_that_a_reader_sees(code, expected) -> None:
    """Abbreviations, dates, initials and quoted marks do not end one."""
    assert (
        split_sentences(" ".join(expected) if code != "ja" else "".join(expected), code) == expected
    )


def test_language_of_short_text_is_the_default() -> None:
    """A few Latin letters say nothing; Han characters alone may be Japanese in Japanese text."""
    assert find_language("Bad.", default="fr") == "fr"
    assert find_language("They were not with us, but she was here.", default="fr") == "en"
    assert (find_language("大変満足", default="ja"), find_language("大变满足", default="en")) == (
        "ja",
        "zh",
    )


def test_a_full_folder_of_temporary_files_is_named(monkeypatch) -> None:
    """The library unpacks its model there when it is first asked."""

    def fail(text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("py3langid.classify", fail)
    expected = f"^{re.escape(tempfile.gettempdir())}: the disk is full; free some space"
    with pytest.raises(ArtifactError, match=expected):
        find_language(TEXTS["de"], default="en")


def test_each_document_is_split_in_its_language(tmp_path) -> None:
    """Of a mixed corpus; a given language holds for all, and makes another corpus."""
    english = "The cat was not here, and they were with Mr. Brown. It is the dog that barks. "
    config = write(tmp_path, [3 * english, 3 * f"{TEXTS['de']} ", 3 * english])
    found = prepare(config, VocabularyConfig())
    assert (found.language, np.diff(np.sort(found.document_starts)).sum()) == ("en", 18)
    given = prepare(config.model_copy(update={"language": "en"}), VocabularyConfig())
    assert given.num_sentences > found.num_sentences
    assert given.text_key != found.text_key


def test_subwords_leave_nothing_unknown() -> None:
    """Of any text; what names the padding is text; the same text gives the same sub-words in another process."""
    config = VocabularyConfig(type="subwords", size=700, lowercase=True)
    vocabulary = train_subwords(chinese(200), config)
    odd = [
        "猫 Cat <pad> <unk> <0x41>",
        "\U0001f642 naïve \ud800",
        "".join(map(chr, range(0x20, 0x3000, 7))),
    ]
    ids = vocabulary.ids([*odd, "", " \n"], max_length=10_000)
    assert (ids.ids[: ids.lengths[:3].sum()] > UNK_ID).all()
    assert ids.ids[-2:].tolist() == [UNK_ID, UNK_ID]
    assert vocabulary.tokenize(["CAT ＣＡＴ"]) == vocabulary.tokenize(["cat cat"])
    code = (
        "from tests.test_languages import *; print(train_subwords(chinese(200),"
        " VocabularyConfig(type='subwords', size=700, lowercase=True)).key_values)"
    )
    again = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert again.strip() == str(vocabulary.key_values)
    assert pickle.loads(pickle.dumps(vocabulary)).words == vocabulary.words
    with pytest.raises(
        ConfigError, match=r"^vocabulary\.size: must be at least 512 for sub-words; given 300$"
    ):
        train_subwords(["a"], VocabularyConfig(type="subwords", size=300))


@pytest.mark.parametrize("lowercase", [False, True])
def test_subwords_are_those_of_the_library_on_the_text_itself(lowercase) -> None:
    """It divides each run once; the library, given whole sentences, divides and counts to the same vocabulary."""
    english = [
        "The cat's here—and it_was 'with' ＣＡＴ 3,000 times: n°5 (Œuvre)!",
        "A cat\x00sat, it sat. \ud800 Naïve?",
    ]
    texts = [
        *chinese(60),
        *(f"{text} {word}" for text in english for word in ("sat", "Cats", "it") * 9),
    ]
    found = train_subwords(texts, VocabularyConfig(type="subwords", size=700, lowercase=lowercase))
    whole = found.tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        min_frequency=5,
        special_tokens=found.words[:258],
        initial_alphabet=[word for word in found.words[258:] if len(word) == 1],
        limit_alphabet=sum(len(word) == 1 for word in found.words[258:]),
        max_token_length=17,
        show_progress=False,
    )
    cut = [" ".join(re.findall(r"\S{1,16}", text.replace("\ud800", "\ufffd"))) for text in texts]
    whole.model = models.BPE(byte_fallback=True, unk_token="<unk>")
    whole.train_from_iterator(cut, trainer)
    assert [whole.id_to_token(place) for place in range(len(found.words))] == found.words
    assert len(found.words) > 330


def misspelt(sentence: str, draw: np.random.Generator) -> str:
    """Return a sentence in which one letter of a tenth of the words is swapped with the next, left out or repeated."""
    words = sentence.split()
    for place in np.flatnonzero(draw.uniform(size=len(words)) < 0.1):
        word, at = words[place], int(draw.integers(max(1, len(words[place]) - 1)))
        swapped = word[:at] + word[at + 1 : at + 2] + word[at : at + 1] + word[at + 2 :]
        words[place] = (swapped, word[:at] + word[at + 1 :], word[:at] + word[at:][:1] + word[at:])[
            draw.integers(3)
        ]
    return " ".join(words)


def test_misspelt_words_are_unknown_to_words_and_not_to_subwords(tmp_path) -> None:
    """Of English of this test; a misspelt word keeps a part of its own."""
    texts = [
        f"The little cat slept on the wooden chair and dog {place} was barking loudly."
        for place in range(40)
    ]
    config = write(tmp_path, [f"{text} {text}" for text in texts])
    draw = np.random.default_rng(0)
    wrong = [misspelt(text, draw) for text in texts]
    assert 20 < sum(text != right for text, right in zip(wrong, texts, strict=True)) < 40
    words = prepare(config, VocabularyConfig()).vocabulary
    subwords = prepare(config, VocabularyConfig(type="subwords", size=700)).vocabulary
    assert np.mean(words.ids(wrong, max_length=50).ids == UNK_ID) > 0.05
    assert (subwords.ids(wrong, max_length=50).ids > UNK_ID).all()
    assert "▁bar" in subwords.tokenize(["barkking"])[0]


@pytest.mark.parametrize("text", [*TEXTS.values(), "猫▁狗 ▁ cat▁"])
def test_each_word_begins_with_the_mark(text) -> None:
    """A part inside a word is another sub-word than the word of the same letters; nothing is lost."""
    vocabulary = train_subwords(
        [*chinese(60), *TEXTS.values()] * 5, VocabularyConfig(type="subwords", size=700)
    )
    marks = pre_tokenizers.Split(Regex(r"[^\w\s]|_"), "isolated")
    runs = unicodedata.normalize("NFKC", text).split()
    pieces = [piece for run in runs for piece, _ in marks.pre_tokenize_str(run)]
    (found,) = vocabulary.tokenize([text])
    as_bytes = re.sub(
        r"(<0x(..)>)+",
        lambda run: bytes.fromhex(re.sub(r"<0x|>", "", run[0])).decode(),
        "".join(found),
    )
    assert as_bytes == "".join(f"▁{piece.removeprefix('▁')}" for piece in pieces)


def test_counted_vectors_of_subwords_are_as_long_as_their_share_of_words(tmp_path) -> None:
    """Against the mean over all places, one by one; in text without blanks all are of one length."""
    draw = np.random.default_rng(0)
    rare = ["".join(draw.choice(["bar", "king", "un", "able", "talk"], 4)) for _ in range(400)]
    english = [f"The cats and {' sat '.join(draw.choice(rare, 3))}." for _ in range(200)]
    for texts, spaced in ((english, True), (chinese(200), False)):
        config = write(tmp_path, texts, f"{spaced}.jsonl").model_copy(
            update={"language": "en" if spaced else "zh"}
        )
        corpus = prepare(config, VocabularyConfig(type="subwords", size=540))
        shares: dict[int, list[float]] = {}
        ids = corpus.train.sentences(0, len(corpus.train)).ids.tolist()
        starts = [
            place for place, one in enumerate(ids) if corpus.vocabulary.words[one][0] == "▁"
        ] + [len(ids)]
        for first, last in itertools.pairwise(starts):
            for one in ids[first:last]:
                shares.setdefault(one, []).append(1 / (last - first) if spaced else 1)
        lengths = np.linalg.norm(corpus_word_vectors(corpus, dim=8, seed=0), axis=1)
        wanted = np.array([np.mean(shares.get(one, 0)) for one in range(len(lengths))])
        known = [one for one in shares if lengths[one] > 0]
        assert len(known) > 5
        assert (np.ptp(wanted[known]) > 0.3) == spaced
        np.testing.assert_allclose(
            lengths[known] / lengths[known].max(), wanted[known] / wanted[known].max(), rtol=1e-5
        )


def test_corpus_holds_subwords_of_its_sentences(tmp_path) -> None:
    """Each sentence's ids are those that the vocabulary gives it; auto is the same corpus, and says why."""
    texts = chinese(60)
    config = write(tmp_path, texts)
    corpus = prepare(config, VocabularyConfig(type="subwords", size=700))
    known = {tuple(corpus.vocabulary.ids([f"{part}。"], max_length=50).ids) for part in _PARTS}
    rows = corpus.train.sentences(0, len(corpus.train))
    assert {tuple(row) for row in np.split(rows.ids, np.cumsum(rows.lengths)[:-1])} == known
    assert isinstance(saved := Vocabulary.load(corpus.folder / "vocabulary.txt"), SubwordVocabulary)
    assert saved.words == corpus.vocabulary.words
    auto = VocabularyConfig(type="auto", size=700)
    assert vocabulary_type(config, auto) == (
        "subwords",
        "the text is in zh, which writes no blanks between words",
    )
    assert prepare(config, auto).key == corpus.key
    assert prepare(config, VocabularyConfig(size=700)).key != corpus.key


def test_auto_takes_subwords_where_words_leave_much_unknown(tmp_path) -> None:
    """Of text that writes blanks: by the share of unknown tokens in held-out text."""
    same = ["The cat was here and it was with her. They are not my dogs but his."] * 20
    other = [
        f"The cat was here and it was {'abcdefghij'[place % 10] * (place + 3)} to her. They are."
        for place in range(20)
    ]
    auto = VocabularyConfig(type="auto")
    assert vocabulary_type(write(tmp_path, same), auto)[0] == "words"
    chosen, why = vocabulary_type(write(tmp_path, other, "other.jsonl"), auto)
    assert chosen == "subwords"
    assert why == "words would leave 7.1% of the tokens of held-out text unknown"
    lines = [f"{text}\t{text}" for text in chinese(40)]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    pairs = PairCorpus(PairsConfig(path=str(tmp_path / "pairs.tsv")))
    assert isinstance(pairs.vocabulary(VocabularyConfig(type="auto", size=700)), SubwordVocabulary)


@pytest.mark.parametrize(
    "encoder",
    [
        {"type": "bag", "embedding": {"dim": 6, "vectors": "ppmi"}},
        {"type": "gru", "hidden_size": 8, "embedding": {"dim": 6}},
        {"type": "cnn", "windows": [1, 2], "num_filters": 4, "embedding": {"dim": 6}},
        {"type": "lstm", "hidden_size": 8, "embedding": {"dim": 6}},
        {
            "type": "transformer",
            "hidden_size": 8,
            "num_layers": 1,
            "num_heads": 2,
            "intermediate_size": 8,
        },
    ],
    ids=lambda encoder: encoder["type"],
)
def test_encoders_train_on_subwords_and_exports_carry_them(encoder, tmp_path) -> None:
    """Exports give the model's ids and vectors on text of several scripts and on random characters."""
    draw = np.random.default_rng(1)
    codes = [int(code) for code in draw.integers(1, 0x11000, 2_000) if not 0xD800 <= code < 0xE000]
    texts = [
        *TEXTS.values(),
        "",
        "<pad>",
        *("".join(map(chr, codes[at : at + 20])) for at in range(0, len(codes), 20)),
    ]
    config = write(tmp_path, chinese(60))
    changes = {
        "corpus__path": config.path,
        "corpus__format": "auto",
        "vocabulary": {"type": "subwords", "size": 700},
    }
    fit(tiny_run(tmp_path, encoder=encoder, **changes), tmp_path / "run")
    assert isinstance(load(tmp_path / "run").vocabulary, SubwordVocabulary)
    # Graphs of the others differ in what does not read ids; see TRACED in test_exports.py.
    targets = ["onnx"] if encoder["type"] in ("bag", "gru", "transformer") else []
    for target in ("sentence-transformers", *targets):
        pytest.importorskip("onnxruntime" if target == "onnx" else "sentence_transformers")
        done = export(tmp_path / "run", tmp_path / target, to=target, sentences=texts)
        assert (done.check.num_other_ids, done.check.num_sentences) == (0, len(texts))


def test_static_export_carries_subwords(tmp_path) -> None:
    """Of a bag of one tower: no code comes with it."""
    pytest.importorskip("sentence_transformers")
    values = {
        "encoder": {"type": "bag", "embedding": {"dim": 6}},
        "objective": {"type": "paraphrase_margin"},
    }
    vocabulary = train_subwords(chinese(60), VocabularyConfig(type="subwords", size=700))
    model = SentenceModel.build(
        ModelConfig.model_validate(values), vocabulary, seed=0, max_length=30
    ).eval()
    done = export(model, tmp_path / "static", to="static", sentences=list(TEXTS.values()))
    assert done.check.num_other_ids == 0
    assert (
        export(model, tmp_path / "again", to="static").check.num_sentences == 198
    )  # all but "" and " "
