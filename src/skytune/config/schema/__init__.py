"""The keys of a run, one file a group: typed dataclasses with a docstring under every field (that is its `--help`)."""
