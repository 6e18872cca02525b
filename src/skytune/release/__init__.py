"""Releases: a trained model with its card copied to where people find it, and promoted where a test says so."""
