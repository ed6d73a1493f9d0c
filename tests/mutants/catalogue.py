"""All mutants, by area."""

from __future__ import annotations

from tests.mutants.benching import BENCHING
from tests.mutants.chatting import CHATTING
from tests.mutants.commanding import COMMANDING
from tests.mutants.decoding import DECODING
from tests.mutants.delta_kernels import DELTA_KERNELS
from tests.mutants.drafting import DRAFTING
from tests.mutants.examining import EXAMINING
from tests.mutants.filling import FILLING
from tests.mutants.hybrids import HYBRIDS
from tests.mutants.kernels import KERNELS
from tests.mutants.networks import NETWORKS
from tests.mutants.recurrence import RECURRENCE
from tests.mutants.sampling import SAMPLING
from tests.mutants.serving import SERVING
from tests.mutants.stopping import STOPPING
from tests.mutants.verifying import VERIFYING

MUTANTS = (
    *DECODING,
    *VERIFYING,
    *SAMPLING,
    *DRAFTING,
    *FILLING,
    *NETWORKS,
    *RECURRENCE,
    *HYBRIDS,
    *KERNELS,
    *DELTA_KERNELS,
    *SERVING,
    *STOPPING,
    *BENCHING,
    *EXAMINING,
    *CHATTING,
    *COMMANDING,
)
