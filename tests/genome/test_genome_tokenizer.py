"""Subwords and k-mers: what is written comes back, in the vocabulary that was asked for, as transformers loads it."""

import random
import re
import time
import unicodedata
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import bases

from greenformers.genome import tokenizer
from greenformers.genome.diplotype import ALPHABETS, BASES, Haplotype, diplotype, encoded, pairs_of, text
from greenformers.genome.files import GenomeError

sentencepiece = pytest.importorskip("sentencepiece", reason="the genome extra is not installed")

KINDS = ["iupac", "thesis", None]


def likely(length, seed=0):
    """A sequence that repeats itself with mutations, as a genome does."""
    source = random.Random(seed)
    units = [bases(size, seed + size) for size in (7, 31, 97, 301)]
    parts = [source.choice([bases(20, number), *units, *units]) for number in range(length // 20)]
    whole = [source.choice("ACGTN") if source.random() < 0.01 else base for base in "".join(parts)]
    return "".join(whole)[:length]


def written(length, alphabet, seed=0):
    """Diplotype of a likely sequence and of one that varies; None: the sequence."""
    sequence, source = likely(length, seed), random.Random(seed)
    if alphabet is None:
        return sequence
    first, second = Haplotype(encoded(sequence)), Haplotype(encoded(sequence))
    for place in range(50, length - 50, 50):
        kind = source.randrange(3)
        if kind == 0:
            second.substitute(place, source.choice("ACGT"))
        elif kind == 1:
            second.delete(place, source.randrange(1, 5))
        else:
            second.insert(place, bases(source.randrange(1, 5), place))
    return text(diplotype(first, second), alphabet)


def pieces(whole):
    return [whole[start : start + 500] for start in range(0, len(whole), 500)]


@pytest.fixture(scope="module")
def learnt():
    """A tokenizer for each kind of sequence, and SentencePiece's own of the same training."""
    tokenizers, plain = {}, sentencepiece.SentencePieceTrainer.train

    def train(**given):
        plain(**given)
        tokenizers["model"] = sentencepiece.SentencePieceProcessor(model_proto=given["model_writer"].getvalue())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentencepiece.SentencePieceTrainer, "train", train)
        for kind in KINDS:
            characters = tokenizer.base_tokens(kind)
            sentences = [*characters, *pieces(written(60_000, kind))]
            dna_tokenizer = tokenizer.subwords(sentences, size=700, characters=characters)
            tokenizers[kind] = dna_tokenizer, tokenizers.pop("model")
    return tokenizers


def back(dna_tokenizer, sequence):
    ids = dna_tokenizer(sequence, add_special_tokens=False, verbose=False)["input_ids"]
    assert dna_tokenizer.unk_token_id not in ids
    return dna_tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary(learnt, kind):
    dna_tokenizer, model = learnt[kind]
    assert len(dna_tokenizer) == model.get_piece_size() == 700
    assert dna_tokenizer.convert_ids_to_tokens(list(range(5))) == list(tokenizer.SPECIAL)
    assert (dna_tokenizer.pad_token_id, dna_tokenizer.unk_token_id, dna_tokenizer.cls_token_id) == (0, 1, 2)
    assert (dna_tokenizer.sep_token_id, dna_tokenizer.mask_token_id, dna_tokenizer.model_max_length) == (3, 4, 4096)
    vocabulary = dna_tokenizer.get_vocab()
    assert sorted(vocabulary.values()) == list(range(700))
    assert set(tokenizer.base_tokens(kind)) <= set(vocabulary)
    rest = set(vocabulary) - set(tokenizer.SPECIAL)
    assert max(map(len, rest)) == 16
    assert set("".join(rest)) == set(tokenizer.base_tokens(kind))
    assert tokenizer.mean_token(dna_tokenizer) == pytest.approx(sum(map(len, rest)) / 695)


@pytest.mark.parametrize("kind", KINDS)
def test_as_sentencepiece_itself(learnt, kind):
    dna_tokenizer, model = learnt[kind]
    for seed in (0, 9):
        whole = written(20_000, kind, seed)
        ours = dna_tokenizer.tokenize(whole, verbose=False)
        theirs = model.encode(whole, out_type=str)
        assert "".join(ours) == "".join(theirs) == whole
        assert len(ours) == pytest.approx(len(theirs), rel=0.005)
        assert (Counter(ours) & Counter(theirs)).total() > 0.95 * len(theirs)
        assert tokenizer.mean_length(dna_tokenizer, [whole]) == pytest.approx(len(whole) / len(ours))
        assert tokenizer.mean_length(dna_tokenizer, pieces(whole)) == pytest.approx(len(whole) / len(ours), rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_comes_back(learnt, kind):
    dna_tokenizer, _ = learnt[kind]

    @settings(max_examples=150)
    @given(st.text(tokenizer.base_tokens(kind), max_size=120))
    def comes_back(sequence):
        assert back(dna_tokenizer, sequence) == sequence
        assert unicodedata.normalize("NFKC", sequence) == sequence

    comes_back()
    assert back(dna_tokenizer, tokenizer.base_tokens(kind) * 3) == tokenizer.base_tokens(kind) * 3


edits = st.tuples(
    st.sampled_from(["substitute", "insert", "delete"]),
    st.integers(0, 1),
    st.integers(0, 27),
    st.text(BASES, min_size=1, max_size=6),
)


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_variants_come_back(learnt, alphabet):
    dna_tokenizer, _ = learnt[alphabet]

    @settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
    @given(st.text(BASES, min_size=30, max_size=60), st.lists(edits, max_size=6))
    def come_back(sequence, changes):
        both = [Haplotype(encoded(sequence)) for _ in range(2)]
        for kind, side, place, other in changes:
            if kind == "substitute":
                both[side].substitute(place, other[:2])
            elif kind == "delete":
                both[side].delete(place, min(len(other), 30 - place))
            elif place not in both[side].inserted:
                both[side].insert(place, other)
        pairs = diplotype(*both)
        np.testing.assert_array_equal(pairs_of(back(dna_tokenizer, text(pairs, alphabet)), alphabet), pairs)

    come_back()


def test_from_pretrained_gives_the_same(learnt, tmp_path):
    from transformers import AutoTokenizer

    for kind in KINDS:
        dna_tokenizer, _ = learnt[kind]
        dna_tokenizer.save_pretrained(tmp_path / str(kind))
        loaded = AutoTokenizer.from_pretrained(tmp_path / str(kind))
        sequences = [written(3000, kind, 3), tokenizer.base_tokens(kind), "A", ""]
        assert loaded(sequences)["input_ids"] == dna_tokenizer(sequences)["input_ids"]
        assert loaded.decode(loaded(sequences[1])["input_ids"], skip_special_tokens=True) == sequences[1]
        assert loaded.model_max_length == 4096
        assert loaded.get_vocab() == dna_tokenizer.get_vocab()
        assert [loaded.pad_token, loaded.unk_token, loaded.cls_token] == list(tokenizer.SPECIAL[:3])
        assert [loaded.sep_token, loaded.mask_token] == list(tokenizer.SPECIAL[3:])


def test_what_is_around_a_sequence(learnt):
    dna_tokenizer, _ = learnt["iupac"]
    plain = dna_tokenizer("ACGTRY", add_special_tokens=False)["input_ids"]
    assert dna_tokenizer("ACGTRY")["input_ids"] == [2, *plain, 3]
    assert dna_tokenizer("ACGTRY", "ACGTRY")["input_ids"] == [2, *plain, 3, *plain, 3]
    assert dna_tokenizer("")["input_ids"] == [2, 3]
    batch = dna_tokenizer(["ACGTRY", ""], padding=True)
    assert batch["input_ids"][1] == [2, 3] + [0] * len(plain)
    assert batch["attention_mask"][1] == [1, 1] + [0] * len(plain)
    cut = dna_tokenizer(written(50_000, "iupac"), truncation=True)["input_ids"]
    assert (len(cut), cut[0], cut[-1]) == (4096, 2, 3)


def test_a_character_of_another_alphabet_is_unknown(learnt):
    dna_tokenizer, _ = learnt[None]
    assert dna_tokenizer("ACGTR")["input_ids"][-2:] == [1, 3]
    assert dna_tokenizer("嗄")["input_ids"] == [2, 1, 3]


@pytest.mark.parametrize("kind", ["iupac", None])
def test_long_sequences_are_fast(learnt, kind):
    dna_tokenizer, _ = learnt[kind]
    whole = written(34_000, kind, 5)
    dna_tokenizer(whole, verbose=False)
    start = time.perf_counter()
    dna_tokenizer(whole, verbose=False)
    assert time.perf_counter() - start < 0.5


@pytest.mark.parametrize("size", [71, 72, 200])
def test_sizes(size):
    characters = ALPHABETS["iupac"]
    dna_tokenizer = tokenizer.subwords(
        [*characters, *pieces(written(20_000, "iupac"))], size=size, characters=characters
    )
    assert len(dna_tokenizer) == size


@pytest.mark.parametrize("longest", [1, 2, 5])
def test_the_longest_subword(longest):
    dna_tokenizer = tokenizer.subwords(
        pieces(likely(20_000)), size=200, characters=BASES, longest=longest, max_length=17
    )
    assert max(len(token) for token in dna_tokenizer.get_vocab() if token not in tokenizer.SPECIAL) == longest
    assert longest < 5 or len(dna_tokenizer) == 200
    assert longest > 1 or len(dna_tokenizer) == 10
    assert dna_tokenizer.model_max_length == 17


@pytest.mark.parametrize("kind", KINDS)
def test_characters_that_no_sentence_has(kind):
    characters = tokenizer.base_tokens(kind)
    dna_tokenizer = tokenizer.subwords(["ACGT" * 50], size=80, characters=characters)
    assert back(dna_tokenizer, characters) == characters
    # Nothing was learnt of them but that they are there.
    learnt = set(dna_tokenizer.get_vocab()) - set(tokenizer.SPECIAL) - set(characters)
    assert set("".join(learnt)) == set("ACGT")


def test_the_least_size_has_room_for_the_characters_alone():
    dna_tokenizer = tokenizer.subwords(["ACGT" * 50], size=10, characters=BASES)
    assert set(dna_tokenizer.get_vocab()) == {*tokenizer.SPECIAL, *BASES}


def test_the_same_sentences_give_the_same():
    both = [tokenizer.subwords(iter(pieces(likely(9000))), size=90, characters=BASES) for _ in range(2)]
    assert both[0].backend_tokenizer.to_str() == both[1].backend_tokenizer.to_str()


@pytest.mark.parametrize(
    ("sentences", "given", "message"),
    [
        (["ACGT" * 9], {"size": 9}, "size must be at least 10, for 5 characters; got 9"),
        (["ACGT" * 9], {"size": 70, "characters": ALPHABETS["iupac"]}, "size must be at least 71, for 66 characters;"),
        ([], {}, "tokens cannot be learnt from these sentences: "),
        *[pytest.param(["ACGT" * 9], {"longest": longest}, "^longest must be in") for longest in (0, -1, 513)],
    ],
)
def test_subwords_that_cannot_be(sentences, given, message):
    with pytest.raises(ValueError, match=message) as caught:
        tokenizer.subwords(sentences, **{"size": 20, "characters": BASES} | given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fault", [GenomeError("a.tsv: damaged"), OSError(5, "no such disk"), KeyboardInterrupt()])
def test_a_fault_among_the_sentences(fault):
    def sentences():
        yield from ["ACGT" * 9] * 3
        raise fault

    with pytest.raises(type(fault)) as caught:
        tokenizer.subwords(sentences(), size=20, characters=BASES)
    assert caught.value is fault


def test_more_subwords_than_there_are():
    """As many as the sentences have; not a fault."""
    dna_tokenizer = tokenizer.subwords(["ACGT" * 3, "N"], size=32_000, characters=BASES)
    assert 10 < len(dna_tokenizer) < 60
    assert back(dna_tokenizer, "ACGTNACGT") == "ACGTNACGT"


@pytest.mark.parametrize(
    ("sequence", "pattern", "stride", "expected"),
    [
        ("ACGTAC", "111", 1, "ACG CGT GTA TAC"),
        ("ACGTAC", "111", 3, "ACG TAC"),
        ("ACGTACG", "111", 3, "ACG TAC G"),
        ("ACGTAC", "111", 2, "ACG GTA AC"),
        ("ACGTAC", "1", 1, "A C G T A C"),
        ("ACGTAC", "101", 1, "A.G C.T G.A T.C"),
        ("ACGTACGT", "1100011", 1, "AC...CG CG...GT"),
        ("ACGTA", "101", 3, "A.G T."),
        ("AC", "111", 1, "AC"),
        ("AC", "1001", 4, "A."),
        ("", "111", 1, ""),
    ],
)
def test_words(sequence, pattern, stride, expected):
    assert tokenizer.kmers(sequence, pattern, stride) == expected


@given(st.text(ALPHABETS["iupac"], max_size=60), st.integers(1, 9), st.data())
def test_words_come_back(sequence, k, data):
    stride = data.draw(st.integers(1, k))
    words = tokenizer.kmers(sequence, "1" * k, stride)
    assert tokenizer.sequence_of(words, "1" * k, stride) == sequence
    assert all(len(word) == k for word in words.split(" ")[:-1])


@given(st.text("ACGT", max_size=40), st.text("01", max_size=6), st.data())
def test_only_gaps_do_not_come_back(sequence, middle, data):
    pattern = f"1{middle}1"
    stride = data.draw(st.integers(1, len(pattern)))
    words = tokenizer.kmers(sequence, pattern, stride)
    restored = tokenizer.sequence_of(words, pattern, stride)
    read = {
        number * stride + place
        for number in range(len(words.split(" ")))
        for place, kind in enumerate(pattern)
        if kind == "1"
    }
    assert restored == "".join(base if place in read else "." for place, base in enumerate(sequence))[: len(restored)]
    assert len(restored) == len(sequence)


@pytest.mark.parametrize("pattern", ["", "0", "01", "10", "12", "1 1", "111\n", "１１"])
def test_patterns_that_are_none(pattern):
    for call in (tokenizer.kmers, tokenizer.sequence_of):
        with pytest.raises(
            ValueError, match=f"^pattern must be of 0 and 1, with 1 at both ends, got {re.escape(repr(pattern))}$"
        ):
            call("ACGT", pattern)


@pytest.mark.parametrize("stride", [0, -1, 4])
def test_strides_out_of_range(stride):
    for call in (tokenizer.kmers, tokenizer.sequence_of):
        with pytest.raises(ValueError, match=rf"^stride must be in 1\.\.3, got {stride}$"):
            call("ACGT", "111", stride)


def test_kmers_as_tokens(tmp_path):
    from transformers import AutoTokenizer

    dna_tokenizer = tokenizer.kmer_tokens(["ACGTACGT", "ACGA"], pattern="111", size=9, max_length=13)
    # ACG thrice; CGT, GTA and TAC twice or once; of those as frequent the first of the alphabet.
    assert sorted(dna_tokenizer.get_vocab(), key=dna_tokenizer.get_vocab().get) == [
        *tokenizer.SPECIAL,
        "ACG",
        "CGT",
        "CGA",
        "GTA",
    ]
    assert dna_tokenizer(tokenizer.kmers("ACGTAC", "111"))["input_ids"] == [2, 5, 6, 8, 1, 3]
    dna_tokenizer.save_pretrained(tmp_path / "made")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "made")
    assert loaded(tokenizer.kmers("ACGTAC", "111"))["input_ids"] == [2, 5, 6, 8, 1, 3]
    assert loaded.model_max_length == 13


@pytest.mark.parametrize(("pattern", "stride"), [("111111", 1), ("11111", 5), ("1", 1)])
def test_kmers_of_people_come_back(pattern, stride):
    whole = written(3000, "thesis")
    dna_tokenizer = tokenizer.kmer_tokens([whole], pattern=pattern, stride=stride)
    ids = dna_tokenizer(tokenizer.kmers(whole, pattern, stride), add_special_tokens=False, verbose=False)["input_ids"]
    assert 1 not in ids
    assert tokenizer.sequence_of(dna_tokenizer.decode(ids), pattern, stride) == whole


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 5}, "size must be above 5, got 5"),
        ({"size": -1}, "size must be above 5, got -1"),
        ({"pattern": "110"}, "pattern must be of 0 and 1, with 1 at both ends, got '110'"),
        ({"stride": 7}, "stride must be in 1..6, got 7"),
    ],
)
def test_kmer_tokens_that_cannot_be(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        tokenizer.kmer_tokens(["ACGTACGT"], **given)


def test_mean_length():
    dna_tokenizer = tokenizer.subwords([*BASES, "ACGT" * 50], size=13, characters=BASES)
    assert set(dna_tokenizer.get_vocab()) == {*tokenizer.SPECIAL, *BASES, "AC", "GT", "ACGT"}
    assert tokenizer.mean_length(dna_tokenizer, ["ACGTN", "ACA"]) == 8 / 4
    assert tokenizer.mean_token(dna_tokenizer) == (5 + 2 + 2 + 4) / 8
