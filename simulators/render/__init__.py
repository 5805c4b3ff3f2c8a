"""Images of simulations: a ray caster that needs no GL, and GL for quality."""
