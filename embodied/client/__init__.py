"""The policy client, the same for a policy in this process and one behind a socket."""
