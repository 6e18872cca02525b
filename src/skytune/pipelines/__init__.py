"""The room of ZenML pipelines: wiring only; each reads like the picture of its DAG."""
