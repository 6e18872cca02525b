"""The captured, packed optimizer step: sequences without padding, one CUDA graph a length bucket."""
