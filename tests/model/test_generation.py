"""Text from `generate`: greedy, drawn and by beams, with and without a cache."""

from itertools import product

import pytest
import torch
from networks import MAX_LEN, padding
from text_networks import END, PAD, START, causal, left, pair, tokens
from transformers import GenerationConfig, pipeline

from greenformers.data import train_tokenizer
from greenformers.model import GreenformerForCausalLM, GreenformerForSeq2SeqLM

NEW = 7
WAYS = {
    "greedy": {"do_sample": False},
    "drawn": {"do_sample": True, "temperature": 0.7, "top_k": 13},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
}
MODELS = {
    "dense": lambda: causal(),
    "pre-norm lrt": lambda: causal("lrt", residual="pre"),
    "sinusoidal": lambda: causal("sinusoidal"),
    "pair": lambda: pair(),
    "pair, one decoder layer": lambda: pair(decoder_layers=1),
    "pair, lrt+linformer": lambda: pair("lrt+linformer"),
    "pair, no sharing": lambda: pair("linformer, no sharing"),
    "pair, layerwise": lambda: pair("linformer, layerwise"),
    "pair, each layer": lambda: pair("attention of each layer"),
}


def generated(network, ids, mask, **options):
    torch.manual_seed(3)
    options = {"max_new_tokens": NEW, "pad_token_id": PAD, "eos_token_id": None} | options
    logged = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
    return network.generate(ids, attention_mask=mask, **logged, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_a_cache_changes_nothing(name, way):
    network, ids, mask = MODELS[name](), tokens(3, 5), padding(3, 5).long()
    mask = mask if network.config.is_encoder_decoder else left(mask)
    cached, plain = (generated(network, ids, mask, use_cache=cache, **WAYS[way]) for cache in (True, False))
    assert (cached.past_key_values is None, plain.past_key_values is None) == (False, True)
    assert torch.equal(cached.sequences, plain.sequences)
    assert len(cached.logits) == NEW
    torch.testing.assert_close(cached.logits, plain.logits, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(cached.scores, plain.scores, atol=1e-10, rtol=1e-10)
    if "num_beams" in WAYS[way]:
        torch.testing.assert_close(cached.sequences_scores, plain.sequences_scores, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", ["dense", "pre-norm lrt"])
def test_greedy_takes_the_best_token_of_every_step(name):
    network, ids = MODELS[name](), tokens(3, 5)
    expected = ids
    for _ in range(NEW):
        expected = torch.cat([expected, network(expected).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(network.generate(ids, max_new_tokens=NEW, do_sample=False, pad_token_id=PAD), expected)


@pytest.mark.parametrize("name", ["pair", "pair, lrt+linformer"])
def test_greedy_translation_takes_the_best_token_of_every_step(name):
    network, ids = MODELS[name](), tokens(3, 17)
    expected = torch.full((3, 1), START)
    for _ in range(NEW):
        logits = network(ids, decoder_input_ids=expected).logits
        expected = torch.cat([expected, logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(network.generate(ids, max_new_tokens=NEW, do_sample=False), expected)


@pytest.mark.parametrize("name", ["dense", "pair, lrt+linformer"])
def test_a_seed_draws_the_same_and_another_does_not(name):
    network, ids = MODELS[name](), tokens(3, 5)

    def drawn(seed):
        torch.manual_seed(seed)
        return network.generate(ids, max_new_tokens=NEW, do_sample=True, pad_token_id=PAD)

    assert torch.equal(drawn(5), drawn(5))
    assert not torch.equal(drawn(5), drawn(7))


@pytest.mark.parametrize("way", ["greedy", "beams"])
@pytest.mark.parametrize("name", ["dense", "pre-norm lrt", "sinusoidal"])
def test_a_batch_padded_on_the_left_equals_single_prompts(name, way):
    network, ids, mask = MODELS[name](), tokens(3, 11), left(padding(3, 11))
    together = generated(network, ids.masked_fill(~mask, PAD), mask.long(), **WAYS[way])
    rows = len(together.sequences) // 3
    for i in range(3):
        prompt = ids[i : i + 1, mask[i]]
        alone = generated(network, prompt, torch.ones_like(prompt), **WAYS[way])
        mine = slice(i * rows, (i + 1) * rows)
        assert torch.equal(together.sequences[mine, -NEW:], alone.sequences[:, -NEW:])
        if way == "greedy":
            for logits, expected in zip(together.logits, alone.logits, strict=True):
                torch.testing.assert_close(logits[mine], expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("way", ["greedy", "beams"])
@pytest.mark.parametrize("name", ["pair", "pair, lrt+linformer", "pair, no sharing"])
def test_a_padded_batch_of_sources_equals_single_sources(name, way):
    network, ids, mask = MODELS[name](), tokens(3, 17), padding(3, 17)
    together = generated(network, ids.masked_fill(~mask, PAD), mask.long(), **WAYS[way]).sequences
    alone = [generated(network, ids[i : i + 1, mask[i]], None, **WAYS[way]).sequences for i in range(3)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("end", [13, 17, 19])
def test_what_follows_the_end_is_padding(end):
    network, ids = causal("lrt"), tokens(11, 5)
    free = generated(network, ids, None, do_sample=True).sequences
    sequences = generated(network, ids, None, do_sample=True, eos_token_id=end).sequences
    ended = (sequences[:, 5:] == end).cumsum(1) - (sequences[:, 5:] == end).long() > 0
    assert sequences[:, 5:][ended].eq(PAD).all()
    first = (free[:, 5] == end).tolist()
    assert [row[5] == end for row in sequences.tolist()] == first


def exhaustive(words, length, score):
    """Every sequence of `length` words and its log probability, best first."""
    sequences = torch.tensor(list(product(range(words), repeat=length)))
    logits = score(sequences)
    chosen = logits.log_softmax(-1).gather(2, sequences[:, :, None]).sum((1, 2))
    order = chosen.argsort(descending=True)
    return sequences[order], chosen[order]


@pytest.mark.parametrize("name", ["dense", "lrt"])
def test_beams_as_many_as_sequences_find_the_best(name):
    words, length = 5, 3
    network = causal(name, vocab_size=words)
    prompt = torch.tensor([[3, 1]])

    def score(sequences):
        return network(torch.cat([prompt.expand(len(sequences), -1), sequences], 1)).logits[:, 1:-1]

    check_beams(network, prompt, words, length, score)


@pytest.mark.parametrize("name", ["dense", "lrt+linformer"])
def test_beams_as_many_as_translations_find_the_best(name):
    words, length = 5, 3
    special = {"pad_token_id": 0, "decoder_start_token_id": 1, "bos_token_id": 1}
    network, source = pair(name, vocab_size=words, **special), torch.tensor([[3, 1, 4, 2, 3]])

    def score(sequences):
        target = torch.cat([torch.ones_like(sequences[:, :1]), sequences[:, :-1]], 1)
        return network(source.expand(len(sequences), -1), decoder_input_ids=target).logits

    check_beams(network, source, words, length, score)


def check_beams(network, given, words, length, score):
    beams = words**length
    output = network.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=length,
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=0.0,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    with torch.no_grad():
        sequences, scores = exhaustive(words, length, score)
    assert torch.equal(output.sequences[:, -length:], sequences)
    torch.testing.assert_close(output.sequences_scores, scores.float(), atol=1e-5, rtol=1e-5)  # summed in float32


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_text_longer_than_the_network_is_an_error(use_cache):
    network, ids = causal(position="learned"), tokens(2, MAX_LEN - 2)
    options = {"do_sample": False, "pad_token_id": PAD, "use_cache": use_cache}
    assert network.generate(ids, max_new_tokens=3, **options).shape == (2, MAX_LEN + 1)  # the last is never read
    with pytest.raises(ValueError, match=r"^length must be in 1..23, got 24$"):
        network.generate(ids, max_new_tokens=4, **options)


def test_a_translation_longer_than_the_network_is_an_error():
    network, ids = pair(), tokens(2, 5)
    with pytest.raises(ValueError, match=r"^length must be in 1..23, got 24$"):
        network.generate(ids, max_new_tokens=MAX_LEN + 1, do_sample=False)


@pytest.mark.parametrize("kind", [GreenformerForCausalLM, GreenformerForSeq2SeqLM])
def test_the_way_of_generating_is_saved(kind, tmp_path):
    crossed = kind is GreenformerForSeq2SeqLM
    network = (pair if crossed else causal)("lrt", pad_token_id=PAD, bos_token_id=START, eos_token_id=END)
    assert (network.generation_config.pad_token_id, network.generation_config.eos_token_id) == (PAD, END)
    network.generation_config.update(max_new_tokens=5, num_beams=3, length_penalty=0.7)
    ids = tokens(2, 7)
    expected = network.generate(ids)
    network.save_pretrained(tmp_path)
    again = kind.from_pretrained(tmp_path, dtype=torch.float64)
    assert again.generation_config.to_dict() == network.generation_config.to_dict()
    assert again.generation_config.num_beams == 3
    assert GenerationConfig.from_pretrained(tmp_path).length_penalty == 0.7
    assert torch.equal(again.generate(ids), expected)
    assert not torch.equal(again.generate(ids, num_beams=1, max_new_tokens=3), expected)


def test_hidden_states_of_every_step():
    network, ids = causal("lrt"), tokens(2, 5)
    out = generated(network, ids, None, do_sample=False, output_hidden_states=True)
    whole = network(out.sequences[:, :-1], output_hidden_states=True).hidden_states
    for depth, expected in enumerate(whole):
        states = torch.cat([step[depth] for step in out.hidden_states], 1)
        torch.testing.assert_close(states, expected, atol=1e-10, rtol=1e-10)


def test_looking_up_the_prompt_changes_nothing():
    """Several tokens are guessed at once, and the cache is cut back to those that were right."""
    network, ids = causal("lrt"), tokens(1, 3).repeat(1, 3)
    expected = network.generate(ids, max_new_tokens=11, do_sample=False)
    assert torch.equal(network.generate(ids, max_new_tokens=11, do_sample=False, prompt_lookup_num_tokens=3), expected)


def test_pipeline(tmp_path):
    texts = ["green trees grow slowly here"]
    tokenizer = train_tokenizer("characters", texts, max_length=MAX_LEN)
    network = causal("lrt", torch.float32, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    write = pipeline("text-generation", model=str(tmp_path), device="cpu")
    how = {"max_new_tokens": 5, "do_sample": False}
    (output,) = write("trees grow", add_special_tokens=False, **how)
    ids = tokenizer("trees grow", add_special_tokens=False, return_tensors="pt").input_ids
    expected = tokenizer.decode(network.generate(ids, **how)[0], skip_special_tokens=True)
    assert output["generated_text"] == expected
    assert expected.startswith("trees grow")


def test_a_static_cache_in_an_encoder_decoder():
    network, ids = pair(dtype=torch.float32, decoder_layers=2), tokens(2, 9)
    how = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    assert torch.equal(network.generate(ids, cache_implementation="static", **how), network.generate(ids, **how))
