"""Control of a guest of vmm that runs.

The guest was started by ``vmm run --control SOCKET`` or ``vmm guard --control SOCKET``. docs/control.md describes what is spoken there.
"""

from .connection import Ended, Refused
from .machine import Hit, Machine, Probe, Vcpu

__all__ = ["Ended", "Hit", "Machine", "Probe", "Refused", "Vcpu", "connect"]
__version__ = "0.1.0"


def connect(path: str) -> Machine:
    """The guest whose control socket is at ``path``.

    Raises OSError where nobody listens there, and Refused where another version of the protocol is spoken.
    """
    return Machine(path)
