"""Domain randomisation: ranges, values drawn from an episode's seed, and their effect on physics and images."""
