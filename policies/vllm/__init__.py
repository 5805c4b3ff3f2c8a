"""Action tokens decoded by vLLM, in a process and an environment of its own (`make peer-vllm`)."""
