"""Action tokens from vLLM: a worker that is started when it is needed, with the weights of the version served."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from embodied.errors import ConfigError, DataError, UserError, WeightsRefused
from embodied.settings import Rows, Seconds, Threads, configured, settings
from embodied.wire.codecs import take_array
from embodied.wire.message import Message
from policies.base import Mode
from policies.vllm.process import AGAIN, ROOT, WorkerProcess
from policies.vllm.protocol import ANSWERS, LIMITS

_NAME = "vLLM worker"
_BLOCK_SIZE = 32  # of the cache; vLLM's CPU attention takes multiples of it
_ROUNDING = 1e-3  # above 0, of the log-probability of a certain token

Arrays = Mapping[str, NDArray[Any]]


@settings("engine")
class EngineSettings:
    """`configs/engine/vllm.yaml`.

    Attributes:
        python: Interpreter of vLLM's environment; a relative path is looked for in the clone.
        threads: CPU threads of the worker.
        kv_cache_mb: Size of its cache of keys and values, megabytes.
        rows: Prompts decoded at once; more wait for their turn.
        timeout_s: Longest wait for an answer, and for new weights to be taken.
        start_s: Longest wait for the worker to start.
    """

    python: str = ".venvs/vllm/bin/python"
    threads: Threads = 1
    kv_cache_mb: Annotated[int, Interval(ge=1, le=1 << 20)] = 256
    rows: Rows = 64
    timeout_s: Seconds = 60.0
    start_s: Seconds = 300.0

    def command(self) -> list[str]:
        """Command that starts a worker.

        Raises:
            UserError: There is no such interpreter.
        """
        python = ROOT / self.python
        if not python.is_file():
            raise UserError(f"vLLM is not installed: there is no {python}", "engine.python", "make peer-vllm")
        return [str(python), "-m", "policies.vllm.worker"]


class VLLMEngine:
    """Decodes with the weights of its last `load`. Its worker starts at the first use; one that died, was silent
    beyond its deadline, or said what it should not, is ended, and the next use starts another with the same weights.

    Args:
        config: Of the decoder, `Qwen2Config.to_dict()`.
        weights: The decoder's tensors, float32, by the names of `Qwen2ForCausalLM`, as a new worker is to have them.
        settings: Of the worker.
        command: Resets a worker; that of `settings` where None.

    Raises:
        UserError: There is no vLLM.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: Callable[[], Arrays],
        settings: EngineSettings,
        command: Sequence[str] | None = None,
    ) -> None:
        self._command = list(command or settings.command())
        self._settings, self._weights = settings, weights
        self._config: dict[str, Any] = json.loads(json.dumps(config))
        self._worker: WorkerProcess | None = None
        self._lock, self._loads = threading.Lock(), 0

    @property
    def pid(self) -> int | None:
        """Of the worker; None where there is none."""
        return self._worker.pid if self._worker is not None and self._worker.alive else None

    def generate(
        self, prompts: NDArray[np.float32], seeds: NDArray[np.int64], count: int, mode: Mode
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Tokens [N, count] that continue prompts [N, P, d], and their log-probabilities under the softmax.

        Args:
            seeds: [N], of each row's own generator. A row's tokens are its seed's, its probabilities rounded as the
                batch has it: differences of 1e-6, which change a token where it was as good as a tie.
            mode: `sample` at temperature 1; `mean` takes the most likely token.

        Raises:
            InfrastructureError: The worker died.
            DeadlineExceeded: It did not answer in time.
            DataError: Its answer is not what was asked for.
            UserError: vLLM cannot run this decoder.
        """
        if not len(prompts):
            return np.zeros((0, count), np.int64), np.zeros((0, count), np.float32)
        body: dict[str, Any] = {"mode": mode, "tokens": count}
        arrays: dict[str, NDArray[Any]] = {"prompts": prompts, "seeds": seeds}
        with self._lock:
            if self.pid is None:
                self._load(self._weights())
            answer = self._ask("act", body, arrays, self._loads)
            try:
                tokens = take_array(answer.arrays, "tokens", "int64", (len(prompts), count))
                log_probs = take_array(answer.arrays, "log_probs", "float32", (len(prompts), count))
                if tokens.min() < 0 or tokens.max() >= self._config["vocab_size"] or not (log_probs <= _ROUNDING).all():
                    raise DataError("it gave tokens or log-probabilities that do not exist", _NAME, AGAIN)
            except DataError:
                self._stop()
                raise
            return tokens, log_probs

    def load(self, tensors: Arrays) -> None:
        """Decode with these from the next `generate` on.

        Raises:
            WeightsRefused: They are not the decoder's; nothing has changed.
            EmbodiedError: As `generate`; the next use starts a worker with the weights it should have.
        """
        with self._lock:
            self._load(tensors)

    def close(self) -> None:
        """End the worker; the next use starts another."""
        with self._lock:
            self._stop()

    def _load(self, tensors: Arrays) -> None:
        fresh = self.pid is None
        if fresh:
            self._start()
        try:
            self._ask("load", {"version": str(self._loads + 1)}, tensors, self._loads + 1)
        except WeightsRefused:
            if fresh:
                self._stop()  # its weights are random
            raise
        self._loads += 1

    def _start(self) -> None:
        self._stop()
        given = self._settings
        settings = {
            "max_model_len": self._config["max_position_embeddings"],
            "max_num_seqs": given.rows,
            "block_size": _BLOCK_SIZE,
            "kv_cache_memory_bytes": given.kv_cache_mb << 20,
            "threads": given.threads,
        }
        self._worker = WorkerProcess(_NAME, self._command, LIMITS, ANSWERS, given.start_s)
        try:
            self._worker.ask("hello", {"config": self._config, "settings": settings}, {}, given.start_s)
        except BaseException:
            self._stop()
            raise

    def _ask(self, kind: str, body: Mapping[str, Any], arrays: Arrays, version: int) -> Message:
        """Ask; the answer has to be by the version of the last load, this one included."""
        assert self._worker is not None
        try:
            answer = self._worker.ask(kind, body, arrays, self._settings.timeout_s)
            if answer.body.get("version") != str(version):
                what = f"it answered by version {str(answer.body.get('version'))[:20]}, and {version} was loaded"
                raise DataError(what, self._worker.where, AGAIN)
        except WeightsRefused:
            raise
        except BaseException:
            self._stop()
            raise
        return answer

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def settings_of(config: Mapping[str, Any]) -> EngineSettings:
    """Settings from a mapping.

    Raises:
        ConfigError: A key is unknown, or its value of another kind or out of range.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"not an engine's settings: {config!r}", "engine", "see configs/engine/vllm.yaml")
    return configured(EngineSettings, config, "engine")
