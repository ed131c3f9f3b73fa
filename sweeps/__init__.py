"""Configuration files, one per paper and data set, installed so that `--config sweeps/...` always finds them."""
