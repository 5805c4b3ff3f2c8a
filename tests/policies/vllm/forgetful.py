"""A worker whose switch leaves out one step: the cache of the old weights stays."""

from policies.vllm.worker import Decoder, main


class Forgetful(Decoder):
    def forget(self) -> None:
        pass


if __name__ == "__main__":
    raise SystemExit(main(decoder=Forgetful))
