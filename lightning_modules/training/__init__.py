"""What every fit runs on: its folder and length, its processes, seeds, optimizers, hyperparameters and metrics."""
