"""A worker without vLLM: the same loop around a decoder that adds up its weights, and goes wrong on demand."""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import zmq

from policies.vllm.worker import Decoder, main

FAULT_SEED, FAULT_WEIGHT = 666, 13.0


class FakeDecoder(Decoder):
    def __init__(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self._tied = set()
        self.layout = {"w": (3,)}
        self.weights, self.version = np.zeros(3, np.float32), "random"
        self.fault, self.vocabulary = config["fault"], config["vocab_size"]
        if self.fault == "cannot":
            raise ValueError(f"heads of {settings['block_size']} numbers\nare too many")

    def generate(self, prompts: Any, seeds: Any, count: int, mode: str) -> Any:
        if seeds[0] == FAULT_SEED:
            if self.fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "exit":
                print("first word\nout of memory\n", flush=True)
                os._exit(7)
            if self.fault == "hang":
                time.sleep(600)
            if self.fault == "raise":
                raise RuntimeError("no kernel")
        width = count + (self.fault == "wide" and seeds[0] == FAULT_SEED)
        first = int(self.weights.sum()) + (0 if mode == "mean" else seeds)
        tokens = (np.zeros((len(prompts), width), np.int64) + np.reshape(first, (-1, 1))) % self.vocabulary
        if self.fault == "unknown" and seeds[0] == FAULT_SEED:
            tokens += self.vocabulary
        return tokens, np.full(tokens.shape, -1.0, np.float32), self.version

    def drain(self) -> None:
        pass

    def reload(self, tensors: Any) -> None:
        self.weights[0] = tensors["w"][0]
        if self.fault == "half" and tensors["w"][0] == FAULT_WEIGHT:
            raise RuntimeError("half of it is loaded")
        self.weights[:] = tensors["w"]

    def forget(self) -> None:
        pass

    def label(self, version: str) -> None:
        if not (self.fault == "stale" and self.weights[0] == FAULT_WEIGHT):
            self.version = version


def misspeak(how: str, address: str) -> None:
    """Begin, or answer the first request, with what is no message of the protocol."""
    sock = zmq.Context().socket(zmq.PAIR)
    sock.connect(address)
    from embodied.wire.message import Message, decode, encode

    if how == "mute":
        time.sleep(600)
    if how == "other":
        sock.send_multipart(encode(Message("ack")))
        time.sleep(600)
    sock.send_multipart(encode(Message("status")))
    asked = decode(sock.recv_multipart())
    answers = {
        "garbage": [b"{}"],
        "turn": encode(Message(asked.kind, asked.id + 1)),
        "kind": encode(Message("ack", asked.id)),
    }
    sock.send_multipart(answers[how])
    time.sleep(600)


def parent(how: str) -> None:
    """An engine's process of its own: says its worker's id, and waits."""
    from policies.vllm.engine import EngineSettings, VLLMEngine

    config = {"vocab_size": 9, "max_position_embeddings": 8, "fault": how}
    engine = VLLMEngine(config, dict, EngineSettings(), [sys.executable, __file__])
    engine.load({"w": np.ones(3, np.float32)})
    print(json.dumps(engine.pid), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    if sys.argv[1] == "parent":
        parent("none")
    elif sys.argv[1] != "--connect":
        misspeak(sys.argv[1], sys.argv[sys.argv.index("--connect") + 1])
    else:
        raise SystemExit(main(decoder=FakeDecoder))
