"""What `LightningCLI attack` does: shadow pipelines of a run, and the report."""
