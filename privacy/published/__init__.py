"""What the four papers claim, computed as they print it. No figure of this package bounds anything."""

from privacy.published.theorems import dpdfd_rdp_slope, published_dgd_epsilon, published_dpdfd_epsilon

__all__ = ["dpdfd_rdp_slope", "published_dgd_epsilon", "published_dpdfd_epsilon"]
