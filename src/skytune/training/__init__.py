"""The room of training: pure, needs only torch, transformers and accelerate; no ZenML, no SkyPilot, no Hydra."""
