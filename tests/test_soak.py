"""Random and damaged input, memory over many trials, and properties of what reads text."""

import numpy as np
import pytest
from fuzzing import Fuzzer, soak
from hypothesis import given, settings
from hypothesis import strategies as st

from raysent.data.vocabulary import PAD_WORD, UNK_WORD, Vocabulary, tokenize

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)


@settings(max_examples=150, deadline=None)
@given(st.lists(ANY_TEXT, min_size=1, max_size=6))
def test_ids_of_any_strings_are_those_of_each_alone(sentences):
    """Every string has ids, whatever stands beside it and was asked before."""
    words = Vocabulary([PAD_WORD, UNK_WORD, "a", "b", ".", "0"])
    together = words.ids(sentences, max_length=9)
    alone = [Vocabulary(words.words).ids([sentence], max_length=9).ids for sentence in sentences]
    assert np.array_equal(together.ids, np.concatenate(alone))
    assert together.lengths.tolist() == list(map(len, alone))


@settings(max_examples=150, deadline=None)
@given(ANY_TEXT)
def test_tokens_of_any_string_are_text(sentence):
    """They can be written as UTF-8, and hold neither white space nor byte order marks."""
    for token in tokenize(sentence):
        assert token.encode()
        assert token.split() == [token]
        assert "\ufeff" not in token


@pytest.mark.parametrize("seed", [0, 1])
def test_random_and_damaged_input_is_a_value_or_one_line(seed, tmp_path):
    """Of models, corpora, pairs, word vectors, and of encode alone and under threads."""
    fuzzer = Fuzzer(seed, tmp_path)
    for _ in range(40):
        fuzzer.once()
    assert fuzzer.failures == []


def test_memory_is_bounded_over_trials_of_mixed_sizes():
    """However large the models before were."""
    resident = list(soak(num_trials=6, largest=128))
    assert max(resident[3:]) < max(resident[:3]) + 200
