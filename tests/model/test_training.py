"""transformers' Trainer on the CPU, and gradient checkpointing."""

from copy import deepcopy

import pytest
import torch
from networks import FOUR, NETWORKS, VOCABULARY, config, padding, stir
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from greenformers.model import GreenformerForMaskedLM, GreenformerForSequenceClassification

B, N, CLASSES = 4, 13, 3


def classifier(name="transformer", **options):
    return stir(GreenformerForSequenceClassification(config(name, num_labels=CLASSES, **options)))


def rows(count=B):
    """Examples of a tiny set to learn by heart."""
    return [
        {
            "input_ids": torch.randint(VOCABULARY, (N,)),
            "attention_mask": mask.long(),
            "labels": torch.tensor(i % CLASSES),
        }
        for i, mask in enumerate(padding(count, N))
    ]


def train(model, data, folder, **options):
    """The training losses, one a step."""
    settings = {"max_steps": 3, "per_device_train_batch_size": B, "learning_rate": 0.01} | options
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=1,
        lr_scheduler_type="constant",
        dataloader_pin_memory=False,
        **settings,
    )
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    ("name", "bf16"), [*((name, False) for name in NETWORKS), *((name, True) for name in FOUR[::3])]
)
def test_three_steps_of_the_trainer(name, bf16, tmp_path):
    model = classifier(name)
    before = deepcopy(model.state_dict())
    losses = train(model, rows(), tmp_path, bf16=bf16)
    assert len(losses) == 3
    assert losses[-1] < losses[0] - 0.1
    still = {
        key
        for key, x in model.state_dict().items()
        if torch.equal(x, before[key]) and not key.endswith("projections.k.bias")
    }
    assert still == set()
    assert {x.dtype for x in model.state_dict().values()} == {torch.float32}


def test_masked_lm_learns_by_heart(tmp_path):
    data = [row | {"labels": row["input_ids"]} for row in rows()]
    losses = train(stir(GreenformerForMaskedLM(config("lrt+linformer"))), data, tmp_path, max_steps=12)
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("kind", ["classifier", "masked lm"])
def test_small_batches_added_up_train_as_one_large_one(kind, tmp_path):
    data = rows(8)
    if kind == "masked lm":
        data = [row | {"labels": row["input_ids"]} for row in data]
        first = stir(GreenformerForMaskedLM(config()))
    else:
        first = classifier()
    second = deepcopy(first)
    options = {"max_steps": 1, "optim": "sgd", "max_grad_norm": 0.0, "seed": 5}
    train(first, data, tmp_path, **options, per_device_train_batch_size=8)
    train(second, data, tmp_path, **options, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    torch.testing.assert_close(second.state_dict(), first.state_dict(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_checkpointing_gives_the_same_gradients(name):
    model = classifier(name, hidden_dropout_prob=0.1).double().train()
    ids, mask, labels = torch.randint(VOCABULARY, (B, N)), padding(B, N), torch.arange(B) % CLASSES

    def gradients():
        torch.manual_seed(5)
        model.zero_grad()
        model(ids, mask, labels=labels).loss.backward()
        return {key: parameter.grad.clone() for key, parameter in model.named_parameters()}

    expected = gradients()
    model.activation_checkpointing_enable()
    assert model.is_activation_checkpointing
    torch.testing.assert_close(gradients(), expected, atol=1e-12, rtol=1e-12)


def test_gradient_checkpointing_keeps_less():
    ids = torch.randint(VOCABULARY, (B, N))

    def saved_numbers(model):
        sizes = {}

        def pack(x):
            sizes[x.data_ptr()] = x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = model(ids, labels=torch.arange(B) % CLASSES).loss
        assert loss.requires_grad
        return sum(sizes.values())

    model = classifier().train()
    whole = saved_numbers(model)
    model.activation_checkpointing_enable()
    assert saved_numbers(model) < whole / 2


@pytest.mark.parametrize("name", FOUR)
def test_a_copy_trains_by_itself(name):
    model = classifier(name)
    copy = deepcopy(model)
    ids = torch.randint(VOCABULARY, (B, N))
    torch.testing.assert_close(copy(ids).logits, model(ids).logits, atol=0, rtol=0)
    before = model(ids).logits
    copy(ids, labels=torch.arange(B) % CLASSES).loss.backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.optim.SGD(copy.parameters(), lr=0.1).step()
    torch.testing.assert_close(model(ids).logits, before, atol=0, rtol=0)
    assert not torch.equal(copy(ids).logits, before)


def test_a_copy_of_a_network_with_a_shared_matrix_shares_its_own():
    model = classifier("layerwise")
    first, second = (layer.attention.mechanism.E for layer in deepcopy(model).encoder.layers)
    assert first is second
    assert first is not model.encoder.layers[0].attention.mechanism.E
