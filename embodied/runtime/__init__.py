"""Where the stations run, and how a run is checkpointed and resumed."""
