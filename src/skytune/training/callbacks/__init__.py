"""What watches the training loop: checkpoints, history, trackers, EMA, early stopping, progress, profiler."""
