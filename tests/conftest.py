"""What all tests share."""

from hypothesis import settings

# A busy machine is slow now and then, which says nothing about the code: no example has a time limit of its own.
settings.register_profile("house", deadline=None)
settings.load_profile("house")
