"""A worker whose decoder is torch's, so that a policy of two processes can be tested without vLLM."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from policies.vllm.worker import Decoder, main


class TorchDecoder(Decoder):
    def __init__(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        from transformers import Qwen2Config, Qwen2ForCausalLM

        torch.set_num_threads(1)
        self.model = Qwen2ForCausalLM(Qwen2Config(**config)).eval()
        self._tied = set()
        self.layout = {name: tuple(tensor.shape) for name, tensor in self.model.state_dict().items()}
        self.version = "random"

    @torch.inference_mode()
    def generate(self, prompts: Any, seeds: Any, count: int, mode: str) -> Any:
        generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        x, tokens, log_probs = torch.from_numpy(prompts), list[Any](), list[Any]()
        for _ in range(count):
            found = self.model(inputs_embeds=x, use_cache=False).logits[:, -1].log_softmax(-1)
            drawn = [torch.multinomial(row.exp(), 1, generator=g) for row, g in zip(found, generators, strict=True)]
            token = found.argmax(-1, keepdim=True) if mode == "mean" else torch.stack(drawn)
            tokens.append(token)
            log_probs.append(found.gather(-1, token))
            x = torch.cat([x, self.model.get_input_embeddings()(token)], dim=1)
        return torch.cat(tokens, 1).numpy(), torch.cat(log_probs, 1).numpy(), self.version

    def drain(self) -> None:
        if "VLLM_TORCH_DIES" in os.environ and Path(os.environ["VLLM_TORCH_DIES"]).exists():
            os.kill(os.getpid(), signal.SIGKILL)

    def reload(self, tensors: Any) -> None:
        self.model.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})

    def forget(self) -> None:
        pass

    def label(self, version: str) -> None:
        self.version = version


if __name__ == "__main__":
    raise SystemExit(main(decoder=TorchDecoder))
