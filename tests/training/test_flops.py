"""Arithmetic counted from a model, and the share of a device's peak."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, BartConfig, BertConfig, LlamaConfig

from skytune.config import Precision
from skytune.training.flops import PEAKS, Work, peak, utilization, work_of

WIDTH, LAYERS, INNER = 32, 3, 64


def built(config: object) -> torch.nn.Module:
    return AutoModelForSequenceClassification.from_config(config)


def test_an_encoder() -> None:
    work = work_of(
        built(
            BertConfig(
                vocab_size=50,
                hidden_size=WIDTH,
                num_hidden_layers=LAYERS,
                num_attention_heads=4,
                intermediate_size=INNER,
            )
        )
    )
    matrices = LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER)
    assert work == Work(6 * matrices, 12 * LAYERS * WIDTH, 6 * (WIDTH * WIDTH + 2 * WIDTH))


def test_a_decoder_sees_half_of_the_pairs() -> None:
    work = work_of(
        built(
            LlamaConfig(
                vocab_size=50,
                hidden_size=WIDTH,
                num_hidden_layers=LAYERS,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=INNER,
            )
        )
    )
    matrices = LAYERS * (2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH // 2 + 3 * WIDTH * INNER)
    assert work == Work(6 * matrices, 12 * LAYERS * WIDTH / 2, 6 * 2 * WIDTH)


def test_the_forward_pass_is_what_torch_counts() -> None:
    """A third of it, for a row without padding, against torch's own counter of matrix products."""
    from torch.utils.flop_counter import FlopCounterMode

    config = BertConfig(
        vocab_size=50, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=INNER
    )
    config._attn_implementation = "eager"
    model = built(config)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.ones(2, 9, dtype=torch.long))
    work = work_of(model)
    assert work is not None
    assert work.of(np.array([9, 9])) / 3 == counter.get_total_flops()


def test_an_encoder_decoder_attends_three_times() -> None:
    work = work_of(
        built(
            BartConfig(
                vocab_size=50,
                d_model=WIDTH,
                encoder_layers=2,
                decoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=INNER,
                decoder_ffn_dim=INNER,
            )
        )
    )
    assert work is not None
    # Encoder whole, decoder half of the pairs of its own and all of the encoder's.
    assert work.square == 12 * WIDTH * (2 * 1 + 2 * 1.5)


def test_padding_is_no_work_and_lengths_count_squared() -> None:
    work = Work(2.0, 3.0, 5.0)
    assert work.of(np.array([1, 4])) == 2 * 5 + 3 * 17 + 5 * 2


def test_what_is_no_transformer_is_not_counted() -> None:
    assert work_of(torch.nn.Linear(3, 3)) is None


def test_peaks() -> None:
    assert peak("cuda NVIDIA H100 80GB HBM3", Precision.bf16) == 989.4e12
    assert peak("cuda NVIDIA H100 80GB HBM3", Precision.fp16) == 989.4e12
    assert peak("cuda NVIDIA H100 PCIe", Precision.tf32) == 378e12
    assert peak("cuda NVIDIA H200", Precision.bf16) == 989.4e12 and peak("H200 NVL", Precision.bf16) == 835e12
    assert peak("cuda NVIDIA L40S", Precision.bf16) == 362e12
    assert peak("cuda Tesla T4", Precision.bf16) is None
    assert peak("cpu", Precision.fp32) is None
    names = [name for name, _ in PEAKS]
    for number, name in enumerate(names):
        assert not any(earlier in name for earlier in names[:number]), f"{name} would never be found"


def test_utilization() -> None:
    assert utilization(8e12, 2.0, 4, 2e12) == pytest.approx(0.5)
    assert utilization(8e12, 2.0, 4, None) is None
    assert utilization(0.0, 2.0, 4, 2e12) is None
