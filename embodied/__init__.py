"""The loop that trains robot policies."""
