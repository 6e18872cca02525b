"""Noise on gradients: of the right size, the same for a (seed, step) on whatever processes hold, and nobody else's."""

from collections.abc import Iterator

import pytest
import torch
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from skytune.config import ConfigError, OnNan, OptimizerConfig, RunConfig, StrategyConfig, StrategyName, UserError
from skytune.distributed.capabilities import check_strategy
from skytune.training.gradient_noise import add_noise


def model() -> torch.nn.Module:
    found = torch.nn.Sequential(torch.nn.Linear(64, 63), torch.nn.Linear(63, 200))
    for parameter in found.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return found


def noise(eta: float = 0.3, seed: int = 1, step: int = 0) -> list[torch.Tensor]:
    found = model()
    add_noise(found, eta, seed, step)
    return [parameter.grad for parameter in found.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(("eta", "step"), [(0.3, 0), (0.3, 9), (1.0, 999)])
def test_its_variance_is_the_papers(eta: float, step: int) -> None:
    drawn = torch.cat([tensor.flatten() for tensor in noise(eta, step=step)])
    assert float(drawn.var()) == pytest.approx(eta / (1 + step) ** 0.55, rel=0.05)
    assert abs(float(drawn.mean())) < 4 * float(drawn.std()) / len(drawn) ** 0.5


def test_it_is_a_function_of_seed_and_step() -> None:
    torch.manual_seed(0)
    first, state = noise(), torch.get_rng_state()
    torch.rand(7)
    assert all(map(torch.equal, first, noise()))
    assert not torch.equal(first[0], noise(seed=2)[0]) and not torch.allclose(first[0], noise(step=1)[0] * 2**0.275)
    torch.manual_seed(0)
    model()
    assert torch.equal(state, torch.get_rng_state())  # dropout's stream is left alone


def test_what_learns_nothing_gets_none() -> None:
    found = model()
    found[0].weight.grad = None
    add_noise(found, 0.3, 1, 0)
    assert found[0].weight.grad is None and found[1].weight.grad.abs().max() > 0


@pytest.fixture
def last_of_three() -> Iterator[int]:
    """The last of three processes, whose peers are not there: nothing may be exchanged."""
    torch.distributed.init_process_group("fake", rank=2, world_size=3, store=FakeStore())
    yield 2
    torch.distributed.destroy_process_group()


def test_a_process_with_some_rows_draws_those_rows(last_of_three: int) -> None:
    mesh = torch.distributed.init_device_mesh("cpu", (3,))
    found = torch.nn.Module()
    wholes = [parameter.detach() for parameter in model().parameters()]
    for number, whole in enumerate(wholes):
        local = whole.chunk(3)[last_of_three]
        made = DTensor.from_local(
            torch.zeros_like(local), mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
        )
        parameter = torch.nn.Parameter(made)
        parameter.grad = made.clone()
        found.register_parameter(f"weight{number}", parameter)
    add_noise(found, 0.3, 1, 0)
    for parameter, drawn in zip(found.parameters(), noise(), strict=True):
        assert torch.equal(parameter.grad.to_local(), drawn.chunk(3)[last_of_three])


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.gradient_noise"):
        OptimizerConfig(gradient_noise=-1)
    config = RunConfig(optimizer=OptimizerConfig(gradient_noise=0.1), strategy=StrategyConfig(name=StrategyName.zero2))
    assert config.on_nan is OnNan.stop
    with pytest.raises(UserError, match=r"without optimizer\.gradient_noise; strategy=fsdp has it"):
        check_strategy(config, 2, "cuda")
