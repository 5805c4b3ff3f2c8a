"""Runtimes: the processes that stages run in, and the commands' work around them."""
