"""Privacy accounting: exact where exact is known, published where a paper claims it. Knows nothing of Lightning."""

from privacy.account import Budget as Budget, BudgetExceeded as BudgetExceeded, PrivacyAccount as PrivacyAccount
from privacy.accounting.calibration import calibrate_count as calibrate_count, calibrate_noise as calibrate_noise
from privacy.accounting.composition import compose as compose
from privacy.events import (
    Gaussian as Gaussian,
    LabelOnly as LabelOnly,
    LaplaceVotes as LaplaceVotes,
    OneOf as OneOf,
    RandomizedResponse as RandomizedResponse,
    Release as Release,
    Repeated as Repeated,
    RevealedGaussian as RevealedGaussian,
    SampledGaussian as SampledGaussian,
    Unbounded as Unbounded,
)
from privacy.events.base import Relation as Relation, Unit as Unit
from privacy.guarantee import Guarantee as Guarantee
from privacy.identity import Training as Training
from privacy.journal import LedgerError as LedgerError
from privacy.ledger import Ledger as Ledger
from privacy.numerics.epsilon import gaussian_epsilon as gaussian_epsilon
from privacy.plan import Charge as Charge
from privacy.published import (
    published_dgd_epsilon as published_dgd_epsilon,
    published_dpdfd_epsilon as published_dpdfd_epsilon,
)
