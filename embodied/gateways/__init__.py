"""Gateways to other projects' protocols: servers for their clients, and policies that ask their servers."""
