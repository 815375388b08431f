"""Other tokens in the place of some: how many, which, and that first and last tokens and padding stay."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_heal import network, rows
from transformers import BertForMaskedLM, BertModel
from zoo import network as of_zoo

import greenformers
from greenformers.changes import Given, Heal
from greenformers.changes._replacement import CANDIDATES, Replacement


def batch(count: int = 200) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    mask = (torch.arange(12) < torch.randint(3, 13, (count, 1), generator=draw)).long()
    return {"input_ids": torch.randint(1, 40, (count, 12), generator=draw) * mask, "attention_mask": mask}


@pytest.mark.parametrize("cls", [BertModel, BertForMaskedLM])
def test_a_share_of_the_inner_tokens_is_replaced_by_candidates(cls: type) -> None:
    teacher, given = network(cls), batch()
    torch.manual_seed(0)
    replaced = Replacement(teacher, 0.3, mask_token=40)(given)
    ids, others, mask = given["input_ids"], replaced["input_ids"], given["attention_mask"].bool()
    last = mask.sum(1) - 1
    inner = mask.clone()
    inner[:, 0] = False
    inner[torch.arange(200), last] = False
    assert torch.equal(ids[~inner], others[~inner])
    # Of a masked language model the token itself may be among the candidates.
    share = (ids != others)[inner].float().mean().item()
    assert 0.25 < share < 0.35
    changed = (ids != others).nonzero()[:40].tolist()
    weight = F.normalize(teacher.get_input_embeddings().weight, dim=1)
    for row, at in changed:
        if cls is BertModel:
            cosines = weight @ weight[ids[row, at]]
            cosines[ids[row, at]] = -2
            assert others[row, at] in cosines.topk(CANDIDATES).indices
    torch.manual_seed(0)
    assert torch.equal(Replacement(teacher, 0.3, mask_token=40)(given)["input_ids"], others)


def test_a_masked_language_model_says_what_fits() -> None:
    """One token masked: of those that it finds likeliest there."""
    teacher = network(BertForMaskedLM)
    ids = torch.tensor([[5, 9, 7]])
    with torch.no_grad():
        likely = teacher(input_ids=torch.tensor([[5, 40, 7]]), attention_mask=torch.ones_like(ids)).logits[0, 1]
    torch.manual_seed(0)
    replacement = Replacement(teacher, 1.0, mask_token=40)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    drawn = {int(replacement(given)["input_ids"][0, 1]) for _ in range(300)}
    assert drawn == set(likely.topk(CANDIDATES).indices.tolist())


def test_healing_with_it_goes_on_to_the_bit(tmp_path: Path) -> None:
    original = network()
    small = copy.deepcopy(original)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    healing = Heal(steps=20, batch_size=16, learning_rate=1e-3, augment=0.2)
    results = []
    for folder in (None, tmp_path, tmp_path):
        student = copy.deepcopy(small)
        if folder is not None and results[1:]:
            newest = max(tmp_path.glob("step-*"), key=lambda path: int(path.name[5:]))
            newest.rename(tmp_path / "gone")
        healing.apply(student, Given(training=rows(original), teacher=original, folder=folder))
        results.append(student)
    for weight, *others in zip(*(student.parameters() for student in results), strict=True):
        assert all(torch.equal(weight, other) for other in others)
    plain = copy.deepcopy(small)
    healing.but(augment=None).apply(plain, Given(training=rows(original), teacher=original))
    assert not torch.equal(next(plain.parameters()), next(results[0].parameters()))


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"augment must be a share in \(0, 1\), got 1.0"):
        Heal(augment=1.0)
    original = network()
    given = Given(training=rows(original), teacher=original, teacher_cache=tmp_path / "cache")
    with pytest.raises(ValueError, match="augment and teacher_cache exclude each other"):
        Heal(batch_size=8, augment=0.1).check(copy.deepcopy(original), [], given)
    images = [{"pixel_values": torch.randn(3, 20, 20)} for _ in range(40)]
    with pytest.raises(ValueError, match="augment is of tokens of texts, and the examples hold none"):
        greenformers.compress(of_zoo("vit"), Heal(2, batch_size=2, augment=0.1), examples=images)
