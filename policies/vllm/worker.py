"""vLLM around one decoder, in a process of its own, since importing vLLM changes its process for good.

    .venvs/vllm/bin/python -m policies.vllm.worker --connect ipc:///folder/socket

What it is asked for is in `policies.vllm.protocol`; it ends with its parent.
"""

import argparse
import json
import os
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from embodied.errors import DataError, EmbodiedError, InfrastructureError, UserError, WeightsRefused
from embodied.supervisor import end_with_parent
from embodied.wire import frames
from embodied.wire.codecs import take_array
from embodied.wire.message import Message, decode, encode
from policies.vllm.protocol import ANSWERS, LIMITS

_SEND_MS = 30_000
_FIRST_WORD_MS = 30_000
_WHERE = "vLLM worker"

Arrays = dict[str, NDArray[Any]]


class Decoder:
    """One Qwen2 decoder in vLLM, random until the first `switch`.

    Args:
        config: `Qwen2Config.to_dict()`.
        settings: `max_model_len`, `max_num_seqs`, `block_size`, `kv_cache_memory_bytes` of vLLM, and `threads`.

    Raises:
        ImportError, ValueError, RuntimeError: What vLLM has against them.
    """

    def __init__(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        options = dict(settings)
        os.environ |= {
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(options.pop("threads")),
            "TORCHDYNAMO_DISABLE": "1",  # else even eager mode compiles the gathering of log-probabilities
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
        }
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM
        from vllm import LLM

        with torch.device("meta"):
            made = Qwen2ForCausalLM(Qwen2Config(**config))
        self._tied = {"lm_head.weight"} if config.get("tie_word_embeddings") else set[str]()
        self.layout = {name: tuple(value.shape) for name, value in made.state_dict().items() if name not in self._tied}
        with tempfile.TemporaryDirectory() as folder:
            description = {**config, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
            Path(folder, "config.json").write_text(json.dumps(description))
            self.llm = LLM(
                folder,
                load_format="dummy",
                dtype="float32",
                skip_tokenizer_init=True,
                enable_prompt_embeds=True,
                enable_prefix_caching=True,
                enforce_eager=True,
                generation_config="vllm",
                logprobs_mode="raw_logprobs",
                disable_log_stats=True,
                **options,
            )
        self.label("random")
        # vLLM reports a network that it cannot run, such as the width of a head, at the first prompt.
        self.generate(np.zeros((1, 2, config["hidden_size"]), np.float32), np.zeros(1, np.int64), 1, "mean")

    def generate(
        self, prompts: NDArray[np.float32], seeds: NDArray[np.int64], count: int, mode: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], str]:
        """Tokens and their log-probabilities [N, count] of prompts [N, P, d], and the version that gave them.

        Raises:
            InfrastructureError: vLLM gave another number of tokens, or outputs of another version than the last switch.
        """
        import torch
        from vllm import SamplingParams

        temperature = 1.0 if mode == "sample" else 0.0
        wanted = [
            SamplingParams(
                temperature=temperature,
                seed=int(seed),
                logprobs=0,
                max_tokens=count,
                min_tokens=count,
                ignore_eos=True,
                detokenize=False,
            )
            for seed in seeds
        ]
        embeddings = [{"prompt_embeds": torch.from_numpy(prompt)} for prompt in prompts]
        outputs = self.llm.generate(embeddings, wanted, use_tqdm=False)
        tokens = np.array([output.outputs[0].token_ids for output in outputs], np.int64)
        if tokens.shape != (len(prompts), count):
            what = f"vLLM gave tokens of shape {tokens.shape}, not {(len(prompts), count)}"
            raise InfrastructureError(what, _WHERE, "start again")
        log_probs = np.array([_log_probs(output.outputs[0]) for output in outputs], np.float32)
        versions = {span.version for output in outputs for span in output.outputs[0].weight_versions or ()}
        if versions != {self.version}:
            what = f"outputs are of versions {sorted(versions)}, the last switch was to {self.version}"
            raise InfrastructureError(what, _WHERE, "start again")
        return tokens, log_probs, self.version

    def check(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Whether these are the decoder's tensors, each of them.

        Raises:
            WeightsRefused: One is missing, unknown, or of another shape or dtype.
        """
        given = {name: value for name, value in tensors.items() if name not in self._tied}
        for name in sorted(self.layout.keys() ^ given.keys()):
            what = "missing" if name in self.layout else "unknown"
            raise WeightsRefused(f"tensor {name} is {what}", _WHERE, "send the decoder's own tensors")
        for name, shape in self.layout.items():
            if given[name].shape != shape or given[name].dtype != np.float32:
                what = f"tensor {name} is {given[name].dtype}{list(given[name].shape)}, not float32{list(shape)}"
                raise WeightsRefused(what, _WHERE, "send the decoder's own tensors")

    def switch(self, tensors: Mapping[str, NDArray[Any]], version: str) -> str:
        """The one operation that changes weights; returns the version that outputs carry from then on.

        No request is in flight meanwhile: there is one thread, and `generate` returns what it began.

        Raises:
            WeightsRefused: As `check`; nothing has changed. After any other error the engine is not to be used.
        """
        self.check(tensors)
        self.drain()
        self.reload(tensors)
        self.forget()
        self.label(version)
        return self.version

    def drain(self) -> None:
        """End what vLLM may still hold of earlier requests."""
        if self.llm.llm_engine.has_unfinished_requests():
            raise InfrastructureError("vLLM holds unfinished requests", _WHERE, "start again")

    def reload(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Put the weights in place of the old ones."""
        import torch

        pairs = ((name, torch.from_numpy(tensors[name])) for name in self.layout)
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": pairs})

    def forget(self) -> None:
        """Drop keys and values that the old weights made of prompts: vLLM would go on answering from them."""
        if not self.llm.reset_prefix_cache():
            raise InfrastructureError("vLLM kept its prefix cache", _WHERE, "start again")

    def label(self, version: str) -> None:
        self.llm.update_weight_version(version)
        self.version = version


def _log_probs(said: Any) -> list[float]:
    """Of the tokens of one vLLM output."""
    return [at[token].logprob for at, token in zip(said.logprobs, said.token_ids, strict=True)]


def _said(error: Exception) -> str:
    """An error of others as part of a line; the log of the worker has it whole."""
    traceback.print_exception(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


class Worker:
    """Answers one parent over one socket until it says `bye`, or is gone.

    Args:
        decoder: Makes the `Decoder` of a config and settings.
    """

    def __init__(self, sock: "zmq.Socket[bytes]", decoder: type[Decoder]) -> None:
        self._socket, self._make = sock, decoder
        self._decoder: Decoder | None = None

    def run(self) -> None:
        self._socket.send_multipart(encode(Message("status", body={"pid": os.getpid()}), ANSWERS))
        self._socket.rcvtimeo = _FIRST_WORD_MS
        while True:
            asked = decode([frame.bytes for frame in frames.receive(self._socket, 0)], LIMITS)
            self._socket.rcvtimeo = -1  # `end_with_parent` ends the wait for a parent that is gone
            if asked.kind == "bye":
                return
            try:
                body, arrays = self.answer(asked)
                answer = Message(asked.kind, asked.id, body=body, arrays=arrays)
            except EmbodiedError as error:
                answer = Message("error", asked.id, body=error.to_dict())
            except Exception as error:
                answer = Message("error", asked.id, body=InfrastructureError(_said(error), _WHERE).to_dict())
            self._socket.send_multipart(encode(answer, ANSWERS))

    def answer(self, asked: Message) -> tuple[dict[str, Any], Arrays]:
        body, arrays = asked.body, asked.arrays
        if asked.kind == "hello":
            try:
                self._decoder = self._make(body["config"], body["settings"])
            except Exception as error:
                fix = "change the policy's sizes, or the settings of engine=vllm"
                raise UserError(f"vLLM cannot run this decoder: {_said(error)}", _WHERE, fix) from error
            return {}, {}
        if self._decoder is None:
            raise DataError(f"{asked.kind} before hello", _WHERE, "say hello first")
        if asked.kind == "load":
            return {"version": self._decoder.switch(arrays, body["version"])}, {}
        if asked.kind == "act":
            prompts = take_array(arrays, "prompts", "float32", (None, None, None))
            seeds = take_array(arrays, "seeds", "int64", (len(prompts),))
            tokens, log_probs, version = self._decoder.generate(prompts, seeds, body["tokens"], body["mode"])
            return {"version": version}, {"tokens": tokens, "log_probs": log_probs}
        raise DataError(f"nothing answers {asked.kind} here", _WHERE, "ask for hello, load, act or bye")


def main(arguments: Sequence[str] | None = None, decoder: type[Decoder] = Decoder) -> int:
    parser = argparse.ArgumentParser(description="vLLM for one policy; started by the policy's process")
    parser.add_argument("--connect", required=True, help="address where the policy's process listens")
    given = parser.parse_args(arguments)
    end_with_parent()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sock = context.socket(zmq.PAIR)
    sock.linger, sock.sndtimeo, sock.maxmsgsize = 0, _SEND_MS, LIMITS.frame_bytes
    sock.connect(given.connect)
    try:
        Worker(sock, decoder).run()
    except zmq.Again:
        print(f"{given.connect} says nothing, or takes nothing", flush=True)
        return 3
    finally:
        sock.close()
        context.term()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
