"""Costs that the server and the learner add to a policy's network.

`infer_over_torch`: rows per second of `VersionedPolicy.act` over those of the bare network, FiLM policy, 64 px, chunks
of four, 64 rows. Both begin with the same numpy arrays and end with numpy actions and sampled log-probabilities.
The host checks streams and numbers, splits rows into blocks so that a row's result never depends on its batch, reads
the words, draws noise keyed by episode and step, and wraps a chunk. The bare side makes tensors, normalises, and calls
the network once on the whole batch with noise of torch's own generator; its words come as tokens. Small batches are
filled up to a block, so a single row costs what a block costs: that is in the table, not hidden.

`sft_step_over_torch`: gradient steps per second of `BehaviourCloning` over those of a plain loop of the same network on
128 rows drawn from the same 2048. Ours draws and gathers rows from numpy, reads the words, checks that loss and
gradient are finite, and steps. The plain loop indexes tensors in memory, words as tokens, then the network's loss under
a mask, `backward`, `clip_grad_norm_` and `torch.optim.Adam(fused=True)`; it reads the loss as ours does.

Both sides of a ratio run in turn with the same torch threads; a value is the median of the rounds' ratios.
"""

import argparse
import math
import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import OmegaConf
from results import emit
from torch import Tensor, nn

from embodied.build import build
from embodied.data import Observation, Rows
from embodied.errors import ConfigError
from embodied.learning.bc import BCConfig, BehaviourCloning
from embodied.learning.demonstrations import Demonstrations
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import AgentSpec, Stream
from policies.network import Inputs
from policies.torch_policy import TorchPolicy

CONFIGS = Path(__file__).parents[2] / "configs" / "policy"
POLICIES = ("film", "mlp", "tokens", "flow")
NAMED, NAMED_ROWS = "film", 64
TEXTS = (b"reach the red cube", b"reach the green cube", b"move to the blue cube", b"go to the red block")


def agent_of(pixels: int) -> AgentSpec:
    """The streams of `reach_color` with one camera."""
    observations = (
        Stream("joint_pos", (7,)), Stream("ee_pos", (3,)), Stream("front_rgb", (pixels, pixels, 3), "uint8"),
        Stream("instruction", (64,), "uint8"),
    )  # fmt: skip
    return AgentSpec(observations, (Stream("ee_delta", (3,), limit=0.04), Stream("gripper", (1,), limit=1.0)))


def streams_of(agent: AgentSpec, rows: int, seed: int) -> dict[str, NDArray]:
    """Numbers, pictures and instructions at random."""
    generator = np.random.default_rng(seed)
    made: dict[str, NDArray] = {}
    for stream in agent.observations:
        shape = (rows, *stream.shape)
        if stream.name == "instruction":
            padded = [text.ljust(stream.size, b"\0") for text in TEXTS]
            made[stream.name] = np.array([np.frombuffer(padded[i % len(padded)], np.uint8) for i in range(rows)])
        elif stream.dtype == "uint8":
            made[stream.name] = generator.integers(0, 256, shape, np.uint8)
        else:
            made[stream.name] = generator.standard_normal(shape, np.float32)
    return made


def policy_of(name: str, agent: AgentSpec) -> TorchPolicy:
    """As configs/policy has it."""
    return build(OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{name}.yaml")), "policy", agent)


def tokens_of(policy: TorchPolicy, streams: dict[str, NDArray]) -> NDArray[np.int64] | None:
    senses = policy.senses
    return senses.words.encode(streams[senses.instruction.name]) if senses.words and senses.instruction else None


def bare_act(
    policy: TorchPolicy, streams: dict[str, NDArray], tokens: NDArray[np.int64] | None, noise: Callable[[], Tensor]
) -> tuple[NDArray, NDArray]:
    """The network alone."""
    net, senses = policy.network, policy.senses
    with torch.inference_mode():
        inputs = net.normalise(torch.from_numpy(np.concatenate([streams[s.name] for s in senses.state], axis=1)))
        inputs |= {s.name: torch.from_numpy(streams[s.name]) for s in senses.pictures}
        if tokens is not None:
            inputs["words"] = torch.from_numpy(tokens)
        decided = net.sample(inputs, noise())
        return decided.actions.numpy(), decided.log_probs.numpy()


def alternate(ours: Callable[[], object], bare: Callable[[], object], rounds: int, calls: int) -> tuple[float, ...]:
    """Seconds of a call of either, and the median of the rounds' bare over ours."""
    seconds: list[tuple[float, float]] = []
    for turn in range(rounds + 1):
        spent = []
        for side in (ours, bare) if turn % 2 else (bare, ours):
            begin = time.perf_counter()
            for _ in range(calls):
                side()
            spent.append((time.perf_counter() - begin) / calls)
        if turn:  # the first round warms up
            seconds.append((spent[0], spent[1]) if turn % 2 else (spent[1], spent[0]))
    both = np.array(seconds)
    return float(np.median(both[:, 0])), float(np.median(both[:, 1])), float(np.median(both[:, 1] / both[:, 0]))


def infer(policy: TorchPolicy, agent: AgentSpec, rows: int, rounds: int, seconds: float) -> tuple[float, ...]:
    """As `alternate`, for a batch of `rows`; a side takes about `seconds` in each round."""
    streams, host = streams_of(agent, rows, 0), VersionedPolicy(policy)
    seen = Observation(Rows.of_envs(rows), streams, np.zeros(rows))
    keys = seen.rows.noise_keys(0)
    drawn = policy.network.sample_noise(keys)
    within = bool(((drawn >= 0) & (drawn <= 1)).all())  # a policy that draws uniform numbers, as for tokens
    draw = torch.rand if within else torch.randn
    noise = partial(draw, drawn.shape, generator=torch.Generator().manual_seed(0))
    ours = partial(host.act, seen, keys, "sample")
    bare = partial(bare_act, policy, streams, tokens_of(policy, streams), noise)
    begin = time.perf_counter()
    ours(), bare()
    calls = max(1, math.ceil(2 * seconds / (time.perf_counter() - begin)))
    return alternate(ours, bare, rounds, calls)


class PlainLoop:
    """Supervised learning of a copy of a policy's network as one would write it down, all data in memory as tensors."""

    def __init__(self, policy: TorchPolicy, shown: Demonstrations, config: BCConfig) -> None:
        self.net, self.config = deepcopy(policy.network), config
        with torch.no_grad():
            numbers = policy.senses.numbers(shown.streams, len(shown))
            self.data: Inputs = self.net.normalise(torch.from_numpy(numbers))
        self.data |= {s.name: torch.from_numpy(shown.streams[s.name]) for s in policy.senses.pictures}
        tokens = tokens_of(policy, shown.streams)
        if tokens is not None:
            self.data["words"] = torch.from_numpy(tokens)
        self.actions, self.mask = torch.from_numpy(shown.actions), torch.from_numpy(shown.mask).float()
        self.trained = [p for p in self.net.parameters() if p.requires_grad]
        self.adam = torch.optim.Adam(self.trained, lr=config.lr, fused=True)
        self.generator = torch.Generator().manual_seed(config.seed)

    def step(self) -> float:
        index = torch.randint(len(self.actions), (self.config.batch,), generator=self.generator)
        inputs = {name: tensor[index] for name, tensor in self.data.items()}
        each, mask = self.net.clone_loss(inputs, self.actions[index], self.generator), self.mask[index]
        loss = (each * mask).sum() / mask.sum()
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.trained, self.config.max_grad_norm)
        self.adam.step()
        return loss.item()


def sft(name: str, agent: AgentSpec, batch: int, held: int, rounds: int, steps: int) -> tuple[float, ...]:
    """As `alternate`, for gradient steps on `batch` of `held` rows."""
    policy, config = policy_of(name, agent), BCConfig(batch=batch)
    generator = np.random.default_rng(1)
    shape = (held, policy.network.chunk, agent.action_dim)
    actions = generator.uniform(-1, 1, shape).astype(np.float32) * agent.action_limits
    mask = np.ones(shape[:2], bool)
    mask[::8, -1] = False
    shown = Demonstrations(streams_of(agent, held, 1), actions, mask)
    plain, learner = PlainLoop(policy, shown, config), BehaviourCloning(policy, config)

    def step() -> float:
        index = torch.randint(len(shown), (batch,), generator=learner.generator).numpy()
        loss = learner._loss(shown, index)
        learner.optimiser.step(loss)
        return loss.item()

    return alternate(step, plain.step, rounds, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11, help="rounds of interleaved measurements")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each side in a round of inference")
    parser.add_argument("--steps", type=int, default=3, help="gradient steps of each side in a round")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--pixels", type=int, default=64)
    parser.add_argument("--held", type=int, default=2048, help="rows to learn from")
    parser.add_argument("--batch", type=int, default=128, help="rows of a gradient step")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    agent, rounds = agent_of(arguments.pixels), arguments.rounds
    values: dict[str, float] = {}
    print(f"{'policy':<8} {'':<6} {'rows':>5} {'ours ms':>9} {'torch ms':>9} {'ratio':>7}")

    def row(name: str, kind: str, rows: int, key: str, found: tuple[float, ...]) -> None:
        ours, bare, ratio = found
        print(f"{name:<8} {kind:<6} {rows:>5} {1e3 * ours:>9.2f} {1e3 * bare:>9.2f} {ratio:>7.2f}", flush=True)
        named = (name == NAMED and kind == "sft") or (name, kind, rows) == (NAMED, "infer", NAMED_ROWS)
        values[key if named else f"{key}_{name}" + (f"_{rows}" if kind == "infer" else "")] = ratio

    for name in arguments.policies:
        try:
            policy = policy_of(name, agent)
        except (ConfigError, ModuleNotFoundError) as error:  # transformers is an extra
            print(f"{name:<8} left out: {error}")
            continue
        for rows in (1, 8, NAMED_ROWS):
            found = infer(policy, agent, rows, rounds, arguments.seconds)
            row(name, "infer", rows, "infer_over_torch", found)
        found = sft(name, agent, arguments.batch, arguments.held, rounds, arguments.steps)
        row(name, "sft", arguments.batch, "sft_step_over_torch", found)
    targets = {"infer_over_torch": 0.9, "sft_step_over_torch": 0.9}
    emit(values, {name: target for name, target in targets.items() if name in values})


if __name__ == "__main__":
    main()
