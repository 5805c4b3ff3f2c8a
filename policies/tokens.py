"""A vision-language-action policy whose actions are words: a Qwen2 decoder reads pictures, the instruction and the
robot's state as embeddings, and says one token per number of the chunk (RT-2, Brohan et al. 2023, arXiv:2307.15818)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Len
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from embodied import noise
from embodied.errors import WeightsRefused
from embodied.settings import AtLeastOne, Count, Share, configured, settings
from embodied.spec import AgentSpec
from embodied.weights.sidecar import check_sidecar
from embodied.weights.tensors import read_tensors
from policies import bins as binned
from policies.encoders import Critic, module_key, seeded_
from policies.lora import Lora, adapt, fingerprint, frozen, merged
from policies.mlp import ACTION_NOISE
from policies.network import Evaluated, Inputs, Sampled
from policies.prompts import InstructionTokens, PictureTokens
from policies.senses import Senses
from policies.vla import VLANetwork, VLAPolicy, VLASettings

TOKEN_STD = 0.02
"""Of the decoder's embeddings and weights to begin with."""


@settings("policy")
class TokenSettings(VLASettings):
    """Of a token policy.

    Attributes:
        bins: V, action tokens there are.
        width: d of every embedding. layers, heads, kv_heads, ff: Of the decoder; width / heads should be one of 32,
            64, 80, 96, 112, 128 for vLLM.
        channels: Of the convolutions; all but the last halve the picture's edges. grid: Whether each cell of what they
            leave is an embedding. vision_layers: Of the transformer over a picture's embeddings.
        word_tokens: Embeddings that an instruction of any length becomes.
        token_dropout: Share of the tokens said before that cloning replaces by random ones.
        lora: A version then consists of the adapters and of what is not the decoder, and the decoder's own weights
            stand still.
        base: Path of a `model.safetensors` of this policy without `lora`, to begin with.
        block: As in `TorchPolicy`.
    """

    bins: Annotated[int, Ge(2)] = 256
    width: AtLeastOne = 128
    layers: AtLeastOne = 3
    heads: AtLeastOne = 4
    kv_heads: AtLeastOne = 2
    ff: AtLeastOne = 384
    channels: Annotated[tuple[AtLeastOne, ...], Len(1)] = (16, 32, 64, 64, 64)
    grid: bool = True
    vision_layers: Count = 0
    word_tokens: AtLeastOne = 2
    token_dropout: Share = 0.5
    lora: Lora | None = None
    base: str | None = None
    block: AtLeastOne = 16

    identity = (
        "bins", "width", "layers", "heads", "kv_heads", "ff", "channels", "grid", "vision_layers", "word_tokens",
        "critic_hidden",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_multiple("width", 2 * self.heads, f"with {self.heads} heads")
        self.require_multiple("heads", self.kv_heads, "the heads of keys and values")


class TokenNetwork(VLANetwork):
    """Pictures, words and state to P embeddings; a decoder that continues them with K x D action tokens.

    Another engine takes `prompt`, `decoder_config` and `decoder_state`, and gives `generate`.

    Args:
        senses, scale, settings: As of `VLANetwork`.

    Attributes:
        decoder: Continues the prompt.
        begin: Ends the prompt, as small as the decoder's own embeddings: the first token would else be said from one
            that is so large that little of what it attends to is heard beside it.
        tokens: K * D, how many it says.
        clone_std: Raw units by which demonstrated numbers are blurred for cloning; what the clone explores with.
    """

    def __init__(self, senses: Senses, scale: Sequence[float], settings: TokenSettings) -> None:
        numbers, own = senses.sizes
        super().__init__(senses, scale, settings)
        assert senses.words is not None
        self.bins, self.tokens, self.clone_std = settings.bins, self.chunk * self.action_dim, 0.0
        self.token_dropout = settings.token_dropout
        self.cameras = [stream.name for stream in senses.pictures]
        generator, width, heads = torch.Generator().manual_seed(settings.seed), settings.width, settings.heads
        read = InstructionTokens(senses.words.vocabulary, senses.words.length, width, heads, settings.word_tokens)
        seen = {
            s.name: PictureTokens(s.shape, settings.channels, width, settings.vision_layers, heads, settings.grid)
            for s in senses.pictures
        }
        length = sum(eye.cells for eye in seen.values()) + settings.word_tokens + bool(numbers) + 1
        self.words = seeded_(read, generator)
        self.eyes = nn.ModuleDict({module_key(name): seeded_(eye, generator) for name, eye in seen.items()})
        self.proprioception = seeded_(nn.Linear(numbers, width), generator) if numbers else None
        self.begin = nn.Parameter(torch.empty(width).normal_(0.0, TOKEN_STD, generator=generator))
        self.critic = Critic(numbers + own if own else 0, width, settings.critic_hidden, generator)
        self.decoder = Qwen2ForCausalLM(_decoder_config(settings, length + self.tokens)).eval()

    def prompt(self, inputs: Inputs) -> Tensor:
        """[N, P, d] embeddings: cells of cameras, the instruction, the state, `begin`. P is the same for every row."""
        said, meaning = self.words(inputs["words"])
        seen = [self.eyes[module_key(camera)](inputs[camera], meaning) for camera in self.cameras]
        felt = [self.proprioception(inputs["state"])[:, None]] if self.proprioception is not None else []
        return torch.cat([*seen, said, *felt, self.begin.expand(len(said), 1, -1)], dim=1)

    def features(self, inputs: Inputs) -> Tensor:
        return self.prompt(inputs).mean(1)

    def decoder_config(self) -> dict[str, Any]:
        """`Qwen2Config.to_dict()` of the decoder."""
        return self.decoder.config.to_dict()

    def decoder_state(self) -> dict[str, Tensor]:
        """The decoder's weights by the names `Qwen2ForCausalLM` has for them, adapters merged; live, not copies."""
        return {name: tensor.detach() for name, tensor in merged(self.decoder).items()}

    def actions_of(self, tokens: Tensor) -> Tensor:
        """Physical actions [N, K, D] of tokens [N, K * D], which are in the order of [K, D]."""
        raw = binned.centres(self.bins).to(tokens.device)[tokens]
        return raw.view(-1, self.chunk, self.action_dim) * self.action_scale

    def tokens_of(self, actions: Tensor) -> Tensor:
        """Tokens [N, K * D] nearest to physical actions [N, K, D]; exactly those of actions that `actions_of` made."""
        return binned.nearest(actions / self.action_scale, self.bins).flatten(1)

    def sample_noise(self, noise_keys: NDArray[np.int64]) -> Tensor:
        """[N, K * D] in (0, 1)."""
        draws = torch.from_numpy(noise.uniform(noise_keys, self.tokens, ACTION_NOISE).astype(np.float32))
        return draws.clamp_(max=binned.U_BELOW_ONE).to(self.device)

    def generate(self, prompt: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Tokens and their log-probabilities, both [N, K * D], that continue the prompt [N, P, d].

        The softmax (temperature 1) is sampled with `noise` [N, K * D], or its most likely token taken where None.
        """
        cache, x = DynamicCache(config=self.decoder.config), prompt
        tokens, log_probs = [], []
        for i in range(self.tokens):
            hidden = self.decoder.model(inputs_embeds=x, past_key_values=cache, use_cache=True).last_hidden_state
            logits = self.decoder.lm_head(hidden[:, -1])
            token = logits.argmax(-1) if noise is None else binned.inverse_cdf(logits, noise[:, i])
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

    def sample(self, inputs: Inputs, noise: Tensor | None) -> Sampled:
        prompt = self.prompt(inputs)
        return self.sampled(*self.generate(prompt, noise), self.value_of(inputs, prompt.mean(1)))

    def sampled(self, tokens: Tensor, log_probs: Tensor, values: Tensor) -> Sampled:
        """Of generated tokens and their log-probabilities, both [N, K * D].

        An action is NaN where its log-probability is not finite: broken logits still name a token, which is a full
        action.
        """
        said = self._by_action(log_probs)
        return Sampled(self.actions_of(tokens).where(said.isfinite(), math.nan), said, values)

    def evaluate_actions(self, inputs: Inputs, actions: Tensor, stored: Inputs) -> Evaluated:
        prompt, tokens = self.prompt(inputs), self.tokens_of(actions)
        logits = self.logits(prompt, tokens)
        log_probs, entropy = binned.log_prob(logits, tokens), binned.entropy(logits)
        return Evaluated(self._by_action(log_probs), self.value_of(inputs, prompt.mean(1)), self._by_action(entropy))

    def clone_loss(self, inputs: Inputs, actions: Tensor, generator: torch.Generator) -> Tensor:
        """Cross entropy with what was demonstrated, blurred by `clone_std`, mean over an action's numbers.

        Some of the tokens that were said before are random ones (as words in Bowman et al. 2016, arXiv:1511.06349), so
        that the decoder looks at the picture instead of going on as it began.
        """
        tokens = self.tokens_of(actions)
        others = torch.randint(self.bins, tokens.shape, generator=generator).to(tokens.device)
        lost = (torch.rand(tokens.shape, generator=generator) < self.token_dropout).to(tokens.device)
        logits = self.logits(self.prompt(inputs), torch.where(lost, others, tokens))
        wanted = binned.blurred((actions / self.action_scale).flatten(1), self.bins, self.clone_std)
        return -self._by_action((wanted * torch.log_softmax(logits, dim=-1)).sum(-1)).mean(-1)

    def prepare_clone(self, std: float) -> None:
        self.clone_std = std

    def _by_action(self, numbers: Tensor) -> Tensor:
        return numbers.view(-1, self.chunk, self.action_dim)


def _decoder_config(settings: TokenSettings, positions: int) -> Qwen2Config:
    return Qwen2Config(
        architectures=["Qwen2ForCausalLM"], vocab_size=settings.bins, hidden_size=settings.width,
        num_hidden_layers=settings.layers, num_attention_heads=settings.heads, num_key_value_heads=settings.kv_heads,
        intermediate_size=settings.ff, max_position_embeddings=positions, tie_word_embeddings=False, dtype="float32",
        attn_implementation="sdpa", initializer_range=TOKEN_STD,  # type: ignore[call-arg]
    )  # fmt: skip


class TokenPolicy(VLAPolicy):
    """Chunks of K actions, said token by token, from pictures, an instruction and the robot's own state; see
    `VLAPolicy`.

    Raises:
        CorruptFile, WeightsRefused, SpecMismatch: `base` cannot be read, or is of another policy.
    """

    kind, settings_type = "tokens", TokenSettings
    network_type: ClassVar[type[TokenNetwork]] = TokenNetwork
    network: TokenNetwork
    settings: TokenSettings

    def __init__(self, name: str, agent: AgentSpec, **config: Any) -> None:
        super().__init__(name, agent, **config)
        network, settings = self.network, self.settings
        self.block = settings.block
        self._kept: frozenset[str] = frozenset()
        if settings.base is not None:
            self._begin_with(Path(settings.base).expanduser())
        if settings.lora is not None:
            adapt(network.decoder, settings.lora, torch.Generator().manual_seed(settings.seed))
            self._kept = frozen(network)
            whole = network.state_dict()
            identity = {"lora": settings.lora.identity, "base": fingerprint({name: whole[name] for name in self._kept})}
            self.spec = replace(self.spec, extra={**self.spec.extra, **identity})

    def _begin_with(self, base: Path) -> None:
        fix = "give the model.safetensors of this policy without lora"
        size = sum(tensor.nbytes for tensor in self._state().values())
        try:
            check_sidecar(base, self.spec.to_dict(), fix)
            self.load(read_tensors(base, size, fix))
        except WeightsRefused as error:
            raise WeightsRefused(error.what, str(base), fix) from None

    def _state(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in super()._state().items() if name not in self._kept}


def build(agent: AgentSpec, **config: Any) -> TokenPolicy:
    """The policy a config's import path points to; `config` holds `name` and any field of `TokenSettings`."""
    return configured(TokenPolicy, config, agent=agent)
