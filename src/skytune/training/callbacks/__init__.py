"""What watches the training loop: checkpoints, history, trackers, EMA, early stopping, upload, progress, profiler."""
