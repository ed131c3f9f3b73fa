"""`LightningCLI attack`: shadow pipelines of a run, and the report."""
