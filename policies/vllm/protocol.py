"""Messages between a policy's process and its vLLM worker: those of `embodied.wire` over one PAIR socket.

The worker says `status` when it is there. From then on the policy's process asks, one request at a time, and the worker
answers with the same id and kind, or with `error`.

| kind | asks with | is answered with |
|---|---|---|
| `hello` | `config` of the decoder (`Qwen2Config.to_dict`) and `settings` | nothing, once the engine is ready |
| `load` | `version`, and the decoder's tensors as arrays | `version` that outputs carry from then on |
| `act` | `mode`, n as `tokens`; `prompts` [N, P, d], `seeds` [N] | `version`; `tokens` and `log_probs` [N, n] |
| `bye` | nothing | nothing; the worker ends |

Prompts and log-probabilities are float32, seeds and tokens int64.
"""

from embodied.wire.limits import Limits

LIMITS = Limits(total_bytes=1 << 38)
"""Limits on requests to the worker, through a socket in a folder that only this user can enter: a decoder of billions
of parameters in one message."""

ANSWERS = Limits()
"""Limits on its answers: 33 million tokens, of 8 bytes each, in one message are enough."""
