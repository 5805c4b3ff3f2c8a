"""A vision-language-action policy whose actions are words: a Qwen2 decoder reads pictures, the instruction and the
robot's state as embeddings, and says one token per number of the chunk (RT-2, Brohan et al. 2023, arXiv:2307.15818)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from embodied import noise
from embodied.errors import ConfigError, SpecMismatch, WeightsRefused
from embodied.spec import AgentSpec
from embodied.weights.tensors import read_tensors
from policies import bins as binned
from policies.encoders import Critic, seeded_
from policies.lora import adapt, fingerprint, frozen, lora_of, merged
from policies.mlp import ACTION_NOISE
from policies.network import Decided, Inputs, Judged, PolicyNetwork, check_chunk
from policies.prompts import InstructionTokens, PictureTokens
from policies.senses import Senses, action_scales
from policies.torch_policy import TorchPolicy
from policies.words import words_of

SIZES_FIX = "give sizes above zero, bins >= 2, width a multiple of 2 * heads, heads of kv_heads"


@dataclass(frozen=True)
class Sizes:
    """Of a token network.

    Attributes:
        bins: V, action tokens there are.
        width: d of every embedding. layers, heads, kv_heads, ff: Of the decoder; width / heads should be one of 32,
            64, 80, 96, 112, 128 for vLLM.
        channels: Of the convolutions; all but the last halve the picture's edges. grid: Whether each cell of what they
            leave is an embedding. vision_layers: Of the transformer over a picture's embeddings.
        word_tokens: Embeddings that an instruction of any length becomes.
        critic_hidden: Widths of the critic's layers.
    """

    bins: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    ff: int
    channels: tuple[int, ...]
    grid: bool
    vision_layers: int
    word_tokens: int
    critic_hidden: tuple[int, ...]

    def __post_init__(self) -> None:
        whole = (self.width, self.layers, self.heads, self.kv_heads, self.ff, self.word_tokens, *self.channels)
        fits = min(whole) > 0 and not self.width % (2 * self.heads) and not self.heads % self.kv_heads
        if not fits or self.bins < 2 or self.vision_layers < 0 or not self.channels:
            raise ConfigError(f"sizes {self.identity}", "policy", SIZES_FIX)

    @property
    def identity(self) -> dict[str, Any]:
        """For `PolicySpec.extra`."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}


class TokenNetwork(PolicyNetwork):
    """Pictures, words and state to P embeddings; a decoder that continues them with K x D action tokens.

    Another engine takes `prompt`, `decoder_config` and `decoder_state`, and gives `generate`.

    Args:
        senses: What is read.
        chunk: K.
        scale: [D] physical units of one raw unit.
        sizes: Of its parts.
        seed: Draws the weights.

    Attributes:
        decoder: Continues the prompt.
        tokens: K * D, how many it says.
        clone_std: Raw units by which demonstrated numbers are blurred for cloning; what the clone explores with.
    """

    critic: Critic

    def __init__(self, senses: Senses, chunk: int, scale: Sequence[float], sizes: Sizes, seed: int) -> None:
        numbers, own = senses.sizes
        super().__init__(chunk, scale, numbers + own, numbers)
        assert senses.words is not None
        self.sizes, self.tokens, self.clone_std = sizes, chunk * self.action_dim, 0.0
        self.cameras = [stream.name for stream in senses.pictures]
        generator, width = torch.Generator().manual_seed(seed), sizes.width
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            read = InstructionTokens(
                senses.words.vocabulary, senses.words.length, width, sizes.heads, sizes.word_tokens
            )
            seen = {
                s.name: PictureTokens(s.shape, sizes.channels, width, sizes.vision_layers, sizes.heads, sizes.grid)
                for s in senses.pictures
            }
            length = sum(eye.cells for eye in seen.values()) + sizes.word_tokens + bool(numbers)
            self.words = seeded_(read, generator)
            self.eyes = nn.ModuleDict({name: seeded_(eye, generator) for name, eye in seen.items()})
            self.proprioception = seeded_(nn.Linear(numbers, width), generator) if numbers else None
            self.critic = Critic(numbers + own if own else 0, width, sizes.critic_hidden, generator)
            self.decoder = Qwen2ForCausalLM(_decoder_config(sizes, length + self.tokens)).eval()
        self.value_reads_rest = not self.critic.privileged

    def prompt(self, inputs: Inputs) -> Tensor:
        """[N, P, d] embeddings: each camera's cells, the instruction, the state. P is the same for every row."""
        said, meaning = self.words(inputs["words"])
        seen = [self.eyes[camera](inputs[camera], meaning) for camera in self.cameras]
        felt = [self.proprioception(inputs["state"])[:, None]] if self.proprioception is not None else []
        return torch.cat([*seen, said, *felt], dim=1)

    def decoder_config(self) -> dict[str, Any]:
        """`Qwen2Config.to_dict()` of the decoder."""
        return self.decoder.config.to_dict()

    def decoder_state(self) -> dict[str, Tensor]:
        """The decoder's weights by the names `Qwen2ForCausalLM` has for them, adapters merged; live, not copies."""
        return {name: tensor.detach() for name, tensor in merged(self.decoder).items()}

    def actions_of(self, tokens: Tensor) -> Tensor:
        """Physical actions [N, K, D] of tokens [N, K * D], which are in the order of [K, D]."""
        raw = binned.centres(self.sizes.bins).to(tokens.device)[tokens]
        return raw.view(-1, self.chunk, self.action_dim) * self.action_scale

    def tokens_of(self, actions: Tensor) -> Tensor:
        """Tokens [N, K * D] nearest to physical actions [N, K, D]; exactly those of actions that `actions_of` made."""
        return binned.nearest(actions / self.action_scale, self.sizes.bins).flatten(1)

    def draw(self, noise_keys: NDArray[np.int64]) -> Tensor:
        """[N, K * D] in (0, 1)."""
        draws = torch.from_numpy(noise.uniform(noise_keys, self.tokens, ACTION_NOISE).astype(np.float32))
        return draws.clamp_(max=binned.U_BELOW_ONE).to(self.device)

    def generate(self, prompt: Tensor, draws: Tensor | None) -> tuple[Tensor, Tensor]:
        """Tokens and their log-probabilities, both [N, K * D], that continue the prompt [N, P, d].

        The softmax (temperature 1) is sampled with `draws` [N, K * D], or its most likely token taken where None.
        """
        cache, x = DynamicCache(config=self.decoder.config), prompt
        tokens, log_probs = [], []
        for i in range(self.tokens):
            hidden = self.decoder.model(inputs_embeds=x, past_key_values=cache, use_cache=True).last_hidden_state
            logits = self.decoder.lm_head(hidden[:, -1])
            token = logits.argmax(-1) if draws is None else binned.inverse_cdf(logits, draws[:, i])
            tokens.append(token)
            log_probs.append(binned.log_prob(logits, token))
            x = self.decoder.model.embed_tokens(token)[:, None]
        return torch.stack(tokens, dim=1), torch.stack(log_probs, dim=1)

    def logits(self, prompt: Tensor, tokens: Tensor) -> Tensor:
        """[N, K * D, V] from which each of the tokens [N, K * D] was chosen, all in one pass."""
        said = self.decoder.model.embed_tokens(tokens[:, :-1])
        embeds = torch.cat([prompt, said], dim=1)
        hidden = self.decoder.model(inputs_embeds=embeds, use_cache=False).last_hidden_state
        return self.decoder.lm_head(hidden[:, prompt.shape[1] - 1 :])

    def decide(self, inputs: Inputs, draws: Tensor | None) -> Decided:
        prompt = self.prompt(inputs)
        tokens, log_probs = self.generate(prompt, draws)
        return Decided(self.actions_of(tokens), self._by_action(log_probs), self._value(inputs, prompt))

    def judge(self, inputs: Inputs, actions: Tensor, stored: Inputs) -> Judged:
        prompt, tokens = self.prompt(inputs), self.tokens_of(actions)
        logits = self.logits(prompt, tokens)
        log_probs, entropy = binned.log_prob(logits, tokens), binned.entropy(logits)
        return Judged(self._by_action(log_probs), self._value(inputs, prompt), self._by_action(entropy))

    def value(self, inputs: Inputs) -> Tensor:
        return self._value(inputs, None)

    def clone_loss(self, inputs: Inputs, actions: Tensor, generator: torch.Generator) -> Tensor:
        """Cross entropy with what was demonstrated, blurred by `clone_std`, mean over an action's numbers."""
        logits = self.logits(self.prompt(inputs), self.tokens_of(actions))
        wanted = binned.blurred((actions / self.action_scale).flatten(1), self.sizes.bins, self.clone_std)
        return -self._by_action((wanted * torch.log_softmax(logits, dim=-1)).sum(-1)).mean(-1)

    def prepare_clone(self, std: float) -> None:
        self.clone_std = std

    def _by_action(self, numbers: Tensor) -> Tensor:
        return numbers.view(-1, self.chunk, self.action_dim)

    def _value(self, inputs: Inputs, prompt: Tensor | None) -> Tensor:
        if self.critic.privileged:
            return self.critic.own_view(inputs)
        with torch.no_grad():
            prompt = self.prompt(inputs) if prompt is None else prompt
        return self.critic(prompt.mean(1))


def _decoder_config(sizes: Sizes, positions: int) -> Qwen2Config:
    return Qwen2Config(
        architectures=["Qwen2ForCausalLM"], vocab_size=sizes.bins, hidden_size=sizes.width,
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads,
        intermediate_size=sizes.ff, max_position_embeddings=positions, tie_word_embeddings=False, dtype="float32",
        attn_implementation="sdpa",  # type: ignore[call-arg]
    )  # fmt: skip


class TokenPolicy(TorchPolicy):
    """Chunks of K actions, said token by token, from pictures, an instruction and the robot's own state.

    Args:
        name: Name of the policy.
        agent: Streams offered.
        chunk: K. execute: How many of them before asking again; all where 0.
        state, pictures, instruction, critic: Names of streams, as in `Senses.choose`.
        bins, width, layers, heads, kv_heads, ff, channels, grid, vision_layers, word_tokens: As in `Sizes`.
        critic_hidden: Widths of the critic's layers.
        words: Arguments of `policies.words.Words`.
        lora: Arguments of `policies.lora.Lora`: a version then consists of the adapters and of what is not the
            decoder, and the decoder's own weights stand still.
        base: Path of a `model.safetensors` of this policy without `lora`, to begin with.
        block: As in `TorchPolicy`.
        seed: Draws the initial weights.

    Raises:
        ConfigError: A number is out of its range.
        SpecMismatch: A stream is not offered, there is no picture or instruction, or an action is not float32.
        CorruptFile, WeightsRefused: `base` cannot be read, or is of another policy.
    """

    network: TokenNetwork
    network_type: ClassVar[type[TokenNetwork]] = TokenNetwork

    def __init__(
        self,
        name: str,
        agent: AgentSpec,
        chunk: int = 4,
        execute: int = 0,
        state: Sequence[str] = (),
        pictures: Sequence[str] | None = None,
        instruction: str = "instruction",
        critic: Sequence[str] = (),
        bins: int = 256,
        width: int = 128,
        layers: int = 3,
        heads: int = 4,
        kv_heads: int = 2,
        ff: int = 384,
        channels: Sequence[int] = (16, 32, 64, 64, 64),
        grid: bool = True,
        vision_layers: int = 0,
        word_tokens: int = 2,
        critic_hidden: Sequence[int] = (128, 128),
        words: dict[str, Any] | None = None,
        lora: dict[str, Any] | None = None,
        base: str | None = None,
        block: int = 16,
        seed: int = 0,
    ) -> None:
        check_chunk(chunk, execute)
        if block < 1:
            raise ConfigError(f"block {block}", "policy.block", "give 1 or more rows")
        sizes = Sizes(
            bins,
            width,
            layers,
            heads,
            kv_heads,
            ff,
            tuple(channels),
            grid,
            vision_layers,
            word_tokens,
            tuple(critic_hidden),
        )
        senses = Senses.choose(agent, state, pictures, instruction, words_of(words), critic)
        if not senses.pictures:
            raise SpecMismatch(f"policy {name} finds no picture", "spec", "give body.cameras, such as [front]")
        if not senses.words:
            raise SpecMismatch(f"policy {name} reads no instruction", "policy.instruction", "name the stream of one")
        scale = action_scales(agent)
        network = self.network_type(senses, chunk, scale, sizes, seed)
        extra = {"kind": "tokens", **sizes.identity, "action_scale": scale}
        super().__init__(name, agent.actions, senses, network, extra, execute, block)
        self._kept: frozenset[str] = frozenset()
        if base is not None:
            self._begin_with(Path(base).expanduser())
        if (adapters := lora_of(lora)) is not None:
            adapt(network.decoder, adapters, torch.Generator().manual_seed(seed))
            self._kept = frozen(network)
            whole = network.state_dict()
            identity = {"lora": adapters.identity, "base": fingerprint({name: whole[name] for name in self._kept})}
            self.spec = replace(self.spec, extra={**self.spec.extra, **identity})

    def _begin_with(self, base: Path) -> None:
        fix = "give the model.safetensors of this policy without lora"
        size = sum(tensor.nbytes for tensor in self._state().values())
        try:
            self.load(read_tensors(base, size, fix))
        except WeightsRefused as error:
            raise WeightsRefused(error.what, str(base), fix) from None

    def _state(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in super()._state().items() if name not in self._kept}


def build(agent: AgentSpec, **config: Any) -> TokenPolicy:
    """The policy a config's import path points to; `config` holds `name` and any argument of `TokenPolicy`."""
    try:
        return TokenPolicy(agent=agent, **config)
    except TypeError as error:
        raise ConfigError(f"not a token policy: {error}", "policy", "see the arguments of TokenPolicy") from None
