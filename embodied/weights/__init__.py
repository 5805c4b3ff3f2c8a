"""Versioned weights: manifests, the registry, verification."""
