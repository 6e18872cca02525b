import dataclasses
import logging

import pytest
import torch

from skytune.config import ConfigError, ModelConfig, UserError
from skytune.models import build_model
from skytune.models.build import change_dropout

LABELS = ["bad", "fine", "great"]
FAMILIES = ["bert", "distilbert", "bart", "roberta", "gpt2"]


def batch(rows=3):
    ids = torch.tensor([[2, 8, 11, 3, 0, 0], [2, 16, 17, 18, 19, 3], [2, 5, 3, 0, 0, 0]])[:rows]
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor([0, 1, 2])[:rows]}


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_loss_and_logits_for_the_datas_classes(families, family):
    model = build_model(ModelConfig(name=families[family]), None, LABELS, 1, families[family])
    out = model(**batch())
    assert out.logits.shape == (3, 3)
    assert out.loss.isfinite()
    assert model.config.id2label == {0: "bad", 1: "fine", 2: "great"}
    assert model.config.label2id == {"bad": 0, "fine": 1, "great": 2}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_new_head_depends_on_the_seed_alone(families, family):
    config = ModelConfig(name=families[family])
    torch.manual_seed(1)
    first = build_model(config, None, LABELS, 5)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    again = build_model(config, None, LABELS, 5)
    assert torch.equal(torch.get_rng_state(), before)
    other = build_model(config, None, LABELS, 6)
    assert torch.equal(flat(first), flat(again))
    assert not torch.equal(flat(first), flat(other))
    backbone = first.base_model_prefix
    assert torch.equal(flat(getattr(first, backbone)), flat(getattr(other, backbone)))


def test_without_pretrained_weights_everything_comes_from_the_seed(families, tmp_path):
    import shutil

    folder = tmp_path / "no-weights"
    shutil.copytree(families["bert"], folder)
    (folder / "model.safetensors").unlink()
    config = ModelConfig(name=str(folder), pretrained=False)
    one, same, other = (flat(build_model(config, None, LABELS, seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    pretrained = flat(build_model(ModelConfig(name=families["bert"]), None, LABELS, 1))
    assert not torch.equal(one, pretrained)


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_0_makes_training_mode_deterministic(families, family):
    config = ModelConfig(name=families[family], dropout=0.0)
    model = build_model(config, None, LABELS, 1, families[family]).train()
    rows = batch()
    assert torch.equal(model(**rows).logits, model(**rows).logits)
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} <= {0.0}
    default = build_model(dataclasses.replace(config, dropout=None), None, LABELS, 1, families[family]).train()
    assert not torch.equal(default(**rows).logits, default(**rows).logits)


def test_dropout_names_of_every_family_are_known():
    import transformers as t

    assert set(change_dropout(t.BertConfig(), 0.3)) == {
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "classifier_dropout",
    }
    assert set(change_dropout(t.DistilBertConfig(), 0.3)) >= {"dropout", "attention_dropout", "seq_classif_dropout"}
    bart = t.BartConfig(encoder_layerdrop=0.1)
    change_dropout(bart, 0.3)
    assert (bart.dropout, bart.classifier_dropout, bart.activation_dropout) == (0.3, 0.3, 0.3)
    assert bart.encoder_layerdrop == 0.1
    change_dropout(bart, 0.0)
    assert bart.encoder_layerdrop == 0.0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_frozen_backbone_leaves_only_the_head(families, family):
    model = build_model(ModelConfig(name=families[family], freeze_backbone=True), None, LABELS, 1)
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    prefix = model.base_model_prefix + "."
    heads = {name for name, _ in model.named_parameters() if not name.startswith(prefix)}
    assert learning == heads
    assert learning


def test_a_frozen_backbone_still_learns_what_no_file_held(families, tmp_path):
    from safetensors.torch import load_file, save_file

    from skytune.models import fetch

    source = fetch(families["bert"])
    folder = tmp_path / "no-pooler"
    import shutil

    shutil.copytree(source, folder)
    tensors = {k: v for k, v in load_file(folder / "model.safetensors").items() if "pooler" not in k}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = build_model(ModelConfig(name=str(folder), freeze_backbone=True), None, LABELS, 1)
    assert model.bert.pooler.dense.weight.requires_grad
    assert not model.bert.embeddings.word_embeddings.weight.requires_grad


def test_the_new_head_is_said_in_one_line_and_nothing_else_is(families, caplog, capfd):
    caplog.set_level(logging.INFO)
    build_model(ModelConfig(name=families["bert"]), None, LABELS, 9)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "classifier.bias, classifier.weight are new" in lines[0]
    assert "seed 9" in lines[0]
    assert capfd.readouterr() == ("", "")


def test_a_head_that_fits_is_kept(families, tmp_path, caplog):
    from skytune.models import save_model

    trained = build_model(ModelConfig(name=families["bert"]), None, LABELS, 1)
    save_model(trained, tmp_path / "trained", families["bert"])
    caplog.set_level(logging.INFO)
    caplog.clear()
    again = build_model(ModelConfig(name=str(tmp_path / "trained")), None, LABELS, 2)
    assert torch.equal(flat(trained), flat(again))
    assert not caplog.records
    wider = build_model(ModelConfig(name=str(tmp_path / "trained")), None, [*LABELS, "best"], 2)
    assert wider.classifier.weight.shape == (4, 16)
    assert "classifier" in caplog.text


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_for_these_classes_in_another_order_gives_each_class_its_own_logit(families, family, tmp_path, caplog):
    from skytune.models import save_model

    trained = build_model(ModelConfig(name=families[family], dropout=0), None, LABELS, 1, families[family])
    save_model(trained, tmp_path / "trained", families[family])
    caplog.set_level(logging.INFO)
    caplog.clear()
    again = build_model(ModelConfig(name=str(tmp_path / "trained"), dropout=0), None, ["great", "Bad", "fine"], 2)
    assert torch.equal(again(**batch()).logits, trained(**batch()).logits[:, [2, 0, 1]])
    assert again.config.label2id == {"great": 0, "Bad": 1, "fine": 2}
    assert "put into the order great, Bad, fine" in caplog.text


def test_a_head_for_other_classes_is_not_taken_for_these(families, tmp_path, caplog):
    from skytune.models import save_model

    trained = build_model(ModelConfig(name=families["bert"]), None, LABELS, 1)
    save_model(trained, tmp_path / "trained", families["bert"])
    config = ModelConfig(name=str(tmp_path / "trained"))
    caplog.set_level(logging.INFO)
    for labels in (["bad", "fine", "best"], ["a", "b", "c"]):
        caplog.clear()
        other = build_model(config, None, labels, 2)
        assert not torch.equal(other.classifier.weight, trained.classifier.weight)
        assert torch.equal(other.bert.pooler.dense.weight, trained.bert.pooler.dense.weight)
        assert torch.equal(flat(other), flat(build_model(config, None, labels, 2)))
        assert "classifier.bias, classifier.weight are new" in caplog.text
        assert "is for bad, fine, great, not for" in caplog.text
    caplog.clear()
    assert torch.equal(flat(build_model(config, None, ["0", "1", "2"], 2)), flat(trained))
    assert "is for bad, fine, great, taken as 0, 1, 2, in this order" in caplog.text


def test_a_model_without_padding_token_gets_the_tokenizers(families):
    model = build_model(ModelConfig(name=families["gpt2"]), None, LABELS, 1, families["gpt2"])
    assert model.config.pad_token_id == 3


def test_a_tokenizer_that_does_not_fit_names_both_sizes(families, tmp_path, make_tokenizer):
    make_tokenizer(tmp_path, words=[f"word{n}" for n in range(40)])
    with pytest.raises(UserError, match=r"has 44 tokens, the model's vocabulary 24"):
        build_model(ModelConfig(name=families["bert"]), None, LABELS, 1, str(tmp_path))


def test_weights_of_another_architecture_are_refused(families, tmp_path):
    import shutil

    shutil.copytree(families["bert"], tmp_path / "mix")
    shutil.copy(f"{families['distilbert']}/model.safetensors", tmp_path / "mix")
    with pytest.raises(UserError, match="not those of a BertForSequenceClassification"):
        build_model(ModelConfig(name=str(tmp_path / "mix")), None, LABELS, 1)


def test_weights_that_are_cut_short_are_refused(families, tmp_path):
    import shutil

    folder = tmp_path / "cut"
    shutil.copytree(families["bert"], folder)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"cannot load the weights") as caught:
        build_model(ModelConfig(name=str(folder)), None, LABELS, 1)
    assert "\n" not in str(caught.value)


def test_pickled_weights_are_not_read(families, tmp_path):
    import shutil

    folder = tmp_path / "pickle"
    shutil.copytree(families["bert"], folder)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="safetensors"):
        build_model(ModelConfig(name=str(folder)), None, LABELS, 1)


def test_a_type_without_text_classifier_says_so(tmp_path):
    from transformers import ViTConfig

    ViTConfig().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError, match="no text classifier of type 'vit'"):
        build_model(ModelConfig(name=str(tmp_path)), None, LABELS, 1)


OWN = """
import torch

class Bag(torch.nn.Module):
    def __init__(self, vocab_size, num_labels, width=4):
        super().__init__()
        self.table = torch.nn.EmbeddingBag(vocab_size, width)
        self.drop = torch.nn.Dropout(0.5)
        self.head = torch.nn.Linear(width, num_labels)

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.drop(self.table(input_ids)))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}

def nothing():
    return {"not": "a module"}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    import sys

    (tmp_path / "own_networks.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_networks"
    sys.modules.pop("own_networks", None)


def test_a_module_of_ones_own_gets_what_its_signature_names(own, families):
    config = ModelConfig(_target_=f"{own}.Bag", args={"width": 6}, dropout=0.1)
    torch.manual_seed(3)
    model = build_model(config, None, LABELS, 1, families["bert"])
    assert model.table.weight.shape == (24, 6)
    assert model.drop.p == 0.1
    assert model(**batch())["logits"].shape == (3, 3)
    torch.manual_seed(4)
    assert torch.equal(flat(model), flat(build_model(config, None, LABELS, 1, families["bert"])))


def test_a_target_that_is_no_module_says_so(own):
    with pytest.raises(ConfigError, match=r"returned dict, not a torch.nn.Module"):
        build_model(ModelConfig(_target_=f"{own}.nothing"), None, LABELS, 1)


def test_freezing_needs_to_know_the_backbone(own, families):
    with pytest.raises(ConfigError, match="base_model_prefix"):
        build_model(ModelConfig(_target_=f"{own}.Bag", freeze_backbone=True), None, LABELS, 1, families["bert"])


def test_the_packaged_model_loads(packaged):
    model = build_model(ModelConfig(), None, ["negative", "positive"], 42)
    assert sum(parameter.numel() for parameter in model.parameters()) == 22_713_986
    assert model.config.num_labels == 2
