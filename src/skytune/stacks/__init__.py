"""The room of ZenML stacks: the store and its first use, what a machine must have, and stacks in the cloud."""
