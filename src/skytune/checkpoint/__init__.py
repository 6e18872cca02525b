"""The room of checkpoints: what one is (`manifest`), where it lies (`store`), how it gets there while training goes on
(`writer`, `optimizer`), and who may write (`lease`). Needs fsspec and numpy; torch and safetensors for the writer only.
"""
