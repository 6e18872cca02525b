"""skytune: fine-tune a Hugging Face model with one command, on a laptop, a GPU box or spot machines."""

__version__ = "0.1.0"
