"""The training loop, one file per stage."""
