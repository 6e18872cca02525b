"""Serving: a trained model behind HTTP, in micro-batches, with the answers of an evaluation."""
