"""The room of ZenML steps: thin wrappers around the plain functions of the rooms below."""
