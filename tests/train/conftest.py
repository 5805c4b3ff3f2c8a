"""One thread, as in a run: small networks gain nothing from more."""

import torch

torch.set_num_threads(1)
