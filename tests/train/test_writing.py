"""How texts are searched for: lengths, repeats and ends, against every sequence that there is."""

from itertools import pairwise, product

import pytest
import torch
from tiny import SIZES, TEXT, characters

from greenformers.data import Pairs
from greenformers.model import GreenformerConfig, GreenformerForSeq2SeqLM
from greenformers.train.generation import Writing, translations
from greenformers.train.seq2seq import Seq2Seq

WORDS, LONGEST, START, END = 5, 4, 1, 2
SOURCE = torch.tensor([[3, 1, 4, 4, 3]])


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(5)
    marks = {"pad_token_id": 0, "decoder_start_token_id": START, "bos_token_id": START, "eos_token_id": END}
    sizes = SIZES | {"initializer_range": 0.6}
    config = GreenformerConfig(vocab_size=WORDS, max_position_embeddings=9, decoder_layers=1, **marks, **sizes)
    return GreenformerForSeq2SeqLM(config).eval()


@pytest.fixture(scope="module")
def sequences(network):
    """Every sequence that ends at its first end, or is as long as may be; and its log probability, in float64."""
    rows = torch.tensor(list(product(range(WORDS), repeat=LONGEST)))
    target = torch.cat([torch.full_like(rows[:, :1], START), rows[:, :-1]], 1)
    with torch.no_grad():
        logits = network(SOURCE.expand(len(rows), -1), decoder_input_ids=target).logits.double()
    chosen = logits.log_softmax(-1).gather(2, rows[..., None])[..., 0].cumsum(1)
    ended = {}
    for row, sums in zip(rows.tolist(), chosen.tolist(), strict=True):
        length = row.index(END) + 1 if END in row else LONGEST
        ended[tuple(row[:length])] = sums[length - 1]
    return ended


def written(network, writing: Writing) -> tuple[int, ...]:
    out = network.generate(SOURCE, max_new_tokens=LONGEST, **writing.options(LONGEST))[0, 1:].tolist()
    return tuple(out[: out.index(END) + 1] if END in out else out)


MANY = 300  # beams, more than there are sequences


def best(sequences, penalty: float, allowed=lambda _: True) -> tuple[int, ...]:
    return max((row for row in sequences if allowed(row)), key=lambda row: sequences[row] / len(row) ** penalty)


@pytest.mark.parametrize("penalty", [-3.0, -1.0, 0.0, 0.8, 1.0, 4.0])
def test_a_length_penalty_divides_the_log_probability(network, sequences, penalty: float) -> None:
    assert written(network, Writing(MANY, length_penalty=penalty)) == best(sequences, penalty)


def test_a_length_penalty_decides_the_length(sequences) -> None:
    lengths = [len(best(sequences, penalty)) for penalty in (-3.0, 0.0, 4.0)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1] == LONGEST


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_n_gram_is_written_twice(network, sequences, n: int) -> None:
    def allowed(row):
        grams = [*zip(*((START, *row)[place:] for place in range(n)), strict=False)]
        return len({*grams}) == len(grams)

    writing = Writing(MANY, length_penalty=4.0, no_repeat=n)
    assert written(network, writing) == best(sequences, 4.0, allowed)
    assert not all(map(allowed, sequences))


@pytest.mark.parametrize("least", [1, 2, 3, 4])
def test_the_end_comes_after_the_smallest_number_of_tokens(network, sequences, least: int) -> None:
    def allowed(row):
        return END not in row[:least]

    writing = Writing(MANY, length_penalty=-3.0, min_new_tokens=least)
    assert written(network, writing) == best(sequences, -3.0, allowed)


def test_greedy_search_repeats_nothing_either(network) -> None:
    row = written(network, Writing(no_repeat=2, min_new_tokens=LONGEST))
    assert len(row) == LONGEST
    pairs = [*pairwise((START, *row))]
    assert len({*pairs}) == len(pairs)


def test_translations_are_written_as_asked() -> None:
    torch.manual_seed(3)
    data = Pairs("written", "en", "de", [(TEXT.train[:20], TEXT.train[20:50])] * 2, [], [])
    objective = Seq2Seq(data, characters(), 13)
    model = objective.build(objective.config(**SIZES)).eval()
    sources = ["to be", "that is the question"]
    texts = [*translations(model, objective.tokenizer, sources, writing=Writing(3, 2.0, no_repeat=1, min_new_tokens=5))]
    assert all(len({*text}) == len(text) >= 4 for text in texts)  # [UNK] may be one of five
    assert texts != [*translations(model, objective.tokenizer, sources)]
    with pytest.raises(ValueError, match=r"^min_new_tokens must be in 1\.\.3, the largest number, got 5$"):
        [*translations(model, objective.tokenizer, sources, max_new_tokens=3, writing=Writing(min_new_tokens=5))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "beams must be at least 1, got 0"),
        ({"length_penalty": 0.8}, "length_penalty chooses among beams, which must be at least 2 then, got 1"),
        ({"beams": 2, "length_penalty": float("nan")}, "length_penalty must be a finite number, got nan"),
        ({"no_repeat": 0}, "no_repeat must be at least 1, got 0"),
        ({"min_new_tokens": 0}, "min_new_tokens must be at least 1, got 0"),
    ],
)
def test_what_has_no_effect_is_refused(options, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Writing(**options)
    assert str(caught.value) == message
