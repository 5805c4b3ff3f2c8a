"""Domain randomisation: what may differ between episodes, how it is drawn from an episode's seed, and where it acts."""
