"""Several machines: an engine starts the same command on each, and they meet in a share."""
