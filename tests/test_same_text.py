"""What counts as the same text, label or name."""

from __future__ import annotations

import unicodedata

import pytest

from raysent.data.same_text import as_label, as_read, words_of

ALIKE = [
    ("a café", "A cafe\u0301"),
    ("한국어 문장", unicodedata.normalize("NFD", "한국어 문장")),
    ("soft hyphen", "so\u00adft hy\u200bphen\ufeff"),
    ("mi\u200cxed", "mixed"),
    ("full width 12", "ｆｕｌｌ　ｗｉｄｔｈ １２"),
    ("ﬁn", "fin"),
    ("STRASSE", "Straße"),
    ("l'été & l'eau", "l&rsquo;&eacute;t&eacute; &amp; l’eau"),
    ("x é y", "x &amp;eacute; y"),
    ("line one line two", "line one<br />line two"),
    ("bold text", "<b>bold</b> text<!-- note -->"),
    ("“quoted” – it’s", '"quoted" - it\'s'),
    ("two  blanks\u00a0here", "two blanks here"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_what_a_reader_sees_alike_is_the_same(one, other):
    """Forms of Unicode, case, what is never shown, mark-up and typographic marks make no other text."""
    assert as_read(one) == as_read(other)
    assert words_of(one) == words_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("C++ jobs", "C# jobs"), ("was that?", "was that!"), ("5 < 7", "5 7"), ("a.b", "a b")],
)
def test_punctuation_is_seen_in_names_and_separates_words(one, other):
    """Queries that differ by a mark are two; as copies only the words count."""
    assert as_read(one) != as_read(other)
    assert words_of(one) == words_of(other)


@pytest.mark.parametrize(
    "text",
    ["", " ", "!", "?", "<3", "a < b > c", "AT&T", "R&D;", "\ud83d", "<NA>", "\u200b", "&", "🙂"],
)
def test_every_text_has_a_form(text):
    """Comparing again changes nothing, and a text that is not empty is not compared as an empty one."""
    assert as_read(as_read(text)) == as_read(text)
    assert bool(words_of(text).strip()) == bool(text.strip())


def test_texts_without_words_differ_by_their_marks():
    """Rows of nothing but marks are no copies of each other."""
    marks = ["!", "?", "...", ":)", "🙂", "<3", "&"]
    assert len({words_of(text) for text in marks}) == len(marks)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"),
        ("1", "+1"),
        ("0", "-0.0"),
        ("1000", "1e3"),
        ("1", "１"),
        ("True", "true"),
        ("true", "1"),
        ("FALSE", "0"),
        ("very_good", "Very good"),
        ("non-fiction", "Non fiction"),
        ("pos", '"pos"'),
        ("pos", "pos\u200b"),
        ("pos", "“Pos”."),
        ("négatif", unicodedata.normalize("NFD", "Négatif")),
        ("R&amp;D", "R&D"),
    ],
)
def test_labels_that_a_person_takes_for_one(one, other):
    """Numbers by what they say, and separators between words."""
    assert as_label(one) == as_label(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "-1"),
        ("1", "10"),
        ("1.5", "15"),
        (">50K", "<=50K"),
        ("c++", "c#"),
        ("+", "-"),
        (":)", ":("),
        ("e", "é"),
        ("<pos>", "<neg>"),
        ("yes", "no"),
        ("1", "one"),
        ("nan", "none"),
    ],
)
def test_labels_that_are_two(one, other):
    """Signs, marks and numbers that mean something else."""
    assert as_label(one) != as_label(other)
