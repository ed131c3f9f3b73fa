"""Mathematics of privacy figures: loss distributions, Renyi divergences, the Gaussian mechanism. No project types."""
